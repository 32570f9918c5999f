#!/usr/bin/env python3
"""Looks at the resident chunks of a dataset every 100 ms, until told to stop. Prints a line for each look."""

import json
import os
import sys
import time

import copperfs


def main():
    mount, dataset, stop = copperfs.connect(sys.argv[1]), sys.argv[2], sys.argv[3]
    due = time.monotonic()
    while not os.path.exists(stop):
        try:
            said = mount.ask(f"/v1/datasets/{dataset}/chunks").fields()
            print(json.dumps({"at": time.time(), "resident": said["resident"]}), flush=True)
        except copperfs.CopperError as error:
            print(json.dumps({"at": time.time(), "error": str(error)}), flush=True)
        due = max(due + 0.1, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
    print(json.dumps({"job": True}), flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Asks for hashes that have no bytes for this process, by turns, and times the answers.

`unknown` hashes are of nothing, `absent` ones of entries that no home holds, and `private` ones of resident
entries of a dataset that gives nothing by hash. Arguments: the data mount, the datasets of the last two, and the
number of tries. Prints a line of JSON: seconds of each try, by question and kind.
"""

import json
import os
import sys
import time

import copperfs


def main():
    mount, absent, private, tries = sys.argv[1:]
    mount = copperfs.connect(mount)
    data, secret = mount.dataset(absent), mount.dataset(private)
    for entry in range(len(secret)):
        secret.read(entry)
    end = time.monotonic() + 30
    while not secret.resident(max_age=0).all() or data.resident(max_age=0).any():
        if time.monotonic() > end:
            sys.exit("hashes_job: not all of the private dataset is resident, or some of the other one")
        time.sleep(0.1)
    questions = {"get": data.get, "lookup": data.lookup}
    took = {question: {"unknown": [], "absent": [], "private": []} for question in questions}
    for turn in range(int(tries)):
        hashes = {
            "unknown": os.urandom(32),
            "absent": bytes(data.entry(turn % len(data)).hash),
            "private": bytes(secret.entry(turn % len(secret)).hash),
        }
        kinds = list(hashes)
        for question, ask in questions.items():
            # Whichever comes first finds the processor's caches cold.
            for kind in kinds[turn % 3 :] + kinds[: turn % 3]:
                begun = time.perf_counter()
                found = ask([hashes[kind]])
                took[question][kind].append(time.perf_counter() - begun)
                if found[0]:
                    sys.exit(f"hashes_job: {question} of a {kind} hash found something")
    print(json.dumps({"job": True, "took": took}), flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Runs a command, and prints the time that it took as a line of JSON: `pipeline_clock.py CMD…`."""

import json
import subprocess
import sys
import time


def main():
    begin = time.time()
    status = subprocess.run(sys.argv[1:], stdout=sys.stderr, check=False).returncode
    print(json.dumps({"seconds": time.time() - begin, "begin": begin}), flush=True)
    sys.exit(status)


if __name__ == "__main__":
    main()

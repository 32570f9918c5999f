#!/usr/bin/env python3
"""Reads files in one process, one after the other or many at a time.

Arguments: `one`, `many` or `lent` (many, without a copy), the directory, a list of paths below it, and how many
are read at a time. Prints a line of JSON: files, bytes, and wall and CPU seconds of the loop alone.
"""

import json
import os
import sys
import time

import copperfs


def one_by_one(paths):
    total = 0
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        total += len(os.read(file, os.fstat(file).st_size))
        os.close(file)
    return total


def many(paths, count, copy):
    total = 0
    for at in range(0, len(paths), count):
        total += sum(map(len, copperfs.read_many(paths[at : at + count], copy=copy)))
    return total


def main():
    how, base, list_file, count = sys.argv[1:]
    with open(list_file) as file:
        paths = [os.path.join(base, line.rstrip("\n")) for line in file]
    if how != "one":
        # The connection is made once in the life of a process.
        copperfs.read_many(paths[:2])
    wall, cpu = time.monotonic(), time.process_time()
    total = one_by_one(paths) if how == "one" else many(paths, int(count), how == "many")
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    print(json.dumps({"files": len(paths), "bytes": total, "wall": wall, "cpu": cpu}))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Reads files of a mount with 16 processes, with and without hints, while another one drops the kernel's caches.

Arguments: the directory of storage, that of the software mount, that of the data mount, and seconds. Directories
`small` and `middle` of storage are read by both. Processes that have not ended some seconds after they should have
are hung. Prints a line of JSON. Needs root.
"""

import json
import multiprocessing
import os
import random
import sys
import time
import zlib
from pathlib import Path

READERS = 16
HINTED = 16
"""Files that are open with a hint at a time."""
PAUSE_S = 0.02
GRACE_S = 15.0


class Reader:
    """Draws operations, and counts in shared memory, since a hung process reports nothing."""

    COUNTS = ("reads", "hints", "wrong", "errors", "longest_ms")

    def __init__(self, number, checksums, bases, counts, stop):
        self.draw = random.Random(number)
        self.checksums, self.bases = checksums, bases
        self.counts, self.stop = counts, stop

    def run(self):
        """Reads until it is told to stop."""
        while not self.stop.is_set():
            base = self.draw.choice(self.bases)
            directory = self.draw.choice(sorted(self.checksums))
            try:
                # The listing makes the daemon push small files of the software mount.
                names = os.listdir(base / directory)
                self.draw.choice((self.plain, self.hinted))(base, directory, names)
            except OSError:
                self.counts["errors"].value += 1

    def plain(self, base, directory, names):
        """Reads some files one after the other."""
        for name in names[: 2 * HINTED]:
            file = os.open(base / directory / name, os.O_RDONLY)
            self.read(file, self.checksums[directory][name])

    def hinted(self, base, directory, names):
        """Opens some files, asks the kernel for their bytes, and reads them in another order."""
        chosen = self.draw.sample(names, min(HINTED, len(names)))
        files = [(os.open(base / directory / name, os.O_RDONLY), name) for name in chosen]
        for file, _ in files:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
            self.counts["hints"].value += 1
        self.draw.shuffle(files)
        for file, name in files:
            self.read(file, self.checksums[directory][name])

    def read(self, file, checksum):
        """Reads a file to its end, compares its bytes, and closes it."""
        begun = time.monotonic()
        with os.fdopen(file, "rb", buffering=0) as opened:
            contents = opened.readall()
            if self.draw.random() < 0.2:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        took = int(1000 * (time.monotonic() - begun))
        self.counts["longest_ms"].value = max(took, self.counts["longest_ms"].value)
        self.counts["reads"].value += 1
        self.counts["wrong"].value += zlib.crc32(contents) != checksum


def drop(drops, stop):
    """Drops pages, then names and inodes, then both, over and over."""
    while not stop.is_set():
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write(str(1 + drops.value % 3))
        drops.value += 1
        stop.wait(PAUSE_S)


def checksums_of(origin):
    """The files of each directory, with their checksums."""
    found = {}
    for path in [*origin.glob("small/*/*"), *origin.glob("middle/*/*")]:
        directory = str(path.parent.relative_to(origin))
        found.setdefault(directory, {})[path.name] = zlib.crc32(path.read_bytes())
    return found


def ended(processes, timeout_s):
    """Waits for processes. Returns those that have not ended."""
    end = time.monotonic() + timeout_s
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    return [process for process in processes if process.is_alive()]


def main():
    """Runs the processes, and prints their counts."""
    origin, *bases, seconds = sys.argv[1:]
    checksums, stop = checksums_of(Path(origin)), multiprocessing.Event()
    drops = multiprocessing.Value("q", 0, lock=False)
    counts = [{name: multiprocessing.Value("q", 0, lock=False) for name in Reader.COUNTS} for _ in range(READERS)]
    readers = [Reader(number, checksums, [*map(Path, bases)], own, stop) for number, own in enumerate(counts)]
    processes = [multiprocessing.Process(target=reader.run, daemon=True) for reader in readers]
    processes.append(multiprocessing.Process(target=drop, args=(drops, stop), daemon=True))
    for process in processes:
        process.start()
    time.sleep(float(seconds))
    stop.set()
    hung = ended(processes, GRACE_S)
    said = {name: sum(own[name].value for own in counts) for name in Reader.COUNTS[:-1]}
    said["longest_ms"] = max(own["longest_ms"].value for own in counts)
    print(json.dumps(said | {"hung": len(hung), "drops": drops.value}), flush=True)
    for process in hung:
        process.kill()
    # At its exit, Python would wait for a process that no signal ends.
    os._exit(0)


if __name__ == "__main__":
    main()

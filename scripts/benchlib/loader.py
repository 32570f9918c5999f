#!/usr/bin/env python3
"""A training job as storage sees it: every epoch reads each file once, in another random order.

Workers read ahead into a bounded window, and a clock takes the place of the GPU: the step of a
mini-batch takes its bytes divided by --rate and begins when the batch has arrived and the step before
it has ended. Steps are reckoned, not slept one by one, so that waking up late costs nothing.

Prints a line of JSON for each epoch, and one at the end. Knows nothing of copperfs and needs nothing
but Python.
"""

import argparse
import json
import os
import random
import sys
import time
from collections import deque
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import islice

PIECE = 1 << 20


def read(path, truth=None, drop=False):
    """Bytes of a file, the seconds that it took, and what was wrong with it."""
    begun, size, wrong = time.monotonic(), 0, ""
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            pieces = []
            while piece := os.read(fd, PIECE):
                size += len(piece)
                if truth:
                    pieces.append(piece)
            if drop:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
        if truth:
            with open(truth, "rb") as file:
                if file.read() != b"".join(pieces):
                    wrong = f"{path}: other bytes than {truth}"
    except OSError as error:
        wrong = str(error)
    return size, time.monotonic() - begun, wrong


def hinted(paths, count):
    """The paths, of which `count` that come next are asked for."""
    upcoming = iter(paths)
    ahead = deque()
    for path in upcoming:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
        os.close(fd)
        ahead.append(path)
        if len(ahead) > count:
            yield ahead.popleft()
    yield from ahead


def files_below(directory):
    """All files below a directory, in an order that does not depend on the directory's."""
    found = []
    for base, _, names in os.walk(directory):
        found += [os.path.join(base, name) for name in names]
    found.sort()
    return found


class Clock:
    """The GPU: busy until `free`; counts how long it waited for data."""

    def __init__(self, rate):
        self.rate, self.stalled = rate, 0.0
        self.begun = self.free = time.monotonic()
        self.unix = time.time() - self.begun

    def step(self, size):
        """Begins the step of a mini-batch that has just arrived, when the one before it has ended."""
        arrived = time.monotonic()
        self.stalled += max(0.0, arrived - self.free)
        begins = max(self.free, arrived)
        self.free = begins + (size / self.rate if self.rate else 0.0)
        wait_until(begins)


def wait_until(moment):
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)


class Job:
    """One run of the loader."""

    def __init__(self, options, pool):
        self.options, self.pool = options, pool
        self.paths = files_below(options.directory)
        if not self.paths:
            sys.exit(f"loader: no file below {options.directory}")
        self.random = random.Random(options.seed)
        self.clock = None
        self.longest, self.wrong, self.errors = 0.0, 0, []
        self.total, self.told = 0, 0.0

    def submit(self, path):
        truth = None
        if self.options.compare:
            truth = os.path.join(
                self.options.compare, os.path.relpath(path, self.options.directory)
            )
        return self.pool.submit(read, path, truth, self.options.drop)

    def stopped(self):
        return self.options.stop and os.path.exists(self.options.stop)

    def epoch(self, number, part):
        """An epoch, or a part of one; what it says of itself."""
        order = self.paths[:]
        self.random.shuffle(order)
        order = order[: max(1, round(part * len(order)))]
        start, stalled = self.clock.free, self.clock.stalled
        upcoming = hinted(order, self.options.hints) if self.options.hints else iter(order)
        window = deque(self.submit(path) for path in islice(upcoming, self.options.window))
        total = count = held = 0
        while window and not self.stopped():
            size, took, wrong = window.popleft().result()
            window.extend(self.submit(path) for path in islice(upcoming, 1))
            self.note(size, took, wrong)
            total, count, held = total + size, count + 1, held + size
            if count % self.options.batch == 0 or not window:
                self.clock.step(held)
                held = 0
        for left in window:
            left.cancel()
        wait_until(self.clock.free)
        return {
            "epoch": number,
            "start": self.clock.unix + start,
            "end": self.clock.unix + self.clock.free,
            "seconds": self.clock.free - start,
            "bytes": total,
            "files": count,
            "stall_s": self.clock.stalled - stalled,
        }

    def note(self, size, took, wrong):
        self.total += size
        if self.options.every and time.time() >= self.told + self.options.every:
            self.told = time.time()
            print(json.dumps({"at": self.told, "read": self.total}), flush=True)
        self.longest = max(self.longest, took)
        if wrong:
            self.wrong += 1
            self.errors = [*self.errors, wrong][:5]

    def run(self):
        """All epochs; what the job as a whole says."""
        time.sleep(max(0.0, self.options.start - time.time()))
        self.clock = Clock(self.options.rate)
        number, left = 0, self.options.epochs
        while left > 1e-9 and not self.stopped():
            done = self.epoch(number, min(1.0, left))
            print(json.dumps(done), flush=True)
            number, left = number + 1, left - 1.0
            if self.options.pause and left > 1e-9:
                time.sleep(self.options.pause)
                self.clock.free = time.monotonic()
        return {
            "job": True,
            "start": self.clock.unix + self.clock.begun,
            "end": self.clock.unix + self.clock.free,
            "seconds": self.clock.free - self.clock.begun,
            "bytes": self.total,
            "files": len(self.paths),
            "stall_s": self.clock.stalled,
            "longest_read_s": self.longest,
            "wrong": self.wrong,
            "errors": self.errors,
        }


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", help="all files below it are read")
    parser.add_argument("--rate", type=float, default=0, help="bytes/s that the job consumes; 0: all")
    parser.add_argument("--epochs", type=float, default=1, help="as in 13 or 0.07")
    parser.add_argument("--batch", type=int, default=4, help="files of a mini-batch")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--window", type=int, default=16, help="files read ahead at most")
    parser.add_argument("--processes", action="store_true", help="workers are processes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=float, default=0, help="begin at this time (Unix, seconds)")
    parser.add_argument("--stop", help="end early when this file is there")
    parser.add_argument("--pause", type=float, default=0, help="seconds between epochs")
    parser.add_argument("--every", type=float, default=0, help="seconds between lines on bytes read")
    parser.add_argument("--compare", help="the same files as they should be")
    parser.add_argument("--hints", type=int, default=0, help="files whose bytes are asked for ahead")
    parser.add_argument("--drop", action="store_true", help="no page stays after a read")
    return parser.parse_args()


def main():
    options = arguments()
    pool = ProcessPoolExecutor if options.processes else ThreadPoolExecutor
    with pool(options.workers) as workers:
        done = Job(options, workers).run()
    print(json.dumps(done), flush=True)
    sys.exit(1 if done["wrong"] else 0)


if __name__ == "__main__":
    main()

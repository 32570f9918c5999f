"""Readers of all kinds on one mount, which must not notice that its daemons die.

Compares every byte with the origin, and every name, size and inode number with those at the beginning. Runs until its
standard input ends. Then it prints one line of JSON: the operations of each kind, the errors, and the operations that
took longer than SLOW_S, with the times of CLOCK_MONOTONIC at which they began and ended, and the seconds between
them without the reader's own pauses.

  load.py MOUNT ORIGIN [--data MOUNT] [--pause SECONDS]
"""

import argparse
import fcntl
import json
import mmap
import os
import random
import socket
import sys
import threading
import time
from pathlib import Path

SLOW_S = 0.1
PAGE = 4096
ERRORS_KEPT = 20
# A reader of a directory pauses after this many names, so that daemons die while its stream is open.
NAMES_AT_ONCE = 400


class Wrong(Exception):
    """Bytes, names or numbers that are not those of the origin."""


class Load:
    """See the module."""

    def __init__(self, options):
        self.mount, self.origin, self.data = options.mount, options.origin, options.data
        self.pause, self.young = options.pause, options.young
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.counts, self.errors, self.slow = {}, [], []
        self.files = sorted(
            path.relative_to(self.origin)
            for part in ("small", "large")
            for path in (self.origin / part).iterdir()
        )
        self.large = [path for path in self.files if path.parts[0] == "large"]
        self.names = sorted(os.listdir(self.origin / "many"))
        # What is open during the whole run.
        self.held = {path: os.open(self.mount / path, os.O_RDONLY) for path in self.files[::3]}
        self.maps = {path: self.map(path) for path in self.large}
        self.directory = os.open(self.mount / "small", os.O_RDONLY | os.O_DIRECTORY)
        self.locked = os.open(self.mount / self.files[0], os.O_RDONLY)
        fcntl.flock(self.locked, fcntl.LOCK_EX)
        self.numbers = {path: os.stat(self.mount / path).st_ino for path in self.files}

    def map(self, path):
        descriptor = os.open(self.mount / path, os.O_RDONLY)
        size = os.fstat(descriptor).st_size
        return descriptor, mmap.mmap(descriptor, size, prot=mmap.PROT_READ)

    def truth(self, path):
        return (self.origin / path).read_bytes()

    # The kinds of readers. Each does one operation.

    def whole(self, draw):
        """A whole file, past the page cache."""
        self.read_whole(self.mount, draw.choice(self.files))

    def job(self, draw):
        """A whole file of the data mount, for the job that the environment names."""
        self.read_whole(self.data, draw.choice(self.files))

    def read_whole(self, mount, path):
        descriptor = os.open(mount / path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            found = bytearray()
            while piece := os.read(descriptor, 1 << 20):
                found += piece
        finally:
            os.close(descriptor)
        if found != self.truth(path):
            raise Wrong(f"{path}: other bytes")

    def pread(self, draw):
        """A range of a file that was opened at the beginning."""
        path, descriptor = draw.choice(list(self.held.items()))
        truth = self.truth(path)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        at = draw.randrange(len(truth))
        found = os.pread(descriptor, 200_000, at)
        # A read may end early, but not at nothing.
        if not found or truth[at : at + len(found)] != found:
            raise Wrong(f"{path}: other bytes in a range")

    def mapped(self, draw):
        """Pages of a file that was mapped at the beginning."""
        path, (descriptor, mapped) = draw.choice(list(self.maps.items()))
        mapped.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        truth = self.truth(path)
        for _ in range(4):
            at = draw.randrange(0, len(truth) - PAGE)
            if mapped[at : at + PAGE] != truth[at : at + PAGE]:
                raise Wrong(f"{path}: other bytes in a mapping")

    def sendfile(self, draw):
        """A file that the kernel sends to a socket."""
        path = draw.choice(self.files)
        truth, found = self.truth(path), bytearray()
        descriptor = os.open(self.mount / path, os.O_RDONLY)
        ours, theirs = socket.socketpair()
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            while sent := os.sendfile(ours.fileno(), descriptor, len(found), 64 << 10):
                at_end = len(found) + sent
                while len(found) < at_end:
                    found += theirs.recv(sent)
        finally:
            os.close(descriptor)
            ours.close()
            theirs.close()
        if found != truth:
            raise Wrong(f"{path}: other bytes by sendfile")

    def stream(self, draw):
        """A large directory, read slowly."""
        found, paused = [], 0.0
        with os.scandir(self.mount / "many") as entries:
            for entry in entries:
                found.append(entry.name)
                if len(found) % NAMES_AT_ONCE == 0:
                    paused += self.wait(draw)
        if sorted(found) != self.names:
            raise Wrong(f"{len(found)} names of {len(self.names)} in a directory")
        return paused

    def walk(self, draw):
        """Attributes by name, below an open directory, and of an open file."""
        for path in draw.sample(self.files, 8):
            number = os.stat(self.mount / path).st_ino
            if number != self.numbers[path] and not self.young:
                raise Wrong(f"{path}: another inode number: {number}, not {self.numbers[path]}")
        small = [path for path in self.files if path.parts[0] == "small"]
        name = draw.choice(small)
        size = os.stat(name.name, dir_fd=self.directory).st_size
        if size != os.stat(self.origin / name).st_size:
            raise Wrong(f"{name}: another size")
        listed = sorted(os.listdir(self.mount / "small"))
        if listed != sorted(path.name for path in small):
            raise Wrong(f"other names: {listed}")

    def flock(self, _draw):
        """A lock that is held from the beginning."""
        other = os.open(self.mount / self.files[0], os.O_RDONLY)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        finally:
            os.close(other)
        raise Wrong("the lock is free")

    def wait(self, draw):
        """Pauses. Returns the seconds."""
        began = time.monotonic()
        self.stop.wait(draw.random() * 2 * self.pause)
        return time.monotonic() - began

    def repeat(self, kind):
        """Does the operations of one kind until the end."""
        draw = random.Random(f"{self.mount}/{kind}")
        while not self.stop.is_set():
            began, paused, wrong = time.monotonic(), None, None
            try:
                paused = getattr(self, kind)(draw)
            except (OSError, Wrong) as error:
                wrong = {"kind": kind, "at": time.monotonic(), "error": str(error)}
                wrong["wrong"] = isinstance(error, Wrong)
            ended = time.monotonic()
            took = ended - began - (paused or 0.0)
            with self.lock:
                self.counts[kind] = self.counts.get(kind, 0) + 1
                self.errors += [wrong] if wrong else []
                self.slow += [[kind, began, ended, took]] if took > SLOW_S else []
            self.wait(draw)

    def run(self):
        kinds = ["whole", "pread", "mapped", "sendfile", "stream", "walk"]
        kinds += [] if self.young else ["flock"]
        kinds += ["job"] if self.data else []
        threads = [threading.Thread(target=self.repeat, args=(kind,)) for kind in kinds]
        for thread in threads:
            thread.start()
        print("reading", flush=True)
        sys.stdin.read()
        self.stop.set()
        for thread in threads:
            thread.join()
        wrong = sum(error["wrong"] for error in self.errors)
        told = {
            "counts": self.counts,
            "errors": len(self.errors) - wrong,
            "wrong": wrong,
            "kept": self.errors[:ERRORS_KEPT],
            "slow": self.slow,
        }
        print(json.dumps(told), flush=True)


def make(origin, seed=0):
    """Makes the files that are read."""
    draw = random.Random(seed)
    for part in ("small", "large", "many", "changing"):
        (origin / part).mkdir(parents=True, exist_ok=True)
    for number in range(48):
        (origin / "small" / f"f{number}").write_bytes(draw.randbytes(draw.randint(1, 60_000)))
    for number in range(4):
        (origin / "large" / f"g{number}").write_bytes(draw.randbytes((2 << 20) + 12_345 * number))
    for number in range(3_000):
        (origin / "many" / f"an-empty-file-with-a-longer-name-{number:05}").touch()
    (origin / "changing" / "c").write_text("0")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mount", type=Path)
    parser.add_argument("origin", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--pause", type=float, default=0.05, help="the mean pause after an operation")
    parser.add_argument(
        "--young", action="store_true",
        help="files are younger than --clock-skew, so each gets another inode number when its version settles",
    )  # fmt: skip
    parser.add_argument("--make", action="store_true", help="only make the files at the origin")
    options = parser.parse_args()
    if options.make:
        make(options.origin)
        return
    Load(options).run()


if __name__ == "__main__":
    main()

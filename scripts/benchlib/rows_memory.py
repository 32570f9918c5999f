"""Rows 47 and 48: the memory of a daemon, with very many names and with very greedy children."""

import os
import random
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from . import mounts, report
from .clock import status_kb

NAMES = {False: (1_000_000, 10_000_000), True: (300_000,)}
"""By whether it is the quick run."""
NAMES_MEMORY_BYTES = 64 << 20
NAMES_A_DIRECTORY = 1000

CHILDREN = 32
READERS = 2
"""Of each child, at a time."""
GREEDY_MEMORY_BYTES = 400 << 20
GREEDY_FILES = 600
GREEDY_FILE_BYTES = 48 << 20
GREEDY_SECONDS = 40
PIECE = 1 << 20

OVERHEAD_MIB = 64
"""That a daemon may take beyond --memory."""


class Storage:
    """A directory to serve."""

    def __init__(self, base):
        self.base = base


@contextmanager
def tmpfs():
    """A tmpfs with room for any number of names."""
    with tempfile.TemporaryDirectory(prefix="bench-memory-") as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=0", "bench", directory], check=True)
        try:
            yield Path(directory)
        finally:
            subprocess.run(["umount", "-l", directory], check=False)


def above(pid, memory_bytes):
    """MiB that a daemon has taken at most, above its --memory."""
    return (status_kb(pid, "VmHWM") * 1024 - memory_bytes) / (1 << 20)


def make_names(base, count):
    """Names of one file: they cost storage little, and the mount an inode each."""
    file = base / "file"
    file.write_text("content")
    for first in range(0, count, NAMES_A_DIRECTORY):
        number = first // NAMES_A_DIRECTORY
        directory = base / f"d{number // 100}" / f"e{number % 100}"
        directory.mkdir(parents=True)
        descriptor = os.open(directory, os.O_RDONLY)
        for name in range(min(NAMES_A_DIRECTORY, count - first)):
            os.link(file, f"f{name:05}", dst_dir_fd=descriptor)
        os.close(descriptor)


def row47(bench):
    rows = []
    for letter, count in zip("abc", NAMES[bench.quick], strict=False):
        with tmpfs() as base:
            make_names(base, count)
            memory = f"{NAMES_MEMORY_BYTES >> 20}MiB"
            with mounts.node(bench.copperfs, Storage(base), "--memory", memory) as node:
                start = time.monotonic()
                command = ["find", node.base, "-name", "f?????", "-printf", "."]
                found = subprocess.run(command, stdout=subprocess.PIPE, check=True)
                wall = time.monotonic() - start
                assert len(found.stdout) == count
                beyond = above(node.pids()[0], NAMES_MEMORY_BYTES)
        what = f"find over {count:,} names: memory above --memory {memory}"
        rows.append(report.at_most(f"47{letter}", what, OVERHEAD_MIB, beyond, " MiB", wall_s=wall))
    return rows


class Greedy(threading.Thread):
    """Touches one large file after another: a page of it, and its beginning."""

    def __init__(self, base, seed, until):
        super().__init__()
        self.base, self.random, self.until = base, random.Random(seed), until
        self.errors = self.touched = 0

    def run(self):
        files = list(range(GREEDY_FILES))
        self.random.shuffle(files)
        for number in files:
            if time.monotonic() > self.until:
                return
            try:
                with open(self.base / f"f{number}", "rb", buffering=0) as file:
                    file.seek(self.random.randrange(GREEDY_FILE_BYTES // PIECE) * PIECE)
                    file.read(4096)
                    file.seek(0)
                    file.read(PIECE)
                self.touched += 1
            except OSError:
                self.errors += 1


def row48(bench):
    memory = f"{GREEDY_MEMORY_BYTES >> 20}MiB"
    with tmpfs() as base:
        for number in range(GREEDY_FILES):
            with open(base / f"f{number}", "wb") as file:
                file.truncate(GREEDY_FILE_BYTES)
        flags = ["--arity", str(CHILDREN), "--memory", memory]
        with mounts.cluster(bench.copperfs, Storage(base), CHILDREN + 1, *flags) as tree:
            until = time.monotonic() + GREEDY_SECONDS
            readers = [
                Greedy(node.base, rank * READERS + reader, until)
                for rank, node in enumerate(tree.nodes[1:])
                for reader in range(READERS)
            ]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            root, children = tree.nodes[0], tree.nodes[1:]
            beyond = above(root.pids()[0], GREEDY_MEMORY_BYTES)
            read = root.stats()["origin.read_bytes"]
            sent = sum(child.stats()["upstream.received_bytes"] for child in children)
    errors = sum(reader.errors for reader in readers)
    touched = sum(reader.touched for reader in readers)
    what = f"{CHILDREN} children touch files of {GREEDY_FILE_BYTES >> 20} MiB"
    return [
        report.at_most(
            "48a", f"{what}: memory of the root above --memory {memory}", OVERHEAD_MIB, beyond, " MiB"
        ),
        report.at_most("48b", "… bytes read of storage, to bytes sent", 1.1, read / sent, " ×"),
        report.exactly("48c", "… errors", 0, errors),
        report.reported("48d", "… files touched", f"{touched:,} in {GREEDY_SECONDS} s"),
    ]

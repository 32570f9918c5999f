"""Rows 35 and 36: what a killed daemon's store is worth, and how soon a mount over a large one answers."""

import os
import shutil
import signal
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from . import mounts, report
from .clock import median, wait_until

SMALL_FILES, LARGE_FILES, LARGE_BYTES = 4000, 16, 16 << 20
STORE_FILES = 100_000
BAR_SHARE, BAR_SECONDS = 0.95, 2


class Origin:
    """What is served, made for these rows."""

    def __init__(self, base):
        self.base = base


@contextmanager
def scratch(bench):
    """Beside the other data, and not on a tmpfs that the store would share."""
    path = Path(tempfile.mkdtemp(prefix="store-", dir=bench.data.base.parent))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def row35(bench):
    """SIGKILL when half of it is in the store; after the restart everything is read, and compared."""
    results = []
    with scratch(bench) as path:
        origin = Origin(path / "origin")
        files = [f"s{number // 100}/f{number}" for number in range(SMALL_FILES)]
        files += [f"large/f{number}" for number in range(LARGE_FILES)]
        for number, name in enumerate(files):
            target = origin.base / name
            target.parent.mkdir(parents=True, exist_ok=True)
            size = LARGE_BYTES if name.startswith("large") else 1000 + number * 97 % 30_000
            target.write_bytes(os.urandom(size))
        total = sum((origin.base / name).stat().st_size for name in files)
        time.sleep(2.1)  # until times tell one version from the next
        for row, lost, what in [("35a", False, ""), ("35b", True, " and the index lost")]:
            wrong, there, fetched = _killed(bench, origin, files, path / "disk", lost)
            share = (total - fetched) / there
            detail = {"stored": there, "fetched": fetched, "total": total}
            results.append(
                report.at_least(
                    row,
                    f"kill -9 with {there / total:.0%} of {total >> 20} MiB in the store{what}: "
                    "share of it that is not fetched again",
                    BAR_SHARE,
                    share,
                    **detail,
                )
            )
            results.append(report.exactly(f"{row}w", "… files with wrong bytes", 0, wrong))
    return results


def _killed(bench, origin, files, disk, index_lost):
    """Files with wrong bytes, bytes in the store at the kill, bytes fetched after it."""
    shutil.rmtree(disk, ignore_errors=True)
    flags = ["--takeover=false", "--disk", f"{disk}:8GiB"]
    with mounts.node(bench.copperfs, origin, *flags) as node:
        pid = node.pids()[0]

        def read_on():
            for name in files:
                try:
                    (node.base / name).read_bytes()
                except OSError:
                    return

        reader = threading.Thread(target=read_on)
        reader.start()
        half = sum((origin.base / name).stat().st_size for name in files) // 2
        wait_until(lambda: stored(disk)[1] > half, 120, "half a store")
        os.kill(pid, signal.SIGKILL)
        reader.join()
        entries, there = stored(disk)
        if index_lost:
            (disk / "index.log").unlink()
    with mounts.node(bench.copperfs, origin, *flags) as node:
        wait_until(lambda: node.stats()["disk.entries"] >= entries, 60, "the store's content")
        wrong = sum((node.base / name).read_bytes() != (origin.base / name).read_bytes() for name in files)
        return wrong, there, node.stats()["origin.read_bytes"]


def stored(disk):
    """Content files in a store, and the bytes in them."""
    count = size = 0
    for kind in ("content", "whole"):
        for directory, _, names in os.walk(disk / kind):
            for name in names:
                try:
                    size += os.stat(os.path.join(directory, name)).st_size
                    count += 1
                except FileNotFoundError:
                    pass
    return count, size


def row36(bench):
    """Each file is read once, the daemon killed, and mounted again: until one of them is read."""
    walls = []
    with scratch(bench) as path:
        origin = Origin(path / "origin")
        for number in range(STORE_FILES):
            target = origin.base / f"d{number // 1000}" / f"f{number}"
            if number % 1000 == 0:
                target.parent.mkdir(parents=True)
            target.write_bytes(number.to_bytes(8, "little"))
        # Older than the clock skew, so the store keeps them.
        time.sleep(2.1)
        flags = ["--takeover=false", "--disk", f"{path / 'disk'}:8GiB", "--clock-skew", "2s"]
        begun = time.monotonic()
        with mounts.node(bench.copperfs, origin, *flags) as node:
            for number in range(STORE_FILES):
                (node.base / f"d{number // 1000}" / f"f{number}").read_bytes()
            wait_until(lambda: node.stats()["disk.entries"] == STORE_FILES, 120, "a full store")
            filled = time.monotonic() - begun
            os.kill(node.pids()[0], signal.SIGKILL)
        for _ in range(bench.runs):
            begun = time.monotonic()
            with mounts.node(bench.copperfs, origin, *flags) as node:
                first = (node.base / "d3" / "f3000").read_bytes()
                walls.append(time.monotonic() - begun)
                if int.from_bytes(first, "little") != 3000 or node.stats()["origin.read_bytes"]:
                    raise RuntimeError("the first file did not come from the store")
    what = f"mount over {STORE_FILES:,} files in the store, until one of them is read"
    return [
        report.at_most(
            "36", what, BAR_SECONDS, median(walls), " s", walls=walls, filled_s=round(filled, 1)
        )
    ]

"""Row 33: a file larger than the cache, in order and here and there, and the memory that it takes."""

import os
import random
import subprocess
import time

from . import mounts, report
from .clock import back_memory, drop_caches, median, status_kb
from .data import FULL

SEQUENTIAL_BYTES = {True: 10 << 30, False: 2 << 30}
"""Full and quick: of the file that is read in order."""

MEMORY_BYTES = 256 << 20
PAGE = 4096
PAGES = 500
HOP_US = 150
SEED = 33


def large_file(data):
    """A file of real bytes, made once; its name."""
    size = SEQUENTIAL_BYTES[data.sizes is FULL]
    name = f"large-{size >> 30}g.bin"
    path = data.base / name
    if not path.exists() or path.stat().st_size != size:
        # As good as random, and made at the speed of the disk.
        key = "-aes-128-ctr -nosalt -pass pass:bench -in /dev/zero"
        command = f"openssl enc {key} 2>/dev/null | head -c {size} > {path}"
        subprocess.run(["bash", "-c", command], check=True)
        os.sync()
    return name, size


def sequential(path):
    """Seconds to read all of it by dd."""
    start = time.monotonic()
    command = ["dd", f"if={path}", "of=/dev/null", "bs=1M", "status=none"]
    subprocess.run(command, check=True)
    return time.monotonic() - start


def scattered(path, size):
    """Microseconds of each of PAGES reads of a page, the same pages on every call."""
    places = random.Random(SEED).sample(range(size // PAGE), PAGES)
    times = []
    file = os.open(path, os.O_RDONLY)
    try:
        for place in places:
            start = time.perf_counter_ns()
            os.pread(file, PAGE, place * PAGE)
            times.append((time.perf_counter_ns() - start) / 1000)
    finally:
        os.close(file)
    return times


def row33(bench):
    data = bench.data
    name, size = large_file(data)
    memory = f"{MEMORY_BYTES >> 20}MiB"
    runs = max(bench.runs - 2, 1)
    walls = {"native": [], "mount": []}
    above = []
    for _ in range(runs):
        drop_caches(3)
        back_memory(2 << 30)
        walls["native"].append(sequential(data.base / name))
        with mounts.node(bench.copperfs, data, "--memory", memory) as node:
            drop_caches(3)
            back_memory(2 << 30)
            walls["mount"].append(sequential(node.base / name))
            most = status_kb(node.pids()[0], "VmHWM") << 10
            above.append((most - MEMORY_BYTES) / (1 << 20))
    ratio = median(walls["native"]) / median(walls["mount"])
    rows = [
        report.at_least(
            "33a", f"POSIX, {size >> 30} GiB in order, cold node, of native cold", 0.8, ratio,
            wall_s=walls,
        ),
        report.at_most(
            "33b", f"… memory above --memory {memory}", 64, max(above), " MiB", above_mib=above
        ),
    ]
    drop_caches(3)
    native = median(scattered(data.base / name, size))
    for row, hops in (("33c", 0), ("33d", 2)):
        flags = ("--memory", memory, "--arity", 1)
        with mounts.cluster(bench.copperfs, data, hops + 1, *flags) as cluster:
            drop_caches(3)
            root = cluster.nodes[0]
            before = root.stats()["origin.read_bytes"]
            times = scattered(cluster.base / name, size)
            fetched = root.stats()["origin.read_bytes"] - before
        added = median(times) - native
        where = f"{PAGES} × 4 KiB here and there, {hops} hops"
        rows += [
            report.at_most(row, f"{where}: bytes fetched of asked", 2, fetched / (PAGES * PAGE)),
            # The mount itself costs as much as a hop.
            report.at_most(
                f"{row}2", "… median above native", HOP_US * (hops + 1), added, " µs",
                native_us=native, median_us=median(times),
            ),
        ]
    return rows

"""Row 70: the first epoch of a dataset that only the root reads, and the nodes that work for it."""

import json
import os
import time
from dataclasses import dataclass, replace

from . import mounts, report
from .clock import back_memory, cpu_seconds, drop_caches, median
from .hosts import Hosts, Tree
from .rows_hosts import origin_flag, scratch_dir
from .rows_sampling import origin_of
from .training import make_files

FILES, FILE_BYTES = 5000, 110_000
READERS = 4
HOSTS = 5
IDLE_S = 3.0
READER = HOSTS
"""The last host, which is also the only home."""


@dataclass
class Epoch:
    """What one epoch has cost."""

    rate: float
    root: float
    between: float
    home: float
    """CPU of the daemons for each file, in µs: of the root, of the hosts between (beyond that of idle ones), and of
    the last one."""


def row70(bench):
    """A chain of five hosts and a star of as many. The root alone reads storage, and the last one files."""
    origin = origin_of(bench)
    directory = make_files(origin / f"reads-{FILE_BYTES}", FILES, FILE_BYTES)
    data = replace(bench.data, base=origin)
    native = mounts.native(data)
    paths = sorted(str(path.relative_to(origin)) for path in directory.glob("*/*.bin"))
    lists = [data.list(f"epoch-{reader}", paths[reader::READERS]) for reader in range(READERS)]
    epochs = {"chain": [], "star": []}
    with Hosts(HOSTS, mtu=9000) as hosts:
        for _ in range(bench.runs):
            for shape, arity in (("chain", 1), ("star", HOSTS - 1)):
                epoch = first_epoch(bench, hosts, native, directory.name, lists, arity)
                epochs[shape].append(epoch)
                print(f"  {shape}: {epoch}", flush=True)
    return rows_of(epochs)


def first_epoch(bench, hosts, native, dataset, lists, arity):
    """Mounts a tree, and reads all files on its last host."""
    with scratch_dir() as scratch:
        flags = ["--arity", arity, "--memory", "2GiB", *origin_flag(native.base)]
        tree = Tree(bench.copperfs, hosts, scratch, flags)
        try:
            pids = mount_all(tree, scratch / "data")
            add = [bench.copperfs, "dataset", "add", dataset, f"/bench/{dataset}"]
            add += ["--origin-readers", "roots", "--mount", tree.mountpoint]
            hosts.output(READER, *add)
            drop_caches(3)
            # Storage's pages are there again: its disk is not measured.
            for file in lists:
                bench.clients.loop(native, "read", file)
            back_memory(1 << 30)
            return read_all(bench, hosts, scratch / "data" / "bench", lists, pids)
        finally:
            tree.unmount()


def mount_all(tree, data):
    """Mounts host by host, a data mount on the last. Returns the daemons' pids, host by host."""
    pids = []
    data.mkdir()
    for number in range(1, HOSTS + 1):
        known = daemons(tree.mountpoint)
        if number == READER:
            tree.flags += ["--data-mount", data]
        tree.mount([number])
        pids.append(daemons(tree.mountpoint) - known)
    return pids


def daemons(mountpoint):
    """The pids of the processes that have the mount point as an argument."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if os.fsencode(mountpoint) in words:
            found.add(int(pid))
    return found


def read_all(bench, hosts, base, lists, pids):
    """Reads each list with a reader of its own on the last host, which knows all names and attributes by then."""
    for file in lists:
        hosts.output(READER, bench.clients.loops, "stat", base, file, 0, 1)
    idle = cpu_of(pids)
    time.sleep(IDLE_S)
    before, begun = cpu_of(pids), time.monotonic()
    readers = [hosts.start(READER, bench.clients.loops, "read", base, file, 0, 1) for file in lists]
    outputs = [reader.communicate(timeout=600)[0] for reader in readers]
    wall = time.monotonic() - begun
    if any(reader.returncode != 0 for reader in readers):
        raise RuntimeError("a reader has failed")
    count = sum(json.loads(output)["ops"] for output in outputs)
    shares = zip(idle, before, cpu_of(pids))
    used = [late - early - (early - first) * wall / IDLE_S for first, early, late in shares]
    root, *between, home = [1e6 * seconds / count for seconds in used]
    return Epoch(rate=count / wall, root=root, between=sum(between), home=home)


def cpu_of(pids):
    """CPU seconds so far, host by host."""
    return [sum(map(cpu_seconds, of_host)) for of_host in pids]


def rows_of(epochs):
    """The table's rows."""

    def middle(shape, field):
        return median(getattr(one, field) for one in epochs[shape])

    rates = [middle(shape, "rate") for shape in ("chain", "star")]
    ratios = [chain.rate / star.rate for chain, star in zip(epochs["chain"], epochs["star"])]
    what = f"first epoch of {FILES:,} × 110 KB by way of the root, {READERS} readers on the last of five hosts"
    shown = f"{rates[0]:,.0f} and {rates[1]:,.0f} files/s; home {middle('chain', 'home'):.0f} µs a file"
    return [
        report.reported("70a", f"{what}: a chain, and a star", shown),
        report.at_most("70b", "… wall of the chain over that of the star", 1.05, 1 / median(ratios)),
        report.at_most("70c", "… CPU of the root a file, µs", 200, middle("chain", "root")),
        report.at_most("70d", "… CPU of the three hosts between, together, µs", 1, middle("chain", "between")),
    ]

"""Row 71: one Python process that reads a mini-batch at a time, on the node of the items and elsewhere."""

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from . import mounts, report
from .clock import DaemonClock, drop_caches, median, switches
from .hosts import Hosts, Tree
from .informed import REPOSITORY, python
from .rows_first_epoch import daemons
from .rows_hosts import origin_flag, scratch_dir
from .rows_sampling import origin_of
from .training import make_files

FILES, FILE_BYTES = 4096, 110_000
BATCH = 64
KINDS = ("native", "one", "many", "lent")
JOB = Path(__file__).with_name("read_many_job.py")


@dataclass
class Pass:
    """What one pass over the files has cost, for each file."""

    rate: float
    client: float
    daemons: float
    """CPU in µs."""
    wakes: float
    """Voluntary context switches of the daemons."""


def row71(bench):
    """Files of 110 KB that a home holds in memory: one after the other, and 64 in one call."""
    origin = origin_of(bench)
    directory = make_files(origin / f"reads-{FILE_BYTES}", 5000, FILE_BYTES)
    data = replace(bench.data, base=origin)
    paths = sorted(str(path.relative_to(origin)) for path in directory.glob("*/*.bin"))[:FILES]
    files = data.list("read-many", paths)
    native = mounts.native(data)
    passes = {}
    with Hosts(2, mtu=9000) as hosts:
        for place, reader in (("here", 1), ("elsewhere", 2)):
            with homes_on_first(bench, hosts, native, directory.name) as (base, pids):
                # Fills the home.
                once(hosts, reader, pids, "one", base, files)
                for _ in range(bench.runs):
                    drop_caches(1)
                    # `drop_caches` has emptied storage's pages too.
                    bench.clients.loop(native, "read", files)
                    for name, how, where in (
                        ("native", "one", native.base),
                        ("one", "one", base),
                        ("many", "many", base),
                        ("lent", "lent", base),
                    ):
                        found = once(hosts, reader, pids, how, where, files)
                        passes.setdefault((place, name), []).append(found)
                        if name == "one":
                            drop_caches(1)
            for name in KINDS:
                print(f"  {place} {name}: {middle(passes[place, name], 'rate'):.0f} files/s", flush=True)
    return rows_of(passes)


@contextmanager
def homes_on_first(bench, hosts, native, dataset):
    """Two hosts with data mounts, of which the first is the home of almost all items. Yields a data mount and the daemons' pids."""
    with scratch_dir() as scratch:
        data = scratch / "data"
        data.mkdir()
        flags = ["--memory", "2GiB", "--data-mount", data, *origin_flag(native.base)]
        tree = Tree(bench.copperfs, hosts, scratch, flags)
        try:
            tree.mount([1])
            tree.flags += ["--shared-reserve", "99%"]
            tree.mount([2])
            add = [bench.copperfs, "dataset", "add", dataset, f"/bench/{dataset}"]
            hosts.output(1, *add, "--origin-readers", "homes", "--mount", tree.mountpoint)
            yield data / "bench", sorted(daemons(tree.mountpoint))
        finally:
            tree.unmount()


def once(hosts, reader, pids, how, base, files):
    """One pass on the host `reader`."""
    path = f"PYTHONPATH={REPOSITORY / 'python'}"
    before = wakes(pids)
    with DaemonClock(pids) as clock:
        out = json.loads(hosts.output(reader, "env", path, python(), JOB, how, base, files, BATCH))
    if out["bytes"] != FILES * FILE_BYTES:
        raise RuntimeError(f"{out['bytes']} bytes were read")
    return Pass(
        rate=out["files"] / out["wall"],
        client=1e6 * out["cpu"] / out["files"],
        daemons=1e6 * clock.cpu / out["files"],
        wakes=(wakes(pids) - before) / out["files"],
    )


def wakes(pids):
    """Voluntary context switches of the daemons so far."""
    return sum(voluntary for pid in pids for _, voluntary, _ in switches(pid).values())


def middle(passes, field):
    return median(getattr(one, field) for one in passes)


def rows_of(passes):
    """The table's rows."""

    def ratio(place, name, other):
        pairs = zip(passes[place, name], passes[place, other])
        return median(one.rate / two.rate for one, two in pairs)

    def shown(place):
        costs = [passes[place, name] for name in KINDS[1:]]
        rates = ", ".join(f"{middle(found, 'rate'):,.0f}" for found in costs)
        cpu = ", ".join(f"{middle(found, 'client'):.0f} + {middle(found, 'daemons'):.0f}" for found in costs)
        return f"{rates} files/s; CPU of client + daemons {cpu} µs a file"

    lent = passes["here", "lent"]
    cpu = median(one.client + one.daemons for one in lent)
    what = f"one Python process, {FILES:,} × 110 KB in the home's memory: one by one, {BATCH} in one call, and lent"
    return [
        report.reported("71a", f"{what}: on the home's node", shown("here")),
        report.reported("71b", "… on another node", shown("elsewhere")),
        report.at_least("71c", "… 64 in one call over one by one, on another node", 2.5, ratio("elsewhere", "many", "one")),
        report.at_least("71d", "… lent on the home's node, over native one by one", 1.0, ratio("here", "lent", "native")),
        report.at_most("71e", "… CPU of client and daemon a file there, µs", 20, cpu),
        report.at_most("71f", "… wake-ups of the daemon a file there", 1 / 16, middle(lent, "wakes")),
    ]

"""Row 75: the processor time of an item, by its size, its place, and the process that works for it."""

import json
import os
import time
from dataclasses import dataclass, replace

from . import mounts, report
from .clock import drop_caches, median
from .hosts import Hosts
from .rows_read_many import homes_on_first
from .rows_sampling import origin_of
from .training import make_files

SIZES = {8_000: 8000, 110_000: 5000, 1_000_000: 600, 4_000_000: 150}
"""Numbers of files, by their size."""
FITTED = (8_000, 110_000, 1_000_000)
READERS = 16
PLACES = ("native", "here", "elsewhere")
GIB = 1 << 30


@dataclass
class Pass:
    """What one pass over the files has cost, for each file: processor time in µs."""

    rate: float
    client: float
    fuse: float
    """Of the threads of the reader's daemon that answer the kernel."""
    reader: float
    """Of its other threads."""
    home: float
    """Of the daemon of the other host."""

    @property
    def daemons(self):
        """Both daemons without the threads that answer the kernel."""
        return self.reader + self.home

    @property
    def all(self):
        return self.client + self.fuse + self.reader + self.home


def row75(bench):
    """Two hosts, of which the first is the home of nearly all items, with 16 readers on either."""
    origin = origin_of(bench)
    data = replace(bench.data, base=origin)
    native = mounts.native(data)
    passes, hop = {}, []
    with Hosts(2, mtu=9000) as hosts:
        for size, count in SIZES.items():
            directory = make_files(origin / f"reads-{size}", count, size)
            paths = sorted(str(path.relative_to(origin)) for path in directory.glob("*/*.bin"))
            lists = [data.list(f"cost-{reader}", paths[reader::READERS]) for reader in range(READERS)]
            with homes_on_first(bench, hosts, native, directory.name) as (base, found):
                # In the order of the hosts, without their watchdogs.
                pids = [pid for pid in found if words_of(pid)[1] == b"daemon"]
                for place in PLACES:
                    once(bench, hosts, place, native.base if place == "native" else base, lists, pids)
                for _ in range(bench.runs):
                    hop.append(verified_hop(bench))
                    for place in PLACES:
                        if place != "native":
                            drop_caches(1)
                        where = native.base if place == "native" else base
                        found = once(bench, hosts, place, where, lists, pids)
                        passes.setdefault((place, size), []).append(found)
                    # `drop_caches` has emptied storage's pages too.
                    once(bench, hosts, "native", native.base, lists, pids)
            for place in PLACES:
                print(f"  {size} {place}: {shown(passes[place, size])}", flush=True)
    return rows_of(passes, hop)


def words_of(pid):
    """The command of a process, in words."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().split(b"\0")


def verified_hop(bench):
    """CPU seconds of both ends for a GiB that is read and verified over one connection."""
    words = [bench.copperfs, "bench", "hop", "--json", "--idle", "0", "--samples", "1", "--bulk", "256MiB"]
    return json.loads(mounts.run(words, timeout=600))["bulk"]["read"]["cpu_s_per_gib"]


def once(bench, hosts, place, base, lists, pids):
    """Each reader reads its own files once, on the first host or on the second."""
    host = 2 if place == "elsewhere" else 1
    before, begun = cpu_of(pids), time.monotonic()
    readers = [hosts.start(host, bench.clients.loops, "read", base, file, 0, 1) for file in lists]
    outputs = [reader.communicate(timeout=600)[0] for reader in readers]
    wall = time.monotonic() - begun
    if any(reader.returncode != 0 for reader in readers):
        raise RuntimeError(f"a reader below {base} has failed")
    found = [json.loads(output) for output in outputs]
    count = sum(one["ops"] for one in found)
    first, second = (
        {part: 1e6 * (late[part] - early[part]) / count for part in late} for early, late in zip(before, cpu_of(pids))
    )
    own, other = (first, second) if host == 1 else (second, first)
    return Pass(
        rate=count / wall,
        client=1e6 * sum(one["cpu"] for one in found) / count,
        fuse=own["fuse"],
        reader=own["other"],
        home=sum(other.values()),
    )


def cpu_of(pids):
    """CPU seconds of each daemon so far: of the threads that answer the kernel, and of the others."""
    return [daemon_cpu(pid) for pid in pids]


def daemon_cpu(pid):
    used = {"fuse": 0.0, "other": 0.0}
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/comm") as file:
                part = "fuse" if file.read().startswith("fuser") else "other"
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                used[part] += int(file.read().split()[0]) / 1e9
        except OSError:
            continue
    return used


def middle(passes, field):
    return median(getattr(one, field) for one in passes)


def shown(passes):
    parts = ", ".join(f"{name} {middle(passes, name):.0f}" for name in ("client", "fuse", "reader", "home"))
    return f"{middle(passes, 'rate'):,.0f} files/s; {parts} µs"


def fit(points):
    """Fixed cost, and cost a byte, of the line through the points by relative least squares."""
    weights = [1 / cost**2 for _, cost in points]
    total = sum(weights)
    x = sum(w * size for w, (size, _) in zip(weights, points)) / total
    y = sum(w * cost for w, (_, cost) in zip(weights, points)) / total
    up = sum(w * (size - x) * (cost - y) for w, (size, cost) in zip(weights, points))
    slope = up / sum(w * (size - x) ** 2 for w, (size, _) in zip(weights, points))
    return y - slope * x, slope


def rows_of(passes, hop):
    """The table's rows."""
    rows = []
    for letter, place, where in (
        ("a", "native", "native"),
        ("b", "here", "at home on the reader's node"),
        ("c", "elsewhere", "at home on another node"),
    ):
        for number, size in enumerate(SIZES, 1):
            what = f"{size:,} bytes, {where}, {READERS} readers; the parts are CPU"
            rows.append(report.reported(f"75{letter}{number}", what, shown(passes[place, size])))
    costs = [(size, middle(passes["elsewhere", size], "daemons")) for size in FITTED]
    fixed, slope = fit(costs)
    what = "item on another node, both daemons without FUSE threads, fit over 8, 110 and 1,000 KB: fixed cost"
    rows.append(report.at_most("75d", what, 110, fixed, " µs"))
    words = "… by byte, over one verified hop in bulk in the same run"
    rows.append(report.at_most("75e", words, 1.25, slope * GIB / 1e6 / median(hop), by_gib=slope * GIB / 1e6))
    large = middle(passes["elsewhere", 1_000_000], "daemons") / 1_000_000 * GIB / 1e6
    rows.append(report.reported("75f", "… of 1 MB, fixed cost included, over that hop", f"{large / median(hop):.2f}"))
    return rows

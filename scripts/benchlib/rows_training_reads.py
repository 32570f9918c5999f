"""Row 69: reads of items that a home holds, by their size and place."""

import json
import os
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace

from . import mounts, report
from .clock import DaemonClock, drop_caches, median
from .rows_data_mount import data_mount
from .rows_sampling import origin_of
from .run import build
from .training import make_files

SIZES = {110_000: 5000, 1_000_000: 400, 4_000_000: 100}
"""Numbers of files, by their size."""
READERS = 4
FUSE_THREADS = 4 if len(os.sched_getaffinity(0)) >= 8 else 2
"""Of the bare server, as many as the daemon has by default."""


@dataclass
class Reads:
    """What one pass over the files has cost, for each file."""

    rate: float
    daemons: float
    clients: float
    switches: float
    """Voluntary context switches of the runtime's threads, all daemons."""

    @property
    def cpu(self):
        """Of daemons and clients together: the kernel charges its own work to either."""
        return self.daemons + self.clients


def row69(bench):
    """Files of three sizes without the kernel's pages: at home on the node, also beside a bare FUSE server,
    and half of them elsewhere."""
    origin = origin_of(bench)
    data = replace(bench.data, base=origin)
    passes = {}
    for size, count in SIZES.items():
        directory = make_files(origin / f"reads-{size}", count, size)
        paths = sorted(str(path.relative_to(origin)) for path in directory.glob("*/*.bin"))
        for readers in (1, READERS):
            lists = [data.list(f"reads-{reader}", paths[reader::readers]) for reader in range(readers)]
            native = mounts.native(data)
            one_pass(bench, native, lists, count)
            found = {"native": [one_pass(bench, native, lists, count) for _ in range(bench.runs)]}
            mounted = data_mount(bench.copperfs, data, directory.name, 1)
            # A pass over small files takes a quarter of a second, and is close to the bar.
            turns = bench.runs * (5 if size == min(SIZES) else 1)
            with mounted as nodes, bare_mount(bench, directory) as bare:
                found |= warm_passes({"own": nodes[0], "bare": bare}, turns, bench, lists, count)
            with data_mount(bench.copperfs, data, directory.name, 2) as nodes:
                found |= warm_passes({"half": nodes[1]}, bench.runs, bench, lists, count)
            for name, of_name in found.items():
                passes[name, size, readers] = of_name
                rate, cpu = middle(of_name, "rate"), middle(of_name, "cpu")
                print(f"  {name} {size} {readers} readers: {rate:.0f} files/s, {cpu:.0f} µs", flush=True)
    return rows_of(passes)


@contextmanager
def bare_mount(bench, directory, name="bare_fuse", *flags):
    """The dataset, mounted by a bare server: FUSE and no file system."""
    warnings = ["-Wall", "-Wextra", "-Werror"]
    server = build(name, bench.clients.loops.parent, "-O2", *warnings, "-pthread", *flags)
    with mounts.mount_directory() as point:
        mountpoint = point / directory.name
        mountpoint.mkdir()
        command = [server, mountpoint, directory, str(FUSE_THREADS)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"{server} has failed")
            yield mounts.Target(name, point, [process.pid])
        finally:
            process.terminate()
            process.wait(10)
            if os.path.ismount(mountpoint):
                subprocess.run(["umount", "-l", mountpoint], check=False)


def warm_passes(targets, turns, bench, lists, count):
    """Passes over the targets by turns, after a first one of each, which fills the homes."""
    for target in targets.values():
        one_pass(bench, target, lists, count)
    passes = {name: [] for name in targets}
    for _ in range(turns):
        for name, target in targets.items():
            drop_caches(1)
            passes[name].append(one_pass(bench, target, lists, count))
    return passes


def one_pass(bench, target, lists, count):
    """Each reader reads its own files once."""
    pids = target.pids()
    before, begun = runtime_switches(pids), time.monotonic()
    with DaemonClock(pids) as clock:
        commands = [[bench.clients.loops, "read", target.base, file, "0", "1"] for file in lists]
        readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
        outputs = [reader.communicate(timeout=600)[0] for reader in readers]
    wall = time.monotonic() - begun
    if any(reader.returncode != 0 for reader in readers):
        raise RuntimeError(f"a reader below {target.base} has failed")
    return Reads(
        rate=count / wall,
        daemons=1e6 * clock.cpu / count,
        clients=1e6 * sum(json.loads(output)["cpu"] for output in outputs) / count,
        switches=(runtime_switches(pids) - before) / count,
    )


def runtime_switches(pids):
    """Voluntary context switches of the threads of the daemons' runtimes."""
    total = 0
    for pid in pids:
        for thread in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{thread}/comm") as file:
                    is_runtime = file.read().strip() == "copperfs"
                with open(f"/proc/{pid}/task/{thread}/status") as file:
                    line = next(line for line in file if line.startswith("voluntary_ctxt_switches"))
            except OSError:
                continue
            total += int(line.split()[1]) if is_runtime else 0
    return total


def middle(passes, field):
    return median(getattr(one, field) for one in passes)


def over_floor(passes, size, readers):
    """CPU of a file at home on the node over that of the bare server, by turns."""
    turns = zip(passes["own", size, readers], passes["bare", size, readers])
    return median(own.cpu / bare.cpu for own, bare in turns)


def rows_of(passes):
    """The table's rows."""
    rows = []

    def shown(place, size):
        found = [passes[place, size, readers] for readers in (1, READERS)]
        native = [passes["native", size, readers] for readers in (1, READERS)]
        ratios = [middle(one, "rate") / middle(other, "rate") for one, other in zip(found, native)]
        rates = " and ".join(f"{middle(one, 'rate'):,.0f}" for one in found)
        cpu = middle(found[1], "daemons")
        return f"{rates} files/s ({ratios[0]:.2f} and {ratios[1]:.2f} of native); {cpu:.0f} µs of the daemons a file"

    letters = iter("abcdef")
    for place, where in (("own", "all at home on the node"), ("half", "half of the homes on another node")):
        for size in SIZES:
            what = f"items of {size:,} bytes, {where}, 1 and {READERS} readers"
            rows.append(report.reported(f"69{next(letters)}", what, shown(place, size)))
    switches = middle(passes["own", 110_000, 1], "switches")
    what = "… switches of the runtime's threads for an item of 110 KB on the node, one reader"
    rows.append(report.at_most("69g", what, 0.02, switches))
    for letter, place in (("h", "own"), ("i", "half")):
        small, large = (middle(passes[place, size, READERS], "daemons") / size for size in (1_000_000, 4_000_000))
        what = f"… CPU a byte, 4 MB over 1 MB, {'on the node' if place == 'own' else 'half elsewhere'}"
        rows.append(report.at_most(f"69{letter}", what, 1.1, large / small))
    what = "CPU of clients and daemon over that of a bare FUSE server"
    what = f"local hit of 110 KB, {READERS} readers: {what}"
    cpu = {place: middle(passes[place, 110_000, READERS], "cpu") for place in ("own", "bare")}
    rows.append(report.at_most("69j", what, 1.25, over_floor(passes, 110_000, READERS), cpu_us=cpu))
    others = [(110_000, 1), *((size, readers) for size in (1_000_000, 4_000_000) for readers in (1, READERS))]
    ratios = [over_floor(passes, size, readers) for size, readers in others]
    what = f"… one reader; of 1 MB and of 4 MB, 1 and {READERS} readers each"
    rows.append(report.reported("69k", what, "{:.2f}; {:.2f} and {:.2f}; {:.2f} and {:.2f}".format(*ratios)))
    return rows

"""Row 69: reads of items that a home holds, by their size and place."""

import json
import os
import subprocess
import time
from dataclasses import dataclass, replace

from . import mounts, report
from .clock import DaemonClock, drop_caches, median
from .rows_data_mount import data_mount
from .rows_sampling import origin_of
from .training import make_files

SIZES = {110_000: 5000, 1_000_000: 400, 4_000_000: 100}
"""Numbers of files, by their size."""
READERS = 4


@dataclass
class Reads:
    """What one pass over the files has cost, for each file."""

    rate: float
    daemons: float
    clients: float
    switches: float
    """Voluntary context switches of the runtime's threads, all daemons."""


def row69(bench):
    """Files of three sizes without the kernel's pages: at home on the node, and half of them elsewhere."""
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
            passes["native", size, readers] = [one_pass(bench, native, lists, count) for _ in range(bench.runs)]
            for nodes, name in ((1, "own"), (2, "half")):
                with data_mount(bench.copperfs, data, directory.name, nodes) as targets:
                    passes[name, size, readers] = warm_passes(bench, targets[-1], lists, count)
                found = passes[name, size, readers]
                print(f"  {name} {size} {readers} readers: {middle(found, 'rate'):.0f} files/s", flush=True)
    return rows_of(passes)


def warm_passes(bench, target, lists, count):
    """Passes after a first one, which fills the homes."""
    one_pass(bench, target, lists, count)
    passes = []
    for _ in range(bench.runs):
        drop_caches(1)
        passes.append(one_pass(bench, target, lists, count))
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
    return rows

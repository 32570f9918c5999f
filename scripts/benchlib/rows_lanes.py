"""Row 74: items of other nodes over one lane and over several."""

import os
from contextlib import ExitStack
from dataclasses import replace

from . import report
from .clock import drop_caches, median
from .rows_data_mount import data_mount
from .rows_sampling import origin_of
from .rows_training_reads import one_pass
from .training import make_files

SIZE, COUNT = 110_000, 5000
READERS = 8
LANES = (1, 2, 4)
MANY_PROCESSORS = 16
"""From here on, four lanes have processors of their own."""


def row74(bench):
    """Half of the items are at home on another node; every READ reaches the daemons."""
    origin = origin_of(bench)
    data = replace(bench.data, base=origin)
    directory = make_files(origin / f"reads-{SIZE}", COUNT, SIZE)
    paths = sorted(str(path.relative_to(origin)) for path in directory.glob("*/*.bin"))
    lists = [data.list(f"lanes-{reader}", paths[reader::READERS]) for reader in range(READERS)]
    passes = {lanes: [] for lanes in LANES}
    with ExitStack() as stack:
        targets = {}
        for lanes in LANES:
            flags = ["--lanes", str(lanes)]
            nodes = stack.enter_context(data_mount(bench.copperfs, data, directory.name, 2, *flags))
            targets[lanes] = nodes[1]
            one_pass(bench, nodes[1], lists, COUNT)
        before = requests(targets[max(LANES)])
        for _ in range(bench.runs):
            for lanes, target in targets.items():
                drop_caches(1)
                passes[lanes].append(one_pass(bench, target, lists, COUNT))
        after = requests(targets[max(LANES)])
    return rows_of(passes, [now - then for now, then in zip(after, before)])


def requests(target):
    """The requests for items of each lane of a node."""
    stats = target.node.stats()
    return [count for name, count in sorted(stats.items()) if name.startswith("lanes.") and name.endswith(".requests")]


def over_one(passes, lanes, field):
    """A quantity with that number of lanes over that with one, by turns."""
    turns = zip(passes[lanes], passes[1])
    return median(getattr(several, field) / getattr(one, field) for several, one in turns)


def rows_of(passes, by_lane):
    """The table's rows."""
    many = len(os.sched_getaffinity(0)) >= MANY_PROCESSORS
    what = f"items of {SIZE:,} bytes, half of the homes on another node, {READERS} readers, 1, 2 and 4 lanes"
    rates = ", ".join(f"{median(one.rate for one in passes[lanes]):,.0f}" for lanes in LANES)
    rows = [report.reported("74a", what, f"{rates} files/s")]
    least = 3.2 if many else 0.95
    rows.append(report.at_least("74b", "… rate of four lanes over one", least, over_one(passes, 4, "rate")))
    what = "… CPU of readers and daemons a file, four lanes over one"
    rows.append(report.at_most("74c", what, 1.1, over_one(passes, 4, "cpu")))
    most = max(by_lane) * len(by_lane) / sum(by_lane)
    what = "… requests of the busiest of four lanes over their mean"
    rows.append(report.at_most("74d", what, 1.2, most))
    return rows

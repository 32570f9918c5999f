"""Rows 78 to 81: images over the mount (--front erofs) against FUSE and the origin itself."""

import random
from contextlib import ExitStack, contextmanager

from . import messages, mounts, report
from .clock import back_memory, drop_caches, median
from .data import IMPORT_ALL, IMPORT_LEAF, big_name
from .rows_cold import size_of
from .rows_warm import Case, in_turns

# Rank 3 of four nodes is two hops below the root.
NODES, ARITY = 4, 2
COLD_BYTES = 1 << 30


def index(bench):
    """The index of the data, in the data itself, so that every node reads it through the tree."""
    file = bench.data.base / "native.index"
    file.unlink(missing_ok=True)
    mounts.run([bench.copperfs, "index", "build", bench.data.base, "-o", file], 600)
    return file


def flags(front, file):
    """Flags of a mount. All have the index, so that fronts differ in nothing else."""
    return ["--index", f"/{mounts.PREFIX}={file}", "--front", front]


@contextmanager
def fronts(bench):
    """The origin, a node with FUSE and one with an image."""
    data, file = bench.data, index(bench)
    memory = ["--memory", bench.memory]
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(mounts.node(bench.copperfs, data, *memory, *flags(front, file)))
            for front in ("fuse", "erofs")
        ]
        nodes[0].name, nodes[1].name = "fuse", "erofs"
        yield mounts.native(data), *nodes


def row78(bench):
    """Everything warm: operations per CPU-second of client and daemon."""
    data = bench.data
    small = data.list("small", data.small())
    middle = data.list("middle", data.middle())
    missing = data.list("missing", data.missing())
    big = data.list("big", [big_name(data)])
    tree = data.list("tree", ["tree"])
    cases = [
        Case("a", "warm stat", 0.95, "stat", small),
        Case("b", "failed stat, repeated", 0.95, "missing", missing),
        Case("c", "open + read + close, 20 KB", 0.95, "read", small),
        Case("d", "open + read + close, 200 KB", 0.95, "read", middle),
        Case("e", "1 GiB sequential, 1 MiB reads", 0.95, "read", big),
        Case("f", "1 GiB mmap, every word read", 0.95, "map", big),
        Case("g", "tree walk with lstat", 0.95, "walk", tree),
        Case("h", "1 GiB mmap, one byte a page", 1.0, "touch", big),
    ]
    results = []
    with fronts(bench) as (native, fuse, erofs):
        # Files that were written a moment ago lie in the page cache in larger units than files that
        # were read, which those of a software tree are.
        drop_caches(3)
        for case in cases:
            rates = in_turns(bench, case, [native, fuse, erofs])
            ratio = {name: median(found) / median(rates["native"]) for name, found in rates.items()}
            beside = f"fuse {ratio['fuse']:.2f}"
            row = f"78{case.letter}"
            results.append(
                report.at_least(row, case.what, case.bar, ratio["erofs"], beside, cpu_rates=rates)
            )
        results += _imports(bench, native, fuse, erofs)
    return results


def _imports(bench, native, fuse, erofs):
    """Wall time of a warm import, and the messages that it costs."""
    clients, walls, counts = bench.clients, {}, {}
    for target in (native, fuse, erofs):
        clients.python(target, IMPORT_ALL)
    for _ in range(bench.runs):
        for target in (native, fuse, erofs):
            walls.setdefault(target.name, []).append(clients.python(target, IMPORT_ALL).wall)
    for target in (fuse, erofs):
        with messages.count(target) as counted:
            clients.python(target, IMPORT_ALL)
        counts[target.name] = sum(counted[0].values())
    times = {name: median(found) / median(walls["native"]) for name, found in walls.items()}
    beside = f"fuse {times['fuse']:.2f}"
    return [
        report.at_most(
            "78i", f"python: {IMPORT_ALL}, wall", 1.03, times["erofs"], " ×", beside, wall_s=walls
        ),
        report.exactly(
            "78j", "… messages", 0, counts["erofs"], f"fuse {counts['fuse']}", messages=counts
        ),
    ]


def row79(bench):
    """The kernel's caches empty, or everything cold."""
    return [*_kernel_cold(bench), *_leaf(bench)]


def _kernel_cold(bench):
    """The daemon has the bytes, the kernel nothing."""
    data, clients, walls, cpus = bench.data, bench.clients, {}, {}
    big = data.list("big", [big_name(data)])

    def timed(key, target, cost):
        walls.setdefault((key, target.name), []).append(cost.wall)
        cpus.setdefault((key, target.name), []).append(cost.cpu)

    with fronts(bench) as (native, fuse, erofs):
        warm = [bench.copperfs, "warm"]
        for _ in range(bench.runs):
            for target in (native, fuse, erofs):
                clients.loop(target, "read", big)
            drop_caches(3)
            clients.loop(native, "read", big)
            for target in (native, fuse, erofs):
                # An image has its own pages and those of its data file.
                back_memory(2 * size_of(data, big))
                timed("big", target, clients.loop(target, "read", big))
            for node in (fuse, erofs):
                drop_caches(3)
                clients.python(native, IMPORT_LEAF)
                mounts.run([*warm, node.base / "tree"], 600)
                timed("warmed", native, clients.python(native, IMPORT_LEAF))
                timed("warmed", node, clients.python(node, IMPORT_LEAF))

    def times(table, key, name):
        return median(table[key, name]) / median(table[key, "native"])

    keep = {"wall_s": {" ".join(key): found for key, found in walls.items()}}
    speed = {name: 1 / times(walls, "big", name) for name in ("fuse", "erofs")}
    cpu = {name: times(cpus, "big", name) for name in ("fuse", "erofs")}
    warmed = {name: times(walls, "warmed", name) for name in ("fuse", "erofs")}
    return [
        report.at_least(
            "79a",
            "1 GiB, kernel cold, daemon warm: wall against a warm native read",
            0.5,
            speed["erofs"],
            f"fuse {speed['fuse']:.2f}",
            **keep,
        ),
        report.at_most("79b", "… CPU", 3, cpu["erofs"], " ×", f"fuse {cpu['fuse']:.2f}"),
        report.at_most(
            "79c",
            f"python: {IMPORT_LEAF} after `warm`, first time, wall",
            1.1,
            warmed["erofs"],
            " ×",
            f"fuse {warmed['fuse']:.2f}",
        ),
    ]


def _leaf(bench):
    """A leaf at depth 2 of a tree that has read nothing."""
    data, clients, file = bench.data, bench.clients, index(bench)
    native = mounts.native(data)
    shuffled = data.small()
    random.Random(1).shuffle(shuffled)
    orders = {"in order": data.list("small", data.small()), "random": data.list("shuffled", shuffled)}
    walls = {}

    def timed(key, front, cost):
        walls.setdefault((key, front), []).append(cost.wall)

    for list_file in orders.values():
        clients.loop(native, "read", list_file)
    clients.python(native, IMPORT_LEAF)
    for _ in range(bench.runs):
        for front in ("fuse", "erofs"):
            for key, list_file in orders.items():
                with _tree(bench, front, file) as leaf:
                    timed(key, front, clients.loop(leaf, "read", list_file))
            with _tree(bench, front, file) as leaf:
                timed("import", front, clients.python(leaf, IMPORT_LEAF))
        for key, list_file in orders.items():
            timed(key, "native", clients.loop(native, "read", list_file))
        timed("import", "native", clients.python(native, IMPORT_LEAF))

    def times(key, front):
        return median(walls[key, front]) / median(walls[key, "native"])

    count = data.sizes.small_files
    rows = [
        ("79d", f"leaf at depth 2, all cold: python: {IMPORT_LEAF}, wall against native warm", 1.4, "import"),
        ("79e", f"… {count:,} × 20 KB in order", 6, "in order"),
        ("79f", f"… {count:,} × 20 KB in random order", 9, "random"),
    ]
    keep = {"wall_s": {" ".join(key): found for key, found in walls.items()}}
    return [
        report.at_most(row, what, bar, times(key, "erofs"), " ×", f"fuse {times(key, 'fuse'):.2f}", **keep)
        for row, what, bar, key in rows
    ]


@contextmanager
def _tree(bench, front, file):
    """The leaf of a tree that has read nothing but the index."""
    launch = ["--arity", ARITY, *flags(front, file)]
    with mounts.cluster(bench.copperfs, bench.data, NODES, *launch) as cluster:
        drop_caches(2)
        back_memory(COLD_BYTES)
        yield cluster.nodes[3]

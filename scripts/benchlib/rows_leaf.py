"""Row 8: a leaf two hops below the root, everything cold but the origin's page cache."""

from . import mounts, report
from .clock import back_memory, drop_caches, median
from .data import IMPORT_LEAF

# What four nodes and the kernel take for what is read here.
COLD_BYTES = 1 << 30
NODES, ARITY = 4, 2  # rank 3's parent is rank 1, whose parent is the root


def gained(before, after, key):
    return after[key] - before[key]


def row8(bench):
    data, clients = bench.data, bench.clients
    small = data.list("small", data.small())
    missing = data.list("missing", data.missing())
    native = mounts.native(data)
    walls, requests = {}, {"files": [], "missing": []}
    wasted = {"files": [], "import": []}

    def waste(key, before, after):
        useful = gained(before, after, "bundle.useful_bytes")
        wasted[key].append(gained(before, after, "bundle.wasted_bytes") / max(useful, 1))

    def timed(key, cost):
        walls.setdefault(key, []).append(cost.wall)

    def tree():
        return mounts.cluster(bench.copperfs, data, NODES, "--arity", ARITY)

    clients.loop(native, "read", small)
    clients.python(native, IMPORT_LEAF)
    for _ in range(bench.runs):
        with tree() as cluster:
            leaf = cluster.nodes[3]
            assert leaf.stats()["parent"] == 1, "rank 3 is below rank 1"
            drop_caches(2)
            back_memory(COLD_BYTES)
            before = leaf.stats()
            timed("files", clients.loop(leaf, "read", small))
            after = leaf.stats()
            requests["files"].append(gained(before, after, "upstream.requests"))
            waste("files", before, after)
            drop_caches(2)
            timed("missing once", clients.loop(leaf, "missing", missing))
            timed("missing again", clients.loop(leaf, "missing", missing))
            requests["missing"].append(gained(after, leaf.stats(), "upstream.requests"))
        drop_caches(2)
        timed("native files", clients.loop(native, "read", small))
        drop_caches(2)
        timed("native missing once", clients.loop(native, "missing", missing))
        timed("native missing again", clients.loop(native, "missing", missing))
        with tree() as cluster:
            drop_caches(2)
            back_memory(COLD_BYTES)
            leaf = cluster.nodes[3]
            before = leaf.stats()
            timed("import", clients.python(leaf, IMPORT_LEAF))
            waste("import", before, leaf.stats())
        drop_caches(2)
        timed("native import", clients.python(native, IMPORT_LEAF))

    def times(key):
        return median(walls[key]) / median(walls[f"native {key}"])

    count, names = data.sizes.small_files, data.sizes.missing_names
    # The two directories above them are listed too.
    directories = len(data.directories()) + 2
    each = max(requests["files"]) / directories
    return [
        report.at_most(
            "8a",
            f"leaf at depth 2: {count:,} × 20 KB, one after another, wall",
            1.5,
            times("files"),
            " ×",
            wall_s=walls,
        ),
        report.at_most("8b", "… requests upstream a directory", 3, each, upstream=requests),
        report.at_most(
            "8b2", "… bytes wasted of those of use", 0.2, median(wasted["files"]), wasted=wasted
        ),
        report.at_most("8c", f"… python: {IMPORT_LEAF}, wall", 1.5, times("import"), " ×"),
        report.at_most("8c2", "… bytes wasted of those of use", 0.2, median(wasted["import"])),
        report.exactly(
            "8d",
            f"… {names:,} names that do not exist: upstream requests",
            0,
            max(requests["missing"]),
        ),
        report.at_most("8e", "… wall, once", 25, times("missing once"), " ×"),
        report.at_most("8f", "… wall, again", 1.5, times("missing again"), " ×"),
    ]

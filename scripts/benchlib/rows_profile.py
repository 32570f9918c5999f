"""Row 18: a profile, recorded on one node, warms a tree; then the first import on a leaf."""

import json
import subprocess

from . import mounts, report
from .clock import drop_caches, median
from .data import IMPORT_LEAF
from .run import PYTHON, environment

NODES, ARITY = 7, 2  # the last one is two hops below the root


def record(bench, profile, data=None, statement=IMPORT_LEAF):
    """What an import touches, seen on a node of its own; how many files it reads."""
    with mounts.node(bench.copperfs, data or bench.data) as node:
        command = [bench.copperfs, "record", "-m", node.mountpoint, "-o", profile, "--"]
        subprocess.run(
            [*command, PYTHON, "-c", statement],
            env=environment(node.base),
            check=True,
            timeout=300,
        )
    accesses = [json.loads(line) for line in profile.read_text().splitlines()]
    return len({str(one["path"]) for one in accesses if one.get("op") == "read"})


def warmed(bench, node, profile):
    """Warms the node's tree; the last line of what is said."""
    warm = [bench.copperfs, "warm", "-m", node.mountpoint, "--profile", profile, "--json"]
    return json.loads(mounts.run(warm).splitlines()[-1])


def row18(bench):
    native = mounts.native(bench.data)
    profile = bench.data.lists / "import.profile"
    files = record(bench, profile)
    walls = {"copperfs": [], "native": []}
    warming = {"first": [], "again": []}
    upstream, moved, messages, other = [], [], [], []
    for _ in range(bench.runs):
        with mounts.cluster(bench.copperfs, bench.data, NODES, "--arity", ARITY) as cluster:
            leaf = cluster.nodes[-1]
            # The origin's page cache stays; names and inodes of earlier runs go.
            drop_caches(2)
            warming["first"].append(warmed(bench, leaf, profile)["elapsed_ms"])
            before = leaf.stats()
            walls["copperfs"].append(bench.clients.python(leaf, IMPORT_LEAF).wall)
            after = leaf.stats()
            bench.clients.python(native, IMPORT_LEAF)
            walls["native"].append(bench.clients.python(native, IMPORT_LEAF).wall)
            upstream.append(after["upstream.requests"] - before["upstream.requests"])
            asked = {
                key.removeprefix("fuse.software.requests."): after[key] - before[key]
                for key in after
                if key.startswith("fuse.software.requests.") and after[key] > before[key]
            }
            messages.append(asked.pop("read", 0))
            other.append(asked)
            everything = sum(node.stats()["upstream.requests"] for node in cluster.nodes)
            warming["again"].append(warmed(bench, leaf, profile)["elapsed_ms"])
            again = sum(node.stats()["upstream.requests"] for node in cluster.nodes)
            moved.append(again - everything)
    ratio = median(walls["copperfs"]) / median(walls["native"])
    first, again = (median(warming[key]) for key in ("first", "again"))
    return [
        report.at_most(
            "18a",
            f"warm with a profile on {NODES} nodes, then the first `python -c '{IMPORT_LEAF}'` on a "
            "leaf at depth 2, wall, against native warm",
            1.1,
            ratio,
            " ×",
            wall_s=walls,
        ),
        report.exactly("18b", "… requests upstream during the import", 0, max(upstream)),
        # The machine takes pages away now and then; each run's number is in the detail of 18d.
        report.within(
            "18c", f"… READ messages, of {files:,} files", int(median(messages)), files // 20
        ),
        report.reported(
            "18d",
            "… other messages (Python 3.11 asks of each file that it opens whether it is a terminal)",
            str(other[-1]),
            reads=messages,
        ),
        report.exactly("18e", "… a second warm: requests upstream, all nodes", 0, max(moved)),
        report.reported(
            "18f", "… warming, first and again", f"{first:.0f} ms, {again:.0f} ms", warming_ms=warming
        ),
    ]

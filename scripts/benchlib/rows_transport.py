"""Rows 21 and 22: round trips through a tree in one process; one hop in bulk; idle connections."""

import json

from . import report
from .mounts import run

# Copper's figures for its tree of RPC are sub-millisecond for small messages (its Figure 3).
BARS_MS = {"1 B": 0.10, "4 KiB": 0.11, "128 KiB": 0.6, "1 MiB": 5.0}
P99_MS = {"128 KiB": 3.0}


def row21(bench):
    """31 nodes, arity 2: from a leaf to the root and back."""
    found = json.loads(run([bench.copperfs, "bench", "tree", "--json"], timeout=600))
    rows = []
    for index, one in enumerate(found["leaf"]):
        size = next(name for name in BARS_MS if bytes_of(name) == one["bytes"])
        name = f"21{chr(ord('a') + index)}"
        what = f"31 nodes in one process, arity 2, leaf to root and back, {size}: p50"
        time = one["time"]
        rows.append(
            report.at_most(name, what, BARS_MS[size], 1e3 * time["p50_s"], " ms", **time)
        )
        if size in P99_MS:
            what = f"... {size}: p99"
            rows.append(
                report.at_most(f"{name}'", what, P99_MS[size], 1e3 * time["p99_s"], " ms")
            )
    return rows


def bytes_of(size):
    number, unit = size.split()
    return int(number) << {"B": 0, "KiB": 10, "MiB": 20}[unit]


def row22(bench):
    """One hop against TCP + TLS in the same run."""
    found = json.loads(run([bench.copperfs, "bench", "hop", "--json"], timeout=600))
    bulk = found["bulk"]
    rate, cpu = bulk["throughput_ratio"], bulk["cpu_ratio"]
    idle = found["idle"]
    return [
        report.at_least("22a", "one hop in bulk over TCP + TLS, same run: rate", 1.0, rate, **bulk),
        report.at_most("22b", "... processor time, both ends", 1.0, cpu, " ×"),
        report.at_most(
            "22c",
            "memory of an idle connection, the dearer side",
            65,
            max(idle["parent_bytes"], idle["child_bytes"]) / 1024,
            " KiB",
            **idle,
        ),
    ]

"""Row 9: what a daemon holds and does when nobody asks."""

import time

from . import mounts, report
from .clock import status_kb, switches
from .data import IMPORT_ALL

IDLE_S = 10
SETTLE_S = 3


def row9(bench):
    data = bench.data
    results = []
    with mounts.node(bench.copperfs, data) as node:
        time.sleep(SETTLE_S)
        pid = node.pids()[0]
        results.append(
            report.at_most("9a", "idle daemon, RSS", 25, status_kb(pid, "VmRSS") / 1024, " MiB")
        )
        rate, threads = wakeups(pid)
        results.append(
            report.at_most("9b", "idle daemon alone, wake-ups a second", 0, rate, threads=threads)
        )
        bench.clients.python(node, IMPORT_ALL)
        node.settle()
        time.sleep(SETTLE_S)
        resident = status_kb(pid, "VmRSS") / 1024
        stats = node.stats()
        cached = (
            sum(stats[f"cache.{name}.bytes"] for name in ("data", "attributes", "listings")) / 2**20
        )
        data_cached = stats["cache.data.bytes"] / 2**20
        results.append(
            report.at_most(
                "9c",
                f"after the import, RSS beyond the data cached ({data_cached:.0f} MiB)",
                25,
                resident - data_cached,
                " MiB",
                resident_mib=resident,
                anonymous_mib=status_kb(pid, "RssAnon") / 1024,
                all_caches_mib=cached,
            )
        )
    with mounts.cluster(bench.copperfs, data, 4, "--arity", 2) as cluster:
        bench.clients.python(cluster.nodes[3], IMPORT_ALL)
        time.sleep(SETTLE_S)
        rates = [wakeups(pid) for pid in cluster.pids()]
        shown = ", ".join(f"{rate:.1f}" for rate, _ in rates)
        results.append(
            report.reported(
                "9d",
                "idle daemons of a 4-node tree, wake-ups a second (keep-alives), by rank",
                shown,
                threads=[threads for _, threads in rates],
            )
        )
    return results


def wakeups(pid):
    """Context switches a second over IDLE_S, and by thread."""
    before = switches(pid)
    time.sleep(IDLE_S)
    after = switches(pid)
    threads, count = {}, 0
    for thread, (name, voluntary, involuntary) in after.items():
        _, was, was_involuntary = before.get(thread, (name, 0, 0))
        gained = voluntary - was + involuntary - was_involuntary
        count += gained
        if gained:
            threads[f"{name} ({thread})"] = gained
    return count / IDLE_S, threads

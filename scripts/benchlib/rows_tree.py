"""Rows 1, 2, 3, 6 and 7: eight nodes that import one tree at once; what a whole import asks for."""

from . import messages, mounts, report
from .clock import DaemonClock, back_memory, drop_caches, median, refaulted_pages, status_kb
from .data import IMPORT_ALL, PACKAGES
from .expect import touched
from .run import start_python, wait

NODES = 8
# What the nodes and the kernel take for one import.
COLD_BYTES = 2 << 30
HERD = f"8 nodes import {' + '.join(PACKAGES)} at once"


def herd(targets, statement):
    """One Python a target, all at once: (wall, CPU seconds of the clients)."""
    started = [start_python(target.base, statement) for target in targets]
    ended = [wait(one) for one in started]
    return max(wall for _, wall in ended), sum(cpu for cpu, _ in ended)


def total(stats, key):
    return sum(one[key] for one in stats)


def row1(bench):
    """Rows 1, 2, 3: each byte read once; then nothing is asked at all."""
    data = bench.data
    expected = touched(data.base, IMPORT_ALL)
    # The mount's own top and the origin's top are directories that are searched as well.
    with mounts.cluster(bench.copperfs, data, NODES, "--bundles=false") as cluster:
        before = [node.stats() for node in cluster.nodes]
        herd(cluster.nodes, IMPORT_ALL)
        cold = [node.stats() for node in cluster.nodes]
        results = _once(expected, before, cold)
        for node in cluster.nodes:
            node.settle()
        results += _again(bench, cluster.nodes)
        results += _missing(bench, cluster.nodes[-1])
    return results


def _once(expected, before, after):
    def gained(key):
        return total(after, key) - total(before, key)

    detail = {"calls": expected.calls, "failed_calls": expected.failed_calls}
    directories = len(expected.directories)
    return [
        report.exactly(
            "1a",
            f"{HERD}: origin.opens = distinct files read",
            len(expected.files),
            gained("origin.opens"),
            **detail,
        ),
        report.exactly(
            "1b", "… origin.read_bytes = their bytes", expected.bytes, gained("origin.read_bytes")
        ),
        report.exactly(
            "1c", "… origin.listings = directories touched", directories, gained("origin.listings")
        ),
        report.reported(
            "1d",
            "… origin.stats, origin.errors, verify.failures",
            f"{gained('origin.stats')}, {gained('origin.errors')}, {gained('verify.failures')}",
        ),
    ]


def _again(bench, nodes):
    """All nodes once more at once; then each node alone, several times.

    Some machines take idle pages out of the page cache, here and there, and what is not there the
    kernel cannot answer. So each node's best run counts: what it asks every time is what the daemon
    could have spared it.
    """
    before = total([node.stats() for node in nodes], "upstream.requests")
    refaults = refaulted_pages()
    with messages.count(*nodes) as counts:
        herd(nodes, IMPORT_ALL)
    together = sum(counts, messages.Messages())
    refaults = refaulted_pages() - refaults
    best = [min(_alone(bench, node), key=_questions) for node in nodes]
    upstream = total([node.stats() for node in nodes], "upstream.requests") - before
    return [
        report.reported(
            "2a",
            "the same again: messages, all nodes; pages that the machine had taken away",
            f"{messages.shown(together)}; {refaults:,}",
        ),
        report.exactly(
            "2b",
            f"… READ and LOOKUP messages, of each node the best of {bench.runs} more runs",
            0,
            sum(_questions(found) for found in best),
            nodes=[dict(found) for found in best],
        ),
        report.exactly("2c", "… upstream requests, of all these runs", 0, upstream),
    ]


def _alone(bench, node):
    for _ in range(bench.runs):
        bench.clients.python(node, IMPORT_ALL)
        with messages.count(node) as counts:
            bench.clients.python(node, IMPORT_ALL)
        yield counts[0]


def _questions(found):
    return found["read"] + found["lookup"]


def _missing(bench, leaf):
    data, clients = bench.data, bench.clients
    names = data.list("missing", data.missing())
    clients.loop(leaf, "list", data.list("directories", data.directories()))
    leaf.settle()
    asked, upstream = [], []
    for _ in range(2):
        before = leaf.stats()["upstream.requests"]
        with messages.count(leaf) as counts:
            clients.loop(leaf, "missing", names)
        asked.append(counts[0])
        upstream.append(leaf.stats()["upstream.requests"] - before)
    what = f"{data.sizes.missing_names:,} names that do not exist, directories listed"
    return [
        report.exactly("3a", f"{what}: upstream requests", 0, upstream[0]),
        report.reported("3b", "… messages to the daemon", messages.shown(asked[0])),
        report.exactly("3c", "… upstream requests when repeated", 0, upstream[1]),
        report.exactly("3d", "… messages to the daemon when repeated", 0, asked[1].total()),
    ]


def row6(bench):
    """Messages of one whole cold import, by operation."""
    data = bench.data
    expected = touched(data.base, IMPORT_ALL)
    with mounts.node(bench.copperfs, data) as node:
        with messages.count(node) as counts:
            herd([node], IMPORT_ALL)
        node.settle()
        pushed = node.stats()["push.software.files"]
    found = counts[0]
    directories, files = len(expected.directories), len(expected.files)
    paths = len(expected.missing) + files + directories
    return [
        report.reported(
            "6a",
            f"cold import, {files:,} files read in {directories:,} directories: messages",
            messages.shown(found),
        ),
        report.within(
            "6b",
            "… READDIRPLUS and READDIR batches ≤ directories",
            found["readdirplus"] + found["readdir"],
            directories,
        ),
        report.within("6c", "… LOOKUPs ≤ distinct paths asked for", found["lookup"], paths),
        report.reported("6d", "… READs; files that push brought", f"{found['read']}; {pushed}"),
    ]


def row7(bench):
    """Wall time of the herd, storage cold, against processes straight on the origin."""
    data = bench.data
    walls, direct_walls, cpu, clients_cpu, resident = [], [], [], [], []
    for _ in range(bench.runs):
        with mounts.cluster(bench.copperfs, data, NODES) as cluster:
            drop_caches(3)
            back_memory(COLD_BYTES)
            with DaemonClock(cluster.pids()) as daemons:
                wall, client = herd(cluster.nodes, IMPORT_ALL)
            walls.append(wall)
            clients_cpu.append(client)
            cpu.append(daemons.cpu / NODES)
            resident.append(median(status_kb(pid, "VmRSS") for pid in cluster.pids()) / 1024)
            cached = median(node.stats()["cache.data.bytes"] for node in cluster.nodes) / 2**20
        drop_caches(3)
        back_memory(COLD_BYTES)
        wall, client = herd([mounts.native(data)] * NODES, IMPORT_ALL)
        direct_walls.append(wall)
    ratio = median(walls) / median(direct_walls)
    detail = {"wall_s": walls, "direct_wall_s": direct_walls, "daemon_cpu_s": cpu}
    return [
        report.reported(
            "7a",
            f"cold import over {NODES} nodes on this machine, wall, against {NODES} processes on the origin",
            f"{median(walls):.2f} s against {median(direct_walls):.2f} s ({ratio:.2f} ×)",
            **detail,
        ),
        report.reported(
            "7b",
            "… CPU seconds of a daemon; of all clients together",
            f"{median(cpu):.2f}; {median(clients_cpu):.2f}",
        ),
        report.reported(
            "7c",
            "… RSS of a daemon, of which cached data",
            f"{median(resident):.0f} MiB, {cached:.0f} MiB",
        ),
    ]

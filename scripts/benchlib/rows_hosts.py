"""Rows 10 to 15: 32 hosts that start, import one tree at once, and lose nodes while they read.

Each host has its own network, mounts, processes and name (scripts/hosts.sh); the processors are this
machine's own, all hosts share them, which is what most of these figures measure.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from . import report
from .clock import median
from .data import IMPORT_LEAF, PACKAGES
from .expect import touched
from .hosts import Hosts, mounted, together

HOSTS = 32
ARITY = 2
TREE = ["--arity", ARITY]
IMPORT = """
import json, os, sys, time
start, base, statement = float(sys.argv[1]), sys.argv[2], sys.argv[3]
time.sleep(max(0.0, start - time.time()))
begun = time.time()
environment = dict(PATH=os.environ["PATH"], HOME="/", PYTHONPATH=base + "/tree",
                   OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
import subprocess
done = subprocess.run([sys.executable, "-c", statement], env=environment, capture_output=True, text=True)
print(json.dumps({"wall": time.time() - begun, "end": time.time() - start,
                  "status": done.returncode, "error": done.stderr[-300:]}))
"""

# Reads files in an order of its own and compares every byte with the origin, until told to stop. After
# each file its pages are dropped, so that every read asks the daemon. `hit` files are read again and
# again; the others once each. Prints every read: when, how long, hit or not.
READER = """
import json, os, random, sys, time
start, mount, origin, stop = float(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
names = sorted(os.path.relpath(os.path.join(d, f), origin) for d, _, fs in os.walk(origin) for f in fs)
random.Random(os.environ["HOST_ID"]).shuffle(names)
hot, cold = names[:8], names[8:]
reads, wrong, errors = [], 0, []
def read(name, hit):
    global wrong
    with open(os.path.join(origin, name), "rb") as f: truth = f.read()
    begun = time.time()
    try:
        with open(os.path.join(mount, name), "rb") as f:
            got = f.read()
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        wrong += got != truth
    except OSError as error:
        errors.append(f"{name}: {error}")
    reads.append((begun - start, time.time() - begun, hit))
for name in hot: read(name, False)
time.sleep(max(0.0, start - time.time()))
i = 0
while not os.path.exists(stop):
    read(hot[i % len(hot)], True)
    if i < len(cold): read(cold[i], False)
    i += 1
    time.sleep(0.1)
print(json.dumps({"reads": reads, "wrong": wrong, "errors": errors[:5], "error_count": len(errors)}))
"""


@contextmanager
def scratch_dir():
    with tempfile.TemporaryDirectory(prefix="copperfs-bench-") as scratch:
        yield Path(scratch)


def origin_flag(path):
    return ["--origin", f"/bench=file://{path}"]


def row10(bench):
    """32 hosts import the same tree at once, cold."""
    data = bench.data
    expected = touched(data.base, IMPORT_LEAF)
    with scratch_dir() as scratch, Hosts(HOSTS) as hosts:
        flags = [*TREE, *origin_flag(data.base), "--bundles=false"]
        with mounted(bench.copperfs, hosts, scratch, flags) as tree:
            before = [tree.stats(number) for number in (1, *range(2, HOSTS + 1))]
            answers = together(hosts, IMPORT, tree.mountpoint / "bench", IMPORT_LEAF)
            after = [tree.stats(number) for number in range(1, HOSTS + 1)]
    errors = [answer["error"] for answer in answers if answer["status"] != 0]
    opens = sum(one["origin.opens"] for one in after) - sum(one["origin.opens"] for one in before)
    read = sum(one["origin.read_bytes"] for one in after)
    most = max(one["verify.blocks"] for one in after)
    blocks = sum(-(-os.path.getsize(path) // (1 << 20)) for path in expected.files)
    herd = f"{HOSTS} hosts import {' + '.join(PACKAGES[:1] + PACKAGES[2:])} at once, cold"
    return [
        report.exactly("10a", f"{herd}: application errors", 0, len(errors), errors=errors[:3]),
        report.exactly("10b", "… origin bytes, one root", expected.bytes, read, opens=opens),
        report.within("10c", "… blocks over the busiest edge (each at most once)", most, blocks),
        report.reported(
            "10d", "… wall of the slowest host", f"{max(a['end'] for a in answers):.1f} s"
        ),
    ]


def row11(bench):
    """The same with storage limited to a rate per reader: one root against four."""
    data = bench.data
    rate = 512 << 10
    walls, results = {}, []
    expected = touched(data.base, IMPORT_LEAF)
    for roots in (1, 4):
        with scratch_dir() as scratch, Hosts(HOSTS) as hosts:
            slow = scratch / "slow"
            slow.mkdir()
            ranks = [1 + k * HOSTS // roots for k in range(roots)]
            limited = []
            try:
                for number in ranks:
                    command = ["bindfs", "-f", f"--read-rate={rate}", data.base, slow]
                    limited.append(hosts.start(number, *command))
                wait_for_mounts(hosts, ranks, slow)
                flags = [*TREE, "--roots", roots, *origin_flag(slow), "--bundles=false"]
                with mounted(bench.copperfs, hosts, scratch, flags) as tree:
                    answers = together(
                        hosts, IMPORT, tree.mountpoint / "bench", IMPORT_LEAF, timeout=900
                    )
                    after = [tree.stats(number) for number in range(1, HOSTS + 1)]
            finally:
                for process in limited:
                    process.send_signal(signal.SIGTERM)
                    process.wait(timeout=30)
            errors = sum(answer["status"] != 0 for answer in answers)
            read = sum(one["origin.read_bytes"] for one in after)
            walls[roots] = max(answer["end"] for answer in answers)
            results += [
                report.exactly(
                    f"11{'a' if roots == 1 else 'b'}",
                    f"storage limited to {rate >> 10} KiB/s a reader, roots = {roots}: origin bytes "
                    f"({errors} errors, wall {walls[roots]:.1f} s)",
                    expected.bytes,
                    read,
                    by_root=[after[rank - 1]["origin.read_bytes"] for rank in ranks],
                )
            ]
    better = walls[1] / walls[4]
    return [*results, report.at_least("11c", "… wall, one root over four", 3, better)]


def wait_for_mounts(hosts, numbers, path):
    for number in numbers:
        for _ in range(100):
            if "fuse" in hosts.output(number, "stat", "-f", "-c", "%T", path):
                break
            time.sleep(0.1)
        else:
            raise RuntimeError(f"{path} is not mounted on host {number}")


def row12(bench):
    """Start-up: from the command until every mount answers, and connections a node."""
    walls, connections = [], 0
    for _ in range(bench.runs):
        with scratch_dir() as scratch, Hosts(HOSTS) as hosts:
            (scratch / "mnt").mkdir()
            names = ",".join(f"h{number}" for number in range(1, HOSTS + 1))
            command = [bench.copperfs, "launch", "--hosts", names, "--ssh", hosts.reach(scratch)]
            command += [*TREE, *origin_flag(bench.data.base), scratch / "mnt"]
            begun = time.monotonic()
            subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
            walls.append(time.monotonic() - begun)
            out = hosts.output(
                1, bench.copperfs, "stats", "--all", "--json", scratch / "mnt"
            )
            for node in json.loads(out)["nodes"]:
                below = sum(tree["connected"] for tree in node["children"])
                connections = max(connections, below + len(node["links"]))
            unmount = [bench.copperfs, "unmount", "--all", "--force", scratch / "mnt"]
            subprocess.run([str(word) for word in unmount], check=False, stdout=subprocess.DEVNULL)
    return [
        report.at_most(
            "12a", f"launch of {HOSTS} hosts until all mounts answer", 5, median(walls), " s", walls=walls
        ),
        report.within("12b", "… connections of a node (arity + roots + 1)", connections, ARITY + 2),
    ]


def start_reader(bench, tree, number, start, stop):
    """A reader on one host, which begins at `start` and ends when `stop` is there."""
    origin = bench.data.base / "small"
    reader = [sys.executable, "-c", READER, start, tree.mountpoint / "bench", origin, stop]
    return tree.hosts.start(number, *reader)


def faults(bench, roots, breaks, mends=None):
    """Readers on all hosts that live while `breaks` happens: what they saw, before and during."""
    with scratch_dir() as scratch, Hosts(HOSTS) as hosts:
        flags = [*TREE, "--roots", roots, *origin_flag(bench.data.base / "small")]
        with mounted(bench.copperfs, hosts, scratch, flags) as tree:
            stop = scratch / "stop"
            start = time.time() + 8
            readers = {
                number: start_reader(bench, tree, number, start, stop)
                for number in range(1, HOSTS + 1)
            }
            time.sleep(max(0.0, start + 5 - time.time()))
            dead = breaks(hosts)
            broken = time.time() - start
            time.sleep(5)
            if mends:
                mends(hosts)
                time.sleep(5)
            stop.touch()
            seen = {}
            for number, process in readers.items():
                out, _ = process.communicate(timeout=120)
                if number not in dead:
                    seen[number] = json.loads(out.strip().splitlines()[-1])
            alive = [number for number in range(1, HOSTS + 1) if number not in dead]
            failovers = sum(tree.stats(number)["healing.failovers"] for number in alive)
            opens = sum(tree.stats(number)["origin.opens"] for number in alive)
            tree.mounted = alive
    return seen, broken, failovers, opens


def fault_rows(row, what, seen, broken, subtree=()):
    """The bars of one fault: no error, no wrong byte, a bounded stall, others unharmed."""
    errors = sum(one["error_count"] for one in seen.values())
    wrong = sum(one["wrong"] for one in seen.values())
    stall = max(took for one in seen.values() for at, took, _ in one["reads"] if at > 0)
    rows = [
        report.exactly(f"{row}a", f"{what}: errors + wrong bytes", 0, errors + wrong),
        report.at_most(f"{row}b", "… longest stall (2 × silence + 1 s)", 3, stall, " s"),
    ]
    if subtree:
        def took(hit, others, during):
            return [
                took
                for number, one in seen.items()
                for at, took, was_hit in one["reads"]
                if at > 0 and was_hit == hit and (number not in subtree or not others)
                if (broken <= at <= broken + 3) == during
            ]

        hits = median(took(True, False, True)) / median(took(True, False, False))
        others = median(took(False, True, True)) / median(took(False, True, False))
        rows += [
            report.at_most(f"{row}c", "… hits meanwhile, over their median before", 2, hits, " ×"),
            report.at_most(f"{row}d", "… misses in other subtrees meanwhile", 2, others, " ×"),
        ]
    return rows


def below(node):
    """Node `node` (from 1) and all below it."""
    found = {node}
    for child in range(2, HOSTS + 1):
        if (child - 2) // ARITY + 1 in found:
            found.add(child)
    return found


def row13(bench):
    """Nodes that die while 32 hosts read."""

    def crash(*numbers):
        def breaks(hosts):
            for number in numbers:
                hosts.control("crash", number)
            return set(numbers)

        return breaks

    results = []
    seen, broken, failovers, _ = faults(bench, 1, crash(2))
    what = f"inner node killed and cut off while {HOSTS} hosts read ({failovers} moves)"
    results += fault_rows("13", what, seen, broken, below(2))
    seen, broken, failovers, opens = faults(bench, 2, crash(1))
    what = f"a root killed and cut off, roots = 2 ({failovers} moves)"
    results += fault_rows("14", what, seen, broken)
    half = [number for number in range(2, HOSTS // 2 + 1) if number % 2 == 0]
    seen, broken, failovers, _ = faults(bench, 1, crash(*half))
    what = f"half of the inner nodes ({len(half)}) killed at once ({failovers} moves)"
    results += fault_rows("15", what, seen, broken)

    left = ",".join(str(number) for number in range(1, HOSTS // 2 + 1))
    right = ",".join(str(number) for number in range(HOSTS // 2 + 1, HOSTS + 1))

    def part(hosts):
        hosts.control("part", left, right)
        return set()

    seen, broken, failovers, opens = faults(bench, 2, part, lambda hosts: hosts.control("mend"))
    what = f"partition into halves, roots = 2, and mend ({failovers} moves)"
    return results + fault_rows("16", what, seen, broken)


def row17(bench):
    """No false alarm while every core burns."""
    seconds, count = (60 if bench.runs < 5 else 300), 16
    burn = "while True: pass"
    with scratch_dir() as scratch, Hosts(count) as hosts:
        flags = [*TREE, *origin_flag(bench.data.base / "small")]
        with mounted(bench.copperfs, hosts, scratch, flags) as tree:
            burning = [
                subprocess.Popen([sys.executable, "-c", burn]) for _ in range(os.cpu_count())
            ]
            try:
                stop = scratch / "stop"
                start = time.time() + 6
                readers = [
                    start_reader(bench, tree, number, start, stop)
                    for number in range(1, count + 1)
                ]
                time.sleep(seconds)
                stop.touch()
                seen = [json.loads(process.communicate(timeout=300)[0]) for process in readers]
            finally:
                for process in burning:
                    process.kill()
                    process.wait()
            stats = [tree.stats(number) for number in range(1, count + 1)]
    failovers = sum(one["healing.failovers"] for one in stats)
    replays = sum(one["healing.replays"] for one in stats)
    errors = sum(one["error_count"] + one["wrong"] for one in seen)
    what = f"{count} hosts read for {seconds} s while every core burns"
    return [
        report.exactly("17a", f"{what}: false fail-overs", 0, failovers, replays=replays),
        report.exactly("17b", "… errors + wrong bytes", 0, errors),
    ]

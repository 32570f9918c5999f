"""Rows 78 to 83: images over the mount (--front erofs) against FUSE and the origin itself."""

import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from . import messages, mounts, report
from .clock import back_memory, drop_caches, median
from .data import IMPORT_ALL, IMPORT_LEAF, big_name
from .expect import touched
from .hosts import Hosts, mounted, together
from .rows_hosts import IMPORT, TREE, origin_flag, scratch_dir
from .rows_profile import record
from .rows_warm import Case, in_turns

# Rank 3 of four nodes is two hops below the root.
NODES, ARITY = 4, 2
COLD_BYTES = 1 << 30

HOSTS = 32
HOSTS_RUNS = 3

NAMES, NAMES_A_DIRECTORY = 100_000, 1000
IMPORT_TORCH = "import torch"
# After so long without a read, the kernel has been told to drop the pages of data files.
PAGES_DROPPED_S = 9


def index(bench):
    """The index of the data, in the data itself, so that every node reads it through the tree."""
    file = bench.data.base / "native.index"
    file.unlink(missing_ok=True)
    mounts.run([bench.copperfs, "index", "build", bench.data.base, "-o", file], 600)
    return file


def start_profile(bench):
    """A profile of the import, in the data as the index is."""
    file = bench.data.base / "native.profile"
    record(bench, file)
    return file


def flags(front, file, profile=None):
    """Flags of a mount. All have the index, so that fronts differ in nothing else."""
    order = ["--native-profile", profile] if profile and front != "fuse" else []
    return ["--index", f"/{mounts.PREFIX}={file}", "--front", front, *order]


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
    data, clients, walls, cpus, readers = bench.data, bench.clients, {}, {}, {}
    big = data.list("big", [big_name(data)])

    def timed(key, target, cost):
        walls.setdefault((key, target.name), []).append(cost.wall)
        cpus.setdefault((key, target.name), []).append(cost.cpu)
        readers.setdefault((key, target.name), []).append(cost.cpu - cost.daemon_cpu)

    with fronts(bench) as (native, fuse, erofs):
        warm = [bench.copperfs, "warm"]
        for _ in range(bench.runs):
            clients.loop(native, "read", big)
            timed("big", native, clients.loop(native, "read", big))
            for node in (fuse, erofs):
                clients.loop(node, "read", big)
                # At once: a virtual machine gives free memory back to its host after two seconds, and
                # getting it again takes longer than all the rest.
                drop_caches(1)
                timed("big", node, clients.loop(node, "read", big))
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
    reader = {name: times(readers, "big", name) for name in ("fuse", "erofs")}
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
        report.at_most(
            "79b", "… CPU of reader and daemon", 3, cpu["erofs"], " ×", f"fuse {cpu['fuse']:.2f}"
        ),
        report.at_most(
            "79h", "… CPU of the reader", 3, reader["erofs"], " ×", f"fuse {reader['fuse']:.2f}"
        ),
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
    data, clients = bench.data, bench.clients
    profile = start_profile(bench)
    file = index(bench)
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
                with _tree(bench, flags(front, file)) as leaf:
                    timed(key, front, clients.loop(leaf, "read", list_file))
            with _tree(bench, flags(front, file, profile)) as leaf:
                timed("import", front, clients.python(leaf, IMPORT_LEAF))
        with _tree(bench, flags("erofs", file)) as leaf:
            timed("unordered", "erofs", clients.python(leaf, IMPORT_LEAF))
        for key, list_file in orders.items():
            timed(key, "native", clients.loop(native, "read", list_file))
        timed("import", "native", clients.python(native, IMPORT_LEAF))

    def times(key, front):
        return median(walls[key, front]) / median(walls[key, "native"])

    count = data.sizes.small_files
    rows = [
        (
            "79d",
            f"leaf at depth 2, all cold, with a profile: python: {IMPORT_LEAF}, wall against native warm",
            1.4,
            "import",
        ),
        ("79e", f"… {count:,} × 20 KB in order", 6, "in order"),
        ("79f", f"… {count:,} × 20 KB in random order", 9, "random"),
    ]
    keep = {"wall_s": {" ".join(key): found for key, found in walls.items()}}
    return [
        report.at_most(row, what, bar, times(key, "erofs"), " ×", f"fuse {times(key, 'fuse'):.2f}", **keep)
        for row, what, bar, key in rows
    ] + [
        report.reported(
            "79g",
            "… the import without a profile",
            f"{median(walls['unordered', 'erofs']) / median(walls['import', 'native']):.2f} ×",
            **keep,
        )
    ]


@contextmanager
def _tree(bench, native):
    """The leaf of a tree that has read nothing but the index and the profile."""
    with mounts.cluster(bench.copperfs, bench.data, NODES, "--arity", ARITY, *native) as cluster:
        drop_caches(2)
        back_memory(COLD_BYTES)
        yield cluster.nodes[3]


def row80(bench):
    """32 hosts import the same tree at once, cold."""
    data, walls, read = bench.data, {}, {}
    profile = start_profile(bench)
    file = index(bench)
    expected = touched(data.base, IMPORT_LEAF)
    errors = []
    # The least that these processors need: all interpreters read one page cache.
    with Hosts(HOSTS) as hosts:
        for _ in range(min(bench.runs, HOSTS_RUNS) + 1):
            answers = together(hosts, IMPORT, data.base, IMPORT_LEAF)
            walls.setdefault("native", []).append(max(answer["end"] for answer in answers))
    # The first one has filled it.
    del walls["native"][0]
    for _ in range(min(bench.runs, HOSTS_RUNS)):
        for front in ("fuse", "erofs"):
            native = [*TREE, *origin_flag(data.base), *flags(front, file, profile)]
            with (
                scratch_dir() as scratch,
                Hosts(HOSTS) as hosts,
                mounted(bench.copperfs, hosts, scratch, native) as tree,
            ):
                before = _origin_bytes(tree)
                answers = together(hosts, IMPORT, tree.mountpoint / mounts.PREFIX, IMPORT_LEAF)
                after = _origin_bytes(tree)
            errors += [answer["error"] for answer in answers if answer["status"] != 0]
            walls.setdefault(front, []).append(max(answer["end"] for answer in answers))
            read.setdefault(front, []).append(after - before)
    ratio = median(walls["erofs"]) / median(walls["fuse"])
    bytes_ratio = {front: median(found) / expected.bytes for front, found in read.items()}
    herd = f"{HOSTS} hosts import {IMPORT_LEAF.removeprefix('import ')} at once, cold, with a profile"
    seconds = ", ".join(
        f"{name} {median(walls[front]):.1f} s"
        for name, front in (("image", "erofs"), ("fuse", "fuse"), ("native warm", "native"))
    )
    return [
        report.exactly("80a", f"{herd}: application errors", 0, len(errors), errors=errors[:3]),
        report.at_most("80b", "… wall of the slowest host, of FUSE", 0.6, ratio, " ×", seconds, wall_s=walls),
        report.at_most(
            "80c",
            "… bytes read of the origin, of the files that are touched",
            1.15,
            bytes_ratio["erofs"],
            " ×",
            f"fuse {bytes_ratio['fuse']:.2f}",
            read_bytes=read,
        ),
    ]


def _origin_bytes(tree):
    return sum(tree.stats(number)["origin.read_bytes"] for number in tree.mounted)


def row81(bench):
    """Memory for a tree of many files, all looked at and all read."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="copperfs-bench-names-") as scratch:
        base, file = Path(scratch) / "tree", Path(scratch) / "index"
        for number in range(0, NAMES, NAMES_A_DIRECTORY):
            directory = base / f"d{number // NAMES_A_DIRECTORY:03}"
            directory.mkdir(parents=True)
            for name in range(NAMES_A_DIRECTORY):
                (directory / f"f{name:04}.py").write_text(f"{number + name}")
        mounts.run([bench.copperfs, "index", "build", base, "-o", file], 600)
        storage = mounts.Target("native", base)
        for front in ("fuse", "erofs"):
            drop_caches(3)
            before = _memory_mib()
            with mounts.node(bench.copperfs, storage, *flags(front, f"file://{file}")) as node:
                _quietly("find", node.base, "-ls")
                walked = _memory_mib() - before
                _quietly("grep", "-r", "-c", "none", node.base)
                read = _memory_mib() - before
            found[front] = walked, read
    return [
        report.at_most(
            row,
            f"{NAMES:,} files {what}: daemon, attendant and the kernel's structures, of FUSE",
            1,
            found["erofs"][at] / found["fuse"][at],
            " ×",
            f"{found['erofs'][at]:.0f} MiB, fuse {found['fuse'][at]:.0f} MiB",
        )
        for at, (row, what) in enumerate((("81a", "looked at"), ("81b", "… and read")))
    ]


def _quietly(*command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL, check=False)
    if done.returncode > 1:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}")


def _memory_mib():
    """Memory of all processes, of the kernel's structures, and of files that can never leave memory."""
    return _meminfo_mib("AnonPages", "Slab", "Unevictable", "PageTables")


def _meminfo_mib(*keys):
    with open("/proc/meminfo") as file:
        of = {key: int(rest.split()[0]) for key, rest in (line.split(":", 1) for line in file)}
    return sum(of[key] for key in keys) / 1024


def row82(bench):
    """A start with very large shared libraries, on a leaf at depth 2."""
    tree = bench.data.base.parent / "torch"
    if not (tree / "tree" / "torch").is_dir():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", tree / "tree", "torch"]
        mounts.run([str(word) for word in install], 3000)
    storage, clients, file = mounts.Target("native", tree), bench.clients, tree / "native.index"
    file.unlink(missing_ok=True)
    profile = tree / "native.profile"
    record(bench, profile, storage, IMPORT_TORCH)
    mounts.run([bench.copperfs, "index", "build", tree, "-o", file], 600)
    clients.python(storage, IMPORT_TORCH)
    fronts = {
        "fuse": flags("fuse", file),
        "erofs": flags("erofs", file),
        "profile": flags("erofs", file, profile),
    }
    walls, cached = {}, {front: [] for front in fronts}
    for _ in range(bench.runs):
        walls.setdefault(("warm", "native"), []).append(clients.python(storage, IMPORT_TORCH).wall)
        for front, words in fronts.items():
            with mounts.cluster(bench.copperfs, storage, NODES, "--arity", ARITY, *words) as cluster:
                drop_caches(2)
                back_memory(COLD_BYTES)
                leaf = cluster.nodes[3]
                before = _meminfo_mib("Cached")
                walls.setdefault(("cold", front), []).append(clients.python(leaf, IMPORT_TORCH).wall)
                time.sleep(PAGES_DROPPED_S)
                cached[front].append(_meminfo_mib("Cached") - before)
                walls.setdefault(("warm", front), []).append(clients.python(leaf, IMPORT_TORCH).wall)
    native = median(walls["warm", "native"])
    memory = {front: median(mib) for front, mib in cached.items()}
    return [
        report.reported(
            row,
            f"leaf at depth 2, {key}: python: {IMPORT_TORCH}, wall against native warm",
            f"{median(walls[key, 'erofs']) / native:.2f} ×, "
            f"with a profile {median(walls[key, 'profile']) / native:.2f} ×, "
            f"fuse {median(walls[key, 'fuse']) / native:.2f} ×",
            wall_s={" ".join(key): found for key, found in walls.items()},
        )
        for row, key in (("82a", "warm"), ("82b", "cold"))
    ] + [
        report.reported(
            "82c",
            f"… after the cold import: files in the page cache after {PAGES_DROPPED_S} s",
            f"{memory['erofs']:.0f} MiB, with a profile {memory['profile']:.0f} MiB, fuse {memory['fuse']:.0f} MiB",
            cached_mib=cached,
        )
    ]


def row83(bench):
    """The writer of images."""
    out = mounts.run([bench.copperfs, "bench", "image", "--samples", bench.runs, "--json"], 600)
    found = json.loads(out)
    names = f"an image of {found['entries']:,} names"
    return [
        report.at_most("83a", f"{names}: sorted, laid out and written", 2, found["time_s"], " s"),
        report.at_most("83b", "… bytes for each", 128, found["bytes_per_entry"], " B"),
    ]

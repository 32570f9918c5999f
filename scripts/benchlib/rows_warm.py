"""Row 4: everything warm, CPU rate against native."""

from contextlib import ExitStack

from . import mounts, report
from .clock import median
from .data import IMPORT_ALL, big_name


def row4(bench):
    """Operations per CPU-second of client and daemon: one sample a target and run, in turns."""
    data, clients = bench.data, bench.clients
    small = data.list("small", data.small())
    middle = data.list("middle", data.middle())
    missing = data.list("missing", data.missing())
    big = data.list("big", [big_name(data)])
    tree = data.list("tree", ["tree"])
    seconds = bench.seconds

    def loop(op, list_file):
        return lambda mount: clients.loop(mount, op, list_file, seconds)

    # name, bar, what the passthrough mount must reach, run
    table = [
        ("a", "warm stat", 0.95, None, loop("stat", small)),
        ("b", "failed stat, repeated", 0.7, None, loop("missing", missing)),
        ("c", "open + read + close, 20 KB", 0.8, None, loop("read", small)),
        ("d", "open + read + close, 200 KB", 0.85, None, loop("read", middle)),
        ("e", "1 GiB sequential, 1 MiB reads", 0.8, 1.0, loop("read", big)),
        ("f", "1 GiB mmap, every page", 0.65, 1.0, loop("map", big)),
        ("g", "tree walk with lstat", 1.0, None, loop("walk", tree)),
        ("h", f"python: {IMPORT_ALL}", 0.9, None, lambda m: clients.python(m, IMPORT_ALL)),
    ]
    memory = ["--memory", bench.memory]
    results = []
    with ExitStack() as stack:
        native = mounts.native(data)
        bindfs = stack.enter_context(mounts.bindfs(data))
        plain = stack.enter_context(mounts.node(bench.copperfs, data, *memory))
        through = stack.enter_context(
            mounts.node(bench.copperfs, data, *memory, "--open", "passthrough")
        )
        for letter, what, bar, bar_through, run in table:
            targets = [native, bindfs, plain] + ([through] if bar_through else [])
            rates = in_turns(bench, targets, run)
            ratio = {id(t): median(rates[id(t)]) / median(rates[id(native)]) for t in targets}
            samples = {t.name: rates[id(t)] for t in targets[:3]}
            results.append(
                report.at_least(f"4{letter}", what, bar, ratio[id(plain)], ratio[id(bindfs)], cpu_rates=samples)
            )
            if bar_through:
                name = f"{what}, passthrough mount"
                samples = {"native": rates[id(native)], "copperfs": rates[id(through)]}
                results.append(
                    report.at_least(f"4{letter}2", name, bar_through, ratio[id(through)], cpu_rates=samples)
                )
            bench.say(results[-1])
    return results


def in_turns(bench, targets, run):
    """CPU rates by target, after one run each that warms up."""
    rates = {id(target): [] for target in targets}
    for target in targets:
        run(target)
        if isinstance(target, mounts.Node):
            target.settle()
    for turn in range(bench.runs):
        for step in range(len(targets)):
            target = targets[(turn + step) % len(targets)]
            rates[id(target)].append(run(target).cpu_rate)
    return rates

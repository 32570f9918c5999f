"""Row 4: everything warm, CPU rate against native."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from . import mounts, report
from .clock import median
from .data import IMPORT_ALL, big_name


@dataclass
class Case:
    """Something done over and over; `bar` for the ordinary mount, `through` for passthrough."""

    letter: str
    what: str
    bar: float
    op: str
    list_file: Path | None = None
    through: float | None = None

    def warm_up(self, clients, target):
        if self.op == "python":
            clients.python(target, IMPORT_ALL)
        else:
            clients.loop(target, self.op, self.list_file)

    def sample(self, clients, target, seconds):
        """CPU rate of one run, everything in the caches."""
        self.warm_up(clients, target)
        if self.op == "python":
            return clients.python(target, IMPORT_ALL).cpu_rate
        return clients.loop(target, self.op, self.list_file, seconds).cpu_rate


def cases(data):
    small = data.list("small", data.small())
    middle = data.list("middle", data.middle())
    missing = data.list("missing", data.missing())
    big = data.list("big", [big_name(data)])
    tree = data.list("tree", ["tree"])
    return [
        Case("a", "warm stat", 0.95, "stat", small),
        Case("b", "failed stat, repeated", 0.7, "missing", missing),
        Case("c", "open + read + close, 20 KB", 0.8, "read", small),
        Case("d", "open + read + close, 200 KB", 0.85, "read", middle),
        Case("e", "1 GiB sequential, 1 MiB reads", 0.8, "read", big, 1.0),
        Case("f", "1 GiB mmap, every word read", 0.65, "map", big, 1.0),
        Case("g", "tree walk with lstat", 1.0, "walk", tree),
        Case("h", f"python: {IMPORT_ALL}", 0.9, "python"),
    ]


def row4(bench):
    """Operations per CPU-second of client and daemon: one sample a target and run, in turns."""
    data = bench.data
    flags = ["--memory", bench.memory]
    results = []
    with ExitStack() as stack:
        native = mounts.native(data)
        bindfs = stack.enter_context(mounts.bindfs(data))
        plain = stack.enter_context(mounts.node(bench.copperfs, data, *flags))
        flags += ["--open", "passthrough"]
        through = stack.enter_context(mounts.node(bench.copperfs, data, *flags))
        bindfs.name, plain.name, through.name = "bindfs", "copperfs", "passthrough"
        for case in cases(data):
            targets = [native, bindfs, plain] + ([through] if case.through else [])
            rates = in_turns(bench, case, targets)
            ratio = {name: median(found) / median(rates["native"]) for name, found in rates.items()}
            row, what = f"4{case.letter}", case.what
            results.append(
                report.at_least(
                    row, what, case.bar, ratio["copperfs"], ratio["bindfs"], cpu_rates=rates
                )
            )
            if case.through:
                results.append(
                    report.at_least(
                        f"{row}2", "… passthrough mount", case.through, ratio["passthrough"]
                    )
                )
                shown = small_pages(bench, case, native, median(rates["copperfs"]))
                results.append(
                    report.reported(
                        f"{row}3", "… against native with 4 KiB pages in its cache", shown
                    )
                )
        results.append(page_tables(bench, native, bindfs, plain, through))
    return results


def in_turns(bench, case, targets):
    """CPU rates by target's name."""
    for target in targets:
        case.warm_up(bench.clients, target)
        if isinstance(target, mounts.Node):
            target.settle()
    rates = {target.name: [] for target in targets}
    for turn in range(bench.runs):
        for step in range(len(targets)):
            target = targets[(turn + step) % len(targets)]
            rates[target.name].append(case.sample(bench.clients, target, bench.seconds))
    return rates


def small_pages(bench, case, native, rate):
    """What FUSE lacks: ext4 keeps a big file in large folios, FUSE in pages (Linux 6.18). The same
    file, native, read into the page cache page by page."""
    bench.clients.loop(native, "scatter", case.list_file)
    found = [case.sample(bench.clients, native, bench.seconds) for _ in range(bench.runs)]
    bench.clients.loop(native, "gather", case.list_file)
    return f"{rate / median(found):.2f}"


def page_tables(bench, *targets):
    """Faults alone: mmap and one byte a page."""
    case = Case(
        "i",
        "1 GiB mmap, one byte a page (page faults alone)",
        0,
        "touch",
        cases(bench.data)[4].list_file,
    )
    rates = in_turns(bench, case, targets)
    ratio = {name: median(found) / median(rates["native"]) for name, found in rates.items()}
    figure = f"{ratio['copperfs']:.2f}; passthrough {ratio['passthrough']:.2f}"
    return report.reported("4i", case.what, figure, f"{ratio['bindfs']:.2f}", cpu_rates=rates)

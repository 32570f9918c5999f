"""Row 46: what reading through the data mount costs, beside the software mount and storage itself."""

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from . import messages, mounts, report
from .clock import back_memory, drop_caches, median
from .training import make_files

FILES, FILE_BYTES = 5000, 110_000


def row46(bench):
    """5,000 files of 110 KB: cold, kernel cold and kernel warm; CPU, messages and requests."""
    count = FILES // 5 if bench.quick else FILES
    origin = bench.data.base.parent / "datasets"
    directory = make_files(origin / f"cost-{count}", count, FILE_BYTES)
    paths = sorted(str(path.relative_to(origin)) for path in directory.glob("*/*.bin"))
    data = replace(bench.data, base=origin)
    files = data.list("dataset", paths)
    native = mounts.native(data)
    costs = {}
    for _ in range(bench.runs):
        once(bench, native, files, costs, "native")
        with mounts.node(bench.copperfs, data, "--memory", "2GiB") as node:
            once(bench, node, files, costs, "software")
        with data_mount(bench.copperfs, data, directory.name, 1) as nodes:
            once(bench, nodes[0], files, costs, "data")
        with data_mount(bench.copperfs, data, directory.name, 1, "--page-cache=false") as nodes:
            once(bench, nodes[0], files, costs, "uncached")
        with data_mount(bench.copperfs, data, directory.name, 2) as nodes:
            once(bench, nodes[1], files, costs, "homes")
    return rows_of(costs, count)


def once(bench, target, files, costs, name):
    """First read, a read without the kernel's pages, and one with them."""
    for state in ("first", "daemon", "kernel"):
        if state != "kernel":
            drop_caches(3)
            if name == "native":
                bench.clients.loop(target, "read", files)
            back_memory(1 << 30)
        with messages.count(target) if name != "native" else nothing() as counts:
            before = sent(target)
            cost = bench.clients.loop(target, "read", files)
            requests = sent(target) - before
        costs.setdefault((name, state), []).append((cost, counts[0], requests))


@contextmanager
def nothing():
    yield [{}]


def sent(target):
    """Requests to homes so far."""
    return target.requests() if hasattr(target, "requests") else 0


class DataMount(mounts.Target):
    """The data mount of a local node."""

    def __init__(self, node, point, pids):
        super().__init__(node.name, Path(point) / mounts.PREFIX, pids)
        self.node = node

    def requests(self):
        return self.node.stats()["datasets.requests"]


@contextmanager
def data_mount(copperfs, data, dataset, count, *flags):
    """`count` local nodes with data mounts and room for the dataset, which is declared."""
    with mounts.mount_directory() as point:
        flags = ["--memory", "2GiB", "--data-mount", point, *flags]
        with mounts.cluster(copperfs, data, count, *flags) as cluster:
            first = cluster.nodes[0].mountpoint
            add = [copperfs, "dataset", "add", dataset, f"/{mounts.PREFIX}/{dataset}"]
            mounts.run([*add, "--mount", first, "--origin-readers", "homes"])
            yield [
                DataMount(node, point / str(rank), cluster.pids())
                for rank, node in enumerate(cluster.nodes)
            ]


def rows_of(costs, count):
    """The table's rows."""

    def rate(name, state, of=lambda cost: cost.ops / cost.wall):
        return median(of(cost) for cost, _, _ in costs[name, state])

    def cpu(name, state):
        return rate(name, state, lambda cost: 1e6 * cost.cpu / cost.ops)

    rows = []
    for letter, state, what in (
        ("a", "first", "first read, storage in the page cache"),
        ("b", "daemon", "again, without the kernel's pages"),
        ("c", "kernel", "again, with them"),
    ):
        plain = rate("data", state) / rate("software", state)
        bare = rate("data", state) / rate("native", state)
        homes = rate("homes", state) / rate("software", state)
        words = f"{count:,} × 110 KB through the data mount, {what}: files a second, to the software mount"
        rows.append(
            report.reported(
                f"46{letter}",
                words,
                f"{plain:.2f}; to native {bare:.2f}; half of the homes elsewhere {homes:.2f}",
                cpu_us={name: cpu(name, state) for name in ("native", "software", "data", "homes")},
            )
        )
    rows.append(
        report.reported(
            "46d",
            "… CPU of client and daemons a file: software, data, data without page cache",
            "; ".join(
                f"{state} {cpu('software', state):.0f}, {cpu('data', state):.0f}, "
                f"{cpu('uncached', state):.0f} µs"
                for state in ("first", "daemon", "kernel")
            ),
        )
    )
    for letter, name, state in (("e", "data", "daemon"), ("f", "data", "kernel")):
        _, found, _ = costs[name, state][-1]
        each = {word: round(number / count, 2) for word, number in found.items()}
        rows.append(report.reported(f"46{letter}", f"… messages a file, {state}", str(each)))
    requests = median(number for _, _, number in costs["homes", "daemon"])
    rows.append(
        report.at_most("46g", "… requests to homes a file, two nodes", 1, requests / count)
    )
    return rows

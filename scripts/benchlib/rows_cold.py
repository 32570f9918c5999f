"""Row 5: the kernel's caches empty, the node's full; wall time against native with a warm cache."""

from contextlib import ExitStack

from . import messages, mounts, report
from .clock import back_memory, drop_caches, median
from .data import big_name


def size_of(data, list_file):
    """Bytes of all files in a list."""
    return sum((data.base / path).stat().st_size for path in list_file.read_text().splitlines())


def row5(bench):
    data, clients = bench.data, bench.clients
    small = data.list("small", data.small())
    directories = data.list("directories", data.directories())
    big = data.list("big", [big_name(data)])
    count = data.sizes.small_files
    memory = ["--memory", bench.memory]

    with ExitStack() as stack:
        native = mounts.native(data)
        bindfs = stack.enter_context(mounts.bindfs(data))
        node = stack.enter_context(mounts.node(bench.copperfs, data, *memory))
        flags = [*memory, "--open", "passthrough"]
        through = stack.enter_context(mounts.node(bench.copperfs, data, *flags))
        for file in (small, big):
            clients.loop(node, "read", file)
        # The first open finds nothing to pass through to, and starts to fetch it.
        for _ in range(3):
            clients.loop(through, "read", big)
        walls = {}
        reads = {"listed": [], "unlisted": []}

        def timed(key, target, file):
            back_memory(size_of(data, file))
            cost = clients.loop(target, "read", file)
            walls.setdefault(key, []).append(cost.wall)

        for _ in range(bench.runs):
            drop_caches(3)
            # The origin's pages back in: both sides have the bytes in memory, neither in its mount.
            clients.loop(native, "read", small)
            timed("native small", native, small)
            clients.loop(bindfs, "list", directories)
            timed("bindfs listed", bindfs, small)

            clients.loop(node, "list", directories)
            node.settle()
            with messages.count(node) as counts:
                timed("listed", node, small)
            reads["listed"].append(counts[0])

            drop_caches(3)
            clients.loop(native, "read", small)
            timed("bindfs unlisted", bindfs, small)
            with messages.count(node) as counts:
                timed("unlisted", node, small)
            reads["unlisted"].append(counts[0])

            drop_caches(3)
            clients.loop(native, "read", big)
            timed("native big", native, big)
            timed("bindfs big", bindfs, big)
            timed("big", node, big)
            timed("through", through, big)

    def ratio(of, to):
        return median(walls[to]) / median(walls[of])

    def most(which, op):
        return max(found[op] for found in reads[which])

    shown = {which: messages.shown(found[-1]) for which, found in reads.items()}
    return [
        report.at_least(
            "5a",
            f"{count:,} × 20 KB after a listing (push), wall",
            0.8,
            ratio("listed", "native small"),
            ratio("bindfs listed", "native small"),
            wall_s=walls,
            messages=shown,
        ),
        report.exactly("5b", "… READ messages, most of all runs", 0, most("listed", "read")),
        report.reported(
            "5c",
            f"{count:,} × 20 KB without a listing, wall ratio",
            f"{ratio('unlisted', 'native small'):.2f}",
            f"{ratio('bindfs unlisted', 'native small'):.2f}",
            messages=shown,
        ),
        report.at_most(
            "5d", "… READ messages a file, most of all runs", 1, most("unlisted", "read") / count
        ),
        report.at_least(
            "5e",
            "1 GiB sequential, wall",
            0.3,
            ratio("big", "native big"),
            ratio("bindfs big", "native big"),
        ),
        report.reported(
            "5f",
            "… passthrough mount: wall ratio",
            f"{ratio('through', 'native big'):.2f}",
        ),
    ]

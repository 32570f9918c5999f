"""Row 73: hints, pushes into the kernel's page cache, and reads by 16 processes, while the caches are dropped."""

import json
import sys
from pathlib import Path

from . import mounts, report

SECONDS = 60
JOB = Path(__file__).with_name("drop_caches_job.py")
FUSE_THREADS = 4


def row73(bench):
    """A node whose software mount pushes small files, and whose data mount has the same ones as a dataset."""
    seconds = SECONDS // 4 if bench.quick else SECONDS
    with mounts.mount_directory() as data:
        flags = ["--fuse-threads", FUSE_THREADS, "--memory", "1GiB", "--data-mount", data]
        with mounts.node(bench.copperfs, bench.data, *flags) as node:
            dataset = ["dataset", "add", "small", f"/{mounts.PREFIX}/small", "--mount", node.mountpoint]
            mounts.run([bench.copperfs, *dataset])
            before = node.stats()
            command = [sys.executable, JOB, bench.data.base, node.base, data / mounts.PREFIX, seconds]
            said = json.loads(mounts.run(command, timeout=seconds + 120))
            after = node.stats()
    return rows_of(seconds, said, {key: after[key] - before.get(key, 0) for key in after if is_count(key)})


def is_count(key):
    """Whether a counter of the node is of pushes or of messages."""
    return key.startswith("push.software.") or key.endswith((".requests.read", ".requests.forget"))


def rows_of(seconds, said, counters):
    """The table's rows."""
    pushed = counters["push.software.files"]
    what = f"16 readers for {seconds} s with hints and {pushed:,} pushes, while caches are dropped: hung processes"
    figures = f"{said['reads']:,}, {said['hints']:,} and {said['drops']:,}; {said['longest_ms']:,} ms"
    return [
        report.exactly("73a", what, 0, said["hung"], counters=counters),
        report.exactly("73b", "… errors + wrong bytes", 0, said["errors"] + said["wrong"]),
        report.reported("73c", "… reads, hints and drops; the longest read", figures),
        report.at_least("73d", "… pushes a second", 100, pushed / seconds),
    ]

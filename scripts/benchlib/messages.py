"""Counts FUSE messages where the kernel sends them, not where a daemon says it received them.

The kernel's tracepoint fuse:fuse_request_send, in a trace instance of its own. FORGETs have no
request and are not seen; they need no answer either.
"""

import os
import re
import stat
import subprocess
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

LINE = re.compile(r"connection (\d+) .*\(FUSE_(\w+)\)")
BUFFER_KIB_PER_CPU = 32768


class Messages(Counter):
    """Messages by operation (lower case)."""

    def __add__(self, other):
        return Messages(super().__add__(other))


@contextmanager
def tracefs():
    """The trace file system, mounted for as long as it is needed."""
    for path in ("/sys/kernel/tracing", "/sys/kernel/debug/tracing"):
        if Path(path, "instances").exists():
            yield Path(path)
            return
    with tempfile.TemporaryDirectory() as path:
        subprocess.run(["mount", "-t", "tracefs", "tracefs", path], check=True)
        try:
            yield Path(path)
        finally:
            subprocess.run(["umount", path], check=True)


def devices(target):
    """The device numbers of a target's mount, and of what its images are read from."""
    # An image may lie over the data itself.
    yield os.stat(getattr(target, "mountpoint", target.base)).st_dev
    for daemon in target.pids():
        for children in Path(f"/proc/{daemon}/task").glob("*/children"):
            for child in children.read_text().split():
                if Path(f"/proc/{child}/comm").read_text().strip() == "copperfs-attend":
                    files = [file.stat() for file in Path(f"/proc/{child}/fd").iterdir()]
                    yield from {file.st_dev for file in files if stat.S_ISDIR(file.st_mode)}


@contextmanager
def count(*targets):
    """Counts what the kernel sends to each target's daemon: [Messages, …], filled at the end."""
    counts = [Messages() for _ in targets]
    by_device = {
        os.minor(device): n
        for target, n in zip(targets, counts, strict=True)
        for device in devices(target)
    }
    with tracefs() as trace:
        instance = trace / "instances" / f"copperfs-bench-{os.getpid()}"
        instance.mkdir()
        try:
            (instance / "buffer_size_kb").write_text(str(BUFFER_KIB_PER_CPU))
            event = instance / "events/fuse/fuse_request_send"
            (event / "enable").write_text("1")
            yield counts
            (event / "enable").write_text("0")
            for stats in instance.glob("per_cpu/cpu*/stats"):
                if "overrun: 0\n" not in stats.read_text():
                    raise RuntimeError("the trace buffer overflowed: counts would be too low")
            with open(instance / "trace") as lines:
                for line in lines:
                    match = LINE.search(line)
                    if match and int(match[1]) in by_device:
                        by_device[int(match[1])][match[2].lower()] += 1
        finally:
            instance.rmdir()


def shown(messages):
    """`3 lookup, 1 read`, largest first."""
    return ", ".join(f"{count} {name}" for name, count in messages.most_common()) or "none"

"""What is compared: the origin itself, bindfs, copperfs alone and copperfs in a tree.

Each is a context manager with `base` (where the data is), `pids()` (whose CPU time counts) and a
`name`. Every mount is taken away again, also when a row fails.
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from .clock import wait_until

PREFIX = "bench"
BINDFS_OPTIONS = "ro,kernel_cache,entry_timeout=86400,attr_timeout=86400,negative_timeout=86400"


class Target:
    """A place to read from."""

    def __init__(self, name, base, pids=()):
        self.name, self.base, self._pids = name, Path(base), list(pids)

    def pids(self):
        return self._pids


class Node(Target):
    """A mounted copperfs node."""

    def __init__(self, copperfs, name, mountpoint):
        super().__init__(name, mountpoint / PREFIX)
        self.copperfs, self.mountpoint = copperfs, mountpoint
        self._pids = [self.stats()["pid"]]

    def stats(self):
        """The node's counters, flat: {"origin.opens": 3, …}."""
        out = run([self.copperfs, "stats", self.mountpoint, "--json"])
        return dict(flatten(json.loads(out)))

    def settle(self):
        """Waits until nothing is left to push."""
        wait_until(lambda: self.stats().get("push.software.pending", 0) == 0, 60, "the push")


class Cluster(Target):
    """Local nodes in a tree; `base` is the last one's."""

    def __init__(self, copperfs, mountpoint, count):
        self.nodes = [
            Node(copperfs, f"node {rank}", mountpoint / str(rank)) for rank in range(count)
        ]
        super().__init__("cluster", self.nodes[-1].base)

    def pids(self):
        return [pid for node in self.nodes for pid in node.pids()]


def flatten(value, prefix=""):
    """Nested objects as dotted keys."""
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from flatten(inner, f"{prefix}{key}.")
        else:
            yield prefix + key, inner


def run(command, timeout=120):
    """Runs a command and returns what it printed; its own words when it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode != 0:
        words = " ".join(str(word) for word in command)
        raise RuntimeError(f"{words}: status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def native(data):
    """The origin itself."""
    return Target("native", data.base)


@contextmanager
def bindfs(data):
    """bindfs with the page cache kept and long time-outs: the best it can do."""
    with mount_directory() as mountpoint:
        command = ["bindfs", "-f", "-o", BINDFS_OPTIONS, data.base, mountpoint]
        try:
            process = subprocess.Popen(command)
        except FileNotFoundError:
            sys.exit("bench: no bindfs; try: apt-get install bindfs")
        try:
            wait_until(lambda: os.path.ismount(mountpoint), 10, "bindfs's mount")
            yield Target("bindfs", mountpoint, [process.pid])
        finally:
            subprocess.run(["umount", "-l", mountpoint], check=False)
            process.terminate()
            process.wait(10)


@contextmanager
def node(copperfs, data, *flags):
    """One node that is its own root."""
    with mount_directory() as mountpoint:
        try:
            run([copperfs, "mount", mountpoint, *serving(data), *flags])
            yield Node(copperfs, "copperfs", mountpoint)
        finally:
            unmount(copperfs, mountpoint)


@contextmanager
def cluster(copperfs, data, count, *flags):
    """`count` local nodes, each its own daemon and mount."""
    with mount_directory() as mountpoint:
        try:
            launch = [copperfs, "launch", "--hosts", f"local:{count}", *serving(data), *flags]
            run([*launch, mountpoint])
            yield Cluster(copperfs, mountpoint, count)
        finally:
            unmount(copperfs, mountpoint, "--all")


def serving(data):
    """Flags that serve the data; its parents may be excluded by default."""
    return ["--origin", f"/{PREFIX}=file://{data.base}", "--exclude", ""]


def unmount(copperfs, mountpoint, *flags):
    """Unmounts; a row's own error is not hidden by a failure here."""
    try:
        run([copperfs, "unmount", "--force", mountpoint, *flags])
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"bench: {error}", file=sys.stderr)
        for path in [mountpoint, *mountpoint.iterdir()]:
            if os.path.ismount(path):
                subprocess.run(["umount", "-l", path], check=False)


@contextmanager
def mount_directory():
    """A fresh directory that goes away, but never with anything mounted below it."""
    path = Path(tempfile.mkdtemp(prefix="copperfs-bench-"))
    try:
        yield path
    finally:
        for inner in [*path.iterdir(), path]:
            try:
                inner.rmdir()
            except OSError as error:
                print(f"bench: {inner} stays: {error}", file=sys.stderr)

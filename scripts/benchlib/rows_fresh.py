"""Row 30: how long after `copperfs clear` the last of 32 hosts sees new content."""

import json
import subprocess
import sys
import time

from . import report
from .clock import median
from .hosts import Hosts, mounted
from .rows_hosts import ARITY, HOSTS, TREE, origin_flag, scratch_dir

# Reads one file over and over and says when its content has changed, by the clock that all hosts share.
WATCHER = """
import os, sys, time
path, ended = sys.argv[1], time.time() + 60
def read():
    try:
        with open(path) as file: return file.read()
    except OSError: return None
before = read()
print(before, flush=True)
while time.time() < ended:
    sys.stdin.readline()
    while (now := read()) in (before, None) and time.time() < ended: time.sleep(0.02)
    print(time.time(), flush=True)
    before = now
"""
BAR_SECONDS = 1.0


def row30(bench):
    """A file is replaced, `clear PATH` is run on a leaf, and every host watches the file."""
    walls, commands = [], []
    with scratch_dir() as scratch, Hosts(HOSTS) as hosts:
        origin = scratch / "origin"
        (origin / "dir").mkdir(parents=True)
        for number in range(200):
            (origin / "dir" / f"beside_{number}").write_text("beside")
        file = origin / "dir" / "file"
        file.write_text("0")
        time.sleep(2.1)  # until its times tell one version from the next
        flags = [*TREE, *origin_flag(origin)]
        with mounted(bench.copperfs, hosts, scratch, flags) as tree:
            watchers = watch(hosts, tree.mountpoint / "bench/dir/file")
            try:
                for turn in range(1, bench.runs + 1):
                    wall, command = one_turn(bench, hosts, tree, watchers, file, turn)
                    walls.append(wall)
                    commands.append(command)
            finally:
                for watcher in watchers:
                    watcher.kill()
                    watcher.wait(timeout=10)
    what = f"`clear PATH` seen on all of {HOSTS} hosts, arity {ARITY}"
    detail = {"walls": walls, "commands": commands}
    return [
        report.at_most("30a", what, BAR_SECONDS, median(walls), " s", **detail),
        report.reported("30b", "… the command itself", f"{median(commands):.2f} s"),
    ]


def watch(hosts, path):
    """A watcher on every host, each of which has read the file."""
    watchers = [
        hosts.start(number, sys.executable, "-u", "-c", WATCHER, path, stdin=subprocess.PIPE)
        for number in range(1, hosts.count + 1)
    ]
    for watcher in watchers:
        if watcher.stdout.readline().strip() != "0":
            raise RuntimeError("a host does not see the file")
    return watchers


def one_turn(bench, hosts, tree, watchers, file, turn):
    """Seconds from the command's start to the last host's sight, and to the command's end."""
    file.write_text(str(turn) * (turn + 1))
    for watcher in watchers:
        watcher.stdin.write("\n")
        watcher.stdin.flush()
    time.sleep(0.5)
    begun = time.time()
    words = [bench.copperfs, "clear", "--mount", tree.mountpoint, "/bench/dir"]
    hosts.output(hosts.count, *words)
    command = time.time() - begun
    seen = [json.loads(watcher.stdout.readline()) for watcher in watchers]
    return max(seen) - begun, command

"""Row 68: what a take-over costs, and how long it takes with many names known."""

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from . import report
from .clock import DaemonClock, drop_caches, median, wait_until
from .mounts import flatten, mount_directory, run, unmount
from .rows_data_mount import data_mount
from .rows_sampling import origin_of
from .training import make_files

FILES = 99
WALKED, KNOWN, READ = 3_000, 10_000, 100
"""Directories, each with its files: of the walk that is compared, of the take-over, and of the warm reads."""
ITEMS, ITEM_BYTES = 5_000, 110_000
"""Files of the data mount."""
MEMORY = ["--memory", "4GiB"]
"""So that all names are kept."""


def row68(bench):
    """A cold walk and warm reads with and without a journal, and a daemon that dies with a million names."""
    origin = make_names(origin_of(bench))
    plain, journaled, bytes_each = [], [], []
    for turn in range(bench.runs):
        for takeover in ["false", "true"] if turn % 2 == 0 else ["true", "false"]:
            cpu, held = walk(bench, origin, [f"--takeover={takeover}"])
            (journaled if takeover == "true" else plain).append(cpu)
            if takeover == "true":
                bytes_each.append(held / (WALKED * (FILES + 1)))
            print(f"  --takeover={takeover}: {cpu:.3f} s of the daemon", flush=True)
    gone = [die(bench, origin) for _ in range(bench.runs)]
    names = WALKED * (FILES + 1)
    # By pairs, because the machine may become slower in the middle.
    more = 100 * (median(with_it / without for with_it, without in zip(journaled, plain)) - 1)
    return [
        report.at_most(
            "68a", f"cold walk of {names:,} names, {bench.runs} runs: more CPU of the daemon that keeps a journal",
            2, more, " %", plain=plain, journaled=journaled,
        ),
        report.at_most("68b", "… the journal, for each name", 64, median(bytes_each), " B"),
        report.at_most(
            "68c", f"{KNOWN * (FILES + 1):,} names known: from the death of the daemon until a file is read",
            1, median(one["seconds"] for one in gone), " s", runs=gone,
        ),
        report.exactly("68d", "… LOOKUPs of a walk after it", 0, max(one["lookups"] for one in gone)),
        *warm_rows(bench, origin),
    ]  # fmt: skip


def warm_rows(bench, origin):
    """Reads that the daemon answers from its memory."""
    rows = []
    reads = {
        "68e": (f"warm reads of {READ * FILES:,} files without the kernel's pages", lambda flag: reread(bench, origin, flag)),
        "68f": (f"… of {ITEMS:,} items of 110 KB through the data mount, for a job", lambda flag: reread_items(bench, flag)),
    }  # fmt: skip
    for row, (what, read) in reads.items():
        pairs, written = [], []
        for turn in range(bench.runs):
            cpu = {}
            for takeover in ["false", "true"] if turn % 2 == 0 else ["true", "false"]:
                cpu[takeover], grown = read(f"--takeover={takeover}")
                print(f"  {row} --takeover={takeover}: {1e6 * cpu[takeover]:.1f} µs a read", flush=True)
                if takeover == "true":
                    written.append(grown)
            pairs.append(cpu)
        more = 100 * (median(pair["true"] / pair["false"] for pair in pairs) - 1)
        figure = f"{median(written):.2f} B; {more:.1f} %"
        words = f"{what}: bytes written to the journal for each, and more CPU of the daemon"
        rows.append(report.reported(row, words, figure, cpu=pairs))
    return rows


def make_names(base):
    """A million names; made once."""
    origin, mark = base / "names", base / "names.made"
    if not mark.exists():
        shutil.rmtree(origin, ignore_errors=True)
        for number in range(KNOWN):
            directory = origin / f"part-{number:05}"
            directory.mkdir(parents=True)
            for file in range(FILES):
                (directory / f"image-{number:05}-{file:02}").write_bytes(b"0123456789")
        mark.write_text("")
        time.sleep(2.1)  # until their times tell one version from the next
    return origin


class Mounted:
    """A node with the names, whose daemon may be another one by now."""

    def __init__(self, bench, point):
        self.copperfs, self.point = bench.copperfs, point

    def stats(self):
        shown = run([self.copperfs, "stats", self.point, "--json"])
        return dict(flatten(json.loads(shown)))

    def pid(self):
        return self.stats()["pid"]

    def walk(self, directories):
        """Lists so many directories, with attributes."""
        parts = [self.point / "names" / f"part-{number:05}" for number in range(directories)]
        for first in range(0, len(parts), 1000):
            command = ["find", *parts[first : first + 1000], "-size", "-1"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def mounted(bench, origin, point, flags):
    # The kernel keeps names of files that are younger than the clock skew for a second only.
    flags = ["--origin", f"/names=file://{origin}", "--exclude", "", "--clock-skew", "0s", *MEMORY, *flags]
    run([bench.copperfs, "mount", point, *flags])
    return Mounted(bench, point)


def walk(bench, origin, flags):
    """CPU seconds of the daemon for a cold walk, and the bytes of its journal."""
    with mount_directory() as point:
        try:
            node = mounted(bench, origin, point, flags)
            drop_caches(2)
            pid = node.pid()
            with DaemonClock([pid]) as clock:
                node.walk(WALKED)
            return clock.cpu, journal_bytes(pid)
        finally:
            unmount(bench.copperfs, point)


def reread(bench, origin, flag):
    """CPU seconds of the daemon for each read of a file that it has, and the bytes written to the journal for each."""
    with mount_directory() as point:
        try:
            node = mounted(bench, origin, point, [flag])
            node.walk(READ)
            files = [file for number in range(READ) for file in (point / "names" / f"part-{number:05}").iterdir()]
            for file in files:
                file.read_bytes()
            return warm([node.pid()], lambda: [file.read_bytes() for file in files], len(files))
        finally:
            unmount(bench.copperfs, point)


def reread_items(bench, flag):
    """The same through the data mount."""
    base = origin_of(bench)
    directory = make_files(base / f"cost-{ITEMS}", ITEMS, ITEM_BYTES)
    data = replace(bench.data, base=base)
    items = data.list("dataset", sorted(str(path.relative_to(base)) for path in directory.glob("*/*.bin")))
    with data_mount(bench.copperfs, data, directory.name, 1, flag) as [target]:
        bench.clients.loop(target, "read", items)
        return warm(target.pids(), lambda: bench.clients.loop(target, "read", items), ITEMS)


def warm(pids, read, count):
    """CPU seconds and bytes written to the journal for each of `count` reads without the kernel's pages."""
    drop_caches(1)
    before = journal_length(pids[0])
    with DaemonClock(pids) as clock:
        read()
    # Records of jobs are written within a second.
    time.sleep(1.2)
    return clock.cpu / count, (journal_length(pids[0]) - before) / count


def journal_bytes(pid):
    """The memory of a daemon's journal."""
    status = journal(pid)
    return status.st_blocks * 512 if status else 0


def journal_length(pid):
    """The bytes that were written to it."""
    status = journal(pid)
    return status.st_size if status else 0


def journal(pid):
    """The status of the journal's memory file."""
    entries = Path(f"/proc/{pid}/fd").iterdir()
    # The values beside it, which are short, are in files of the same name.
    files = [os.stat(entry) for entry in entries if "copperfs-journal" in os.readlink(entry)]
    return max(files, key=lambda status: status.st_blocks, default=None)


def die(bench, origin):
    """The daemon dies with a million names. How long a reader waits, and the LOOKUPs of a walk after it."""
    with mount_directory() as point:
        try:
            node = mounted(bench, origin, point, [])
            node.walk(KNOWN)
            pid = node.pid()
            held = journal_bytes(pid)
            file = point / "names" / f"part-{KNOWN - 1:05}" / f"image-{KNOWN - 1:05}-00"
            begun = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            file.read_bytes()
            seconds = time.monotonic() - begun
            wait_until(lambda: node.pid() != pid, 10, "another daemon")
            before = node.stats()["fuse.software.requests.lookup"]
            node.walk(KNOWN)
            after = node.stats()["fuse.software.requests.lookup"]
            ran = {"seconds": seconds, "lookups": after - before, "journal": held}
            print(f"  dead: {ran}", flush=True)
            return ran
        finally:
            unmount(bench.copperfs, point)

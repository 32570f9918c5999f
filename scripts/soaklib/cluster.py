"""The cluster: nodes with a mount and a store each, and the faults and clears made on them."""

import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Process, SimpleQueue
from pathlib import Path

from .content import POOL_BYTES, Table, Words
from .faults import AFTERMATH_S, FILES_HANG, ROOT_DOWN, Faults
from .origin import DIRECTORIES, FILES, Origin, directory_of
from .reader import Holder, Reader

MEMORY_MIB = 64
DISK = "32MiB"
REQUEST_TIMEOUT_S = 8
NODE_FLAGS = [
    "--memory", f"{MEMORY_MIB}MiB", "--request-timeout", f"{REQUEST_TIMEOUT_S}s", "--arity", "2",
    # The stores are used on a nearly full disk too.
    "--disk-reserve", "0%",
    # A node that is killed stays away until it is started again.
    "--takeover=false",
]  # fmt: skip
# Concurrent clears, each from its own process.
STORM = 16
# The node whose disk hangs at times. This node and the last one are not killed.
HANGING_DISK = 1


class Soak:
    """The cluster, and the faults and clears made on it."""

    def __init__(self, options, directory):
        self.options, self.directory, nodes = options, directory, options.nodes
        self.draw = random.Random(f"{options.seed}/trouble")
        self.pool = random.Random(f"{options.seed}/pool").randbytes(POOL_BYTES)
        self.table = Table(FILES)
        self.up, self.lives, self.done = (Words(nodes, "Q") for _ in range(3))
        self.stop = Words(1, "Q")
        self.faults = Faults()
        self.pids = [0] * nodes
        # When a killed node was last mounted again.
        self.killed = -AFTERMATH_S
        self.counts = Counter()
        self.found = []
        self.origin = Origin(directory, self.table, self.pool, self.draw, self.faults)
        self.disk, self.disk_hangs_until = None, None
        sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(nodes)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        self.hosts = ",".join(f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)
        for one in sockets:
            one.close()
        secret = directory / "secret"
        secret.touch(0o600)
        secret.write_text(secrets.token_hex(32) + "\n")
        for rank in range(nodes):
            self.point(rank).mkdir(parents=True)
        for rank in range(nodes):
            self.disk_of(rank).mkdir(parents=True)
        (directory / "behind-disk").mkdir()

    def point(self, rank):
        return self.directory / "mnt" / str(rank)

    def disk_of(self, rank):
        return self.directory / "disks" / str(rank)

    def set_up_disk(self):
        """A disk that can be made to hang."""
        at = self.disk_of(HANGING_DISK)
        self.disk = subprocess.Popen(
            ["bindfs", "-f", "--no-allow-other", self.directory / "behind-disk", at],
            stdout=subprocess.DEVNULL,
        )
        while not os.path.ismount(at):
            if self.disk.poll() is not None:
                raise RuntimeError("bindfs does not mount")
            time.sleep(0.01)

    def hang_disk(self):
        """Makes the disk of a node hang for some seconds: no reader may get an error."""
        if self.disk_hangs_until is None:
            self.disk.send_signal(signal.SIGSTOP)
            self.disk_hangs_until = time.monotonic() + self.draw.uniform(1, 10)
        return "hang.disk"

    def tend_disk(self):
        """Ends the hang when its time is over."""
        if self.disk_hangs_until and time.monotonic() > self.disk_hangs_until:
            self.disk.send_signal(signal.SIGCONT)
            self.disk_hangs_until = None

    def copperfs(self, *words, timeout=60):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("COPPERFS_")}
        return subprocess.run(
            [str(word) for word in (self.options.copperfs, *words)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environment,
            check=False,
        )

    def start(self, rank):
        said = self.copperfs(
            "mount", "--hosts", self.hosts, "--rank", rank, *NODE_FLAGS,
            "--secret-file", self.directory / "secret",
            "--origin", f"/=file://{self.directory / 'origin'}", "--exclude", "",
            "--disk", f"{self.directory / 'disks'}/{{rank}}:{DISK}",
            self.point(rank),
        )  # fmt: skip
        if said.returncode != 0:
            raise RuntimeError(f"rank {rank} does not mount: {said.stderr}")
        self.pids[rank] = int(said.stdout.split("(pid ")[1].split(",")[0])
        self.lives[rank] += 1
        self.up[rank] = 1

    def lives_on(self, rank):
        try:
            comm = Path(f"/proc/{self.pids[rank]}/comm").read_text()
            return comm.strip() == Path(self.options.copperfs).name[:15]
        except OSError:
            return False

    def kill(self):
        """Kills a node and starts it again."""
        # The last rank runs from beginning to end, so that leaks have time to show.
        ranks = [rank for rank in range(self.options.nodes - 1) if rank != HANGING_DISK]
        rank = self.draw.choice(ranks)
        if rank == 0:
            self.faults.begin(ROOT_DOWN)
        self.up[rank] = 0
        os.kill(self.pids[rank], signal.SIGKILL)
        while self.lives_on(rank):
            time.sleep(0.01)
        time.sleep(self.draw.random() * 0.7)
        if self.draw.random() < 0.2:
            (self.disk_of(rank) / "index.log").unlink(missing_ok=True)
        self.start(rank)
        self.killed = time.monotonic()
        if rank == 0:
            self.faults.end(ROOT_DOWN)
        return "kill.root" if rank == 0 else "kill"

    def clear(self):
        """Clears a directory or everything, on all nodes, or on one, which guarantees less."""
        act, floors = self.one_clear(self.draw.random() < 0.5)
        said = act()
        if said.returncode == 0:
            self.raise_floors(floors)
        elif not self.clear_may_fail():
            self.found.append(f"a clear failed: {said.stderr}")
        return ("clear.cluster" if floors else "clear.node") if said.returncode == 0 else "clear.failed"

    def clear_storm(self):
        """Makes many concurrent clears."""
        acts = [self.one_clear(True) for _ in range(STORM)]
        with ThreadPoolExecutor(STORM) as pool:
            said = list(pool.map(lambda act: act[0](), acts))
        for one, (_, floors) in zip(said, acts, strict=True):
            if one.returncode == 0:
                self.raise_floors(floors)
            elif not self.clear_may_fail():
                self.found.append(f"a clear in a storm failed: {one.stderr}")
        return "clear.storm"

    def one_clear(self, cluster):
        """Returns a function that clears, and the oldest versions that may be read after it."""
        everything = self.draw.random() < 0.5
        directory = self.draw.randrange(len(DIRECTORIES))
        point = self.point(self.draw.randrange(self.options.nodes))
        words = ["--everything", point] if everything else [point / DIRECTORIES[directory]]
        floors = {}
        if cluster:
            cleared = (file for file in range(FILES) if everything or directory_of(file) == directory)
            floors = {file: self.table.head(file)[0] for file in cleared}
        else:
            words.append("--this-node")
        return lambda: self.copperfs("clear", *words), floors

    def raise_floors(self, floors):
        for file, floor in floors.items():
            self.table.raise_floor(file, floor)
            self.table.cleared[file] = time.monotonic()

    def clear_may_fail(self):
        """Whether a clear may fail. It reaches all nodes, so it may fail after one of them was down. It
        waits for pages that kernels are reading, so hanging files may delay it for too long."""
        now = time.monotonic()
        return now < self.killed + AFTERMATH_S or self.faults.explains(FILES_HANG, now)

    def measure(self):
        """Each daemon's memory in MiB, descriptors, threads and starts. Memory is what the daemon holds,
        without the pages of the program, which make up a third of a debug build's."""
        rows = []
        for rank, pid in enumerate(self.pids):
            status = dict(
                line.split(":", 1)
                for line in Path(f"/proc/{pid}/status").read_text().splitlines()
                if ":" in line
            )
            rows.append(
                (
                    sum(int(status[kind].split()[0]) for kind in ("RssAnon", "RssShmem")) // 1024,
                    len(os.listdir(f"/proc/{pid}/fd")),
                    int(status["Threads"]),
                    self.lives[rank],
                )
            )
        return rows

    def run(self):
        self.origin.set_up()
        self.set_up_disk()
        for rank in range(self.options.nodes):
            self.start(rank)
        results = SimpleQueue()
        share = self.options.ops // self.options.nodes
        readers = [
            Process(target=Reader(self, rank).run, args=(share, results), daemon=True)
            for rank in range(self.options.nodes)
        ]
        holders = [
            Process(target=Holder(self, rank).run, args=(0, results), daemon=True)
            for rank in range(0, self.options.nodes, 2)
        ]
        self.began = time.monotonic()
        for process in readers + holders:
            process.start()
        try:
            self.make_trouble(readers)
        finally:
            self.stop[0] = 1
        seconds = time.monotonic() - self.began
        total = Counter()
        wrong_count = 0
        for _ in readers + holders:
            rank, counts, wrong, number = results.get()
            total.update(counts)
            wrong_count += number
            self.found += wrong
        for process in readers + holders:
            process.join()
        return total, wrong_count, seconds

    def make_trouble(self, readers):
        options = self.options
        steps = {
            self.origin.change: 40,
            self.clear: 800,
            self.clear_storm: max(1, min(20_000, options.ops // 2)),
            self.kill: max(1, min(5000, options.ops // 3)),
            self.origin.swap_image: max(1, min(4000, options.ops // 4)),
            self.origin.hang: max(1, min(15_000, options.ops // 3)),
            self.hang_disk: max(1, min(15_000, options.ops // 3)),
        }
        due = dict(steps)
        self.warm = None
        while any(reader.is_alive() for reader in readers):
            done = sum(self.done.view)
            if options.minutes and time.monotonic() - self.began > options.minutes * 60:
                return
            if self.warm is None and done > options.ops // 5:
                self.warm = self.measure()
            self.origin.tend()
            self.tend_disk()
            for act, every in steps.items():
                if done >= due[act]:
                    # Missed actions are not made up for.
                    due[act] = max(due[act] + every, done - every)
                    self.counts[act()] += 1
            for rank in range(options.nodes):
                if self.up[rank] and not self.lives_on(rank):
                    self.found.append(f"rank {rank} died by itself")
                    return
            if any(reader.exitcode not in (None, 0) for reader in readers):
                self.found.append("a reader died")
                return
            time.sleep(0.005)

    def take_down(self):
        """Unmounts everything, in any state."""
        if self.disk:
            self.disk.send_signal(signal.SIGCONT)
        for rank in reversed(range(self.options.nodes)):
            if self.pids[rank] and self.copperfs("unmount", "--force", self.point(rank)).returncode != 0:
                print(f"soak: rank {rank} had to be unmounted by force", file=sys.stderr)
                subprocess.run(["umount", "-l", self.point(rank)], check=False)
        if self.disk:
            subprocess.run(["umount", "-l", self.disk_of(HANGING_DISK)], check=False)
            self.disk.terminate()
            self.disk.wait(timeout=30)
        self.origin.take_down()

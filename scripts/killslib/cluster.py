"""The cluster: nodes with two mounts each, whose daemons die in several ways."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from . import load
from .group import Group

# How long a daemon may take to be followed by another one.
SUCCESSOR_S = 30.0
# How long clears may fail after a death.
CLEAR_S = 10.0
FLAGS = ["--takeover", "--arity", "2", "--memory", "64MiB", "--page-cache=false", "--clock-skew", "1s"]
DATASET = '[[dataset]]\nname = "set"\npath = "/small"\nbudget = "4MB"\n'


class Cluster:
    """See the module."""

    def __init__(self, options, directory):
        self.options, self.directory = options, directory
        self.origin = directory / "origin"
        self.faults, self.readers = [], []
        self.clears, self.clears_failed, self.version = 0, 0, 0
        self.groups = []
        self.began = 0.0

    def point(self, rank):
        return self.directory / "mnt" / str(rank)

    def data(self, rank):
        return self.directory / "data" / str(rank)

    def copperfs(self, *words, timeout=60):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("COPPERFS_")}
        return subprocess.run(
            [str(word) for word in (self.options.copperfs, *words)],
            capture_output=True, text=True, timeout=timeout, env=environment, check=False,
        )  # fmt: skip

    def start(self):
        """Mounts all nodes, and starts their readers."""
        load.make(self.origin)
        # Until the times of the files tell one version from the next.
        time.sleep(2.1)
        self.programs = [self.directory / f"copperfs-{number}" for number in range(2)]
        for program in self.programs:
            shutil.copy(self.options.copperfs, program)
        (self.directory / "config.toml").write_text(DATASET)
        secret = self.directory / "secret"
        secret.touch(0o600)
        secret.write_text(secrets.token_hex(32) + "\n")
        sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(self.options.nodes)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        self.hosts = ",".join(f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)
        for one in sockets:
            one.close()
        for rank in range(self.options.nodes):
            self.mount(rank)
        for rank in range(self.options.nodes):
            environment = dict(os.environ, COPPERFS_JOB="train", PYTHONDONTWRITEBYTECODE="1")
            command = [
                sys.executable, Path(load.__file__), self.point(rank), self.origin,
                "--data", self.data(rank), "--pause", str(self.options.pause),
            ]  # fmt: skip
            reader = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            )  # fmt: skip
            self.readers.append(reader)
        for reader in self.readers:
            if reader.stdout.readline().strip() != "reading":
                raise RuntimeError("a reader does not begin")
        self.began = time.monotonic()

    def mount(self, rank):
        self.point(rank).mkdir(parents=True)
        self.data(rank).mkdir(parents=True)
        said = self.copperfs(
            "mount", "--hosts", self.hosts, "--rank", rank, *FLAGS,
            "--secret-file", self.directory / "secret", "--config", self.directory / "config.toml",
            "--origin", f"/=file://{self.origin}", "--exclude", "", "--data-mount", self.data(rank),
            "--log-file", self.directory / f"log-{rank}",
            self.point(rank),
        )  # fmt: skip
        if said.returncode != 0:
            raise RuntimeError(f"rank {rank} does not mount: {said.stderr}")
        if "oom" in self.options.ways:
            group = Group(f"kills-{os.getpid()}-{rank}")
            self.groups.append(group)
            for pid in self.processes(rank, "daemon") + self.processes(rank, "watchdog"):
                group.add(pid)

    def processes(self, rank, word):
        """The processes of `copperfs WORD` for a node."""
        point, found = str(self.point(rank)).encode(), []
        for entry in os.listdir("/proc"):
            if not entry.isdecimal():
                continue
            try:
                words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
                state = Path(f"/proc/{entry}/stat").read_text().rsplit(") ", 1)[1][0]
            except OSError:
                continue
            if words[1:2] == [word.encode()] and point in words and state not in "ZX":
                found.append(int(entry))
        return found

    def answered(self, rank):
        return (self.directory / f"log-{rank}").read_text().count("the mount answers")

    def die(self, way, rank):
        """Has the daemon of a node die, and waits until another one answers."""
        before = self.answered(rank)
        if way == "upgrade":
            said = self.copperfs("upgrade", self.point(rank), "--program", self.programs[before % 2])
            if said.returncode != 0:
                self.faults.append(f"rank {rank}: upgrade: {said.stderr}")
            return
        daemons = self.processes(rank, "daemon")
        if len(daemons) != 1:
            self.faults.append(f"rank {rank} has {len(daemons)} daemons")
            return
        if way == "kill":
            os.kill(daemons[0], signal.SIGKILL)
        else:
            self.groups[rank].exceed(daemons[0])
        end = time.monotonic() + SUCCESSOR_S
        while self.answered(rank) == before:
            if time.monotonic() > end:
                self.faults.append(f"rank {rank}: no other daemon answers after {way}")
                return
            time.sleep(0.02)

    def change(self):
        """Changes a file. After a clear each node must have the new bytes."""
        self.version += 1
        (self.origin / "changing" / "c").write_text(str(self.version))
        end = time.monotonic() + CLEAR_S
        while True:
            said = self.copperfs("clear", self.point(self.version % self.options.nodes) / "changing")
            if said.returncode == 0:
                break
            self.clears_failed += 1
            if time.monotonic() > end:
                self.faults.append(f"clears fail: {said.stderr}")
                return
            time.sleep(0.1)
        self.clears += 1
        for rank in range(self.options.nodes):
            found = (self.point(rank) / "changing" / "c").read_text()
            if found != str(self.version):
                self.faults.append(f"rank {rank}: {found} was read after a clear, not {self.version}")

    def tell(self):
        """Ends the readers. Returns what they tell."""
        told = []
        for rank, reader in enumerate(self.readers):
            output, _ = reader.communicate("", timeout=60)
            try:
                told.append(json.loads(output))
            except ValueError:
                self.faults.append(f"rank {rank}: its readers died with {reader.returncode}")
                told.append({"counts": {}, "errors": 1, "wrong": 0, "kept": [], "slow": []})
        return told

    def take_down(self):
        """Ends and unmounts everything, in any state."""
        for reader in self.readers:
            if reader.poll() is None:
                reader.kill()
        for rank in reversed(range(self.options.nodes)):
            self.copperfs("unmount", "--force", self.point(rank))
            for point in (self.data(rank), self.point(rank)):
                if f" {point} " in Path("/proc/self/mounts").read_text():
                    subprocess.run(["umount", "-l", point], check=False)
            left = self.processes(rank, "daemon")
            for pid in left:
                self.faults.append(f"rank {rank}: a daemon is left")
                os.kill(pid, signal.SIGKILL)
        for group in self.groups:
            group.remove()

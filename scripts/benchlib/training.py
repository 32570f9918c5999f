"""Training jobs on nodes with a data mount: datasets, loaders, and what the operator asks and is told.

Hosts are network namespaces (scripts/hosts.sh): each node has its own data mount, of the same name on
all of them. Loaders are loader.py, which knows nothing of copperfs.
"""

import json
import os
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from .clock import wait_until
from .hosts import Hosts, Tree
from .mounts import run
from .run import PYTHON

LOADER = Path(__file__).with_name("loader.py")
PER_DIRECTORY = 1000
MB = 1_000_000


def make_files(directory, count, size, sparse=False):
    """A dataset of `count` files of `size` bytes, all different; made once.

    Sparse ones are a few random bytes and a hole: large sets that take no room."""
    mark = directory.parent / f"{directory.name}.made"
    wanted = f"{count} x {size} sparse={sparse}\n"
    if mark.exists() and mark.read_text() == wanted:
        return directory
    for number in range(count):
        path = directory / f"d{number // PER_DIRECTORY:03}" / f"f{number:06}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            file.write(os.urandom(64 if sparse else size))
            file.truncate(size)
    mark.write_text(wanted)
    time.sleep(2.1)  # until their times tell one version from the next
    return directory


class Training:
    """Nodes with data mounts, and the commands of an operator on them."""

    def __init__(self, tree, data):
        self.tree, self.hosts, self.data = tree, tree.hosts, data
        self.prefix = "/bench"

    @property
    def count(self):
        return self.hosts.count

    def ask(self, number, *words, timeout=60):
        """A command of copperfs about the mount on host `number`; what it prints."""
        process = self.start(number, *words)
        out, said = process.communicate(timeout=timeout)
        if process.returncode != 0:
            raise RuntimeError(f"copperfs {' '.join(map(str, words))}: {said.strip()}")
        return out

    def start(self, number, *words):
        """The same, begun only."""
        return self.hosts.start(number, self.tree.copperfs, *words, stderr=subprocess.PIPE)

    def json(self, number, *words):
        """The same, as JSON."""
        return json.loads(self.ask(number, *words, "--json"))

    def stats(self, number):
        return self.tree.stats(number)

    def total(self, key, numbers=None):
        """A counter, summed over nodes."""
        numbers = numbers or range(1, self.count + 1)
        return sum(self.stats(number)[key] for number in numbers)

    def add(self, name, *flags, on=1):
        """Declares the dataset that lies in the directory of its name, and waits until it is
        counted."""
        self.ask(on, "dataset", "add", name, f"{self.prefix}/{name}", *flags)
        wait_until(lambda: self.dataset(name, on)["items"], 60, f"counting of {name}")

    def dataset(self, name, on=1):
        return self.json(on, "dataset", "show", name)

    def job(self, name, on=1):
        return self.json(on, "job", "show", f"run:{name}")

    def limit(self, name, rate, on=1):
        """Sets a job's remote IO by hand."""
        self.ask(on, "job", "set", f"run:{name}", "--remote-io", rate)

    def jobs(self, on=1):
        """The jobs that the allocator has heard of, by id."""
        return {job["id"]: job for job in self.json(on, "job", "list")["jobs"]}

    def knows(self, name, on=1):
        """Whether the allocator has heard that a job of `job run` reads."""
        return f"run:{name}" in self.jobs(on)

    def held(self):
        """Bytes of datasets that each node holds, and that it may hold, as it says itself."""
        asking = [
            self.hosts.start(number, self.tree.copperfs, "stats", "--json", self.tree.mountpoint)
            for number in range(1, self.count + 1)
        ]
        told = [json.loads(process.communicate(timeout=60)[0])["datasets"] for process in asking]
        return [(one["bytes"], one["share_bytes"]) for one in told]

    def directory(self, name):
        """Where a dataset is on every host."""
        return self.data / "bench" / name

    def run_job(self, number, name, dataset, command, declare=()):
        """Starts a program as a job on host `number`."""
        words = ["job", "run", "--dataset", dataset, "--name", name, *declare, "--", *command]
        return Loader(self.hosts.start(number, self.tree.copperfs, *words), name, number)

    def loader(self, number, name, dataset, flags, declare=()):
        """Starts a loader as a job on host `number`."""
        command = [PYTHON, LOADER, self.directory(dataset), *flags]
        return self.run_job(number, name, dataset, command, declare)


class Loader:
    """A loader that runs; its lines are read as they come."""

    def __init__(self, process, name, number):
        self.process, self.name, self.number = process, name, number
        self.lines, self.done = [], None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if "job" in said:
                self.done = said
            else:
                self.lines.append(said)

    def epochs(self):
        return [line for line in self.lines if "epoch" in line]

    def wait_epoch(self, number, timeout_s):
        """Waits until so many epochs have ended."""

        def ended():
            if self.process.poll() not in (None, 0):
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}")
            return len(self.epochs()) >= number

        wait_until(ended, timeout_s, f"epoch {number} of {self.name}")

    def finish(self, timeout_s=600):
        """Its last line; an error if it ended without."""
        self.process.wait(timeout=timeout_s)
        self._reader.join(timeout=10)
        if self.done is None:
            raise RuntimeError(f"{self.name} ended with {self.process.returncode}")
        return self.done

    def rate(self, begin, end):
        """Bytes a second between two moments, by its own account (--every)."""
        said = [line for line in self.lines if "at" in line and begin <= line["at"] <= end]
        first, last = said[0], said[-1]
        return (last["read"] - first["read"]) / (last["at"] - first["at"])


class Watch:
    """Calls something over and over on a thread of its own; what it gave, each with its moment."""

    def __init__(self, look, period_s=0.1):
        self.look, self.period_s = look, period_s
        self.seen, self.failed = [], None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(timeout=30)

    def _run(self):
        while not self._stop.is_set():
            begun = time.time()
            try:
                self.seen.append((begun, time.time(), self.look()))
            except Exception as error:  # told by whoever counts the samples
                self.failed = error
            self._stop.wait(max(0.0, self.period_s - (time.time() - begun)))


@contextmanager
def training(copperfs, scratch, origin, count, flags, numbers=None):
    """`count` hosts with nodes that serve `origin` under /bench, each with a data mount."""
    data = Path(scratch) / "data"
    data.mkdir(exist_ok=True)
    with Hosts(count) as hosts:
        flags = ["--arity", 2, "--origin", f"/bench=file://{origin}", "--data-mount", data, *flags]
        tree = Tree(copperfs, hosts, scratch, flags)
        hosts.environment["COPPERFS_MOUNTPOINT"] = str(tree.mountpoint)
        try:
            tree.mount(numbers or range(1, count + 1))
            yield Training(tree, data)
        finally:
            tree.unmount()


def end(loaders):
    """Ends what still runs."""
    for loader in loaders:
        if loader.process.poll() is None:
            loader.process.kill()
            loader.process.wait(timeout=10)


def predicted(copperfs, problem, flags, directory):
    """What the simulator says of a problem."""
    path = Path(directory) / "problem.toml"
    path.write_text(problem)
    said = json.loads(run([copperfs, "simulate", "cluster", path, *flags, "--json"]))
    return said["runs"][0]["outcome"]

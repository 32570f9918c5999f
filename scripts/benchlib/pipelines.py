"""Pipelines of real engines on four hosts: the warehouse, its reports, and a run of them under a policy.

Each host has its own network, mounts and processes (scripts/hosts.sh). The hosts live as long as an
engine's row, so that Spark's workers are started once; the nodes are mounted again for each run, so that
each begins with an empty cache.
"""

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from .clock import wait_until
from .hosts import Hosts, Tree
from .informed import REPOSITORY
from .mounts import run
from .training import Training

HERE = Path(__file__).parent
NODES = 4
NAME = "warehouse"
ADDRESS = "10.78.0.1"
VENV = REPOSITORY / ".venv-pipelines"
PACKAGES = ["snakemake", "dask", "distributed", "pyspark", "pyarrow", "pandas", "numpy"]
"""Of adapters/python/requirements.txt those that run here, and Spark."""

FILE_BYTES = 256 << 10
"""So that a home has room for some thirty. With fewer, one home would have much more than its part of the
files that are read often."""
REPORTS, DAYS, WINDOW = 6, 9, 4
REFERENCE_FILES, DAY_FILES, SCAN_FILES = 80, 16, 26
PARTS = 16
"""Of a report, that Snakemake runs each by itself."""
CACHE_PERCENT = 30
"""Of the bytes of all inputs."""


def need_engines():
    """Makes the environment of the engines, if it is not there."""
    script = '. "$1"/scripts/lib.sh; shift; need_python "$@"'
    subprocess.run(["bash", "-ec", script, "-", REPOSITORY, VENV, *PACKAGES], check=True)


def python():
    """The interpreter of the engines."""
    return VENV / "bin" / "python3"


def make_warehouse(origin):
    """The files of the reports; made once. Returns the plan of the reports."""
    scans = [f"scan={number}" for number in range(REPORTS)]
    days = [f"day={number:02}" for number in range(DAYS)]
    parts = {"reference": REFERENCE_FILES}
    parts |= dict.fromkeys(days, DAY_FILES) | dict.fromkeys(scans, SCAN_FILES)
    mark = origin / f"{NAME}.made"
    wanted = f"{FILE_BYTES} {parts}\n"
    directory = origin / NAME
    if not mark.exists() or mark.read_text() != wanted:
        subprocess.run(["rm", "-rf", directory], check=True)
        arguments = [f"{name}={count}" for name, count in parts.items()]
        run([python(), HERE / "pipeline_data.py", directory, FILE_BYTES, *arguments], timeout=600)
        mark.write_text(wanted)
        time.sleep(2.1)  # until their times tell one version from the next

    def files(name):
        return [f"{name}/part-{number:03}.parquet" for number in range(parts[name])]

    plan = []
    for number in range(REPORTS):
        window = [name for day in days[number : number + WINDOW] for name in files(day)]
        reference, scan = files("reference"), files(scans[number])
        # Mixed, since a report joins them: none of the tables is read first.
        mixed = reference + window + scan
        random.Random(number).shuffle(mixed)
        plan.append(
            {
                "reference": ["reference"],
                "days": days[number : number + WINDOW],
                "scan": [scans[number]],
                "files": mixed,
                "parts": [mixed[first::PARTS] for first in range(PARTS)],
            }
        )
    return {"reports": plan}


def total_bytes(directory):
    """The bytes of all files below."""
    return sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file())


def read_bytes(plan, origin):
    """The bytes that the reports read, each file whole."""
    names = [name for report in plan["reports"] for name in report["files"]]
    return sum((origin / NAME / name).stat().st_size for name in names)


class OnHosts:
    """Runs what programs on hosts ask for on other hosts (on_host.py), as sshd would."""

    def __init__(self, hosts, path):
        self.hosts, self.path = hosts, path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link):
        with link:
            asked = json.loads(link.makefile().readline())
            process = self.hosts.start(asked["host"], "sh", "-ec", asked["command"])
            out, _ = process.communicate()
            link.sendall(json.dumps({"status": process.returncode, "out": out}).encode() + b"\n")


class Daemon:
    """A program on a host that runs until it is ended: by its number there, because a signal to the program
    that entered the host's namespaces would not reach it."""

    def __init__(self, engine, number, name, command):
        self.hosts, self.number = engine.hosts, number
        self._pid = engine.scratch / f"{name}.pid"
        # That of an earlier run may be another program's number now.
        self._pid.unlink(missing_ok=True)
        with open(engine.scratch / f"{name}.log", "a") as log:
            script = 'echo $$ > "$1"; shift; exec env "$@"'
            words = ["sh", "-c", script, "-", self._pid, *engine.environment(), *command]
            self.process = self.hosts.start(number, *words, stdout=log, stderr=log)

    def ask_to_end(self):
        if self.process.poll() is None and self._pid.exists():
            self._signal("TERM")

    def end(self, grace_s=10):
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._signal("KILL")
            self.process.wait(10)

    def _signal(self, name):
        number = self._pid.read_text().strip()
        # It may have ended meanwhile.
        self.hosts.start(self.number, "kill", f"-{name}", number, stderr=subprocess.DEVNULL).wait(10)


class Engine:
    """How a pipeline is started on the first host, and what it needs on the others."""

    name = ""
    storage = 8_000_000
    """Bytes a second of storage: so few that misses take most of the time."""

    def __init__(self, hosts, scratch):
        self.hosts, self.scratch = hosts, scratch

    def close(self):
        """Takes away what lives as long as the hosts."""

    def begin(self, nodes):
        """Starts what lives as long as a run, after the command; what is to be ended."""
        return []

    def environment(self):
        """Variables of the command."""
        path = f"{VENV / 'bin'}:{os.environ['PATH']}"
        # One thread each: the hosts share the processors.
        return [f"PATH={path}", "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1"]


class Dask(Engine):
    """The scheduler on the first host, a worker on each."""

    name = "dask"

    def command(self, plan, root):
        return [python(), HERE / "pipeline_dask.py", plan, root, f"{ADDRESS}:8786", NODES]

    def begin(self, nodes):
        words = ["dask", "worker", f"tcp://{ADDRESS}:8786", "--nthreads", 1, "--no-dashboard"]
        words += ["--death-timeout", 120, "--local-directory", self.scratch / "dask", "--no-nanny"]
        return [
            Daemon(self, number, f"dask-worker{number}", words) for number in range(1, NODES + 1)
        ]


class Snakemake(Engine):
    """Snakemake on the first host; its jobs on all, by a program that reaches them."""

    name = "snakemake"

    def __init__(self, hosts, scratch):
        super().__init__(hosts, scratch)
        self.on_hosts = OnHosts(hosts, scratch / "hosts.socket")
        self.runs = 0

    def close(self):
        self.on_hosts.close()

    def command(self, plan, root):
        self.runs += 1
        work = self.scratch / f"snakemake{self.runs}"
        work.mkdir()
        on_host = self.scratch / "on_host"
        on_host.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {HERE / "on_host.py"} {self.on_hosts.path} "$@"\n')
        on_host.chmod(0o755)
        settings = [f"plan={plan}", f"root={root}", f"on_host={on_host}", f"out={work / 'out'}", f"hosts={NODES}"]
        return [
            python(), HERE / "pipeline_clock.py", "snakemake", "--snakefile", HERE / "pipeline.smk",
            "--directory", work, "--cores", NODES, "--quiet", "all", "--scheduler", "greedy",
            # It reads small inputs itself, to know whether they have changed. Those of a pipeline are large.
            "--max-checksum-file-size", 0, "--config", *settings,
        ]  # fmt: skip


class Spark(Engine):
    """A standalone cluster: the master and the driver on the first host, a worker with an executor on each."""

    name = "spark"
    storage = 4_000_000
    at_once = REPORTS

    def __init__(self, hosts, scratch):
        super().__init__(hosts, scratch)
        home = run([python(), "-c", "import pyspark; print(pyspark.__path__[0])"]).strip()
        self.home = Path(home)
        self.daemons = [self._start(1, "master.Master", "--host", ADDRESS, "--port", 7077, "--webui-port", 0)]
        for number in range(1, NODES + 1):
            work = self.scratch / f"spark{number}"
            words = ["--host", f"10.78.0.{number}", "--cores", 1, "--memory", "700m", "--webui-port", 0]
            self.daemons.append(
                self._start(number, "worker.Worker", *words, "--work-dir", work, f"spark://{ADDRESS}:7077")
            )

    def _start(self, number, program, *words):
        command = [self.home / "bin" / "spark-class", f"org.apache.spark.deploy.{program}", *words]
        return Daemon(self, number, f"spark-{program}{number}", ["env", "SPARK_DAEMON_MEMORY=256m", *command])

    def environment(self):
        local = self.scratch / "spark-local"
        return [
            *super().environment(),
            f"SPARK_HOME={self.home}",
            f"SPARK_LOCAL_DIRS={local}",
            f"PYSPARK_PYTHON={python()}",
            "SPARK_LOCAL_IP=",
        ]

    def close(self):
        end_all(self.daemons)

    def command(self, plan, root):
        return [
            python(), HERE / "pipeline_spark.py", plan, root, f"spark://{ADDRESS}:7077", NODES, self.at_once,
        ]  # fmt: skip


ENGINES = {engine.name: engine for engine in (Spark, Snakemake, Dask)}


def end_all(daemons):
    """Ends them all, together."""
    for daemon in daemons:
        daemon.ask_to_end()
    for daemon in daemons:
        daemon.end()


@contextmanager
def on_four_hosts(engine, scratch):
    """Hosts with what an engine needs on them for all runs."""
    with Hosts(NODES) as hosts:
        started = ENGINES[engine](hosts, scratch)
        try:
            yield started
        finally:
            started.close()


@contextmanager
def nodes_of(bench, hosts, scratch, origin, flags):
    """Nodes on the hosts, each with its data mount."""
    data = scratch / "data"
    data.mkdir(exist_ok=True)
    flags = ["--arity", 2, "--origin", f"/bench=file://{origin}", "--data-mount", data, *flags]
    flags = ["--page-cache=false", *flags]
    tree = Tree(bench.copperfs, hosts, scratch, flags)
    hosts.environment["COPPERFS_MOUNTPOINT"] = str(tree.mountpoint)
    try:
        tree.mount(range(1, NODES + 1))
        yield Training(tree, data)
    finally:
        tree.unmount()


class Ran:
    """What a run has said, and what storage gave for it."""

    def __init__(self, said, storage, wall_s, shown, counters):
        self.seconds, self.begin = said["seconds"], said["begin"]
        self.results = said.get("results")
        self.storage, self.wall_s, self.shown, self.counters = storage, wall_s, shown, counters

    def as_json(self):
        return dict(vars(self))


def run_pipeline(engine, nodes, plan, lrc=None, timeout_s=600):
    """Runs the pipeline on the first host. `lrc`: the flags of `lrc run`, or None to run it without."""
    root = nodes.directory(NAME)
    command = engine.command(plan, root)
    if lrc is not None:
        words = ["lrc", "run", "--engine", engine.name, "--dataset", NAME, "--python", python(), *lrc, "--"]
        command = [nodes.tree.copperfs, *words, *command]
    command = ["env", *engine.environment(), *command]
    before = [nodes.stats(number) for number in range(1, NODES + 1)]
    began = time.monotonic()
    log = engine.scratch / "driver.log"
    with open(log, "a") as errors:
        driver = nodes.hosts.start(1, *command, stderr=errors)
    helpers = engine.begin(nodes)
    try:
        out, _ = driver.communicate(timeout=timeout_s)
    finally:
        if driver.poll() is None:
            driver.kill()
        end_all(helpers)
    wall = time.monotonic() - began
    said = [line for line in out.splitlines() if line.startswith("{")]
    if driver.returncode != 0 or not said:
        raise RuntimeError(f"{engine.name} ended with {driver.returncode}: see {log}")
    after = [nodes.stats(number) for number in range(1, NODES + 1)]
    storage = sum(one["origin.read_bytes"] for one in after) - sum(one["origin.read_bytes"] for one in before)
    keys = [key for key in after[0] if key.startswith(("pipelines.", "datasets."))]
    counters = [{key: node.get(key) for key in keys} for node in after]
    return Ran(json.loads(said[-1]), storage, wall, nodes.dataset(NAME), counters)


def wait_for_shares(nodes, budget):
    """Waits until the homes have their shares."""
    wait_until(
        lambda: abs(sum(share for _, share in nodes.held()) - budget) <= NODES, 60, "the shares of the homes"
    )

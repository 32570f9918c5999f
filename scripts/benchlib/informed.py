"""Jobs that substitute: their dataset with its manifest, how they are started, and what storage gave."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from .mounts import run
from .rows_datasets import AMPLE, NODES, room
from .rows_hosts import scratch_dir
from .training import end, training

JOB = Path(__file__).with_name("informed_job.py")
WATCH = Path(__file__).with_name("chunk_watch.py")
REPOSITORY = Path(__file__).resolve().parents[2]
PER_DIRECTORY = 1000
DATASET = "informed"


@lru_cache
def python():
    """An interpreter that has numpy, which the package needs."""
    candidates = [sys.executable, *(REPOSITORY / name / "bin/python3" for name in (".venv", ".venv-python"))]
    for candidate in candidates:
        found = subprocess.run([candidate, "-c", "import numpy"], check=False, capture_output=True)
        if found.returncode == 0:
            return str(candidate)
    raise RuntimeError("no numpy, which python/copperfs needs; try: pip install numpy")


def make_entries(copperfs, origin, count, size):
    """A dataset of `count` files of `size` bytes that begin with their numbers, and its manifest."""
    name = f"{DATASET}-{count}x{size}"
    mark = origin / f"{name}.manifest"
    if mark.exists():
        return name
    for number in range(count):
        path = origin / name / f"d{number // PER_DIRECTORY:03}" / f"f{number:06}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(number.to_bytes(8, "little") + os.urandom(size - 8))
    time.sleep(2.1)  # until their times tell one version from the next
    run([copperfs, "dataset", "manifest", origin / name, "-o", mark])
    time.sleep(2.1)
    return name


@contextmanager
def informed(bench, origin, flags=(), memory=AMPLE):
    """Four hosts with data mounts, and a directory for signs between processes."""
    how = ["--page-cache=false", *room(memory), *flags]
    with scratch_dir() as scratch, training(bench.copperfs, scratch, origin, NODES, how) as nodes:
        nodes.scratch = scratch
        yield nodes


def declare(nodes, name, *flags):
    """Declares the dataset with its manifest; homes read storage."""
    manifest = f"{nodes.prefix}/{name}.manifest"
    nodes.add(name, "--manifest", manifest, "--origin-readers", "homes", *flags)


def start_job(nodes, host, job, dataset, *flags):
    """Starts informed_job.py as a job on a host."""
    command = [*interpreter(), JOB, nodes.data, dataset, *flags]
    return nodes.run_job(host, job, dataset, command)


def answer_of(nodes, job, dataset, command, timeout_s):
    """The last line of a program that runs as a job on the first host, and the job."""
    running = nodes.run_job(1, job, dataset, command)
    try:
        done = running.finish(timeout_s)
    finally:
        end([running])
    return done, running


def interpreter():
    """The beginning of a command that runs a program with the package."""
    return ["env", f"PYTHONPATH={REPOSITORY / 'python'}", "OPENBLAS_NUM_THREADS=1", python()]


def paces(rate, count, spread=0.1):
    """Entries a second of each job: no two the same, `rate` in the mean."""
    return [rate * (1 + spread * (2 * place / max(count - 1, 1) - 1)) for place in range(count)]


def storage_bytes(nodes, on=1):
    """Bytes of datasets that storage gave, by node."""
    shown = json.loads(nodes.ask(on, "stats", "--all", "--json", nodes.tree.mountpoint))
    return {node["node"]: node["datasets"]["origin_bytes"] for node in shown["nodes"]}


@contextmanager
def watched(nodes, name, host=1):
    """A process on a host that looks at the resident chunks every 100 ms, while the block runs."""
    stop = nodes.scratch / "unwatch"
    watcher = nodes.run_job(host, "watch", name, [*interpreter(), WATCH, nodes.data, name, stop])
    try:
        yield watcher
        stop.touch()
        watcher.finish(30)
    finally:
        end([watcher])


def looks_of(watcher):
    """What a watcher has seen: moments, and the resident chunks."""
    return [(line["at"], line["resident"] or []) for line in watcher.lines if "resident" in line]


def batches_of(job):
    """The mini-batches of a job that has --trace."""
    return [line for line in job.lines if "batch" in line]


def resident_between(looks, begin, end):
    """The numbers of the chunks that were resident at some time between two moments."""
    before = [chunks for at, chunks in looks if at < begin][-1:]
    after = [chunks for at, chunks in looks if at > end][:1]
    between = [chunks for at, chunks in looks if begin <= at <= end]
    return {chunk["chunk"] for chunks in (*before, *between, *after) for chunk in chunks}


def throughput(jobs, begin, end):
    """Entries a second of all jobs together, between two moments."""
    taken = (
        sum(batch["hits"].values()) + sum(batch["misses"].values())
        for job in jobs
        for batch in batches_of(job)
        if begin <= batch["at"] < end
    )
    return sum(taken) / (end - begin)


@contextmanager
def jobs_of(nodes, name, rates, flags, first=0, hosts=NODES):
    """Jobs `first` and on, each with its pace and its order, spread over the first `hosts` hosts; they
    go away with the block."""
    jobs = []
    try:
        for number, rate in enumerate(rates, first):
            how = ["--rate", rate, "--seed", number, *flags]
            jobs.append(start_job(nodes, 1 + number % hosts, f"job{number}", name, *how))
        yield jobs
    finally:
        end(jobs)


def finished(jobs, timeout_s=300):
    """What the jobs say at their ends. An error if an entry came twice, or not at all."""
    done = [job.finish(timeout_s) for job in jobs]
    for job, one in zip(jobs, done, strict=True):
        if one["wrong"] or job.process.returncode:
            raise RuntimeError(f"{job.name}: {one['wrong']} entries came twice or not at all")
    return done


def rounds(nodes, jobs, gate, count, size, timeout_s=300):
    """Datasets that storage gave in each round: an epoch of all jobs, which begin it together."""
    found, before = [], sum(storage_bytes(nodes).values())
    for epoch in range(count):
        (gate / f"epoch{epoch}").touch()
        for job in jobs:
            job.wait_epoch(epoch + 1, timeout_s)
        after = sum(storage_bytes(nodes).values())
        found.append((after - before) / size)
        before = after
    return found


def own_directory(nodes, name):
    """A directory for signs between the jobs of a run."""
    path = nodes.scratch / name
    path.mkdir()
    return path

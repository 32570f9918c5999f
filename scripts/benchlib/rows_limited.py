"""Row 20: hosts with limited links read one file at once; the model says how long it may take.

Each host has its own network, mounts and processes (scripts/hosts.sh); links are limited both ways by
tbf, 1,500 bytes a packet.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from . import report
from .clock import drop_caches, median
from .mounts import run

HOSTS = [2, 8, 32]
ARITY = 2
FILE_BYTES = 16 << 20
# Megabits a second. All hosts share this machine's processors: with 32 of them at the faster rate it is
# the processors that limit, so the model is compared at the slower one.
RATE_OF_MODEL, RATE_OF_BAR = 25, 100
MTU = 1500
# One way between two namespaces on one machine, a wake-up included.
HOP = "100us"
SCRIPT = Path(__file__).resolve().parent.parent / "hosts.sh"
# Time for every reader to start before they begin together.
START_S = 2.0
READER = """
import hashlib, json, sys, time
path, start = sys.argv[1], float(sys.argv[2])
time.sleep(max(0.0, start - time.time()))
pieces = []
with open(path, "rb", buffering=0) as file:
    while piece := file.read(1 << 20):
        pieces.append(piece)
wall = time.time() - start
print(json.dumps([wall, hashlib.sha256(b"".join(pieces)).hexdigest()]))
"""


def row20(bench):
    """Wall of the slowest host against the model and against arity × size / rate."""
    data = os.urandom(FILE_BYTES)
    results = []
    for name, count in zip("abc", HOSTS):
        walls, model = _runs(bench, count, RATE_OF_MODEL, data)
        off = 100 * (median(walls) / model - 1)
        results.append(
            report.at_most(
                f"20{name}",
                f"{count} hosts, {RATE_OF_MODEL} Mbit/s, one 16 MiB file at once: wall "
                f"{median(walls):.2f} s, off the model's {model:.2f} s",
                10,
                abs(off),
                " %",
                wall_s=walls,
                model_s=model,
                off_percent=off,
            )
        )
    count = HOSTS[-1]
    walls, model = _runs(bench, count, RATE_OF_BAR, data)
    best = ARITY * FILE_BYTES / (RATE_OF_BAR * 1e6 / 8)
    results.append(
        report.at_most(
            "20d",
            f"{count} hosts, {RATE_OF_BAR} Mbit/s, the same: wall {median(walls):.2f} s over arity·S/B "
            f"(model {model:.2f} s)",
            1.5,
            median(walls) / best,
            " ×",
            wall_s=walls,
            model_s=model,
        )
    )
    return results


def _runs(bench, count, rate, data):
    """Seconds of every run, and of the model."""
    walls = [_once(bench.copperfs, count, rate, data) for _ in range(bench.runs)]
    return walls, simulated(bench.copperfs, count, rate)


def simulated(copperfs, count, rate):
    """The model's seconds."""
    command = [copperfs, "simulate", "tree", "--json", "--nodes", count, "--arity", ARITY]
    command += ["--files", 1, "--bytes", FILE_BYTES, "--link", f"{rate}Mbit/s", "--mtu", MTU]
    command += ["--hop", HOP, "--origin", "1GB/s"]
    return json.loads(run(command))["outcome"]["times"]["max_s"]


def _once(copperfs, count, rate, data):
    with tempfile.TemporaryDirectory(prefix="copperfs-bench-") as scratch:
        scratch = Path(scratch)
        (scratch / "origin").mkdir()
        (scratch / "origin" / "file").write_bytes(data)
        drop_caches(1)
        (scratch / "origin" / "file").read_bytes()
        with _hosts(count) as host, _mounted(copperfs, host, count, scratch) as mountpoint:
            for number in range(1, count + 1):
                host("rate", number, f"{rate}mbit")
            return _read(host, count, mountpoint / "bench" / "file", data)


def _read(host, count, path, data):
    """Seconds until the slowest host has the file; every byte is checked."""
    start = time.time() + START_S + 0.05 * count
    reader = [sys.executable, "-c", READER, path, start]
    readers = [host("exec", number, *reader, wait=False) for number in range(1, count + 1)]
    wall, wanted = 0.0, hashlib.sha256(data).hexdigest()
    for number, process in enumerate(readers, 1):
        out, _ = process.communicate(timeout=300)
        if process.returncode != 0:
            raise RuntimeError(f"the reader on host {number} ended with {process.returncode}")
        seconds, digest = json.loads(out)
        if digest != wanted:
            raise RuntimeError(f"host {number} read other bytes")
        wall = max(wall, seconds)
    return wall


@contextmanager
def _hosts(count):
    """hosts.sh with hosts of this run's own, which go away whatever happens."""
    name = f"cfb{os.getpid() % 10000}"
    own = {"HOSTS_PREFIX": name, "HOSTS_NET": "10.78.0", "HOSTS_MTU": str(MTU)}
    environment = dict(os.environ, **own)

    def host(*words, wait=True):
        command = [str(word) for word in (SCRIPT, *words)]
        if wait:
            return subprocess.run(command, env=environment, check=True, timeout=120)
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    try:
        host("up", count)
        yield host
    finally:
        subprocess.run([SCRIPT, "down"], env=environment, check=False, timeout=120)


@contextmanager
def _mounted(copperfs, host, count, scratch):
    """A mount on every host; the first is the root."""
    mountpoint = scratch / "mnt"
    mountpoint.mkdir()
    secret = scratch / "secret"
    secret.touch(mode=0o600)
    secret.write_text(os.urandom(32).hex() + "\n")
    names = scratch / "hosts"
    names.write_text("".join(f"h{number}\n" for number in range(1, count + 1)))
    origin = f"/bench=file://{scratch}/origin"
    flags = ["--hosts", names, "--secret-file", secret, "--arity", ARITY, "--origin", origin]
    flags += ["--exclude", ""]
    mounted = []
    try:
        started = [
            host("exec", number, copperfs, "mount", *flags, mountpoint, wait=False)
            for number in range(1, count + 1)
        ]
        for number, process in enumerate(started, 1):
            process.communicate(timeout=120)
            if process.returncode != 0:
                raise RuntimeError(f"no mount on host {number}")
            mounted.append(number)
        yield mountpoint
    finally:
        ended = [
            host("exec", number, copperfs, "unmount", mountpoint, wait=False) for number in mounted
        ]
        for process in ended:
            try:
                process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()

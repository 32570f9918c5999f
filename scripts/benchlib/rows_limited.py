"""Row 20: hosts with limited links read one file at once; the model says how long it may take.

Each host has its own network, mounts and processes (scripts/hosts.sh); links are limited both ways by
tbf, 1,500 bytes a packet.
"""

import hashlib
import os
import tempfile
from pathlib import Path

from . import report
from .clock import drop_caches, median
from .hosts import Hosts, mounted, simulated, together

HOSTS = [2, 8, 32]
ARITY = 2
FILE_BYTES = 16 << 20
# Megabits a second. All hosts share this machine's processors: with 32 of them at the faster rate it is
# the processors that limit, so the model is compared at the slower one.
RATE_OF_MODEL, RATE_OF_BAR = 25, 100
MTU = 1500
# One way between two namespaces on one machine, a wake-up included.
HOP = "100us"
READER = """
import hashlib, json, sys, time
start, path = float(sys.argv[1]), sys.argv[2]
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
    return walls, model_seconds(bench.copperfs, count, rate)


def model_seconds(copperfs, count, rate):
    """The model's seconds."""
    flags = ["--nodes", count, "--arity", ARITY, "--files", 1, "--bytes", FILE_BYTES]
    flags += ["--link", f"{rate}Mbit/s", "--mtu", MTU, "--hop", HOP, "--storage-rate", "1GB/s"]
    return simulated(copperfs, *flags)["outcome"]["times"]["max_s"]


def _once(copperfs, count, rate, data):
    with tempfile.TemporaryDirectory(prefix="copperfs-bench-") as scratch:
        scratch = Path(scratch)
        (scratch / "origin").mkdir()
        (scratch / "origin" / "file").write_bytes(data)
        drop_caches(1)
        (scratch / "origin" / "file").read_bytes()
        flags = ["--arity", ARITY, "--origin", f"/bench=file://{scratch}/origin"]
        with Hosts(count, MTU) as hosts, mounted(copperfs, hosts, scratch, flags) as tree:
            for number in range(1, count + 1):
                hosts.control("rate", number, f"{rate}mbit")
            answers = together(hosts, READER, tree.mountpoint / "bench" / "file")
    wanted = hashlib.sha256(data).hexdigest()
    if any(digest != wanted for _, digest in answers):
        raise RuntimeError("a host read other bytes")
    return max(seconds for seconds, _ in answers)

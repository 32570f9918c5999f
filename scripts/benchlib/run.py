"""Running clients: the C loops and Python imports, with their cost."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from .clock import Cost, DaemonClock

PYTHON = os.path.realpath(sys.executable)


def build_loops(directory):
    """Compiles loops.c if it changed."""
    return build("loops", directory, "-O3", "-Wall", "-Wextra", "-D_FILE_OFFSET_BITS=64")


def build(name, directory, *flags):
    """Compiles a C program beside this file if it, or a header, changed."""
    source, binary = Path(__file__).with_name(f"{name}.c"), directory / name
    changed = max(file.stat().st_mtime for file in (source, *source.parent.glob("*.h")))
    if not binary.exists() or binary.stat().st_mtime < changed:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            sys.exit("bench: no C compiler; try: apt-get install gcc libc6-dev")
        subprocess.run([compiler, *flags, "-o", binary, source], check=True)
    return binary


class Clients:
    """Runs client programs over a mount."""

    def __init__(self, loops):
        self.loops = loops

    def loop(self, mount, op, list_file, seconds=0.0, rounds=1):
        """Cost of `op` over the paths of `list_file` below the mount: the loop alone, without the
        start of the process, plus the daemons' CPU time."""
        command = [self.loops, op, mount.base, list_file, str(seconds), str(rounds)]
        with DaemonClock(mount.pids()) as daemon:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise RuntimeError(f"loops {op} below {mount.base}: {done.stderr.strip()}")
        out = json.loads(done.stdout)
        return Cost(out["ops"], out["wall"], out["cpu"] + daemon.cpu, out["bytes"], daemon.cpu)

    def python(self, mount, statement):
        """Cost of a Python process that imports from the mount."""
        with DaemonClock(mount.pids()) as daemon:
            cpu, wall = wait(start_python(mount.base, statement))
        return Cost(1, wall, cpu + daemon.cpu)


def environment(base):
    """What a job sets: the tree's path, and nothing that adds noise."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "PYTHONPATH": str(Path(base) / "tree"),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


def start_python(base, statement):
    """Starts Python with the tree below `base` on its path: (process, start)."""
    process = subprocess.Popen([PYTHON, "-c", statement], env=environment(base))
    return process, time.monotonic()


def wait(started):
    """CPU seconds and wall seconds of a process from start_python."""
    process, start = started
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{process.args} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, wall

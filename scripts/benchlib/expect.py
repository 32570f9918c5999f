"""What an import touches below a directory, from the system calls of a run on the origin itself."""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from .run import PYTHON, environment

CALL = re.compile(r'^(?:\d+ +)?(\w+)\((?:AT_FDCWD, )?"((?:[^"\\]|\\.)*)"(.*?)\) += (-?\d+)')


@dataclass
class Touched:
    """Distinct paths, relative to the tree's base; `directories` holds every directory in which a
    name was looked up or that was listed."""

    files: set
    bytes: int
    directories: set
    missing: set
    failed_calls: int
    calls: int


def touched(base, statement):
    """Runs the import under strace, on the origin."""
    with tempfile.NamedTemporaryFile("r", prefix="copperfs-bench-strace-") as log:
        command = ["strace", "-f", "-qq", "-s", "4096", "-e", "trace=%file", "-o", log.name]
        try:
            subprocess.run(
                [*command, PYTHON, "-c", statement], env=environment(base), check=True, timeout=600
            )
        except FileNotFoundError:
            sys.exit("bench: no strace; try: apt-get install strace")
        return _read(log, str(base))


def _read(log, base):
    files, directories, missing = set(), set(), set()
    calls = failed_calls = 0
    for line in log:
        match = CALL.match(line)
        if not match:
            continue
        call, path, rest, status = match[1], match[2], match[3], int(match[4])
        path = os.path.normpath(path)
        if path != base and not path.startswith(base + "/"):
            continue
        calls += 1
        _look_up(base, path, directories)
        if status < 0:
            failed_calls += 1
            missing.add(path)
        elif call in ("open", "openat"):
            if "O_DIRECTORY" in rest or os.path.isdir(path):
                directories.add(path)
            else:
                files.add(path)
    # An empty file has no bytes to read.
    files = {path for path in files if os.path.getsize(path) > 0}
    size = sum(os.path.getsize(path) for path in files)
    return Touched(files, size, directories, missing, failed_calls, calls)


def _look_up(base, path, directories):
    """The directories that a walk to `path` searches, as far as they exist."""
    while path != base:
        path = os.path.dirname(path)
        if os.path.isdir(path):
            directories.add(path)

"""The files that are read: synthetic ones of known size, and a real Python tree."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ["numpy", "pandas", "sympy", "networkx"]
"""Imported by the herd; the leaf's row imports what IMPORT_LEAF says."""
IMPORT_ALL = "import numpy, pandas, sympy, networkx"
IMPORT_LEAF = "import numpy, sympy, networkx"

PER_DIRECTORY = 100


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    small_files: int
    middle_files: int
    big_bytes: int
    missing_names: int


FULL = Sizes(small_files=5000, middle_files=1000, big_bytes=1 << 30, missing_names=5000)
QUICK = Sizes(small_files=1000, middle_files=200, big_bytes=256 << 20, missing_names=1000)


@dataclass
class Data:
    """Where things are; paths in lists are relative to `base`."""

    base: Path
    lists: Path
    sizes: Sizes

    def list(self, name, paths):
        """Writes a list of relative paths for the loops."""
        file = self.lists / name
        file.write_text("".join(f"{path}\n" for path in paths))
        return file

    def small(self):
        return self._files("small", self.sizes.small_files)

    def middle(self):
        return self._files("middle", self.sizes.middle_files)

    def missing(self):
        """Names that do not exist, spread over the directories of small files."""
        return [path + ".missing" for path in self._files("small", self.sizes.missing_names)]

    def directories(self):
        count = -(-self.sizes.small_files // PER_DIRECTORY)
        return [f"small/d{number:03}" for number in range(count)]

    def _files(self, kind, count):
        return [
            f"{kind}/d{number // PER_DIRECTORY:03}/f{number % PER_DIRECTORY:03}.bin"
            for number in range(count)
        ]


def prepare(directory, quick):
    """Makes what is not there yet. The synthetic files are random bytes: nothing compresses."""
    base, lists = directory / "origin", directory / "lists"
    lists.mkdir(parents=True, exist_ok=True)
    _synthetic(base, FULL)
    _python_tree(base)
    return Data(base, lists, QUICK if quick else FULL)


def _synthetic(base, sizes):
    data = Data(base, base, sizes)
    for paths, size in ((data.small(), 20 << 10), (data.middle(), 200 << 10)):
        for path in paths:
            file = base / path
            if file.exists() and file.stat().st_size == size:
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(os.urandom(size))
    for name, size in (("big.bin", FULL.big_bytes), ("big-quick.bin", QUICK.big_bytes)):
        file = base / name
        if file.exists() and file.stat().st_size == size:
            continue
        with open(file, "wb") as out:
            for _ in range(size >> 20):
                out.write(os.urandom(1 << 20))


def big_name(data):
    """The big file of these sizes."""
    return "big.bin" if data.sizes is FULL else "big-quick.bin"


def _python_tree(base):
    tree, mark = base / "tree", base / "tree.packages"
    wanted = " ".join(PACKAGES) + f" for {sys.version.split()[0]}\n"
    if mark.exists() and mark.read_text() == wanted:
        return
    shutil.rmtree(tree, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", tree, *PACKAGES]
    subprocess.run(command, check=True)
    subprocess.run([sys.executable, "-m", "compileall", "-q", tree], check=False)
    mark.write_text(wanted)

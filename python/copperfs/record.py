"""Records of a run: the entries of each mini-batch, so that the run can be repeated to the item.

A line of JSON names the dataset and the rank. Mini-batches follow: epoch and number of entries, then the
entries, all as 64-bit numbers, little-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import StateError
from .state import Part

FORMAT = 1
_FRAME = struct.Struct("<QQ")
_HEADER_BYTES_MAX = 4096

Frame = tuple[int, NDArray[np.int64]]


class Recorder:
    """Appends the mini-batches that a rank consumes to a file."""

    def __init__(self, path: str, part: Part) -> None:
        self._path = Path(path)
        self._header = _header(part)
        if self._path.exists() and self._path.stat().st_size:
            _check_header(self._path, part)
        else:
            self._path.write_bytes(self._header)
        self._file: FileIO | None = None

    def begin(self, epoch: int, consumed: NDArray[np.bool_]) -> None:
        """Goes on after the entries that an epoch had consumed: later mini-batches are cut off.

        A run that is resumed from a checkpoint repeats the mini-batches after it, perhaps with others.
        """
        self.close()
        end = len(self._header)
        for number, entries in _frames(self._path, len(self._header)):
            if number > epoch or (number == epoch and not consumed[entries].all()):
                break
            end += _FRAME.size + 8 * len(entries)
        # Unbuffered: a run that is killed has recorded all that it consumed.
        self._file = open(self._path, "r+b", buffering=0)  # noqa: SIM115
        self._file.truncate(end)
        self._file.seek(end)

    def add(self, epoch: int, entries: NDArray[np.int64]) -> None:
        """Appends a mini-batch."""
        if self._file is not None:
            self._file.write(_FRAME.pack(epoch, len(entries)) + entries.astype("<u8").tobytes())

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def replayed(path: str, part: Part, consumed: NDArray[np.bool_]) -> Iterator[NDArray[np.int64]]:
    """Yields the recorded mini-batches of an epoch that are not consumed yet.

    Raises `StateError` if the record is of another dataset or rank, or has none of this epoch.
    """
    file = Path(path)
    _check_header(file, part)
    found = False
    for epoch, entries in _frames(file, len(_header(part))):
        if len(entries) and int(entries.max()) >= part.entries:
            raise StateError(f"{path} is damaged: it names an entry that the dataset does not have")
        if epoch == part.epoch:
            found = True
            if not consumed[entries].all():
                yield entries
    if not found:
        raise StateError(f"{path} has no mini-batch of epoch {part.epoch}", "replay an epoch that it has")


def _header(part: Part) -> bytes:
    named = {"format": FORMAT, **part._asdict()}
    # A record has many epochs.
    del named["epoch"]
    return json.dumps(named).encode() + b"\n"


def _check_header(path: Path, part: Part) -> None:
    with open(path, "rb") as file:
        header = file.readline(_HEADER_BYTES_MAX)
    if header != _header(part):
        raise StateError(
            f"{path} is not a record of rank {part.rank} of {part.world_size} over this dataset",
            "give each run and each rank a file of its own: record='run.{rank}.batches'",
        )


def _frames(path: Path, start: int) -> Iterator[Frame]:
    """Yields whole mini-batches. A run that was killed may have left a part of one at the end."""
    with open(path, "rb") as file:
        file.seek(start)
        while len(head := file.read(_FRAME.size)) == _FRAME.size:
            epoch, count = _FRAME.unpack(head)
            body = file.read(8 * count)
            if len(body) < 8 * count:
                return
            yield epoch, np.frombuffer(body, dtype="<u8").astype(np.int64)

"""Manifests: which bytes a dataset consists of, entry by entry (docs/manifest-format.md).

A manifest is mapped, and its arrays are views of the map: opening one of a million entries costs
milliseconds, and processes share its pages. `copperfs dataset manifest` writes them.
"""

from __future__ import annotations

import mmap
import os
import struct
from bisect import bisect_left
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._blake3 import blake3
from .errors import ManifestError
from .layout import CHUNK_BYTES, PARTITIONS, Layout, stripes_for

MAGIC = b"CPFSMAN\n"
FORMAT = 1
HEADER_BYTES = 256
TRAILER_BYTES = 32
ALIGNMENT = 64
# Magic, format, flags, length, entries, files, size, identity, finished, long entries, parts, path bytes.
HEADER = struct.Struct("<8sIIQQQQ32sqQQQ")
_HASHED_BYTES = 224
#: An entry above this size is several items, one for each part of this size.
PART_BYTES = 4 << 20

_AGAIN = "make it again with `copperfs dataset manifest`"


class Entry(NamedTuple):
    """One entry: `length` bytes at `offset` of the file at `path`, and their BLAKE3 hash."""

    path: str
    offset: int
    length: int
    hash: bytes


class Item(NamedTuple):
    """The unit of caches: `length` bytes from byte `begin` of an entry on, and their BLAKE3 hash."""

    begin: int
    length: int
    hash: bytes


def sections(
    entries: int, files: int, long: int, parts: int, path_bytes: int
) -> tuple[dict[str, tuple[int, str, tuple[int, ...]]], int]:
    """Returns each section's offset, type and shape, and where the trailer begins."""
    shapes: list[tuple[str, str, tuple[int, ...]]] = [
        ("hashes", "u1", (entries, 32)),
        ("lengths", "<u8", (entries,)),
        ("offsets", "<u8", (entries,)),
        ("files", "<u4", (entries,)),
        ("long", "<u8", (long,)),
        ("parts_at", "<u8", (long,)),
        ("parts", "u1", (parts, 32)),
        ("sizes", "<u8", (files,)),
        ("versions", "u1", (files, 32)),
        ("path_ends", "<u8", (files,)),
        ("paths", "u1", (path_bytes,)),
    ]
    found, at = {}, HEADER_BYTES
    for name, kind, shape in shapes:
        at = -(-at // ALIGNMENT) * ALIGNMENT
        found[name] = (at, kind, shape)
        count = 1
        for extent in shape:
            count *= extent
        at += count * np.dtype(kind).itemsize
    return found, at


class Manifest:
    """A mapped manifest. `len()` is its number of entries; entries have numbers from 0.

    The arrays `hashes`, `lengths`, `offsets`, `files`, `long`, `parts_at`, `parts`, `sizes` and `versions`
    are views of the file, and cannot be written to.
    """

    hashes: NDArray[np.uint8]
    lengths: NDArray[np.uint64]
    offsets: NDArray[np.uint64]
    files: NDArray[np.uint32]
    long: NDArray[np.uint64]
    parts_at: NDArray[np.uint64]
    parts: NDArray[np.uint8]
    sizes: NDArray[np.uint64]
    versions: NDArray[np.uint8]
    path_ends: NDArray[np.uint64]
    paths: NDArray[np.uint8]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.file = Path(path)
        with open(self.file, "rb") as file:
            held = os.fstat(file.fileno()).st_size
            if held < HEADER_BYTES + TRAILER_BYTES:
                # An empty file cannot be mapped.
                self._check_magic(file.read(len(MAGIC)))
                self._fail(f"has {held} bytes, fewer than any manifest: it is cut short")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        entries, files, long, parts, path_bytes = self._read_header(held)
        places, end = sections(entries, files, long, parts, path_bytes)
        if end + TRAILER_BYTES != held:
            self._fail(f"has {held} bytes where its header describes {end + TRAILER_BYTES}")
        for name, (at, kind, shape) in places.items():
            view = np.frombuffer(self._map, dtype=kind, count=int(np.prod(shape)), offset=at)
            setattr(self, name, view.reshape(shape))
        self._check_tables()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Manifest:
        """Maps the manifest at `path`, and checks its header and tables.

        Raises `ManifestError` if the file is not a manifest, is cut short, or contradicts itself;
        `OSError` if it cannot be read. `verify` checks each byte.
        """
        return cls(path)

    def __reduce__(self) -> tuple[type[Manifest], tuple[Path]]:
        # A worker process maps the same file.
        return Manifest, (self.file,)

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        return f"Manifest({str(self.file)!r}: {len(self)} entries, {self.size} bytes)"

    def path(self, entry: int) -> str:
        """Returns the path of an entry's file, relative to the dataset's root."""
        return self._file_path(int(self.files[entry]))

    def entry(self, entry: int) -> Entry:
        """Returns all of an entry."""
        offset, length = int(self.offsets[entry]), int(self.lengths[entry])
        return Entry(self.path(entry), offset, length, self.hashes[entry].tobytes())

    def items(self, entry: int) -> list[Item]:
        """Returns the items of an entry: one, or the parts of a long one, or none of an empty one."""
        length = int(self.lengths[entry])
        if length <= PART_BYTES:
            return [Item(0, length, self.hashes[entry].tobytes())] if length else []
        first = int(self.parts_at[np.searchsorted(self.long, entry)])
        return [
            Item(begin, min(PART_BYTES, length - begin), self.parts[first + number].tobytes())
            for number, begin in enumerate(range(0, length, PART_BYTES))
        ]

    def files_at(self, path: str) -> NDArray[np.int64]:
        """Returns the number of the file at `path`, or of all files below that directory; none if none is.

        The first call takes a quarter of a second for a million files.
        """
        names, files = self._sorted_paths
        name = os.fsencode(path).strip(b"/")
        if name in (b"", b"."):
            return files
        at = bisect_left(names, name)
        if at < len(names) and names[at] == name:
            return files[at : at + 1]
        # The names below a directory are together: its name, a slash, and anything.
        below = name + b"/"
        return files[bisect_left(names, below, at) : bisect_left(names, name + b"0", at)]

    def entries_of(self, files: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the entries of files, ascending."""
        chosen = np.zeros(len(self.sizes), dtype=np.bool_)
        chosen[files] = True
        return np.flatnonzero(chosen[self.files])

    def layout(self, chunk_bytes: int = CHUNK_BYTES, partitions: int = PARTITIONS) -> Layout:
        """Returns the units and chunks of this dataset."""
        return Layout(len(self), stripes_for(self.size, chunk_bytes), partitions)

    def verify(self) -> None:
        """Checks each byte of the file, the identity, and that no entries overlap.

        Takes about a second for a million entries. Raises `ManifestError` if a byte has changed since the
        file was made, or its entries make no dataset.
        """
        body = memoryview(self._map)
        if blake3(body[:-TRAILER_BYTES]) != body[-TRAILER_BYTES:]:
            self._fail("is damaged: its bytes do not have the hash at its end")
        named = np.empty((len(self), 40), dtype=np.uint8)
        named[:, :32] = self.hashes
        named[:, 32:] = self.lengths.view(np.uint8).reshape(-1, 8)
        if blake3(named.tobytes()).hex() != self.identity:
            self._fail("is damaged: its identity is not that of its entries")
        placed = np.lexsort((self.offsets, self.files))
        files, offsets, lengths = self.files[placed], self.offsets[placed], self.lengths[placed]
        overlap = (files[1:] == files[:-1]) & (offsets[1:] < offsets[:-1] + lengths[:-1])
        if np.any(overlap):
            first = placed[int(np.argmax(overlap))]
            self._fail(f"has entries that overlap in {self.path(first)}, from byte {self.offsets[first]} on")

    @cached_property
    def _sorted_paths(self) -> tuple[list[bytes], NDArray[np.int64]]:
        """The paths of all files in the order of their bytes, and the number of each file."""
        paths = self.paths.tobytes()
        ends: list[int] = self.path_ends.tolist()
        names = [paths[begin:end] for begin, end in zip([0, *ends], ends)]
        files = sorted(range(len(names)), key=names.__getitem__)
        return [names[file] for file in files], np.array(files, dtype=np.int64)

    def _file_path(self, file: int) -> str:
        begin = int(self.path_ends[file - 1]) if file else 0
        return os.fsdecode(self.paths[begin : int(self.path_ends[file])].tobytes())

    def _fail(self, why: str, advice: str = _AGAIN) -> Any:
        raise ManifestError(f"{self.file} {why}", advice)

    def _check_magic(self, magic: bytes) -> None:
        if magic != MAGIC[: len(magic)] or not magic:
            self._fail("is not a manifest", "give a file made by `copperfs dataset manifest`")

    def _read_header(self, held: int) -> tuple[int, int, int, int, int]:
        header = self._map[:HEADER_BYTES]
        self._check_magic(header[: len(MAGIC)])
        fields = HEADER.unpack_from(header)
        _, form, flags, length, entries, files, size, identity, finished, *tables = fields
        if form != FORMAT or flags != 0:
            self._fail(
                f"is of format {form} with flags {flags:#x}; this package reads format {FORMAT}",
                "use the package and the program of one release",
            )
        if blake3(header[:_HASHED_BYTES]) != header[_HASHED_BYTES:]:
            self._fail("is damaged: its header does not have the hash that it contains")
        if length > held:
            self._fail(f"has {held} bytes of {length}: it is cut short", "copy it again, or " + _AGAIN)
        if length < held:
            self._fail(f"has {held - length} bytes behind its end")
        self.size: int = size
        self.identity: str = identity.hex()
        self.finished: int = finished
        long, parts, path_bytes = tables
        return entries, files, long, parts, path_bytes

    def _check_tables(self) -> None:
        """Checks that every number in the tables points at something."""
        ends = self.path_ends
        ascending = bool(np.all(ends[1:] >= ends[:-1]))
        if not ascending or (int(ends[-1]) if len(ends) else 0) != len(self.paths):
            self._fail("is damaged: the ends of its paths do not ascend to the end of all paths")
        if len(self) and int(self.files.max()) >= len(self.sizes):
            self._fail("is damaged: an entry names a file that it does not have")
        # A sum above 64 bits would pass for a small one.
        room = self.sizes[self.files]
        if np.any(self.offsets > room) or np.any(self.lengths > room - self.offsets):
            self._fail("is damaged: an entry reaches beyond the end of its file")
        if int(self.lengths.sum()) != self.size:
            self._fail("is damaged: its entries do not add up to its size")
        if len(self.long) and (
            int(self.long.max()) >= len(self) or int(self.parts_at.max()) >= len(self.parts)
        ):
            self._fail("is damaged: its table of long entries names some that it does not have")

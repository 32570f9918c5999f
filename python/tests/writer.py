"""Writes small manifests and their files, after docs/manifest-format.md."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from blake3 import blake3 as native

from copperfs.manifest import FORMAT, HEADER, HEADER_BYTES, MAGIC, sections

PART_BYTES = 4 << 20


def blake3(contents: bytes) -> bytes:
    """Another implementation than the package's."""
    return native(contents).digest()


@dataclass
class Written:
    """What a manifest is made of. The tests change it before `encode`."""

    hashes: list[bytes] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    paths: list[bytes] = field(default_factory=list)
    parts: dict[int, list[bytes]] = field(default_factory=dict)

    def add_file(self, path: str, contents: bytes, pieces: list[tuple[int, int]] | None = None) -> None:
        """Adds a file, by default as one entry."""
        self.paths.append(os.fsencode(path))
        self.sizes.append(len(contents))
        for offset, length in pieces or [(0, len(contents))]:
            piece = contents[offset : offset + length]
            if length > PART_BYTES:
                self.parts[len(self.hashes)] = [
                    blake3(piece[at : at + PART_BYTES]) for at in range(0, length, PART_BYTES)
                ]
            self.hashes.append(blake3(piece))
            self.lengths.append(length)
            self.offsets.append(offset)
            self.files.append(len(self.paths) - 1)

    def identity(self) -> bytes:
        pairs = zip(self.hashes, self.lengths)
        return blake3(b"".join(digest + length.to_bytes(8, "little") for digest, length in pairs))

    def encode(self, form: int = FORMAT) -> bytes:
        ends = np.cumsum([len(path) for path in self.paths], dtype="<u8")
        parts = [part for number in sorted(self.parts) for part in self.parts[number]]
        counts = [len(self.parts[number]) for number in sorted(self.parts)]
        path_bytes = b"".join(self.paths)
        arrays = {
            "hashes": b"".join(self.hashes),
            "lengths": np.array(self.lengths, dtype="<u8").tobytes(),
            "offsets": np.array(self.offsets, dtype="<u8").tobytes(),
            "files": np.array(self.files, dtype="<u4").tobytes(),
            "long": np.array(sorted(self.parts), dtype="<u8").tobytes(),
            "parts_at": np.array([sum(counts[:n]) for n in range(len(counts))], dtype="<u8").tobytes(),
            "parts": b"".join(parts),
            "sizes": np.array(self.sizes, dtype="<u8").tobytes(),
            "versions": bytes(32 * len(self.sizes)),
            "path_ends": ends.tobytes(),
            "paths": path_bytes,
        }
        places, end = sections(
            len(self.hashes), len(self.sizes), len(self.parts), len(parts), len(path_bytes)
        )
        body = bytearray(end)
        fixed = HEADER.pack(
            MAGIC, form, 0, end + 32, len(self.hashes), len(self.sizes), sum(self.lengths),
            self.identity(), 1_700_000_000, len(self.parts), len(parts), len(path_bytes),
        )  # fmt: skip
        header = fixed.ljust(224, b"\0")
        body[:HEADER_BYTES] = header + blake3(header)
        for name, contents in arrays.items():
            at = places[name][0]
            body[at : at + len(contents)] = contents
        return bytes(body) + blake3(bytes(body))


def content_of(number: int) -> bytes:
    """The bytes of the test dataset's entry `number`: all different, of different lengths."""
    return (b"%06d|" % number) * (1 + number % 5)


def write_dataset(directory: Path, entries: int) -> Path:
    """Writes a dataset of small files and its manifest, and returns the manifest's path."""
    written = Written()
    (directory / "data").mkdir()
    for number in range(entries):
        (directory / "data" / name_of(number)).write_bytes(content_of(number))
        written.add_file(name_of(number), content_of(number))
    path = directory / "test.manifest"
    path.write_bytes(written.encode())
    return path


def name_of(number: int) -> str:
    """The path of the test dataset's entry `number`."""
    return f"{number:06d}.bin"

"""BLAKE3 against the vectors of its reference implementation."""

from __future__ import annotations

import pytest

from copperfs._blake3 import blake3

# Of BLAKE3-team/BLAKE3, test_vectors/test_vectors.json: bytes 0, 1, … 250, 0, 1, …
VECTORS = {
    0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    1023: "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11",
    1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
    1025: "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
    2048: "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a",
    2049: "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030",
    3073: "7124b49501012f81cc7f11ca069ec9226cecb8a2c850cfe644e327d22d3e1cd3",
    31744: "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47",
}


@pytest.mark.parametrize("length", VECTORS)
def test_hashes_are_those_of_the_reference(length: int) -> None:
    assert blake3(bytes(n % 251 for n in range(length))).hex() == VECTORS[length]


def test_more_chunks_than_are_hashed_together() -> None:
    reference = pytest.importorskip("blake3", reason="skipped: no package blake3 to compare with")
    data = bytes(range(256)) * 4 * 5000 + b"end"
    assert blake3(data) == reference.blake3(data).digest()

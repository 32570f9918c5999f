"""Entries read with the caller's own credentials: what is fetched, checked, and given to the cache."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any, Callable

import pytest
from conftest import ENTRIES
from daemon import Daemon, answer
from writer import Written, blake3, content_of

import copperfs
from copperfs import ContentError, CopperError, Dataset, Manifest
from copperfs.dataset import NO_ITEM, OTHER_BYTES, REFUSED
from copperfs.manifest import PART_BYTES
from copperfs.reader import Reader


class Cache:
    """The content requests of a daemon, which keeps items if their bytes have their hash."""

    def __init__(self, daemon: Daemon) -> None:
        self.held: dict[bytes, bytes] = {}
        self.given: list[bytes] = []
        self.private = False
        daemon.routes[("POST", "/v1/content/get")] = self.get
        daemon.routes[("POST", "/v1/content/insert")] = self.insert

    def get(self, body: bytes, _: object) -> Any:
        found = [self.held.get(body[at : at + 32]) for at in range(0, len(body), 32)]
        frames = [b"\xff" * 4 if one is None else len(one).to_bytes(4, "little") + one for one in found]
        return answer(b"".join(frames))

    def insert(self, body: bytes, _: object) -> Any:
        codes, at = [], 0
        while at < len(body):
            digest, length = body[at : at + 32], int.from_bytes(body[at + 32 : at + 36], "little")
            contents = body[at + 36 : at + 36 + length]
            at += 36 + length
            codes.append(self._outcome(digest, contents))
        return answer(bytes(codes))

    def _outcome(self, digest: bytes, contents: bytes) -> int:
        if not 0 < len(contents) <= PART_BYTES:
            return NO_ITEM
        if blake3(contents) != digest:
            return OTHER_BYTES
        if self.private:
            return REFUSED
        self.held[digest] = contents
        self.given.append(digest)
        return 0


@pytest.fixture
def cache(daemon: Daemon) -> Cache:
    return Cache(daemon)


@pytest.fixture(params=["checked here", "checked by the daemon"])
def _checker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "checked by the daemon":
        monkeypatch.setattr("copperfs.reader._blake3", None)


def fetching(change: Callable[[bytes], bytes] = lambda contents: contents) -> Any:
    """A fetch of the test dataset, and the paths that it was asked for."""

    def fetch(path: str, offset: int, length: int) -> bytes:
        fetch.asked.append(path)  # type: ignore[attr-defined]
        return change(content_of(int(path[:6]))[offset : offset + length])

    fetch.asked = []  # type: ignore[attr-defined]
    return fetch


def other(contents: bytes) -> bytes:
    """Bytes of the same length, of which one differs."""
    return bytes([contents[0] ^ 1]) + contents[1:]


@pytest.mark.usefixtures("_checker")
def test_fetched_bytes_that_are_not_the_entrys_are_refused(data: Dataset, cache: Cache) -> None:
    reader = Reader(data, fetching(other))
    entry = data.entry(7)
    with pytest.raises(ContentError) as caught:
        reader.read([7])
    for part in (entry.path, entry.hash.hex(), "other bytes", "check what fetch reads"):
        assert part in str(caught.value)
    assert cache.held == {}
    with pytest.raises(ContentError, match="other bytes"):
        reader.bring([7])


@pytest.mark.usefixtures("_checker", "cache")
def test_a_loop_is_not_given_other_bytes(data: Dataset) -> None:
    wrong = data.manifest.path(60)

    def fetch(path: str, offset: int, length: int) -> bytes:
        contents = content_of(int(path[:6]))
        return other(contents) if path == wrong else contents

    seen: list[bytes] = []
    with pytest.raises(ContentError, match=wrong):
        seen += chain.from_iterable(copperfs.batches(data, 5, fetch=fetch, fill=0))
    assert len(seen) < ENTRIES
    assert other(content_of(60)) not in seen


@pytest.mark.usefixtures("_checker")
def test_fetched_bytes_are_given_to_the_cache_and_had_from_it(data: Dataset, cache: Cache) -> None:
    fetch = fetching()
    for _ in range(2):
        assert Reader(data, fetch).read([3, 5, 3]) == [content_of(3), content_of(5), content_of(3)]
    assert fetch.asked == [data.manifest.path(3), data.manifest.path(5)]
    assert cache.given == [data.entry(3).hash, data.entry(5).hash]


def test_bytes_of_a_private_dataset_are_used_and_not_brought(data: Dataset, cache: Cache) -> None:
    cache.private = True
    reader = Reader(data, fetching())
    assert reader.read([3]) == [content_of(3)]
    with pytest.raises(CopperError, match="or it is private; declare the dataset"):
        reader.bring([3])


@pytest.mark.usefixtures("_checker")
def test_long_entries_are_cached_part_by_part_and_empty_ones_not_fetched(
    data: Dataset, cache: Cache, tmp_path: Path
) -> None:
    long = bytes(range(256)) * (2 * PART_BYTES // 256) + b"end"
    written = Written()
    written.add_file("long", long)
    written.add_file("empty", b"")
    written.add_file("copy", long)
    (tmp_path / "m").write_bytes(written.encode())
    mine = Dataset(data.mount, Manifest.open(tmp_path / "m"), "d", str(tmp_path))
    asked = []

    def fetch(path: str, offset: int, length: int) -> bytes:
        asked.append((path, offset, length))
        return long

    for _ in range(2):
        assert Reader(mine, fetch).read([0, 1, 2]) == [long, b"", long]
    assert asked == [("long", 0, len(long))]
    assert [len(cache.held[item.hash]) for item in mine.manifest.items(2)] == [PART_BYTES, PART_BYTES, 3]
    assert mine.manifest.items(1) == []
    # A part that has gone brings the whole entry.
    del cache.held[mine.manifest.items(0)[2].hash]
    assert Reader(mine, fetch).read([2]) == [long]
    assert asked[1:] == [("copy", 0, len(long))]

"""Reads entries: through the mount, or with credentials of the job's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Callable

from .dataset import OTHER_BYTES, REFUSED, Dataset
from .errors import ContentError, CopperError

#: Fetches `length` bytes at `offset` of the file at `path`, which is relative to the dataset's root.
Fetch = Callable[[str, int, int], bytes]


def _compiled() -> Any:
    try:
        return import_module("blake3").blake3
    except ImportError:
        return None


# The daemon compares bytes with their hashes, too, and the module of this package is too slow for it.
_blake3 = _compiled()


class Reader:
    """Reads the bytes of entries.

    Without `fetch`, they come through the mount, which asks the caches and then storage. With it, they come
    from the caches by their hashes; entries that no cache holds are fetched and given to them.

    Fetched bytes are compared with the manifest's hash: here if the package `blake3` is installed, else by
    the daemon. Without either they are used as they are.
    """

    def __init__(self, data: Dataset, fetch: Fetch | None = None) -> None:
        self.data = data
        self.fetch = fetch

    def read(self, entries: Sequence[int]) -> list[bytes]:
        """Returns the bytes of each entry.

        Raises `OSError`, `ContentError` if fetched bytes are not those of their entry, or the error of
        `fetch`.
        """
        if self.fetch is None:
            return self.data.read_many(entries)
        items = {entry: self.data.manifest.items(entry) for entry in entries}
        hashes = [item.hash for parts in items.values() for item in parts]
        held = dict(zip(hashes, self.data.get(hashes)))
        contents: dict[int, bytes] = {}
        fetched: dict[bytes, tuple[int, bytes]] = {}
        for entry, parts in items.items():
            found = [part for item in parts if (part := held[item.hash]) is not None]
            complete = len(found) == len(parts)
            contents[entry] = b"".join(found) if complete else self._fetch(entry, fetched)
        self._insert(fetched)
        return [contents[entry] for entry in entries]

    def bring(self, entries: Sequence[int]) -> None:
        """Brings entries into the caches.

        Raises as `read`, and `CopperError` if the daemon takes none of a dataset's items.
        """
        if self.fetch is None:
            for entry in entries:
                self.data.read(entry)
            return
        fetched: dict[bytes, tuple[int, bytes]] = {}
        for entry in entries:
            self._fetch(entry, fetched)
        if REFUSED in self._insert(fetched):
            raise CopperError(
                "the daemon refuses items of this dataset: no declared dataset names them, or it is private",
                "declare the dataset with this manifest and without --private, or read without fetch=",
            )

    def _fetch(self, number: int, fetched: dict[bytes, tuple[int, bytes]]) -> bytes:
        """Fetches an entry, unless one of the same hash is among the fetched ones, to which it is added."""
        assert self.fetch is not None
        entry = self.data.entry(number)
        if not entry.length:
            # A range of no bytes cannot be asked for.
            return b""
        if entry.hash in fetched:
            return fetched[entry.hash][1]
        contents = self.fetch(entry.path, entry.offset, entry.length)
        if len(contents) != entry.length:
            raise OSError(
                f"fetch({entry.path!r}, {entry.offset}, {entry.length}) returned {len(contents)} bytes"
            )
        if _blake3 is not None and _blake3(contents).digest() != entry.hash:
            raise self._other_bytes(number)
        fetched[entry.hash] = number, contents
        return contents

    def _insert(self, fetched: Mapping[bytes, tuple[int, bytes]]) -> set[int]:
        """Gives entries to the caches, and returns the outcomes. Raises `ContentError`."""
        given: dict[bytes, bytes] = {}
        entries: list[int] = []
        for number, contents in fetched.values():
            for item in self.data.manifest.items(number):
                if item.hash not in given:
                    given[item.hash] = contents[item.begin : item.begin + item.length]
                    entries.append(number)
        outcomes = self.data.insert(given) if given else []
        for entry, outcome in zip(entries, outcomes):
            if outcome == OTHER_BYTES:
                raise self._other_bytes(entry)
        return set(outcomes)

    def _other_bytes(self, number: int) -> ContentError:
        entry = self.data.entry(number)
        return ContentError(
            f"fetch({entry.path!r}, {entry.offset}, {entry.length}) returned other bytes than those of the "
            f"manifest, whose BLAKE3 hash is {entry.hash.hex()}",
            "check what fetch reads; if the file has changed, make the manifest again with "
            "`copperfs dataset manifest`",
        )

"""Reads entries: through the mount, or with credentials of the job's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

from .dataset import Dataset

#: Fetches `length` bytes at `offset` of the file at `path`, which is relative to the dataset's root.
Fetch = Callable[[str, int, int], bytes]


class Reader:
    """Reads the bytes of entries.

    Without `fetch`, they come through the mount, which asks the caches and then storage. With it, they come
    from the caches by their hashes; entries that no cache holds are fetched and given to them.
    """

    def __init__(self, data: Dataset, fetch: Fetch | None = None) -> None:
        self.data = data
        self.fetch = fetch

    def read(self, entries: Sequence[int]) -> list[bytes]:
        """Returns the bytes of each entry. Raises `OSError`, or the error of `fetch`."""
        if self.fetch is None:
            return [self.data.read(entry) for entry in entries]
        found = self.data.get([self.data.manifest.hashes[entry].tobytes() for entry in entries])
        fetched: dict[bytes, bytes] = {}
        contents = []
        for entry, held in zip(entries, found):
            contents.append(self._fetch(entry, fetched) if held is None else held)
        if fetched:
            self.data.insert(fetched)
        return contents

    def bring(self, entries: Sequence[int]) -> None:
        """Brings entries into the caches. Raises as `read`."""
        if self.fetch is None:
            for entry in entries:
                self.data.read(entry)
            return
        fetched: dict[bytes, bytes] = {}
        for entry in entries:
            self._fetch(entry, fetched)
        self.data.insert(fetched)

    def _fetch(self, number: int, fetched: dict[bytes, bytes]) -> bytes:
        assert self.fetch is not None
        entry = self.data.entry(number)
        if entry.hash not in fetched:
            contents = self.fetch(entry.path, entry.offset, entry.length)
            if len(contents) != entry.length:
                raise OSError(
                    f"fetch({entry.path!r}, {entry.offset}, {entry.length}) returned {len(contents)} bytes"
                )
            fetched[entry.hash] = contents
        return fetched[entry.hash]

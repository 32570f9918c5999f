"""Units and chunks: how the entries of a dataset are divided for caching by parts.

The entries, in dataset order, are P partitions of S units. Chunk *c* is unit *c* of every partition, so
that a chunk is spread over the whole dataset, whatever its order (Quiver, section 5.1).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

PARTITIONS = 10
STRIPES_MIN = 10
CHUNK_BYTES = 15_000_000_000


def stripes_for(size: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Returns the number of chunks of a dataset of `size` bytes: at least 10."""
    return max(STRIPES_MIN, -(-size // chunk_bytes))


class Layout:
    """The units and chunks of `entries` entries.

    Unit *u* of P·S is entries [⌊u·N/PS⌋, ⌊(u+1)·N/PS⌋), and chunk *c* is all units with u mod S = c.
    """

    def __init__(self, entries: int, stripes: int, partitions: int = PARTITIONS) -> None:
        if entries < 0 or stripes < 1 or partitions < 1:
            raise ValueError(
                f"a layout of {entries} entries in {partitions} partitions and {stripes} stripes: "
                "partitions and stripes are at least 1, entries at least 0"
            )
        self.entries = entries
        self.stripes = stripes
        self.partitions = partitions
        units = partitions * stripes
        # Python's integers: u·N may exceed 64 bits.
        self.bounds = np.array([u * entries // units for u in range(units + 1)], dtype=np.int64)
        self._mask_of = lru_cache(maxsize=4)(self._make_mask)

    def __reduce__(self) -> tuple[type[Layout], tuple[int, int, int]]:
        return Layout, (self.entries, self.stripes, self.partitions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return self.__reduce__()[1] == other.__reduce__()[1]

    def __hash__(self) -> int:
        return hash(self.__reduce__()[1])

    def unit(self, number: int) -> tuple[int, int]:
        """Returns the first entry of a unit, and the one after its last."""
        return int(self.bounds[number]), int(self.bounds[number + 1])

    def unit_of(self, entry: int) -> int:
        """Returns the number of the unit that holds an entry."""
        return int(np.searchsorted(self.bounds, entry, side="right")) - 1

    def units_of_chunk(self, chunk: int) -> range:
        """Returns the numbers of a chunk's units, one of each partition."""
        if not 0 <= chunk < self.stripes:
            raise ValueError(f"chunk {chunk} of a dataset of {self.stripes} chunks")
        return range(chunk, self.partitions * self.stripes, self.stripes)

    def chunk(self, chunk: int) -> NDArray[np.int64]:
        """Returns the entries of a chunk, ascending."""
        ranges = [np.arange(*self.unit(unit)) for unit in self.units_of_chunk(chunk)]
        return np.concatenate(ranges).astype(np.int64, copy=False)

    def mask(self, chunk: int) -> NDArray[np.bool_]:
        """Returns for each entry whether it belongs to a chunk. Not to be written to."""
        return self._mask_of(chunk)

    def _make_mask(self, chunk: int) -> NDArray[np.bool_]:
        mask = np.zeros(self.entries, dtype=np.bool_)
        for unit in self.units_of_chunk(chunk):
            first, end = self.unit(unit)
            mask[first:end] = True
        mask.flags.writeable = False
        return mask

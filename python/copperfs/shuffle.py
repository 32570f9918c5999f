"""Random orders and parts that are the same on every machine, and with every version of numpy.

numpy does not promise that its generators draw the same numbers in another version. Ranks on different
nodes and resumed runs must agree on every order, so orders come from a mixing function of 64 bits
(SplitMix64's), which is a bijection: no two entries of an epoch have the same key.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns SplitMix64's output function of each value."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def salt(*numbers: int) -> int:
    """Returns 64 bits that depend on every bit of `numbers` and on their order."""
    state = 0
    for number in numbers:
        # An array: numpy warns of the intended overflow of scalars.
        word = np.array([(state + (number & _MASK)) * _GOLDEN & _MASK], dtype=np.uint64)
        state = (int(mixed(word)[0]) + _GOLDEN) & _MASK
    return state


def keys(numbers: NDArray[np.integer], salt_bits: int) -> NDArray[np.uint64]:
    """Returns a random key for each number, the same for the same number and salt."""
    words = numbers.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(salt_bits)
    return mixed(words)


def permuted(entries: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
    """Returns `entries` in their order of an epoch. A subset keeps the order of the whole."""
    return entries[np.argsort(keys(entries, salt(seed, epoch)), kind="stable")]


def part_of_rank(entries: NDArray[np.int64], rank: int, world_size: int, identity: str) -> NDArray[np.int64]:
    """Returns the part of `entries`, ascending, that belongs to a rank.

    Of each `world_size` consecutive entries every rank has one, by a turn that depends on the dataset's
    identity. So the parts of two ranks differ by one entry at most, those of any one stripe unit by two,
    and a regular pattern in the dataset's order does not fall to one rank.
    """
    blocks = np.arange(-(-len(entries) // world_size), dtype=np.int64)
    turns = keys(blocks, salt(int(identity[:16] or "0", 16), world_size)) % np.uint64(world_size)
    places = blocks * world_size + (rank - turns.astype(np.int64)) % world_size
    part: NDArray[np.int64] = entries[places[places < len(entries)]]
    return part

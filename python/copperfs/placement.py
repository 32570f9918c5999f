"""Which node is the home of an item: weighted rendezvous hashing over 16,384 slots. Pure.

An item belongs to a slot by the first two bytes of its hash. A slot's home is the node with the smallest
score, -ln u / capacity, where u follows from the hash of the slot and of the node's name. This is the
computation of `src/model/slots.rs`, and it gives the same homes to the bit: it uses only integers and the
operations of IEEE 754 that are exactly rounded, in the same order. So it has the daemon's logarithm, too;
numpy's differs in the last bit between versions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._blake3 import blake3
from .manifest import PART_BYTES, Manifest
from .shuffle import mixed

#: The number of slots.
SLOTS = 16_384
_GOLDEN = 0x9E3779B97F4A7C15
# Terms of the logarithm's series.
_TERMS = 11
# A relative margin above any error of the logarithm.
_MARGIN = 1.0 + 1e-9

_Floats = NDArray[np.float64]


class Home(NamedTuple):
    """A node that stores datasets: its name in the list of nodes, and its capacity in bytes."""

    name: str
    capacity: int


class Homes:
    """The homes of all items of all datasets, for one set of nodes."""

    def __init__(self, nodes: Sequence[Home] = ()) -> None:
        self.nodes = tuple(nodes)
        #: The hosts that schedulers know. Several nodes may share one.
        self.hosts: list[str] = list(dict.fromkeys(host_of(node.name) for node in nodes))
        places = [self.hosts.index(host_of(node.name)) for node in nodes]
        # The index of each slot's host; that of no host for nodes without capacity.
        self._host_of_slot = np.array([*places, len(self.hosts)], dtype=np.int64)[homes_of_slots(self.nodes)]

    def bytes_by_host(self, manifest: Manifest, entries: NDArray[np.int64]) -> dict[str, int]:
        """Returns for each host how many bytes of `entries` are at home there, the most first.

        Hosts that have none are left out.
        """
        slots, lengths = _items(manifest, entries)
        found = np.bincount(self._host_of_slot[slots], weights=lengths, minlength=len(self.hosts))
        pairs = [(host, int(count)) for host, count in zip(self.hosts, found) if count]
        return dict(sorted(pairs, key=lambda pair: -pair[1]))


def host_of(name: str) -> str:
    """Returns the host in a node's name, which is `host`, `host:port`, or an address of IPv6 in brackets."""
    if name.startswith("["):
        return name[1:].partition("]")[0]
    # More than one colon: an address of IPv6 without a port.
    return name.partition(":")[0] if name.count(":") == 1 else name


def homes_of_slots(nodes: Sequence[Home]) -> NDArray[np.int64]:
    """Returns the index of each slot's home; -1 if no node has any capacity.

    Takes half a millisecond for each node that was not seen before.
    """
    slots = np.arange(1, SLOTS + 1, dtype=np.uint64)
    keys = mixed(slots * np.uint64(_GOLDEN))
    homes = np.full(SLOTS, -1, dtype=np.int64)
    best = np.full(SLOTS, np.inf)
    seeds = np.zeros(SLOTS, dtype=np.uint64)
    for place, node in enumerate(nodes):
        if node.capacity <= 0:
            continue
        seed, per_weight = np.uint64(_seed(node.name)), 1.0 / float(node.capacity)
        uniform = _uniform(mixed(keys ^ seed))
        # -ln u >= 1 - u, so most slots are ruled out without a logarithm.
        near = np.flatnonzero((1.0 - uniform) * per_weight <= best * _MARGIN)
        scores = -_ln(uniform[near]) * per_weight
        # Names break ties, so that the order of the nodes does not matter.
        wins = (scores < best[near]) | ((scores == best[near]) & (seed < seeds[near]))
        won = near[wins]
        homes[won], best[won], seeds[won] = place, scores[wins], seed
    return homes


@lru_cache(maxsize=1 << 16)
def _seed(name: str) -> int:
    """Returns the first eight bytes of the BLAKE3 hash of a node's name."""
    return int.from_bytes(blake3(name.encode())[:8], "little")


def _uniform(hashes: NDArray[np.uint64]) -> _Floats:
    """Converts 52 bits of each hash to a number strictly between 0 and 1, exactly."""
    uniform: _Floats = ((hashes >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return uniform


def _ln(x: _Floats) -> _Floats:
    """Returns the natural logarithm of positive normal numbers, as the daemon computes it."""
    bits = x.view(np.int64)
    exponent = (bits >> 52) - 1023
    # Reduced to 1..2, then to the square root of a half to that of two.
    mantissa = ((bits & ((1 << 52) - 1)) | (1023 << 52)).view(np.float64)
    above = mantissa > math.sqrt(2.0)
    mantissa = np.where(above, mantissa * 0.5, mantissa)
    exponent = exponent + above
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = np.zeros_like(x)
    for n in reversed(range(_TERMS)):
        series = series * square + 1.0 / (2 * n + 1)
    # The constant is the daemon's, LN_2 in double precision.
    return exponent.astype(np.float64) * 0.6931471805599453 + 2.0 * s * series


def _items(manifest: Manifest, entries: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the slot and the length of each item of `entries`. An empty entry has none."""
    lengths = manifest.lengths[entries].astype(np.int64)
    one = (lengths > 0) & (lengths <= PART_BYTES)
    slots, sizes = [_slots(manifest.hashes[entries[one]])], [lengths[one]]
    for entry in entries[lengths > PART_BYTES].tolist():
        length = int(manifest.lengths[entry])
        begin = int(manifest.parts_at[np.searchsorted(manifest.long, entry)])
        offsets = np.arange(0, length, PART_BYTES, dtype=np.int64)
        slots.append(_slots(manifest.parts[begin : begin + len(offsets)]))
        sizes.append(np.minimum(length - offsets, PART_BYTES))
    return np.concatenate(slots), np.concatenate(sizes)


def _slots(hashes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Returns the slot of each hash: its first two bytes, little-endian, modulo the number of slots."""
    low = np.ascontiguousarray(hashes[:, :2]).view("<u2").reshape(-1)
    return low.astype(np.int64) % SLOTS

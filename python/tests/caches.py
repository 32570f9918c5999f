"""A dataset's caches without a daemon: residency, chunks and references as a test sets them."""

from __future__ import annotations

import numpy as np

from copperfs.dataset import CACHED, Chunk, Chunks
from copperfs.layout import Layout


class Caches:
    """Has the questions of `copperfs.Dataset` that samplers, guides and reporters ask."""

    def __init__(self, entries: int, stripes: int = 10, partitions: int = 10) -> None:
        self.layout = Layout(entries, stripes, partitions)
        self.identity = "5eed" * 16
        self.bits = np.zeros(entries, dtype=np.bool_)
        self.states: dict[int, str] = {}
        self.kept = False
        self.answers = CACHED
        self.joined: set[int] = set()
        # The epoch of each rank, and the chunks that it has exhausted.
        self.epochs: dict[int, int] = {}
        self.exhausted: dict[int, frozenset[int]] = {}
        self.refs: list[tuple[object, ...]] = []
        self.reports: list[tuple[object, ...]] = []

    def __len__(self) -> int:
        return self.layout.entries

    def hold(self, **states: str) -> Caches:
        """Makes chunks resident, the older first: `hold(c3="marked", c4="complete")`."""
        self.kept = True
        self.states = {int(name[1:]): state for name, state in states.items()}
        self.bits = np.zeros(len(self), dtype=np.bool_)
        for chunk, state in self.states.items():
            if state != "loading":
                self.bits |= self.layout.mask(chunk)
        return self

    def resident(self, entries: np.ndarray | None = None) -> np.ndarray:
        # A new answer each time, as after a tenth of a second.
        return self.bits.view() if entries is None else self.bits[entries]

    def chunks(self) -> Chunks:
        held = [
            Chunk(
                chunk,
                state,
                0,
                len(self) // 10,
            )
            for chunk, state in self.states.items()
        ]
        return Chunks("1.1", self.layout, tuple(held), self.kept)

    def join(self, rank: int, epoch: int, exhausted: frozenset[int]) -> Chunks:
        self.joined.add(rank)
        known = self.exhausted.get(rank, frozenset()) if self.epochs.get(rank) == epoch else frozenset()
        self.refs += [("exhausted", chunk, rank) for chunk in sorted(exhausted - known)]
        self.epochs[rank], self.exhausted[rank] = epoch, exhausted
        return self.chunks()

    def ref(self, chunk: int, rank: int, epoch: int) -> bool:
        self.refs.append(("ref", chunk, rank))
        return chunk in self.states

    def unref(self, chunk: int, exhausted: bool, rank: int) -> None:
        self.refs.append(("unref", chunk, exhausted, rank))

    def mode(self) -> str:
        return self.answers

    def report(self, *numbers: object, ranks: int = 1) -> None:
        self.ranks = ranks
        self.reports.append(numbers)

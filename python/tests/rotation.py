"""The daemon's rules for resident chunks, in Python: those of `policy/src/chunks`, for one node. Each
rank is a job of its own.

Time is an argument of `tick`: then entries of loading chunks arrive, and chunks come and go. The messages of
ranks are heard at once. They have an effect with the next tick, as the decisions of an allocator have.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Callable

import numpy as np
from caches import Caches

from copperfs.dataset import Chunk, Chunks

RESIDENT_MAX = 2
PATIENCE = 10


class Reading:
    """`Reading` of the policy, with the time since which each chunk is known to be exhausted."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self.refers: set[int] = set()
        self.exhausted: dict[int, float] = {}


class Held:
    """A resident chunk."""

    def __init__(self, chunk: int, since: float) -> None:
        self.chunk = chunk
        self.since = since
        self.marked: float | None = None
        self.complete = False

    @property
    def state(self) -> str:
        return "marked" if self.marked is not None else "complete" if self.complete else "loading"


class Rotating(Caches):
    """Caches whose chunks come and go as the ranks' messages say.

    `rate` is the number of entries that arrive in a second. `brought` is called with a chunk that comes in.
    """

    def __init__(self, entries: int, stripes: int, rate: float, evict_after: float, seed: int = 0) -> None:
        super().__init__(entries, stripes)
        self.kept = True
        self.rate, self.evict_after = rate, evict_after
        self.random = random.Random(seed)
        self.now = 0.0
        self.held: list[Held] = []
        self.last: int | None = None
        self.readings: dict[int, Reading] = {}
        self.brought: Callable[[int], None] = lambda chunk: None

    def chunks(self) -> Chunks:
        held = [Chunk(one.chunk, one.state, 0, len(self) // self.layout.stripes) for one in self.held]
        return Chunks("1.1", self.layout, tuple(held), True)

    def join(self, rank: int, epoch: int, exhausted: frozenset[int]) -> Chunks:
        super().join(rank, epoch, exhausted)
        reading = self._reading(rank, epoch)
        reading.refers -= exhausted
        for chunk in exhausted:
            reading.exhausted.setdefault(chunk, self.now)
        return self.chunks()

    def ref(self, chunk: int, rank: int, epoch: int) -> bool:
        super().ref(chunk, rank, epoch)
        reading = self._reading(rank, epoch)
        held = next((one for one in self.held if one.chunk == chunk), None)
        if held is None or (held.marked is not None and chunk not in reading.refers):
            return False
        reading.refers.add(chunk)
        return True

    def unref(self, chunk: int, exhausted: bool, rank: int) -> None:
        super().unref(chunk, exhausted, rank)
        reading = self.readings[rank]
        reading.refers.discard(chunk)
        if exhausted:
            reading.exhausted.setdefault(chunk, self.now)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        room = self.rate * seconds
        for held in self.held:
            missing = np.flatnonzero(self.layout.mask(held.chunk) & ~self.bits)
            count = min(len(missing), int(room) + (self.random.random() < room % 1))
            room -= count
            self.bits[self.random.sample(missing.tolist(), count)] = True
            held.complete = count == len(missing)
        self._advance()

    def _reading(self, rank: int, epoch: int) -> Reading:
        reading = self.readings.get(rank)
        if reading is None or reading.epoch != epoch:
            reading = self.readings[rank] = Reading(epoch)
        return reading

    def _advance(self) -> None:
        while True:
            if len(self.held) == RESIDENT_MAX and self.held[1].complete and self.held[0].marked is None:
                self.held[0].marked = self.now
            following = self._next_in()
            out = self._next_out(following)
            if out is not None:
                chunk = self.held.pop(out).chunk
                self.bits &= ~self.layout.mask(chunk)
                for reading in self.readings.values():
                    reading.refers.discard(chunk)
            elif following is not None and len(self.held) < RESIDENT_MAX:
                self.brought(following)
                self.held.append(Held(following, self.now))
                self.last = following
            else:
                return

    def _needing(self, chunk: int) -> int:
        return sum(chunk not in reading.exhausted for reading in self.readings.values())

    def _next_in(self) -> int | None:
        stripes, first = self.layout.stripes, 0 if self.last is None else self.last + 1
        resident = {held.chunk for held in self.held}
        ring = [(first + step) % stripes for step in range(stripes)]
        needing = [(chunk, self._needing(chunk)) for chunk in ring if chunk not in resident]
        most = max((count for _, count in needing), default=0)
        return next((chunk for chunk, count in needing if count > 0 and 2 * count >= most), None)

    def _next_out(self, following: int | None) -> int | None:
        if len(self.held) < RESIDENT_MAX:
            return None
        older = self.held[0]
        readers = self.readings.values()
        is_read = any(older.chunk in one.refers and older.chunk not in one.exhausted for one in readers)
        if older.marked is not None and not is_read:
            return 0
        if following is not None:
            for place, held in enumerate(self.held):
                if not self._needing(held.chunk):
                    return place
        return 0 if any(deadline <= self.now for deadline in self._deadlines(following)) else None

    def _deadlines(self, following: int | None) -> Iterator[float]:
        older = self.held[0]
        for reading in self.readings.values():
            exhausted = reading.exhausted.get(older.chunk)
            if older.marked is not None and exhausted is not None and exhausted > older.since:
                yield exhausted + self.evict_after
            waiting = self._waiting(reading)
            if waiting is not None:
                serves = following is None or following not in reading.exhausted
                yield waiting + self.evict_after * (1 if serves else PATIENCE)

    def _waiting(self, reading: Reading) -> float | None:
        if len(reading.exhausted) >= self.layout.stripes:
            return None
        since = 0.0
        for held in self.held:
            exhausted = reading.exhausted.get(held.chunk)
            if exhausted is not None:
                since = max(since, exhausted, held.since)
            elif held.marked is not None and held.chunk not in reading.refers:
                since = max(since, held.marked)
            else:
                return None
        return since

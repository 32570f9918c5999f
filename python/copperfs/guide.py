"""Which resident chunk a rank works through, and its references to it.

A rank works through one chunk at a time, the older complete one while the newer one is loaded: taking from
both would exhaust both at once, and nothing would be left to work on while the next one comes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Callable, NamedTuple, Protocol

import numpy as np

from .dataset import Chunk, Chunks
from .sampling import Mask, Plan

LOADING, COMPLETE, MARKED = "loading", "complete", "marked"
# Marked chunks are for the jobs that work on them already. They come last, before misses.
_PREFERENCE, _LAST = {COMPLETE: 0, LOADING: 1}, 2
# The next chunk is waited for as long as this part of the time that the last one took, a second at least.
_PATIENCE, _PATIENCE_SECONDS, _PAUSE_SECONDS = 0.05, 1.0, 0.05


class Caches(Protocol):
    """The questions that a guide asks of a dataset."""

    def chunks(self) -> Chunks: ...  # noqa: D102

    def join(self, rank: int) -> Chunks: ...  # noqa: D102

    def ref(self, chunk: int, rank: int) -> bool: ...  # noqa: D102

    def unref(self, chunk: int, exhausted: bool, rank: int) -> None: ...  # noqa: D102


class Release(NamedTuple):
    """A reference to give back once the entries taken so far were consumed."""

    chunk: int
    exhausted: bool


class Guide:
    """Leads one rank through the resident chunks of an epoch."""

    def __init__(
        self,
        caches: Caches,
        plan: Plan,
        rank: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._caches = caches
        self._plan = plan
        self._rank = rank
        self._has_joined = False
        self._clock = clock
        self._sleep = sleep
        self._used_up: tuple[tuple[int, str], ...] | None = None
        self._patient_until = 0.0
        self._target: int | None = None
        # Since when it is worked on, and how long the last one took.
        self._target_since = 0.0
        self._chunk_seconds = 0.0
        self._releases: list[Release] = []

    def masks(self, resident: Mask) -> Iterator[Mask]:
        """Yields the sets from which the next entries are to be taken, the best first.

        The caller takes all it can of one before it asks for the next.
        """
        chunks = self._join()
        spent: set[int] = set()
        while chunk := self._next(chunks, resident, spent):
            spent.add(chunk.number)
            self._work_on(chunk, chunks, resident)
            yield resident & chunks.layout.mask(chunk.number)
        if chunks.resident:
            self._leave_if_used_up(chunks, resident)
        # Remains of another rule, and entries of chunks that this job does not work on.
        yield resident

    def loading(self) -> Mask | None:
        """Returns the entries of the chunk that is loading first, or none."""
        chunks = self._caches.chunks()
        for chunk in chunks.resident:
            mask = chunks.layout.mask(chunk.number)
            if chunk.state == LOADING and np.any(self._plan.left & mask):
                return mask
        return None

    def for_misses(self) -> Mask | None:
        """Returns the entries of the chunk from which misses are to be taken first, or none.

        It is the chunk that is loading first. Otherwise it is the one that comes last in the ring: then the
        next ones still serve this job as much as the others that read them.
        """
        chunks = self._caches.chunks()
        loading = self.loading()
        if loading is not None or not chunks.resident:
            return loading
        resident = {chunk.number for chunk in chunks.resident}
        newest, stripes = chunks.resident[-1].number, chunks.layout.stripes
        for back in range(1, stripes):
            number = (newest - back) % stripes
            mask = chunks.layout.mask(number)
            if number not in resident and np.any(self._plan.left & mask):
                return mask
        return None

    def wait(self) -> bool:
        """Waits a moment for the next chunk, when those that are resident are used up, or none is.

        Returns false if there is no use in it: a chunk is loading, the dataset is not kept in chunks, or some
        time has passed in vain, as when a slower job still holds the older chunk. What is missed meanwhile
        belongs to no resident chunk, so no node keeps it, and storage has to give it to each job.
        """
        chunks = self._caches.chunks()
        if not chunks.kept or self.loading() is not None:
            return False
        resident = tuple((chunk.number, chunk.state) for chunk in chunks.resident)
        if resident != self._used_up:
            self._used_up = resident
            self._patient_until = self._clock() + max(_PATIENCE_SECONDS, _PATIENCE * self._chunk_seconds)
        if self._clock() >= self._patient_until:
            return False
        self._sleep(_PAUSE_SECONDS)
        return True

    def leave(self, exhausted: bool) -> None:
        """Gives up the chunk that is worked on: its reference is among the next releases."""
        if self._target is not None:
            self._releases.append(Release(self._target, exhausted))
            self._chunk_seconds = self._clock() - self._target_since
            self._target = None

    def releases(self) -> list[Release]:
        """Returns the references to give back, and forgets them."""
        releases, self._releases = self._releases, []
        return releases

    def give_back(self, release: Release) -> None:
        """Tells the daemon that a chunk is not worked on any more."""
        self._caches.unref(release.chunk, release.exhausted, self._rank)

    def _join(self) -> Chunks:
        """Tells that this rank reads chunk after chunk; and once, which chunks it does not need.

        Those are the ones that were consumed before a checkpoint, and those without an entry of this rank.
        """
        chunks = self._caches.join(self._rank)
        if chunks.kept and not self._has_joined:
            self._has_joined = True
            for chunk in range(chunks.layout.stripes):
                units = map(chunks.layout.unit, chunks.layout.units_of_chunk(chunk))
                if not any(np.any(self._plan.left[begin:end]) for begin, end in units):
                    self._caches.unref(chunk, True, self._rank)
        return chunks

    def _next(self, chunks: Chunks, resident: Mask, spent: set[int]) -> Chunk | None:
        """Returns the chunk to work on: the same as before while it has entries left for this rank."""
        held = {chunk.number for chunk in chunks.resident}
        if self._target is not None and self._target not in held:
            # Evicted before this rank had used it up.
            self.leave(exhausted=False)
        left = [
            (chunk.number != self._target, _PREFERENCE.get(chunk.state, _LAST), place, chunk)
            for place, chunk in _newer_complete_first(chunks.resident)
            if chunk.number not in spent and self._has_left(chunk, chunks, resident)
        ]
        return min(left)[-1] if left else None

    def _has_left(self, chunk: Chunk, chunks: Chunks, resident: Mask) -> bool:
        """Returns whether a chunk has entries that this rank can still use."""
        for unit in chunks.layout.units_of_chunk(chunk.number):
            begin, end = chunks.layout.unit(unit)
            left = self._plan.left[begin:end]
            # What no node holds of a chunk that is loaded could not be read or kept, and stays a miss.
            if np.any(left if chunk.state == LOADING else left & resident[begin:end]):
                return True
        return False

    def _work_on(self, chunk: Chunk, chunks: Chunks, resident: Mask) -> None:
        if chunk.number == self._target:
            return
        self._leave_if_used_up(chunks, resident)
        if self._target is None and chunk.state != MARKED:
            # If it is refused, the chunk has just gone; the next look at the chunks leaves it.
            self._caches.ref(chunk.number, self._rank)
            self._target = chunk.number
            self._target_since = self._clock()

    def _leave_if_used_up(self, chunks: Chunks, resident: Mask) -> None:
        for chunk in chunks.resident:
            if chunk.number == self._target and not self._has_left(chunk, chunks, resident):
                self.leave(exhausted=True)


def _newer_complete_first(resident: tuple[Chunk, ...]) -> list[tuple[int, Chunk]]:
    """Numbers the chunks: of two complete ones the newer is first, of two that load the older."""
    return [(-place if chunk.state == COMPLETE else place, chunk) for place, chunk in enumerate(resident)]

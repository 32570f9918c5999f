"""Which resident chunk a rank works through, and the messages to the daemon about it.

A rank works through one chunk at a time, the older complete one while the newer one is loaded: taking from
both would exhaust both at once, and nothing would be left to work on while the next one comes.

The daemon is told of each chunk whose last entry the rank has consumed, as a hit or as a miss. Otherwise it
would bring in chunks that no rank needs. Each epoch has a number of its own, so the daemon recognises an
epoch by its first request.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from typing import Callable, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .dataset import Chunk, Chunks
from .layout import Layout
from .sampling import Entries, Mask, Plan

LOADING, COMPLETE, MARKED = "loading", "complete", "marked"
# Marked chunks are for the jobs that work on them already. They come last, before misses.
_PREFERENCE, _LAST = {COMPLETE: 0, LOADING: 1}, 2
# The next chunk is waited for as long as this part of the time that the last one took, a second at least.
_PATIENCE, _PATIENCE_SECONDS, _PAUSE_SECONDS = 0.05, 1.0, 0.05
# A reference is repeated after this time. The daemon may have missed it, or have forgotten it in a restart.
_REPEAT_SECONDS = 5.0
# Numbers of epochs have this number of random bits. JSON has the same number for every reader.
_EPOCH_BITS = 53


class Caches(Protocol):
    """The questions that a guide asks of a dataset."""

    def chunks(self) -> Chunks: ...  # noqa: D102

    def join(self, rank: int, epoch: int, exhausted: frozenset[int]) -> Chunks: ...  # noqa: D102

    def ref(self, chunk: int, rank: int, epoch: int) -> bool: ...  # noqa: D102

    def unref(self, chunk: int, exhausted: bool, rank: int) -> None: ...  # noqa: D102


class Release(NamedTuple):
    """A message to send once the entries taken so far are consumed: a chunk is exhausted, or given up."""

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
        # Only a change has a meaning. A process that replaces another one must not repeat its numbers.
        self._epoch = secrets.randbits(_EPOCH_BITS)
        # How many entries of each chunk are left to take, in this layout; none before the first look.
        self._layout: Layout | None = None
        self._left_of: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        # The chunks that are exhausted once the entries taken so far are consumed.
        self._used: set[int] = set()
        # Those of them that are exhausted, so the daemon is told of them.
        self._exhausted: frozenset[int] = frozenset()
        self._clock = clock
        self._sleep = sleep
        self._used_up: tuple[tuple[int, str], ...] | None = None
        self._patient_until = 0.0
        # Whether it has waited since the last entries were taken.
        self._is_waiting = False
        self._target: int | None = None
        # The chunks that the daemon was told of as referred to, and not as given back.
        self._referred: set[int] = set()
        # Since when it is worked on, when it was referred to last, and how long the last one took.
        self._target_since = self._referred_at = 0.0
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
        time has passed in vain, as when a slower job still holds the older chunk. Entries that are missed
        meanwhile belong to no resident chunk, so no node keeps them, and each job reads them from storage.
        """
        chunks = self._caches.chunks()
        if not chunks.kept or self.loading() is not None:
            return False
        resident = tuple((chunk.number, chunk.state) for chunk in chunks.resident)
        if resident != self._used_up:
            self._used_up = resident
            # Chunks that come and go for other jobs meanwhile make the wait no longer.
            if not self._is_waiting:
                self._patient_until = self._clock() + max(_PATIENCE_SECONDS, _PATIENCE * self._chunk_seconds)
        if self._clock() >= self._patient_until:
            return False
        self._is_waiting = True
        self._sleep(_PAUSE_SECONDS)
        return True

    def taken(self, entries: Entries) -> None:
        """Notes that entries were taken. Chunks that have none left now are among the next releases."""
        self._is_waiting = False
        if self._layout is None:
            return
        units = np.searchsorted(self._layout.bounds, entries, side="right") - 1
        chunks, counts = np.unique(units % self._layout.stripes, return_counts=True)
        self._left_of[chunks] -= counts
        for chunk in chunks[self._left_of[chunks] == 0].tolist():
            self._use_up(chunk)

    def leave(self) -> None:
        """Gives up the chunk that is worked on: its reference is among the next releases."""
        if self._target is not None:
            self._releases.append(Release(self._target, exhausted=False))
            self._end_target()

    def finish(self) -> None:
        """Ends the epoch: no chunk is needed any more, even if `drop_last` leaves entries of it."""
        if self._layout is not None:
            for chunk in range(self._layout.stripes):
                self._use_up(chunk)

    def releases(self) -> list[Release]:
        """Returns the messages that are due, and forgets them."""
        releases, self._releases = self._releases, []
        return releases

    def give_back(self, releases: Iterable[Release]) -> None:
        """Tells the daemon that chunks are exhausted, all in one request, or given up."""
        exhausted = self._exhausted.union(release.chunk for release in releases if release.exhausted)
        if exhausted != self._exhausted:
            self._exhausted = exhausted
            self._referred -= exhausted
            self._caches.join(self._rank, self._epoch, exhausted)
        for chunk, is_exhausted in releases:
            # A chunk that was given up and taken up again meanwhile is still referred to.
            if not is_exhausted and chunk in self._referred and chunk != self._target:
                self._referred.remove(chunk)
                self._caches.unref(chunk, False, self._rank)

    def _use_up(self, chunk: int) -> None:
        if chunk not in self._used:
            self._used.add(chunk)
            self._releases.append(Release(chunk, exhausted=True))
            if chunk == self._target:
                self._end_target()

    def _end_target(self) -> None:
        self._chunk_seconds = self._clock() - self._target_since
        self._target = None

    def _join(self) -> Chunks:
        """Tells that this rank reads chunk after chunk, and which ones it does not need.

        At first those are the ones that were consumed before a checkpoint, and those without an entry of
        this rank.
        """
        layout = self._caches.chunks().layout
        if layout != self._layout:
            if self._layout is not None:
                # Divided differently, the chunks have other numbers, so the earlier messages are void.
                self._epoch = secrets.randbits(_EPOCH_BITS)
                self._target, self._referred, self._releases = None, set(), []
            self._layout = layout
            self._left_of = _count(self._plan.left, layout)
            self._used = set(np.flatnonzero(self._left_of == 0).tolist())
            self._exhausted = frozenset(self._used)
        return self._caches.join(self._rank, self._epoch, self._exhausted)

    def _next(self, chunks: Chunks, resident: Mask, spent: set[int]) -> Chunk | None:
        """Returns the chunk to work on: the same as before while it has entries left for this rank."""
        held = {chunk.number for chunk in chunks.resident}
        if self._target is not None and self._target not in held:
            # Evicted before this rank had used it up.
            self.leave()
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
            if self._clock() - self._referred_at >= _REPEAT_SECONDS:
                self._refer(chunk.number)
            return
        self._leave_if_used_up(chunks, resident)
        # One that the daemon was told to be exhausted is not referred to again in this epoch: it may hold
        # entries now that no node could keep before.
        if self._target is None and chunk.state != MARKED and chunk.number not in self._used:
            self._target = chunk.number
            self._target_since = self._clock()
            self._refer(chunk.number)

    def _refer(self, chunk: int) -> None:
        self._referred_at = self._clock()
        self._referred.add(chunk)
        # If it is refused, the chunk has just gone; the next look at the chunks leaves it.
        self._caches.ref(chunk, self._rank, self._epoch)

    def _leave_if_used_up(self, chunks: Chunks, resident: Mask) -> None:
        for chunk in chunks.resident:
            if chunk.number == self._target and not self._has_left(chunk, chunks, resident):
                self._use_up(chunk.number)


def _newer_complete_first(resident: tuple[Chunk, ...]) -> list[tuple[int, Chunk]]:
    """Numbers the chunks: of two complete ones the newer is first, of two that load the older."""
    return [(-place if chunk.state == COMPLETE else place, chunk) for place, chunk in enumerate(resident)]


def _count(left: Mask, layout: Layout) -> NDArray[np.int64]:
    """Returns for each chunk the number of entries in `left`."""
    before = np.concatenate(([0], np.cumsum(left, dtype=np.int64)))
    counts: NDArray[np.int64] = np.diff(before[layout.bounds]).reshape(-1, layout.stripes).sum(axis=0)
    return counts

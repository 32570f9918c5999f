"""The reports of a job's progress: how long mini-batches take, and how its look-ups end.

The allocator compares a job's mini-batches on cache hits with those on misses (Quiver, section 5.3).
"""

from __future__ import annotations

import time
from typing import Callable

from .dataset import Dataset
from .sampler import Batch

# A report is due after this number of mini-batches or seconds.
_BATCHES, _SECONDS = 20, 5.0


class Reporter:
    """Adds up the mini-batches of a loop and reports them.

    `ranks` is the number of ranks of the job, each of which reports its own mini-batches. `clock` is
    monotonic, in seconds.
    """

    def __init__(self, data: Dataset, ranks: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._data = data
        self._ranks = ranks
        self._clock = clock
        self._last: float | None = None
        self._mode = ""
        self._begin()

    def arrived(self, batch: Batch) -> None:
        """Counts a mini-batch that the loop is given now.

        Its time is that since the one before it: the wait for this and the step of that. The first of an
        epoch has none, and is not counted.
        """
        now = self._clock()
        since, self._last = self._last, now
        if since is None or now <= since:
            return
        if batch.mode != self._mode:
            self.flush()
            self._mode = batch.mode
        self._batches += 1
        self._seconds += now - since
        self._hits += batch.hits
        self._misses += batch.misses
        self._substituted += batch.substituted
        if self._batches >= _BATCHES or self._seconds >= _SECONDS:
            self.flush()

    def end_of_epoch(self) -> None:
        """Reports the rest. The time until the next mini-batch is no mini-batch's."""
        self.flush()
        self._last = None

    def flush(self) -> None:
        """Reports the mini-batches that were counted since the last report."""
        if self._batches:
            self._data.report(
                self._batches,
                self._seconds,
                self._hits,
                self._misses,
                self._substituted,
                self._mode,
                ranks=self._ranks,
            )
        self._begin()

    def _begin(self) -> None:
        self._batches, self._seconds = 0, 0.0
        self._hits = self._misses = self._substituted = 0

"""Mini-batches for loops without torch: JAX, numpy, anything that takes arrays."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable

from .dataset import Dataset
from .filler import READERS, Filler
from .reader import Fetch, Reader
from .report import Reporter
from .sampler import SubstitutableSampler
from .state import State
from .timeline import Span, Timeline


class Batches:
    """Iterates over an epoch in mini-batches, which threads read and decode ahead.

    `decode` makes a sample of an entry's bytes, and `collate` a mini-batch of a list of samples. With
    `target`, a sample is a pair: the decoded bytes, and `target` of the entry's path in the manifest.
    `ahead` mini-batches are in preparation while one is used. `fill` threads fill the loading chunk
    meanwhile; 0 for none. A mini-batch counts as consumed when it is yielded. Other options are those of
    `SubstitutableSampler`.
    """

    def __init__(
        self,
        data: Dataset,
        batch_size: int,
        decode: Callable[[bytes], Any] = bytes,
        *,
        target: Callable[[str], Any] | None = None,
        collate: Callable[[list[Any]], Any] = list,
        fetch: Fetch | None = None,
        threads: int = 4,
        ahead: int = 2,
        fill: int = READERS,
        timeline: Timeline | None = None,
        **options: Any,
    ) -> None:
        if threads < 1 or ahead < 1:
            raise ValueError(f"threads={threads}, ahead={ahead}: each is at least 1")
        self.sampler = SubstitutableSampler(data, batch_size, confirms=True, **options)
        self._data = data
        self._decode = decode
        self._target = target
        self._collate = collate
        self._reader = Reader(data, fetch)
        self._threads = threads
        self._ahead = ahead
        self._filler = Filler(data, fetch, fill)
        self._timeline = timeline
        self._reporter = Reporter(data, self.sampler.world_size)

    def __len__(self) -> int:
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Names the epoch that the next iteration is."""
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> State:
        """Returns the consumed part of the epoch: the mini-batches that were yielded."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Goes on where a state was taken. Raises `StateError` if it does not fit."""
        self.sampler.load_state_dict(state)

    def __iter__(self) -> Iterator[Any]:
        epoch = iter(self.sampler)
        ready: deque[Future[tuple[Any, Span, Span]]] = deque()
        self._filler.start()
        # Reading has threads of its own: a mini-batch in transformation must not keep its entries waiting.
        readers = ThreadPoolExecutor(self._threads, "copperfs-read")
        workers = ThreadPoolExecutor(self._ahead, "copperfs-batch")
        try:
            for entries in epoch:
                ready.append(workers.submit(self._prepare, readers, entries))
                if len(ready) > self._ahead:
                    yield self._arrive(ready.popleft())
                    self._asked()
            while ready:
                yield self._arrive(ready.popleft())
                self._asked()
        finally:
            epoch.close()
            self._reporter.end_of_epoch()
            self._filler.stop()
            for pool in (workers, readers):
                pool.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, readers: ThreadPoolExecutor, entries: list[int]) -> tuple[Any, Span, Span]:
        begin = time.monotonic()
        parts: list[Sequence[int]] = [entries[n :: self._threads] for n in range(self._threads)]
        read: list[bytes] = [b""] * len(entries)
        for number, contents in enumerate(readers.map(self._reader.read, parts)):
            read[number :: self._threads] = contents
        middle = time.monotonic()
        samples = [self._decode(contents) for contents in read]
        if self._target is not None:
            paths = map(self._data.manifest.path, entries)
            samples = [(one, self._target(path)) for one, path in zip(samples, paths)]
        batch = self._collate(samples)
        return batch, Span(begin, middle), Span(middle, time.monotonic())

    def _arrive(self, future: Future[tuple[Any, Span, Span]]) -> Any:
        batch, io, transform = future.result()
        self._reporter.arrived(self.sampler.confirm())
        if self._timeline is not None:
            self._timeline.arrived(io, transform)
        return batch

    def _asked(self) -> None:
        if self._timeline is not None:
            self._timeline.asked()


def batches(
    data: Dataset, batch_size: int, decode: Callable[[bytes], Any] = bytes, **options: Any
) -> Batches:
    """Returns mini-batches of `data`: `for batch in copperfs.batches(data, 256, decode)`. See `Batches`."""
    return Batches(data, batch_size, decode, **options)

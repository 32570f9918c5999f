"""The loader for PyTorch: DataLoader with a sampler of its own.

The sampler runs in the training process; workers only read. A mini-batch counts as consumed when it is
yielded, whatever the workers have read ahead.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import torch
from torch.utils.data import DataLoader, default_collate
from torch.utils.data import Dataset as TorchDataset

from .dataset import Dataset
from .filler import READERS, Filler
from .reader import Fetch, Reader
from .report import Reporter
from .sampler import SubstitutableSampler
from .state import State, merge_states
from .timeline import Span, Timeline

__all__ = ["CopperDataLoader", "CopperDataset", "SubstitutableSampler", "merge_states"]

_SAMPLER_OPTIONS = ("seed", "lookahead", "bucket", "rank", "world_size", "substitute", "record", "replay")


class CopperDataset(TorchDataset):  # type: ignore[misc]
    """The entries of a dataset as samples: `decode` of an entry's bytes.

    With `target`, a sample is a pair: the decoded bytes, and `target` of the entry's path in the manifest.
    With `fetch(path, offset, length)`, misses are fetched by the caller's own credentials and given to the
    cache; without it, everything is read through the mount.
    """

    def __init__(
        self,
        data: Dataset,
        decode: Callable[[bytes], Any] = bytes,
        fetch: Fetch | None = None,
        target: Callable[[str], Any] | None = None,
    ) -> None:
        self.data = data
        self.fetch = fetch
        self._decode = decode
        self._target = target
        self._reader = Reader(data, fetch)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, entry: int) -> Any:
        return self.__getitems__([entry])[0]

    def __getitems__(self, entries: Sequence[int]) -> list[Any]:
        """Returns the samples of a mini-batch, as DataLoader asks for them from torch 1.13 on."""
        # A tensor gives another object for an entry each time.
        numbers = list(entries)
        return self.samples(numbers, self.read(numbers))

    def read(self, entries: Sequence[int]) -> list[bytes]:
        """Returns the bytes of entries; without `fetch`, they are read with many reads in flight."""
        return self._reader.read(entries)

    def samples(self, entries: Sequence[int], contents: Sequence[bytes]) -> list[Any]:
        """Returns the samples that entries' bytes make."""
        decoded = [self._decode(content) for content in contents]
        if self._target is None:
            return decoded
        return [(one, self._target(self.data.manifest.path(entry))) for one, entry in zip(decoded, entries)]


class CopperDataLoader(DataLoader):  # type: ignore[misc]
    """A DataLoader whose mini-batches are of resident entries, as far as there are any.

    `dataset` is a `CopperDataset`, or another one that has as many items as `data` has entries, in the same
    order. Options are those of DataLoader, those of `SubstitutableSampler`, and
    - `fill`: the number of threads that fill the loading chunk in the background; 0 for none;
    - `timeline`: a `Timeline` that records the stages of mini-batches.

    `rank` and `world_size` are by default those of `torch.distributed`.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        *,
        data: Dataset | None = None,
        fill: int = READERS,
        timeline: Timeline | None = None,
        **options: Any,
    ) -> None:
        data = data if data is not None else getattr(dataset, "data", None)
        if not isinstance(data, Dataset):
            raise ValueError("CopperDataLoader needs the dataset of a mount: give a CopperDataset, or data=")
        if len(dataset) != len(data):
            raise ValueError(
                f"the dataset has {len(dataset)} items and data= has {len(data)} entries: item i must be "
                "entry i"
            )
        if sampler is not None or batch_sampler is not None or shuffle is False:
            raise ValueError(
                "CopperDataLoader draws mini-batches in a random order of its own: leave out sampler=, "
                "batch_sampler= and shuffle=False, or use torch.utils.data.DataLoader"
            )
        if not options.get("in_order", True):
            raise ValueError(
                "in_order=False would yield mini-batches in another order than they were drawn, and a "
                "checkpoint would hold entries that the loop was not given: leave in_order out"
            )
        drawn = {name: options.pop(name) for name in _SAMPLER_OPTIONS if name in options}
        if "world_size" not in drawn and _distributed():
            drawn["world_size"] = torch.distributed.get_world_size()
            drawn["rank"] = torch.distributed.get_rank()
        own = SubstitutableSampler(data, batch_size, drop_last=drop_last, confirms=True, **drawn)
        filler = Filler(data, getattr(dataset, "fetch", None), fill)
        if timeline is not None:
            collate_fn = _Timed(dataset, collate_fn or default_collate)
            dataset = _Numbers(dataset)
        super().__init__(
            dataset,
            batch_sampler=own,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            **options,
        )
        self._copper = own
        self._filler = filler
        self._timeline = timeline
        self._reporter = Reporter(data, own.world_size)

    def set_epoch(self, epoch: int) -> None:
        """Names the epoch that the next iteration is."""
        self._copper.set_epoch(epoch)

    def state_dict(self) -> State:
        """Returns the consumed part of the epoch: the mini-batches that were yielded."""
        return self._copper.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Goes on where a state was taken. Raises `StateError` if it does not fit."""
        self._copper.load_state_dict(state)

    def __iter__(self) -> Iterator[Any]:
        # Forks the workers, so it comes before any thread.
        loaded = super().__iter__()
        epoch = self._copper.current
        assert epoch is not None
        self._filler.start()
        try:
            for batch in loaded:
                if self._timeline is not None:
                    batch, times = batch
                    self._timeline.arrived(Span(*times[:2]), Span(*times[1:]))
                self._reporter.arrived(epoch.confirm())
                yield batch
                if self._timeline is not None:
                    self._timeline.asked()
        finally:
            # Not the current one: that of a later iterator is another.
            epoch.close()
            self._reporter.end_of_epoch()
            self._filler.stop()


class _Numbers(TorchDataset):  # type: ignore[misc]
    """Gives each item's number for the item, so that a whole mini-batch is read in `_Timed`."""

    def __init__(self, dataset: Any) -> None:
        self._items = len(dataset)

    def __len__(self) -> int:
        return self._items

    def __getitem__(self, item: int) -> int:
        return item


class _Timed:
    """Reads, transforms and collates a mini-batch, and says when: begin, all read, end."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._collate = collate

    def __call__(self, items: list[int]) -> tuple[Any, tuple[float, float, float]]:
        begin = time.monotonic()
        if isinstance(self._dataset, CopperDataset):
            contents = self._dataset.read(items)
            middle = time.monotonic()
            samples = self._dataset.samples(items, contents)
        else:
            # Reading and decoding cannot be told apart here.
            samples = [self._dataset[item] for item in items]
            middle = time.monotonic()
        batch = self._collate(samples)
        return batch, (begin, middle, time.monotonic())


def _distributed() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())

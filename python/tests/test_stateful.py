"""torchdata's StatefulDataLoader with the sampler: exactly once, wherever it stops."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
from conftest import ENTRIES, hold, serve_uniform
from daemon import Daemon

from copperfs import Dataset, StateError, SubstitutableSampler, merge_states, sampler_state

torch = pytest.importorskip("torch", reason="SKIPPED: no torch here, so StatefulDataLoader is NOT tested")
stateful = pytest.importorskip(
    "torchdata.stateful_dataloader",
    reason="SKIPPED: no torchdata here, so StatefulDataLoader is NOT tested",
)

from test_torch import number, saved  # noqa: E402

from copperfs.torch import CopperDataset  # noqa: E402

BATCH = 5


@pytest.fixture(autouse=True)
def _uniform(data: Dataset, daemon: Daemon) -> None:
    """No mini-batch waits for a chunk."""
    serve_uniform(daemon)


def loader(data: Dataset, workers: int, rank: int = 0, world_size: int = 1, **options: Any) -> Any:
    sampler = SubstitutableSampler(data, BATCH, rank=rank, world_size=world_size)
    dataset = CopperDataset(data, number)
    return stateful.StatefulDataLoader(dataset, batch_sampler=sampler, num_workers=workers, **options)


def entries(batches: Any) -> list[int]:
    return [entry for batch in batches for entry in batch.tolist()]


@pytest.mark.parametrize("workers", [0, 2])
def test_every_entry_once_with_two_stops(data: Dataset, daemon: Daemon, workers: int) -> None:
    seen: list[int] = []
    state: Any = None
    for turn, stop in enumerate([4, 7, None]):
        # Other entries are resident each time, so others are drawn after the stop than were drawn ahead.
        hold(daemon, np.arange(ENTRIES) % 3 == turn)
        one = loader(data, workers)
        if state is not None:
            one.load_state_dict(saved(state))
        for batch in islice(one, stop):
            seen += batch.tolist()
            state = one.state_dict()
    assert sorted(seen) == list(range(ENTRIES))
    # The next epoch follows, by the same loader and by one that is resumed.
    again = loader(data, workers)
    again.load_state_dict(saved(one.state_dict()))
    assert sorted(entries(one)) == sorted(entries(again)) == list(range(ENTRIES))


@pytest.mark.parametrize(
    ("worlds", "workers"),
    [([1, 1, 1], [0, 2, 0]), ([1, 1, 1], [2, 0, 1]), ([1, 2, 1], [2, 0, 1]), ([3, 2, 3], [0, 2, 0])],
)
def test_every_entry_once_with_other_numbers_of_workers_and_ranks(
    data: Dataset, daemon: Daemon, worlds: list[int], workers: list[int]
) -> None:
    seen: Counter[int] = Counter()
    states: list[Any] = []
    for turn, (world, count, stop) in enumerate(zip(worlds, workers, [3, 4, None])):
        hold(daemon, np.arange(ENTRIES) % 3 == turn)
        ranks = [loader(data, count, rank, world) for rank in range(world)]
        if states:
            merged = merge_states([sampler_state(saved(state)) for state in states], world)
            for one, state in zip(ranks, merged):
                one.batch_sampler.load_state_dict(state)
        for one in ranks:
            seen.update(entries(islice(one, stop)))
        states = [one.state_dict() for one in ranks]
    assert set(seen) == set(range(ENTRIES))
    assert sum(seen.values()) - ENTRIES < worlds[-1]


def test_a_state_from_before_the_first_batch_is_the_whole_epoch(data: Dataset) -> None:
    one = loader(data, 2)
    state = sampler_state(one.state_dict())
    assert state["yielded"] == 0
    assert sorted(entries(one)) == list(range(ENTRIES))


def test_a_state_between_two_snapshots_is_refused(data: Dataset) -> None:
    # torchdata would draw the batches after the snapshot again, and they may be others.
    one = loader(data, 2, snapshot_every_n_steps=4)
    for _ in islice(one, 4):
        pass
    assert sampler_state(one.state_dict())["yielded"] == 4 * BATCH
    for _ in islice(loaded := loader(data, 2, snapshot_every_n_steps=4), 5):
        pass
    with pytest.raises(StateError, match="1 mini-batch after its snapshot.*snapshot_every_n_steps=1"):
        sampler_state(loaded.state_dict())


@pytest.mark.parametrize("state", [{}, None, {"_snapshot": {}}, {"_index_sampler_state": None}, {"epoch": 1}])
def test_a_state_of_another_loader_is_refused(state: Any) -> None:
    with pytest.raises(StateError, match="no state of a StatefulDataLoader with"):
        sampler_state(state)

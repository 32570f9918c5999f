"""The loader for PyTorch, with workers."""

from __future__ import annotations

import io
import json
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ENTRIES, hold, serve_chunks
from daemon import Daemon, answer
from writer import content_of

from copperfs import Dataset, StateError, SubstitutableSampler, Timeline, merge_states
from copperfs.dataset import KEPT

torch = pytest.importorskip("torch", reason="SKIPPED: no torch here, so CopperDataLoader is NOT tested")

from copperfs.torch import CopperDataLoader, CopperDataset  # noqa: E402


def number(contents: bytes) -> int:
    return int(contents[:6])


def loader(data: Dataset, batch: int = 10, **options: Any) -> CopperDataLoader:
    return CopperDataLoader(CopperDataset(data, number), batch, **options)


def inserted(body: bytes) -> bytes:
    """Answers that each item of a request was kept."""
    at = count = 0
    while at < len(body):
        at += 36 + int.from_bytes(body[at + 32 : at + 36], "little")
        count += 1
    return bytes([KEPT]) * count


def saved(state: Any) -> Any:
    """A state that went through a checkpoint file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def test_it_is_a_dataloader(data: Dataset) -> None:
    one = loader(data, 16, num_workers=2)
    assert isinstance(one, torch.utils.data.DataLoader)
    batches = list(one)
    assert len(batches) == len(one) == 13
    assert all(isinstance(batch, torch.Tensor) for batch in batches)
    assert sorted(torch.cat(batches).tolist()) == list(range(ENTRIES))


def test_samples_have_targets(data: Dataset) -> None:
    dataset = CopperDataset(data, target=lambda path: int(path[:6]))
    assert dataset[3] == (content_of(3), 3)
    assert dataset.__getitems__([5, 1]) == [(content_of(5), 5), (content_of(1), 1)]


@pytest.mark.parametrize("fetched", [False, True])
@pytest.mark.parametrize("options", [{}, {"decode": number}, {"decode": number, "target": len}])
def test_a_mini_batch_is_its_samples_one_by_one(
    data: Dataset, daemon: Daemon, options: dict[str, Any], fetched: bool
) -> None:
    if fetched:
        # A cache that holds nothing.
        daemon.routes[("POST", "/v1/content/get")] = lambda body, _: answer(b"\xff" * (len(body) // 8))
        daemon.routes[("POST", "/v1/content/insert")] = lambda body, _: answer(inserted(body))
        options = {**options, "fetch": lambda path, offset, length: content_of(int(path[:6]))}
    dataset = CopperDataset(data, **options)
    entries = [3, 199, 3, *range(100)]
    expected = [dataset[entry] for entry in entries]
    for numbers in (entries, tuple(entries), np.array(entries), torch.tensor(entries)):
        assert dataset.__getitems__(numbers) == expected
    assert dataset.__getitems__([]) == []


def test_a_mini_batch_is_requested_ahead(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        "copperfs.read_ahead._fadvise", lambda _, offset, length, advice: asked.append(length)
    )
    CopperDataset(data).__getitems__([3, 5, 8])
    assert asked == [len(content_of(entry)) for entry in (3, 5, 8)]


@pytest.mark.parametrize("workers", [[0, 2, 8], [8, 0, 2], [2, 8, 0]])
@pytest.mark.parametrize("worlds", [[1, 1, 1], [4, 4, 4], [1, 4, 1], [4, 1, 4]])
def test_every_entry_once_with_workers_ranks_and_two_stops(
    data: Dataset, daemon: Daemon, worlds: list[int], workers: list[int]
) -> None:
    hold(daemon, np.arange(ENTRIES) % 3 == 0)
    seen: Counter[int] = Counter()
    states: list[Any] = []
    for world, count, stop in zip(worlds, workers, [3, 4, None]):
        ranks = [
            loader(data, 5, num_workers=count, rank=rank, world_size=world, fill=0) for rank in range(world)
        ]
        if states:
            states = states if len(states) == world else merge_states(states, world)
            for one, state in zip(ranks, states):
                one.load_state_dict(saved(state))
        for one in ranks:
            for batch in islice(one, stop):
                seen.update(batch.tolist())
        states = [one.state_dict() for one in ranks]
    assert set(seen) == set(range(ENTRIES))
    assert sum(seen.values()) - ENTRIES < worlds[-1]


def test_what_workers_have_read_ahead_is_not_consumed(data: Dataset) -> None:
    one = loader(data, num_workers=2, prefetch_factor=4)
    epoch = iter(one)
    first = next(epoch).tolist()
    time.sleep(0.2)
    state = one.state_dict()
    assert state["yielded"] == 10
    again = loader(data)
    again.load_state_dict(state)
    rest = torch.cat(list(again)).tolist()
    assert sorted(first + rest) == list(range(ENTRIES))


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_have_other_orders(data: Dataset, persistent: bool) -> None:
    one = loader(data, num_workers=1, persistent_workers=persistent)
    first, second = torch.cat(list(one)).tolist(), torch.cat(list(one)).tolist()
    assert first != second
    assert sorted(first) == sorted(second)
    one.set_epoch(0)
    assert torch.cat(list(one)).tolist() == first


def test_any_dataset_of_as_many_items_will_do(data: Dataset) -> None:
    class Numbers(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return ENTRIES

        def __getitem__(self, item: int) -> int:
            return item

    batches = list(CopperDataLoader(Numbers(), 10, data=data))
    assert sorted(torch.cat(batches).tolist()) == list(range(ENTRIES))
    with pytest.raises(ValueError, match="has 3 items and data= has 200 entries"):
        CopperDataLoader([1, 2, 3], 1, data=data)
    with pytest.raises(ValueError, match="give a CopperDataset, or data="):
        CopperDataLoader(Numbers(), 10)


@pytest.mark.parametrize("options", [{"shuffle": False}, {"sampler": [1]}, {"batch_sampler": [[1]]}])
def test_other_samplers_are_refused(data: Dataset, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a random order of its own: leave out"):
        loader(data, **options)


def test_shuffle_is_what_it_does(data: Dataset) -> None:
    assert len(loader(data, shuffle=True, drop_last=True)) == ENTRIES // 10


def test_a_checkpoint_of_another_run_is_refused(data: Dataset) -> None:
    state = {**loader(data).state_dict(), "identity": "00" * 32}
    with pytest.raises(StateError, match="of another manifest"):
        loader(data).load_state_dict(state)


def test_a_batch_above_the_dataset_is_refused(data: Dataset) -> None:
    with pytest.raises(ValueError, match="give 1 to 200"):
        loader(data, 201)


def test_dataloader_takes_the_sampler_as_its_batch_sampler(data: Dataset) -> None:
    sampler = SubstitutableSampler(data, 10)
    plain = torch.utils.data.DataLoader(CopperDataset(data, number), batch_sampler=sampler, num_workers=2)
    assert sorted(torch.cat(list(plain)).tolist()) == list(range(ENTRIES))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_timeline_tells_reading_from_decoding(data: Dataset, workers: int) -> None:
    def slow(contents: bytes) -> int:
        time.sleep(0.001)
        return number(contents)

    timeline = Timeline(batches=6, skip=2)
    one = CopperDataLoader(CopperDataset(data, slow), 10, num_workers=workers, timeline=timeline)
    seen = []
    for batch in one:
        seen += batch.tolist()
        time.sleep(0.002)
    assert sorted(seen) == list(range(ENTRIES))
    assert len(timeline.spans) == 6
    for spans in timeline.spans:
        assert spans.transform.seconds >= 0.01
        assert spans.io.begin <= spans.io.end == spans.transform.begin <= spans.compute.begin
        assert spans.compute.seconds >= 0.002


def test_a_timeline_of_another_dataset_counts_its_items_as_read(data: Dataset) -> None:
    class Slow(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return ENTRIES

        def __getitem__(self, item: int) -> int:
            time.sleep(0.001)
            return item

    timeline = Timeline(batches=2)
    list(CopperDataLoader(Slow(), 10, data=data, timeline=timeline))
    assert timeline.spans[0].io.seconds >= 0.01 > timeline.spans[0].transform.seconds


def test_chunks_are_given_back_when_workers_have_read_them(data: Dataset, daemon: Daemon) -> None:
    serve_chunks(daemon, c0="complete")
    hold(daemon, data.chunks(max_age=0).layout.mask(0).copy())
    epoch = iter(loader(data, 10, num_workers=2, prefetch_factor=4, fill=0))
    hits = set(data.chunks().layout.chunk(0).tolist())

    def exhausted() -> list[int]:
        said = [json.loads(body) for body in daemon.asked("/v1/datasets/d/chunks") if body]
        found: list[int] = said[-1].get("exhausted", [])
        return found

    assert set(next(epoch).tolist()) <= hits
    assert exhausted() == []
    assert set(next(epoch).tolist()) <= hits
    assert exhausted() == [0]


def test_workers_leave_the_mounts_files_to_others(data: Dataset) -> None:
    # Nothing stays open behind an epoch.
    before = len(list(Path("/proc/self/fd").iterdir()))
    list(loader(data, 10))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_another_order_than_that_of_drawing_is_refused(data: Dataset) -> None:
    # With it, torch 2.6 yields the mini-batch that is ready first, and `confirm` would count the oldest.
    with pytest.raises(ValueError, match="in_order=False .* a checkpoint would hold entries"):
        loader(data, in_order=False, num_workers=2)


def test_an_iterator_that_ends_late_leaves_the_next_epoch_alone(data: Dataset, daemon: Daemon) -> None:
    serve_chunks(daemon, c0="complete")
    hold(daemon, data.chunks(max_age=0).layout.mask(0).copy())
    one = loader(data, 5, fill=0)
    late, current = iter(one), iter(one)
    next(late)
    next(current)
    late.close()
    assert daemon.asked("/v1/datasets/d/chunks/0/unref") == []
    current.close()
    assert len(daemon.asked("/v1/datasets/d/chunks/0/unref")) == 1

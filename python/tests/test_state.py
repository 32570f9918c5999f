"""Checkpoints, and their division among other numbers of ranks."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from copperfs import StateError, merge_states
from copperfs.state import Consumed, Part, part_of


def part(rank: int = 0, world_size: int = 1, entries: int = 1000) -> Part:
    return Part("ab" * 32, entries, 3, rank, world_size)


def states(world_size: int) -> list[dict[str, Any]]:
    """States of ranks that have consumed two entries each."""
    found = []
    for rank in range(world_size):
        consumed = Consumed(part(rank, world_size))
        consumed.add(np.array([2 * rank, 2 * rank + 1]))
        found.append(consumed.state())
    return found


@given(st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=8), max_size=150), st.integers(0, 150))
def test_a_state_is_the_set_that_was_added(batches: list[list[int]], cut: int) -> None:
    consumed = Consumed(part())
    for batch in batches[:cut]:
        consumed.add(np.array(batch))
    state = pickle.loads(pickle.dumps(consumed.state()))
    resumed = Consumed(part_of(state), state)
    for batch in batches[cut:]:
        resumed.add(np.array(batch))
    expected = {entry for batch in batches for entry in batch}
    assert set(np.flatnonzero(resumed.own()).tolist()) == expected
    assert resumed.yielded == sum(map(len, batches))


def test_a_state_does_not_change_with_the_run() -> None:
    consumed = Consumed(part())
    consumed.add(np.array([1]))
    state = consumed.state()
    before = pickle.dumps(state)
    for entry in range(200):
        consumed.add(np.array([entry]))
    assert pickle.dumps(state) == before


def test_a_state_is_small_and_its_batches_few() -> None:
    consumed = Consumed(part(entries=1_281_167))
    for begin in range(0, 1_000_000, 512):
        consumed.add(np.arange(begin, begin + 512))
    state = consumed.state()
    assert len(state["batches"]) <= 64
    assert len(pickle.dumps(state)) < 600_000


def test_merged_states_have_consumed_what_all_ranks_had() -> None:
    merged = merge_states(states(4), 3)
    assert [state["rank"] for state in merged] == [0, 1, 2]
    for state in merged:
        consumed = Consumed(part_of(state), state)
        assert np.flatnonzero(consumed.base()).tolist() == list(range(8))
        assert not consumed.own().any()
        assert consumed.yielded == 0


def test_merging_takes_the_states_of_all_ranks_once() -> None:
    four = states(4)
    for wrong in (four[:3], four[:3] + four[:1], [*four, four[0]]):
        with pytest.raises(StateError, match="ranks 0 to 3 are needed"):
            merge_states(wrong, 2)
    with pytest.raises(StateError, match="no states"):
        merge_states([], 2)
    with pytest.raises(ValueError, match="world_size=0"):
        merge_states(four, 0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epoch": 4}, "different runs"),
        ({"identity": "cd" * 32}, "different runs"),
        ({"yielded": 9}, "different mini-batches"),
        ({"base": bytes([1]) + bytes(124)}, "different mini-batches"),
        ({"batches": [np.array([0, 9], dtype="<u8").tobytes()]}, "consumed the same entry"),
    ],
)
def test_states_that_do_not_belong_together_are_refused(changed: dict[str, Any], message: str) -> None:
    pair = states(2)
    pair[1] = {**pair[1], **changed}
    with pytest.raises(StateError, match=message):
        merge_states(pair, 2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"format": 2}, "not a checkpoint"),
        ({"own": bytes(3)}, "contradicts itself"),
        ({"rank": 5}, "contradicts itself"),
        ({"yielded": -1}, "contradicts itself"),
        ({"batches": [np.array([1000], dtype="<u8").tobytes()]}, "contradicts itself"),
        ({"batches": [b"odd"]}, "damaged"),
        ({"epoch": "three"}, "damaged"),
        ({"base": None}, "damaged"),
    ],
)
def test_a_damaged_checkpoint_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(StateError, match=message):
        part_of({**states(1)[0], **changed})


@pytest.mark.parametrize("wrong", [None, {}, [], {"_num_yielded": 3}])
def test_other_things_are_no_checkpoint(wrong: Any) -> None:
    with pytest.raises(StateError, match="not a checkpoint"):
        part_of(wrong)

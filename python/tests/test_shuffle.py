"""Orders and parts that all machines agree on."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from copperfs import Layout
from copperfs.shuffle import part_of_rank, permuted, salt

sizes = st.integers(0, 2000)
worlds = st.integers(1, 9)
IDENTITY = "c0ffee" * 10 + "dead"


def test_the_order_never_changes() -> None:
    # A resumed run of an older release must find the order that it began with.
    assert permuted(np.arange(12), 1, 2).tolist() == [7, 4, 8, 5, 1, 10, 11, 2, 3, 0, 9, 6]
    assert part_of_rank(np.arange(12), 1, 4, IDENTITY).tolist() == [2, 6, 10]


@given(sizes, st.integers(0, 2**70), st.integers(0, 1000))
def test_an_order_is_a_permutation(entries: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(permuted(np.arange(entries), seed, epoch)), np.arange(entries))


def test_epochs_and_seeds_have_different_orders() -> None:
    orders = {tuple(permuted(np.arange(100), seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


@given(st.sets(st.integers(0, 500)))
def test_a_subset_keeps_the_order_of_the_whole(chosen: set[int]) -> None:
    whole = permuted(np.arange(501), 3, 4)
    subset = permuted(np.array(sorted(chosen), dtype=np.int64), 3, 4)
    assert [entry for entry in whole if entry in chosen] == subset.tolist()


def test_places_in_the_order_are_uniform() -> None:
    # 10,000 orders of 10: each entry is at each place about 1,000 times; 5 standard deviations are 150.
    places = np.zeros((10, 10))
    for epoch in range(10_000):
        places[np.arange(10), permuted(np.arange(10), 7, epoch)] += 1
    assert np.all(np.abs(places - 1000) < 150)


@given(st.sets(st.integers(0, 3000)), worlds)
def test_parts_of_ranks_are_disjoint_whole_and_equal(left: set[int], world: int) -> None:
    entries = np.array(sorted(left), dtype=np.int64)
    parts = [part_of_rank(entries, rank, world, IDENTITY) for rank in range(world)]
    assert np.array_equal(np.sort(np.concatenate(parts)), entries)
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(1, 3000), worlds, st.integers(1, 20))
def test_every_rank_has_its_part_of_every_unit(entries: int, world: int, stripes: int) -> None:
    layout = Layout(entries, stripes)
    for rank in range(world):
        part = part_of_rank(np.arange(entries), rank, world, IDENTITY)
        for unit in range(stripes * 10):
            begin, end = layout.unit(unit)
            own = np.count_nonzero((part >= begin) & (part < end))
            assert abs(own - (end - begin) / world) < 2


def test_a_pattern_in_the_order_falls_to_no_rank() -> None:
    part = part_of_rank(np.arange(8000), 0, 4, IDENTITY)
    share = np.bincount(part % 4, minlength=4) / len(part)
    assert np.all(np.abs(share - 0.25) < 0.05)


def test_a_salt_depends_on_every_number() -> None:
    assert len({salt(), salt(0), salt(0, 0), salt(1, 0), salt(0, 1), salt(-1), salt(2**64)}) == 6

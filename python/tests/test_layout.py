"""Units and chunks."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from copperfs import Layout
from copperfs.layout import stripes_for

layouts = st.builds(Layout, st.integers(0, 3000), st.integers(1, 40), st.integers(1, 12))


@given(layouts)
def test_every_entry_is_in_one_chunk_and_one_unit(layout: Layout) -> None:
    counts = sum(
        (layout.mask(chunk).astype(int) for chunk in range(layout.stripes)), np.zeros(layout.entries)
    )
    assert np.all(counts == 1)
    for entry in range(0, layout.entries, 97):
        begin, end = layout.unit(layout.unit_of(entry))
        assert begin <= entry < end


@given(layouts)
def test_a_chunk_is_the_same_unit_of_every_partition(layout: Layout) -> None:
    for chunk in range(layout.stripes):
        entries = layout.chunk(chunk)
        assert np.array_equal(np.flatnonzero(layout.mask(chunk)), entries)
        assert {layout.unit_of(int(entry)) % layout.stripes for entry in entries} <= {chunk}


def test_bounds_are_exact_beyond_64_bits() -> None:
    entries, stripes = 10**14 + 7, 12_007
    layout = Layout(entries, stripes)
    assert layout.unit(stripes * 10 - 1)[1] == entries
    assert layout.unit(60_001)[0] == 60_001 * entries // (10 * stripes)


@pytest.mark.parametrize(
    ("size", "stripes"),
    [(0, 10), (150_000_000_000, 10), (150_000_000_001, 11), (531_000_000_000, 36)],
)
def test_stripes_are_ten_or_by_size(size: int, stripes: int) -> None:
    assert stripes_for(size) == stripes


def test_a_layout_survives_pickling_and_compares() -> None:
    layout = Layout(1000, 13)
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert layout != Layout(1000, 12)


def test_impossible_layouts_and_chunks_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Layout(10, 0)
    with pytest.raises(ValueError, match="chunk 10 of a dataset of 10 chunks"):
        Layout(100, 10).mask(10)

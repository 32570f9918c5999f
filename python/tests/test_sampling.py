"""The plan of an epoch: the paper's figures, and the same choices as a plain model."""

from __future__ import annotations

import time
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copperfs import BucketPlan, ExactlyOnceError, Layout, Plan
from copperfs.shuffle import permuted

IMAGENET = 1_281_167


def plan_of(entries: int, lookahead: int = 10, epoch: int = 0) -> Plan:
    return Plan(permuted(np.arange(entries), 0, epoch), entries, lookahead)


@pytest.mark.parametrize("entries", [100_000, 204_800])
def test_look_ups_and_passes_over_resident_tenths_are_the_papers(entries: int) -> None:
    layout, batch = Layout(entries, 10), 512
    plan = plan_of(entries)
    first_pass = []
    for chunk in range(10):
        while True:
            before = plan.lookups
            taken = plan.take(batch, layout.mask(chunk))
            if len(taken.entries) < batch:
                break
            if chunk == 0:
                first_pass.append(plan.lookups - before)
    assert np.mean(first_pass) == pytest.approx(5120, rel=0.02)
    assert plan.passes == 10
    assert plan.lookups / entries == pytest.approx(5.5, rel=0.01)
    assert plan.remaining == 0


def test_any_tenth_is_as_good_as_a_chunk() -> None:
    # The paper's argument: in a permuted list every tenth is spread evenly.
    entries = 100_000
    for resident in (np.arange(entries) < entries // 10, np.arange(entries) % 10 == 3):
        plan = plan_of(entries)
        for _ in range(15):
            plan.take(512, resident)
        assert plan.lookups / 15 == pytest.approx(5120, rel=0.04)


class Model:
    """What a plan does, entry by entry."""

    def __init__(self, order: list[int]) -> None:
        self.list, self.pending, self.passes, self.lookups = [], list(order), 0, 0
        self.order, self.used = list(order), set()

    def take(self, count: int, resident: np.ndarray) -> list[int]:
        found = []
        while len(found) < count and any(resident[e] for e in self.list + self.pending if e not in self.used):
            if not self.list:
                self.list, self.pending = self.pending, []
                self.passes += 1
            entry = self.list.pop(0)
            if entry in self.used:
                continue
            self.lookups += 1
            if resident[entry]:
                found.append(entry)
                self.used.add(entry)
            else:
                self.pending.append(entry)
        return found

    def take_any(self, count: int, first: np.ndarray | None) -> list[int]:
        left = [e for e in self.order if e not in self.used]
        preferred = [e for e in left if first is not None and first[e]][:count]
        others = [e for e in left if e not in preferred][: count - len(preferred)]
        self.used.update(preferred + others)
        return preferred + others


steps = st.lists(
    st.tuples(st.sampled_from(["take", "any", "first"]), st.integers(0, 40), st.integers(0, 10)), max_size=40
)


@settings(max_examples=300)
@given(st.integers(1, 200), steps, st.integers(1, 12), st.integers(0, 99), st.sampled_from([0, 1, 16, 1000]))
def test_a_plan_chooses_as_the_model(
    entries: int, steps: list, lookahead: int, seed: int, windows: int
) -> None:
    # Never by windows, seldom, as usual, always.
    with mock.patch("copperfs.sampling._WINDOWS_MAX", windows):
        compare_with_the_model(entries, steps, lookahead, seed)


def compare_with_the_model(entries: int, steps: list, lookahead: int, seed: int) -> None:
    order = permuted(np.arange(entries), seed, 0)[: max(1, entries * 2 // 3)]
    plan, model = Plan(order, entries, lookahead), Model(order.tolist())
    draw = np.random.default_rng(seed)
    for kind, count, tenths in steps:
        mask = draw.random(entries) < tenths / 10
        if kind == "take":
            assert plan.take(count, mask).entries.tolist() == model.take(count, mask)
        else:
            first = mask if kind == "first" else None
            assert plan.take_any(count, first).tolist() == model.take_any(count, first)
        assert plan.remaining == len(order) - len(model.used)
        assert (plan.lookups, plan.passes) == (model.lookups, model.passes)


@given(st.integers(10, 400), st.integers(1, 40), st.booleans(), st.integers(0, 99))
def test_every_entry_comes_once(entries: int, batch: int, bucket: bool, seed: int) -> None:
    order = permuted(np.arange(entries), seed, 0)
    plan = BucketPlan(order, Layout(entries, 3)) if bucket else Plan(order, entries)
    draw = np.random.default_rng(seed)
    seen: list[int] = []
    while plan.remaining:
        wanted = min(batch, plan.remaining)
        hits = plan.take(wanted, draw.random(entries) < 0.2).entries.tolist()
        seen += hits + plan.take_any(wanted - len(hits), draw.random(entries) < 0.2).tolist()
    assert sorted(seen) == list(range(entries))
    assert len(plan.take_any(1)) == 0


def test_a_substitute_is_an_entry_that_a_plain_sampler_would_not_have_reached() -> None:
    order = np.arange(100)
    plan = Plan(order, 100)
    resident = np.zeros(100, dtype=np.bool_)
    resident[[0, 3, 50, 60]] = True
    # A plain sampler would have given 0 to 3.
    assert plan.take(4, resident) == (pytest.approx([0, 3, 50, 60]), 2)
    everything = np.ones(100, dtype=np.bool_)
    assert Plan(order, 100).take(10, everything).substituted == 0


def test_an_entry_that_is_claimed_twice_is_refused() -> None:
    plan = plan_of(50)
    plan.claim(np.array([3, 4]))
    for wrong in ([3], [5, 5]):
        with pytest.raises(ExactlyOnceError, match="used twice in this epoch"):
            plan.claim(np.array(wrong))
    assert plan.remaining == 48


def test_a_bucket_is_one_unit() -> None:
    entries, batch = 20_000, 32
    layout = Layout(entries, 10)
    plan = BucketPlan(permuted(np.arange(entries), 0, 0), layout, draws=5)
    mask = layout.mask(4) | layout.mask(7)
    pure, units = 0, set()
    for _ in range(4000 // batch):
        taken = plan.take(batch, mask)
        of = {layout.unit_of(int(entry)) for entry in taken.entries}
        pure += len(of) == 1
        units |= of
        assert len(taken.entries) == batch
    # 20 units of 200: what is left of each in the end is less than a batch.
    assert pure >= 20 * (200 // batch)
    assert len(units) == 20


def test_buckets_fill_up_from_the_nearest_unit() -> None:
    layout = Layout(1000, 10)
    plan = BucketPlan(np.arange(1000), layout)
    resident = np.zeros(1000, dtype=np.bool_)
    resident[[500, 501, 502, 300, 520, 999]] = True
    assert sorted(plan.take(4, resident).entries.tolist()) == [500, 501, 502, 520]
    assert sorted(plan.take(4, resident).entries.tolist()) == [300, 999]


def test_buckets_come_in_another_order_for_other_draws() -> None:
    layout = Layout(5000, 10)
    order = permuted(np.arange(5000), 0, 0)

    def units(draws: int) -> list[int]:
        plan = BucketPlan(order, layout, draws=draws)
        return [layout.unit_of(int(plan.take_any(20)[0])) for _ in range(50)]

    assert units(1) == units(1)
    assert units(1) != units(2)
    assert len(set(units(1))) > 25


@pytest.mark.parametrize("bucket", [False, True])
def test_a_batch_of_512_of_imagenet_is_drawn_in_5_ms(bucket: bool) -> None:
    layout = Layout(IMAGENET, 11)
    order = permuted(np.arange(IMAGENET), 0, 0)
    plan = BucketPlan(order, layout) if bucket else Plan(order, IMAGENET)
    times = []
    for chunk in range(3):
        for _ in range(100):
            begin = time.thread_time()
            plan.take(512, layout.mask(chunk))
            times.append(time.thread_time() - begin)
        begin = time.thread_time()
        plan.take_any(512, layout.mask(chunk))
        times.append(time.thread_time() - begin)
    # Of the processor: other programs run on the machine of the tests.
    assert np.median(times) < 0.005


@pytest.mark.parametrize(
    ("order", "message"),
    [([0, 3], "there are 0 to 2"), ([-1], "0 to 2"), ([1, 2, 1], "names some of them twice")],
)
def test_an_order_of_nonsense_is_refused(order: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Plan(np.array(order), 3)


def test_a_batch_of_what_arrives_in_a_loading_chunk_is_drawn_in_5_ms() -> None:
    # A few hundred entries have come, scattered over the list of all.
    layout = Layout(IMAGENET, 11)
    plan = Plan(permuted(np.arange(IMAGENET), 0, 0), IMAGENET)
    coming = np.random.default_rng(0).permutation(layout.chunk(3))
    held, times = np.zeros(IMAGENET, dtype=np.bool_), []
    for number in range(60):
        held[coming[number * 300 : (number + 1) * 300]] = True
        begin = time.thread_time()
        hits = plan.take(512, held).entries
        plan.take_any(512 - len(hits), layout.mask(3))
        times.append(time.thread_time() - begin)
    assert np.median(times) < 0.005


def test_a_lookahead_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="lookahead=0"):
        Plan(np.arange(3), 3, 0)

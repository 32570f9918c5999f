"""Which chunk a rank works on, and when it gives one back."""

from __future__ import annotations

import numpy as np
from caches import Caches

from copperfs import Layout, Plan
from copperfs.guide import Guide

ENTRIES = 1000


def guided(caches: Caches) -> tuple[Guide, Plan]:
    plan = Plan(np.arange(ENTRIES), ENTRIES)
    return Guide(caches, plan, 0), plan


def first_chunk(caches: Caches, guide: Guide) -> int:
    """Returns the chunk whose entries come next."""
    mask = next(guide.masks(caches.bits))
    entry = int(np.flatnonzero(mask)[0])
    return caches.layout.unit_of(entry) % caches.layout.stripes


def use_up(caches: Caches, guide: Guide, plan: Plan, chunk: int) -> None:
    """Takes all of a chunk, and looks for what comes next."""
    guide.taken(plan.take(ENTRIES, caches.layout.mask(chunk)).entries)
    next(guide.masks(caches.bits))


def test_the_complete_chunk_comes_before_the_loading_one() -> None:
    caches = Caches(ENTRIES).hold(c3="complete", c4="loading")
    caches.bits[caches.layout.chunk(4)[:5]] = True
    guide, plan = guided(caches)
    assert first_chunk(caches, guide) == 3
    use_up(caches, guide, plan, 3)
    assert caches.refs == [("ref", 3, 0), ("ref", 4, 0)]
    assert guide.releases() == [(3, True)]


def test_a_newcomer_goes_to_the_newer_chunk() -> None:
    caches = Caches(ENTRIES).hold(c3="marked", c4="complete")
    guide, _ = guided(caches)
    assert first_chunk(caches, guide) == 4
    assert caches.refs == [("ref", 4, 0)]


def test_a_job_goes_on_with_its_chunk_when_that_is_marked() -> None:
    caches = Caches(ENTRIES).hold(c3="complete", c4="loading")
    guide, plan = guided(caches)
    assert first_chunk(caches, guide) == 3
    caches.hold(c3="marked", c4="complete")
    assert first_chunk(caches, guide) == 3
    use_up(caches, guide, plan, 3)
    assert first_chunk(caches, guide) == 4
    assert guide.releases() == [(3, True)]


def test_a_marked_chunk_comes_before_misses_and_is_not_referred_to() -> None:
    caches = Caches(ENTRIES).hold(c3="marked", c4="complete")
    guide, plan = guided(caches)
    assert first_chunk(caches, guide) == 4
    plan.take(ENTRIES, caches.layout.mask(4))
    assert first_chunk(caches, guide) == 3
    assert caches.refs == [("ref", 4, 0)]
    assert guide.releases() == [(4, True)]


def test_a_chunk_that_is_evicted_early_is_given_up() -> None:
    caches = Caches(ENTRIES).hold(c3="marked", c4="complete")
    guide, plan = guided(caches)
    first_chunk(caches, guide)
    plan.take(5, caches.layout.mask(4))
    caches.hold(c5="complete")
    assert first_chunk(caches, guide) == 5
    assert guide.releases() == [(4, False)]


def test_what_a_complete_chunk_does_not_hold_does_not_keep_it() -> None:
    caches = Caches(ENTRIES).hold(c3="complete")
    caches.bits[caches.layout.chunk(3)[0]] = False
    guide, plan = guided(caches)
    assert first_chunk(caches, guide) == 3
    plan.take(ENTRIES, caches.bits)
    for _ in guide.masks(caches.bits):
        pass
    assert guide.releases() == [(3, True)]
    # And it is no reason to read this one before others: nothing will keep it.
    assert guide.loading() is None


def test_a_loading_chunk_is_kept_while_entries_of_it_are_missing() -> None:
    caches = Caches(ENTRIES).hold(c3="loading")
    caches.bits[caches.layout.chunk(3)[:20]] = True
    guide, plan = guided(caches)
    assert first_chunk(caches, guide) == 3
    plan.take(ENTRIES, caches.bits)
    for _ in guide.masks(caches.bits):
        pass
    assert guide.releases() == []
    loading = guide.loading()
    assert loading is not None
    assert np.array_equal(loading, caches.layout.mask(3))


def test_the_chunk_that_loads_first_is_missed_first() -> None:
    caches = Caches(ENTRIES).hold(c3="loading", c4="loading")
    guide, plan = guided(caches)
    loading = guide.loading()
    assert loading is not None
    assert loading[caches.layout.chunk(3)[0]]
    plan.take_any(100, caches.layout.mask(3))
    loading = guide.loading()
    assert loading is not None
    assert loading[caches.layout.chunk(4)[0]]


class Waiting:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now = 50.0

    def guide(self, caches: Caches, plan: Plan) -> Guide:
        return Guide(caches, plan, 0, lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def waited(self, guide: Guide) -> float:
        """Returns how long a guide waits in vain."""
        begin = self.now
        while guide.wait():
            pass
        return self.now - begin


def test_when_all_is_used_up_the_next_chunk_is_awaited_for_a_second_and_once() -> None:
    caches = Caches(ENTRIES).hold(c3="marked", c4="complete")
    clock = Waiting()
    guide = clock.guide(caches, Plan(np.arange(ENTRIES), ENTRIES))
    assert 1.0 <= clock.waited(guide) < 1.1
    # A slower job holds chunk 3: this one goes on with misses.
    guide.taken(np.zeros(0, dtype=np.int64))
    assert clock.waited(guide) == 0
    guide.taken(np.zeros(0, dtype=np.int64))
    caches.hold(c4="complete")
    assert 1.0 <= clock.waited(guide) < 1.1


def test_chunks_that_come_and_go_for_others_make_no_mini_batch_wait_longer() -> None:
    caches = Caches(ENTRIES).hold(c3="marked", c4="complete")
    clock = Waiting()
    guide = clock.guide(caches, Plan(np.arange(ENTRIES), ENTRIES))
    begin, changes = clock.now, 0
    while guide.wait():
        # Short times of eviction: another chunk with each look.
        changes += 1
        caches.hold(**{f"c{changes % 10}": "complete"})
        assert clock.now < begin + 2
    assert changes >= 20
    assert 1.0 <= clock.now - begin < 1.1


def test_the_first_chunk_is_awaited() -> None:
    clock = Waiting()
    caches = Caches(ENTRIES).hold()
    assert 1.0 <= clock.waited(clock.guide(caches, Plan(np.arange(ENTRIES), ENTRIES))) < 1.1


def test_nothing_is_awaited_where_nothing_will_come() -> None:
    clock = Waiting()
    for caches in (Caches(ENTRIES).hold(c3="complete", c4="loading"), Caches(ENTRIES)):
        assert clock.waited(clock.guide(caches, Plan(np.arange(ENTRIES), ENTRIES))) == 0


def test_without_chunks_everything_resident_will_do() -> None:
    caches = Caches(ENTRIES)
    caches.bits[::3] = True
    guide, _ = guided(caches)
    masks = list(guide.masks(caches.bits))
    assert len(masks) == 1
    assert np.array_equal(masks[0], caches.bits)
    assert guide.loading() is None
    assert caches.refs == []


def test_a_resumed_epoch_tells_which_chunks_it_does_not_need() -> None:
    caches = Caches(1000).hold(c3="complete", c4="loading")
    used = caches.layout.mask(3) | caches.layout.mask(7)
    plan = Plan(np.flatnonzero(~used), 1000)
    guide = Guide(caches, plan, 2)
    for _ in range(2):
        next(guide.masks(caches.bits))
    assert caches.refs[:2] == [("exhausted", 3, 2), ("exhausted", 7, 2)]
    assert caches.refs[2:] == [("ref", 4, 2)]
    assert caches.joined == {2}


def test_a_long_chunk_is_worth_a_longer_wait() -> None:
    caches = Caches(ENTRIES).hold(c3="complete")
    clock = Waiting()
    plan = Plan(np.arange(ENTRIES), ENTRIES)
    guide = clock.guide(caches, plan)
    assert first_chunk(caches, guide) == 3
    clock.now += 100
    plan.take(100, caches.bits)
    list(guide.masks(caches.bits))
    assert 5.0 <= clock.waited(guide) < 5.1


def test_a_chunk_that_is_taken_up_again_stays_referred_to() -> None:
    caches = Caches(ENTRIES).hold(c3="complete")
    guide, plan = guided(caches)
    assert first_chunk(caches, guide) == 3
    guide.taken(plan.take(5, caches.bits).entries)
    guide.leave()
    given_up = guide.releases()
    assert first_chunk(caches, guide) == 3
    # The loop is given the mini-batch of that time only now.
    guide.give_back(given_up)
    assert caches.refs == [("ref", 3, 0), ("ref", 3, 0)]


def test_a_reference_is_repeated_for_a_daemon_that_has_forgotten_it() -> None:
    caches = Caches(ENTRIES).hold(c3="complete")
    clock = Waiting()
    guide = clock.guide(caches, Plan(np.arange(ENTRIES), ENTRIES))
    for seconds in (0, 4.9, 0.2, 4.9):
        clock.now += seconds
        assert first_chunk(caches, guide) == 3
    assert caches.refs == [("ref", 3, 0)] * 2


def test_chunks_of_another_size_begin_the_epoch_again() -> None:
    caches = Caches(ENTRIES).hold(c3="complete")
    guide, plan = guided(caches)
    first_chunk(caches, guide)
    use_up(caches, guide, plan, 3)
    guide.give_back(guide.releases())
    epoch = caches.epochs[0]
    assert caches.exhausted[0] == {3}
    caches.layout = Layout(ENTRIES, 20)
    caches.hold(c7="complete")
    assert first_chunk(caches, guide) == 7
    assert caches.epochs[0] != epoch
    left = {chunk for chunk in range(20) if np.any(plan.left & caches.layout.mask(chunk))}
    assert caches.exhausted[0] == set(range(20)) - left

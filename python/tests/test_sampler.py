"""Epochs of one and several ranks: exactly once, through stops, other numbers of ranks, and replays."""

from __future__ import annotations

import pickle
from collections import Counter, deque
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from caches import Caches
from hypothesis import given, settings
from hypothesis import strategies as st

from copperfs import StateError, SubstitutableSampler, merge_states
from copperfs.guide import Guide


def samplers(caches: Any, batch: int, world: int, **options: Any) -> list[SubstitutableSampler]:
    return [
        SubstitutableSampler(caches, batch, rank=rank, world_size=world, **options) for rank in range(world)
    ]


def resumed(
    caches: Any, states: list[dict[str, Any]], batch: int, world: int, **options: Any
) -> list[SubstitutableSampler]:
    """Samplers of `world` ranks that go on from the states of a run, or begin one."""
    states = pickle.loads(pickle.dumps(states))
    if states and len(states) != world:
        states = merge_states(states, world)
    ranks = samplers(caches, batch, world, **options)
    for sampler, state in zip(ranks, states):
        sampler.load_state_dict(state)
    return ranks


def loaded(sampler: SubstitutableSampler, ahead: int, stop: int | None) -> list[list[int]]:
    """Returns the next `stop` mini-batches as a loader yields them whose workers read `ahead` of it."""
    epoch, drawn, yielded = iter(sampler), deque(), []
    while stop is None or len(yielded) < stop:
        drawn.extend(islice(epoch, ahead + 1 - len(drawn)))
        if not drawn:
            break
        yielded.append(drawn.popleft())
        sampler.confirm()
    return yielded


legs = st.tuples(st.sampled_from([1, 2, 3, 4]), st.sampled_from([0, 4, 16]), st.integers(0, 15))


@settings(max_examples=150, deadline=None)
@given(
    entries=st.integers(40, 400),
    batch=st.integers(1, 10),
    stops=st.lists(legs, max_size=3),
    last=legs,
    resident=st.sampled_from([0.0, 0.1, 0.6, 1.0]),
    bucket=st.booleans(),
    substitute=st.booleans(),
    seed=st.integers(0, 9),
)
def test_every_entry_once_through_stops_and_other_ranks_and_workers(
    entries: int,
    batch: int,
    stops: list[tuple[int, int, int]],
    last: tuple[int, int, int],
    resident: float,
    bucket: bool,
    substitute: bool,
    seed: int,
) -> None:
    caches, draw = Caches(entries), np.random.default_rng(seed)
    options = {"bucket": bucket, "substitute": substitute, "seed": seed, "confirms": True}
    seen: Counter[int] = Counter()
    states: list[dict[str, Any]] = []
    for world, ahead, stop in [*stops, (*last[:2], None)]:
        ranks = resumed(caches, states, batch, world, **options)
        lengths = set()
        for sampler in ranks:
            caches.bits = draw.random(entries) < resident
            batches = loaded(sampler, ahead, stop)
            lengths.add(len(batches))
            seen.update(entry for one in batches for entry in one)
        assert len(lengths) == 1, "ranks have equally many mini-batches"
        states = [sampler.state_dict() for sampler in ranks]
        if len(seen) == entries:
            break
        assert set(seen.values()) <= {1}, "nothing comes twice before the end"
    assert set(seen) == set(range(entries))
    assert sum(seen.values()) - entries < world, "each rank is padded by one entry at most"


@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize("bucket", [False, True])
def test_ranks_pad_or_drop_at_the_end(world: int, bucket: bool) -> None:
    caches = Caches(1003)
    padded = [list(sampler) for sampler in samplers(caches, 10, world, bucket=bucket)]
    assert {len(batches) for batches in padded} == {-(-1003 // world) // 10 + 1}
    seen = Counter(entry for batches in padded for one in batches for entry in one)
    assert set(seen) == set(range(1003))
    assert sum(seen.values()) == world * -(-1003 // world)
    dropped = [list(sampler) for sampler in samplers(caches, 10, world, bucket=bucket, drop_last=True)]
    assert {len(batches) for batches in dropped} == {1003 // world // 10}
    assert {len(one) for batches in dropped for one in batches} == {10}
    seen = Counter(entry for batches in dropped for one in batches for entry in one)
    assert set(seen.values()) == {1}


def test_padding_is_neither_a_hit_nor_a_miss() -> None:
    batches = []
    for sampler in samplers(Caches(7), 3, 2, confirms=True):
        for _ in sampler:
            batches.append(sampler.confirm())
    assert sum(batch.padding for batch in batches) == 1
    assert sum(batch.hits + batch.misses for batch in batches) == 7


def test_a_rank_that_is_padded_with_anothers_entry_has_not_consumed_it() -> None:
    caches = Caches(9)
    (single,) = samplers(caches, 1, 1, confirms=True)
    loaded(single, 0, 7)
    # Two entries are left for three ranks.
    ranks = resumed(caches, [single.state_dict()], 1, 3, confirms=True)
    assert [len(loaded(sampler, 0, None)) for sampler in ranks] == [1, 1, 1]
    (merged,) = merge_states([sampler.state_dict() for sampler in ranks], 1)
    assert np.unpackbits(np.frombuffer(merged["base"], dtype=np.uint8)).sum() == 9


def test_len_is_the_number_of_batches() -> None:
    for entries, batch, world in [(100, 10, 1), (101, 10, 1), (103, 10, 4)]:
        for drop_last in (False, True):
            for sampler in samplers(Caches(entries), batch, world, drop_last=drop_last):
                assert len(sampler) == len(list(sampler))


def test_chunks_in_turn_make_an_epoch_of_hits() -> None:
    caches = Caches(10_000)

    def turn(chunk: int) -> None:
        """The next chunk has been loaded while this one was read."""
        following = (chunk + 1) % 10
        caches.hold(**{f"c{chunk}": "complete", f"c{following}": "loading"})
        caches.bits |= caches.layout.mask(following)

    turn(0)
    sampler = SubstitutableSampler(caches, 64, confirms=True)
    hits, chunk = 0, 0
    for _ in sampler:
        hits += sampler.confirm().hits
        if ("exhausted", chunk, 0) in caches.refs:
            chunk += 1
            turn(chunk % 10)
    plan = sampler.current.plan if sampler.current else None
    assert hits == 10_000
    assert plan is not None
    assert plan.lookups / 10_000 == pytest.approx(5.5, rel=0.02)
    assert [ref for ref in caches.refs if ref[0] == "ref"] == [("ref", n, 0) for n in range(10)]
    assert [ref for ref in caches.refs if ref[0] != "ref"] == [("exhausted", n, 0) for n in range(10)]


def test_a_chunk_is_given_back_when_its_entries_are_consumed_not_when_they_are_drawn() -> None:
    caches = Caches(1000).hold(c0="complete", c1="complete")
    sampler = SubstitutableSampler(caches, 20, confirms=True)
    drawn = list(islice(iter(sampler), 8))
    assert len(drawn) == 8
    assert caches.refs == [("ref", 1, 0), ("ref", 0, 0)]
    for _ in range(4):
        sampler.confirm()
    assert ("exhausted", 1, 0) not in caches.refs
    sampler.confirm()
    assert caches.refs[-1] == ("exhausted", 1, 0)


def test_a_sampler_alone_gives_a_chunk_back_when_its_last_entries_are_read() -> None:
    # DataLoader asks for a mini-batch when it has read the one before, so that is when it counts here.
    caches = Caches(1000).hold(c0="complete", c1="complete")
    epoch = iter(SubstitutableSampler(caches, 20))
    list(islice(epoch, 5))
    assert caches.refs == [("ref", 1, 0)]
    next(epoch)
    assert caches.refs == [("ref", 1, 0), ("ref", 0, 0), ("exhausted", 1, 0)]


def test_the_last_chunk_is_given_back_when_the_epoch_is_consumed() -> None:
    # One chunk is the whole dataset, so it is used up with the epoch.
    caches = Caches(100, stripes=1).hold(c0="complete")
    sampler = SubstitutableSampler(caches, 10, confirms=True)
    drawn = list(sampler)
    for _ in drawn[:-1]:
        sampler.confirm()
    assert caches.refs == [("ref", 0, 0)]
    sampler.confirm()
    assert caches.refs == [("ref", 0, 0), ("exhausted", 0, 0)]


def test_ranks_refer_to_chunks_by_their_number() -> None:
    caches = Caches(1000).hold(c2="complete")
    next(iter(SubstitutableSampler(caches, 5, rank=1, world_size=2)))
    assert caches.refs == [("ref", 2, 1)]


def test_a_chunk_that_comes_in_time_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = Caches(1000).hold(c0="complete")

    def comes(_: float) -> None:
        caches.hold(c1="complete")

    monkeypatch.setattr("copperfs.sampler.Guide", partial(Guide, clock=lambda: 0.0, sleep=comes))
    sampler = SubstitutableSampler(caches, 80, confirms=True)
    epoch = iter(sampler)
    assert [sampler.confirm().hits for _ in islice(epoch, 2)] == [80, 80]


def test_misses_are_of_the_chunk_that_loads() -> None:
    caches = Caches(1000).hold(c6="loading")
    held = caches.layout.chunk(6)[:30]
    caches.bits[held] = True
    sampler = SubstitutableSampler(caches, 50, confirms=True)
    entries = next(iter(sampler))
    batch = sampler.confirm()
    assert (batch.hits, batch.misses) == (30, 20)
    assert set(held) <= set(entries)
    assert all(caches.layout.mask(6)[entries])


def test_other_misses_are_of_the_chunk_that_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(999)).__next__
    monkeypatch.setattr("copperfs.sampler.Guide", partial(Guide, sleep=lambda _: None, clock=clock))
    caches = Caches(1000).hold(c6="marked", c7="complete")
    epoch = iter(SubstitutableSampler(caches, 50, confirms=True))
    found = [next(epoch) for _ in range(6)]
    chunks = [{int(caches.layout.unit_of(entry)) % 10 for entry in batch} for batch in found]
    # 7 and 6 are used up first; then 5, which was evicted last.
    assert chunks == [{7}, {7}, {6}, {6}, {5}, {5}]
    next(epoch)
    assert epoch.plan.remaining == 650


@pytest.mark.parametrize("mode", ["probe", "uncached"])
def test_a_job_that_is_probed_or_switched_off_takes_the_plain_order(mode: str) -> None:
    caches = Caches(1000).hold(c0="complete")
    plain = list(SubstitutableSampler(Caches(1000), 20, substitute=False))
    caches.answers = mode
    sampler = SubstitutableSampler(caches, 20, confirms=True)
    assert next(iter(sampler)) == plain[0]
    batch = sampler.confirm()
    assert (batch.hits, batch.misses, batch.mode) == (0, 20, mode)
    assert caches.refs == []


@pytest.mark.parametrize("mode", ["probe", "uncached"])
def test_a_job_without_a_cache_gives_its_chunk_back_and_may_return(mode: str) -> None:
    caches = Caches(1000).hold(c0="complete")
    epoch = iter(SubstitutableSampler(caches, 20))
    next(epoch)
    caches.answers = mode
    next(epoch)
    assert caches.refs == [("ref", 0, 0), ("unref", 0, False, 0)]
    caches.answers = "cached"
    assert all(caches.bits[next(epoch)])


def test_substitute_false_is_the_same_permutation_whatever_is_resident() -> None:
    caches = Caches(500)
    plain = list(SubstitutableSampler(caches, 20, substitute=False, seed=3))
    caches.hold(c1="complete")
    assert list(SubstitutableSampler(caches, 20, substitute=False, seed=3)) == plain
    assert list(SubstitutableSampler(caches, 20, substitute=False, seed=4)) != plain
    assert caches.refs == []


def test_epochs_follow_each_other_and_can_be_named() -> None:
    sampler = SubstitutableSampler(Caches(200), 20)
    first, second = list(sampler), list(sampler)
    assert first != second
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert list(sampler) == second
    with pytest.raises(ValueError, match="epoch -1"):
        sampler.set_epoch(-1)


def test_an_iterator_that_nothing_was_asked_of_is_no_epoch() -> None:
    # DataLoader makes two when it starts its workers.
    sampler = SubstitutableSampler(Caches(200), 20)
    iter(sampler)
    assert list(sampler) == list(SubstitutableSampler(Caches(200), 20))


def test_a_state_holds_what_was_consumed_not_what_was_drawn() -> None:
    caches = Caches(200)
    sampler = SubstitutableSampler(caches, 10, confirms=True)
    drawn = list(islice(iter(sampler), 8))
    for _ in range(3):
        sampler.confirm()
    again = SubstitutableSampler(caches, 10)
    again.load_state_dict(sampler.state_dict())
    assert list(again)[:5] == drawn[3:]


def test_the_state_protocol_of_statefuldataloader() -> None:
    # It takes a state at each dispatch, ahead of what is yielded, and goes on from the one that belongs to
    # the last mini-batch yielded. It makes an iterator before it loads, and another one afterwards.
    caches = Caches(300)
    sampler = SubstitutableSampler(caches, 10)
    epoch, dispatched = iter(sampler), []
    for _ in range(9):
        dispatched.append((next(epoch), sampler.state_dict()))
    again = SubstitutableSampler(caches, 10)
    iter(again)
    again.load_state_dict(dispatched[4][1])
    assert list(iter(again))[:4] == [batch for batch, _ in dispatched[5:]]


def test_the_state_of_a_finished_epoch_leads_to_the_next_one() -> None:
    caches = Caches(100)
    sampler = SubstitutableSampler(caches, 10)
    list(sampler)
    state = sampler.state_dict()
    again = SubstitutableSampler(caches, 10)
    again.load_state_dict(state)
    following = list(again)
    sampler.set_epoch(1)
    assert following == list(sampler)
    # But a caller that names the finished epoch gets no entry of it twice.
    again.load_state_dict(state)
    again.set_epoch(0)
    assert list(again) == []


def test_the_next_epoch_follows_a_resumed_one() -> None:
    caches = Caches(100)
    sampler = SubstitutableSampler(caches, 10)
    list(islice(sampler, 4))
    again = SubstitutableSampler(caches, 10)
    again.load_state_dict(sampler.state_dict())
    assert [len(list(again)) for _ in range(3)] == [6, 10, 10]


def test_set_epoch_keeps_a_loaded_state_of_this_epoch_and_drops_another() -> None:
    caches = Caches(100)
    sampler = SubstitutableSampler(caches, 10)
    sampler.set_epoch(5)
    list(islice(sampler, 4))
    state = sampler.state_dict()
    for epoch, batches in ((5, 6), (6, 10)):
        again = SubstitutableSampler(caches, 10)
        again.load_state_dict(state)
        again.set_epoch(epoch)
        assert len(list(again)) == batches


def test_a_checkpoint_of_another_run_is_refused() -> None:
    caches, other = Caches(100), Caches(100)
    other.identity = "0bad" * 16
    state = SubstitutableSampler(caches, 10).state_dict()
    with pytest.raises(StateError, match="of another manifest: of 100 entries and identity 5eed"):
        SubstitutableSampler(other, 10).load_state_dict(state)
    with pytest.raises(StateError, match=r"of 1 ranks.*merge_states\(.*, 2\)"):
        SubstitutableSampler(caches, 10, rank=0, world_size=2).load_state_dict(state)
    state = SubstitutableSampler(caches, 10, rank=0, world_size=2).state_dict()
    with pytest.raises(StateError, match="rank 0's, and this is rank 1"):
        SubstitutableSampler(caches, 10, rank=1, world_size=2).load_state_dict(state)


@pytest.mark.parametrize("batch", [0, -1, 26])
def test_a_batch_above_a_ranks_part_is_refused(batch: int) -> None:
    with pytest.raises(ValueError, match=f"batch_size={batch}.*part of 101 entries is 25: give 1 to 25"):
        SubstitutableSampler(Caches(101), batch, rank=0, world_size=4)


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 0)])
def test_impossible_ranks_are_refused(rank: int, world: int) -> None:
    with pytest.raises(ValueError, match=f"rank={rank} of world_size={world}"):
        SubstitutableSampler(Caches(100), 1, rank=rank, world_size=world)


def test_ranks_are_torchruns_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    sampler = SubstitutableSampler(Caches(100), 1)
    assert (sampler.rank, sampler.world_size) == (3, 4)


def test_confirming_more_than_was_yielded_is_a_mistake() -> None:
    sampler = SubstitutableSampler(Caches(100), 10, confirms=True)
    with pytest.raises(RuntimeError, match="no epoch has begun"):
        sampler.confirm()
    next(iter(sampler))
    sampler.confirm()
    with pytest.raises(RuntimeError, match="confirmed already"):
        sampler.confirm()


def test_a_recorded_run_replays_to_the_item(tmp_path: Path) -> None:
    caches, record = Caches(500), str(tmp_path / "run.{rank}.batches")
    runs = []
    for sampler in samplers(caches, 20, 2, record=record):
        for chunk in range(2):
            caches.hold(**{f"c{chunk}": "complete"})
            runs.append((sampler.rank, list(sampler)))
    caches.hold(c7="complete")
    for rank in range(2):
        replay = SubstitutableSampler(caches, 20, rank=rank, world_size=2, replay=record)
        for recorded in [batches for of, batches in runs if of == rank]:
            assert list(replay) == recorded


def test_a_resumed_run_records_what_was_consumed(tmp_path: Path) -> None:
    caches, record = Caches(300), str(tmp_path / "run")
    first = SubstitutableSampler(caches, 10, record=record)
    epoch = iter(first)
    kept = list(islice(epoch, 5))
    state = first.state_dict()
    # These come after the checkpoint: the resumed run draws others instead.
    list(islice(epoch, 4))
    caches.hold(c3="complete")
    second = SubstitutableSampler(caches, 10, record=record)
    second.load_state_dict(state)
    resumed_epoch = iter(second)
    kept += list(islice(resumed_epoch, 2))
    replay = iter(SubstitutableSampler(caches, 10, replay=record))
    assert list(islice(replay, 7)) == kept
    with pytest.raises(StateError, match="ends before epoch 0 does"):
        next(replay)
    kept += list(resumed_epoch)
    assert list(SubstitutableSampler(caches, 10, replay=record)) == kept


def test_a_replay_can_be_resumed(tmp_path: Path) -> None:
    caches, record = Caches(300), str(tmp_path / "run")
    whole = list(SubstitutableSampler(caches, 10, record=record))
    first = SubstitutableSampler(caches, 10, replay=record)
    list(islice(first, 7))
    second = SubstitutableSampler(caches, 10, replay=record)
    second.load_state_dict(first.state_dict())
    assert list(second) == whole[7:]


def test_a_record_that_a_killed_run_left_is_read_to_its_last_whole_batch(tmp_path: Path) -> None:
    caches, record = Caches(300), tmp_path / "run"
    sampler = SubstitutableSampler(caches, 10, record=str(record))
    recorded = list(islice(sampler, 3))
    record.write_bytes(record.read_bytes()[:-1])
    replay = iter(SubstitutableSampler(caches, 10, replay=str(record)))
    assert [next(replay), next(replay)] == recorded[:2]
    with pytest.raises(StateError, match="ends before epoch 0 does"):
        next(replay)


def test_records_of_other_runs_are_refused(tmp_path: Path) -> None:
    caches, record = Caches(300), str(tmp_path / "run")
    list(SubstitutableSampler(caches, 10, record=record))
    replay = SubstitutableSampler(caches, 10, replay=record)
    replay.set_epoch(1)
    with pytest.raises(StateError, match="no mini-batch of epoch 1"):
        next(iter(replay))
    other = Caches(300)
    other.identity = "0bad" * 16
    for option in ("record", "replay"):
        with pytest.raises(StateError, match="is not a record of rank 0 of 1 over this dataset"):
            next(iter(SubstitutableSampler(other, 10, **{option: record})))


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    caches, record = Caches(300), tmp_path / "run"
    list(SubstitutableSampler(caches, 10, record=str(record)))
    record.write_bytes(record.read_bytes()[:-8] + (300).to_bytes(8, "little"))
    with pytest.raises(StateError, match="damaged: it names an entry that the dataset does not have"):
        list(SubstitutableSampler(caches, 10, replay=str(record)))


def test_ranks_do_not_share_a_record() -> None:
    with pytest.raises(ValueError, match=r"each needs a file of its own; write \{rank\}"):
        SubstitutableSampler(Caches(100), 5, rank=0, world_size=2, record="run")
    with pytest.raises(ValueError, match="not both"):
        SubstitutableSampler(Caches(100), 5, record="a", replay="b")


def test_an_epoch_that_is_broken_off_gives_back_chunks_that_were_only_drawn() -> None:
    caches = Caches(1000).hold(c0="complete", c1="complete")
    sampler = SubstitutableSampler(caches, 20, confirms=True)
    epoch = iter(sampler)
    list(islice(epoch, 8))
    sampler.confirm()
    epoch.close()
    # All of chunk 1 was drawn, and the loop was given a fifth of it.
    assert sorted(caches.refs[2:]) == [("unref", 0, False, 0), ("unref", 1, False, 0)]
    assert caches.exhausted[0] == set()


def test_an_epoch_whose_loop_ends_with_the_last_mini_batch_is_exhausted() -> None:
    caches = Caches(1000).hold(c0="complete")
    sampler = SubstitutableSampler(caches, 100, confirms=True)
    epoch = iter(sampler)
    for _ in range(10):
        next(epoch)
        sampler.confirm()
    epoch.close()
    assert caches.exhausted[0] == set(range(10))


def test_an_epoch_that_another_one_has_followed_tells_nothing_more() -> None:
    caches = Caches(1000).hold(c0="complete")
    sampler = SubstitutableSampler(caches, 20, confirms=True)
    first = iter(sampler)
    next(first)
    second = iter(sampler)
    next(second)
    told = list(caches.refs)
    first.close()
    assert caches.refs == told == [("ref", 0, 0)] * 2
    second.close()
    assert caches.refs[2:] == [("unref", 0, False, 0)]

"""Ranks together with the daemon's rules for chunks, through several epochs."""

from __future__ import annotations

import random
from collections import deque
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rotation import Rotating

from copperfs import SubstitutableSampler
from copperfs.guide import Guide
from copperfs.sampler import Epoch
from copperfs.shuffle import part_of_rank


class Rank:
    """A rank that goes through epochs, with mini-batches that are drawn `ahead` of the loop."""

    def __init__(self, caches: Rotating, sampler: SubstitutableSampler, ahead: int) -> None:
        self.caches = caches
        self.sampler = sampler
        self.ahead = ahead
        self.epoch: Epoch | None = None
        self.finished = 0
        self.drawn: deque[list[int]] = deque()
        self.part = part_of_rank(np.arange(len(caches)), sampler.rank, sampler.world_size, caches.identity)
        # The entries that the loop has yet to be given in this epoch.
        self.unread = np.zeros(len(caches), dtype=np.bool_)
        # The number of an epoch that was broken off: its chunks are needed until another one has begun.
        self.broken_off: int | None = None
        self.hits = self.misses = 0

    def is_known(self) -> bool:
        """Returns whether the daemon knows of the end of an epoch that was broken off."""
        return self.broken_off is None or self.broken_off != self.caches.epochs.get(self.sampler.rank)

    def needs(self, chunk: int) -> bool:
        return not self.is_known() or bool(np.any(self.unread & self.caches.layout.mask(chunk)))

    def told(self) -> tuple[int, set[int]]:
        """Returns the epoch and the exhausted chunks of which the daemon knows."""
        reading = self.caches.readings[self.sampler.rank]
        return reading.epoch, set(reading.exhausted)

    def step(self) -> None:
        """Gives the loop its next mini-batch, or ends the epoch."""
        begins = self.epoch is None
        if begins:
            self.epoch = iter(self.sampler)
            self.unread[self.part] = True
        before = self.caches.epochs.get(self.sampler.rank)
        assert self.epoch is not None
        while len(self.drawn) <= self.ahead and (entries := next(self.epoch, None)) is not None:
            self.drawn.append(entries)
        if begins and self.caches.answers == "cached":
            epoch, exhausted = self.told()
            assert epoch != before, "the daemon knows that an epoch has begun"
            empty = {chunk for chunk in range(self.caches.layout.stripes) if not self.needs(chunk)}
            assert exhausted == empty, "everything is needed again"
        if self.drawn:
            # A message to the daemon may have an effect at once.
            self.unread[self.drawn.popleft()] = False
            batch = self.sampler.confirm()
            self.hits, self.misses = self.hits + batch.hits, self.misses + batch.misses
        else:
            self.end()

    def end(self) -> None:
        assert self.epoch is not None
        self.epoch.close()
        # Those that `drop_last` leaves are not needed in this epoch.
        self.unread[:] = False
        self.epoch, self.finished = None, self.finished + 1

    def break_off(self) -> None:
        if self.epoch is not None:
            self.epoch.close()
            self.epoch = None
            self.drawn.clear()
            self.broken_off = self.caches.epochs.get(self.sampler.rank)


def ranks_of(
    caches: Rotating, monkeypatch: pytest.MonkeyPatch, world: int, batch: int, ahead: int, drop_last: bool
) -> list[Rank]:
    """Returns ranks whose waiting is the caches' time, and lets chunks come in only if one needs them."""
    monkeypatch.setattr("copperfs.sampler.Guide", partial(Guide, clock=lambda: caches.now, sleep=caches.tick))
    options = {"drop_last": drop_last, "confirms": True, "seed": 3}
    ranks = [
        Rank(caches, SubstitutableSampler(caches, batch, rank=rank, world_size=world, **options), ahead)
        for rank in range(world)
    ]

    def brought(chunk: int) -> None:
        assert any(rank.needs(chunk) for rank in ranks), f"no rank needs chunk {chunk}, which comes in"

    caches.brought = brought
    return ranks


@settings(max_examples=60, deadline=None)
@given(
    entries=st.integers(100, 400),
    stripes=st.integers(1, 14),
    world=st.integers(1, 3),
    batch=st.integers(2, 16),
    ahead=st.sampled_from([0, 3, 9]),
    drop_last=st.booleans(),
    rate=st.sampled_from([5.0, 60.0, 2000.0]),
    evict_after=st.sampled_from([0.1, 3.0, 60.0]),
    uncached=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 999),
)
def test_every_epoch_ends_exhausted_begins_as_such_and_brings_in_needed_chunks_only(
    entries: int,
    stripes: int,
    world: int,
    batch: int,
    ahead: int,
    drop_last: bool,
    rate: float,
    evict_after: float,
    uncached: float,
    seed: int,
) -> None:
    draw = random.Random(seed)
    breaks = draw.randrange(6)
    caches = Rotating(entries, stripes, rate, evict_after, seed)
    caches.last = draw.randrange(stripes)
    with pytest.MonkeyPatch.context() as monkeypatch:
        ranks = ranks_of(caches, monkeypatch, world, batch, ahead, drop_last)
        while unfinished := [rank for rank in ranks if rank.finished < 3]:
            rank = draw.choice(unfinished)
            caches.answers = "probe" if draw.random() < uncached else "cached"
            finished = rank.finished
            rank.step()
            if rank.finished > finished and rank.sampler.rank in caches.readings and rank.is_known():
                assert rank.told()[1] == set(range(stripes)), "an epoch ends with all chunks exhausted"
                assert not caches.readings[rank.sampler.rank].refers
            caches.tick(draw.random() * 0.2)
            if breaks and draw.random() < 0.02:
                # A few times: short mini-batches would hardly come to the end of an epoch otherwise.
                breaks -= 1
                rank.break_off()
                reading = caches.readings.get(rank.sampler.rank)
                assert reading is None or not reading.refers, "an epoch that is broken off reads no chunk"


@pytest.mark.parametrize("world", [1, 2])
def test_chunks_come_in_epoch_after_epoch(monkeypatch: pytest.MonkeyPatch, world: int) -> None:
    caches = Rotating(1000, 10, rate=1000.0, evict_after=60.0)
    ranks = ranks_of(caches, monkeypatch, world, batch=10, ahead=2, drop_last=False)
    for epoch in range(4):
        for rank in ranks:
            rank.hits = rank.misses = 0
        while any(rank.finished == epoch for rank in ranks):
            for rank in ranks:
                if rank.finished == epoch:
                    rank.step()
            caches.tick(0.1)
        for rank in ranks:
            assert rank.hits >= 0.9 * len(rank.part), f"epoch {epoch}: {rank.hits} hits"


def test_a_chunk_that_is_used_up_as_misses_does_not_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    # The resident chunks stay as they are: a job that is not seen here holds both.
    caches = Rotating(1000, 10, rate=0.0, evict_after=1e9)
    caches.hold(c3="marked", c4="complete")
    (rank,) = ranks_of(caches, monkeypatch, world=1, batch=50, ahead=0, drop_last=False)
    with monkeypatch.context() as still:
        still.setattr(Rotating, "chunks", lambda self: super(Rotating, self).chunks())
        for _ in range(6):
            rank.step()
    assert (rank.hits, rank.misses) == (200, 100)
    # 4 and 3, then 2, which comes last in the ring.
    assert rank.told()[1] == {2, 3, 4}


def test_an_epoch_that_is_broken_off_does_not_keep_the_next_one_from_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caches = Rotating(1000, 10, rate=1000.0, evict_after=60.0)
    (rank,) = ranks_of(caches, monkeypatch, world=1, batch=10, ahead=0, drop_last=False)
    while len(caches.readings.get(0).exhausted if 0 in caches.readings else ()) < 9:
        rank.step()
        caches.tick(0.1)
    rank.break_off()
    rank.hits = rank.misses = 0
    while not rank.finished:
        rank.step()
        caches.tick(0.1)
    assert rank.hits >= 900

"""What a job reports of its progress."""

from __future__ import annotations

import numpy as np
import pytest
from caches import Caches

from copperfs.report import Reporter
from copperfs.sampler import Batch


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def batch(mode: str = "cached", hits: int = 8) -> Batch:
    return Batch(np.arange(10), 0, hits, 10 - hits, 2, mode, [])


def arrivals(caches: Caches, clock: Clock) -> Reporter:
    reporter = Reporter(caches, 4, clock)
    reporter.arrived(batch())
    return reporter


def test_a_report_is_due_after_twenty_mini_batches() -> None:
    caches, clock = Caches(10), Clock()
    reporter = arrivals(caches, clock)
    for _ in range(45):
        clock.now += 0.1
        reporter.arrived(batch())
    expected = (20, pytest.approx(2.0), 160, 40, 40, "cached")
    assert caches.reports == [expected, expected]
    reporter.end_of_epoch()
    assert caches.reports[2] == (5, pytest.approx(0.5), 40, 10, 10, "cached")


def test_a_report_tells_how_many_ranks_report() -> None:
    caches, clock = Caches(10), Clock()
    reporter = arrivals(caches, clock)
    clock.now += 1
    reporter.arrived(batch())
    reporter.flush()
    assert caches.ranks == 4


def test_a_report_of_slow_mini_batches_is_due_after_five_seconds() -> None:
    caches, clock = Caches(10), Clock()
    reporter = arrivals(caches, clock)
    for _ in range(3):
        clock.now += 2
        reporter.arrived(batch())
    assert caches.reports == [(3, 6.0, 24, 6, 6, "cached")]


def test_a_report_is_of_one_mode() -> None:
    caches, clock = Caches(10), Clock()
    reporter = arrivals(caches, clock)
    for mode in ("cached", "probe", "probe", "cached"):
        clock.now += 1
        reporter.arrived(batch(mode, hits=2))
    reporter.flush()
    assert [(report[0], report[-1]) for report in caches.reports] == [
        (1, "cached"),
        (2, "probe"),
        (1, "cached"),
    ]


def test_the_time_between_epochs_is_no_mini_batchs() -> None:
    caches, clock = Caches(10), Clock()
    reporter = arrivals(caches, clock)
    clock.now += 1
    reporter.arrived(batch())
    reporter.end_of_epoch()
    clock.now += 1000
    reporter.arrived(batch())
    reporter.end_of_epoch()
    assert caches.reports == [(1, 1.0, 8, 2, 2, "cached")]


def test_a_clock_that_stands_still_makes_no_report() -> None:
    caches, clock = Caches(10), Clock()
    reporter = arrivals(caches, clock)
    reporter.arrived(batch())
    reporter.end_of_epoch()
    assert caches.reports == []

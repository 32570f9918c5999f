"""Timelines of mini-batches."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from copperfs import Timeline
from copperfs.timeline import Span


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def recorded(steps: list[tuple[float, float]], **options: int) -> Timeline:
    """A timeline of steps, each with its begin and end."""
    clock = Clock()
    timeline = Timeline(clock=clock, **options)
    for begin, end in steps:
        clock.now = begin
        timeline.arrived(Span(begin - 2, begin - 1), Span(begin - 1, begin))
        clock.now = end
        timeline.asked()
    return timeline


def test_idle_is_the_part_in_which_nothing_is_computed() -> None:
    assert recorded([(10, 11), (11, 12), (12, 13)]).idle() == 0
    assert recorded([(10, 11), (14, 15), (18, 19)]).idle() == pytest.approx(0.75)
    with pytest.raises(ValueError, match="fewer than two mini-batches"):
        recorded([(10, 11)]).idle()


def test_only_so_many_mini_batches_are_recorded_after_the_skipped_ones() -> None:
    timeline = recorded([(10.0 * n, 10.0 * n + 1) for n in range(1, 9)], batches=3, skip=2)
    assert timeline.complete
    assert [spans.compute.begin for spans in timeline.spans] == [30, 40, 50]


def test_a_step_ends_when_the_device_has_ended() -> None:
    clock = Clock()

    def synchronize() -> None:
        clock.now += 5

    timeline = Timeline(clock=clock, synchronize=synchronize)
    timeline.arrived(Span(0, 0), Span(0, 0))
    timeline.asked()
    assert timeline.spans[0].compute == (0, 5)


def test_a_drawing_has_a_box_for_each_stage(tmp_path: Path) -> None:
    timeline = recorded([(10.0 * n, 10.0 * n + 1) for n in range(1, 21)])
    timeline.save(str(tmp_path / "t.svg"), "hits & misses")
    drawing = ElementTree.parse(tmp_path / "t.svg").getroot()
    boxes = drawing.findall("{http://www.w3.org/2000/svg}rect")
    texts = [text.text for text in drawing.findall("{http://www.w3.org/2000/svg}text")]
    # The background, three in the legend, and three of each of 20 mini-batches.
    assert len(boxes) == 1 + 3 + 60
    assert "hits & misses: compute idle 90.0%" in texts
    compute = [box for box in boxes if box.get("fill") == "#0072b2"][1:]
    lefts = [float(box.get("x", "")) for box in compute]
    assert lefts == sorted(lefts)
    assert all(60 <= left <= 900 for left in lefts)
    # Stages differ in height, too.
    assert len({(box.get("fill"), box.get("height")) for box in boxes[1:4]}) == 3
    assert len({box.get("height") for box in boxes[1:4]}) == 3


@pytest.mark.parametrize("seconds", [0.004, 0.9, 17.0, 12_345.0])
def test_texts_are_inside_the_drawing_and_apart(seconds: float) -> None:
    steps = [(seconds * n, seconds * (n + 0.5)) for n in range(1, 21)]
    drawing = ElementTree.fromstring(recorded(steps).svg("mini-batches that are read from the cache"))
    right, ticks = float(drawing.get("width", "")), []
    for text in drawing.findall("{http://www.w3.org/2000/svg}text"):
        shown, anchor = text.text or "", text.get("text-anchor", "start")
        width = 0.64 * float(text.get("font-size", "12")) * len(shown)
        left = float(text.get("x", "")) - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
        if not text.get("transform"):
            assert 0 <= left <= left + width <= right, shown
        if anchor == "middle" and shown.replace(",", "").replace(".", "").isdigit():
            ticks.append((left, left + width))
    assert len(ticks) > 2
    assert all(one[1] < other[0] for one, other in zip(ticks, ticks[1:]))


def test_a_timeline_of_one_mini_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="batches=1"):
        Timeline(1)

"""A timeline of mini-batches: when each was read, transformed and computed (Quiver, Figures 4 and 5)."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, Callable, NamedTuple
from xml.sax.saxutils import escape

# The colours of Okabe and Ito, which most colour-blind readers can distinguish. Heights differ, too.
_COLOURS = {"io": "#e69f00", "transform": "#cc79a7", "compute": "#0072b2"}
_HEIGHTS = {"io": 8, "transform": 11, "compute": 14}
_LABELS = {"io": "I/O", "transform": "transform", "compute": "compute"}
_WIDTH, _ROW, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 18, 84, 36, 66, 52


class Span(NamedTuple):
    """A time from `begin` to `end`, in seconds of the monotonic clock."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


class Spans(NamedTuple):
    """The stages of a mini-batch."""

    io: Span
    transform: Span
    compute: Span


class Timeline:
    """Records the stages of `batches` mini-batches, after `skip` at the beginning.

    The loop's step counts as computing, from the arrival of a mini-batch until the next is asked for. Steps
    that run on a device behind the program's back need `synchronize`, which waits for them:
    `Timeline(synchronize=torch.cuda.synchronize)`.
    """

    def __init__(
        self,
        batches: int = 20,
        skip: int = 0,
        synchronize: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if batches < 2:
            raise ValueError(f"batches={batches}: the gap between two is the least that there is to see")
        self._batches = batches
        self._skip = skip
        self._synchronize = synchronize
        self._clock = clock
        self._arrived: tuple[Span, Span, float] | None = None
        #: The stages of each mini-batch, in the order in which the loop had them.
        self.spans: list[Spans] = []

    @property
    def complete(self) -> bool:
        """Whether all mini-batches are recorded."""
        return len(self.spans) >= self._batches

    def arrived(self, io: Span, transform: Span) -> None:
        """A mini-batch is given to the loop now."""
        if self._skip:
            self._skip -= 1
        elif not self.complete:
            self._arrived = (io, transform, self._clock())

    def asked(self) -> None:
        """The loop has ended its step, and asks for the next mini-batch."""
        if self._arrived is not None:
            if self._synchronize is not None:
                self._synchronize()
            io, transform, begin = self._arrived
            self.spans.append(Spans(io, transform, Span(begin, self._clock())))
            self._arrived = None

    def idle(self) -> float:
        """Returns the part of the time, 0 to 1, in which nothing was computed.

        The time is that from the first step's begin to the last one's. Raises `ValueError` before two
        mini-batches are recorded.
        """
        if len(self.spans) < 2:
            raise ValueError("a timeline of fewer than two mini-batches: iterate over more")
        steps = [spans.compute for spans in self.spans]
        whole = steps[-1].begin - steps[0].begin
        busy = sum(step.seconds for step in steps[:-1])
        return max(0.0, 1 - busy / whole)

    def svg(self, title: str = "") -> str:
        """Returns a drawing: a row for each mini-batch, a box for each stage, time from left to right."""
        idle = f"compute idle {self.idle():.1%}"
        return _drawn(self.spans, f"{title}: {idle}" if title else idle)

    def save(self, path: str, title: str = "") -> None:
        """Writes the drawing to a file."""
        Path(path).write_text(self.svg(title), encoding="utf-8")


def _drawn(batches: list[Spans], heading: str) -> str:
    begin = min(spans.io.begin for spans in batches)
    seconds = max(spans.compute.end for spans in batches) - begin
    scale = (_WIDTH - _LEFT - _RIGHT) / seconds
    base = _TOP + _ROW * len(batches)
    height = base + _BOTTOM
    middle = (_TOP + base) / 2
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="20" y="24" font-size="15" font-weight="bold">{escape(heading)}</text>',
        f'<text x="24" y="{middle}" text-anchor="middle" font-size="13" '
        f'transform="rotate(270 24 {middle})">mini-batch</text>',
    ]
    for place, (stage, colour) in enumerate(_COLOURS.items()):
        left, box = 20 + 110 * place, _HEIGHTS[stage]
        drawn.append(f'<rect x="{left}" y="{46 - box / 2}" width="22" height="{box}" fill="{colour}"/>')
        drawn.append(f'<text x="{left + 29}" y="50">{_LABELS[stage]}</text>')
    step = _step(seconds)
    for tick in range(int(seconds / step) + 1):
        x = _LEFT + tick * step * scale
        drawn.append(f'<path d="M{x:.1f} {_TOP}V{base}" stroke="#e2e2e2"/>')
        drawn.append(f'<text x="{x:.1f}" y="{base + 18}" text-anchor="middle">{tick * step:,g}</text>')
    for row, spans in enumerate(batches):
        centre = _TOP + _ROW * (row + 0.5)
        drawn.append(f'<text x="{_LEFT - 8}" y="{centre + 4}" text-anchor="end">{row + 1}</text>')
        for stage, span in zip(Spans._fields, spans):
            box = _HEIGHTS[stage]
            drawn.append(
                f'<rect x="{_LEFT + (span.begin - begin) * scale:.1f}" y="{centre - box / 2}" height="{box}" '
                f'width="{max(span.seconds * scale, 0.5):.1f}" fill="{_COLOURS[stage]}"/>'
            )
    drawn += [
        f'<path d="M{_LEFT} {_TOP}V{base}H{_WIDTH - _RIGHT}" stroke="#808080" fill="none"/>',
        f'<text x="{(_WIDTH + _LEFT - _RIGHT) / 2}" y="{height - 12}" text-anchor="middle" font-size="13">'
        "time (seconds)</text>",
    ]
    return "\n".join([*drawn, "</svg>\n"])


def _step(seconds: float) -> float:
    """Returns 1, 2 or 5 times a power of ten, so that at most ten of it are in `seconds`."""
    power: float = 10.0 ** math.floor(math.log10(seconds / 10))
    return next(step * power for step in (1, 2, 5, 10) if step * power * 10 >= seconds)

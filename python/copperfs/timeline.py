"""A timeline of mini-batches: when each was read, transformed and computed (Quiver, Figures 4 and 5)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Callable, NamedTuple
from xml.sax.saxutils import escape

_COLOURS = {"io": "#d95f02", "transform": "#7570b3", "compute": "#1b9e77"}
_LABELS = {"io": "I/O", "transform": "transform", "compute": "compute"}
_WIDTH, _ROW, _LEFT, _TOP, _BOTTOM = 900, 16, 60, 44, 36


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
        begin = min(spans.io.begin for spans in self.spans)
        end = max(spans.compute.end for spans in self.spans)
        scale = (_WIDTH - _LEFT - 20) / (end - begin)
        height = _TOP + _ROW * len(self.spans) + _BOTTOM

        def x(moment: float) -> float:
            return _LEFT + (moment - begin) * scale

        drawn = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
            'font-family="sans-serif" font-size="11">',
            f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
            f'<text x="{_LEFT}" y="16">{escape(f"{title}: {idle}" if title else idle)}</text>',
        ]
        for place, (stage, colour) in enumerate(_COLOURS.items()):
            left = _LEFT + 90 * place
            drawn.append(f'<rect x="{left}" y="24" width="10" height="10" fill="{colour}"/>')
            drawn.append(f'<text x="{left + 14}" y="33">{_LABELS[stage]}</text>')
        for row, spans in enumerate(self.spans):
            top = _TOP + _ROW * row
            drawn.append(f'<text x="{_LEFT - 8}" y="{top + 11}" text-anchor="end">{row + 1}</text>')
            for stage, span in zip(Spans._fields, spans):
                drawn.append(
                    f'<rect x="{x(span.begin):.1f}" y="{top + 2}" height="{_ROW - 4}" '
                    f'width="{max(span.seconds * scale, 0.5):.1f}" fill="{_COLOURS[stage]}"/>'
                )
        base = height - _BOTTOM + 14
        for tick in range(6):
            moment = begin + (end - begin) * tick / 5
            drawn.append(
                f'<text x="{x(moment):.1f}" y="{base}" text-anchor="middle">{moment - begin:.2f}</text>'
            )
        drawn.append(f'<text x="{_WIDTH / 2}" y="{base + 14}" text-anchor="middle">seconds</text>')
        return "\n".join([*drawn, "</svg>\n"])

    def save(self, path: str, title: str = "") -> None:
        """Writes the drawing to a file."""
        Path(path).write_text(self.svg(title), encoding="utf-8")

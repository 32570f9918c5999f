"""Which entries the next mini-batch takes: substitutable hits, and misses only where none is left.

A `Plan` is one rank's list of an epoch. It is pure: residency is an argument, and the same arguments
give the same entries. A mini-batch takes the first resident entries of the permuted list. Entries that
were looked at in vain stay in it for the next pass (Quiver, section 4.7 and Algorithm 1).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import ExactlyOnceError
from .layout import Layout
from .shuffle import salt

# More windows than this are not looked at one by one.
_WINDOWS_MAX = 16

Entries = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Taken(NamedTuple):
    """Entries that were taken, and how many of them took the place of an entry that was not resident."""

    entries: Entries
    substituted: int


class Plan:
    """The entries of one rank that an epoch has still to use.

    `order` is the rank's part in the epoch's order, and `entries` the number of all entries of the
    dataset. `lookahead` is the number of entries that are looked at together, for each one wanted.
    """

    def __init__(self, order: Entries, entries: int, lookahead: int = 10) -> None:
        if lookahead < 1:
            raise ValueError(f"lookahead={lookahead}: look at 1 entry at least for each one wanted")
        self.order = order
        self.lookahead = lookahead
        #: Entries that are neither used nor belong to another rank. Not to be written to.
        self.left: Mask = np.zeros(entries, dtype=np.bool_)
        if len(order) and not 0 <= int(order.min()) <= int(order.max()) < entries:
            raise ValueError(
                f"an order of entries {order.min()} to {order.max()}: there are 0 to {entries - 1}"
            )
        self.left[order] = True
        if np.count_nonzero(self.left) != len(order):
            raise ValueError(f"an order of {len(order)} entries names some of them twice")
        #: How many of them there are.
        self.remaining = len(order)
        #: Passes that have begun, and entries whose residency was looked at.
        self.passes = 0
        self.lookups = 0
        # `left` by the place in `order`, and each entry's place there; others' entries have 0, never used.
        self._waiting = np.ones(len(order), dtype=np.bool_)
        self._places = np.zeros(entries, dtype=np.int32)
        self._places[order] = np.arange(len(order), dtype=np.int32)
        # The place to be looked at next in this pass. At the end, the next look begins another pass.
        self._cursor = len(order)
        # Nothing waits before this place.
        self._begin = 0

    def take(self, count: int, resident: Mask) -> Taken:
        """Takes the first `count` resident entries of the list, in one or more passes.

        Returns fewer only if no resident entry is left.
        """
        usable = self.left & resident
        available = int(np.count_nonzero(usable))
        wanted = min(count, available)
        ahead = self.lookahead * count
        if wanted * self.remaining > _WINDOWS_MAX * ahead * available:
            return self._take_sparse(wanted, usable)
        found: list[Entries] = []
        substituted = 0
        while wanted:
            hits, before = self._sweep(wanted, usable, ahead)
            if len(hits):
                usable[hits] = False
                self.claim(hits)
                found.append(hits)
                # A plain sampler would not have come to an entry behind as many as were wanted.
                substituted += int(np.count_nonzero(before >= wanted))
                wanted -= len(hits)
        return Taken(_joined(found), substituted)

    def take_any(self, count: int, first: Mask | None = None) -> Entries:
        """Takes `count` entries whether resident or not: those of `first` before others, in the order.

        Returns fewer only if no entry is left.
        """
        found = []
        if first is not None:
            candidates = self._earliest(np.flatnonzero(self.left & first), count)
            self.claim(candidates)
            found.append(candidates)
            count -= len(candidates)
        while count and self.remaining:
            places, end = self._window(self._begin, self.lookahead * count)
            chosen = self.order[places[:count]]
            self._begin = int(places[count - 1]) + 1 if len(chosen) == count else end
            self.claim(chosen)
            found.append(chosen)
            count -= len(chosen)
        return _joined(found)

    def claim(self, entries: Entries) -> None:
        """Takes given entries, as a recorded run did.

        Raises `ExactlyOnceError` if one of them is used already, belongs to another rank, or is named
        twice.
        """
        once = bool(self.left[entries].all()) and len(np.unique(entries)) == len(entries)
        if not once:
            raise ExactlyOnceError("an entry would have been used twice in this epoch")
        self.left[entries] = False
        self._waiting[self._places[entries]] = False
        self.remaining -= len(entries)

    def _window(self, begin: int, ahead: int) -> tuple[Entries, int]:
        """Returns the places that wait in a window which has about `ahead` of them, and the window's end."""
        width = 1 + ahead * len(self.order) // max(self.remaining, 1)
        end = min(begin + width, len(self.order))
        return begin + np.flatnonzero(self._waiting[begin:end]), end

    def _begin_pass(self) -> None:
        if self._cursor == len(self.order):
            self._cursor = 0
            self.passes += 1

    def _sweep(self, wanted: int, usable: Mask, ahead: int) -> tuple[Entries, Entries]:
        """Looks at the next entries of the list, about `ahead`, and begins the next pass at its end.

        Returns the usable ones up to `wanted`, and for each the number of entries looked at before it.
        """
        self._begin_pass()
        places, end = self._window(self._cursor, ahead)
        entries = self.order[places]
        at = np.flatnonzero(usable[entries])[:wanted]
        if len(at) == wanted:
            self.lookups += int(at[-1]) + 1
            self._cursor = int(places[at[-1]]) + 1
        else:
            self.lookups += len(places)
            self._cursor = end
        return entries[at], at

    def _take_sparse(self, wanted: int, usable: Mask) -> Taken:
        """Takes the entries that many sweeps would. So few are usable that they are sorted instead."""
        self._begin_pass()
        places = self._places[np.flatnonzero(usable)].astype(np.int64)
        turns = (places - self._cursor) % len(self.order)
        if wanted < len(turns):
            turns = np.partition(turns, wanted - 1)[:wanted]
        turns.sort()
        chosen = self.order[(self._cursor + turns) % len(self.order)]
        waiting, end = self._window(self._cursor, wanted)
        plain = waiting[wanted - 1] if len(waiting) >= wanted else end
        substituted = int(np.count_nonzero(self._cursor + turns > plain))
        last = self._cursor + int(turns[-1])
        self.lookups += int(np.count_nonzero(self._waiting[self._cursor : last + 1]))
        if last >= len(self.order):
            last -= len(self.order)
            self.passes += 1
            self.lookups += int(np.count_nonzero(self._waiting[: last + 1]))
        self._cursor = last + 1
        self.claim(chosen)
        return Taken(chosen, substituted)

    def _earliest(self, entries: Entries, count: int) -> Entries:
        """Returns the first `count` of `entries` in the epoch's order, in that order."""
        places = self._places[entries]
        if count < len(entries):
            chosen = np.argpartition(places, count)[:count]
            entries, places = entries[chosen], places[chosen]
        return entries[np.argsort(places)]


class BucketPlan(Plan):
    """A plan whose mini-batches come from one stripe unit each, as far as that goes.

    Datasets that are ordered by length have entries of similar lengths in one unit. A unit is drawn among
    those that can fill the mini-batch, the more resident entries it has the likelier. If none can, the
    fullest begins and its neighbours fill up. There is no list to pass over: `passes` stays 0.
    """

    def __init__(self, order: Entries, layout: Layout, lookahead: int = 10, draws: int = 0) -> None:
        super().__init__(order, layout.entries, lookahead)
        self._layout = layout
        # Makes the draws differ between seeds and epochs.
        self._draws = draws

    def take(self, count: int, resident: Mask) -> Taken:
        """Takes `count` resident entries, of one unit if one has so many."""
        usable = np.flatnonzero(self.left & resident)
        wanted = min(count, len(usable))
        if not wanted:
            return Taken(self.order[:0], 0)
        ends = np.searchsorted(usable, self._layout.bounds)
        unit = self._draw_unit(np.diff(ends), wanted)
        found, substituted = [], 0
        begin, end = self._layout.unit(unit)
        low, high = int(ends[unit]), int(ends[unit + 1])
        inner = usable[low:high]
        while True:
            taken = self._take_of_unit(unit, inner, wanted)
            found.append(taken.entries)
            substituted += taken.substituted
            wanted -= len(taken.entries)
            if not wanted:
                return Taken(_joined(found), substituted)
            # The unit nearest to the first one, below or above those that are used up.
            below = begin - usable[low - 1] if low else self._layout.entries
            above = usable[high] - end if high < len(usable) else self._layout.entries
            if below <= above:
                unit = self._layout.unit_of(int(usable[low - 1]))
                inner, low = usable[int(ends[unit]) : low], int(ends[unit])
            else:
                unit = self._layout.unit_of(int(usable[high]))
                inner, high = usable[high : int(ends[unit + 1])], int(ends[unit + 1])

    def take_any(self, count: int, first: Mask | None = None) -> Entries:
        """Takes `count` entries whether resident or not: those of `first` before others."""
        found = [] if first is None else [self.take(count, first).entries]
        found.append(self.take(count - sum(map(len, found)), self.left).entries)
        return _joined(found)

    def _draw_unit(self, resident: NDArray[np.int64], wanted: int) -> int:
        """Draws the unit of the next mini-batch by the number of resident entries in each."""
        weights = np.cumsum(np.where(resident >= wanted, resident, 0))
        if not weights[-1]:
            return int(np.argmax(resident))
        drawn = salt(self._draws, self.remaining) % int(weights[-1])
        return int(np.searchsorted(weights, drawn, side="right"))

    def _take_of_unit(self, unit: int, usable: Entries, wanted: int) -> Taken:
        """Takes the first `wanted` of `usable`, which are the resident entries left in a unit."""
        begin, end = self._layout.unit(unit)
        left = begin + np.flatnonzero(self.left[begin:end])
        self.lookups += len(left)
        plain = self._earliest(left, wanted)
        chosen = self._earliest(usable, wanted)
        substituted = int(np.count_nonzero(self._places[chosen] > self._places[plain[-1]]))
        self.claim(chosen)
        return Taken(chosen, substituted)


def _joined(found: list[Entries]) -> Entries:
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

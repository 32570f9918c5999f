"""Checkpoints: the entries that an epoch has consumed, as a set.

A rank's state is the set that was consumed by all ranks when the parts of the ranks were last drawn
(`base`), the set that this rank has consumed since (`own`), and its latest mini-batches. So taking a state
costs a copy of a short list, and a state says which entries are left however many ranks go on from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import StateError

FORMAT = 1
# Mini-batches that are kept apart before they are folded into the set.
_BATCHES_MAX = 64
_INTEGERS = ("epoch", "entries", "world_size", "rank", "yielded")

State = dict[str, Any]


class Part(NamedTuple):
    """The dataset, the epoch, and the rank among how many of which a state tells."""

    identity: str
    entries: int
    epoch: int
    rank: int
    world_size: int


class Consumed:
    """What one rank has consumed of an epoch. `base` is none's to write to."""

    def __init__(self, part: Part, state: State | None = None) -> None:
        self.part = part
        self._base = state["base"] if state else b""
        self._folded = state["own"] if state else b""
        self._latest: list[bytes] = list(state["batches"]) if state else []
        #: Entries yielded since the parts were drawn, those that pad the last mini-batch included.
        self.yielded: int = state["yielded"] if state else 0

    def base(self) -> NDArray[np.bool_]:
        """Returns for each entry whether it was consumed before the parts of the ranks were drawn."""
        return _unpacked(self._base, self.part.entries)

    def own(self) -> NDArray[np.bool_]:
        """Returns for each entry whether this rank has consumed it since."""
        own = _unpacked(self._folded, self.part.entries)
        for batch in self._latest:
            own[np.frombuffer(batch, dtype="<u8").astype(np.int64)] = True
        return own

    def add(self, entries: NDArray[np.int64], padding: int = 0) -> None:
        """Adds a mini-batch. Its last `padding` entries were used before, perhaps by another rank."""
        self._latest.append(entries[: len(entries) - padding].astype("<u8").tobytes())
        self.yielded += len(entries)
        if len(self._latest) > _BATCHES_MAX:
            self._folded = _packed(self.own())
            self._latest = []

    def state(self) -> State:
        """Returns the state as plain numbers, texts and bytes, for any kind of file."""
        return {
            "format": FORMAT,
            **self.part._asdict(),
            "yielded": self.yielded,
            "base": self._base,
            "own": self._folded,
            "batches": list(self._latest),
        }


def part_of(state: Any) -> Part:
    """Returns the dataset, epoch and rank of a state. Raises `StateError` if it is none, or is damaged."""
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise StateError("this is not a checkpoint of a sampler of copperfs, or of another release")
    try:
        numbers = {name: int(state[name]) for name in _INTEGERS}
        part = Part(
            str(state["identity"]),
            *(numbers[name] for name in ("entries", "epoch", "rank", "world_size")),
        )
        sizes = {len(state["base"]), len(state["own"])} - {0, -(-part.entries // 8)}
        batches = [np.frombuffer(batch, dtype="<u8") for batch in state["batches"]]
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"the checkpoint is damaged: {error!r}", "resume from another one") from error
    beyond = any(len(batch) and int(batch.max()) >= part.entries for batch in batches)
    if sizes or beyond or min(numbers.values()) < 0 or part.rank >= part.world_size:
        raise StateError("the checkpoint contradicts itself", "resume from another one")
    return part


def sampler_state(loader_state: Any) -> State:
    """Returns the sampler's state within that of torchdata's StatefulDataLoader.

    `merge_states` takes it, and a run with another number of workers is resumed from it, because torchdata
    refuses its own state then. Raises `StateError` if there is none, or if it is older than the loader's:
    the loader would draw the latest mini-batches again, and they may be others.
    """
    try:
        snapshot = loader_state.get("_snapshot")
        since = loader_state.get("_steps_since_snapshot", 0)
        state = (snapshot["_main_snapshot"] if snapshot is not None else loader_state)["_index_sampler_state"]
        part_of(state)
    except (AttributeError, KeyError, TypeError, StateError) as error:
        raise StateError(
            "this is no state of a StatefulDataLoader with a SubstitutableSampler",
            "give the result of its state_dict(), with batch_sampler=SubstitutableSampler(...)",
        ) from error
    if since:
        raise StateError(
            f"the state was taken {since} mini-batch{'es' if since > 1 else ''} after its snapshot, and "
            "resuming it could repeat entries",
            "give StatefulDataLoader snapshot_every_n_steps=1, which is its default",
        )
    return dict(state)


def merge_states(states: Sequence[State], world_size: int) -> list[State]:
    """Returns the states with which `world_size` ranks go on from those of all ranks of a run.

    The entries that are left are divided again. Raises `StateError` if the states are not those of all ranks
    after the same number of mini-batches.
    """
    if world_size < 1:
        raise ValueError(f"world_size={world_size}: there is at least one rank")
    if not states:
        raise StateError("no states to merge", "give those of all ranks")
    parts = [part_of(state) for state in states]
    first = parts[0]
    for part in parts:
        if part._replace(rank=0) != first._replace(rank=0):
            raise StateError(
                "the states are of different runs: of one dataset, epoch or number of ranks and another",
                "give the states that all ranks took after the same mini-batch",
            )
    ranks = sorted(part.rank for part in parts)
    if ranks != list(range(first.world_size)):
        raise StateError(
            f"states of ranks {ranks}, where those of ranks 0 to {first.world_size - 1} are needed, each once"
        )
    if len({state["base"] for state in states}) > 1 or len({s["yielded"] for s in states}) > 1:
        raise StateError(
            "the states were taken after different mini-batches",
            "take them on all ranks after the same one",
        )
    consumed = [Consumed(part, state) for part, state in zip(parts, states)]
    used = consumed[0].base()
    for one in consumed:
        own = one.own()
        if np.any(used & own):
            raise StateError("two of the states have consumed the same entry: they are of different runs")
        used |= own
    return [
        Consumed(
            first._replace(rank=rank, world_size=world_size),
            {"base": _packed(used), "own": b"", "batches": [], "yielded": 0},
        ).state()
        for rank in range(world_size)
    ]


def _packed(entries: NDArray[np.bool_]) -> bytes:
    return np.packbits(entries, bitorder="little").tobytes() if entries.any() else b""


def _unpacked(bits: bytes, entries: int) -> NDArray[np.bool_]:
    if not bits:
        return np.zeros(entries, dtype=np.bool_)
    packed = np.frombuffer(bits, dtype=np.uint8)
    return np.unpackbits(packed, count=entries, bitorder="little").view(np.bool_)

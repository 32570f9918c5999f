"""The sampler: mini-batches of entry numbers, of resident entries as far as there are any."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .dataset import CACHED, Dataset
from .errors import ExactlyOnceError, StateError
from .guide import Guide, Release
from .record import Recorder, replayed
from .sampling import BucketPlan, Plan
from .shuffle import part_of_rank, permuted, salt
from .state import Consumed, Part, State, part_of


class Batch(NamedTuple):
    """A mini-batch, how it was drawn, and the chunks that are given back once it is consumed.

    The last `padding` entries are used already, and fill up the end of an epoch. They are neither hits nor
    misses.
    """

    entries: NDArray[np.int64]
    padding: int
    hits: int
    misses: int
    substituted: int
    mode: str
    releases: list[Release]


class SubstitutableSampler:
    """Yields each entry of a dataset once an epoch, as lists of `batch_size` entry numbers.

    A mini-batch takes the first resident entries of a permuted list, looking `lookahead` times its size
    ahead at a time. Entries that no node holds come when the cache has them, or last. `bucket=True` makes
    a mini-batch of entries that are near to each other in dataset order. `substitute=False` is a plain
    permutation by `seed`.

    Each rank has a part of its own, and all have equally many mini-batches: some parts are padded by an
    entry, or with `drop_last` shortened. `rank` and `world_size` are by default those of torchrun's
    environment, else 0 of 1.

    It is an iterable for DataLoader's `batch_sampler`, and keeps the state protocol of torchdata's
    StatefulDataLoader. An epoch begins with each iteration; `set_epoch` names it, else they are counted.
    `record` and `replay` are files; with several ranks their names contain `{rank}`. With `confirms`, a
    mini-batch counts as consumed when `confirm` is called for it, else when it is yielded.
    """

    def __init__(
        self,
        data: Dataset,
        batch_size: int,
        *,
        seed: int = 0,
        lookahead: int = 10,
        bucket: bool = False,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        substitute: bool = True,
        record: str | None = None,
        replay: str | None = None,
        confirms: bool = False,
    ) -> None:
        self.data = data
        self.batch_size = batch_size
        self.seed = seed
        self.lookahead = lookahead
        self.bucket = bucket
        self.drop_last = drop_last
        self.rank, self.world_size = _ranks(rank, world_size)
        self.substitute = substitute
        self.confirms = confirms
        self._check_sizes()
        if record and replay:
            raise ValueError("a run is recorded or replayed: give record= or replay=, not both")
        self._record = self._file_of_rank(record, "record")
        self._replay = self._file_of_rank(replay, "replay")
        self._epoch = 0
        self._epoch_was_set = False
        self._loaded: State | None = None
        self._current: Epoch | None = None

    def __len__(self) -> int:
        """Returns the number of mini-batches of a whole epoch."""
        return self._batches(self._entries_of_rank(len(self.data)))

    def __iter__(self) -> Epoch:
        """Begins the next epoch, or goes on with the one that was loaded."""
        self._current = Epoch(self, self._next_consumed())
        return self._current

    @property
    def current(self) -> Epoch | None:
        """The epoch of the last iteration."""
        return self._current

    def set_epoch(self, epoch: int) -> None:
        """Names the epoch that the next iteration is. A state of it that was loaded stays."""
        if epoch < 0:
            raise ValueError(f"epoch {epoch}: they are counted from 0")
        self._epoch = epoch
        self._epoch_was_set = True
        if self._loaded is not None and self._loaded["epoch"] != epoch:
            self._loaded = None

    def confirm(self) -> Batch:
        """Says that the oldest mini-batch that was yielded and not confirmed was consumed."""
        if self._current is None:
            raise RuntimeError("no epoch has begun, so there is nothing to confirm")
        return self._current.confirm()

    def state_dict(self) -> State:
        """Returns the entries that this epoch has consumed so far, as plain numbers, texts and bytes."""
        if self._current is not None and (self._loaded is None or self._current.begun):
            return self._current.consumed.state()
        return self._next_consumed().state()

    def load_state_dict(self, state: State) -> None:
        """Goes on with the next iteration where a state was taken.

        Raises `StateError` if it is of another manifest, or of other ranks.
        """
        part = part_of(state)
        if (part.identity, part.entries) != (self.data.identity, len(self.data)):
            raise StateError(
                f"the checkpoint is of another manifest: of {part.entries} entries and identity "
                f"{part.identity[:12]}, where this has {len(self.data)} and {self.data.identity[:12]}",
                "resume with the manifest of the checkpointed run, or begin without the checkpoint",
            )
        if part.world_size != self.world_size:
            raise StateError(
                f"the checkpoint is of {part.world_size} ranks, and this run has {self.world_size}",
                f"merge_states([the states of all ranks], {self.world_size}) divides it again",
            )
        if part.rank != self.rank:
            raise StateError(
                f"the checkpoint is rank {part.rank}'s, and this is rank {self.rank}",
                "load each rank's own",
            )
        self._loaded = state
        self._epoch, self._epoch_was_set = part.epoch, False
        self._current = None

    def _next_consumed(self) -> Consumed:
        if self._loaded is not None:
            consumed = Consumed(part_of(self._loaded), self._loaded)
            if self._epoch_was_set or self._batches_left(consumed):
                return consumed
            # The state of a finished epoch: the next one follows.
            return Consumed(consumed.part._replace(epoch=consumed.part.epoch + 1))
        return Consumed(Part(self.data.identity, len(self.data), self._epoch, self.rank, self.world_size))

    def _begin(self, epoch: Epoch) -> None:
        """Is called when the first mini-batch of an epoch is asked for: before that it has not begun."""
        self._loaded = None
        self._epoch = epoch.consumed.part.epoch + 1
        self._epoch_was_set = False

    def _entries_of_rank(self, left: int) -> int:
        """Returns how many entries each rank yields of those that are left, padded or shortened."""
        return left // self.world_size if self.drop_last else -(-left // self.world_size)

    def _batches(self, entries: int) -> int:
        return entries // self.batch_size if self.drop_last else -(-entries // self.batch_size)

    def _batches_left(self, consumed: Consumed) -> int:
        left = len(self.data) - int(np.count_nonzero(consumed.base()))
        return self._batches(self._entries_of_rank(left) - consumed.yielded)

    def _check_sizes(self) -> None:
        part = len(self.data) // self.world_size
        if not 1 <= self.batch_size <= max(part, 1):
            raise ValueError(
                f"batch_size={self.batch_size}, and a rank's part of {len(self.data)} entries is {part}: "
                f"give 1 to {max(part, 1)}, or fewer ranks"
            )
        if self.lookahead < 1:
            raise ValueError(f"lookahead={self.lookahead}: look at one entry for each one wanted at least")

    def _file_of_rank(self, name: str | None, option: str) -> str | None:
        if name is None:
            return None
        if self.world_size > 1 and "{rank}" not in name:
            raise ValueError(
                f"{option}={name!r} with {self.world_size} ranks: each needs a file of its own; "
                f"write {{rank}} into the name"
            )
        return name.replace("{rank}", str(self.rank))


class Epoch(Iterator[list[int]]):
    """One iteration of a `SubstitutableSampler`."""

    def __init__(self, sampler: SubstitutableSampler, consumed: Consumed) -> None:
        self._sampler = sampler
        #: What was consumed of this epoch.
        self.consumed = consumed
        #: Whether a mini-batch was asked for.
        self.begun = False
        self._unconfirmed: deque[Batch] = deque()
        self._given = consumed.yielded
        self._finished = False
        # The chunks that the last mini-batch used up, if it counts as consumed before it is read.
        self._late: list[Release] = []
        self._recorder: Recorder | None = None
        self._recorded: Iterator[NDArray[np.int64]] | None = None

    def __next__(self) -> list[int]:
        if not self.begun:
            self._begin()
        sampler = self._sampler
        size = min(sampler.batch_size, self._size - self._given)
        if size < (sampler.batch_size if sampler.drop_last else 1):
            self._finish()
            raise StopIteration
        batch = self._draw(size) if self._recorded is None else self._repeat()
        self._given += len(batch.entries)
        self._unconfirmed.append(batch)
        if not sampler.confirms:
            self.confirm()
        entries: list[int] = batch.entries.tolist()
        return entries

    @property
    def plan(self) -> Plan:
        """What is left of this epoch, and its numbers of passes and look-ups."""
        if not self.begun:
            self._begin()
        return self._plan

    def confirm(self) -> Batch:
        """Says that the oldest mini-batch that is not confirmed was consumed, and returns it."""
        if not self._unconfirmed:
            raise RuntimeError("every mini-batch that was yielded is confirmed already")
        batch = self._unconfirmed.popleft()
        self.consumed.add(batch.entries, batch.padding)
        if self._recorder is not None:
            self._recorder.add(self.consumed.part.epoch, batch.entries)
        releases = batch.releases
        if not self._sampler.confirms:
            given_up = [release for release in releases if not release.exhausted]
            releases, self._late = self._late + given_up, [one for one in releases if one.exhausted]
        self._give_back(releases)
        if self._finished and not self._unconfirmed:
            self._settle()
        return batch

    def close(self) -> None:
        """Ends an epoch, also one that is not iterated to its end: its chunks are given back."""
        if not self.begun:
            return
        if not self._finished or self._unconfirmed:
            self._guide.leave()
            # Entries that were drawn and not consumed are still needed.
            unread = [release for batch in self._unconfirmed for release in batch.releases]
            unread += self._guide.releases()
            self._give_back([release._replace(exhausted=False) for release in unread])
        self._settle()

    def _begin(self) -> None:
        sampler, part = self._sampler, self.consumed.part
        base, own = self.consumed.base(), self.consumed.own()
        left = np.flatnonzero(~base)
        self._size = sampler._entries_of_rank(len(left))
        mine = part_of_rank(left, part.rank, part.world_size, part.identity)
        order = permuted(mine, sampler.seed, part.epoch)
        # A rank without a part of its own is padded with another's.
        self._padding = order if len(order) else left
        order = order[~own[order]]
        if sampler.bucket:
            draws = salt(sampler.seed, part.epoch, part.rank)
            layout = sampler.data.chunks().layout
            self._plan: Plan = BucketPlan(order, layout, sampler.lookahead, draws)
        else:
            self._plan = Plan(order, part.entries, sampler.lookahead)
        self._guide = Guide(sampler.data, self._plan, part.rank)
        if sampler._record:
            self._recorder = Recorder(sampler._record, part)
            self._recorder.begin(part.epoch, base | own)
        if sampler._replay:
            self._recorded = replayed(sampler._replay, part, base | own)
        self.begun = True
        sampler._begin(self)

    def _draw(self, size: int) -> Batch:
        """Draws the next `size` entries, padded at the end of the epoch."""
        data, plan, guide = self._sampler.data, self._plan, self._guide
        wanted = min(size, plan.remaining)
        mode = data.mode()
        found: list[NDArray[np.int64]] = []
        hits = substituted = 0
        if self._sampler.substitute and mode == CACHED:
            looking = True
            while looking:
                for mask in guide.masks(data.resident()):
                    taken = plan.take(wanted - hits, mask)
                    found.append(taken.entries)
                    hits += len(taken.entries)
                    substituted += taken.substituted
                    if hits == wanted:
                        break
                looking = hits < wanted and guide.wait()
            found.append(plan.take_any(wanted - hits, guide.for_misses() if hits < wanted else None))
        else:
            found.append(plan.take_any(wanted))
            if mode == CACHED:
                hits = int(np.count_nonzero(data.resident(found[-1])))
            else:
                # It may take minutes, for which the jobs that share the chunk would have to wait.
                guide.leave()
        guide.taken(np.concatenate(found))
        padding = size - wanted
        found.append(np.resize(self._padding, padding))
        entries = np.concatenate(found)
        return Batch(entries, padding, hits, wanted - hits, substituted, mode, guide.releases())

    def _repeat(self) -> Batch:
        """Returns the next recorded mini-batch."""
        epoch = self.consumed.part.epoch
        entries = next(self._recorded, None) if self._recorded is not None else None
        if entries is None:
            raise StateError(
                f"{self._sampler._replay} ends before epoch {epoch} does", "replay a record of a whole run"
            )
        own = entries[self._plan.left[entries]]
        self._plan.claim(own)
        hits = int(np.count_nonzero(self._sampler.data.resident(own)))
        mode = self._sampler.data.mode()
        return Batch(entries, len(entries) - len(own), hits, len(own) - hits, 0, mode, [])

    def _finish(self) -> None:
        if self._plan.remaining and not self._sampler.drop_last:
            raise ExactlyOnceError(f"{self._plan.remaining} entries were not used in this epoch")
        self._guide.finish()
        self._finished = True
        if not self._unconfirmed:
            self._settle()

    def _settle(self) -> None:
        """Gives back the last chunks and closes the record."""
        late, self._late = self._late, []
        self._give_back([*late, *self._guide.releases()])
        if self._recorder is not None:
            self._recorder.close()

    def _give_back(self, releases: list[Release]) -> None:
        following = self._sampler.current
        # The references of an epoch end with the beginning of the next one.
        if following is None or following is self or not following.begun:
            self._guide.give_back(releases)


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if world_size is None:
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if rank is None:
        rank = int(os.environ.get("RANK", "0"))
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} of world_size={world_size}: ranks are 0 to world_size - 1")
    return rank, world_size

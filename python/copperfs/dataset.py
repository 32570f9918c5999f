"""A dataset as a training job sees it: its entries, which of them are resident, and its chunks."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Union
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from .batch_reads import read_ranges
from .connection import BODY_BYTES_MAX, Answer
from .errors import DaemonError, UnavailableError
from .layout import Layout
from .manifest import Entry, Manifest
from .placement import Home, Homes
from .read_ahead import Range, read_part

if TYPE_CHECKING:
    from .client import Mount

Hashes = Union[Sequence[bytes], NDArray[np.uint8]]

_HASH_BYTES = 32
_HASHES_MAX = 65_536
# Bodies that are asked for together; halved if they are too large for one answer.
_GET_MAX = 256
_ABSENT = 0xFFFFFFFF
# How old an answer may be that is used again.
_RESIDENCY_SECONDS, _CHUNKS_SECONDS, _MODE_SECONDS, _HOMES_SECONDS = 0.1, 0.5, 1.0, 1.0
# How often a daemon is told that this job reads by chunks: one that was started again has forgotten it. After
# a failure it is told again sooner.
_JOIN_SECONDS, _JOIN_AGAIN_SECONDS = 5.0, 1.0
CACHED, UNCACHED, PROBE = "cached", "uncached", "probe"
#: The outcomes of an insert. `REFUSED`: no manifest of a public dataset names the item. `OTHER_BYTES`: the
#: bytes have another hash. `NO_ITEM`: no item has this length.
KEPT, NO_ROOM, REFUSED, OTHER_BYTES, NO_ITEM = 0, 1, 2, 3, 4


class Chunk(NamedTuple):
    """A resident chunk: its number, `loading`, `complete` or `marked`, and how many entries are held."""

    number: int
    state: str
    held: int
    entries: int


class Chunks(NamedTuple):
    """The resident chunks, the older first, at most two; and the decision that names them.

    `kept` tells whether the dataset is kept in chunks at all.
    """

    serial: str
    layout: Layout
    resident: tuple[Chunk, ...]
    kept: bool = False


class _Joined(NamedTuple):
    """What a rank told the daemon last, when, and whether the daemon has answered."""

    at: float
    epoch: int | None
    exhausted: frozenset[int]
    heard: bool


class Dataset:
    """The entries of a manifest, read below a directory of a mount.

    Questions about the cache never fail for want of a daemon: then nothing is resident, and the mount warns
    once. `name` is none if the daemon knows no dataset with these entries.
    """

    _known_process: int
    _known_lock: threading.Lock
    _known: NDArray[np.bool_]
    _known_bits: tuple[str | None, NDArray[np.bool_]]
    _known_homes: Homes
    _known_chunks: Chunks
    _known_mode: str
    # When each was asked for, on the monotonic clock.
    _known_at: float
    _known_homes_at: float
    _known_chunks_at: float
    _known_joins: dict[int, _Joined]
    # References that were given back, of which the daemon has not heard: by rank and chunk.
    _known_owed: dict[tuple[int, int], bool]
    _known_mode_at: float

    def __init__(self, mount: Mount, manifest: Manifest, name: str | None, root: str) -> None:
        self.mount = mount
        self.manifest = manifest
        self.name = name
        self.root = root
        self._layout = manifest.layout()
        self._nothing: NDArray[np.bool_] = np.zeros(len(manifest), dtype=np.bool_)
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in vars(self).items() if not name.startswith("_known")}
        return {**kept, "_nothing": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._nothing = np.zeros(len(self.manifest), dtype=np.bool_)
        self._forget()

    def __len__(self) -> int:
        return len(self.manifest)

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}: {len(self)} entries below {self.root})"

    @property
    def identity(self) -> str:
        """The hash that names this dataset's content, in hexadecimal."""
        return self.manifest.identity

    def path(self, entry: int) -> str:
        """Returns the path at which an entry's file can be read."""
        return os.path.join(self.root, self.manifest.path(entry))

    def entry(self, entry: int) -> Entry:
        """Returns path, offset, length and hash of an entry; the path is as in the manifest."""
        return self.manifest.entry(entry)

    def read(self, entry: int) -> bytes:
        """Returns an entry's bytes, read through the mount.

        Raises `OSError`, also if the file has become shorter since the manifest was made.
        """
        path, offset, length = self._place(entry)
        return _whole(entry, path, offset, length, read_part(path, offset, length))

    def read_many(self, entries: Iterable[int], *, copy: bool = True) -> list[Any]:
        """Returns the bytes of entries, in their order: in batches from the daemon, else through the mount.

        Returns `bytes` or arrays, and takes memory, as `copperfs.read_many`. Raises as `read`.
        """
        numbers = list(entries)
        places = [self._place(entry) for entry in numbers]
        contents = read_ranges(self.mount.batches, [Range(*place) for place in places], copy)
        return [_whole(entry, *place, data) for entry, place, data in zip(numbers, places, contents)]

    def resident(
        self, entries: NDArray[np.int64] | None = None, max_age: float = _RESIDENCY_SECONDS
    ) -> NDArray[np.bool_]:
        """Returns for each entry, or for each of `entries`, whether a live node holds it.

        The answer is up to `max_age` seconds old. All entries' answer is not to be written to.
        """
        now = time.monotonic()
        if self.name is not None and now - self._known_at >= max_age:
            with self._asking():
                # Another thread may have asked meanwhile.
                if now - self._known_at >= max_age:
                    asked = time.monotonic()
                    self._known = self.mount.or_else(self._nothing, self._ask_residency)
                    self._known_at = asked
        return self._known if entries is None else self._known[entries]

    def residency(
        self, paths: Iterable[str | os.PathLike[str]] | None = None, *, missing_ok: bool = False
    ) -> dict[str, int]:
        """Returns for each host how many bytes of files it holds, the most first: {"nid7": 123456}.

        It is for schedulers, which place a task where its files are. `paths` are those of the manifest, or
        begin with `root`. A directory is all files below it; without `paths` it is the whole dataset. Hosts
        are named as in the list of nodes, without ports; those that hold nothing are left out. An entry
        counts if all of it is resident. Raises `FileNotFoundError` for a path that the manifest does not
        have, unless `missing_ok`, and `ValueError` for one outside of `root`.
        """
        resident = self.resident()
        if paths is not None:
            files = [self._files_at(path, missing_ok) for path in paths]
            chosen = self.manifest.entries_of(np.concatenate([np.zeros(0, dtype=np.int64), *files]))
            entries = chosen[resident[chosen]]
        else:
            entries = np.flatnonzero(resident)
        if not len(entries):
            return {}
        return self._homes().bytes_by_host(self.manifest, entries)

    def chunks(self, max_age: float = _CHUNKS_SECONDS) -> Chunks:
        """Returns the resident chunks; none if this dataset is not cached by chunks."""
        now = time.monotonic()
        if self.name is not None and now - self._known_chunks_at >= max_age:
            with self._asking():
                if now - self._known_chunks_at >= max_age:
                    self._learn_chunks(lambda: self._ask("chunks"))
        return self._known_chunks

    def join(
        self, rank: int = 0, epoch: int | None = None, exhausted: frozenset[int] = frozenset()
    ) -> Chunks:
        """Tells that a rank of this job reads one chunk after the other, and returns the resident chunks.

        No chunk comes in for a job that has not told so. The daemon forgets it when this process ends.
        `exhausted` are the chunks of which the rank needs nothing more in this epoch. Another `epoch` than
        before begins an epoch, which needs all chunks again. The daemon is told at once if either has
        changed, and again every five seconds.
        """
        now = time.monotonic()
        if self.name is None or not self.mount.job:
            return self.chunks()
        self._pay()
        if self._is_told(rank, epoch, exhausted, now):
            return self.chunks()
        path = f"/v1/datasets/{quote(self.name, safe='')}/chunks"
        said: dict[str, Any] = {"job": self.mount.job, "rank": rank}
        if epoch is not None:
            said["epoch"] = epoch
        if exhausted:
            said["exhausted"] = sorted(exhausted)
        with self._asking():
            if not self._is_told(rank, epoch, exhausted, now):
                heard = self._learn_chunks(lambda: self.mount.tell(path, said))
                self._known_joins[rank] = _Joined(self._known_chunks_at, epoch, exhausted, heard)
        return self._known_chunks

    def _is_told(self, rank: int, epoch: int | None, exhausted: frozenset[int], now: float) -> bool:
        """Returns whether the daemon has heard this, or is left alone for a moment after a failure."""
        last = self._known_joins.get(rank)
        if last is None:
            return False
        if not last.heard:
            return now - last.at < _JOIN_AGAIN_SECONDS
        return (last.epoch, last.exhausted) == (epoch, exhausted) and now - last.at < _JOIN_SECONDS

    def _learn_chunks(self, ask: Callable[[], Answer]) -> bool:
        """Keeps the answer of `ask`. Returns false, and knows of no chunks, if there is none."""
        asked = time.monotonic()
        answer = self.mount.or_else(None, lambda: self._chunks_of(ask()), optional=True)
        self._known_chunks = Chunks("", self._layout, ()) if answer is None else answer
        self._known_chunks_at = asked
        return answer is not None

    def ref(self, chunk: int, rank: int = 0, epoch: int | None = None) -> bool:
        """Tells that a rank reads a chunk in this epoch. Returns whether the chunk is resident.

        Another `epoch` than before begins an epoch. Without it, a chunk that the rank has exhausted does.
        """
        self._pay()
        said = {"rank": rank} if epoch is None else {"rank": rank, "epoch": epoch}
        return bool(self._refer(chunk, "ref", said))

    def unref(self, chunk: int, exhausted: bool, rank: int = 0) -> None:
        """Tells that a rank does not read a chunk any more, and whether it has used all of it.

        If the daemon does not answer, it is told again later: other jobs wait for the chunk to be given back.
        """
        self._known_owed[rank, chunk] = exhausted
        self._pay()

    def _pay(self) -> None:
        """Tells which references are given back, in their order, until the daemon does not answer."""
        for (rank, chunk), exhausted in list(self._known_owed.items()):
            if self._refer(chunk, "unref", {"rank": rank, "exhausted": exhausted}) is None:
                return
            self._known_owed.pop((rank, chunk), None)

    def mode(self, max_age: float = _MODE_SECONDS) -> str:
        """Returns how this job's look-ups are to be answered: `cached`, `uncached` or `probe`."""
        now = time.monotonic()
        if self.mount.job and self.name is not None and now - self._known_mode_at >= max_age:
            self._known_mode_at = now
            path = f"/v1/jobs/{quote(self.mount.job, safe='')}/mode"
            nothing: dict[str, Any] = {}
            answer = self.mount.or_else(nothing, lambda: self.mount.ask(path).fields(), optional=True)
            said = answer.get("mode")
            # A mode of a later release is taken for the usual one.
            self._known_mode = str(said) if said in (UNCACHED, PROBE) else CACHED
        return self._known_mode

    def report(
        self,
        batches: int,
        seconds: float,
        hits: int,
        misses: int = 0,
        substituted: int = 0,
        mode: str = CACHED,
        *,
        ranks: int = 1,
    ) -> None:
        """Reports how long this job took for its last mini-batches, and how its look-ups ended.

        Each of the `ranks` of a job reports its own mini-batches. Raises `ValueError` for numbers that
        cannot be.
        """
        if batches < 1 or not math.isfinite(seconds) or seconds <= 0:
            raise ValueError(
                f"{batches} mini-batches in {seconds} s cannot be: report at least one, and the seconds "
                "that passed on a monotonic clock"
            )
        if ranks < 1:
            raise ValueError(f"ranks={ranks}: a job has at least one")
        if hits < 0 or misses < 0 or not 0 <= substituted <= hits:
            raise ValueError(
                f"{hits} hits, {substituted} of them substituted, and {misses} misses cannot be: counts are "
                "not negative, and only hits are substituted"
            )
        if mode not in (CACHED, UNCACHED, PROBE):
            raise ValueError(f"mode {mode!r}: give {CACHED!r}, {UNCACHED!r} or {PROBE!r}")
        if not self.mount.job or self.name is None:
            return
        path = f"/v1/jobs/{quote(self.mount.job, safe='')}/report"
        said = {
            "dataset": self.name,
            "mode": mode,
            "ranks": ranks,
            "batches": batches,
            "seconds": seconds,
            "hits": hits,
            "misses": misses,
            "substituted": substituted,
        }
        self.mount.or_else(None, lambda: self.mount.tell(path, said), optional=True)

    def lookup(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Returns for each hash whether its bytes are resident; unknown ones are not."""
        found = [
            self.mount.or_else(bytes(len(part) // _HASH_BYTES), partial(self._lookup, part))
            for part in _split(_joined(hashes), _HASHES_MAX * _HASH_BYTES)
        ]
        return np.frombuffer(b"".join(found), dtype=np.uint8).astype(np.bool_)

    def get(self, hashes: Hashes) -> list[bytes | None]:
        """Returns the bytes of each hash, or none where they are not resident."""
        found: list[bytes | None] = []
        for part in _split(_joined(hashes), _GET_MAX * _HASH_BYTES):
            nothing: list[bytes | None] = [None] * (len(part) // _HASH_BYTES)
            found += self.mount.or_else(nothing, partial(self._get, part))
        return found

    def insert(self, contents: Mapping[bytes, bytes]) -> list[int]:
        """Gives bytes to the cache under their hashes. The daemon checks them.

        Returns for each, in the order of `contents`: `KEPT`, `NO_ROOM` (also if the daemon does not answer),
        `REFUSED` (no manifest of a public dataset names it), `OTHER_BYTES` (they have another hash) or
        `NO_ITEM` (no bytes, or more than 4 MiB).
        """
        found: list[int] = []
        for pieces in _packed(contents):
            count = len(pieces) // 3
            insert = partial(self._insert, b"".join(pieces), count)
            found += self.mount.or_else([NO_ROOM] * count, insert)
        return found

    def _asking(self) -> threading.Lock:
        """Returns the lock of the thread that asks, for whose answer the others wait.

        If they did not, they would take it until the first answer that nothing is resident.
        """
        if self._known_process != os.getpid():
            # A thread of the parent may hold the lock for ever.
            self._known_process, self._known_lock = os.getpid(), threading.Lock()
        return self._known_lock

    def _forget(self) -> None:
        """Forgets all answers, as a process does that has just begun."""
        self._known_process, self._known_lock = os.getpid(), threading.Lock()
        self._known, self._known_at = self._nothing, -math.inf
        self._known_bits = (None, self._nothing)
        self._known_chunks, self._known_chunks_at = Chunks("", self._layout, ()), -math.inf
        self._known_homes, self._known_homes_at = Homes(), -math.inf
        self._known_joins = {}
        self._known_owed = {}
        self._known_mode, self._known_mode_at = CACHED, -math.inf

    def _ask(self, what: str, etag: str | None = None) -> Answer:
        return self.mount.ask(f"/v1/datasets/{quote(str(self.name), safe='')}/{what}", etag)

    def _ask_residency(self) -> NDArray[np.bool_]:
        etag, bits = self._known_bits
        # The daemon refuses if the dataset was declared again with another manifest.
        answer = self._ask(f"residency?identity={self.identity}", etag=etag)
        if answer.status == 304:
            return bits
        packed = np.frombuffer(answer.body, dtype=np.uint8)
        if len(packed) != -(-len(self) // 8):
            self._check_entries(len(packed) * 8)
        bits = np.unpackbits(packed, count=len(self), bitorder="little").view(np.bool_)
        bits.flags.writeable = False
        self._known_bits = (answer.etag, bits)
        return bits

    def _files_at(self, path: str | os.PathLike[str], missing_ok: bool) -> NDArray[np.int64]:
        named = os.fspath(path)
        relative = os.path.relpath(named, self.root) if os.path.isabs(named) else os.path.normpath(named)
        if relative.split(os.sep, 1)[0] == os.pardir:
            raise ValueError(f"{named} is not below {self.root}, where this dataset lies")
        files = self.manifest.files_at(relative)
        if not len(files) and not missing_ok:
            raise FileNotFoundError(f"{self.manifest.file} has no file {relative}, and none below it")
        return files

    def _homes(self) -> Homes:
        """Returns the homes of items, as they were a second ago at the earliest."""
        now = time.monotonic()
        if now - self._known_homes_at >= _HOMES_SECONDS:
            self._known_homes_at = now
            self._known_homes = self.mount.or_else(Homes(), self._ask_homes)
        return self._known_homes

    def _ask_homes(self) -> Homes:
        said = self._ask("homes").fields()
        try:
            nodes = tuple(Home(str(home["node"]), int(home["capacity"])) for home in said["homes"])
        except (KeyError, TypeError, ValueError) as error:
            raise UnavailableError(f"the daemon's homes cannot be understood: {error!r}") from error
        return self._known_homes if nodes == self._known_homes.nodes else Homes(nodes)

    def _chunks_of(self, answer: Answer) -> Chunks:
        said = answer.fields()
        try:
            shape = (said["entries"], said["stripes"], said["partitions"])
            layout = self._layout
            if shape != (layout.entries, layout.stripes, layout.partitions):
                layout = Layout(*shape)
            resident = tuple(
                Chunk(chunk["chunk"], chunk["state"], chunk["held"], chunk["entries"])
                for chunk in said["resident"] or ()
            )
            kept = said["resident"] is not None
        except (KeyError, TypeError, ValueError) as error:
            raise UnavailableError(f"the daemon's chunks cannot be understood: {error!r}") from error
        self._check_entries(layout.entries)
        self._layout = layout
        return Chunks(str(said.get("serial")), layout, resident, kept)

    def _place(self, entry: int) -> tuple[str, int, int]:
        return self.path(entry), int(self.manifest.offsets[entry]), int(self.manifest.lengths[entry])

    def _check_entries(self, entries: int) -> None:
        if entries != len(self):
            raise UnavailableError(
                f"the daemon answers for {entries} entries, and this manifest has {len(self)}",
                f"open the manifest with which {self.name!r} is declared now",
            )

    def _refer(self, chunk: int, verb: str, said: dict[str, Any]) -> bool | None:
        """Returns whether the chunk is resident, or none if the daemon cannot answer now."""
        if not self.mount.job or self.name is None:
            return False
        path = f"/v1/datasets/{quote(self.name, safe='')}/chunks/{chunk}/{verb}"
        otherwise: bool | None = None

        def ask() -> bool:
            nonlocal otherwise
            try:
                self.mount.tell(path, {"job": self.mount.job, **said})
            except DaemonError as error:
                if error.status != 409:
                    # A refusal is an answer, unless the daemon only has too much to do.
                    otherwise = None if error.status >= 500 else False
                    raise
                # It has gone meanwhile: the next look at the chunks will say so.
                self._known_chunks_at = -math.inf
                return False
            return True

        answer = self.mount.or_else(None, ask)
        return otherwise if answer is None else answer

    def _lookup(self, hashes: bytes) -> bytes:
        found = self.mount.transfer("/v1/content/lookup", hashes)
        if len(found) != len(hashes) // _HASH_BYTES:
            raise UnavailableError(f"the daemon answers {len(found)} of the hashes that it was asked for")
        return found

    def _get(self, hashes: bytes) -> list[bytes | None]:
        count = len(hashes) // _HASH_BYTES
        try:
            answer = self.mount.transfer("/v1/content/get", hashes)
        except DaemonError as error:
            # 413: they are too large to be had together.
            if error.status != 413 or count == 1:
                raise
            half = count // 2 * _HASH_BYTES
            return self._get(hashes[:half]) + self._get(hashes[half:])
        found: list[bytes | None] = []
        at = 0
        while at + 4 <= len(answer):
            length = int.from_bytes(answer[at : at + 4], "little")
            at += 4
            absent = length == _ABSENT
            found.append(None if absent else answer[at : at + length])
            at += 0 if absent else length
        if at != len(answer) or len(found) != count:
            raise UnavailableError("the daemon's answer with content is cut short")
        return found

    def _insert(self, body: bytes, count: int) -> list[int]:
        found = list(self.mount.transfer("/v1/content/insert", body))
        if len(found) != count:
            raise UnavailableError(f"the daemon answers {len(found)} of {count} inserts")
        return found


def _whole(entry: int, path: str, offset: int, length: int, data: bytes) -> bytes:
    """Returns an entry's bytes. Raises `OSError` if they are fewer than the manifest says."""
    if len(data) < length:
        raise OSError(
            f"{path} ends at byte {offset + len(data)}, and entry {entry} reaches to byte {offset + length}: "
            "the file has changed since the manifest was made; make it again with `copperfs dataset manifest`"
        )
    return data


def _joined(hashes: Hashes) -> bytes:
    joined = hashes.tobytes() if isinstance(hashes, np.ndarray) else b"".join(hashes)
    if len(joined) != len(hashes) * _HASH_BYTES:
        raise ValueError(f"a hash has {_HASH_BYTES} bytes")
    return joined


def _split(joined: bytes, size: int) -> list[bytes]:
    return [joined[at : at + size] for at in range(0, len(joined), size)]


def _packed(contents: Mapping[bytes, bytes]) -> Iterator[list[bytes]]:
    """Yields the pieces of each request: hash, length, bytes."""
    pieces: list[bytes] = []
    size = 0
    for digest, data in contents.items():
        if len(digest) != _HASH_BYTES:
            raise ValueError(f"a hash has {_HASH_BYTES} bytes, and this one {len(digest)}")
        cost = _HASH_BYTES + 4 + len(data)
        if cost > BODY_BYTES_MAX:
            raise ValueError(f"{len(data)} bytes are too many for one request of {BODY_BYTES_MAX}")
        if pieces and (size + cost > BODY_BYTES_MAX or len(pieces) // 3 == _HASHES_MAX):
            yield pieces
            pieces, size = [], 0
        pieces += [digest, len(data).to_bytes(4, "little"), data]
        size += cost
    if pieces:
        yield pieces

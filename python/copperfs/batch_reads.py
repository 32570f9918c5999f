"""Many files at a time from the daemon, into memory that this process shares with it (docs/client.md).

A read of a mount wakes the daemon up, and the reader after it. Here one message asks for many files, and
one answers. The daemon gives a file only to users that may read it. What it does not give is read by its
path.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Callable, Union

import numpy as np
from numpy.typing import NDArray

from . import ioctl, read_ahead
from .errors import CopperError
from .read_ahead import Range

Contents = Union[bytes, NDArray[np.uint8]]

_SUFFIX = ".files"
_HELLO = b"copperfs" + struct.pack("<I", 1)
_GREETING = struct.Struct("<Ii")
_REQUEST = struct.Struct("<QQQI")
_FILE = struct.Struct("<QQH")
_ANSWER = struct.Struct("<QI")
_OUTCOME = struct.Struct("<iQQ")
_TO_THE_END = (1 << 64) - 1
_REQUEST_BYTES_MAX = 128 << 10
_ANSWER_BYTES_MAX = 64 << 10
# Files of one request, and the regions of the memory, of which each has room for one answer.
_FILES_MAX = 64
_REGIONS = 4
_REGION_BYTES = 8 << 20
# Requests that are under way: the daemon writes one answer while this process takes the other. As many
# regions are never lent.
_UNDER_WAY = 2
_CONNECT_SECONDS = 5.0
# How long the daemon is not asked after it could not be reached, or had no place for this process.
_REST_SECONDS = 30.0


def read_many(paths: Iterable[str | os.PathLike[str]], *, copy: bool = True) -> list[Any]:
    """Returns the contents of files, in the order of `paths`; any files, of a mount or not.

    They are `bytes`. With `copy=False` they are arrays of `numpy.uint8` that cannot be written to. Many of
    them lie in the shared memory, which is used again when no array of it is left. That saves a copy and the
    memory for it, as long as the caller does not keep arrays.

    Files of a mount come from its daemon in batches; other files, and those that the daemon does not give,
    with many reads in flight. This process shares 32 MiB of memory with each daemon that it asks. Raises
    `OSError`, which names the path, if a file cannot be opened or read.
    """
    ranges = [Range(os.fspath(path)) for path in paths]
    reader = _reader_of(ranges[0].path) if len(ranges) > 1 else None
    return read_ranges(reader, ranges, copy)


def read_ranges(reader: BatchReader | None, ranges: Sequence[Range], copy: bool = True) -> list[Any]:
    """Returns the bytes of ranges, in their order: in batches as far as the daemon of `reader` gives them.

    They are as `read_many` returns them. Raises `OSError`, which names the path.
    """
    # A single one is not worth a message: a mount answers as fast.
    found: list[Contents | None] = [None] * len(ranges)
    if reader is not None and len(ranges) > 1:
        found = reader.read(ranges, copy)
    left = [wanted for wanted, data in zip(ranges, found) if data is None]
    by_path = iter(read_ahead.read_ranges(left))
    contents = [next(by_path) if data is None else data for data in found]
    return contents if copy else [np.frombuffer(data, np.uint8) for data in contents]


def root_of(path: str) -> str:
    """Returns the directory above `path` at which its filesystem is mounted. Raises `OSError`."""
    device = os.stat(path).st_dev
    while (above := os.path.dirname(path)) != path and os.stat(above).st_dev == device:
        path = above
    return path


# The mounts of which files were read, by their roots.
_readers: dict[str, BatchReader] = {}


def _reader_of(path: str) -> BatchReader | None:
    """Returns the reader of the mount that holds `path`; none if that is no whole path, or is not there."""
    if not os.path.isabs(path):
        return None
    try:
        root = root_of(path)
    except OSError:
        return None
    return _readers.setdefault(root, BatchReader(root, partial(ioctl.users_socket, root)))


class _Link:
    """A connection, and the memory that is shared over it."""

    def __init__(self, name: str, root: str) -> None:
        memory = os.memfd_create("copperfs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # The pages are this process' own, and not the daemon's.
            os.posix_fallocate(memory, 0, _REGIONS * _REGION_BYTES)
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            self.memory = mmap.mmap(memory, _REGIONS * _REGION_BYTES, prot=mmap.PROT_READ)
            # The regions that are neither under way nor lent.
            self.free = list(range(_REGIONS))
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                self._greet(name, root, memory)
            except BaseException:
                self.close()
                raise
        finally:
            os.close(memory)

    def _greet(self, name: str, root: str, memory: int) -> None:
        self.socket.settimeout(_CONNECT_SECONDS)
        self.socket.connect("\0" + name)
        directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            socket.send_fds(self.socket, [_HELLO], [memory, directory])
        finally:
            os.close(directory)
        answer = self.socket.recv(_GREETING.size)
        if len(answer) != _GREETING.size:
            raise ConnectionError("the daemon serves no batches of this version")
        _version, refusal = _GREETING.unpack(answer)
        if refusal:
            raise OSError(refusal, os.strerror(refusal))
        # A read may wait for tokens of the job, as one by a path may.
        self.socket.settimeout(None)

    def close(self) -> None:
        # The memory goes when nothing that was lent of it is left.
        self.socket.close()

    def lend(self, region: int) -> NDArray[np.uint8]:
        """Returns the bytes of a region, which is free again when no array of it is left."""
        lent = np.frombuffer(self.memory, np.uint8, _REGION_BYTES, region * _REGION_BYTES)
        weakref.finalize(lent, self.free.append, region)
        return lent


class BatchReader:
    """Reads files below the root of a mount in batches.

    Threads take turns. A forked process makes a connection of its own.
    """

    _process: int
    _lock: threading.Lock
    _link: _Link | None
    _rests_until: float

    def __init__(self, root: str, locate: Callable[[], str]) -> None:
        """`locate` returns the name of the daemon's socket for users, or raises as `ioctl.users_socket`."""
        self._root = os.fspath(root)
        self._locate = locate
        self._begin()

    def __reduce__(self) -> tuple[type[BatchReader], tuple[str, Callable[[], str]]]:
        return BatchReader, (self._root, self._locate)

    def read(self, ranges: Sequence[Range], copy: bool = True) -> list[Contents | None]:
        """Returns the bytes of each range, or none where they have to be read by the path.

        Without `copy` some may be arrays of the shared memory. Never raises for want of a daemon.
        """
        found: list[Contents | None] = [None] * len(ranges)
        if self._process != os.getpid():
            # The parent's connection must not be used, and its lock may be held for ever.
            self._begin()
        with self._lock:
            link = self._connected()
            if link is None:
                return found
            try:
                self._read(link, ranges, found, copy)
            except OSError:
                # The daemon is gone, or another one has followed it: the rest is read by the paths.
                self.close()
            except BaseException:
                # Ctrl-C: the answers that are under way must not be taken for those of the next requests.
                self.close()
                raise
        return found

    def close(self) -> None:
        """Closes the connection. The next read opens another."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._link = None
        self._rests_until = 0.0

    def _connected(self) -> _Link | None:
        if self._link is None and time.monotonic() >= self._rests_until:
            try:
                self._link = _Link(self._locate() + _SUFFIX, self._root)
            except (OSError, CopperError):
                self._rests_until = time.monotonic() + _REST_SECONDS
        return self._link

    def _read(self, link: _Link, ranges: Sequence[Range], found: list[Contents | None], copy: bool) -> None:
        """Sends requests and takes their answers, two at a time."""
        batches = self._batches(ranges)
        under_way: deque[tuple[int, list[int]]] = deque()
        while True:
            while len(under_way) < _UNDER_WAY and (batch := next(batches, None)):
                region = link.free.pop()
                numbers, message = batch
                link.socket.sendall(
                    _REQUEST.pack(region, region * _REGION_BYTES, _REGION_BYTES, len(numbers)) + message
                )
                under_way.append((region, numbers))
            if not under_way:
                return
            region, numbers = under_way.popleft()
            lends = not copy and len(link.free) + len(under_way) >= _UNDER_WAY
            left_out = _take(link, region, numbers, found, lends)
            if not lends:
                link.free.append(region)
            # Those for which there was no room are asked for once more, without the others.
            if left_out and len(left_out) < len(numbers):
                batches = _then(self._batches(ranges, left_out), batches)

    def _batches(
        self, ranges: Sequence[Range], numbers: Sequence[int] | None = None
    ) -> Iterator[tuple[list[int], bytes]]:
        """Yields the numbers of ranges that one request asks for, and the part of its message for them."""
        chosen: list[int] = []
        message = bytearray()
        room = _REGION_BYTES
        for number in range(len(ranges)) if numbers is None else numbers:
            wanted = ranges[number]
            inside = _inside(self._root, wanted.path)
            if inside is None or (wanted.length or 0) > _REGION_BYTES:
                continue
            size = _FILE.size + len(inside)
            full = len(chosen) == _FILES_MAX or room < (wanted.length or 0)
            if chosen and (full or _REQUEST.size + len(message) + size > _REQUEST_BYTES_MAX):
                yield chosen, bytes(message)
                chosen, message, room = [], bytearray(), _REGION_BYTES
            length = _TO_THE_END if wanted.length is None else wanted.length
            message += _FILE.pack(wanted.offset, length, len(inside)) + inside
            # Each begins at a multiple of 64.
            room -= (wanted.length or 0) + 64
            chosen.append(number)
        if chosen:
            yield chosen, bytes(message)


def _take(
    link: _Link, region: int, numbers: list[int], found: list[Contents | None], lends: bool
) -> list[int]:
    """Takes the answer to the request for `region`, and copies the bytes unless it lends the region.

    Returns the numbers of those that it had no room for.
    """
    answer = link.socket.recv(_ANSWER_BYTES_MAX)
    if len(answer) != _ANSWER.size + len(numbers) * _OUTCOME.size:
        raise ConnectionError("the daemon has gone, or its answer is cut off")
    answered, count = _ANSWER.unpack_from(answer)
    if (answered, count) != (region, len(numbers)):
        raise ConnectionError("the daemon has answered another request")
    left_out = []
    lent = link.lend(region) if lends else None
    start = region * _REGION_BYTES
    outcomes = _OUTCOME.iter_unpack(memoryview(answer)[_ANSWER.size :])
    for number, (failure, at, length) in zip(numbers, outcomes):
        if failure == 0:
            if not start <= at <= at + length <= start + _REGION_BYTES:
                raise ConnectionError("the daemon's answer lies outside of its region")
            if lent is None:
                found[number] = link.memory[at : at + length]
            else:
                found[number] = lent[at - start : at - start + length]
        elif failure == errno.ENOSPC:
            left_out.append(number)
    return left_out


def _then(
    first: Iterator[tuple[list[int], bytes]], second: Iterator[tuple[list[int], bytes]]
) -> Iterator[tuple[list[int], bytes]]:
    yield from first
    yield from second


def _inside(root: str, path: str) -> bytes | None:
    """Returns a path relative to `root`; none if it does not lie there, or only the mount can follow it."""
    if not path.startswith(root.rstrip("/") + "/"):
        return None
    inside = os.fsencode(path[len(root.rstrip("/")) + 1 :])
    # The mount follows links before it goes up.
    names = inside.split(b"/")
    if b".." in names or b"." in names or len(inside) > 0xFFFF:
        return None
    return inside

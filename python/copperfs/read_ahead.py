"""Reads many files, or parts of files, with many requests in flight and without threads.

A process that reads one file after the other waits for each. Here files are opened ahead of the one that is
read, and the kernel is asked to bring their bytes into the page cache meanwhile. A filesystem that fetches
files from elsewhere, such as a mount of copperfs, then works on many at a time. Where the kernel cannot be
asked (macOS has no `posix_fadvise`), files are read one by one.

This module knows of paths, offsets and lengths; `dataset` knows which of them an entry has.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

# Files that are open at a time. More of them were not faster, and by default a process may have 1,024.
_FILES_MAX = 64
# No further file is opened while this number of bytes is requested. A file has no more than this number
# requested, so there are fewer than twice as many in all. With 8 MiB, files of 1 MB at another node were 8 %
# faster; storage that answers slowly needs more.
_BYTES_AHEAD = 16 << 20
# The process, or the host, has no descriptor left.
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_fadvise = getattr(os, "posix_fadvise", None)


class Range(NamedTuple):
    """A part of a file; without a length, all of it from `offset` on."""

    path: str
    offset: int = 0
    length: int | None = None


def read_ranges(ranges: Sequence[Range]) -> list[bytes]:
    """Returns the bytes of ranges, in their order; fewer where a file ends before its range does.

    At most 64 files are open at a time. At most 32 MiB of them are brought into the page cache before they
    are read. Raises `OSError`, which names the path, if a file cannot be opened or read.
    """
    window = _Window(ranges)
    try:
        return [window.read_next() for _ in ranges]
    finally:
        window.close()


def read_part(path: str, offset: int, length: int) -> bytes:
    """Returns the bytes of one range, as `read_ranges` does, with nothing requested ahead."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _pread(descriptor, offset, length)
    except OSError as error:
        _name(error, path)
        raise
    finally:
        os.close(descriptor)


class _Window:
    """The ranges whose files are open, the first of them to be read next."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self._ranges = ranges
        self._begun = 0
        self._open: deque[_OpenRange] = deque()
        # The bytes of the open ranges that the kernel was asked for.
        self._bytes_ahead = 0
        # A single range is read at once: a request ahead of that would only cost time.
        self._files_max = _FILES_MAX if _fadvise and len(ranges) > 1 else 1

    def read_next(self) -> bytes:
        self._fill()
        first = self._open.popleft()
        self._bytes_ahead -= first.bytes_ahead
        return first.read()

    def close(self) -> None:
        for one in self._open:
            # The error that ended the reads is the one to show.
            with contextlib.suppress(OSError):
                one.file.close()

    def _fill(self) -> None:
        """Opens some further ranges, if there is room for them, and requests their bytes.

        The process waits for each open. An open would also wait for the requests before it, so the requests
        of several files follow their opens.
        """
        together = max(1, self._files_max // 4)
        before = len(self._open)
        if before + together > self._files_max:
            return
        for wanted in self._ranges[self._begun : self._begun + together]:
            if self._open and self._bytes_ahead >= _BYTES_AHEAD:
                break
            try:
                self._open.append(_OpenRange(wanted))
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR or not self._open:
                    raise
                # Half of these are left to other parts of the process.
                self._files_max = max(1, len(self._open) // 2)
                break
            self._begun += 1
            self._bytes_ahead += self._open[-1].bytes_ahead
        if self._files_max > 1:
            for one in islice(self._open, before, None):
                one.request()


class _OpenRange:
    """A range whose file is open."""

    def __init__(self, wanted: Range) -> None:
        self._wanted = wanted
        # If an interrupt comes before the file is stored, this object closes it; a bare descriptor would stay
        # open. The function `open` would send an ioctl as well.
        self.file = io.FileIO(wanted.path)
        try:
            size = os.fstat(self.file.fileno()).st_size if wanted.length is None else wanted.length
        except OSError as error:
            self.file.close()
            _name(error, wanted.path)
            raise
        self.bytes_ahead = min(size, _BYTES_AHEAD)

    def request(self) -> None:
        """Asks the kernel to bring the range into the page cache, or its beginning if it is large."""
        # The kernel takes a length of 0 for all of the file.
        if self.bytes_ahead and _fadvise:
            # Reads work without it, and pipes refuse it.
            with contextlib.suppress(OSError):
                _fadvise(self.file.fileno(), self._wanted.offset, self.bytes_ahead, os.POSIX_FADV_WILLNEED)

    def read(self) -> bytes:
        """Returns the range's bytes, and closes the file."""
        path, offset, length = self._wanted
        try:
            with self.file as file:
                if length is not None:
                    return _pread(file.fileno(), offset, length)
                if offset:
                    file.seek(offset)
                # Up to the end: a size is out of date if the file grows, and 0 for files of /proc.
                return file.readall()
        except OSError as error:
            _name(error, path)
            raise


def _pread(descriptor: int, offset: int, length: int) -> bytes:
    data = os.pread(descriptor, length, offset)
    while len(data) < length:
        more = os.pread(descriptor, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def _name(error: OSError, path: str) -> None:
    """Adds the path to an error that names none, as those of reads."""
    if error.filename is None:
        error.filename = path

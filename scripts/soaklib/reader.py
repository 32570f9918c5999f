"""Readers: each reads through one node's mount, and checks every byte and every error that it gets."""

import errno
import mmap
import os
import random
import signal
import sys
import time
from collections import Counter

from .content import ABSENT, SIZE_MAX
from .faults import FILES_HANG, ROOT_DOWN
from .origin import FILES, HANGING, IMAGE, directory_of, name_of

# The time limit for one operation of a reader.
OPERATION_S = 60.0
# The last exit statuses of a process with a mapping stand for errors: see Reader.in_process.
ERRNO_AT = 100


class Wrong(Exception):
    """A read returned bytes or an error that it must not return."""


class Reader:
    """Reads through one node and checks what it gets."""

    def __init__(self, soak, rank):
        self.soak, self.rank, self.table, self.pool = soak, rank, soak.table, soak.pool
        self.draw = random.Random(f"{soak.options.seed}/{rank}")
        self.base = soak.point(rank)
        self.counts = Counter()
        # When the current operation began.
        self.began = 0.0

    def run(self, count, results):
        """Makes `count` operations (no limit if that is 0) until the soak stops, and reports them."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        wrong, made = [], 0
        while not self.soak.stop[0] and not (count and made == count):
            while not self.soak.up[self.rank] and not self.soak.stop[0]:
                time.sleep(0.02)
            try:
                self.once()
            except Wrong as found:
                wrong.append(str(found))
            made += 1
            if count:
                self.soak.done[self.rank] += 1
        results.put((self.rank, dict(self.counts), wrong[:20], len(wrong)))

    def pick(self):
        """The next operation: its file, its function, and its name."""
        file = self.draw.randrange(FILES) if self.draw.random() < 0.5 else self.draw.randrange(24)
        if directory_of(file) == HANGING and self.soak.faults.is_on(FILES_HANG):
            # Only a few readers use hanging files, to show that the others are not delayed.
            file -= self.draw.random() < 0.9
        kind = self.draw.choices(["whole", "ranges", "map"], [60, 37, 3])[0]
        return file, lambda floor: getattr(self, kind)(file, floor), kind

    def once(self):
        file, act, kind = self.pick()
        floor, life = self.table.head(file)[1], self.soak.lives[self.rank]
        began = self.began = time.monotonic()
        try:
            outcome = act(floor)
        except OSError as error:
            outcome = self.judge(file, floor, life, began, kind, error)
        self.counts[f"{kind}.{outcome}"] += 1
        took = time.monotonic() - began
        if took > OPERATION_S:
            raise Wrong(f"rank {self.rank} {name_of(file)}: {kind} took {took:.1f} s")

    def judge(self, file, floor, life, began, kind, error):
        """Returns the explanation of an error. Raises Wrong if there is none."""
        if not self.soak.up[self.rank] or self.soak.lives[self.rank] != life:
            return "away"
        if error.errno == errno.ESTALE and self.explains_stale(file, floor):
            return "stale"
        if error.errno == errno.ENOENT:
            gone = (self.table.slot(file, v)[1] == ABSENT for v in self.table.window(file, floor))
            if any(gone):
                return "absent"
        if error.errno == errno.EIO and self.explains_eio(file, began):
            return "eio"
        raise Wrong(f"rank {self.rank} {name_of(file)}: {kind}: {error}, and no fault explains it")

    def explains_stale(self, file, floor):
        """Whether an opened file may be stale: only if its content changed since the last clear.

        A restarted root cannot distinguish an image that replaced another one from one that was always
        there, so the files of the image get other versions than before.
        """
        restarted = self.soak.faults.ended[ROOT_DOWN] > self.table.cleared[file]
        return self.table.head(file)[0] > floor or (directory_of(file) == IMAGE and restarted)

    def explains_eio(self, file, began):
        """Whether storage may have been unavailable."""
        hung = directory_of(file) == HANGING and self.soak.faults.explains(FILES_HANG, began)
        return hung or self.soak.faults.explains(ROOT_DOWN, began)

    def fitting(self, file, floor, offset, wanted, found):
        """The versions for which a read of `wanted` bytes returns `found`."""
        fits = set()
        for version in self.table.window(file, floor):
            start, size, in_place = self.table.slot(file, version)
            if size == ABSENT:
                continue
            there = min(wanted, max(0, size - offset))
            if len(found) > there or (len(found) < there and not in_place):
                continue
            if self.pool[start + offset : start + offset + len(found)] == found:
                fits.add(version)
        return fits

    def check(self, file, floor, offset, wanted, found, fits, kind):
        these = self.fitting(file, floor, offset, wanted, found)
        both = these if fits is None else these & fits
        if not both and self.table.may_be_torn(file, self.began) and self.is_torn(file, floor, offset, found):
            self.counts["torn"] += 1
            # No version fits any more, so later reads of this open file may show any version.
            return set(self.table.window(file, floor))
        if not both:
            current = self.table.head(file)[0]
            older = self.fitting(file, 0, offset, wanted, found)
            slots = {v: self.table.slot(file, v) for v in self.table.window(file, max(0, current - 3))}
            raise Wrong(
                f"rank {self.rank} {name_of(file)}: {kind}: {len(found)} bytes at {offset} are of no "
                f"version in {floor}..{current} (these bytes: {sorted(older)}, "
                f"this open file so far: {sorted(fits) if fits is not None else 'new'}, "
                f"versions: {slots}, found: {self.explain(found, offset)})"
            )
        return both

    def is_torn(self, file, floor, offset, found):
        """Whether every page belongs to a version that may be read."""
        at = 0
        while at < len(found):
            end = min(len(found), at + 4096 - (offset + at) % 4096)
            if not self.fitting(file, floor, offset + at, end - at, found[at:end]):
                return False
            at = end
        return True

    def explain(self, found, offset):
        """Describes wrong bytes: where in the pool each piece of them begins, minus the offset."""
        pieces = []
        for at in range(0, len(found), 4096):
            piece = found[at : at + 4096]
            start = self.pool.find(piece) - offset - at
            what = "zeros" if not any(piece) else f"start {start}" if start > -offset - at - 1 else "a mix"
            if not pieces or pieces[-1][1] != what:
                pieces.append((offset + at, what))
        return pieces[:8]

    def forget(self, descriptor):
        if self.draw.random() < 0.5:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def whole(self, file, floor):
        descriptor = os.open(self.base / name_of(file), os.O_RDONLY)
        try:
            found = bytearray()
            while piece := os.read(descriptor, 1 << 20):
                found += piece
            self.forget(descriptor)
        finally:
            os.close(descriptor)
        self.check(file, floor, 0, SIZE_MAX + 1, bytes(found), None, "whole")
        return "right"

    def ranges(self, file, floor):
        descriptor = os.open(self.base / name_of(file), os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            fits = None
            for _ in range(self.draw.randint(1, 5)):
                offset = self.draw.randint(0, size)
                wanted = self.draw.choice([1, 100, 4096, 20_000, 200_000])
                found = self.read_at(descriptor, wanted, offset)
                fits = self.check(file, floor, offset, wanted, found, fits, "ranges")
            self.forget(descriptor)
        finally:
            os.close(descriptor)
        return "right"

    def read_at(self, descriptor, wanted, offset):
        """Reads up to `wanted` bytes. A read ends early before a page that fails, and the next one returns
        the error."""
        found = b""
        while len(found) < wanted:
            piece = os.pread(descriptor, wanted - len(found), offset + len(found))
            if not piece:
                break
            found += piece
        return found

    def map(self, file, floor):
        """Reads some pages of a mapping."""
        self.in_process(lambda draw: self.map_here(file, floor, draw, 4, 0.0), file)
        return "right"

    def in_process(self, body, file):
        """Runs `body` in a child process, which SIGBUS may end.

        SIGBUS means that a page could not be read. It is raised as ESTALE or, if storage may have been
        unavailable, as EIO, and is explained like these.
        """
        seed, began = self.draw.random(), time.monotonic()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.signal(signal.SIGBUS, signal.SIG_DFL)
                body(random.Random(seed))
                status = 0
            except OSError as error:
                status = ERRNO_AT + min(error.errno, 120)
            except Wrong as found:
                print(f"soak: {found}", file=sys.stderr, flush=True)
            finally:
                os._exit(status)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            if os.WTERMSIG(status) != signal.SIGBUS:
                raise Wrong(f"a process with a mapping got signal {os.WTERMSIG(status)}")
            self.counts["sigbus"] += 1
            code = errno.EIO if self.explains_eio(file, began) else errno.ESTALE
            raise OSError(code, "SIGBUS")
        code = os.waitstatus_to_exitcode(status)
        if code >= ERRNO_AT:
            raise OSError(code - ERRNO_AT, os.strerror(code - ERRNO_AT))
        if code:
            raise Wrong(f"rank {self.rank} {name_of(file)}: a mapping, see above")

    def map_here(self, file, floor, draw, touches, pause):
        """Maps a file and reads it at some places, with a pause after each."""
        descriptor = os.open(self.base / name_of(file), os.O_RDONLY)
        size = os.fstat(descriptor).st_size
        if size == 0:
            return
        fits = None
        with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as mapped:
            for _ in range(touches):
                offset = draw.randrange(size)
                found = mapped[offset : offset + 10_000]
                wanted = min(10_000, size - offset)
                fits = self.check(file, floor, offset, wanted, found, fits, "map")
                time.sleep(pause)


class Holder(Reader):
    """Holds mappings for seconds, during changes, clears and faults. Not counted as operations."""

    def __init__(self, soak, rank):
        super().__init__(soak, rank)
        self.draw = random.Random(f"{soak.options.seed}/holder/{rank}")

    def pick(self):
        file = self.draw.randrange(FILES)
        return file, lambda floor: self.hold(file, floor), "hold"

    def hold(self, file, floor):
        self.in_process(lambda draw: self.map_here(file, floor, draw, 30, 0.1), file)
        return "right"

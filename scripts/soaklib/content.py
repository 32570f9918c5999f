"""The content of each file, version by version, in memory that all processes share."""

import mmap
import struct

# Content is cut from a pool of random bytes, at a place that depends on the version, so that any piece of
# it identifies the version.
POOL_BYTES = 16 << 20
SIZE_MAX = 3 << 20
# Versions of one file that are remembered; a file has fewer between two clears of everything.
VERSIONS = 256
# Two seconds for the coarsest times, one for attributes in the kernel, and some for a busy machine.
TORN_S = 8.0
# The size of a missing file.
ABSENT = 0xFFFFFFFF


class Table:
    """The versions of all files.

    The current version is raised before the origin changes, the floor after a clear: only versions
    from the floor to the current one may be read.
    """

    HEAD = struct.Struct("=II")
    SLOT = struct.Struct("=III")

    def __init__(self, files):
        # When each file was last overwritten; infinite while it is being overwritten.
        self.overwritten = Words(files, "d")
        # When each file was last cleared on all nodes.
        self.cleared = Words(files, "d")
        self.row = self.HEAD.size + VERSIONS * self.SLOT.size
        self.memory = mmap.mmap(-1, files * self.row)

    def head(self, file):
        """The current version, and the oldest version that may be read."""
        return self.HEAD.unpack_from(self.memory, file * self.row)

    def slot(self, file, version):
        """The start of a version in the pool, its size, and whether a part of it may be seen."""
        at = file * self.row + self.HEAD.size + version % VERSIONS * self.SLOT.size
        return self.SLOT.unpack_from(self.memory, at)

    def now(self, file):
        """The current version's place in the pool and size."""
        return self.slot(file, self.head(file)[0])[:2]

    def add(self, file, start, size, in_place):
        """Makes a version current. `in_place`: readers may see it while it is being written."""
        current, floor = self.head(file)
        current += 1
        at = file * self.row + self.HEAD.size + current % VERSIONS * self.SLOT.size
        self.SLOT.pack_into(self.memory, at, start, size, int(in_place))
        self.HEAD.pack_into(self.memory, file * self.row, current, floor)

    def may_be_torn(self, file, began):
        """Whether a read that began at `began` may show bytes of two versions.

        A file that is read while it is overwritten shows parts of both, as on any filesystem. A node
        may return those bytes until the file's times show whether it changed again.
        """
        return began < self.overwritten[file] + TORN_S

    def raise_floor(self, file, floor):
        """No version before `floor` may be read any more."""
        current, before = self.head(file)
        self.HEAD.pack_into(self.memory, file * self.row, current, max(before, floor))

    def window(self, file, floor):
        """The versions that may be read if `floor` was the oldest when the reading began."""
        current = self.head(file)[0]
        return range(max(floor, current - VERSIONS + 2), current + 1)


class Words:
    """Numbers that all processes share."""

    def __init__(self, count, kind):
        self.memory = mmap.mmap(-1, 8 * count)
        self.view = memoryview(self.memory).cast(kind)

    def __getitem__(self, index):
        return self.view[index]

    def __setitem__(self, index, value):
        self.view[index] = value

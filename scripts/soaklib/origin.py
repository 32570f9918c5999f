"""The files at the origin, on storage of several kinds, and the changes made to them.

| directory | storage | changes |
| --- | --- | --- |
| plain0 .. plain3 | an ordinary filesystem | every change |
| coarse0, coarse1 | ext4 whose times are whole seconds | every change, often twice within a second |
| image | a read-only image | another image is mounted in its place: same inodes, sizes and times |
| hanging | a FUSE filesystem | every change; at times it does not answer |

Only the process that makes the changes and faults uses the origin.
"""

import os
import shutil
import signal
import subprocess
import time

from .content import ABSENT, POOL_BYTES, SIZE_MAX
from .faults import FILES_HANG

DIRECTORIES = ["plain0", "plain1", "plain2", "plain3", "coarse0", "coarse1", "image", "hanging"]
IMAGE, HANGING = 6, 7
FILES = 240
COARSE_BYTES = 512 << 20
IMAGE_FILE_MAX = 300_000
CONTENT_CHANGES = ["rewrite", "twice", "quiet", "rename", "remove", "append", "truncate"]
STATUS_CHANGES = ["link", "chmod", "chown"]


def directory_of(file):
    """The number of the directory that holds a file."""
    return file % len(DIRECTORIES)


def name_of(file):
    """The path of a file below the origin."""
    return f"{DIRECTORIES[directory_of(file)]}/f{file}"


def size_drawn(draw):
    """A size: most files are small."""
    kind = draw.random()
    if kind < 0.6:
        return draw.randint(1, 30_000)
    if kind < 0.9:
        return draw.randint(30_000, 300_000)
    return draw.randint(1 << 20, SIZE_MAX)


def run(*words):
    """Runs a command. A failure raises its output."""
    said = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if said.returncode != 0:
        raise RuntimeError(f"{words[0]} failed: {said.stderr.strip() or said.stdout.strip()}")


class Origin:
    """See the module."""

    def __init__(self, directory, table, pool, draw, faults):
        self.path, self.aside = directory / "origin", directory / "behind"
        self.table, self.pool, self.draw, self.faults = table, pool, draw, faults
        self.mounts = []
        self.bindfs = None
        self.images = 0
        self.image_sizes = {}
        self.hangs_until = None
        for name in DIRECTORIES:
            (self.path / name).mkdir(parents=True)
        self.aside.mkdir()

    def set_up(self):
        """Mounts the storage and makes the files."""
        for name in ("coarse0", "coarse1"):
            image = self.aside / name
            with image.open("wb") as out:
                out.truncate(COARSE_BYTES)
            # Inodes of 128 bytes have no room for fractions of a second.
            run("mkfs.ext4", "-q", "-I", "128", "-O", "^has_journal", image)
            self.mount("mount", "-o", "loop", image, at=name)
        (self.aside / "hanging").mkdir()
        at = self.path / "hanging"
        self.bindfs = subprocess.Popen(
            ["bindfs", "-f", "--no-allow-other", self.aside / "hanging", at],
            stdout=subprocess.DEVNULL,
        )
        self.mounts.append(at)
        while not os.path.ismount(at):
            if self.bindfs.poll() is not None:
                raise RuntimeError("bindfs does not mount")
            time.sleep(0.01)
        for file in range(FILES):
            if directory_of(file) != IMAGE:
                start, size = self.new()
                self.table.add(file, start, size, False)
                (self.path / name_of(file)).write_bytes(self.pool[start : start + size])
        self.swap_image()

    def mount(self, *words, at):
        run(*words, self.path / at)
        self.mounts.append(self.path / at)

    def take_down(self):
        """Unmounts everything, in any state."""
        if self.bindfs:
            self.bindfs.send_signal(signal.SIGCONT)
        for point in reversed(self.mounts):
            subprocess.run(["umount", "-l", point], check=False, capture_output=True)
        if self.bindfs:
            self.bindfs.terminate()
            self.bindfs.wait(timeout=30)

    def new(self, size=None):
        size = size_drawn(self.draw) if size is None else size
        return self.draw.randrange(POOL_BYTES - SIZE_MAX - 1), size

    def change(self):
        """Changes one file, in its content or only in its status. Returns the kind of change."""
        file = self.draw.randrange(FILES)
        if directory_of(file) == IMAGE or (directory_of(file) == HANGING and self.hangs_until):
            return "change.none"
        path = self.path / name_of(file)
        start, size = self.table.now(file)
        if size == ABSENT:
            kind = "create"
        else:
            kind = self.draw.choice(CONTENT_CHANGES + STATUS_CHANGES)
        if kind in STATUS_CHANGES:
            self.change_status(kind, path)
            return f"change.{kind}"
        if kind in ("create", "rewrite", "rename"):
            start, size = self.new()
        elif kind in ("twice", "quiet"):
            start, size = self.new(size)
        elif kind == "append":
            size = min(SIZE_MAX, size + self.draw.randint(1, 100_000))
        elif kind == "truncate":
            size = self.draw.randint(0, size)
        elif kind == "remove":
            start, size = 0, ABSENT
        in_place = kind in ("create", "rewrite", "append", "twice", "quiet")
        overwrites = kind in ("twice", "quiet")
        if overwrites:
            self.table.overwritten[file] = float("inf")
        self.table.add(file, start, size, in_place)
        self.apply(kind, path, start, size)
        if kind == "twice":
            # A second change, most probably within the same tick of the storage's clock.
            start, size = self.new(size)
            self.table.add(file, start, size, True)
            self.write(path, start, size)
        if overwrites:
            self.table.overwritten[file] = time.monotonic()
        return f"change.{kind}"

    def change_status(self, kind, path):
        """Changes only the status: no reader may notice."""
        if kind == "link":
            other = path.with_name("link")
            os.link(path, other)
            other.unlink()
        elif kind == "chmod":
            os.chmod(path, self.draw.choice([0o644, 0o444, 0o640]))
        else:
            os.chown(path, self.draw.choice([0, 1]), -1)

    def apply(self, kind, path, start, size):
        if kind == "rename":
            aside = path.with_name("new")
            aside.write_bytes(self.pool[start : start + size])
            aside.rename(path)
        elif kind == "remove":
            path.unlink()
        elif kind == "truncate":
            os.truncate(path, size)
        elif kind == "append":
            with path.open("ab") as out:
                out.write(self.pool[start + out.tell() : start + size])
        elif kind in ("twice", "quiet"):
            before = path.stat()
            self.write(path, start, size)
            if kind == "quiet":
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        else:
            path.write_bytes(self.pool[start : start + size])

    def write(self, path, start, size):
        """Overwrites old bytes with the same number of new ones."""
        with path.open("r+b") as out:
            out.write(self.pool[start : start + size])

    def image_size(self):
        return self.draw.randint(1, IMAGE_FILE_MAX)

    def swap_image(self):
        """Mounts another image: other bytes in files with the same inodes, sizes and times."""
        tree = self.aside / "tree"
        tree.mkdir()
        files = range(IMAGE, FILES, len(DIRECTORIES))
        # Another place in the pool for each file, and always the same size.
        states = {file: self.new(self.image_sizes.setdefault(file, self.image_size())) for file in files}
        for file, (start, size) in states.items():
            (tree / f"f{file}").write_bytes(self.pool[start : start + size])
        self.images += 1
        image = self.aside / f"image{self.images}"
        run("mksquashfs", tree, image, "-quiet", "-no-progress", "-noappend", "-processors", "1",
            "-noI", "-noD", "-noF", "-noX", "-all-time", "1000000000", "-mkfs-time", "1000000000")  # fmt: skip
        shutil.rmtree(tree)
        at = self.path / DIRECTORIES[IMAGE]
        if self.images > 1:
            # For a moment nothing is mounted; a node that looks then caches that until the next clear.
            for file in files:
                self.table.add(file, 0, ABSENT, False)
            run("umount", "-l", at)
            self.mounts.remove(at)
            (self.aside / f"image{self.images - 1}").unlink()
        for file, (start, size) in states.items():
            self.table.add(file, start, size, False)
        self.mount("mount", "-o", "loop,ro", "-t", "squashfs", image, at=DIRECTORIES[IMAGE])
        return "change.swap"

    def hang(self):
        """Makes the hanging directory hang for some seconds."""
        if self.hangs_until is None:
            self.faults.begin(FILES_HANG)
            self.bindfs.send_signal(signal.SIGSTOP)
            self.hangs_until = time.monotonic() + self.draw.uniform(2, 15)
        return "hang.files"

    def tend(self):
        """Ends the hang when its time is over."""
        if self.hangs_until and time.monotonic() > self.hangs_until:
            self.bindfs.send_signal(signal.SIGCONT)
            self.hangs_until = None
            self.faults.end(FILES_HANG)

"""Many files read with many requests in flight: contents, errors, and the files that are open at a time."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import copperfs
from copperfs import read_ahead
from copperfs.read_ahead import Range, read_ranges

FILES = 150


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Files of different lengths, of which one is empty."""
    made = [tmp_path / f"{number:03}" for number in range(FILES)]
    for number, path in enumerate(made):
        path.write_bytes(b"%03d," % number * number * 50)
    return made


@pytest.fixture(autouse=True)
def _no_leak(tmp_path: Path) -> Iterator[None]:
    """No test leaves a file open."""
    yield
    assert still_open(tmp_path) == []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Offset and length of each request to the kernel."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(
        read_ahead, "_fadvise", lambda _, offset, length, advice: asked.append((offset, length))
    )
    return asked


class Open:
    """The ranges that are open, and the most of them at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self.most_bytes = 0
        self.now: list[int] = []
        begin, read = read_ahead._OpenRange.__init__, read_ahead._OpenRange.read

        def begun(one: Any, wanted: Range) -> None:
            begin(one, wanted)
            self.now.append(one.bytes_ahead)
            self.most = max(self.most, len(self.now))
            self.most_bytes = max(self.most_bytes, sum(self.now))

        def finished(one: Any) -> bytes:
            assert self.now.pop(0) == one.bytes_ahead
            return read(one)

        monkeypatch.setattr(read_ahead._OpenRange, "__init__", begun)
        monkeypatch.setattr(read_ahead._OpenRange, "read", finished)


def still_open(directory: Path) -> list[str]:
    """Returns the files below a directory that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        # The descriptor of this listing is closed by now.
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [file for file in found if file.startswith((f"{directory}/", "/proc/"))]


@contextlib.contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """Leaves this process a number of descriptors."""
    # Other tests have left some to the collector, which would add them.
    gc.collect()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}
    limit = next(n for n in range(limits[0]) if n - sum(one < n for one in used) == count)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_contents_are_those_of_the_files_in_their_order(paths: list[Path]) -> None:
    chosen = [*reversed(paths), paths[3], paths[3], paths[0]]
    expected = [path.read_bytes() for path in chosen]
    assert copperfs.read_many(chosen) == expected
    assert copperfs.read_many(str(path) for path in chosen) == expected


@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 63, 64, 65])
def test_any_number_of_files_will_do(paths: list[Path], count: int) -> None:
    assert copperfs.read_many(paths[:count]) == [path.read_bytes() for path in paths[:count]]


def test_files_of_proc_have_contents_and_no_size() -> None:
    path = Path("/proc/version")
    assert path.stat().st_size == 0
    assert copperfs.read_many([path, path]) == [path.read_bytes()] * 2


def test_a_pipe_is_read_to_its_end(tmp_path: Path, paths: list[Path]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"written",))
    writer.start()
    assert copperfs.read_many([paths[1], pipe]) == [paths[1].read_bytes(), b"written"]
    writer.join()


def test_files_that_change_while_they_wait_are_read_to_their_ends(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(_: Any) -> None:
        os.truncate(paths[30], 10)
        paths[31].write_bytes(b"grown" * 10_000)

    monkeypatch.setattr(read_ahead._OpenRange, "request", change)
    shrunk, grown = copperfs.read_many(paths[30:32])
    assert shrunk == b"030,030,03"
    assert grown == b"grown" * 10_000


def test_ranges_end_with_their_files(paths: list[Path]) -> None:
    path = str(paths[10])
    contents = paths[10].read_bytes()
    ranges = [
        Range(path, 7, 20),
        Range(path, 1995, 20),
        Range(path, 5000, 20),
        Range(path, 7),
        Range(path, 9, 0),
    ]
    assert read_ranges(ranges) == [contents[7:27], contents[1995:], b"", contents[7:], b""]


def test_short_reads_go_on(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, length, offset: pread(file, min(length, 7), offset))
    contents = paths[3].read_bytes()
    assert read_ranges([Range(str(paths[3]), 5, 500)]) == [contents[5:505]]


@pytest.mark.parametrize("at", [0, 20, 70, FILES - 1])
def test_a_file_that_is_missing_is_named(paths: list[Path], at: int) -> None:
    paths[at].unlink()
    with pytest.raises(FileNotFoundError) as caught:
        copperfs.read_many(paths)
    assert caught.value.filename == str(paths[at])
    # The error's frames live on, so nothing was left to the collector.
    assert still_open(paths[at].parent) == []


def test_a_directory_is_named(paths: list[Path]) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        copperfs.read_many([paths[3], paths[3].parent, paths[4]])
    assert caught.value.filename == str(paths[3].parent)


@pytest.mark.parametrize("length", [None, 20])
def test_a_file_that_cannot_be_read_is_named(paths: list[Path], length: int | None) -> None:
    # No page lies at the beginning of a process's memory.
    ranges = [
        *(Range(str(path)) for path in paths[:40]),
        Range("/proc/self/mem", 0, length),
        Range(str(paths[1])),
    ]
    with pytest.raises(OSError, match="'/proc/self/mem'") as caught:
        read_ranges(ranges)
    assert caught.value.errno == errno.EIO
    assert still_open(paths[0].parent) == []


@pytest.mark.parametrize("wrong", [3, None, b"\0".decode()])
def test_no_path_is_an_error(paths: list[Path], wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        copperfs.read_many([*paths, wrong])


def test_an_error_of_a_generator_is_passed_on(paths: list[Path]) -> None:
    def some() -> Iterator[Path]:
        yield from paths
        raise LookupError

    with pytest.raises(LookupError):
        copperfs.read_many(some())


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.skipif(sys.gettrace() is not None, reason="SKIPPED: another tracer runs")
def test_an_interrupt_anywhere_leaves_nothing_open(paths: list[Path]) -> None:
    steps = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != read_ahead.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    def is_interrupted() -> bool:
        sys.settrace(trace)
        try:
            copperfs.read_many(paths[:6])
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    left = 1
    while is_interrupted():
        assert still_open(paths[0].parent) == []
        steps += 1
        left = steps + 1
    assert steps > 500


def test_few_descriptors_are_enough(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [path.read_bytes() for path in paths]
    opened = Open(monkeypatch)
    for count in (1, 2, 3, 10, 30):
        with free_descriptors(count):
            assert copperfs.read_many(paths) == expected
    assert 1 < opened.most < 64


def test_half_of_the_last_descriptors_are_left_to_others(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = read_ahead._OpenRange.read
    left: list[int] = []

    def count_left(one: Any) -> bytes:
        others = []
        with contextlib.suppress(OSError):
            while True:
                others.append(os.dup(0))
        for other in others:
            os.close(other)
        left.append(len(others))
        return read(one)

    monkeypatch.setattr(read_ahead._OpenRange, "read", count_left)
    with free_descriptors(30):
        copperfs.read_many(paths)
    assert min(left[-60:]) >= 15


def test_no_descriptor_is_an_error(paths: list[Path]) -> None:
    with free_descriptors(0), pytest.raises(OSError, match="Too many open files") as caught:
        copperfs.read_many(paths)
    assert caught.value.filename == str(paths[0])


def test_files_and_bytes_ahead_are_bounded(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [path.read_bytes() for path in paths]
    opened = Open(monkeypatch)
    assert copperfs.read_many(paths) == expected
    assert opened.most == 64
    assert opened.now == []
    monkeypatch.setattr(read_ahead, "_BYTES_AHEAD", 50_000)
    opened.most = opened.most_bytes = 0
    assert copperfs.read_many(paths) == expected
    assert 1 < opened.most < 64
    assert 50_000 <= opened.most_bytes < 100_000


def test_a_large_file_is_requested_in_part(tmp_path: Path, asked: list[tuple[int, int]]) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    small.write_bytes(b"small")
    with open(large, "wb") as file:
        file.truncate(70 << 20)
        file.seek(50 << 20)
        file.write(b"middle")
    first, second, third = copperfs.read_many([small, large, small])
    assert (first, third) == (b"small", b"small")
    assert len(second) == 70 << 20
    assert second.find(b"middle") == 50 << 20
    assert asked == [(0, 5), (0, 16 << 20), (0, 5)]


def test_ranges_are_requested_and_nothing_of_empty_ones(
    paths: list[Path], asked: list[tuple[int, int]]
) -> None:
    path = str(paths[10])
    read_ranges([Range(path, 7, 20), Range(path, 7, 0), Range(path, 30, 2)])
    assert asked == [(7, 20), (30, 2)]


def test_a_single_file_is_not_requested_ahead(paths: list[Path], asked: list[tuple[int, int]]) -> None:
    assert copperfs.read_many(paths[3:4]) == [paths[3].read_bytes()]
    assert asked == []


def test_without_a_way_to_ask_files_are_read_one_by_one(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [path.read_bytes() for path in paths]
    monkeypatch.setattr(read_ahead, "_fadvise", None)
    with free_descriptors(1):
        assert copperfs.read_many(paths) == expected

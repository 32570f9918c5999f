"""Files from a daemon in batches: contents, files that are left to the paths, and daemons that fail."""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import numpy as np
import pytest

from copperfs.batch_reads import _REGION_BYTES, BatchReader, read_ranges, root_of
from copperfs.errors import UnavailableError
from copperfs.read_ahead import Range

_NUMBERS = itertools.count()


class Server:
    """Serves files to clients, as docs/client.md says.

    `failures` has an errno for paths that are not given. `refusal` is the answer to a hello. `broken` gets
    an answer before it is sent, and returns the bytes to send in its place; none: the connection ends.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.name = f"copperfs-batch-test-{os.getpid()}-{next(_NUMBERS)}"
        self.files = files
        self.failures: dict[str, int] = {}
        self.refusal = 0
        self.broken: Callable[[bytes], bytes] = bytes
        self.batches: list[list[str]] = []
        self.clients = 0
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("\0" + self.name + ".files")
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        for one in [self._listener, *self._open]:
            one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(link)
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        hello, descriptors, _, _ = socket.recv_fds(link, 12, 2)
        assert hello == b"copperfs" + struct.pack("<I", 1)
        file, directory = descriptors
        self.clients += 1
        link.send(struct.pack("<Ii", 1, self.refusal))
        memory = mmap.mmap(file, os.fstat(file).st_size)
        os.close(file)
        os.close(directory)
        try:
            while request := link.recv(1 << 17):
                answer = self.broken(self._answer(request, memory))
                if not answer:
                    break
                link.send(answer)
        except OSError:
            pass
        finally:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def _answer(self, request: bytes, memory: mmap.mmap) -> bytes:
        number, start, room, count = struct.unpack_from("<QQQI", request)
        assert start + room <= len(memory)
        position, at, names = 28, start, []
        answer = struct.pack("<QI", number, count)
        for _ in range(count):
            offset, length, path_bytes = struct.unpack_from("<QQH", request, position)
            position += 18
            name = request[position : position + path_bytes].decode()
            position += path_bytes
            names.append(name)
            failure = self.failures.get(name, 0 if name in self.files else errno.ENOENT)
            data = self.files.get(name, b"")[offset:][:length]
            if not failure and at + len(data) > start + room:
                failure = errno.ENOSPC
            if failure:
                answer += struct.pack("<iQQ", failure, 0, 0)
                continue
            memory[at : at + len(data)] = data
            answer += struct.pack("<iQQ", 0, at, len(data))
            at += len(data)
        assert position == len(request)
        self.batches.append(names)
        return answer


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server({f"d/{number}": b"%d," % number * number for number in range(300)})
    yield served
    served.stop()


@pytest.fixture
def reader(server: Server, tmp_path: Path) -> Iterator[BatchReader]:
    made = BatchReader(str(tmp_path), lambda: server.name)
    yield made
    made.close()


def ranges(root: Path, names: list[str]) -> list[Range]:
    return [Range(str(root / name)) for name in names]


def test_files_come_in_their_order(server: Server, reader: BatchReader, tmp_path: Path) -> None:
    names = [f"d/{number}" for number in reversed(range(300))]
    assert reader.read(ranges(tmp_path, names)) == [server.files[name] for name in names]
    assert sorted(map(len, server.batches)) == [44, 64, 64, 64, 64]
    part = Range(str(tmp_path / "d/100"), 4, 8)
    assert reader.read([part, part]) == [server.files["d/100"][4:12]] * 2
    assert reader.read([]) == []
    assert server.clients == 1


def test_what_is_not_given_is_read_by_the_path(server: Server, reader: BatchReader, tmp_path: Path) -> None:
    server.failures["d/7"] = errno.EACCES
    (tmp_path / "d").mkdir()
    for name in ("d/7", "d/8", "d/other"):
        (tmp_path / name).write_text(f"the path's {name}")
    paths = [str(tmp_path / "d/7"), str(tmp_path / "d/8"), str(tmp_path / "d/other")]
    # Only the mount follows names that lead up.
    paths += [str(tmp_path / "d/../d/8"), str(tmp_path) + "/./d/8"]
    found = read_ranges(reader, [Range(path) for path in paths])
    assert found[:2] == [b"the path's d/7", server.files["d/8"]]
    assert found[2:] == [b"the path's d/other", b"the path's d/8", b"the path's d/8"]
    with pytest.raises(FileNotFoundError, match="d/absent"):
        read_ranges(reader, ranges(tmp_path, ["d/8", "d/absent"]))


def test_files_that_do_not_fit_are_asked_for_again(
    server: Server, reader: BatchReader, tmp_path: Path
) -> None:
    large = _REGION_BYTES // 3 + 1
    server.files.update({f"large{number}": bytes([number]) * large for number in range(7)})
    server.files["too-large"] = b"x" * (_REGION_BYTES + 1)
    names = [*(f"large{number}" for number in range(7)), "too-large", "d/5"]
    found = reader.read(ranges(tmp_path, names))
    assert found == [*(server.files[f"large{number}"] for number in range(7)), None, server.files["d/5"]]
    # With their lengths they are divided beforehand.
    server.batches.clear()
    known = [Range(str(tmp_path / f"large{number}"), 0, large) for number in range(7)]
    assert reader.read(known) == found[:7]
    assert [len(batch) for batch in server.batches] == [2, 2, 2, 1]
    assert reader.read([Range(str(tmp_path / "too-large"), 0, _REGION_BYTES + 1)]) == [None]


def test_lent_memory_is_used_again_when_it_is_let_go(
    server: Server, reader: BatchReader, tmp_path: Path
) -> None:
    names = [f"d/{number}" for number in range(64)]
    expected = [server.files[name] for name in names]
    wanted = ranges(tmp_path, names)
    kept = [reader.read(wanted, copy=False) for _ in range(6)]
    assert [[bytes(data) for data in one] for one in kept] == [expected] * 6
    # Two regions stay for further calls, which get copies.
    assert [isinstance(one[5], np.ndarray) for one in kept] == [True, True, False, False, False, False]
    with pytest.raises(ValueError, match="read-only"):
        kept[0][5][0] = 1
    # One array of a region keeps it.
    last = kept[0][63]
    del kept[0]
    assert isinstance(reader.read(wanted, copy=False)[5], bytes)
    assert bytes(last) == expected[63]
    del last
    assert isinstance(reader.read(wanted, copy=False)[5], np.ndarray)
    # It outlives the connection.
    reader.close()
    assert [bytes(data) for data in kept[0]] == expected
    assert server.clients == 1
    assert [bytes(data) for data in read_ranges(reader, wanted, copy=False)] == expected
    single = read_ranges(None, [Range(str(tmp_path / "single"))][:0], copy=False)
    assert single == []


@pytest.mark.parametrize(
    "broken",
    [
        lambda answer: b"",
        lambda answer: answer[:-1],
        lambda answer: b"\xff" * 8 + answer[8:],
        lambda answer: answer[:12] + struct.pack("<iQQ", 0, 1 << 40, 10) * 2,
        lambda answer: answer[:12] + struct.pack("<iQQ", 0, 0, _REGION_BYTES + 1) * 2,
        lambda answer: answer[:12] + struct.pack("<iQQ", 0, (1 << 64) - 1, 2) * 2,
    ],
)
def test_a_daemon_that_fails_costs_the_batch(
    server: Server, reader: BatchReader, tmp_path: Path, broken: Callable[[bytes], bytes]
) -> None:
    wanted = ranges(tmp_path, ["d/1", "d/2"])
    server.broken = broken
    assert reader.read(wanted) == [None, None]
    server.broken = bytes
    assert reader.read(wanted) == [b"1,", b"2,2,"]


def test_without_a_place_it_is_left_alone(server: Server, reader: BatchReader, tmp_path: Path) -> None:
    server.refusal = errno.EAGAIN
    for _ in range(3):
        assert reader.read(ranges(tmp_path, ["d/1", "d/2"])) == [None, None]
    assert server.clients == 1

    def none_there() -> str:
        raise UnavailableError("no mount")

    assert BatchReader(str(tmp_path), none_there).read(ranges(tmp_path, ["d/1"])) == [None]


def test_a_daemon_that_is_followed_by_another_serves_on(
    server: Server, reader: BatchReader, tmp_path: Path
) -> None:
    wanted = ranges(tmp_path, ["d/1", "d/2"])
    assert None not in reader.read(wanted)
    name = server.name
    server.stop()
    server.__init__(server.files)  # type: ignore[misc]
    assert server.name != name
    # The first request meets the end of the old connection.
    assert reader.read(wanted) == [None, None]
    assert None not in reader.read(wanted)


def test_forked_and_pickled_readers_connect_themselves(
    server: Server, reader: BatchReader, tmp_path: Path
) -> None:
    wanted = ranges(tmp_path, ["d/1", "d/2"])
    assert None not in reader.read(wanted)
    child = os.fork()
    if child == 0:
        os._exit(0 if None not in reader.read(wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert None not in reader.read(wanted)
    assert server.clients == 2
    by_name = BatchReader(str(tmp_path), server.name.__str__)
    assert None not in pickle.loads(pickle.dumps(by_name)).read(wanted)


def test_threads_take_turns(server: Server, reader: BatchReader, tmp_path: Path) -> None:
    names = [f"d/{number}" for number in range(100)]
    wrong = []

    def read() -> None:
        for _ in range(10):
            if reader.read(ranges(tmp_path, names)) != [server.files[name] for name in names]:
                wrong.append(1)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert server.clients == 1


def test_the_root_of_a_mount_is_found(tmp_path: Path) -> None:
    assert root_of("/proc/self/fd") == "/proc"
    assert root_of("/proc") == "/proc"
    assert root_of("/") == "/"

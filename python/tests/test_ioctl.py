"""The ioctl interface, without a mount: its numbers, and every way in which a mount can fail to answer."""

from __future__ import annotations

import errno
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from copperfs import CopperError, UnavailableError, ioctl

HEADER = Path(__file__).parents[2] / "fuse/include/copperfs_ioctl.h"


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes any path a mount whose ioctl is the given function."""
    monkeypatch.setattr(ioctl, "_check_mount", lambda path: None)

    def behave(call: Any) -> None:
        monkeypatch.setattr(ioctl.fcntl, "ioctl", lambda handle, number, buffer, _: call(number, buffer))

    return behave


def test_the_structs_are_those_of_the_header() -> None:
    header = HEADER.read_text()
    defined = {name: int(value) for name, value in re.findall(r"#define (COPPERFS_\w+) (\d+)u?\n", header)}
    assert defined["COPPERFS_ABI"] == ioctl._ABI
    assert defined["COPPERFS_PATH_MAX"] == ioctl._PATH_BYTES_MAX
    assert defined["COPPERFS_CLEAR_CLUSTER"] == ioctl._CLEAR_CLUSTER
    assert (ioctl._SOCKETS.size, ioctl._CLEAR.size) == (8 + 2 * 112, 16 + 4096)
    # As the C compiler makes them of _IOR(0xC7, 4, …) and _IOW(0xC7, 3, …).
    assert (ioctl._READ_SOCKETS, ioctl._WRITE_CLEAR) == (0x80E8C704, 0x5010C703)


def test_the_users_socket_is_read(mounted: Any, tmp_path: Path) -> None:
    def sockets(number: int, buffer: bytearray) -> int:
        assert number == ioctl._READ_SOCKETS
        buffer[:] = ioctl._SOCKETS.pack(2, 0, b"/run/owner", b"copperfs-users")
        return 0

    mounted(sockets)
    assert ioctl.users_socket(str(tmp_path)) == "copperfs-users"


def test_a_daemon_of_another_version_is_not_understood(mounted: Any, tmp_path: Path) -> None:
    def sockets(_: int, buffer: bytearray) -> int:
        buffer[:4] = (3).to_bytes(4, "little")
        return 0

    mounted(sockets)
    with pytest.raises(UnavailableError, match="speaks version 3 of the ioctl interface, this package 2"):
        ioctl.users_socket(str(tmp_path))


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOTCONN, "its daemon is gone; `copperfs unmount`"),
        (errno.ENOTTY, "its daemon is of another release"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_failure_says_what_to_do(mounted: Any, tmp_path: Path, number: int, message: str) -> None:
    def fails(*_: object) -> int:
        raise OSError(number, errno.errorcode[number] if number != errno.EIO else "Input/output error")

    mounted(fails)
    for ask in (lambda: ioctl.users_socket(str(tmp_path)), lambda: ioctl.clear(str(tmp_path), "a", False)):
        with pytest.raises(UnavailableError, match=message):
            ask()


def test_a_daemon_that_hangs_does_not_hold_the_caller(
    mounted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ioctl, "_SECONDS_MAX", 0.1)
    ended = threading.Event()
    mounted(lambda *_: ended.wait(10))
    begin = time.monotonic()
    with pytest.raises(UnavailableError, match=r"has not answered for 0\.1 s"):
        ioctl.users_socket(str(tmp_path))
    # The daemon hangs for 10 s.
    assert time.monotonic() - begin < 8
    ended.set()


def test_clearing_names_the_path(mounted: Any, tmp_path: Path) -> None:
    orders = []

    def cleared(number: int, buffer: bytearray) -> int:
        orders.append((number, ioctl._CLEAR.unpack(buffer)))
        return 1

    mounted(cleared)
    assert ioctl.clear(str(tmp_path), "data/a", True)
    assert orders == [(ioctl._WRITE_CLEAR, (2, 1, 6, 0, b"data/a".ljust(4096, b"\0")))]


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.EPERM, "only the owner of the mount"), (errno.ENOENT, "no origin of .* holds")],
)
def test_clearing_may_be_refused(mounted: Any, tmp_path: Path, number: int, message: str) -> None:
    def refuses(*_: object) -> int:
        raise OSError(number, "")

    mounted(refuses)
    with pytest.raises(CopperError, match=message):
        ioctl.clear(str(tmp_path), "a", False)


def test_other_filesystems_get_no_ioctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ioctl.fcntl, "ioctl", lambda *_: pytest.fail("an ioctl was sent"))
    with pytest.raises(UnavailableError, match="is not on a copperfs mount"):
        ioctl.users_socket(str(tmp_path))

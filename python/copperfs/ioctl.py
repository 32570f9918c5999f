"""The ioctl interface of a mount (fuse/include/copperfs_ioctl.h): where its sockets are, and clearing."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from typing import Callable, TypeVar

from .errors import CopperError, UnavailableError

_ABI = 2
_GROUP = 0xC7
_PATH_BYTES_MAX = 4096
_ADDRESS_BYTES = 112
_CLEAR_CLUSTER = 1
_FSTYPE = "fuse.copperfs"
# A daemon that hangs holds a caller of ioctl in the kernel for as long as it hangs.
_SECONDS_MAX = 5.0

_SOCKETS = struct.Struct(f"=II{_ADDRESS_BYTES}s{_ADDRESS_BYTES}s")
_CLEAR = struct.Struct(f"=IIII{_PATH_BYTES_MAX}s")
_READ_SOCKETS = (2 << 30) | (_SOCKETS.size << 16) | (_GROUP << 8) | 4
_WRITE_CLEAR = (1 << 30) | (_CLEAR.size << 16) | (_GROUP << 8) | 3

T = TypeVar("T")


def users_socket(path: str) -> str:
    """Returns the name of the abstract socket for users of the mount that holds `path`.

    Raises `UnavailableError` if there is no such mount, or its daemon is gone or hangs.
    """

    def ask() -> bytes:
        _check_mount(path)
        buffer = bytearray(_SOCKETS.size)
        _call(path, _READ_SOCKETS, buffer)
        return bytes(buffer)

    abi, _, _, users = _SOCKETS.unpack(_within(_SECONDS_MAX, path, ask))
    if abi != _ABI:
        raise UnavailableError(
            f"the daemon of {path} speaks version {abi} of the ioctl interface, this package {_ABI}",
            "use the package and the program of one release",
        )
    name: str = users.split(b"\0", 1)[0].decode()
    return name


def clear(mount: str, path: str, cluster: bool) -> bool:
    """Drops the cached part of `path`, given relative to the mount; of everything if it is empty.

    Returns whether anything of it was cached. Raises `CopperError` if this user may not.
    """
    name = os.fsencode(path)
    if len(name) > _PATH_BYTES_MAX:
        raise CopperError(f"the path to clear has {len(name)} bytes, and {_PATH_BYTES_MAX} is the limit")
    flags = _CLEAR_CLUSTER if cluster else 0
    order = bytearray(_CLEAR.pack(_ABI, flags, len(name), 0, name))
    try:
        _check_mount(mount)
        return bool(_call(mount, _WRITE_CLEAR, order))
    except PermissionError as error:
        raise CopperError(f"only the owner of the mount {mount} and root may clear it") from error
    except FileNotFoundError as error:
        raise CopperError(f"no origin of {mount} holds {path!r}") from error
    except OSError as error:
        raise _unavailable(mount, error) from error


def _call(path: str, number: int, buffer: bytearray) -> int:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(fcntl.ioctl(handle, number, buffer, True))
    finally:
        os.close(handle)


def _check_mount(path: str) -> None:
    """No other driver may get these commands: their numbers may mean another thing there."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", "rb") as table:
        for line in table:
            fields, _, behind = line.decode("utf-8", "surrogateescape").partition(" - ")
            if fields.split()[2] == number and behind.split()[0] == _FSTYPE:
                return
    raise UnavailableError(
        f"{path} is not on a copperfs mount", "give the mount point of `copperfs mount`, or a path below it"
    )


def _within(seconds: float, path: str, ask: Callable[[], T]) -> T:
    """Returns the result of `ask`, called on a thread that is left behind if it hangs in the kernel."""
    results: list[T] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            results.append(ask())
        except Exception as error:
            failures.append(error)

    asking = threading.Thread(target=run, name="copperfs-ioctl", daemon=True)
    asking.start()
    asking.join(seconds)
    if results:
        return results[0]
    if not failures:
        raise UnavailableError(f"the mount at {path} has not answered for {seconds:g} s")
    if isinstance(failures[0], OSError):
        raise _unavailable(path, failures[0]) from failures[0]
    raise failures[0]


def _unavailable(path: str, error: OSError) -> UnavailableError:
    if error.errno == errno.ENOTCONN:
        why, advice = "its daemon is gone", "`copperfs unmount` removes the mount"
    elif error.errno == errno.ENOTTY:
        why, advice = "its daemon is of another release", "use the package of the same release"
    else:
        why, advice = error.strerror or str(error), ""
    return UnavailableError(f"no daemon at {path}: {why}", advice)

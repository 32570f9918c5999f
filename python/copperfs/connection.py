"""A connection to the daemon's socket for users: HTTP/1.1 over an abstract Unix socket.

No request hangs: each has a time limit for its whole answer, however slowly it drips. An answer is read
up to a limit of bytes. After a failure, requests fail at once for a while, so that a daemon that hangs
costs a training job one time limit, and not one per mini-batch.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from typing import Any, Callable, NamedTuple

from .errors import DaemonError, UnavailableError

#: Bytes of a request or of an answer. The daemon refuses larger requests.
BODY_BYTES_MAX = 64 << 20
# Room for the lengths between the pieces of an answer.
_ANSWER_BYTES_MAX = BODY_BYTES_MAX + (1 << 20)
# How long requests fail at once after one that failed: doubled by each further failure.
_REST_SECONDS, _REST_SECONDS_MAX = 1.0, 30.0


class Answer(NamedTuple):
    """An answer of status 2xx or 304."""

    status: int
    body: bytes
    etag: str | None

    def fields(self) -> dict[str, Any]:
        """Returns the decoded body. Raises `UnavailableError` if it is not a JSON object."""
        try:
            found = json.loads(self.body)
        except ValueError as error:
            raise UnavailableError(f"the daemon's answer is not JSON ({error})") from error
        if not isinstance(found, dict):
            raise UnavailableError("the daemon's answer is not a JSON object")
        return found


class _LimitedSocket(socket.socket):
    """A socket all of whose operations together end at `deadline`, on the monotonic clock."""

    deadline = 0.0

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self.limit()
        return super().recv_into(*args, **kwargs)

    def limit(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise socket.timeout("timed out")
        self.settimeout(left)


class _AbstractConnection(http.client.HTTPConnection):
    sock: Any

    def __init__(self, name: str, deadline: float) -> None:
        super().__init__("localhost")
        self._name = name
        self._deadline = deadline

    def begin(self, deadline: float) -> None:
        """Limits the next request, and connects if need be."""
        self._deadline = deadline
        if self.sock is None:
            self.connect()
        self.sock.deadline = deadline
        self.sock.limit()

    def connect(self) -> None:
        link = _LimitedSocket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.deadline = self._deadline
        try:
            link.limit()
            link.connect("\0" + self._name)
        except BaseException:
            link.close()
            raise
        self.sock = link


class Connection:
    """A connection that is made when it is needed, kept, and made again after a fork or a failure.

    `locate` returns the name of the abstract socket. It is asked again only when no daemon listens under the
    name that it gave. Threads take turns.
    """

    _process: int
    _lock: threading.Lock
    _link: _AbstractConnection | None
    _failures: int
    _rests_until: float
    _trouble: str

    def __init__(self, locate: Callable[[], str]) -> None:
        self._locate = locate
        self._name: str | None = None
        self._begin()

    def __reduce__(self) -> tuple[type[Connection], tuple[Callable[[], str]]]:
        return Connection, (self._locate,)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        seconds: float = 1.0,
    ) -> Answer:
        """Sends a request and returns its answer.

        Raises `DaemonError` with the daemon's own words if it refuses, `UnavailableError` if no answer has
        come after `seconds`.
        """
        if self._process != os.getpid():
            # The parent's connection must not be used, and its lock may be held for ever.
            self._begin()
        with self._lock:
            if time.monotonic() < self._rests_until:
                raise UnavailableError(f"the daemon is not asked again so soon ({self._trouble})")
            try:
                deadline = time.monotonic() + seconds
                answer = self._exchange(deadline, method, path, body, headers or {})
            except (OSError, http.client.HTTPException, UnavailableError) as error:
                raise self._failed(method, path, seconds, error) from error
            except BaseException:
                # Ctrl-C: the answer is still to come, and must not be taken for that of the next request.
                self.close()
                raise
            self._failures = 0
        if answer.status >= 300 and answer.status != 304:
            raise _refusal(answer)
        return answer

    def close(self) -> None:
        """Closes the connection. The next request opens another."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._link = None
        self._rests_until = 0.0
        self._failures = 0
        self._trouble = ""

    def _failed(self, method: str, path: str, seconds: float, error: Exception) -> UnavailableError:
        self.close()
        rest = min(_REST_SECONDS * 2**self._failures, _REST_SECONDS_MAX)
        self._failures = min(self._failures + 1, 16)
        self._rests_until = time.monotonic() + rest
        if isinstance(error, socket.timeout):
            self._trouble = f"no answer within {seconds:g} s"
        elif isinstance(error, http.client.HTTPException):
            # Its text would be the bytes that came.
            self._trouble = f"the answer is not HTTP ({type(error).__name__})"
        else:
            self._trouble = str(error)
        return UnavailableError(
            f"{method} {path} failed: {self._trouble}", "`copperfs status` shows whether the daemon runs"
        )

    def _exchange(self, deadline: float, *request: Any) -> Answer:
        while True:
            kept, named = self._link is not None, self._name is not None
            try:
                return self._try_once(deadline, *request)
            except ConnectionError as error:
                self.close()
                refused = isinstance(error, ConnectionRefusedError)
                if refused:
                    self._name = None
                # The daemon closes connections that are idle, and the next daemon has another name. Only the
                # failure of a fresh connection to a fresh name counts, so this ends.
                if not kept and not (named and refused):
                    raise

    def _try_once(self, deadline: float, *request: Any) -> Answer:
        if self._name is None:
            self._name = self._locate()
        if self._link is None:
            self._link = _AbstractConnection(self._name, deadline)
        link = self._link
        link.begin(deadline)
        link.request(*request)
        with link.getresponse() as response:
            data = response.read(_ANSWER_BYTES_MAX + 1)
            if len(data) > _ANSWER_BYTES_MAX:
                raise UnavailableError(f"the daemon's answer is larger than {_ANSWER_BYTES_MAX} bytes")
            if response.length:
                raise http.client.IncompleteRead(data, response.length)
            return Answer(response.status, data, response.headers.get("ETag"))


def _refusal(answer: Answer) -> DaemonError:
    try:
        said = json.loads(answer.body)
        message, advice = said["error"], said.get("advice") or said.get("try") or ""
        return DaemonError(answer.status, str(message), str(advice))
    except (ValueError, KeyError, TypeError, AttributeError):
        return DaemonError(answer.status, f"the daemon answered {answer.status} without a reason")

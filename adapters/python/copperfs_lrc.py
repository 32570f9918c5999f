"""The part that all engine adapters in Python share: a connection to `copperfs lrc run`, and a table of jobs.

An adapter describes its work as jobs of tasks that read files of a dataset. `copperfs lrc run` listens on a
Unix socket and turns this into reference counts, which decide about evictions. A wrong or missing count
costs a read from storage, never a byte, so everything here prefers the engine over the counts:

- A thread of its own sends the lines. The engine's threads only put work into a bounded queue.
- Nothing here raises into the engine.

This file needs the standard library only, and runs with Python 3.9.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import queue
import secrets
import socket
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Protocol, Union

log = logging.getLogger("copperfs.lrc")

CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 5.0
# How long the end of the engine waits for the last lines.
CLOSE_TIMEOUT_S = 5.0
# Events that wait for the thread. When it is full, further events are dropped: their references stay until
# the job ends.
QUEUE_EVENTS_MAX = 65_536
# Lines written before their answers are read. Answers are short, so they fit the socket's buffer.
BATCH_LINES_MAX = 256
# How long a tracker waits for further events before it settles those that may cancel each other.
SETTLE_S = 0.1

Line = dict[str, Any]
# (absolute path, offset, length); a whole file has no range.
Read = tuple[str, Optional[int], Optional[int]]
# (path below the dataset's root, offset, length, is a directory)
Input = tuple[str, Optional[int], Optional[int], bool]
Work = Callable[[], Union[Iterable[Line], None]]


@dataclass(frozen=True)
class Settings:
    """The variables that `copperfs lrc run` sets."""

    socket: str
    root: str
    dataset: str
    app: str
    consume: str

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Settings | None:
        """Returns None when the process was not started by `copperfs lrc run`."""
        path, root = environ.get("COPPERFS_LRC_SOCKET"), environ.get("COPPERFS_LRC_ROOT")
        if not path or not root:
            return None
        return cls(
            socket=path,
            root=root,
            dataset=environ.get("COPPERFS_LRC_DATASET", ""),
            app=environ.get("COPPERFS_LRC_APP") or "app",
            consume=environ.get("COPPERFS_LRC_CONSUME", ""),
        )

    def run_id(self) -> str:
        """Returns a name for this run that no other run of the same application has."""
        return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(4)}"


class Once:
    """Logs a warning the first time that it is called with some kind of trouble."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def warn(self, kind: str, message: str, *args: object, exc_info: bool = False) -> None:
        """Logs `message` unless `kind` was logged before."""
        if kind not in self._said:
            self._said.add(kind)
            log.warning("copperfs: " + message, *args, exc_info=exc_info)


once = Once()


class Paths:
    """Maps the paths that an engine uses to paths below the dataset's root. Not for use by several threads.

    Directories are resolved once and remembered. This is correct because the dataset is read-only while it is
    mounted, and a wrong answer costs a read only.
    """

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)
        self._prefix = self._root.rstrip("/") + "/"
        self._directories: dict[str, str] = {}
        self._known: dict[tuple[str, str], list[Input]] = {}
        self._sizes: dict[str, int] = {}

    def inputs(self, path: str, cwd: str) -> list[Input]:
        """Returns the dataset's file or directory at `path`.

        The list is empty for a path outside of the dataset, and for one that does not exist. The root
        itself has no name below the root, so its entries stand for it.
        """
        key = (path, "" if path.startswith("/") else cwd)
        known = self._known.get(key)
        if known is None:
            try:
                known = list(self._resolve(path, cwd))
            except (OSError, ValueError):
                # ValueError: a NUL in the name, or bytes that are not UTF-8 and so have no place in JSON.
                known = []
            self._known[key] = known
        return known

    def part(self, whole: Input, offset: int | None, length: int | None) -> Input | None:
        """Returns a range of an input, cut at the end of the file, or None if nothing is left of it."""
        name, _, _, directory = whole
        if directory or offset is None or length is None:
            return whole
        length = min(length, self._sizes[name] - offset)
        if length <= 0:
            return None
        return whole if length == self._sizes[name] else (name, offset, length, False)

    def _resolve(self, path: str, cwd: str) -> Iterator[Input]:
        if path.startswith("file://"):
            path = path[len("file://") :]
        elif "://" in path:
            return
        path.encode("utf-8")
        full = self._real(os.path.join(cwd, path))
        if full == self._root:
            for name in sorted(os.listdir(full)):
                yield from self._resolve(self._prefix + name, "/")
        elif full.startswith(self._prefix):
            info, name = os.stat(full), full[len(self._prefix) :]
            self._sizes[name] = info.st_size
            yield name, None, None, stat.S_ISDIR(info.st_mode)

    def _real(self, path: str) -> str:
        head, tail = os.path.split(path)
        if tail in ("", ".", ".."):
            return os.path.realpath(path)
        if head not in self._directories:
            self._directories[head] = os.path.realpath(head)
        full = os.path.join(self._directories[head], tail)
        return os.path.realpath(full) if os.path.islink(full) else full


@dataclass
class Task:
    """A task of a job, by the files of the dataset that it reads."""

    id: str
    inputs: list[Input]
    after: list[str] = field(default_factory=list)


class Job:
    """The tasks of one job and which of them still hold references. Its methods return the lines to send.

    Lives in the sender's thread.
    """

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self.name = name
        self.attempt = -1
        self.tasks: dict[str, Task] = {}
        self.pending: set[str] = set()
        self.ended = False

    def submit(self, tasks: Iterable[Task]) -> list[Line]:
        """Returns the lines of a further attempt that has these tasks."""
        self.tasks = {task.id: task for task in tasks}
        self.pending = set(self.tasks)
        return [self._submission(list(self.tasks.values()))]

    def again(self, ids: Iterable[str]) -> list[Line]:
        """Returns the lines that give ended tasks their references back.

        A task that has ended can hold references only in a further attempt, so that attempt lists the
        pending tasks too.
        """
        self.pending.update(task for task in ids if task in self.tasks)
        return [self._submission([task for name, task in self.tasks.items() if name in self.pending])]

    def _submission(self, tasks: list[Task]) -> Line:
        self.attempt += 1
        self.ended = False
        line: Line = {
            "v": 1,
            "op": "submit",
            "app": self._settings.app,
            "job": self.name,
            "attempt": self.attempt,
        }
        if self._settings.dataset:
            line["dataset"] = self._settings.dataset
        if self._settings.consume:
            line["consume"] = self._settings.consume
        listed = {task.id for task in tasks}
        # Directories have no place in a table of files, and one submission uses one of the two forms.
        by_path = any(directory for task in tasks for _, _, _, directory in task.inputs)
        files: dict[str, int] = {}
        rows = []
        for task in tasks:
            row: Line = {"id": task.id, "after": [other for other in task.after if other in listed]}
            if by_path:
                row["inputs"] = [_by_path(given) for given in task.inputs]
            else:
                row["in"] = [_by_index(given, files) for given in task.inputs]
            rows.append(row)
        if not by_path:
            line["files"] = list(files)
        line["tasks"] = rows
        return line

    def done(self, task: str) -> list[Line]:
        """Returns the lines for a task that has ended, with or without success."""
        if task not in self.pending:
            return []
        self.pending.discard(task)
        return [{"v": 1, "op": "done", "job": self.name, "task": task}]

    def failed(self, task: str) -> list[Line]:
        """Returns the lines for a task that has failed and will run again."""
        if task not in self.pending:
            return []
        return [{"v": 1, "op": "taskfail", "job": self.name, "task": task}]

    def end(self) -> list[Line]:
        """Returns the lines that end the job. A later attempt makes it live again."""
        if self.ended or self.attempt < 0:
            return []
        self.ended = True
        self.pending.clear()
        return [{"v": 1, "op": "end", "job": self.name}]


def _by_path(given: Input) -> Line:
    path, offset, length, directory = given
    row: Line = {"path": path}
    if offset is not None and length is not None:
        row.update(off=offset, len=length)
    if directory:
        row["recursive"] = True
    return row


def _by_index(given: Input, files: dict[str, int]) -> int | list[int]:
    path, offset, length, _ = given
    index = files.setdefault(path, len(files))
    return index if offset is None or length is None else [index, offset, length]


class Settles(Protocol):
    """State of an adapter that defers events for a moment."""

    def waits(self) -> bool:
        """Returns true if there are deferred events."""

    def settle(self) -> Iterable[Line]:
        """Returns the lines of the deferred events."""


class Sender:
    """Runs the adapter's work in a thread and sends the lines that it returns."""

    def __init__(self, settings: Settings, settles: Settles | None = None) -> None:
        self._settings = settings
        self._settles = settles
        self._settle_at: float | None = None
        self._queue: queue.Queue[Work | None] = queue.Queue(QUEUE_EVENTS_MAX)
        self._socket: socket.socket | None = None
        self._answers = b""
        self._broken = False
        self._closed = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="copperfs-lrc", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, work: Work) -> bool:
        """Takes work for the thread. Returns false, at once, when it cannot be taken.

        A forked child has no thread, and must not end the jobs of its parent.
        """
        if self._broken or self._closed or os.getpid() != self._pid:
            return False
        try:
            self._queue.put_nowait(work)
        except queue.Full:
            once.warn("full", "events come faster than they can be sent; some are dropped")
            return False
        return True

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Sends everything that was put before, for at most `timeout_s`, then closes the connection."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self.close)
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        open_ = True
        while open_:
            lines: list[Line] = []
            with contextlib.suppress(queue.Empty):
                work = self._queue.get(timeout=self._settle_in())
                while work is not None and len(lines) < BATCH_LINES_MAX:
                    lines.extend(self._lines_of(work))
                    work = self._queue.get_nowait()
                # Taken from the queue already, so it goes with this batch.
                if work is not None:
                    lines.extend(self._lines_of(work))
                open_ = work is not None
            if not open_ or self._settle_in() == 0:
                lines.extend(self._settled())
            for start in range(0, len(lines), BATCH_LINES_MAX):
                self._send(lines[start : start + BATCH_LINES_MAX])
        if self._socket is not None:
            self._socket.close()

    def _settle_in(self) -> float | None:
        if self._settles is None or not self._settles.waits():
            self._settle_at = None
            return None
        now = time.monotonic()
        if self._settle_at is None:
            self._settle_at = now + SETTLE_S
        return max(0.0, self._settle_at - now)

    def _settled(self) -> Iterable[Line]:
        self._settle_at = None
        return self._lines_of(self._settles.settle) if self._settles is not None else ()

    def _lines_of(self, work: Work) -> Iterable[Line]:
        if self._broken:
            return ()
        try:
            return work() or ()
        except Exception:
            # The adapter's own error: the references of this event are wrong, the engine is not.
            once.warn("work", "cannot follow the engine", exc_info=True)
            return ()

    def _send(self, lines: list[Line]) -> None:
        if self._broken:
            return
        try:
            connection = self._connection()
            for line in lines:
                # Each line has its own time limit, since a submission can be long.
                connection.sendall(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            for line in lines:
                answer = json.loads(self._answer(connection))
                if isinstance(answer, dict) and "error" in answer:
                    once.warn("refused", "%s was refused: %s", line["op"], answer["error"])
        except (OSError, ValueError) as error:
            self._broken = True
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            once.warn("broken", "no reference counts for this run: %s: %s", self._settings.socket, error)

    def _connection(self) -> socket.socket:
        if self._socket is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(CONNECT_TIMEOUT_S)
            try:
                connection.connect(self._settings.socket)
            except OSError:
                connection.close()
                raise
            connection.settimeout(ANSWER_TIMEOUT_S)
            self._socket = connection
        return self._socket

    def _answer(self, connection: socket.socket) -> bytes:
        while b"\n" not in self._answers:
            received = connection.recv(65_536)
            if not received:
                raise ConnectionError("closed by the other side")
            self._answers += received
        answer, _, self._answers = self._answers.partition(b"\n")
        return answer

"""A socket that records the lines of an adapter, and an audit of the files that processes read.

The audit is strace: it sees each open and each read of all processes and threads of an engine, however they
do it, and shares no code with the adapters.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

ADAPTERS = Path(__file__).resolve().parents[1]
STRIPE_BYTES = 4 << 20


class Recorder:
    """Listens as `copperfs lrc run` does, and applies the rules of replay to the lines."""

    def __init__(self, directory: Path, root: Path) -> None:
        self.path = directory / "lrc.sock"
        self.root = root
        self.lines: list[dict[str, Any]] = []
        # (job, task) -> its references, while it holds them.
        self.held: dict[tuple[str, str], frozenset[Any]] = {}
        self.live: set[str] = set()
        self.attempts: dict[str, int] = {}
        # References of each submission in order: job -> [{task: references}].
        self.submitted: dict[str, list[dict[str, frozenset[Any]]]] = defaultdict(list)
        # Events that name no task that holds references. They would take a count below 0.
        self.stray: list[dict[str, Any]] = []
        # Lines that break a rule of the contract.
        self.broken: list[str] = []
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as stream:
            for raw in stream:
                line = json.loads(raw)
                with self._lock:
                    try:
                        answer = self._apply(line)
                    except (AssertionError, LookupError, OSError) as error:
                        self.broken.append(f"{error!r}: {line}")
                        answer = {"error": repr(error)}
                stream.write(json.dumps(answer).encode() + b"\n")
                stream.flush()

    def _apply(self, line: dict[str, Any]) -> dict[str, Any]:
        self.lines.append(line)
        assert line["v"] == 1
        job = line["job"]
        if line["op"] == "submit":
            return self._submit(job, line)
        if job not in self.live:
            self.stray.append(line)
            return {"accepted": False}
        if line["op"] == "end":
            self.live.discard(job)
            self._drop(job)
        elif line["op"] == "done":
            if self.held.pop((job, line["task"]), None) is None:
                self.stray.append(line)
        elif (job, line["task"]) not in self.held:
            self.stray.append(line)
        return {"accepted": True}

    def _submit(self, job: str, line: dict[str, Any]) -> dict[str, Any]:
        assert line["attempt"] > self.attempts.get(job, -1), line
        assert ("files" in line) != any("inputs" in task for task in line["tasks"]), (
            "one form for a submission"
        )
        self.attempts[job] = line["attempt"]
        self._drop(job)
        self.live.add(job)
        ids = [task["id"] for task in line["tasks"]]
        assert len(ids) == len(set(ids)), "a task twice"
        tasks = {}
        for task in line["tasks"]:
            assert set(task["after"]) <= set(ids), "after names a task of the submission"
            tasks[task["id"]] = frozenset(self._references(task, line.get("files", [])))
            self.held[job, task["id"]] = tasks[task["id"]]
        self.submitted[job].append(tasks)
        return {"accepted": True, "blocks": sum(map(len, tasks.values())), "unknown_paths": []}

    def _references(self, task: dict[str, Any], files: list[str]) -> set[tuple[str, int]]:
        found: set[tuple[str, int]] = set()
        for given in task.get("in", []):
            index, start, length = given if isinstance(given, list) else (given, 0, None)
            found |= stripes(self.root, files[index], start, length)
        for given in task.get("inputs", []):
            path = given["path"]
            if given.get("recursive"):
                for name in (self.root / path).rglob("*"):
                    if name.is_file():
                        found |= stripes(self.root, str(name.relative_to(self.root)), 0, None)
            else:
                found |= stripes(self.root, path, given.get("off", 0), given.get("len"))
        return found

    def _drop(self, job: str) -> None:
        for key in [key for key in self.held if key[0] == job]:
            del self.held[key]

    def ops(self, op: str) -> list[dict[str, Any]]:
        """Returns the lines of one kind."""
        return [line for line in self.lines if line["op"] == op]

    def tasks(self) -> dict[str, frozenset[Any]]:
        """Returns the references of each task in its last submission that had it."""
        return {
            task: references
            for submissions in self.submitted.values()
            for tasks in submissions
            for task, references in tasks.items()
        }

    def assert_settled(self) -> None:
        """Checks that all counts are 0, that none was below, and that all jobs have ended."""
        assert self.broken == []
        assert self.held == {}
        assert self.live == set()
        assert self.stray == []

    def close(self) -> None:
        """Stops listening."""
        self._listener.close()


def stripes(root: Path, path: str, start: int, length: int | None) -> set[tuple[str, int]]:
    """Returns the stripes that a range of a file touches. An empty file has one, as it is read too."""
    size = (root / path).stat().st_size
    end = size if length is None else min(size, start + length)
    last = max(start, end - 1)
    return {(path, stripe) for stripe in range(start // STRIPE_BYTES, last // STRIPE_BYTES + 1)}


def environment(recorder: Recorder, **more: str) -> dict[str, str]:
    """Returns the variables that `copperfs lrc run` sets."""
    return {
        **os.environ,
        "COPPERFS_LRC_SOCKET": str(recorder.path),
        "COPPERFS_LRC_ROOT": str(recorder.root),
        "COPPERFS_LRC_DATASET": "warehouse",
        "COPPERFS_LRC_APP": "daily",
        "COPPERFS_LRC_CONSUME": "done",
        "PYTHONPATH": str(ADAPTERS),
        "PYTHONDONTWRITEBYTECODE": "1",
        **more,
    }


def program(name: str) -> str:
    """Returns a program of the environment that the tests run in."""
    path = Path(sys.executable).parent / name
    assert path.exists(), f"{path}: install adapters/python/requirements.txt"
    return str(path)


_CALL = re.compile(r"^(\d+)\s+(\w+)\((.*)\)\s+= (-?\d+|\?)(?:<(.*)>)?(?: .*)?$")
_RESUMED = re.compile(r"^(\d+)\s+<\.\.\. (\w+) resumed>\s?(.*)$")


class Audit:
    """The reads of a command and of all that it starts, by process."""

    TRACE = "open,openat,openat2,read,pread64,readv,preadv,preadv2,lseek,clone,clone3,fork,vfork,access"

    def __init__(self, log: Path, root: Path) -> None:
        self.log = log
        self.root = os.path.realpath(root)
        # Process -> its parent. Threads count as their process.
        self.parent: dict[int, int] = {}
        self._process: dict[int, int] = {}
        # (process, path, first byte, bytes, or none for an open) in order, and (process, marker).
        self.events: list[tuple[int, str, str, int, int]] = []
        self.main: int | None = None

    @classmethod
    def command(cls, log: Path, command: list[str]) -> list[str]:
        """Returns the command that runs `command` under strace."""
        strace = shutil.which("strace")
        assert strace is not None, "these tests need strace"
        return [
            strace,
            "-f",
            "-y",
            "-s",
            "256",
            "--seccomp-bpf",
            "-e",
            f"trace={cls.TRACE}",
            "-o",
            str(log),
            *command,
        ]

    def parse(self) -> Audit:
        """Reads the log of strace."""
        positions: dict[tuple[int, int], int] = {}
        unfinished: dict[tuple[int, str], str] = {}
        for raw in self.log.read_text(errors="replace").splitlines():
            line = raw
            if line.endswith("<unfinished ...>"):
                head = re.match(r"^(\d+)\s+(\w+)\(", line)
                if head:
                    unfinished[int(head[1]), head[2]] = line[: -len("<unfinished ...>")]
                continue
            resumed = _RESUMED.match(line)
            if resumed:
                begun = unfinished.pop((int(resumed[1]), resumed[2]), None)
                if begun is None:
                    continue
                line = begun + resumed[3]
            call = _CALL.match(line)
            if call:
                self._call(positions, int(call[1]), call[2], call[3], call[4], call[5])
        return self

    def process_of(self, thread: int) -> int:
        """Returns the process that a thread belongs to."""
        return self._process.get(thread, thread)

    def _call(
        self, positions: dict[Any, int], thread: int, name: str, args: str, result: str, opened: str | None
    ) -> None:
        if self.main is None:
            self.main = thread
        process = self.process_of(thread)
        if result == "?":
            return
        value = int(result)
        if name in ("clone", "clone3", "fork", "vfork"):
            if value > 0:
                if "CLONE_THREAD" in args:
                    self._process[value] = process
                else:
                    self.parent[value] = process
            return
        if name == "access":
            marker = re.search(r'"/marker/(.*?)"', args)
            if marker:
                self.events.append((process, "marker", marker[1], 0, 0))
            return
        if value < 0:
            return
        if name.startswith("open"):
            positions[process, value] = 0
            if opened is not None:
                writes = "O_WRONLY" in args or "O_RDWR" in args
                directory = "O_DIRECTORY" in args
                if not directory:
                    self.events.append((process, "write" if writes else "open", opened, 0, 0))
            return
        where = re.match(r"(\d+)<([^>]*)>", args)
        if where is None:
            return
        number, path = int(where[1]), where[2]
        if name == "lseek":
            positions[process, number] = value
        elif name in ("read", "readv"):
            start = positions.get((process, number), 0)
            positions[process, number] = start + value
            self.events.append((process, "read", path, start, value))
        elif name.startswith("pread"):
            start = int(args.rsplit(", ", 2 if name == "preadv2" else 1)[1].split(",")[0])
            self.events.append((process, "read", path, start, value))

    def inside(self, path: str) -> str | None:
        """Returns the path below the dataset's root."""
        prefix = self.root + "/"
        return path[len(prefix) :] if path.startswith(prefix) else None

    def roots(self) -> dict[int, int]:
        """Returns for each process the child of the main process that it descends from."""
        found = {}
        for process in set(self.parent):
            top = process
            while top in self.parent and self.parent[top] != self.main:
                top = self.parent[top]
            if top in self.parent:
                found[process] = top
        return found

    def files_by_output(self, outputs: Path) -> dict[str, list[set[str]]]:
        """Returns the dataset's files that each child of the main process opened, by the files that it wrote.

        A list, since a command can run several times for the same output.
        """
        tops = self.roots()
        read: dict[int, set[str]] = defaultdict(set)
        wrote: dict[int, set[str]] = defaultdict(set)
        order: dict[int, None] = {}
        for process, kind, path, _, _ in self.events:
            top = tops.get(process)
            if top is None:
                continue
            order[top] = None
            inside = self.inside(path)
            if kind in ("open", "read") and inside is not None:
                read[top].add(inside)
            elif kind == "write" and path.startswith(f"{outputs}/"):
                wrote[top].add(path[len(f"{outputs}/") :])
        found: dict[str, list[set[str]]] = defaultdict(list)
        for top in order:
            for output in wrote[top]:
                found[output].append(read[top])
        return found

    def stripes_by_marker(self) -> dict[str, list[set[tuple[str, int]]]]:
        """Returns the stripes that were read after each marker, until the next marker of the same process."""
        current: dict[int, set[tuple[str, int]]] = {}
        found: dict[str, list[set[tuple[str, int]]]] = defaultdict(list)
        for process, kind, path, start, count in self.events:
            if kind == "marker":
                current[process] = set()
                if path != "end":
                    found[path].append(current[process])
            elif kind == "read" and process in current:
                inside = self.inside(path)
                if inside is not None and count > 0:
                    last = (start + count - 1) // STRIPE_BYTES
                    current[process] |= {
                        (inside, stripe) for stripe in range(start // STRIPE_BYTES, last + 1)
                    }
        return found


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end and returns its output, both streams together."""
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)

"""Tells `copperfs lrc run` which files of a dataset the tasks of a Dask cluster will read.

A plugin of the scheduler of dask.distributed. `copperfs lrc run` names this module in
DASK_DISTRIBUTED__SCHEDULER__PRELOAD, so each scheduler loads it: that of a `LocalCluster` and that of `dask
scheduler`. `client.register_plugin(copperfs_dask.CopperfsPlugin())` loads it too. The schedulers that run
in the client's process (`scheduler="threads"`) know no plugins.

Each graph that a client submits is a job. Each of its keys that reads files of the dataset is a task,
unless it is one of another job already. The plugin's methods run in the scheduler's event loop, so they
only put events into the sender's queue. `Tracker`, in the sender's thread, finds the files and keeps the
jobs.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

from copperfs_lrc import Input, Job, Line, Paths, Sender, Settings, Task, once

try:
    from dask._task_spec import DataNode

    from copperfs_dask_reads import reads_of
except ImportError:
    # Before 2025.4 graphs were not made of task specifications on the scheduler.
    reads_of = None  # type: ignore[assignment]

Key = Any

# Tasks of a new graph that the sender's thread looks at before it offers its turn: about a millisecond.
TASKS_AT_A_TIME = 64


class Tracker:
    """The jobs of a scheduler. Lives in the sender's thread; its methods return the lines to send."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._paths = Paths(settings.root)
        self._run = settings.run_id()
        self._graphs = 0
        self._cwd = os.getcwd()
        # Keys that the plugin must tell about. The event loop adds to it, this thread takes away.
        self.watched: set[Key] = set()
        self._owners: dict[Key, tuple[Job, str]] = {}
        # Keys that left the scheduler's queue, and ended keys that run again. One event follows another
        # within a tick of the event loop, so they wait until no more events come.
        self._released: dict[Key, None] = {}
        self._again: dict[Key, None] = {}

    def graph(self, specs: list[tuple[Any, Key, Any]], literals: dict[Key, Any]) -> list[Line]:
        """Handles a new graph, by the priority, the key and the specification of each task that will run."""
        lines: list[Line] = []
        tasks: dict[Key, Task] = {}
        after: dict[Key, Any] = {}
        idle = []
        # Dask's order is the same for each run of the same program.
        for place, (_, key, spec) in enumerate(sorted(specs, key=lambda row: row[0])):
            if place % TASKS_AT_A_TIME == 0:
                # Lets the event loop run, which would else wait for the interpreter's lock.
                time.sleep(0)
            owner = self._owners.get(key)
            if owner is not None and owner[1] in owner[0].pending:
                continue
            inputs = self._inputs(spec, literals)
            if inputs:
                tasks[key] = Task(task_id(key), inputs)
                after[key] = spec.dependencies
            else:
                idle.append(key)
        self.watched.difference_update(idle)
        if not tasks:
            return lines
        for key, task in tasks.items():
            task.after = sorted(tasks[other].id for other in after[key] if other in tasks)
            self._forget_ended(key)
        job = Job(self._settings, f"{self._settings.app}/{self._run}/{self._graphs}")
        self._graphs += 1
        for key, task in tasks.items():
            self._owners[key] = (job, task.id)
        return job.submit(tasks.values())

    def done(self, key: Key) -> list[Line]:
        """Handles a task whose result is in memory, or that has failed for good."""
        # A task can be faster than `settle`. It held its references all the same.
        lines = self._settle_again() if key in self._again else []
        return lines + self._ended(key)

    def _ended(self, key: Key) -> list[Line]:
        self._released.pop(key, None)
        self._again.pop(key, None)
        owner = self._owners.get(key)
        if owner is None:
            return []
        job, task = owner
        lines = job.done(task)
        return lines + job.end() if lines and not job.pending else lines

    def released(self, key: Key) -> list[Line]:
        """Handles a task that is not to run for now: cancelled, or about to run again."""
        owner = self._owners.get(key)
        if owner is not None and owner[1] in owner[0].pending:
            self._released[key] = None
        return []

    def waiting(self, key: Key) -> list[Line]:
        """Handles a task that is to run: first, after a failure, or after its result was lost."""
        owner = self._owners.get(key)
        if owner is None:
            return []
        job, task = owner
        if task not in job.pending:
            self._again[key] = None
        elif key in self._released:
            del self._released[key]
            return job.failed(task)
        return []

    def forgotten(self, key: Key) -> list[Line]:
        """Handles a key that the scheduler drops."""
        lines = self._ended(key)
        self._forget_ended(key)
        return lines

    def settle(self) -> list[Line]:
        """Returns the lines of what waited for further events."""
        lines = self._settle_again()
        for key in list(self._released):
            lines.extend(self._ended(key))
        return lines

    def _settle_again(self) -> list[Line]:
        by_job: dict[int, tuple[Job, list[str]]] = {}
        for key in self._again:
            job, task = self._owners[key]
            by_job.setdefault(id(job), (job, []))[1].append(task)
        self._again.clear()
        return [line for job, again in by_job.values() for line in job.again(again)]

    def waits(self) -> bool:
        """Returns true if `settle` has something to do."""
        return bool(self._again or self._released)

    def end(self) -> list[Line]:
        """Ends all jobs."""
        jobs = {id(job): job for job, _ in self._owners.values()}
        return [line for job in jobs.values() for line in job.end()]

    def _inputs(self, spec: Any, literals: dict[Key, Any]) -> list[Input]:
        if isinstance(spec, DataNode):
            return []
        inputs: dict[Input, None] = {}
        for path, offset, length in reads_of(spec, literals):
            for whole in self._paths.inputs(path, self._cwd):
                part = self._paths.part(whole, offset, length)
                if part is not None:
                    inputs[part] = None
        # A task that reads the whole file and a part of it reads it once.
        entire = {name for name, offset, _, _ in inputs if offset is None}
        return [given for given in inputs if given[1] is None or given[0] not in entire]

    def _forget_ended(self, key: Key) -> None:
        owner = self._owners.pop(key, None)
        if owner is not None:
            owner[0].tasks.pop(owner[1], None)


def task_id(key: Key) -> str:
    """Returns the name of a key, which is a string, a number or a tuple of such."""
    return key if isinstance(key, str) else str(key)


class CopperfsPlugin(SchedulerPlugin):
    """Follows the graphs and the tasks of a scheduler."""

    name = "copperfs"
    idempotent = True

    def __init__(self) -> None:
        self._tracker: Tracker | None = None
        self._sender: Sender | None = None

    async def start(self, scheduler: Any) -> None:
        """Begins to follow this scheduler if it was started by `copperfs lrc run`."""
        settings = Settings.from_environ()
        if self._sender is not None or settings is None:
            return
        if reads_of is None:
            once.warn("version", "no reference counts: Dask is older than 2025.4")
            return
        self._tracker = Tracker(settings)
        self._sender = Sender(settings, self._tracker)

    async def close(self) -> None:
        """Ends the jobs."""
        if self._sender is not None and self._tracker is not None:
            from distributed.utils import offload

            self._sender.put(self._tracker.end)
            await offload(self._sender.close)
            self._sender = self._tracker = None

    def update_graph(self, scheduler: Any, *, keys: Any, **kwargs: Any) -> None:
        """Takes the keys that will run for a graph."""
        if self._sender is None or self._tracker is None:
            return
        # As the scheduler does: results in memory, and failures, are not computed again.
        specs: list[tuple[Any, Key, Any]] = []
        literals: dict[Key, Any] = {}
        seen = set(keys)
        stack = list(keys)
        while stack:
            ts = scheduler.tasks.get(stack.pop())
            if ts is None or ts.run_spec is None:
                continue
            if isinstance(ts.run_spec, DataNode):
                literals[ts.key] = ts.run_spec
            if ts.state in ("memory", "erred"):
                continue
            specs.append((ts.priority or (), ts.key, ts.run_spec))
            for dependency in ts.dependencies:
                if dependency.key not in seen:
                    seen.add(dependency.key)
                    stack.append(dependency.key)
        self._tracker.watched.update(key for _, key, _ in specs)
        self._sender.put(partial(self._tracker.graph, specs, literals))

    def transition(self, key: Key, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Takes a change of a task's state."""
        tracker, sender = self._tracker, self._sender
        if tracker is None or sender is None or key not in tracker.watched:
            return
        if finish == "memory" or finish == "erred":
            sender.put(partial(tracker.done, key))
        elif finish == "waiting":
            sender.put(partial(tracker.waiting, key))
        elif finish == "released":
            sender.put(partial(tracker.released, key))
        elif finish == "forgotten":
            tracker.watched.discard(key)
            sender.put(partial(tracker.forgotten, key))


async def dask_setup(scheduler: Any) -> None:
    """Registers the plugin; Dask calls this in each module that it preloads.

    The environment variable that names this module hides a list of preloads in Dask's configuration files,
    so those are loaded here.
    """
    import dask.config
    from distributed.preloading import process_preloads

    if CopperfsPlugin.name not in scheduler.plugins:
        plugin = CopperfsPlugin()
        scheduler.add_plugin(plugin)
        await plugin.start(scheduler)
    files = dask.config.merge(*dask.config.collect_yaml(dask.config.paths))
    hidden = dask.config.get("distributed.scheduler.preload", default=None, config=files) or []
    hidden = [hidden] if isinstance(hidden, str) else hidden
    named = dask.config.get("distributed.scheduler.preload", default=[]) or []
    named = [named] if isinstance(named, str) else named
    missing = [name for name in hidden if name not in named]
    if missing:
        await process_preloads(scheduler, missing, []).start()

"""Tells `copperfs lrc run` which files of a dataset the jobs of a Snakemake workflow will read.

Snakemake imports each package named `snakemake_logger_plugin_*` on its path while it parses its command
line, so a package on PYTHONPATH is enough: `observe` is called on import when COPPERFS_LRC_SOCKET is set.
`--logger copperfs` is valid too, for scripts that name their loggers and for programs that use Snakemake's
API.

The events that a logger gets do not suffice. They name a job's inputs when it starts, not before, and
`--quiet` suppresses the ends. So this plugin observes four methods of Snakemake instead, and reads the
workflow's own DAG, which is complete before the first job starts. A dry run (`-n`) evaluates the same DAG;
the ids of the tasks are those that it shows (rule and wildcards). Running one would double the time to
evaluate the DAG, and run the code of the Snakefile twice.

A run of Snakemake is one job, named for the application and the run. Each of its jobs is a task.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable
from logging import CRITICAL, LogRecord
from typing import Any

from snakemake_interface_logger_plugins.base import LogHandlerBase

from copperfs_lrc import Job, Line, Paths, Sender, Settings, Task, once

# Versions of Snakemake whose classes have the methods that `observe` wraps.
SUPPORTED = "9"
TASK_ID_CHARACTERS_MAX = 200


class LogHandler(LogHandlerBase):
    """Makes `--logger copperfs` valid. It takes no records, see the package."""

    def __post_init__(self) -> None:
        self.setLevel(CRITICAL + 1)
        observe()

    def emit(self, record: LogRecord) -> None:
        """Does nothing with a record."""

    @property
    def writes_to_stream(self) -> bool:
        """Leaves the stream to Snakemake's own handler."""
        return False

    @property
    def writes_to_file(self) -> bool:
        """Writes no file."""
        return False

    @property
    def has_filter(self) -> bool:
        """Needs none of the default filter."""
        return True

    @property
    def has_formatter(self) -> bool:
        """Formats nothing."""
        return True

    @property
    def needs_rulegraph(self) -> bool:
        """The rule graph has no files."""
        return False


class Run:
    """One run of a workflow, which is one job. Methods are called in Snakemake's main thread."""

    def __init__(self, settings: Settings, dag: Any) -> None:
        self.dag = dag
        self._job = Job(settings, f"{settings.app}/{settings.run_id()}")
        self._paths = Paths(settings.root)
        self._sender = Sender(settings)
        self._ids: dict[Any, str] = {}
        self._taken: dict[str, Any] = {}
        # Jobs that will not run any more: failed for good, or below one that is.
        self._given_up: set[Any] = set()

    def submit(self) -> None:
        """Submits the jobs that are still to run. Each call but the first is a further attempt."""
        dag = self.dag
        left = [job for job in dag.needrun_jobs() if job not in self._given_up]
        among = set(left)
        after = {job: [other for other in dag.dependencies[job] if other in among] for job in left}
        # Snakemake may replace a job by one with more inputs. It is the same task.
        self._ids.clear()
        self._taken.clear()
        for job in sorted(left, key=lambda job: (job.rule.name, [str(path) for path in job.output])):
            self._ids[job] = self._new_id(job)
        rows = [
            (
                self._ids[job],
                [str(path) for path in job.input],
                sorted(self._ids[other] for other in after[job]),
            )
            for job in self._in_order(left, after)
        ]
        cwd = os.getcwd()

        def work() -> list[Line]:
            tasks = []
            for name, paths, earlier in rows:
                inputs = dict.fromkeys(found for path in paths for found in self._paths.inputs(path, cwd))
                tasks.append(Task(name, list(inputs), earlier))
            return self._job.submit(tasks)

        self._sender.put(work)

    def finished(self, job: Any) -> None:
        """Releases the inputs of a job or of a group of jobs."""
        for member in members(job):
            self._release(member)

    def failed(self, job: Any, again: bool) -> None:
        """Handles the failure of a job or a group. `again` is true if Snakemake will restart it."""
        for member in members(job):
            name = self._ids.get(member)
            if again and name is not None:
                self._sender.put(functools.partial(self._job.failed, name))
            elif not again:
                self._give_up(member)

    def end(self) -> None:
        """Ends the job and waits until that is sent."""
        self._sender.put(self._job.end)
        self._sender.close()

    def _give_up(self, job: Any) -> None:
        # With --keep-going other jobs run on, but none that needs an output of this one.
        stack = [job]
        while stack:
            job = stack.pop()
            if job in self._given_up:
                continue
            self._given_up.add(job)
            self._release(job)
            stack.extend(self.dag.depending[job])

    def _release(self, job: Any) -> None:
        name = self._ids.get(job)
        if name is not None:
            self._sender.put(functools.partial(self._job.done, name))

    def _new_id(self, job: Any) -> str:
        name = task_id(job.rule.name, job.wildcards_dict)
        if name in self._taken:
            name = task_id(name, {"output": next(iter(job.output), "")})
        count = 1
        unique = name
        while unique in self._taken:
            count += 1
            unique = f"{name}#{count}"
        self._taken[unique] = job
        return unique

    def _in_order(self, jobs: list[Any], after: dict[Any, list[Any]]) -> Iterable[Any]:
        """Yields the jobs so that each follows those it needs, in an order that is the same in each run."""
        waits = {job: len(after[job]) for job in jobs}
        needed_by = defaultdict(list)
        for job, earlier in after.items():
            for other in earlier:
                needed_by[other].append(job)
        level = sorted((job for job in jobs if not waits[job]), key=self._ids.__getitem__)
        while level:
            yield from level
            following = []
            for job in level:
                for other in needed_by[job]:
                    waits[other] -= 1
                    if not waits[other]:
                        following.append(other)
            level = sorted(following, key=self._ids.__getitem__)


def task_id(rule: str, wildcards: dict[str, Any]) -> str:
    """Returns a name for a job that a dry run and each later run of the workflow share."""
    name = rule
    if wildcards:
        name += "/" + ",".join(f"{key}={value}" for key, value in sorted(wildcards.items()))
    if len(name) > TASK_ID_CHARACTERS_MAX:
        name = name[: TASK_ID_CHARACTERS_MAX - 17] + "~" + hashlib.sha256(name.encode()).hexdigest()[:16]
    return name


def members(job: Any) -> Iterable[Any]:
    """Returns the jobs of a group, or the job itself."""
    return job if job.is_group() else (job,)


_runs: dict[int, Run] = {}
_observing = False


def guarded(dag: Any, method: str, *arguments: Any) -> None:
    """Calls a method of the run that has this DAG, if there is one. Errors never reach Snakemake."""
    run = _runs.get(id(dag))
    if run is None:
        return
    try:
        getattr(run, method)(*arguments)
    except Exception:
        once.warn("snakemake", "cannot follow this workflow any more", exc_info=True)
        _runs.pop(id(dag), None)
        # Without further events its references would stay, so the job ends.
        run.end()


def start(scheduler: Any) -> None:
    """Begins to follow a workflow whose DAG is complete and whose jobs are about to start."""
    from snakemake_interface_executor_plugins.settings import ExecMode

    workflow = scheduler.workflow
    # Snakemake starts itself again for a job with `run:`, and on a remote machine. Those jobs are tasks of
    # this run. A dry run and `--touch` read nothing.
    settings = Settings.from_environ()
    if settings is None or workflow.exec_mode != ExecMode.DEFAULT or workflow.dryrun or workflow.touch:
        return
    _runs[id(workflow.dag)] = Run(settings, workflow.dag)
    guarded(workflow.dag, "submit")


def observe() -> None:
    """Wraps the methods that tell when a workflow starts, changes and ends, and when its jobs do."""
    global _observing
    if _observing or Settings.from_environ() is None:
        return
    _observing = True
    import snakemake
    from snakemake.dag import DAG
    from snakemake.workflow import JobScheduler

    if str(snakemake.__version__).split(".")[0] != SUPPORTED:
        once.warn("version", "no reference counts: Snakemake %s is not supported", snakemake.__version__)
        return
    needed = [
        (JobScheduler, ["schedule", "_handle_error"]),
        (DAG, ["finish", "postprocess_after_update", "needrun_jobs", "dependencies"]),
    ]
    absent = [
        f"{owner.__name__}.{name}" for owner, names in needed for name in names if not hasattr(owner, name)
    ]
    if absent:
        once.warn(
            "version", "no reference counts: Snakemake %s has no %s", snakemake.__version__, ", ".join(absent)
        )
        return

    schedule, handle_error = JobScheduler.schedule, JobScheduler._handle_error
    finish, postprocess_after_update = DAG.finish, DAG.postprocess_after_update

    @functools.wraps(schedule)
    def observed_schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            start(self)
        except Exception:
            once.warn("snakemake", "cannot follow this workflow", exc_info=True)
        try:
            return schedule(self, *args, **kwargs)
        finally:
            guarded(self.workflow.dag, "end")
            _runs.pop(id(self.workflow.dag), None)

    @functools.wraps(handle_error)
    def observed_handle_error(self: Any, job: Any, *args: Any, **kwargs: Any) -> Any:
        result = handle_error(self, job, *args, **kwargs)
        guarded(self.workflow.dag, "failed", job, job not in self.failed)
        return result

    @functools.wraps(finish)
    async def observed_finish(self: Any, job: Any, *args: Any, **kwargs: Any) -> Any:
        result = await finish(self, job, *args, **kwargs)
        guarded(self, "finished", job)
        return result

    @functools.wraps(postprocess_after_update)
    async def observed_update(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = await postprocess_after_update(self, *args, **kwargs)
        guarded(self, "submit")
        return result

    JobScheduler.schedule, JobScheduler._handle_error = observed_schedule, observed_handle_error
    DAG.finish, DAG.postprocess_after_update = observed_finish, observed_update


try:
    observe()
except Exception:
    once.warn("version", "no reference counts: cannot observe Snakemake", exc_info=True)

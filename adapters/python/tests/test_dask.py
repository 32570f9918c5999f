"""Real clusters, with the references that they submit held against the bytes that their workers read."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support import Audit, Recorder, environment, program, run

PRELUDE = """
    import os, sys, time
    from pathlib import Path
    import dask
    from dask.distributed import Client, LocalCluster, WorkerPlugin, wait
    D = {data!r}
    T = {directory!r}

    def local(workers=2, **more):
        return LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None, **more)

    class Marks(WorkerPlugin):
        # Makes a system call when a task starts and when it ends, for the audit. With one thread in a
        # worker the reads between two marks are those of the task.
        def setup(self, worker):
            self.done = set()
        def transition(self, key, start, finish, **kwargs):
            if finish == "executing":
                os.access("/marker/" + str(key), os.F_OK)
            elif start == "executing":
                os.access("/marker/end", os.F_OK)

    def read(path, *others):
        # Reads as a user's function does, and notes the run apart from Dask and from the adapter.
        with open(path, "rb") as file:
            size = len(file.read())
        with open(T + "/runs", "a") as runs:
            runs.write(os.path.relpath(path, D) + "\\n")
        return size
"""


class Cluster:
    def __init__(self, directory: Path, data: Path, recorder: Recorder) -> None:
        self.directory = directory
        self.data = data
        self.recorder = recorder

    def script(self, text: str) -> Path:
        path = self.directory / "pipeline.py"
        prelude = textwrap.dedent(PRELUDE).format(data=str(self.data), directory=str(self.directory))
        path.write_text(f"{prelude}\n{textwrap.dedent(text)}\nif __name__ == '__main__':\n    main()\n")
        return path

    def environment(self, **more: str) -> dict[str, str]:
        return environment(self.recorder, **{"DASK_DISTRIBUTED__SCHEDULER__PRELOAD": "copperfs_dask", **more})

    def run(self, text: str, **more: str) -> str:
        ended = run(
            [sys.executable, str(self.script(text))], env=self.environment(**more), cwd=self.directory
        )
        assert ended.returncode == 0, ended.stdout
        return ended.stdout

    def run_audited(self, text: str) -> None:
        """Checks that each task that ran read the stripes that it was submitted with, and no other."""
        log = self.directory / "strace.log"
        command = Audit.command(log, [sys.executable, str(self.script(text))])
        ended = run(command, env=self.environment(), cwd=self.directory)
        assert ended.returncode == 0, ended.stdout
        read = Audit(log, self.data).parse().stripes_by_marker()
        submitted = self.recorder.tasks()
        assert submitted
        for task, references in submitted.items():
            assert read[task] == [set(references)], task
        for task, runs in read.items():
            assert task in submitted or not any(runs), task
        self.recorder.assert_settled()

    def runs(self) -> list[str]:
        """Returns the files that `read` of the prelude has read, one for each time."""
        return (self.directory / "runs").read_text().split()

    def references(self) -> list[str]:
        """Returns the files referenced, one for each time that a task was given the references.

        A further attempt lists tasks again that still held them; those do not count twice.
        """
        found: list[str] = []
        held: set[tuple[str, str]] = set()
        for line in self.recorder.lines:
            job = line["job"]
            if line["op"] == "submit":
                for task in line["tasks"]:
                    if (job, task["id"]) not in held:
                        found.extend(line["files"][index] for index in task["in"])
                held = {key for key in held if key[0] != job} | {(job, task["id"]) for task in line["tasks"]}
            elif line["op"] == "done":
                held.discard((job, line["task"]))
        return found


@pytest.fixture
def cluster(tmp_path: Path, data: Path, recorder: Recorder) -> Cluster:
    return Cluster(tmp_path, data, recorder)


def parts(data: Path, count: int) -> None:
    for index in range(count):
        (data / f"{index}").write_bytes(bytes(100))


@pytest.mark.parametrize("filesystem", ["fsspec", "pyarrow"])
def test_parquet_over_day_partitions_with_several_graphs(cluster: Cluster, filesystem: str) -> None:
    import numpy as np
    import pandas as pd

    generator = np.random.default_rng(1)
    for day in range(3):
        (cluster.data / f"day={day}").mkdir()
        # Random numbers do not compress: three columns of 8 MB in four row groups, so columns and row
        # groups lie in stripes of their own.
        frame = pd.DataFrame({name: generator.random(1_000_000) for name in ("a", "b", "c")})
        frame.to_parquet(cluster.data / f"day={day}" / "part.parquet", row_group_size=1_000_000)
    (cluster.data / "split").mkdir()
    frame.to_parquet(cluster.data / "split" / "part.parquet", row_group_size=250_000)
    cluster.run_audited(
        f"""
        import dask.dataframe as dd
        def main():
            with local(1) as cluster, Client(cluster) as client:
                client.register_plugin(Marks())
                days = [f"{{D}}/day={{day}}" for day in range(3)]
                how = {{"filesystem": "pyarrow"}} if {filesystem == "pyarrow"} else {{}}
                for path in days:
                    dd.read_parquet(path, **how).a.sum().compute()
                dd.read_parquet(days[0], columns=["b", "c"], **how).sum().compute()
                dd.read_parquet(days[1], **how)[["a", "b", "c"]].sum().compute()
                dd.read_parquet(f"{{D}}/split", split_row_groups=True).sum().compute()
        """
    )
    # With Arrow's file system Dask reads some footers for its statistics, in graphs of its own.
    assert len(cluster.recorder.submitted) == {"fsspec": 6, "pyarrow": 9}[filesystem]
    last = list(cluster.recorder.submitted.values())[-1][0]
    assert len(last) == 4
    # Row groups of 6 MB: each has some of the file's six stripes.
    assert all(len(references) < 6 for references in last.values())


def test_text_and_csv_in_blocks(cluster: Cluster) -> None:
    line = b"some words on a line, 1\n"
    (cluster.data / "a.txt").write_bytes(line * 500_000)
    (cluster.data / "b.csv").write_bytes(b"x,y\n" + b"1,2\n" * 3_000_000)
    (cluster.data / "whole.txt").write_bytes(line * 10)
    cluster.run_audited(
        """
        import dask.bag as db, dask.dataframe as dd
        def main():
            with local(1) as cluster, Client(cluster) as client:
                client.register_plugin(Marks())
                assert db.read_text(f"{D}/a.txt", blocksize=3_000_000).count().compute() == 500_000
                assert len(dd.read_csv(f"{D}/b.csv", blocksize=5_000_000)) == 3_000_000
                assert db.read_text(f"{D}/whole.txt").map(len).sum().compute() == 240
        """
    )
    assert [len(tasks) for (tasks,) in cluster.recorder.submitted.values()] == [4, 2, 1]


def test_functions_with_paths_over_a_shared_reference(cluster: Cluster) -> None:
    for sample in range(12):
        (cluster.data / f"{sample}.fq").write_bytes(bytes(1000))
    (cluster.data / "ref.fa").write_bytes(bytes(5_000_000))
    (cluster.directory / "outside").write_bytes(b"no")
    cluster.run_audited(
        """
        def align(ref, sample, outside, name="a.b/c"):
            return sum(len(Path(path).read_bytes()) for path in (ref, sample, outside))
        def merge(sizes, *, ref):
            return sum(sizes) + len(Path(ref[0]["path"]).read_bytes())
        def main():
            with local(1) as cluster, Client(cluster) as client:
                client.register_plugin(Marks())
                ref = Path(D) / "ref.fa"
                sizes = [dask.delayed(align)(ref, f"{D}/{n}.fq", f"{T}/outside") for n in range(12)]
                total = dask.delayed(merge)(sizes, ref=[{"path": str(ref)}])
                assert total.compute() == 12 * 5_001_002 + 5_000_000
                refs, outside = ["warehouse/ref.fa"] * 3, [f"{T}/outside"] * 3
                samples = [f"{D}/../warehouse/{n}.fq" for n in range(3)]
                client.gather(client.map(align, refs, samples, outside))
        """
    )
    first, second = (tasks for (tasks,) in cluster.recorder.submitted.values())
    assert sum(map(len, first.values())) == 12 * 3 + 2
    assert sum(map(len, second.values())) == 3 * 3


def test_arrays_by_their_chunks(cluster: Cluster) -> None:
    import numpy as np
    import xarray as xr
    import zarr

    stored = zarr.create_array(str(cluster.data / "z.zarr"), shape=(400, 400), chunks=(100, 100), dtype="f8")
    stored[:] = np.random.default_rng(1).random((400, 400))
    for index in range(3):
        frame = xr.Dataset(
            {"t": (("x", "y"), np.ones((50, 50)) * index)}, coords={"x": np.arange(50) + 50 * index}
        )
        frame.to_netcdf(cluster.data / f"{index}.nc", engine="h5netcdf")
    xr.Dataset({"u": (("x", "y"), np.ones((100, 100)))}).to_zarr(
        cluster.data / "x.zarr", encoding={"u": {"chunks": (50, 50)}}, consolidated=False
    )
    cluster.run_audited(
        """
        import dask.array as da, xarray as xr
        def main():
            with local(1) as cluster, Client(cluster) as client:
                client.register_plugin(Marks())
                da.from_zarr(f"{D}/z.zarr").sum().compute()
                da.from_zarr(f"{D}/z.zarr", chunks=(200, 100))[:200].mean().compute()
                xr.open_mfdataset(f"{D}/*.nc", engine="h5netcdf").t.sum().compute()
                xr.open_zarr(f"{D}/x.zarr", consolidated=False).u.sum().compute()
        """
    )
    assert [len(tasks) for (tasks,) in cluster.recorder.submitted.values()] == [16, 4, 3, 4]


def test_retries_keep_the_references(cluster: Cluster) -> None:
    parts(cluster.data, 4)
    cluster.run(
        """
        def flaky(path):
            read(path)
            tries = Path(T, "tries-" + os.path.basename(path))
            with open(tries, "a") as file:
                file.write("x")
            if tries.stat().st_size < 3:
                raise OSError("again")
        def main():
            with local() as cluster, Client(cluster) as client:
                client.gather(client.map(flaky, [f"{D}/{n}" for n in range(4)], retries=2))
        """
    )
    assert len(cluster.recorder.ops("submit")) == 1
    assert len(cluster.recorder.ops("taskfail")) == 8
    assert sorted(cluster.runs()) == sorted([str(n) for n in range(4)] * 3)
    cluster.recorder.assert_settled()


def test_a_task_that_failed_for_good_and_is_retried_later(cluster: Cluster) -> None:
    parts(cluster.data, 2)
    cluster.run(
        """
        def flaky(path, gate):
            read(path)
            if not os.path.exists(gate):
                raise OSError("not yet")
            return 1
        def main():
            with local() as cluster, Client(cluster) as client:
                futures = [client.submit(flaky, f"{D}/{n}", T + "/gate") for n in range(2)]
                below = client.submit(read, f"{D}/0", *futures)
                wait([*futures, below])
                Path(T, "gate").touch()
                for future in [*futures, below]:
                    future.retry()
                below.result()
        """
    )
    assert sorted(cluster.references()) == ["0", "0", "0", "0", "1", "1"]
    cluster.recorder.assert_settled()


def test_a_killed_worker_reads_again(cluster: Cluster) -> None:
    parts(cluster.data, 12)
    cluster.run(
        """
        import signal
        def main():
            with local(2) as cluster, Client(cluster) as client:
                futures = client.map(read, [f"{D}/{n}" for n in range(12)])
                wait(futures)
                holders = client.who_has(futures)
                workers = client.scheduler_info()["workers"]
                pids = client.run(os.getpid)
                victim = next(iter(workers))
                os.kill(pids[victim], signal.SIGKILL)
                lost = sum(victim in where for where in holders.values())
                assert lost > 0
                while len(Path(T, "runs").read_text().split()) < 12 + lost:
                    time.sleep(0.05)
                assert client.gather(futures) == [100] * 12
        """
    )
    assert len(cluster.runs()) > 12
    assert sorted(cluster.references()) == sorted(cluster.runs())
    assert len(cluster.recorder.ops("submit")) > 1
    cluster.recorder.assert_settled()


def test_a_worker_killed_in_the_middle_of_its_task(cluster: Cluster) -> None:
    parts(cluster.data, 6)
    cluster.run(
        """
        import signal
        def deadly(path):
            read(path)
            try:
                Path(T, "died").touch(exist_ok=False)
            except FileExistsError:
                return 1
            os.kill(os.getpid(), signal.SIGKILL)
        def main():
            with local(2) as cluster, Client(cluster) as client:
                futures = client.map(deadly, [f"{D}/{n}" for n in range(6)])
                assert client.gather(futures) == [1] * 6
        """
    )
    assert cluster.recorder.ops("taskfail")
    # A task that fails holds its references on. One that had ended gets them back.
    assert len(cluster.references()) <= len(cluster.runs())
    assert set(cluster.references()) == set(cluster.runs())
    cluster.recorder.assert_settled()


def test_cancelled_and_forgotten_futures_release(cluster: Cluster) -> None:
    parts(cluster.data, 20)
    cluster.run(
        """
        def slow(path):
            read(path)
            while not os.path.exists(T + "/go"):
                time.sleep(0.02)
        def main():
            with local(2) as cluster, Client(cluster) as client:
                futures = client.map(slow, [f"{D}/{n}" for n in range(10)])
                later = client.map(read, [f"{D}/{n}" for n in range(10, 20)], [futures] * 10)
                while not os.path.exists(T + "/runs"):
                    time.sleep(0.02)
                client.cancel(futures[5:])
                del later
                Path(T, "go").touch()
                wait(futures[:5])
        """
    )
    assert len(cluster.recorder.submitted) == 2
    cluster.recorder.assert_settled()


@pytest.mark.parametrize("how", ["client.restart()", "client.close()", "cluster.close()"])
def test_the_end_of_a_cluster_ends_its_jobs(cluster: Cluster, how: str) -> None:
    parts(cluster.data, 8)
    cluster.run(
        f"""
        def slow(path):
            read(path)
            time.sleep(3600)
        def main():
            with local(2) as cluster, Client(cluster) as client:
                futures = client.map(slow, [f"{{D}}/{{n}}" for n in range(8)])
                while not os.path.exists(T + "/runs"):
                    time.sleep(0.02)
                {how}
        """
    )
    assert len(cluster.recorder.ops("submit")) == 1
    cluster.recorder.assert_settled()


def test_graphs_that_share_tasks_count_them_once(cluster: Cluster) -> None:
    parts(cluster.data, 6)
    cluster.run(
        """
        def main():
            with local(2) as cluster, Client(cluster) as client:
                loaded = [dask.delayed(read, pure=True)(f"{D}/{n}") for n in range(6)]
                first = client.persist(loaded)
                second = client.compute(dask.delayed(sum)(loaded))
                assert second.result() == 600
                third = client.compute(dask.delayed(max)(first))
                assert third.result() == 100
        """
    )
    assert sorted(cluster.references()) == sorted(cluster.runs()) == [str(n) for n in range(6)]
    cluster.recorder.assert_settled()


def test_stolen_tasks_count_once(cluster: Cluster) -> None:
    parts(cluster.data, 40)
    cluster.run(
        """
        def main():
            with local(1) as cluster, Client(cluster) as client:
                def slow(path):
                    while not os.path.exists(T + "/go"):
                        time.sleep(0.02)
                    return read(path)
                first = next(iter(client.scheduler_info()["workers"]))
                paths = [f"{D}/{n}" for n in range(40)]
                futures = client.map(slow, paths, workers=[first], allow_other_workers=True)
                cluster.scale(3)
                # The first worker has them all until others come.
                while sum(map(bool, client.processing().values())) < 2:
                    time.sleep(0.02)
                Path(T, "go").touch()
                client.gather(futures)
                assert len({where for places in client.who_has(futures).values() for where in places}) > 1
        """,
        DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION="inf",
    )
    assert len(cluster.recorder.ops("submit")) == 1
    assert sorted(cluster.runs(), key=int) == [str(n) for n in range(40)]
    cluster.recorder.assert_settled()


def test_the_scheduler_and_workers_of_the_command_line(cluster: Cluster) -> None:
    parts(cluster.data, 4)
    (cluster.directory / "site").mkdir()
    (cluster.directory / "site" / "mine.py").write_text(
        "def dask_setup(scheduler):\n    open('mine-ran', 'w').close()\n"
    )
    (cluster.directory / "dask.yaml").write_text("distributed:\n  scheduler:\n    preload: [mine]\n")
    env = cluster.environment(DASK_CONFIG=str(cluster.directory / "dask.yaml"))
    env["PYTHONPATH"] += os.pathsep + str(cluster.directory / "site")
    connection = cluster.directory / "scheduler.json"
    common = {
        "env": env,
        "cwd": cluster.directory,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    options = ["--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(connection)]
    scheduler = subprocess.Popen([program("dask"), "scheduler", "--port", "0", *options], **common)
    while not connection.exists():
        assert scheduler.poll() is None
    worker = subprocess.Popen(
        [program("dask"), "worker", "--no-dashboard", "--nthreads", "1", "--scheduler-file", str(connection)],
        **common,
    )
    try:
        text = """
            def main():
                with Client(scheduler_file=T + "/scheduler.json") as client:
                    assert sum(client.gather(client.map(read, [f"{D}/{n}" for n in range(4)]))) == 400
            """
        ended = run([sys.executable, str(cluster.script(text))], env=env, cwd=cluster.directory)
        assert ended.returncode == 0, ended.stdout
    finally:
        worker.send_signal(signal.SIGINT)
        scheduler.send_signal(signal.SIGINT)
        worker.wait()
        scheduler.wait()
    assert len(cluster.recorder.ops("done")) == 4
    # A preload of the user's configuration is not lost.
    assert (cluster.directory / "mine-ran").exists()
    cluster.recorder.assert_settled()


def test_the_plugin_may_be_registered_in_code(cluster: Cluster) -> None:
    parts(cluster.data, 4)
    cluster.run(
        """
        import copperfs_dask
        def main():
            with local(1, processes=False) as cluster, Client(cluster) as client:
                client.register_plugin(copperfs_dask.CopperfsPlugin())
                client.gather(client.map(read, [f"{D}/{n}" for n in range(4)]))
        """,
        DASK_DISTRIBUTED__SCHEDULER__PRELOAD="[]",
    )
    assert len(cluster.recorder.ops("done")) == 4
    cluster.recorder.assert_settled()


@pytest.mark.parametrize("trouble", ["absent", "hangs"])
def test_the_cluster_works_without_an_answer(cluster: Cluster, trouble: str, tmp_path: Path) -> None:
    parts(cluster.data, 4)
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        if trouble == "hangs":
            silent.bind(str(path))
            silent.listen()
        output = cluster.run(
            """
            def main():
                with local(1) as cluster, Client(cluster) as client:
                    for _ in range(3):
                        client.gather(client.map(read, [f"{D}/{n}" for n in range(4)], pure=False))
            """,
            COPPERFS_LRC_SOCKET=str(path),
        )
    assert output.count("copperfs: no reference counts") == 1
    assert len(cluster.runs()) == 12

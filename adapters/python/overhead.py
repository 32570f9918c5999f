"""Measures the cost of the adapters: `overhead.py dask|snakemake [NUMBER [ROUNDS]]`.

Runs the same work with and without the adapter in turn, with a socket that answers each line in a process
of its own. The processor time is that of the engine's process (for Dask the scheduler and the client), so
it stands also when the machine has other work; seconds do not.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ADAPTERS = Path(__file__).resolve().parent

SNAKEFILE = """
rule all:
    input: expand("out/{{n}}", n=range({number}))
rule one:
    input: D + "/ref", D + "/in-{{n}}"
    output: touch("out/{{n}}")
    run: pass
"""


def serve(path: str) -> None:
    """Answers the lines of one connection after another, until it is terminated."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rwb") as stream:
                for line in stream:
                    json.loads(line)
                    stream.write(b'{"accepted":true}\n')
                    stream.flush()


def dask(root: str, number: int) -> dict[str, float]:
    """Runs `number` tasks on a cluster with two workers. Returns seconds and transitions."""
    from dask.distributed import Client, LocalCluster, wait

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.gather(client.map(abs, range(100)))
        given = [f"{root}/in-{index % 2000}" for index in range(number)]
        before, begun, cpu = cluster.scheduler.transition_counter, time.perf_counter(), time.process_time()
        futures = client.map(bool, given, pure=False)
        wait(futures)
        seconds = time.perf_counter() - begun
        del futures
        while cluster.scheduler.tasks:
            time.sleep(0.01)
        cpu_seconds = time.process_time() - cpu
        transitions = cluster.scheduler.transition_counter - before
        return {"seconds": seconds, "cpu_seconds": cpu_seconds, "transitions": transitions}


def snakemake(directory: Path, root: str, number: int, env: dict[str, str]) -> dict[str, float]:
    """Runs a workflow of `number` jobs. Returns its seconds."""
    with tempfile.TemporaryDirectory(dir=directory) as work:
        Path(work, "Snakefile").write_text(f"D = {root!r}\n" + SNAKEFILE.format(number=number))
        begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [str(Path(sys.executable).parent / "snakemake"), "--cores", "2", "--quiet", "all"]
        # Jobs in threads: otherwise the time is that of 2,000 starts of Python.
        subprocess.run([*command, "--force-use-threads"], cwd=work, env=env, check=True)
        seconds, used = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_seconds = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
        return {"seconds": seconds, "cpu_seconds": cpu_seconds}


def main() -> None:
    """Runs the rounds and prints their medians."""
    if sys.argv[1] == "serve":
        return serve(sys.argv[2])
    if sys.argv[1] == "dask-once":
        return print(json.dumps(dask(sys.argv[2], int(sys.argv[3]))))
    engine = sys.argv[1]
    number = int(sys.argv[2]) if len(sys.argv) > 2 else {"dask": 100_000, "snakemake": 2000}[engine]
    rounds_ = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    with tempfile.TemporaryDirectory() as name:
        root = Path(name, "root")
        root.mkdir()
        (root / "ref").write_text("r")
        for index in range(2000):
            (root / f"in-{index}").write_text("x")
        path = f"{name}/lrc.sock"
        server = subprocess.Popen([sys.executable, __file__, "serve", path])
        try:
            found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
            for plugged in [False, True] * rounds_:
                env = {**os.environ, "PYTHONPATH": str(ADAPTERS)}
                if plugged:
                    env.update(COPPERFS_LRC_SOCKET=path, COPPERFS_LRC_ROOT=str(root))
                    env["DASK_DISTRIBUTED__SCHEDULER__PRELOAD"] = "copperfs_dask"
                if engine == "snakemake":
                    found[plugged].append(snakemake(Path(name), str(root), number, env))
                else:
                    command = [sys.executable, __file__, "dask-once", str(root), str(number)]
                    ended = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE)
                    found[plugged].append(json.loads(ended.stdout))
            for plugged, rounds in found.items():
                medians = {key: round(statistics.median(row[key] for row in rounds), 2) for key in rounds[0]}
                if "transitions" in medians:
                    medians["per_second"] = round(medians["transitions"] / medians["seconds"])
                    medians["per_cpu_second"] = round(medians["transitions"] / medians["cpu_seconds"])
                print(json.dumps({"tasks": number, "adapter": plugged, **medians}), flush=True)
        finally:
            server.terminate()
            server.wait()
    return None


if __name__ == "__main__":
    main()

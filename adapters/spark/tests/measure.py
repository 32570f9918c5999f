"""Measures what the adapter costs the driver, and how early a submission is.

    .venv-pipelines/bin/python adapters/spark/tests/measure.py [QUERIES [TURNS]]

The same application runs with and without the listener, in turns. On a busy machine only the
processor time of the adapter's threads says something.
"""

import statistics
import sys
import tempfile
from pathlib import Path

import dataset
import harness

WIDE = 20_000


def main():
    queries = sys.argv[1] if len(sys.argv) > 1 else "100"
    turns = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with tempfile.TemporaryDirectory(prefix="copperfs-measure-") as name:
        work = Path(name)
        root = work / "data" / "warehouse"
        root.mkdir(parents=True)
        dataset.write(root)
        # One file each partition, all in the dataset: its root is the directory above.
        wide = work / "data" / "wide"
        wide.mkdir()
        for i in range(WIDE):
            (wide / f"{i}.txt").write_text("line\n")
        defaults = {
            "spark.sql.files.openCostInBytes": "64k",
            "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
        }
        env = {"COPPERFS_LRC_ROOT": str(root.parent)}
        for i in range(turns):
            for listener in True, False:
                run = harness.Run(
                    "many.py",
                    work / f"{i}-{listener}",
                    root,
                    args=[queries],
                    defaults=defaults,
                    env=env,
                    listener=listener,
                )
                print("listener" if listener else "without ", run.result.stdout.split())
                if listener:
                    report(run)


def report(run):
    submitted = {}
    for at, line in zip(run.times, run.lines):
        if line["op"] == "submit":
            submitted.setdefault(int(line["job"].rsplit("-", 1)[1]), (at * 1000, len(line["tasks"])))
    first_task = {}
    for stage, launch in run.log.started.values():
        execution = run.log.job_execution[run.log.stage_job[stage]]
        if execution is not None:
            execution = int(execution)
            first_task[execution] = min(launch, first_task.get(execution, launch))
    after_start, before_task = [], []
    for execution, (at, tasks) in submitted.items():
        start = run.log.executions[execution]
        if tasks >= WIDE:
            print(f"  {tasks} partitions: submitted {at - start:.0f} ms after the start, "
                  f"{first_task[execution] - at:.0f} ms before the first task")
        else:
            after_start.append(at - start)
            before_task.append(first_task[execution] - at)
    for title, values in ("after the start", after_start), ("before the first task", before_task):
        values.sort()
        print(f"  submitted {title}: median {statistics.median(values):.1f} ms, "
              f"p5 {values[len(values) // 20]:.1f}, p95 {values[len(values) * 19 // 20]:.1f}")


main()

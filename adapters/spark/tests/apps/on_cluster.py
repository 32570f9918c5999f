"""Scenarios that need executors of their own: lost shuffle output, and speculative copies."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession, functions as F

ROOT, WORK = sys.argv[1:3]
spark = SparkSession.builder.appName("cluster").getOrCreate()
sc = spark.sparkContext
MARKS = Path(WORK) / "marks"
MARKS.mkdir()


def executors():
    """Returns the process ids of this application's executors."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if sc.applicationId.encode() in words and any(b"CoarseGrainedExecutorBackend" in w for w in words):
                found.append(int(process.name))
    return sorted(found)


def newest_shuffle(executor):
    """Returns the number of the newest shuffle of which this executor has output, or -1."""
    variables = (Path("/proc") / str(executor) / "environ").read_bytes().decode().split("\0")
    (directories,) = (v.partition("=")[2] for v in variables if v.startswith("SPARK_EXECUTOR_DIRS="))
    outputs = (file for directory in directories.split(":") for file in Path(directory).rglob("shuffle_*.data"))
    return max((int(file.name.split("_")[1]) for file in outputs), default=-1)


def kill_one():
    """Kills an executor that has output which later tasks need. The other may have run all tasks of a stage."""
    victim = max(executors(), key=newest_shuffle)
    assert newest_shuffle(victim) >= 0
    os.kill(victim, signal.SIGKILL)
    print("killed", victim, flush=True)


def wait_for(condition):
    while not condition():
        time.sleep(0.02)


def places(_number):
    """Returns the directory of the executor that runs this task."""
    time.sleep(0.05)
    return os.getcwd()


def wait_for_both():
    """Waits until two executors run tasks, so that both have output of the next stage."""
    sc.setJobDescription(None)
    wait_for(lambda: len(executors()) == 2 and len(set(sc.parallelize(range(16), 16).map(places).collect())) == 2)


def slowly(name):
    """A function for the tasks of a reduce stage: the first wait until an executor was killed."""
    marks = str(MARKS)

    def work(value):
        mark = Path(marks) / f"{name}-reduces"
        if not mark.exists():
            mark.touch()
        while not (Path(marks) / f"{name}-killed").exists():
            time.sleep(0.02)
        return value

    return work


def while_an_executor_is_lost(name, action):
    def loses():
        wait_for((MARKS / f"{name}-reduces").exists)
        try:
            kill_one()
        finally:
            # Also after an error: the tasks wait for it.
            (MARKS / f"{name}-killed").touch()

    thread = threading.Thread(target=loses)
    thread.start()
    sc.setJobDescription(name)
    action()
    thread.join()
    wait_for_both()


def lost_output_in_sql(name):
    slow = F.udf(slowly(name), "long")
    sums = spark.read.parquet(f"{ROOT}/sales").groupBy("item").agg(F.sum("id").alias("sum"))
    while_an_executor_is_lost(name, lambda: sums.select(slow("sum")).collect())


def lost_output_of_rdds(name):
    work = slowly(name)
    pairs = sc.textFile(f"{ROOT}/text", 6).map(lambda line: (line.split()[1], 1))
    counts = pairs.reduceByKey(lambda a, b: a + b, 4).mapValues(work)
    while_an_executor_is_lost(name, lambda: counts.count())


def lost_output_between_jobs(name):
    sc.setJobDescription(name)
    counts = sc.textFile(f"{ROOT}/text", 6).map(lambda line: (line.split()[1], 1)).reduceByKey(lambda a, b: a + b, 4)
    assert counts.count() == 7
    kill_one()
    wait_for_both()
    sc.setJobDescription(name)
    assert counts.count() == 7


def speculation(name):
    """The first copy of one task waits for the end of the second."""
    marks = str(MARKS)

    @F.udf("long")
    def waits(value):
        context = TaskContext.get()
        mark = Path(marks) / "second-copy"
        if context.partitionId() == 1:
            if context.attemptNumber() > 0:
                mark.touch()
            while not mark.exists():
                time.sleep(0.02)
        return value

    sc.setJobDescription(name)
    spark.read.parquet(f"{ROOT}/returns").select(waits("id").alias("id")).agg(F.sum("id")).collect()


wait_for_both()
spark.conf.set("spark.sql.adaptive.enabled", "false")
lost_output_in_sql("lost_output_static")
spark.conf.set("spark.sql.adaptive.enabled", "true")
lost_output_in_sql("lost_output_adaptive")
lost_output_of_rdds("lost_output_of_rdds")
lost_output_between_jobs("lost_output_between_jobs")
speculation("speculation")
spark.stop()

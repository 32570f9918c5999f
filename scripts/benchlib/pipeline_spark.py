#!/usr/bin/env python3
"""Row 62: reports over a warehouse, each an SQL execution, on Spark's executors of several hosts.

    pipeline_spark.py PLAN ROOT MASTER EXECUTORS AT_ONCE

Runs so many reports at a time in the order of the plan, and prints the time that they took as a line of
JSON.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import SparkSession, functions

PAUSE_S = 1
SCHEMA = "key bigint, a double, b double, c double"


def main():
    plan, root, master, executors, at_once = sys.argv[1:6]
    with open(plan) as file:
        reports = json.load(file)["reports"]
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "10.78.0.1",
        "spark.sql.adaptive.enabled": "true",
        # A report joins its tables by a shuffle, as large ones do.
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        # Four files a task.
        "spark.sql.files.openCostInBytes": "0",
        "spark.sql.files.maxPartitionBytes": "1100k",
        "spark.locality.wait": "0",
    }
    builder = SparkSession.builder.master(master).appName("reports")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    wait_for_executors(spark, int(executors))
    wide = spark.range(0, 64, 1, 8)
    wide.join(wide.withColumnRenamed("id", "key"), functions.col("id") == functions.col("key")).count()

    def table(names):
        return spark.read.schema(SCHEMA).parquet(*[f"file://{root}/{name}" for name in names])

    def run(report):
        facts = table(report["days"] + report["scan"]).groupBy("key").sum("a", "b", "c")
        reference = table(report["reference"]).groupBy("key").avg("a", "b", "c")
        joined = facts.join(reference, "key")
        return joined.agg(functions.sum("sum(a)"), functions.sum("avg(a)")).collect()[0][0]

    begin = time.time()
    with ThreadPoolExecutor(int(at_once)) as pool:
        started = []
        for report in reports:
            started.append(pool.submit(run, report))
            # One after another, as a scheduler starts them: the stages of a report come together.
            time.sleep(PAUSE_S)
        results = [report.result() for report in started]
    print(json.dumps({"seconds": time.time() - begin, "begin": begin, "results": results}), flush=True)
    spark.stop()


def wait_for_executors(spark, count):
    """Waits until all executors are there, so that no start is measured."""
    tracker = spark.sparkContext._jsc.sc()
    end = time.monotonic() + 120
    while tracker.getExecutorMemoryStatus().size() < count + 1:  # and the driver
        if time.monotonic() > end:
            sys.exit(f"pipeline_spark: no {count} executors")
        time.sleep(0.1)


if __name__ == "__main__":
    main()

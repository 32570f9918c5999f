"""Prints the seconds that many short queries, and one with many file partitions, take."""

import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

ROOT, WORK, QUERIES = sys.argv[1:4]
spark = SparkSession.builder.appName("many").getOrCreate()
sales = spark.read.parquet(f"{ROOT}/sales")


def query(store):
    return len(sales.where(f"store = {store}").groupBy("item").count().collect())


for store in range(20):
    query(store)
start = time.monotonic()
for i in range(int(QUERIES)):
    query(i % 20)
print("queries", time.monotonic() - start)
spark.sparkContext.setJobDescription("wide")
wide = spark.read.text(f"{ROOT}/../wide")
start = time.monotonic()
wide.take(1)
print("wide", time.monotonic() - start)


def cpu_seconds(task):
    words = (task / "stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def is_adapter(task):
    try:
        return (task / "comm").read_text().startswith("copperfs-spark")
    except OSError:
        return False  # Spark's own threads come and go.


driver = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}")
threads = filter(is_adapter, (driver / "task").iterdir())
print("cpu", sum(map(cpu_seconds, threads)), "of", cpu_seconds(driver))
spark.stop()

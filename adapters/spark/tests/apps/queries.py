"""Runs each scenario under a job description of its name, so that its jobs can be told apart."""

import sys
import threading
import time

from pyspark import SparkContext, StorageLevel, TaskContext
from pyspark.sql import SparkSession, functions as F

ROOT, WORK = sys.argv[1:3]
ONLY = sys.argv[3:]
spark = SparkSession.builder.appName("queries").getOrCreate()
sc = spark.sparkContext

SCENARIOS = {}


def scenario(*settings):
    def register(function):
        SCENARIOS[function.__name__] = (function, dict(settings))
        return function

    return register


def table(name):
    return spark.read.parquet(f"{ROOT}/{name}")


NO_AQE = ("spark.sql.adaptive.enabled", "false")
NO_BROADCAST = ("spark.sql.autoBroadcastJoinThreshold", "-1")


@scenario()
def aggregate():
    assert table("sales").groupBy("store").agg(F.sum("amount")).count() == 20


@scenario(NO_AQE)
def aggregate_static():
    assert len(table("sales").groupBy("store").agg(F.sum("amount")).collect()) == 20


@scenario()
def pruned_days():
    assert table("sales").where("day between '2024-01-02' and '2024-01-03'").count() == 12_000


@scenario(NO_BROADCAST)
def shuffled_join():
    assert table("sales").join(table("returns").select("id", "store"), "id").groupBy("id").count().count() > 0


@scenario(NO_BROADCAST, ("spark.sql.adaptive.autoBroadcastJoinThreshold", "10m"))
def broadcast_switch():
    """Planned as a sort-merge join, and replaced by a broadcast join at run time."""
    items = table("items.parquet").where("kind = 3")
    query = table("sales").join(items, "item").groupBy("name").agg(F.sum("amount"))
    assert query.count() == 20
    query.collect()
    assert "BroadcastHashJoin" in query._jdf.queryExecution().executedPlan().toString()


@scenario()
def broadcast_join():
    query = table("sales").join(F.broadcast(table("items.parquet")), "item").groupBy("kind").count()
    assert len(query.collect()) == 10


@scenario()
def dropped_scan():
    """The broadcast side is empty at run time, so the other side is not read."""
    empty = table("items.parquet").where("length(name) > 1000")
    assert table("sales").join(F.broadcast(empty), "item").groupBy("kind").count().collect() == []


def pruning():
    calendar = table("calendar.parquet").where("week = 1")
    query = table("sales").join(calendar, "day").groupBy("store").agg(F.sum("amount"))
    rows = query.collect()
    assert len(rows) == 20
    assert "dynamicpruning" in query._jdf.queryExecution().executedPlan().toString().lower()


@scenario()
def dynamic_pruning():
    pruning()


@scenario(NO_AQE)
def dynamic_pruning_static():
    pruning()


@scenario(("spark.sql.sources.useV1SourceList", ""))
def dynamic_pruning_v2():
    calendar = table("calendar.parquet").where("week = 1")
    assert table("sales").join(calendar, "day").groupBy("store").count().count() == 20


@scenario(("spark.sql.sources.useV1SourceList", ""))
def sources_v2():
    assert table("sales").where("day < '2024-01-03'").groupBy("store").count().count() == 20
    assert spark.read.csv(f"{ROOT}/csv", schema="i int, x double").agg(F.sum("x")).collect()


@scenario(NO_BROADCAST)
def union_twice():
    sales = table("sales").select("store", "amount")
    assert sales.union(sales).count() == 96_000


@scenario(NO_AQE)
def union_coalesced():
    sales = table("sales").select("store")
    query = sales.union(sales).union(table("returns").select("store")).coalesce(3)
    assert len(query.collect()) == 120_000


@scenario(NO_BROADCAST)
def reused_exchange():
    totals = table("sales").groupBy("item").agg(F.sum("amount").alias("total"))
    assert totals.alias("a").join(totals.alias("b"), "item").count() == 200


@scenario(NO_BROADCAST, NO_AQE)
def reused_exchange_static():
    totals = table("sales").groupBy("item").agg(F.sum("amount").alias("total"))
    assert totals.alias("a").join(totals.alias("b"), "item").count() == 200


@scenario(NO_BROADCAST, ("spark.sql.exchange.reuse", "false"))
def exchange_not_reused():
    totals = table("sales").groupBy("item").agg(F.sum("amount").alias("total"))
    assert totals.alias("a").join(totals.alias("b"), "item").count() == 200


def subqueries():
    table("sales").createOrReplaceTempView("sales")
    table("returns").createOrReplaceTempView("returns")
    query = """select count(*) from returns where amount > (select avg(amount) from sales)
               union all select count(*) from sales where amount > (select avg(amount) from sales)"""
    assert len(spark.sql(query).collect()) == 2


@scenario()
def subquery_reused():
    subqueries()


@scenario(NO_AQE)
def subquery_reused_static():
    subqueries()


@scenario()
def sorted_rows():
    """The range exchange samples its input first, so the files are read twice."""
    assert len(table("sales").orderBy("amount").collect()) == 48_000


@scenario(NO_AQE)
def sorted_rows_static():
    assert len(table("sales").select("amount").orderBy("amount").collect()) == 48_000


@scenario()
def window_and_sort():
    table("sales").createOrReplaceTempView("sales")
    query = """select store, item, total, rank() over (partition by store order by total) r from
               (select store, item, sum(amount) total from sales group by store, item) order by total"""
    assert len(spark.sql(query).collect()) > 1000


@scenario()
def first_rows():
    assert len(table("sales").take(5)) == 5


@scenario()
def all_rows_in_steps():
    """Asks for more rows than there are, so that several jobs read one partition after another."""
    assert len(table("returns").where("amount < 0.01").take(1_000_000)) > 0


@scenario()
def cached_frame():
    frame = table("sales").where("store = 3").cache()
    count = frame.count()
    assert count == frame.count() == len(frame.collect())
    assert frame.groupBy("item").count().count() > 0
    frame.unpersist(True)
    assert frame.count() == count


@scenario(NO_BROADCAST)
def cached_self_join():
    frame = table("returns").where("store < 4").cache()
    assert frame.alias("a").join(frame.alias("b"), "id").count() > 0
    frame.unpersist(True)


@scenario(NO_AQE, NO_BROADCAST)
def cached_self_join_static():
    frame = table("returns").where("store < 5").cache()
    assert frame.alias("a").join(frame.alias("b"), "id").count() > 0
    frame.unpersist(True)


@scenario()
def cached_in_part():
    frame = table("returns").where("store < 6").cache()
    frame.take(1)
    frame.count()
    frame.unpersist(True)


@scenario(NO_BROADCAST)
def bucketed_join():
    """Joined without a shuffle: a task reads a bucket of each table."""
    for name in "sales", "returns":
        writer = table(name).where("day < '2024-01-03'").write.bucketBy(4, "id")
        writer.mode("overwrite").saveAsTable(f"bucketed_{name}")
    assert spark.table("bucketed_sales").join(spark.table("bucketed_returns"), "id").count() > 0


@scenario()
def written():
    table("sales").where("store = 1").repartition(2).write.mode("overwrite").parquet(f"{WORK}/written")


@scenario()
def formats():
    assert spark.read.text(f"{ROOT}/text").count() == 6_000
    assert spark.read.csv(f"{ROOT}/csv", inferSchema=True).count() == 6_000
    assert spark.read.json(f"{ROOT}/json").agg(F.sum("i")).collect()
    assert spark.read.orc(f"{ROOT}/orc").count() == 200
    assert spark.read.text(f"{ROOT}/odd names").count() == 6


@scenario()
def outside():
    assert spark.read.parquet(f"{WORK}/written").join(table("items.parquet"), "item").count() > 0


@scenario()
def failed_task():
    @F.udf("long")
    def once(value):
        context = TaskContext.get()
        if context.partitionId() == 1 and context.attemptNumber() < 2:
            raise ValueError("the first two attempts fail")
        return value

    assert table("sales").select(once("id").alias("id")).agg(F.sum("id")).collect()


@scenario()
def failed_execution():
    @F.udf("long")
    def never(value):
        if TaskContext.get().partitionId() == 2:
            raise ValueError("all attempts fail")
        return value

    try:
        table("sales").select(never("id").alias("id")).agg(F.sum("id")).collect()
    except Exception as error:
        assert "all attempts fail" in str(error)
    else:
        raise AssertionError("the execution did not fail")


@scenario()
def cancelled_execution():
    @F.udf("long")
    def slow(value):
        time.sleep(0.05)
        return value

    def cancel():
        while not sc.statusTracker().getActiveJobsIds():
            time.sleep(0.01)
        sc.cancelAllJobs()

    # Before the thread: reading the schema is a job too.
    query = table("sales").select(slow("id").alias("id")).agg(F.sum("id"))
    canceller = threading.Thread(target=cancel)
    canceller.start()
    try:
        query.collect()
    except Exception as error:
        assert "cancel" in str(error).lower()
    else:
        raise AssertionError("the execution was not cancelled")
    canceller.join()


@scenario()
def concurrent():
    def query(table_name, store):
        sc.setJobDescription("concurrent")
        assert table(table_name).where(F.col("store") == store).groupBy("item").count().collect()

    from pyspark import InheritableThread

    threads = [InheritableThread(target=query, args=(name, i)) for i, name in enumerate(["sales", "returns"] * 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@scenario()
def rdd_text():
    lines = sc.textFile(f"{ROOT}/text", 6)
    assert lines.count() == 6_000
    words = lines.map(lambda line: (line.split()[1], 1)).reduceByKey(lambda a, b: a + b)
    assert words.count() == 7
    # The shuffle output exists, so this reads nothing.
    assert words.count() == 7


@scenario()
def rdd_sorted():
    assert len(sc.textFile(f"{ROOT}/text").sortBy(len).collect()) == 6_000


@scenario()
def rdd_cached():
    lines = sc.textFile(f"{ROOT}/text").persist(StorageLevel.MEMORY_AND_DISK)
    assert lines.count() == lines.count() == 6_000
    # The same cached partitions in two places of one stage.
    assert lines.union(lines).count() == 12_000
    lines.unpersist(True)


@scenario()
def rdd_uncached_twice_in_a_stage():
    lines = sc.textFile(f"{ROOT}/text").persist(StorageLevel.MEMORY_AND_DISK)
    assert lines.union(lines).count() == 12_000
    lines.unpersist(True)


@scenario()
def rdd_union_zip_cartesian():
    lines = sc.textFile(f"{ROOT}/text", 3)
    assert lines.union(lines).coalesce(2).count() == 12_000
    short = lines.filter(lambda line: line.startswith("1 "))
    assert short.cartesian(short).count() == 9
    assert lines.zip(lines).count() == 6_000


@scenario()
def rdd_whole_files():
    assert sc.wholeTextFiles(f"{ROOT}/odd names").count() == 3


@scenario()
def rdd_failed_task():
    def once(index, part):
        if index == 1 and TaskContext.get().attemptNumber() == 0:
            raise ValueError("the first attempt fails")
        return part

    assert sc.textFile(f"{ROOT}/text", 4).mapPartitionsWithIndex(once).count() == 6_000


@scenario()
def rdd_of_a_frame():
    rows = table("returns").select("id").rdd
    assert rows.count() == 24_000
    assert rows.map(lambda row: (row.id % 3, 1)).reduceByKey(lambda a, b: a + b).count() == 3


@scenario()
def frame_of_an_rdd():
    lines = sc.textFile(f"{ROOT}/text").map(lambda line: (line,))
    assert spark.createDataFrame(lines, "line string").groupBy(F.length("line")).count().collect()


@scenario()
def rows_one_partition_at_a_time():
    assert sum(1 for _ in table("returns").toLocalIterator()) == 24_000


for name, (function, settings) in SCENARIOS.items():
    if ONLY and name not in ONLY:
        continue
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    sc.setJobDescription(name)
    function()
    for key, value in before.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)
    print("ran", name, flush=True)
spark.stop()

"""One application, many scenarios: the reads that the adapter reports are those of Spark's log."""

import re
from pathlib import Path

import pytest

SCENARIOS = re.findall(r"@scenario\(.*\)\ndef (\w+)", (Path(__file__).parent / "apps" / "queries.py").read_text())
# Their last tasks end after the execution has ended.
INTERRUPTED = {"failed_execution", "cancelled_execution"}


def sizes(run, scenario):
    return {job: [len(tasks) for tasks in attempts] for job, attempts in run.submissions(scenario).items()}


def test_all_scenarios_have_run(queries):
    assert len(SCENARIOS) > 40
    assert queries.result.stdout.split("\n")[: len(SCENARIOS)] == [f"ran {name}" for name in SCENARIOS]


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name not in INTERRUPTED])
def test_finished_reads_are_those_of_the_log(queries, scenario):
    read = queries.log.successful(scenario)
    assert read.total() > 0
    assert queries.finished(scenario) == read


@pytest.mark.parametrize("scenario", sorted(INTERRUPTED))
def test_an_interrupted_execution_reports_no_more_than_was_read(queries, scenario):
    assert queries.finished(scenario) <= queries.log.successful(scenario)
    assert [attempts for attempts in sizes(queries, scenario).values()] == [[16]]


def test_all_counts_end_at_zero(queries):
    assert queries.counts.live == {}
    assert set(queries.counts.count.values()) == {0}


def test_no_line_was_sent_for_files_outside_the_dataset(queries):
    files = {name for line in queries.lines if line["op"] == "submit" for name in line["files"]}
    assert len(files) > 30
    assert all((queries.log.root / name).is_file() for name in files if not name.startswith("tables/"))
    assert not [name for name in files if "written" in name]


def test_the_adapter_has_nothing_to_complain_about(queries):
    assert [line for line in queries.warnings if "copperfs:" in line or "Exception" in line] == []


@pytest.mark.parametrize(
    "scenario, attempts",
    {
        # One attempt: nothing was planned that was not read, and nothing was found late.
        "aggregate": [[16]],
        "aggregate_static": [[16]],
        "pruned_days": [[4]],
        "shuffled_join": [[24]],
        "broadcast_switch": [[20], [20]],
        "broadcast_join": [[20]],
        "union_twice": [[32]],
        "union_coalesced": [[40]],
        "reused_exchange": [[16]],
        "reused_exchange_static": [[16]],
        "exchange_not_reused": [[32]],
        "sorted_rows": [[32]],
        "sorted_rows_static": [[32]],
        "cached_frame": [[16], [16]],
        "cached_self_join": [[8]],
        "cached_self_join_static": [[8]],
        "failed_task": [[16]],
        # The dropped scan leaves with the second attempt.
        "dropped_scan": [[20, 4]],
        # The files are known when the pruning subquery has ended.
        "dynamic_pruning": [[1, 9]],
        "dynamic_pruning_static": [[1, 9]],
        "rdd_text": [[6], [6]],
        "rdd_cached": [[3]],
        "rdd_uncached_twice_in_a_stage": [[3]],
        "rdd_failed_task": [[6]],
    }.items(),
)
def test_tasks_of_each_attempt(queries, scenario, attempts):
    assert list(sizes(queries, scenario).values()) == attempts


def test_the_two_reads_of_a_sort_are_two_passes(queries):
    ((tasks,),) = queries.submissions("sorted_rows").values()
    first, again = (
        {name.split("/")[1]: inputs for name, inputs in tasks.items() if name.startswith(scan)}
        for scan in ("scan1/", "scan1.1/")
    )
    assert len(first) == 16 and first == again


def test_a_partition_is_a_range_of_its_file(queries):
    ((tasks,),) = queries.submissions("pruned_days").values()
    ranges = [item for inputs in tasks.values() for item in inputs]
    assert {name.split("/")[1] for name, _, _ in ranges} == {"day=2024-01-02", "day=2024-01-03"}
    assert all(name == f"scan1/{i}" for i, name in enumerate(tasks))


def test_failed_attempts_are_reported(queries):
    jobs = queries.submissions("failed_task")
    assert sum(queries.counts.failed[f"{queries.app}/{job}"] for job in jobs) == 2
    jobs = queries.submissions("rdd_failed_task")
    assert sum(queries.counts.failed[f"{queries.app}/{job}"] for job in jobs) == 1

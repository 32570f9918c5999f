"""Lost executors and speculative copies, on a standalone cluster with two workers."""

import pytest


@pytest.mark.parametrize(
    "scenario",
    ["lost_output_static", "lost_output_adaptive", "lost_output_of_rdds", "lost_output_between_jobs"],
)
def test_stages_that_run_again(on_cluster, scenario):
    read = on_cluster.log.successful(scenario)
    assert on_cluster.finished(scenario) == read
    # Some files were read twice, so the scenario has lost an output.
    assert max(read.values()) > 1


@pytest.mark.parametrize("scenario", ["lost_output_static", "lost_output_adaptive", "lost_output_of_rdds"])
def test_a_repeated_stage_has_a_job_of_its_own(on_cluster, scenario):
    first, *repeats = on_cluster.submissions(scenario)
    assert repeats and all(job.startswith(f"{first}/stage-") for job in repeats)


def test_speculative_copies_count_once(on_cluster):
    copies = [tid for tid in on_cluster.log.started if on_cluster.log.scenario(tid) == "speculation"]
    assert max(on_cluster.log.all_reads("speculation").values()) > 1, f"no copy was started: {copies}"
    assert on_cluster.finished("speculation") == on_cluster.log.successful("speculation")
    assert on_cluster.finished("speculation").total() == 8


def test_all_counts_end_at_zero(on_cluster):
    assert on_cluster.counts.live == {}
    assert set(on_cluster.counts.count.values()) == {0}

"""The names of jobs are those that the daemon finds (docs/JOBS.md)."""

from __future__ import annotations

import pytest

from copperfs.job import job_name

POD = (
    "0::/kubepods.slice/kubepods-burstable.slice/"
    "kubepods-burstable-pod0f6b1c2d_1111_2222_3333_444455556666.slice/cri-1"
)


@pytest.mark.parametrize(
    ("environment", "cgroup", "name"),
    [
        ({}, "", None),
        ({"COPPERFS_JOB": "a", "SLURM_JOB_ID": "7"}, "", "run:a"),
        ({"COPPERFS_JOB": "a:b"}, "", "run:a:b"),
        ({"SLURM_JOB_ID": "7"}, "", "slurm:7"),
        ({"SLURM_JOB_ID": "8", "SLURM_HET_JOB_ID": "7"}, "", "slurm:7"),
        ({"PBS_JOBID": "77[3].server.example"}, "", "pbs:77[3]"),
        ({"TORCHELASTIC_RUN_ID": "x"}, POD, "k8s:0f6b1c2d-1111-2222-3333-444455556666"),
        ({}, "0::/kubepods/besteffort/pod" + "0a" * 16 + "/c", "k8s:" + "0a" * 16),
        ({"TORCHELASTIC_RUN_ID": "x"}, "0::/user.slice", "torchrun:x"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "", None),
    ],
)
def test_names(environment: dict[str, str], cgroup: str, name: str | None) -> None:
    assert job_name(environment, cgroup) == name

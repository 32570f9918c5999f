"""The name of the job that this process belongs to (docs/JOBS.md)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

# A uid has 36 characters, with underscores in the names of slices; the digest of a static pod 32.
_POD = re.compile(r"kubepods.*pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})\b")


def job_name(environment: Mapping[str, str] = os.environ, cgroup: str | None = None) -> str | None:
    """Returns the job's name: `run:a`, `slurm:1234`; or none if nothing names one.

    The order is the daemon's, which looks at the same variables of this process. `cgroup` is the content
    of `/proc/self/cgroup`.
    """
    if named := environment.get("COPPERFS_JOB"):
        return f"run:{named}"
    if slurm := environment.get("SLURM_HET_JOB_ID") or environment.get("SLURM_JOB_ID"):
        return f"slurm:{slurm}"
    if pbs := environment.get("PBS_JOBID"):
        return f"pbs:{pbs.split('.', 1)[0]}"
    if pod := _POD.search(_own_cgroup() if cgroup is None else cgroup):
        return f"k8s:{pod[1].replace('_', '-')}"
    run = environment.get("TORCHELASTIC_RUN_ID")
    return f"torchrun:{run}" if run and run != "none" else None


def _own_cgroup() -> str:
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""

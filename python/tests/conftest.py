"""Fixtures: a small dataset on disk, and a daemon that knows it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from daemon import Daemon, answer
from writer import write_dataset

import copperfs
from copperfs import Dataset, Manifest

ENTRIES = 200
_ETAGS = itertools.count()


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    served = Daemon()
    yield served
    served.stop()


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own job, or torchrun, is not that of what they test."""
    for name in ("COPPERFS_JOB", "SLURM_JOB_ID", "SLURM_HET_JOB_ID", "PBS_JOBID", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the dataset, which no test changes."""
    made = tmp_path_factory.mktemp("mount")
    write_dataset(made, ENTRIES)
    return made


@pytest.fixture
def manifest(directory: Path) -> Manifest:
    return Manifest.open(directory / "test.manifest")


@pytest.fixture
def data(daemon: Daemon, manifest: Manifest, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """The dataset of `writer.write_dataset`, of the job run:test, with a daemon that holds nothing of it."""
    monkeypatch.setenv("COPPERFS_JOB", "test")
    view = {"name": "d", "path": "/data", "manifest": "/test.manifest", "identity": manifest.identity}
    daemon.routes[("GET", "/v1/datasets/d")] = answer(view)
    daemon.routes[("GET", "/v1/datasets")] = answer({"datasets": [view]})
    hold(daemon, np.zeros(ENTRIES, dtype=np.bool_))
    serve_uniform(daemon)
    daemon.routes[("GET", "/v1/jobs/run%3Atest/mode")] = answer({"mode": "cached", "batches": 100})
    daemon.routes[("POST", "/v1/jobs/run%3Atest/report")] = answer(status=204)
    return copperfs.connect(directory, socket=daemon.name).dataset("d")


def hold(daemon: Daemon, bits: np.ndarray) -> None:
    """Makes the daemon hold entries."""
    etag = f'"{next(_ETAGS)}"'
    body = np.packbits(bits, bitorder="little").tobytes()

    def residency(_: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        if headers.get("If-None-Match") == etag:
            return 304, {"ETag": etag}, b""
        return 200, {"ETag": etag}, body

    daemon.routes[("GET", "/v1/datasets/d/residency")] = residency


def serve_chunks(daemon: Daemon, **states: str) -> None:
    """Makes chunks resident: `serve_chunks(daemon, c3="loading")`."""
    _serve_chunks(
        daemon,
        [
            {"chunk": int(name[1:]), "state": state, "held": 0, "entries": ENTRIES // 10}
            for name, state in states.items()
        ],
    )


def serve_uniform(daemon: Daemon) -> None:
    """Makes the dataset one that is not kept in chunks."""
    _serve_chunks(daemon, None)


def _serve_chunks(daemon: Daemon, resident: list[dict[str, object]] | None) -> None:
    shape = {"partitions": 10, "stripes": 10, "entries": ENTRIES}
    for method in ("GET", "POST"):
        daemon.routes[(method, "/v1/datasets/d/chunks")] = answer(
            {"serial": "1.1", **shape, "resident": resident}
        )
    for chunk in range(10):
        for verb in ("ref", "unref"):
            daemon.routes[("POST", f"/v1/datasets/d/chunks/{chunk}/{verb}")] = answer(status=204)


def serve_nodes(daemon: Daemon, *nodes: tuple[str, int]) -> None:
    """Makes nodes, given by name and capacity, the homes of all datasets."""
    homes = [
        {"rank": rank, "node": name, "capacity": capacity} for rank, (name, capacity) in enumerate(nodes)
    ]
    daemon.routes[("GET", "/v1/datasets/d/homes")] = answer(
        {"serial": "1.1", "identity": None, "homes": homes}
    )

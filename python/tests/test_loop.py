"""Mini-batches without torch."""

from __future__ import annotations

import json
import threading
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from conftest import ENTRIES, hold, serve_chunks
from daemon import Daemon, answer
from writer import content_of

import copperfs
from copperfs import Dataset, Timeline


def number(contents: bytes) -> int:
    return int(contents[:6])


def test_an_epoch_has_every_entry_once(data: Dataset) -> None:
    batches = copperfs.batches(data, 16, number, collate=np.array)
    seen = list(batches)
    assert len(seen) == len(batches) == 13
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(ENTRIES))


def test_contents_stay_with_their_entries(data: Dataset) -> None:
    sampler = copperfs.SubstitutableSampler(data, 16, seed=2)
    drawn = list(sampler)
    contents = list(copperfs.batches(data, 16, seed=2, threads=3))
    assert contents == [[content_of(entry) for entry in batch] for batch in drawn]


def test_samples_have_targets(data: Dataset) -> None:
    batches = copperfs.batches(data, 16, number, target=lambda path: int(path[:6]), threads=3)
    pairs = [pair for batch in batches for pair in batch]
    assert sorted(pairs) == [(entry, entry) for entry in range(ENTRIES)]


def test_a_state_holds_what_was_yielded(data: Dataset) -> None:
    first = copperfs.batches(data, 16, number, ahead=3)
    seen = [entry for batch in islice(first, 5) for entry in batch]
    second = copperfs.batches(data, 16, number)
    second.load_state_dict(first.state_dict())
    seen += [entry for batch in second for entry in batch]
    assert sorted(seen) == list(range(ENTRIES))


def test_resident_entries_come_first(data: Dataset, daemon: Daemon) -> None:
    bits = np.zeros(ENTRIES, dtype=np.bool_)
    bits[50:100] = True
    hold(daemon, bits)
    seen = [entry for batch in copperfs.batches(data, 10, number) for entry in batch]
    assert set(seen[:50]) == set(range(50, 100))


def test_progress_is_reported(data: Dataset, daemon: Daemon) -> None:
    hold(daemon, np.arange(ENTRIES) < 100)
    for _ in copperfs.batches(data, 4, number):
        pass
    reports = [json.loads(body) for body in daemon.asked("/v1/jobs/run%3Atest/report")]
    # The first mini-batch has no time of its own.
    assert sum(report["batches"] for report in reports) == ENTRIES // 4 - 1
    assert sum(report["hits"] for report in reports) == 96
    assert sum(report["misses"] for report in reports) == 100
    assert all(report["seconds"] > 0 and report["mode"] == "cached" for report in reports)


def test_chunks_are_referred_to_and_given_back(data: Dataset, daemon: Daemon) -> None:
    serve_chunks(daemon, c0="complete")
    hold(daemon, data.chunks(max_age=0).layout.mask(0).copy())
    for _ in copperfs.batches(data, 5, number):
        pass
    joined = [json.loads(said) for said in daemon.asked("/v1/datasets/d/chunks") if said]
    epoch = joined[0]["epoch"]
    assert joined[0] == {"job": "run:test", "rank": 0, "epoch": epoch}
    assert {"job": "run:test", "rank": 0, "epoch": epoch, "exhausted": [0]} in joined
    assert {said["epoch"] for said in joined} == {epoch}
    assert joined[-1]["exhausted"] == list(range(10))
    assert json.loads(*daemon.asked("/v1/datasets/d/chunks/0/ref")) == {
        "job": "run:test",
        "rank": 0,
        "epoch": epoch,
    }
    # All that there is to tell was told with the joins.
    assert daemon.asked("/v1/datasets/d/chunks/0/unref") == []


def test_an_epoch_that_is_broken_off_gives_its_chunk_back(data: Dataset, daemon: Daemon) -> None:
    serve_chunks(daemon, c0="complete")
    hold(daemon, data.chunks(max_age=0).layout.mask(0).copy())
    for _ in copperfs.batches(data, 5, number, ahead=1):
        break
    assert json.loads(*daemon.asked("/v1/datasets/d/chunks/0/unref"))["exhausted"] is False
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("copperfs-filler")]


def test_a_loading_chunk_is_filled_meanwhile(data: Dataset, daemon: Daemon) -> None:
    daemon.routes[("POST", "/v1/content/get")] = lambda body, _: answer(b"\xff" * (len(body) // 8))
    daemon.routes[("POST", "/v1/content/insert")] = lambda body, _: answer(b"\0")
    serve_chunks(daemon, c3="loading")
    layout = data.chunks(max_age=0).layout
    fetched: list[int] = []

    def fetch(path: str, offset: int, length: int) -> bytes:
        fetched.append(int(path[:6]))
        return content_of(int(path[:6]))[offset : offset + length]

    epoch = iter(copperfs.batches(data, 1, number, fetch=fetch, ahead=1))
    first = next(epoch)
    until = time.monotonic() + 10
    while not set(layout.chunk(3).tolist()) <= set(fetched) and time.monotonic() < until:
        time.sleep(0.01)
    assert set(layout.chunk(3).tolist()) <= set(fetched)
    # The misses are of the chunk that loads.
    assert first[0] in layout.chunk(3)
    epoch.close()


def test_misses_are_fetched_and_given_to_the_cache(data: Dataset, daemon: Daemon, tmp_path: Path) -> None:
    held = {data.entry(entry).hash: content_of(entry) for entry in range(0, ENTRIES, 2)}
    given: list[bytes] = []

    def get(body: bytes, _: object) -> tuple[int, dict[str, str], bytes]:
        hashes = [body[at : at + 32] for at in range(0, len(body), 32)]
        frames = [
            len(held[one]).to_bytes(4, "little") + held[one] if one in held else b"\xff" * 4 for one in hashes
        ]
        return answer(b"".join(frames))

    def insert(body: bytes, _: object) -> tuple[int, dict[str, str], bytes]:
        count = at = 0
        while at < len(body):
            given.append(body[at : at + 32])
            at += 36 + int.from_bytes(body[at + 32 : at + 36], "little")
            count += 1
        return answer(bytes(count))

    daemon.routes[("POST", "/v1/content/get")] = get
    daemon.routes[("POST", "/v1/content/insert")] = insert
    # Nothing can be read by its path.
    data.root = str(tmp_path)
    seen = [
        entry
        for batch in copperfs.batches(data, 16, number, fetch=lambda path, *_: content_of(int(path[:6])))
        for entry in batch
    ]
    assert sorted(seen) == list(range(ENTRIES))
    assert sorted(given) == sorted(data.entry(entry).hash for entry in range(1, ENTRIES, 2))


def test_a_fetch_of_other_bytes_is_an_error(data: Dataset, daemon: Daemon) -> None:
    daemon.routes[("POST", "/v1/content/get")] = lambda body, _: answer(b"\xff" * (len(body) // 8))
    with pytest.raises(OSError, match=r"fetch\('.*', 0, \d+\) returned 3 bytes"):
        list(copperfs.batches(data, 16, fetch=lambda *_: b"odd", fill=0))


def test_a_timeline_is_recorded(data: Dataset) -> None:
    timeline = Timeline(batches=5, skip=1)
    for _ in copperfs.batches(data, 10, number, timeline=timeline):
        time.sleep(0.002)
    assert len(timeline.spans) == 5
    for spans in timeline.spans:
        assert spans.io.begin <= spans.io.end <= spans.transform.end <= spans.compute.begin
        assert spans.compute.seconds >= 0.002


def test_an_error_of_decode_reaches_the_loop(data: Dataset) -> None:
    def decode(contents: bytes) -> int:
        raise ValueError("not a picture")

    with pytest.raises(ValueError, match="not a picture"):
        next(iter(copperfs.batches(data, 10, decode)))


def test_impossible_numbers_of_threads_are_refused(data: Dataset) -> None:
    with pytest.raises(ValueError, match="threads=0"):
        copperfs.batches(data, 10, threads=0)

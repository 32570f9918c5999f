"""What a dataset asks of the daemon, and what it makes of the answers."""

from __future__ import annotations

import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ENTRIES, hold, serve_chunks
from daemon import Daemon, answer
from writer import Written, content_of

from copperfs import CopperWarning, Dataset, Layout, Manifest
from copperfs.dataset import _HASHES_MAX, KEPT, REFUSED, Chunk


def test_entries_are_read_through_the_mount(data: Dataset) -> None:
    assert len(data) == ENTRIES
    assert data.read(7) == content_of(7)
    assert data.entry(7).path == "000007.bin"


def test_a_file_that_has_become_shorter_is_an_error(data: Dataset, tmp_path: Path) -> None:
    data.root = str(tmp_path)
    Path(data.path(7)).write_bytes(b"x")
    with pytest.raises(OSError, match="ends at byte 1, and entry 7 reaches to byte 21.*changed"):
        data.read(7)


def test_many_entries_are_read_in_their_order(data: Dataset) -> None:
    entries = [7, 3, 199, 7, *range(100)]
    assert data.read_many(entries) == [data.read(entry) for entry in entries]
    assert data.read_many(np.array([5, 0])) == [content_of(5), content_of(0)]
    assert data.read_many(entry for entry in (2, 1)) == [content_of(2), content_of(1)]
    assert data.read_many([]) == []


def test_parts_of_a_file_are_read_by_their_places(data: Dataset, tmp_path: Path) -> None:
    contents, written = bytes(range(256)) * 20, Written()
    written.add_file("shard", contents, [(0, 100), (100, 0), (100, 5000), (5100, 20)])
    (tmp_path / "shard").write_bytes(contents)
    (tmp_path / "m").write_bytes(written.encode())
    mine = Dataset(data.mount, Manifest.open(tmp_path / "m"), None, str(tmp_path))
    assert mine.read_many([3, 2, 1, 0]) == [contents[5100:], contents[100:5100], b"", contents[:100]]
    assert [mine.read(entry) for entry in range(4)] == mine.read_many(range(4))


def test_a_file_that_has_become_shorter_is_the_same_error_among_many(data: Dataset, tmp_path: Path) -> None:
    data.root = str(tmp_path)
    for entry in range(20):
        Path(data.path(entry)).write_bytes(content_of(entry)[: 1 if entry == 7 else None])
    with pytest.raises(OSError, match="000007.bin ends at byte 1, and entry 7") as alone:
        data.read(7)
    with pytest.raises(OSError, match="000007.bin ends at byte 1, and entry 7") as among_many:
        data.read_many(range(20))
    assert str(among_many.value) == str(alone.value)


def test_residency_is_a_bit_for_each_entry(data: Dataset, daemon: Daemon) -> None:
    bits = np.zeros(ENTRIES, dtype=np.bool_)
    bits[[0, 9, 199]] = True
    hold(daemon, bits)
    assert np.array_equal(data.resident(), bits)
    assert data.resident(np.array([8, 9])).tolist() == [False, True]


def test_residency_is_asked_for_the_entries_of_this_manifest(data: Dataset, daemon: Daemon) -> None:
    data.resident()
    assert daemon.requests[-1][1] == f"/v1/datasets/d/residency?identity={data.identity}"
    other = answer({"error": "d was declared again with another manifest"}, 409)
    daemon.routes[("GET", "/v1/datasets/d/residency")] = other
    with pytest.warns(CopperWarning, match="declared again"):
        assert not data.resident(max_age=0).any()


def test_residency_is_asked_for_when_it_is_old_and_sent_when_it_has_changed(
    data: Dataset, daemon: Daemon
) -> None:
    hold(daemon, np.ones(ENTRIES, dtype=np.bool_))
    first = data.resident()
    asked = len(daemon.asked("/v1/datasets/d/residency"))
    assert data.resident(max_age=60) is first
    assert len(daemon.asked("/v1/datasets/d/residency")) == asked
    assert data.resident(max_age=0) is first
    assert len(daemon.asked("/v1/datasets/d/residency")) == asked + 1
    hold(daemon, np.zeros(ENTRIES, dtype=np.bool_))
    assert not data.resident(max_age=0).any()


@pytest.mark.parametrize("body", [b"", b"\0" * 24, b"\0" * 26])
def test_residency_of_other_entries_is_not_used(data: Dataset, daemon: Daemon, body: bytes) -> None:
    daemon.routes[("GET", "/v1/datasets/d/residency")] = answer(body)
    with pytest.warns(CopperWarning, match="this manifest has 200; open the manifest with which 'd'"):
        assert not data.resident().any()


def test_a_dataset_that_is_removed_is_no_longer_resident(data: Dataset, daemon: Daemon) -> None:
    refusal = answer({"error": "there is no dataset d", "advice": "`copperfs dataset list`"}, 404)
    daemon.routes[("GET", "/v1/datasets/d/residency")] = refusal
    with pytest.warns(CopperWarning, match="there is no dataset d; `copperfs dataset list`"):
        assert not data.resident().any()


def test_chunks_are_the_daemons(data: Dataset, daemon: Daemon) -> None:
    serve_chunks(daemon, c3="complete", c4="loading")
    chunks = data.chunks(max_age=0)
    assert chunks.serial == "1.1"
    assert chunks.layout == Layout(ENTRIES, 10)
    assert chunks.resident == (Chunk(3, "complete", 0, 20), Chunk(4, "loading", 0, 20))


@pytest.mark.parametrize(
    "said",
    [
        {},
        [],
        {"entries": 200, "stripes": 0, "partitions": 10, "resident": []},
        {"entries": 200, "stripes": 10, "partitions": 10, "resident": [{}]},
        {"entries": 7, "stripes": 10, "partitions": 10, "resident": []},
        b"nonsense",
    ],
)
def test_chunks_that_make_no_sense_are_none(data: Dataset, daemon: Daemon, said: object) -> None:
    daemon.routes[("GET", "/v1/datasets/d/chunks")] = answer(said)
    with pytest.warns(CopperWarning, match="The run goes on"):
        assert data.chunks(max_age=0).resident == ()


def test_references_name_the_job(data: Dataset, daemon: Daemon) -> None:
    assert data.ref(3, rank=1)
    data.unref(3, exhausted=True)
    (ref,), (unref,) = (
        daemon.asked("/v1/datasets/d/chunks/3/ref"),
        daemon.asked("/v1/datasets/d/chunks/3/unref"),
    )
    assert json.loads(ref) == {"job": "run:test", "rank": 1}
    assert json.loads(unref) == {"job": "run:test", "rank": 0, "exhausted": True}


def test_a_job_joins_until_its_daemon_knows(data: Dataset, daemon: Daemon) -> None:
    serve_chunks(daemon, c3="loading")
    for _ in range(3):
        assert [chunk.number for chunk in data.join(rank=1).resident] == [3]
    assert [json.loads(said) for said in daemon.asked("/v1/datasets/d/chunks") if said] == [
        {"job": "run:test", "rank": 1}
    ]
    data.join()
    assert len([said for said in daemon.asked("/v1/datasets/d/chunks") if said]) == 2


def test_a_job_joins_again_when_it_has_something_new_to_tell(data: Dataset, daemon: Daemon) -> None:
    serve_chunks(daemon, c3="loading")
    for epoch, exhausted in [(7, []), (7, []), (7, [3, 1]), (7, [1, 3]), (8, []), (8, [])]:
        data.join(2, epoch, frozenset(exhausted))
    joined = [json.loads(said) for said in daemon.asked("/v1/datasets/d/chunks") if said]
    assert joined == [
        {"job": "run:test", "rank": 2, "epoch": 7},
        {"job": "run:test", "rank": 2, "epoch": 7, "exhausted": [1, 3]},
        {"job": "run:test", "rank": 2, "epoch": 8},
    ]


def test_a_join_that_failed_is_repeated_before_long(
    data: Dataset, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ("POST", "/v1/datasets/d/chunks")
    daemon.routes[path] = answer({"error": "too many", "try": "again"}, 503)
    with pytest.warns(CopperWarning, match="too many"):
        data.join(0, 7, frozenset())
    serve_chunks(daemon, c3="loading")
    data.join(0, 7, frozenset([3]))
    assert len([said for said in daemon.asked(path[1]) if said]) == 1
    monkeypatch.setattr("copperfs.dataset._JOIN_AGAIN_SECONDS", 0.0)
    assert data.join(0, 7, frozenset([3])).resident[0].number == 3
    assert len([said for said in daemon.asked(path[1]) if said]) == 2


def test_a_refusal_of_a_release_is_not_asked_for_again(data: Dataset, daemon: Daemon) -> None:
    serve_chunks(daemon, c3="complete")
    path = "/v1/datasets/d/chunks/3/unref"
    daemon.routes[("POST", path)] = answer({"error": "the job belongs to another user"}, 403)
    with pytest.warns(CopperWarning, match="another user"):
        data.unref(3, exhausted=False)
    for _ in range(3):
        data.join()
    assert len(daemon.asked(path)) == 1


def test_a_reference_to_a_chunk_that_is_gone_looks_again(data: Dataset, daemon: Daemon) -> None:
    data.chunks()
    serve_chunks(daemon, c5="complete")
    daemon.routes[("POST", "/v1/datasets/d/chunks/3/ref")] = answer({"error": "chunk 3 is not resident"}, 409)
    assert not data.ref(3)
    assert [chunk.number for chunk in data.chunks().resident] == [5]


def test_a_reference_that_fails_otherwise_is_told(data: Dataset, daemon: Daemon) -> None:
    refusal = {"error": "no allocator can be reached", "advice": "`copperfs status`"}
    daemon.routes[("POST", "/v1/datasets/d/chunks/3/ref")] = answer(refusal, 503)
    with pytest.warns(CopperWarning, match="no allocator can be reached; `copperfs status`"):
        assert not data.ref(3)


def test_a_process_of_no_job_refers_to_nothing(data: Dataset, daemon: Daemon) -> None:
    data.mount.job = None
    assert not data.ref(3)
    data.report(1, 1.0, 1)
    assert data.mode() == "cached"
    assert not [path for method, path, _ in daemon.requests if method == "POST" or "/jobs/" in path]


@pytest.mark.parametrize(
    ("said", "mode"), [("probe", "probe"), ("uncached", "uncached"), ("later", "cached"), (None, "cached")]
)
def test_a_mode_of_a_later_release_is_the_usual_one(
    data: Dataset, daemon: Daemon, said: object, mode: str
) -> None:
    daemon.routes[("GET", "/v1/jobs/run%3Atest/mode")] = answer({"mode": said})
    assert data.mode() == mode


def test_a_report_carries_its_numbers(data: Dataset, daemon: Daemon) -> None:
    data.report(20, 3.5, 900, 100, 800, "probe", ranks=8)
    (body,) = daemon.asked("/v1/jobs/run%3Atest/report")
    assert json.loads(body) == {
        "dataset": "d",
        "mode": "probe",
        "ranks": 8,
        "batches": 20,
        "seconds": 3.5,
        "hits": 900,
        "misses": 100,
        "substituted": 800,
    }


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_times_of_nonsense_are_refused(data: Dataset, seconds: float) -> None:
    with pytest.raises(ValueError, match="cannot be: report at least one, and the seconds"):
        data.report(1, seconds, 0)


@pytest.mark.parametrize(
    "numbers", [(0, 1.0, 0), (1, 1.0, -1), (1, 1.0, 0, -1), (1, 1.0, 5, 0, 6), (1, 1.0, 0, 0, 0, "fast")]
)
def test_counts_of_nonsense_are_refused(data: Dataset, numbers: tuple) -> None:
    with pytest.raises(ValueError, match="cannot be|give 'cached'"):
        data.report(*numbers)


def test_a_job_without_ranks_is_refused(data: Dataset) -> None:
    with pytest.raises(ValueError, match="a job has at least one"):
        data.report(1, 1.0, 1, ranks=0)


def test_look_ups_are_divided_into_requests(data: Dataset, daemon: Daemon) -> None:
    daemon.routes[("POST", "/v1/content/lookup")] = lambda body, _: answer(body[::32])
    hashes = np.zeros((_HASHES_MAX + 3, 32), dtype=np.uint8)
    hashes[[5, _HASHES_MAX + 1], 0] = 1
    assert np.flatnonzero(data.lookup(hashes)).tolist() == [5, _HASHES_MAX + 1]
    assert [len(body) for body in daemon.asked("/v1/content/lookup")] == [_HASHES_MAX * 32, 96]


def frame(contents: bytes | None) -> bytes:
    return b"\xff" * 4 if contents is None else len(contents).to_bytes(4, "little") + contents


def test_content_is_got_by_hash(data: Dataset, daemon: Daemon) -> None:
    daemon.routes[("POST", "/v1/content/get")] = answer(frame(b"one") + frame(None) + frame(b""))
    assert data.get([bytes(32)] * 3) == [b"one", None, b""]


def test_content_too_large_for_one_answer_is_got_in_parts(data: Dataset, daemon: Daemon) -> None:
    def get(body: bytes, _: object) -> tuple[int, dict[str, str], bytes]:
        if len(body) > 64:
            return answer({"error": "too large"}, 413)
        return answer(b"".join(frame(body[at : at + 1]) for at in range(0, len(body), 32)))

    daemon.routes[("POST", "/v1/content/get")] = get
    assert data.get([bytes([number] * 32) for number in range(7)]) == [bytes([n]) for n in range(7)]


@pytest.mark.parametrize("body", [b"", frame(b"one")[:-1], frame(b"one") * 2, frame(b"one") + b"\0"])
def test_content_cut_short_is_not_used(data: Dataset, daemon: Daemon, body: bytes) -> None:
    daemon.routes[("POST", "/v1/content/get")] = answer(body)
    with pytest.warns(CopperWarning, match="cut short"):
        assert data.get([bytes(32)]) == [None]


def test_inserts_are_divided_by_their_size(
    data: Dataset, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("copperfs.dataset.BODY_BYTES_MAX", 300)
    verdicts = iter([bytes([KEPT, REFUSED]), bytes([KEPT])])
    daemon.routes[("POST", "/v1/content/insert")] = lambda *_: answer(next(verdicts))
    contents = {bytes([number] * 32): bytes([number]) * 100 for number in range(3)}
    assert data.insert(contents) == [KEPT, REFUSED, KEPT]
    first, second = daemon.asked("/v1/content/insert")
    assert first == b"".join(digest + frame(contents[digest]) for digest in list(contents)[:2])
    assert len(second) == 136
    with pytest.raises(ValueError, match="300 bytes are too many"):
        data.insert({bytes(32): bytes(300)})


def test_a_hash_has_32_bytes(data: Dataset) -> None:
    for wrong in (lambda: data.lookup([b"short"]), lambda: data.get([b""]), lambda: data.insert({b"x": b""})):
        with pytest.raises(ValueError, match="a hash has 32 bytes"):
            wrong()


def test_a_worker_process_gets_the_dataset_without_answers(data: Dataset) -> None:
    data.resident()
    sent = pickle.dumps(data)
    assert len(sent) < 4000
    assert pickle.loads(sent).read(3) == content_of(3)
    assert not pickle.loads(sent).resident().any()


def test_a_chunk_is_given_back_when_the_daemon_answers_again(data: Dataset, daemon: Daemon) -> None:
    serve_chunks(daemon, c3="complete")
    refused = answer({"error": "too many", "try": "again"}, 503)
    path = "/v1/datasets/d/chunks/3/unref"
    daemon.routes[("POST", path)] = refused
    with pytest.warns(CopperWarning):
        data.unref(3, exhausted=True)
    assert len(daemon.asked(path)) == 1
    daemon.routes[("POST", path)] = answer(status=204)
    data.join()
    assert len(daemon.asked(path)) == 2
    data.join()
    assert len(daemon.asked(path)) == 2


def test_threads_wait_for_the_answer_that_one_of_them_asks_for(data: Dataset, daemon: Daemon) -> None:
    hold(daemon, np.ones(ENTRIES, dtype=np.bool_))
    serve_chunks(daemon, c3="loading")
    asked, go_on = threading.Event(), threading.Event()

    def slow(route: Any) -> Any:
        def respond(*request: Any) -> Any:
            asked.set()
            assert go_on.wait(0.9)
            return route(*request) if callable(route) else route

        return respond

    for what, question in (("residency", data.resident), ("chunks", data.chunks)):
        key = ("GET", f"/v1/datasets/d/{what}")
        daemon.routes[key] = slow(daemon.routes[key])
        asked.clear()
        go_on.clear()
        before = len(daemon.asked(key[1]))
        with ThreadPoolExecutor(4) as threads:
            first = threads.submit(question)
            assert asked.wait(10)
            others = [threads.submit(question) for _ in range(3)]
            assert not wait(others, timeout=0.1).done
            go_on.set()
            answers = [one.result() for one in (first, *others)]
        assert len(daemon.asked(key[1])) == before + 1
        if what == "residency":
            assert all(np.all(answer) for answer in answers)
        else:
            assert all(answer.resident[0].number == 3 for answer in answers)

"""The background filler: what is missing of the loading chunk, once, in a random order."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from caches import Caches
from conftest import serve_chunks
from daemon import Daemon, answer
from writer import content_of

from copperfs import CopperWarning, Dataset, Filler


def pieces(filler: Filler) -> list[int]:
    """All entries that a filler would fetch, while nothing changes."""
    found: list[int] = []
    while len(piece := filler.next_piece()):
        found += piece.tolist()
    return found


def test_what_is_missing_of_the_loading_chunk_comes_once() -> None:
    caches = Caches(10_000).hold(c2="complete", c3="loading")
    chunk = caches.layout.chunk(3)
    caches.bits[chunk[::4]] = True
    filler = Filler(caches)
    found = pieces(filler)
    assert sorted(found) == sorted(set(chunk.tolist()) - set(chunk[::4].tolist()))
    assert found != sorted(found)
    # What could not be kept is not fetched again at once.
    assert pieces(filler) == []


def test_what_is_lost_with_a_node_is_fetched_again() -> None:
    now = [100.0]
    caches = Caches(1000).hold(c3="loading")
    filler = Filler(caches, clock=lambda: now[0])
    chunk = caches.layout.chunk(3)
    assert sorted(pieces(filler)) == chunk.tolist()
    caches.bits[chunk[:90]] = True
    now[0] += 9.9
    assert pieces(filler) == []
    now[0] += 0.2
    assert sorted(pieces(filler)) == chunk[90:].tolist()


def test_each_process_has_an_order_of_its_own() -> None:
    caches = Caches(10_000).hold(c3="loading")
    first, second = pieces(Filler(caches)), pieces(Filler(caches))
    assert sorted(first) == sorted(second)
    # The first hundreds of two jobs are hardly the same: that divides the work.
    assert len(set(first[:300]) & set(second[:300])) < 150


def test_residency_is_looked_at_once_for_each_answer() -> None:
    caches = Caches(10_000).hold(c3="loading")
    filler = Filler(caches)
    last = caches.bits.copy()
    caches.resident = lambda: last  # type: ignore[method-assign]
    first = filler.next_piece()
    last[caches.layout.chunk(3)] = True
    # As long as the answer is the same object, it is not looked at again.
    second = filler.next_piece()
    assert len(first) == len(second) > 0
    assert not set(first.tolist()) & set(second.tolist())
    last = last.copy()
    assert not len(filler.next_piece())


def test_what_others_have_brought_meanwhile_is_left_out() -> None:
    caches = Caches(10_000).hold(c3="loading")
    filler = Filler(caches)
    mine = set(filler.next_piece().tolist())
    others = caches.layout.chunk(3)[:900]
    caches.bits[others] = True
    assert not set(pieces(filler)) & (mine | set(others.tolist()))


def test_the_next_chunk_follows() -> None:
    caches = Caches(1000).hold(c3="loading")
    filler = Filler(caches)
    assert all(caches.layout.mask(3)[pieces(filler)])
    caches.hold(c3="complete", c4="loading")
    assert all(caches.layout.mask(4)[pieces(filler)])
    caches.hold(c4="complete")
    assert pieces(filler) == []


@pytest.mark.parametrize("mode", ["probe", "uncached"])
def test_a_job_that_is_probed_or_switched_off_fills_nothing(mode: str) -> None:
    caches = Caches(1000).hold(c3="loading")
    caches.answers = mode
    assert pieces(Filler(caches)) == []


def wait_for(condition: Any) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until, "waited for 10 s"
        time.sleep(0.01)


def test_entries_are_read_through_the_mount(data: Dataset, daemon: Daemon) -> None:
    serve_chunks(daemon, c3="loading")
    filler = Filler(data)
    filler.start()
    filler.start()
    wait_for(lambda: filler.fetched == 20)
    filler.stop()
    assert filler.failed == 0


def test_entries_are_fetched_with_the_callers_credentials_and_inserted(data: Dataset, daemon: Daemon) -> None:
    serve_chunks(daemon, c3="loading")
    daemon.routes[("POST", "/v1/content/insert")] = answer(b"\0")
    layout = data.chunks().layout
    asked: list[tuple[str, int, int]] = []

    def fetch(path: str, offset: int, length: int) -> bytes:
        asked.append((path, offset, length))
        return content_of(int(path[:6]))

    filler = Filler(data, fetch)
    filler.start()
    wait_for(lambda: filler.fetched == 20)
    filler.stop()
    assert sorted(int(path[:6]) for path, _, _ in asked) == layout.chunk(3).tolist()
    inserted = {body[:32]: body[36:] for body in daemon.asked("/v1/content/insert")}
    assert inserted == {data.entry(int(n)).hash: content_of(int(n)) for n in layout.chunk(3)}


def test_a_failure_is_told_once_and_the_rest_goes_on(data: Dataset, daemon: Daemon, tmp_path: Path) -> None:
    serve_chunks(daemon, c3="loading")
    data.root = shutil.copytree(data.root, tmp_path / "own")
    for entry in data.chunks(max_age=0).layout.chunk(3)[:3]:
        Path(data.path(int(entry))).unlink()
    filler = Filler(data, readers=1)
    with pytest.warns(CopperWarning, match="cannot be fetched ahead: .*No such file") as caught:
        filler.start()
        wait_for(lambda: filler.fetched + filler.failed == 20)
        filler.stop()
    assert (filler.fetched, filler.failed, len(caught)) == (17, 3, 1)


def test_other_bytes_than_the_manifests_are_told_once_and_not_counted(
    data: Dataset, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_chunks(daemon, c3="loading")
    # The daemon compares: it answers that the bytes have another hash.
    monkeypatch.setattr("copperfs.reader._blake3", None)
    daemon.routes[("POST", "/v1/content/insert")] = answer(b"\3")
    filler = Filler(data, lambda path, *_: b"?" * len(content_of(int(path[:6]))), readers=4)
    with pytest.warns(CopperWarning, match="cannot be fetched ahead: fetch.* returned other bytes") as caught:
        filler.start()
        wait_for(lambda: filler.fetched + filler.failed == 20)
        filler.stop()
    assert (filler.fetched, filler.failed, len(caught)) == (0, 20, 1)


def test_threads_that_hung_end_although_others_were_started(data: Dataset, daemon: Daemon) -> None:
    serve_chunks(daemon, c3="loading")
    daemon.routes[("POST", "/v1/content/insert")] = answer(b"\0")
    goes_on = threading.Event()

    def hangs(path: str, *_: int) -> bytes:
        goes_on.wait(30)
        return content_of(int(path[:6]))

    def running() -> int:
        return sum(thread.name.startswith("copperfs-filler") for thread in threading.enumerate())

    filler = Filler(data, hangs, readers=1)
    filler.start()
    time.sleep(0.1)
    filler.stop()
    filler.start()
    assert running() == 2
    goes_on.set()
    wait_for(lambda: running() == 1)
    filler.stop()


def test_a_filler_of_no_threads_fetches_nothing(data: Dataset, daemon: Daemon) -> None:
    serve_chunks(daemon, c3="loading")
    filler = Filler(data, readers=0)
    filler.start()
    filler.stop()
    assert filler.fetched == 0
    assert len(filler.next_piece())
    with pytest.raises(ValueError, match="give 0 for none"):
        Filler(data, readers=-1)


def test_threads_that_hang_are_left_behind(data: Dataset, daemon: Daemon) -> None:
    serve_chunks(daemon, c3="loading")
    daemon.routes[("POST", "/v1/content/insert")] = answer(b"\0")
    ended = threading.Event()

    def hangs(path: str, *_: int) -> bytes:
        ended.wait(30)
        return content_of(int(path[:6]))

    filler = Filler(data, hangs, readers=4)
    filler.start()
    time.sleep(0.1)
    begin = time.monotonic()
    filler.stop()
    # The readers hang for 30 s.
    assert time.monotonic() - begin < 20
    ended.set()
    wait_for(lambda: not [one for one in threading.enumerate() if one.name.startswith("copperfs-filler")])

"""The connection to the daemon: answers, refusals, and every way in which it can fail."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import time
import warnings
from pathlib import Path
from typing import Callable

import pytest
from daemon import Daemon, answer

import copperfs
from copperfs import CopperError, CopperWarning, DaemonError, Manifest, Mount, UnavailableError
from copperfs.connection import Connection


@pytest.fixture
def mount(daemon: Daemon, tmp_path: Path) -> Mount:
    daemon.routes[("GET", "/v1/stats")] = answer({"uptime_seconds": 1})
    return copperfs.connect(tmp_path, socket=daemon.name)


def within(mount: Mount, manifest: Manifest) -> str:
    """The manifest as a path of the namespace, which begins at the mount point."""
    return "/" + os.path.relpath(str(manifest.file), mount.path)


def test_requests_share_a_connection(mount: Mount, daemon: Daemon) -> None:
    for _ in range(5):
        assert mount.stats() == {"uptime_seconds": 1}
    assert daemon.connections == 1


def test_a_refusal_carries_the_daemons_advice(mount: Mount) -> None:
    with pytest.raises(DaemonError, match="nothing is served at .*; GET /openapi.json") as refused:
        mount.ask("/v1/nothing")
    assert (refused.value.status, refused.value.advice) == (404, "GET /openapi.json")
    assert pickle.loads(pickle.dumps(refused.value)).status == 404


def test_a_refusal_without_a_reason_is_told_as_such(mount: Mount, daemon: Daemon) -> None:
    for body in (b"<html>", b"[]", b'{"error"'):
        daemon.routes[("GET", "/odd")] = answer(body, 500)
        with pytest.raises(DaemonError, match="answered 500 without a reason"):
            mount.ask("/odd")


def test_the_daemon_may_restart_between_requests(mount: Mount, daemon: Daemon) -> None:
    mount.stats()
    daemon.restart()
    assert mount.stats() == {"uptime_seconds": 1}
    assert daemon.connections == 2


def test_an_idle_connection_may_be_closed(mount: Mount, daemon: Daemon) -> None:
    daemon.routes[("GET", "/v1/stats")] = answer({"n": 1}, Connection="close")
    for _ in range(3):
        assert mount.stats() == {"n": 1}


def hangs(link: socket.socket) -> None:
    time.sleep(30)


def drips(link: socket.socket) -> None:
    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + bytes(1000):
        link.send(bytes([byte]))
        time.sleep(0.1)


def floods_headers(link: socket.socket) -> None:
    link.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        link.sendall(b"X: " + b"x" * 1000 + b"\r\n")


def floods_body(link: socket.socket) -> None:
    link.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        link.sendall(b"10000\r\n" + bytes(0x10000) + b"\r\n")


def is_no_http(link: socket.socket) -> None:
    link.sendall(b"\0\1\2\3 what?\r\n\r\n")


def ends_early(link: socket.socket) -> None:
    link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}")


def says_nothing(link: socket.socket) -> None:
    link.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "fault", [hangs, drips, floods_headers, floods_body, is_no_http, ends_early, says_nothing]
)
def test_no_fault_holds_a_request_for_longer_than_its_time(
    mount: Mount, daemon: Daemon, fault: Callable[[socket.socket], None]
) -> None:
    daemon.faults.append(fault)
    begin = time.monotonic()
    with pytest.raises(UnavailableError, match="GET /v1/stats failed: .*; `copperfs status` shows"):
        mount.stats()
    # Without a time limit it would be for ever; a busy machine takes its time too.
    assert time.monotonic() - begin < 15


def test_after_a_failure_requests_fail_at_once_and_later_succeed(
    mount: Mount, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("copperfs.connection._REST_SECONDS", 1.0)
    # The second time the rest is no longer than the first: between them was a success.
    for _ in range(2):
        daemon.faults.append(ends_early)
        with pytest.raises(UnavailableError, match="is not HTTP"):
            mount.stats()
        asked = len(daemon.requests)
        with pytest.raises(UnavailableError, match=r"not asked again so soon \(the answer is not HTTP"):
            mount.stats()
        assert len(daemon.requests) == asked
        time.sleep(1.05)
        assert mount.stats() == {"uptime_seconds": 1}


def test_each_failure_in_a_row_is_followed_by_a_longer_rest(
    mount: Mount, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("copperfs.connection._REST_SECONDS", 0.1)
    daemon.faults.extend([ends_early] * 2)
    for rest in (0.1, 0.2):
        before = time.monotonic()
        with pytest.raises(UnavailableError, match="is not HTTP"):
            mount.stats()
        assert before + rest <= mount._questions._rests_until <= time.monotonic() + rest
        time.sleep(rest)
    assert mount.stats() == {"uptime_seconds": 1}


def test_an_interrupted_request_leaves_no_answer_behind(mount: Mount, daemon: Daemon) -> None:
    def late(*_: object) -> tuple[int, dict[str, str], bytes]:
        time.sleep(0.3)
        return answer({"late": True})

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    daemon.routes[("GET", "/late")] = late
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            mount.ask("/late")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert mount.stats() == {"uptime_seconds": 1}


def test_a_long_transfer_delays_no_question(mount: Mount, daemon: Daemon) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(*_: object) -> tuple[int, dict[str, str], bytes]:
        begun.set()
        go_on.wait(10)
        return answer(b"\1")

    daemon.routes[("POST", "/v1/content/lookup")] = slow
    transfer = threading.Thread(target=mount.transfer, args=("/v1/content/lookup", bytes(32)))
    transfer.start()
    assert begun.wait(5)
    assert mount.stats() == {"uptime_seconds": 1}
    go_on.set()
    transfer.join()


def test_threads_take_turns(mount: Mount, daemon: Daemon) -> None:
    daemon.routes[("POST", "/echo")] = lambda body, _: answer(body)
    wrong = []

    def ask(number: int) -> None:
        for count in range(50):
            sent = b"%d:%d" % (number, count)
            if mount.transfer("/echo", sent) != sent:
                wrong.append(sent)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_process_has_a_connection_of_its_own(mount: Mount, daemon: Daemon) -> None:
    mount.stats()
    # The worst moment: another thread is in the middle of a request, and its lock is taken for ever.
    with mount._questions._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if mount.stats() == {"uptime_seconds": 1} else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert mount.stats() == {"uptime_seconds": 1}
    assert daemon.connections == 2


def test_a_pickled_connection_begins_anew(daemon: Daemon, mount: Mount) -> None:
    mount.stats()
    assert pickle.loads(pickle.dumps(mount)).stats() == {"uptime_seconds": 1}
    assert daemon.connections == 2


def test_without_a_daemon_everything_works_with_one_warning(manifest: Manifest, directory: Path) -> None:
    mount = copperfs.connect(directory)
    with pytest.warns(CopperWarning) as caught:
        data = mount.dataset(manifest, root=str(directory / "data"))
        seen = [entry for batch in copperfs.batches(data, 16) for entry in batch]
        assert data.get([bytes(32)]) == [None]
        assert not data.lookup([bytes(32)]).any()
        assert data.insert({bytes(32): b"x"}) == [1]
    assert len(seen) == len(manifest)
    # Others' warnings may come in between: the interpreter's of a socket that an earlier test left open.
    ours = [str(warning.message) for warning in caught if issubclass(warning.category, CopperWarning)]
    assert len(ours) == 1, ours
    assert "is not on a copperfs mount" in ours[0]
    assert "The run goes on" in ours[0]


def test_a_name_needs_a_daemon(tmp_path: Path) -> None:
    with pytest.raises(CopperError, match="known to the daemon alone.*give Manifest.open"):
        copperfs.connect(tmp_path).dataset("imagenet")


def test_a_mount_point_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        copperfs.connect(tmp_path / "none")


def test_only_a_mount_can_be_cleared(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="is not on a copperfs mount"):
        copperfs.connect(tmp_path).clear("a")
    with pytest.raises(CopperError, match="5000 bytes, and 4096 is the limit"):
        copperfs.connect(tmp_path).clear("a" * 5000)


def test_a_dataset_has_the_daemons_path_and_manifest(
    mount: Mount, daemon: Daemon, manifest: Manifest, tmp_path: Path
) -> None:
    file = within(mount, manifest)
    view = {"name": "a b", "path": "/lus/x", "manifest": file, "identity": manifest.identity}
    daemon.routes[("GET", "/v1/datasets/a%20b")] = answer(view)
    daemon.routes[("GET", "/v1/datasets")] = answer({"datasets": [view]})
    for data in (mount.dataset("a b"), mount.dataset(manifest)):
        assert data.name == "a b"
        assert data.path(3) == str(tmp_path / "lus/x/000003.bin")


def test_datasets_that_are_missing_or_not_this_one_are_refused(
    mount: Mount, daemon: Daemon, manifest: Manifest
) -> None:
    with pytest.raises(DaemonError, match="nothing is served"):
        mount.dataset("none")
    daemon.routes[("GET", "/v1/datasets/bare")] = answer({"name": "bare", "path": "/x", "manifest": None})
    with pytest.raises(CopperError, match="has no manifest; make one with `copperfs dataset manifest"):
        mount.dataset("bare")
    daemon.routes[("GET", "/v1/datasets/other")] = answer(
        {"name": "other", "path": "/x", "manifest": within(mount, manifest), "identity": "00" * 32}
    )
    with pytest.raises(CopperError, match="is the manifest of another dataset than 'other'"):
        mount.dataset("other")


def test_a_manifest_that_is_not_declared_is_read_without_the_cache(
    mount: Mount, daemon: Daemon, manifest: Manifest
) -> None:
    daemon.routes[("GET", "/v1/datasets")] = answer({"datasets": [{"name": "x", "identity": "00"}]})
    with pytest.warns(CopperWarning, match="no declared dataset has the entries of this manifest"):
        data = mount.dataset(manifest)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not data.resident().any()


def test_a_connection_asks_for_the_socket_anew_when_none_listens_there(daemon: Daemon) -> None:
    other = Daemon()
    names = iter(["copperfs-test-nobody-listens", daemon.name, other.name])
    for one in (daemon, other):
        one.routes[("GET", "/")] = answer({})
    connection = Connection(lambda: next(names))
    with pytest.raises(UnavailableError, match="Connection refused"):
        connection.request("GET", "/")
    connection._rests_until = 0
    assert connection.request("GET", "/").status == 200
    daemon.stop()
    # The next daemon of a mount has another name: no request fails for that.
    assert connection.request("GET", "/").status == 200
    assert other.connections == 1
    other.stop()

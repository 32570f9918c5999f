"""The shared part: paths, jobs, and the sender with its bounds."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
from support import Recorder

import copperfs_lrc
from copperfs_lrc import Job, Paths, Sender, Settings, Task


@pytest.fixture
def settings(recorder: Recorder) -> Settings:
    return Settings(str(recorder.path), str(recorder.root), "warehouse", "daily", "done")


def whole(*paths: str) -> list[tuple[str, None, None, bool]]:
    return [(path, None, None, False) for path in paths]


def test_paths_are_named_below_the_root(data: Path, tmp_path: Path) -> None:
    (data / "sub").mkdir()
    (data / "sub" / "a").write_text("a")
    (data / "sub" / "é\n").write_text("a")
    (tmp_path / "outside").write_text("b")
    (tmp_path / "link").symlink_to(data / "sub")
    (data / "sub" / "alias").symlink_to("a")
    (data / "sub" / "escape").symlink_to(tmp_path / "outside")
    paths = Paths(str(tmp_path / "link" / ".."))
    cwd = str(tmp_path)
    for name in (
        f"{data}/sub/a",
        "warehouse/sub/a",
        "link/a",
        "link/../sub/a",
        "warehouse//sub/./a",
        "warehouse/sub/alias",
        f"file://{data}/sub/a",
    ):
        assert paths.inputs(name, cwd) == whole("sub/a"), name
    assert paths.inputs("a", str(data / "sub")) == whole("sub/a")
    assert paths.inputs("warehouse/sub/é\n", cwd) == whole("sub/é\n")
    assert paths.inputs("link", cwd) == [("sub", None, None, True)]
    assert paths.inputs(str(data), cwd) == [("sub", None, None, True)]
    for name in (
        "outside",
        "warehouse/../outside",
        "warehouse/sub/escape",
        "warehouse/absent",
        "warehouse-2/a",
        "s3://bucket/a",
        "nul\0",
        "",
        "warehouse/" + os.fsdecode(b"\xff"),
    ):
        assert paths.inputs(name, cwd) == [], name


def test_an_ended_task_gets_its_references_back_in_a_further_attempt(settings: Settings) -> None:
    job = Job(settings, "daily/1")
    (first,) = job.submit([Task("a", whole("x")), Task("b", whole("y"), ["a"]), Task("c", whole("x"))])
    assert first["files"] == ["x", "y"]
    assert [task["in"] for task in first["tasks"]] == [[0], [1], [0]]
    assert job.done("a")
    assert job.done("a") == []
    assert job.failed("a") == []
    assert job.done("c")
    (second,) = job.again(["a"])
    assert second["attempt"] == 1
    assert [(task["id"], task["after"]) for task in second["tasks"]] == [("a", []), ("b", ["a"])]
    assert len(job.end()) == 1
    assert job.end() == []
    (third,) = job.again(["b"])
    assert [task["id"] for task in third["tasks"]] == ["b"]
    assert len(job.end()) == 1


def test_directories_make_a_submission_name_paths(settings: Settings) -> None:
    (line,) = Job(settings, "daily/1").submit(
        [Task("a", [("d", None, None, True)]), Task("b", [("x", 4, 8, False)])]
    )
    assert "files" not in line
    assert line["tasks"][0]["inputs"] == [{"path": "d", "recursive": True}]
    assert line["tasks"][1]["inputs"] == [{"path": "x", "off": 4, "len": 8}]


def test_lines_arrive_in_order_and_close_waits_for_them(settings: Settings, recorder: Recorder) -> None:
    (recorder.root / "x").write_text("x")
    sender = Sender(settings)
    job = Job(settings, "daily/1")
    assert sender.put(lambda: job.submit(Task(str(index), whole("x")) for index in range(2000)))
    for index in range(2000):
        assert sender.put(lambda index=index: job.done(str(index)))
    assert sender.put(job.end)
    sender.close()
    assert [line["task"] for line in recorder.ops("done")] == [str(index) for index in range(2000)]
    recorder.assert_settled()
    assert not sender.put(job.end)


def test_a_full_queue_drops_events_and_says_so_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(copperfs_lrc, "QUEUE_EVENTS_MAX", 4)
    monkeypatch.setattr(copperfs_lrc, "once", copperfs_lrc.Once())
    sender = Sender(settings)
    gate, busy = threading.Event(), threading.Event()

    def wait() -> None:
        busy.set()
        gate.wait()

    assert sender.put(wait)
    busy.wait()
    taken = [sender.put(lambda: None) for _ in range(10)]
    assert taken == [True] * 4 + [False] * 6
    assert caplog.text.count("some are dropped") == 1
    gate.set()
    sender.close()


def test_an_error_of_the_adapter_stays_in_its_thread(
    settings: Settings, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(copperfs_lrc, "once", copperfs_lrc.Once())
    sender = Sender(settings)
    job = Job(settings, "daily/1")

    def fail() -> None:
        raise RuntimeError("broken")

    sender.put(fail)
    sender.put(fail)
    sender.put(lambda: job.submit([]))
    sender.close()
    assert len(recorder.lines) == 1
    assert caplog.text.count("cannot follow the engine") == 1


def test_a_refusal_is_said_once_and_further_lines_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(copperfs_lrc, "once", copperfs_lrc.Once())
    received: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "refuses.sock"))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rwb") as stream:
                for line in stream:
                    received.append(line)
                    stream.write(b'{"error":"no such dataset","try":"copperfs dataset ls"}\n')
                    stream.flush()

        thread = threading.Thread(target=serve)
        thread.start()
        settings = Settings(str(tmp_path / "refuses.sock"), str(tmp_path), "", "daily", "")
        sender = Sender(settings)
        job = Job(settings, "daily/1")
        sender.put(lambda: job.submit([Task("a", [])]))
        sender.put(lambda: job.done("a"))
        sender.close()
        thread.join()
    assert len(received) == 2
    assert caplog.text.count("was refused: no such dataset") == 1

"""The filesystem `copper`."""

from __future__ import annotations

from pathlib import Path

import pytest

from copperfs import Mount

fsspec = pytest.importorskip("fsspec", reason="skipped: fsspec is not installed")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "lus").mkdir()
    (tmp_path / "lus/a.txt").write_text("one")
    (tmp_path / "lus/b.txt").write_text("two")
    return tmp_path


def test_copper_urls_are_files_below_the_mount(tree: Path) -> None:
    with fsspec.open("copper:///lus/a.txt", "rt", mount=str(tree)) as file:
        assert file.read() == "one"


def test_the_mount_may_be_in_the_environment(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPPERFS_MOUNT", str(tree))
    files = fsspec.open_files("copper:///lus/*.txt")
    assert [Path(file.path).name for file in files] == ["a.txt", "b.txt"]
    filesystem = fsspec.filesystem("copper")
    assert filesystem.cat("lus/b.txt") == b"two"
    assert isinstance(filesystem.mount, Mount)


def test_without_a_mount_there_is_nothing_to_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COPPERFS_MOUNT", raising=False)
    with pytest.raises(ValueError, match="no mount: give mount="):
        fsspec.filesystem("copper", skip_instance_cache=True)

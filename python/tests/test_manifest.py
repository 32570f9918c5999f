"""Manifests: mapped, checked, and refused with a reason."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from writer import PART_BYTES, Written, content_of, write_dataset

from copperfs import Manifest, ManifestError
from copperfs._blake3 import blake3
from copperfs.manifest import sections


@pytest.fixture
def whole() -> bytes:
    written = Written()
    written.add_file("a/b.bin", b"x" * 1000, [(0, 300), (400, 600)])
    written.add_file("c\udcff", b"")
    written.add_file("long", bytes(PART_BYTES + 5))
    return written.encode()


def opened(tmp_path: Path, contents: bytes) -> Manifest:
    path = tmp_path / "m.manifest"
    path.write_bytes(contents)
    return Manifest.open(path)


def sealed(contents: bytes) -> bytes:
    """Gives changed bytes the hashes that belong to them, as a faulty writer would."""
    header = contents[:224]
    body = header + blake3(header) + contents[256:-32]
    return body + blake3(body)


def test_entries_are_as_written(tmp_path: Path, whole: bytes) -> None:
    manifest = opened(tmp_path, whole)
    assert len(manifest) == 4
    assert manifest.size == 900 + PART_BYTES + 5
    assert manifest.entry(1) == ("a/b.bin", 400, 600, blake3(b"x" * 600))
    assert manifest.path(2) == "c\udcff"
    assert manifest.entry(2).length == 0
    assert manifest.long.tolist() == [3]
    assert manifest.parts[int(manifest.parts_at[0]) + 1].tobytes() == blake3(bytes(5))
    manifest.verify()


def test_arrays_are_views_of_the_map(tmp_path: Path) -> None:
    manifest = Manifest.open(write_dataset(tmp_path, 50))
    mapped = np.frombuffer(manifest._map, dtype=np.uint8)
    for array in (manifest.hashes, manifest.lengths, manifest.files, manifest.paths):
        assert np.shares_memory(mapped, array)
        assert not array.flags.writeable
    assert manifest.hashes[7].tobytes() == blake3(content_of(7))


def test_a_worker_process_maps_the_same_file(tmp_path: Path) -> None:
    manifest = Manifest.open(write_dataset(tmp_path, 20))
    sent = pickle.dumps(manifest)
    assert len(sent) < 1000
    assert pickle.loads(sent).entry(19) == manifest.entry(19)


@pytest.mark.parametrize("kept", [9, 255, 256, 287, 288, 600, -33, -32, -1])
def test_a_manifest_cut_short_is_refused(tmp_path: Path, whole: bytes, kept: int) -> None:
    with pytest.raises(ManifestError, match="cut short.*copperfs dataset manifest"):
        opened(tmp_path, whole[:kept])


@pytest.mark.parametrize("contents", [b"", b"CPFSIDX\n" * 100, b"\x7fELF" * 500, b"{}"])
def test_a_foreign_file_is_refused(tmp_path: Path, contents: bytes) -> None:
    with pytest.raises(ManifestError, match="is not a manifest"):
        opened(tmp_path, contents)


def test_another_format_is_refused(tmp_path: Path) -> None:
    written = Written()
    written.add_file("a", b"1")
    with pytest.raises(ManifestError, match="format 2.*reads format 1"):
        opened(tmp_path, written.encode(form=2))


def test_bytes_behind_the_end_are_refused(tmp_path: Path, whole: bytes) -> None:
    with pytest.raises(ManifestError, match="3 bytes behind its end"):
        opened(tmp_path, whole + b"abc")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_no_changed_byte_passes(tmp_path: Path, data: st.DataObject) -> None:
    written = Written()
    for number in range(5):
        written.add_file(f"{number}", content_of(number))
    contents = bytearray(written.encode())
    at = data.draw(st.integers(0, len(contents) - 1))
    contents[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ManifestError):
        opened(tmp_path, bytes(contents)).verify()


def change(written: Written, field: str, value: object) -> Written:
    setattr(written, field, value)
    return written


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("files", [0, 7], "names a file that it does not have"),
        ("offsets", [0, 2], "reaches beyond the end"),
        ("offsets", [0, 2**64 - 1], "reaches beyond the end"),
        ("lengths", [3, 5], "reaches beyond the end"),
    ],
)
def test_tables_that_contradict_each_other_are_refused(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    written = Written()
    written.add_file("a", b"abc")
    written.add_file("b", b"defg")
    with pytest.raises(ManifestError, match=message):
        opened(tmp_path, change(written, field, value).encode())


@pytest.mark.parametrize("ends", [[3, 2], [1, 1], [1, 3]])
def test_paths_that_do_not_fill_their_table_are_refused(tmp_path: Path, ends: list[int]) -> None:
    written = Written()
    written.add_file("a", b"abc")
    written.add_file("b", b"defg")
    contents = written.encode()
    at = sections(2, 2, 0, 0, 2)[0]["path_ends"][0]
    changed = contents[:at] + np.array(ends, dtype="<u8").tobytes() + contents[at + 16 :]
    with pytest.raises(ManifestError, match="the ends of its paths"):
        opened(tmp_path, sealed(changed))


def test_a_wrong_sum_or_identity_is_found(tmp_path: Path, whole: bytes) -> None:
    other_sum = sealed(whole[:40] + (1).to_bytes(8, "little") + whole[48:])
    with pytest.raises(ManifestError, match="do not add up"):
        opened(tmp_path, other_sum)
    other_identity = opened(tmp_path, sealed(whole[:48] + bytes(32) + whole[80:]))
    with pytest.raises(ManifestError, match="identity is not that of its entries"):
        other_identity.verify()


def test_overlapping_entries_are_found(tmp_path: Path) -> None:
    written = Written()
    written.add_file("a", bytes(900), [(0, 300), (600, 300), (299, 301)])
    with pytest.raises(ManifestError, match="entries that overlap in a, from byte 0 on"):
        opened(tmp_path, written.encode()).verify()


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Manifest.open(tmp_path / "none")

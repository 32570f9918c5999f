"""Which host holds how many bytes of files."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from conftest import ENTRIES, hold, serve_nodes
from daemon import Daemon, answer
from writer import Written, content_of, name_of

from copperfs import CopperWarning, Dataset, Manifest
from copperfs._blake3 import blake3
from copperfs.placement import SLOTS, Home, homes_of_slots

NODES = (("nid1:7470", 1 << 40), ("nid2:7470", 1 << 40), ("nid2:7471", 2 << 40))


def held(entries: list[int]) -> dict[str, int]:
    """The bytes of entries on each host, by the definition."""
    table = homes_of_slots([Home(*node) for node in NODES])
    found: dict[str, int] = {}
    for entry in entries:
        slot = int.from_bytes(blake3(content_of(entry))[:2], "little") % SLOTS
        host = NODES[table[slot]][0].partition(":")[0]
        found[host] = found.get(host, 0) + len(content_of(entry))
    return found


def paths(entries: list[int]) -> list[str]:
    return [name_of(entry) for entry in entries]


def test_a_host_holds_the_resident_bytes_of_its_items(data: Dataset, daemon: Daemon) -> None:
    serve_nodes(daemon, *NODES)
    hold(daemon, np.arange(ENTRIES) % 2 == 0)
    even = list(range(0, ENTRIES, 2))
    found = data.residency()
    assert found == held(even)
    assert set(found) == {"nid1", "nid2"}
    assert data.residency(paths([3, 4, 5, 6])) == held([4, 6])
    assert data.residency([data.path(4), "000004.bin"]) == held([4])
    assert data.residency(paths([3, 5])) == data.residency([]) == {}
    assert data.residency(["."]) == data.residency([data.root]) == held(even)


def test_a_path_that_is_not_in_the_manifest_is_an_error(data: Dataset, daemon: Daemon) -> None:
    with pytest.raises(FileNotFoundError, match=r"test.manifest has no file no\.bin"):
        data.residency(["no.bin"])
    with pytest.raises(ValueError, match="/elsewhere/a is not below"):
        data.residency(["/elsewhere/a"])
    with pytest.raises(ValueError, match="is not below"):
        data.residency(["../a"])
    assert data.residency(["no.bin"], missing_ok=True) == {}


def test_paths_of_the_mount_are_those_of_its_datasets(data: Dataset, daemon: Daemon) -> None:
    serve_nodes(daemon, *NODES)
    hold(daemon, np.ones(ENTRIES, dtype=np.bool_))
    mount = data.mount
    some = [f"/data/{name_of(4)}", f"data/{name_of(5)}", f"{mount.path}/data/{name_of(6)}"]
    assert mount.residency(some) == held([4, 5, 6])
    assert mount.residency(["/data"]) == mount.residency(["/"]) == held(list(range(ENTRIES)))
    assert mount.residency(["/test.manifest", "/data/labels.csv", "/dat"]) == {}
    assert len(pickle.dumps(mount)) < 1000
    assert pickle.loads(pickle.dumps(mount)).path == mount.path


def test_a_dataset_that_is_declared_again_is_opened_again(data: Dataset, daemon: Daemon) -> None:
    serve_nodes(daemon, *NODES)
    hold(daemon, np.ones(ENTRIES, dtype=np.bool_))
    mount, everything = data.mount, held(list(range(ENTRIES)))
    assert mount.residency(["/data"]) == everything
    opened = mount._known_datasets["d"]
    assert mount.residency(["/data"]) == everything
    assert mount._known_datasets["d"] is opened
    assert len(daemon.asked("/v1/datasets")) == 1
    status, headers, views = daemon.routes[("GET", "/v1/datasets")]
    moved = views.replace(b'"/data"', b'"/other"')
    daemon.routes[("GET", "/v1/datasets")] = (status, headers, moved)
    mount._known_views_at = float("-inf")
    assert mount.residency(["/data"]) == {}
    assert mount.residency(["/other"]) == everything


def test_homes_are_asked_for_once_a_second(data: Dataset, daemon: Daemon) -> None:
    serve_nodes(daemon, *NODES)
    hold(daemon, np.ones(ENTRIES, dtype=np.bool_))
    for _ in range(3):
        data.residency()
    assert len(daemon.asked("/v1/datasets/d/homes")) == 1


def test_homes_follow_the_nodes(data: Dataset, daemon: Daemon) -> None:
    hold(daemon, np.ones(ENTRIES, dtype=np.bool_))
    serve_nodes(daemon, *NODES)
    whole = data.residency()
    serve_nodes(daemon, *NODES[:2])
    assert data.residency() == whole
    data._known_homes_at = float("-inf")
    assert data.residency() != whole


@pytest.mark.parametrize(
    "said", [{}, {"homes": [{"node": "a"}]}, {"homes": [{"node": "a", "capacity": "many"}]}]
)
def test_homes_that_make_no_sense_hold_nothing(data: Dataset, daemon: Daemon, said: object) -> None:
    hold(daemon, np.ones(ENTRIES, dtype=np.bool_))
    daemon.routes[("GET", "/v1/datasets/d/homes")] = answer(said)
    with pytest.warns(CopperWarning, match="homes cannot be understood"):
        assert data.residency() == {}


def test_without_a_daemon_no_host_holds_anything(data: Dataset, daemon: Daemon) -> None:
    daemon.stop()
    with pytest.warns(CopperWarning, match="nothing counts as resident"):
        assert data.residency() == data.mount.residency(["/data"]) == {}


def test_directories_are_all_files_below_them(tmp_path: Path) -> None:
    written = Written()
    for path in ("b/2", "a/x/1", "a-b/1", "a/x/2", "a", "a0", "c\udcff/1"):
        written.add_file(path, path.encode(errors="surrogateescape"))
    file = tmp_path / "m.manifest"
    file.write_bytes(written.encode())
    manifest = Manifest.open(file)

    def below(path: str) -> list[str]:
        return [manifest.path(int(entry)) for entry in manifest.entries_of(manifest.files_at(path))]

    assert below("a/x") == below("a/x/") == ["a/x/1", "a/x/2"]
    assert below("a") == ["a"]
    assert below("a-b") == ["a-b/1"]
    assert below("c\udcff") == ["c\udcff/1"]
    assert below("a/") == ["a"]
    assert below("a/y") == below("d") == below("0") == []
    assert len(below("")) == len(below(".")) == 7


def test_the_daemons_views_have_the_keys_that_homes_are_made_of() -> None:
    # A test of the daemon keeps the description equal to its answers.
    described = Path(__file__).resolve().parents[2] / "docs/openapi.json"
    schemas = json.loads(described.read_text(encoding="utf-8"))["components"]["schemas"]
    for schema, keys in {
        "Allocation": {"cache", "nodes", "datasets"},
        "Cache": {"total"},
        "Node": {"name", "capacity"},
        "Dataset": {"name", "path", "manifest", "identity", "homes"},
        "Share": {"node"},
    }.items():
        assert keys <= set(schemas[schema]["required"]), schema

"""Homes of items: the same as the daemon's, to the bit."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from writer import PART_BYTES, Written

from copperfs import Manifest
from copperfs._blake3 import blake3
from copperfs.placement import SLOTS, Home, Homes, _ln, homes_of_slots, host_of


def nodes(*capacities: int) -> list[Home]:
    """Nodes named as in the daemon's own tests."""
    return [Home(f"nid{rank:05}", capacity) for rank, capacity in enumerate(capacities)]


def test_every_slot_has_the_home_that_the_daemon_computes() -> None:
    # The vectors of `stable_across_versions_and_machines` in src/model/slots.rs: the hash is of the homes
    # of all slots.
    homes = homes_of_slots(nodes(1 << 40, 1 << 40, 2 << 40, 3 << 40))
    assert homes[[0, 1, 2, SLOTS - 1]].tolist() == [2, 3, 1, 0]
    assert blake3(homes.astype(np.uint8).tobytes()).hex()[:16] == "c5d1c1cb748d4dd4"


@given(st.lists(st.integers(0, 1 << 42), max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_does_not_matter(capacities: list[int], random: object) -> None:
    one = nodes(*capacities)
    other = sorted(one, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert homes_named(one) == homes_named(other)


def homes_named(all_nodes: list[Home]) -> list[str | None]:
    return [all_nodes[home].name if home >= 0 else None for home in homes_of_slots(all_nodes)]


def test_nodes_without_capacity_are_no_home() -> None:
    assert set(homes_of_slots([])) == set(homes_of_slots(nodes(0, 0))) == {-1}
    assert set(homes_of_slots(nodes(0, 5, 0))) == {1}


def test_only_the_slots_of_a_node_that_leaves_move() -> None:
    four = nodes(1 << 40, 2 << 40, 1 << 39, 1 << 40)
    before, after = homes_named(four), homes_named(four[:2] + four[3:])
    assert all(was == now for was, now in zip(before, after) if was != four[2].name)


def test_the_logarithm_is_one() -> None:
    x = np.concatenate([np.linspace(1e-6, 1.0, 100_000), [2.0**-53, 1e-300, 1 - 2.0**-53]])
    expected = np.array([math.log(one) for one in x])
    assert np.all(np.abs(_ln(x) - expected) <= 4e-15 * np.abs(expected))


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("nid00007", "nid00007"),
        ("nid7.cluster:9000", "nid7.cluster"),
        ("10.12.0.7:7470", "10.12.0.7"),
        ("[fe80::1]:7470", "fe80::1"),
        ("[fe80::1]", "fe80::1"),
        ("fe80::1", "fe80::1"),
    ],
)
def test_a_nodes_host_is_its_name_without_the_port(name: str, host: str) -> None:
    assert host_of(name) == host


def test_an_entry_is_divided_like_its_items(tmp_path: Path) -> None:
    written = Written()
    long = bytes(PART_BYTES) + b"1" * PART_BYTES + b"end"
    written.add_file("empty", b"")
    written.add_file("long", long)
    written.add_file("short", b"short")
    path = tmp_path / "m.manifest"
    path.write_bytes(written.encode())
    homes = Homes(nodes(1 << 40, 1 << 40, 1 << 40))
    expected = dict.fromkeys(homes.hosts, 0)
    for part in (long[:PART_BYTES], long[PART_BYTES : 2 * PART_BYTES], b"end", b"short"):
        slot = int.from_bytes(blake3(part)[:2], "little") % SLOTS
        expected[homes.nodes[homes_of_slots(homes.nodes)[slot]].name] += len(part)
    found = homes.bytes_by_host(Manifest.open(path), np.arange(3))
    assert found == {host: count for host, count in expected.items() if count}
    assert len(found) > 1
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_nodes_of_one_host_are_added_up() -> None:
    assert Homes([Home("a:1", 5), Home("a:2", 5), Home("b", 5)]).hosts == ["a", "b"]

"""docs/TRAINING.md: every block is run as a reader types it.

A heading with its blocks is a test, after the blocks of the headings that it names. The mount is a
directory, whose daemon is the tests' own.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import hold, serve_nodes, serve_uniform
from daemon import Daemon, answer
from writer import Written

import copperfs
from copperfs import Manifest
from copperfs.state import Consumed

DOCS = Path(__file__).resolve().parents[2] / "docs"
ENTRIES, CLASSES = 1200, 10
MOUNT = "/copper_data"
# The headings whose names a recipe uses.
NEEDS = {"Checkpoints": ["PyTorch"], "StatefulDataLoader": ["PyTorch"], "JAX": ["numpy"]}
# A program of its own, which torchrun starts.
PROGRAM = "Several GPUs and hosts"


class Block(NamedTuple):
    """A block of the document: the heading above it, its language, and its text."""

    heading: str
    language: str
    text: str
    line: int


def blocks(language: str) -> list[Block]:
    """Returns the document's blocks of a language, with the line where each begins."""
    found, heading, inside, kept = [], "", "", []
    for number, line in enumerate((DOCS / "TRAINING.md").read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            if inside:
                found.append(Block(heading, inside, "\n".join(kept) + "\n", number - len(kept)))
            inside, kept = "" if inside else line[3:], []
        elif inside:
            kept.append(line)
        elif line.startswith("## "):
            heading = line[3:]
    return [block for block in found if block.language == language]


PYTHON = blocks("python")


@pytest.fixture(scope="session")
def mountpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mount with the document's dataset: small images, in a directory for each class."""
    made = tmp_path_factory.mktemp("training")
    root = made / "data/images"
    generator = np.random.default_rng(0)
    written = Written()
    for number in range(ENTRIES):
        path = root / f"{number % CLASSES}/{number:06}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        contents = generator.integers(0, 256, 3072, dtype=np.uint8).tobytes()
        path.write_bytes(contents)
        written.add_file(str(path.relative_to(root)), contents)
    (made / "data/images.manifest").write_bytes(written.encode())
    return made


@pytest.fixture
def served(mountpoint: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Daemon:
    """A daemon that has declared the dataset, holds a tenth of it, and is that of every path."""
    manifest = Manifest.open(mountpoint / "data/images.manifest")
    view = {
        "name": "images",
        "path": "/data/images",
        "manifest": "/data/images.manifest",
        "identity": manifest.identity,
    }
    daemon.routes[("GET", "/v1/datasets")] = answer({"datasets": [view]})
    serve_uniform(daemon)
    hold(daemon, np.arange(ENTRIES) % 10 == 0)
    serve_nodes(daemon, (f"{socket.gethostname()}:7470", 1 << 40))
    for (method, path), reply in list(daemon.routes.items()):
        if path.startswith("/v1/datasets/d/"):
            daemon.routes[(method, path.replace("/d/", "/images/"))] = reply
    shape = {"serial": "1.1", "partitions": 10, "stripes": 10, "entries": ENTRIES, "resident": None}
    for method in ("GET", "POST"):
        daemon.routes[(method, "/v1/datasets/images/chunks")] = answer(shape)
    daemon.routes[("GET", "/v1/datasets/images")] = answer(view)
    daemon.routes[("GET", "/v1/jobs/run%3Atest/mode")] = answer({"mode": "cached", "batches": 100})
    daemon.routes[("POST", "/v1/jobs/run%3Atest/report")] = answer(status=204)
    monkeypatch.setenv("COPPERFS_JOB", "test")
    monkeypatch.setattr("copperfs.ioctl.users_socket", lambda _: daemon.name)
    monkeypatch.chdir(tmp_path)
    return daemon


@pytest.fixture
def consumed(monkeypatch: pytest.MonkeyPatch) -> list[Counter[int]]:
    """How often each entry was given to a loop: a count for each block that ran."""
    counts: list[Counter[int]] = []
    add = Consumed.add

    def count(self: Consumed, entries: np.ndarray, padding: int = 0) -> None:
        counts[-1].update(entries[: len(entries) - padding].tolist())
        add(self, entries, padding)

    monkeypatch.setattr(Consumed, "add", count)
    return counts


class Recipes:
    """Runs the blocks of headings in one namespace, as a reader does that types them."""

    def __init__(self, mountpoint: Path, consumed: list[Counter[int]]) -> None:
        self.mountpoint = mountpoint
        self.consumed = consumed
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def run(self, heading: str) -> list[Counter[int]]:
        """Runs the headings that a heading needs, then its blocks. Returns the entries of each block."""
        for needed in NEEDS.get(heading, []):
            self.run(needed)
        self.consumed.clear()
        found = [block for block in PYTHON if block.heading == heading]
        assert found, f"no block below {heading!r}"
        for block in found:
            self.consumed.append(Counter())
            exec(self.compiled(block), self.names)
        return self.consumed

    def compiled(self, block: Block) -> types.CodeType:
        # Errors name the document's own lines.
        text = "\n" * (block.line - 1) + block.text.replace(MOUNT, str(self.mountpoint))
        return compile(text, str(DOCS / "TRAINING.md"), "exec")


@pytest.fixture
def recipes(
    mountpoint: Path, served: Daemon, consumed: list[Counter[int]], monkeypatch: pytest.MonkeyPatch
) -> Recipes:
    # After a second a job goes on as if nothing were resident, which a busy machine must not cause here.
    monkeypatch.setattr("copperfs.client._SHORT_SECONDS", 30.0)
    return Recipes(mountpoint, consumed)


def each(times: int) -> Counter[int]:
    """Each entry, so often."""
    return Counter(dict.fromkeys(range(ENTRIES), times))


def need(package: str) -> None:
    """Skips a recipe whose library this environment lacks: scripts/test-python has several environments."""
    pytest.importorskip(
        package, reason=f"SKIPPED: no {package} in this environment: its recipe is NOT run here"
    )


def test_pytorch(recipes: Recipes) -> None:
    need("torch")
    first, own = recipes.run("PyTorch")
    assert first == each(2)
    assert own == each(1)


def test_checkpoints(recipes: Recipes) -> None:
    need("torch")
    before, after = recipes.run("Checkpoints")
    assert len(before) == 3 * 256
    assert before + after == each(1)


def test_statefuldataloader(recipes: Recipes) -> None:
    need("torch")
    need("torchdata.stateful_dataloader")
    _, after, other_workers = recipes.run("StatefulDataLoader")
    # Both go on after the third mini-batch. The first loader's sampler has run ahead of its loop.
    assert max(after.values()) == max(other_workers.values()) == 1
    assert len(after) == len(other_workers) == ENTRIES - 3 * 256
    assert after.keys() == other_workers.keys()


def run_ranks(ranks: int, program: list[str], directory: Path) -> None:
    """Runs a program with the environment that torchrun makes. (Debian's torchrun 1.13 starts nothing.)"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    running = [
        subprocess.Popen(
            [sys.executable, *program],
            cwd=directory,
            env={**os.environ, **common, "RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        for process in running:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_several_gpus_and_hosts(
    mountpoint: Path, served: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("torch")
    (program,) = (block for block in PYTHON if block.heading == PROGRAM)
    (tmp_path / "train.py").write_text(program.text.replace(MOUNT, str(mountpoint)))
    # The processes have the same package and daemon, and write down the entries that they consume.
    monkeypatch.setenv("PYTHONPATH", str(Path(copperfs.__file__).parents[1]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "witness.py").write_text(
        "import os, runpy, sys\n"
        "import copperfs.ioctl\n"
        "from copperfs.state import Consumed\n"
        f"copperfs.ioctl.users_socket = lambda _: {served.name!r}\n"
        "add = Consumed.add\n"
        "def noted(self, entries, padding=0):\n"
        "    with open('consumed', 'a') as file:\n"
        "        drawn = entries[: len(entries) - padding].tolist()\n"
        "        file.write(''.join(f'{self.part.epoch} {entry}\\n' for entry in drawn))\n"
        "    add(self, entries, padding)\n"
        "Consumed.add = noted\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    for ranks, steps in ((2, "3"), (3, "1000")):
        run_ranks(ranks, ["witness.py", "train.py", steps], tmp_path)
        assert (tmp_path / "checkpoint.pt").exists()
    noted = Counter((tmp_path / "consumed").read_text().split("\n")[:-1])
    assert noted == Counter(f"{epoch} {entry}" for epoch in range(2) for entry in range(ENTRIES))


def test_numpy(recipes: Recipes) -> None:
    assert recipes.run("numpy") == [each(1)]
    assert np.all(recipes.names["brightness"] > 0)


def test_jax(recipes: Recipes) -> None:
    need("jax")
    (drawn,) = recipes.run("JAX")
    # Both epochs leave out the entries that do not fill a mini-batch.
    assert sum(drawn.values()) == 2 * (ENTRIES // 256) * 256
    assert max(drawn.values()) == 2
    assert np.any(np.asarray(recipes.names["weights"]))


def test_dask(recipes: Recipes) -> None:
    need("distributed")
    recipes.run("Dask")
    names = recipes.names
    assert 120 < names["brightness"] < 135
    assert names["sizes"] == [3072] * CLASSES
    # The images of class 0 are resident here, and no others.
    here = names["workers"][socket.gethostname()]
    assert names["near"](names["paths"][:1]) == {"workers": here, "allow_other_workers": True}
    assert here
    assert names["near"](names["paths"][1:]) == {}


class StandIn:
    """As much of Ray as the recipe uses, in this process."""

    class NodeAffinitySchedulingStrategy(NamedTuple):
        node_id: str
        soft: bool

    class Task:
        def __init__(self, function: Any) -> None:
            self._function = function

        def options(self, scheduling_strategy: Any) -> StandIn.Task:
            known = isinstance(scheduling_strategy, StandIn.NodeAffinitySchedulingStrategy)
            assert scheduling_strategy.node_id == "here" if known else scheduling_strategy == "DEFAULT"
            return self

        def remote(self, *arguments: Any) -> Any:
            return self._function(*arguments)

    @classmethod
    def modules(cls) -> dict[str, types.ModuleType]:
        ray, strategies = types.ModuleType("ray"), types.ModuleType("ray.util.scheduling_strategies")
        strategies.NodeAffinitySchedulingStrategy = cls.NodeAffinitySchedulingStrategy
        ray.init = ray.shutdown = lambda: None
        host = socket.gethostname()
        ray.nodes = lambda: [{"NodeManagerHostname": host, "NodeID": "here", "Alive": True}]
        ray.remote, ray.get = cls.Task, list
        names = ("ray", "ray.util", "ray.util.scheduling_strategies")
        return dict(zip(names, (ray, types.ModuleType("ray.util"), strategies)))


@pytest.mark.parametrize("real", [False, True])
def test_ray(recipes: Recipes, monkeypatch: pytest.MonkeyPatch, real: bool) -> None:
    if real:
        pytest.importorskip("ray", reason="SKIPPED: no Ray here, so its recipe runs with a stand-in alone")
    else:
        for name, module in StandIn.modules().items():
            monkeypatch.setitem(sys.modules, name, module)
    recipes.run("Ray")
    names = recipes.names
    assert names["sizes"] == [3072] * CLASSES
    near = names["near"](names["paths"][:1])
    assert (near.node_id, near.soft) == (names["nodes"][socket.gethostname()], True)
    assert names["near"](names["paths"][1:]) == "DEFAULT"


def test_what_to_look_at(recipes: Recipes, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert recipes.run("What to look at") == [each(1)]
    printed = capsys.readouterr().out
    assert "10.0% of the entries are resident" in printed
    assert str({socket.gethostname(): ENTRIES // 10 * 3072}) in printed
    assert "compute idle" in (tmp_path / "timeline.svg").read_text()


def test_every_block_of_python_is_run() -> None:
    tests = {name for name in globals() if name.startswith("test_")}
    for heading in {block.heading for block in PYTHON}:
        assert "test_" + heading.lower().replace(" ", "_") in tests, f"no test runs {heading!r}"


COMMANDS = [command for block in blocks("sh") for command in block.text.replace("\\\n", " ").splitlines()]


@pytest.mark.parametrize("command", [one for one in COMMANDS if one.startswith("copperfs ")])
def test_commands_and_options_are_those_of_the_command_line(command: str) -> None:
    words = shlex.split(command.rstrip("& "))
    own = words[: words.index("--")] if "--" in words else words
    sections = re.split(r"^## ", (DOCS / "cli.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    helps = {section.partition("\n")[0].strip(): section for section in sections}
    name = " ".join(own[:3]) if " ".join(own[:3]) in helps else " ".join(own[:2])
    assert name in helps
    for option in (word.partition("=")[0] for word in own if word.startswith("--")):
        assert re.search(rf"^ +(-\w, )?{option}\b", helps[name], flags=re.MULTILINE), f"{name} {option}"


def test_links_lead_to_headings_and_files() -> None:
    text = (DOCS / "TRAINING.md").read_text(encoding="utf-8")
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", one.lower()).replace(" ", "-")
        for one in re.findall(r"^#+ (.*)", text, re.M)
    }
    for link in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = link.partition("#")
        assert (DOCS / file).exists() if file else anchor in anchors, link

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import Recorder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "warehouse"
    root.mkdir()
    return root


@pytest.fixture
def recorder(tmp_path: Path, data: Path) -> Iterator[Recorder]:
    listening = Recorder(tmp_path, data)
    yield listening
    listening.close()

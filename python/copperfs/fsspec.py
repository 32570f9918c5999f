"""The filesystem `copper` for fsspec: `fsspec.open("copper:///data/imagenet/a.jpg")`.

Paths are those of the mount, which is `mount=`, or `COPPERFS_MOUNT` in the environment. Everything is read
through the mount's own files, so nothing can be written.
"""

from __future__ import annotations

import os
from typing import Any

from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from .client import Mount, connect


class CopperFileSystem(DirFileSystem):  # type: ignore[misc]
    """The files below a mount."""

    protocol = "copper"

    def __init__(self, mount: str | None = None, **options: Any) -> None:
        mount = mount or os.environ.get("COPPERFS_MOUNT")
        if not mount:
            raise ValueError(
                "no mount: give mount=, or storage_options={'mount': ...} to the library that opens the "
                "files, or set COPPERFS_MOUNT"
            )
        super().__init__(path=mount, fs=LocalFileSystem(), **options)

    @property
    def mount(self) -> Mount:
        """The mount, for its datasets and other questions to its daemon."""
        return connect(self.path)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text = os.fspath(path)
        if text.startswith("copper://"):
            text = text[len("copper://") :]
        return text.strip("/")

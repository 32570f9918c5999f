"""The client of a mount: the questions of a process to the daemon that serves it."""

from __future__ import annotations

import json
import math
import os
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Iterable
from functools import partial
from http import HTTPStatus
from typing import Any, Callable, TypeVar
from urllib.parse import quote

from . import ioctl
from .batch_reads import BatchReader, root_of
from .connection import Answer, Connection
from .dataset import Dataset
from .errors import CopperError, CopperWarning, DaemonError, UnavailableError
from .job import job_name
from .manifest import Manifest

# A question that a mini-batch waits for, and one that carries many bytes.
_SHORT_SECONDS, _LONG_SECONDS = 1.0, 60.0
# How old the list of datasets may be when a scheduler asks where files are, once for each task.
_LISTED_SECONDS = 1.0

T = TypeVar("T")


def connect(path: str | os.PathLike[str], *, socket: str | None = None) -> Mount:
    """Returns the mount at `path`: its mount point, of a data mount for datasets.

    Without a daemon there, everything works, with one warning, and nothing counts as resident. `socket` is
    the name of the daemon's abstract socket for users, where the mount cannot be asked for it.
    Raises `FileNotFoundError` if there is nothing at `path`.
    """
    return Mount(path, socket=socket)


class Mount:
    """A mount, and the daemon that serves it.

    Processes that are forked, and worker processes that get it by pickle, make connections of their own.
    Threads may share it.
    """

    def __init__(self, path: str | os.PathLike[str], *, socket: str | None = None) -> None:
        self.path = os.path.abspath(os.fspath(path))
        os.stat(self.path)
        self._socket = socket
        #: The name of the job to which this process belongs, if it belongs to one.
        self.job = job_name()
        locate = partial(_locate, self.path, socket)
        self._questions = Connection(locate)
        # A second one, so that no question waits behind a long transfer.
        self._transfers = Connection(locate)
        #: Reads files in batches.
        self.batches = BatchReader(root_of(self.path), locate)
        # The topics of warnings that were given, each with the object of the call that gave it.
        self._warned: dict[str, object] = {}
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_known")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def __repr__(self) -> str:
        return f"copperfs.connect({self.path!r})"

    def ask(self, path: str, etag: str | None = None) -> Answer:
        """Asks for at most a second. Raises as `Connection.request`.

        The answer has status 304 and no body if it is still the one that had this `etag`.
        """
        headers = {} if etag is None else {"If-None-Match": etag}
        return self._questions.request("GET", path, headers=headers, seconds=_SHORT_SECONDS)

    def tell(self, path: str, said: dict[str, Any]) -> Answer:
        """Posts a short request as JSON, for at most a second. Raises as `Connection.request`."""
        body, headers = json.dumps(said).encode(), {"Content-Type": "application/json"}
        return self._questions.request("POST", path, body, headers, seconds=_SHORT_SECONDS)

    def transfer(self, path: str, body: bytes) -> bytes:
        """Posts a request with many bytes in it or in its answer, for at most a minute."""
        headers = {"Content-Type": "application/octet-stream"}
        return self._transfers.request("POST", path, body, headers, seconds=_LONG_SECONDS).body

    def or_else(self, otherwise: T, ask: Callable[[], T], *, optional: bool = False) -> T:
        """Returns the result of `ask`, or `otherwise`, with one warning, if the daemon cannot answer.

        A training job outlives its daemon, and goes on from storage or with the answers that it has. If the
        question is `optional`, a daemon may not know it: it has no chunks, or measures no job. Then there
        is no warning.
        """
        try:
            return ask()
        except UnavailableError as error:
            self._warn_once("unavailable", f"{error}. The run goes on, and nothing counts as resident")
        except DaemonError as error:
            if not (optional and error.status == HTTPStatus.NOT_FOUND):
                self._warn_once(f"{error.status} {error.message}", str(error))
        return otherwise

    def stats(self, cluster: bool = False) -> dict[str, Any]:
        """Returns the counters of this node, or of all nodes, as `copperfs stats --json` shows them."""
        return self.ask("/v1/cluster" if cluster else "/v1/stats").fields()

    def clear(self, path: str = "", cluster: bool = False) -> bool:
        """Drops the cached part of `path`, given from the mount; of everything if it is empty.

        Returns whether anything of it was cached. Raises `CopperError` for users that do not own the mount.
        """
        return ioctl.clear(self.path, path, cluster)

    def datasets(self) -> list[dict[str, Any]]:
        """Returns the declared datasets, as `copperfs dataset list --json` shows them."""
        found: list[dict[str, Any]] = self.ask("/v1/datasets").fields().get("datasets", [])
        return found

    def dataset(self, which: str | Manifest, *, root: str | None = None) -> Dataset:
        """Returns a dataset, given by its name or by a manifest of one's own.

        `root` is the directory in which the manifest's paths begin: by default where the dataset lies below
        this mount, without a daemon the mount point. Raises `DaemonError` if there is no dataset of that
        name, and `CopperError` if no manifest is known.
        """
        if isinstance(which, Manifest):
            view = self._find(which.identity)
            return Dataset(self, which, view.get("name"), self._root(view, root))
        try:
            view = self.ask(f"/v1/datasets/{quote(which, safe='')}").fields()
        except UnavailableError as error:
            raise CopperError(
                f"the dataset {which!r} is known to the daemon alone: {error.message}",
                "give Manifest.open(FILE) instead of the name: that needs no daemon",
            ) from error
        return self._declared(view, root)

    def residency(self, paths: Iterable[str | os.PathLike[str]]) -> dict[str, int]:
        """Returns for each host how many bytes of files it holds, the most first: {"nid7": 123456}.

        `paths` begin at the mount point, as those of `copper://` URLs do, or with it. Files that belong to
        no declared dataset with a manifest count nothing. `Dataset.residency` says which bytes count.
        """
        views = self._with_manifests()
        roots = [os.path.normpath(self._root(view, None)) for view in views]
        asked: dict[str, list[str]] = {}
        for path in paths:
            named = self._absolute(path)
            for view, root in zip(views, roots):
                common = os.path.commonpath([named, root])
                if common in (named, root):
                    # The path lies in the dataset, or all of the dataset below the path.
                    asked.setdefault(view["name"], []).append(named if common == root else root)
        found: Counter[str] = Counter()
        for view in views:
            if view["name"] in asked:
                found.update(self._open(view).residency(asked[view["name"]], missing_ok=True))
        return dict(found.most_common())

    def close(self) -> None:
        """Closes the connections. The next request opens them again."""
        self._questions.close()
        self._transfers.close()
        self.batches.close()

    def _find(self, identity: str) -> dict[str, Any]:
        """Returns the declared dataset with these entries, or nothing."""
        nothing: list[dict[str, Any]] = []
        declared = self.or_else(nothing, self.datasets)
        for view in declared:
            if view.get("identity") == identity:
                return view
        if declared:
            self._warn_once(
                identity,
                "no declared dataset has the entries of this manifest, so nothing of it counts as resident; "
                "declare it with `copperfs dataset add NAME PATH --manifest FILE`",
            )
        return {}

    def _declared(self, view: dict[str, Any], root: str | None = None) -> Dataset:
        """Returns the dataset of a declaration. Raises `CopperError` if it has no manifest, or another's."""
        name = str(view["name"])
        if not view.get("manifest"):
            raise CopperError(
                f"the dataset {name!r} has no manifest",
                "make one with `copperfs dataset manifest PATH -o FILE` and declare it with "
                "`copperfs dataset add NAME PATH --manifest FILE`",
            )
        # A path of the namespace, which begins at the mount point.
        manifest = Manifest.open(os.path.join(self.path, str(view["manifest"]).lstrip("/")))
        if view.get("identity") not in (None, manifest.identity):
            raise CopperError(
                f"{manifest.file} is the manifest of another dataset than {name!r} (identity "
                f"{manifest.identity[:12]}, and the daemon's is {view['identity'][:12]})",
                f"give the file with which {name!r} was declared to Manifest.open",
            )
        return Dataset(self, manifest, name, self._root(view, root))

    def _forget(self) -> None:
        """Forgets all answers, as a process does that has just begun."""
        self._known_views: list[dict[str, Any]] = []
        # When they were asked for, on the monotonic clock.
        self._known_views_at = -math.inf
        # The datasets that residency was asked of, by name.
        self._known_datasets: dict[str, Dataset] = {}

    def _with_manifests(self) -> list[dict[str, Any]]:
        """Returns the declared datasets that have manifests, as they were a second ago at the earliest."""
        now = time.monotonic()
        if now - self._known_views_at >= _LISTED_SECONDS:
            self._known_views_at = now
            nothing: list[dict[str, Any]] = []
            listed = self.or_else(nothing, self.datasets)
            self._known_views = [view for view in listed if view.get("manifest")]
        return self._known_views

    def _open(self, view: dict[str, Any]) -> Dataset:
        """Returns a declared dataset, opened once while its declaration stays the same."""
        known = self._known_datasets.get(view["name"])
        same = known and (known.identity, known.root) == (view.get("identity"), self._root(view, None))
        if not known or not same:
            known = self._known_datasets[view["name"]] = self._declared(view)
            # No cycle: the connections of a mount are closed when it is not used any more.
            known.mount = weakref.proxy(self)
        return known

    def _absolute(self, path: str | os.PathLike[str]) -> str:
        """Returns where a path lies that begins at the mount point, or with it."""
        named = os.path.normpath("/" + os.fspath(path).lstrip("/"))
        if os.path.commonpath([named, self.path]) == self.path:
            return named
        return os.path.normpath(os.path.join(self.path, named.lstrip("/")))

    def _root(self, view: dict[str, Any], root: str | None) -> str:
        return root or os.path.join(self.path, str(view.get("path", "")).lstrip("/"))

    def _warn_once(self, topic: str, text: str) -> None:
        # Several threads may come here at once: the first to set its object gives the warning.
        mine = object()
        if self._warned.setdefault(topic, mine) is mine:
            warnings.warn(text, CopperWarning, stacklevel=4)


def _locate(path: str, socket: str | None) -> str:
    return socket or ioctl.users_socket(path)

"""Finds the files that a Dask task will read, from the task's specification.

Knows the tasks that dask.dataframe, dask.bag, dask.array and xarray make to read files, with the byte
ranges where they read parts. For all other tasks each argument that is a path of an existing file counts,
as in `client.submit(load, "/data/a.npy")`. It cannot see a path that a task computes, or one that a closure
or an object of another library holds.

Nothing here runs a task, changes an object of the graph (the scheduler pickles them in another thread), or
opens a file, except the footer of a Parquet file that is larger than a stripe and is read in part.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from dask._task_spec import Alias, DataNode, GraphNode, NestedContainer, Task, TaskRef

from copperfs_lrc import Read

# copperfs counts references by stripes of this size, so smaller files need no ranges.
STRIPE_BYTES = 4 << 20
# fsspec looks for the delimiter that ends a block of text in steps of this size.
DELIMITER_STEP_BYTES = 64 << 10
# Arrow reads this much at the end of a Parquet file to find the footer.
FOOTER_BYTES = 64 << 10
# Values visited in one task, and files of one slice of an array. Beyond, some references are missing, or a
# directory stands for its files.
VALUES_MAX = 100_000
FILES_MAX = 10_000
PATH_CHARACTERS_MAX = 4096

_PLAIN = (int, float, complex, bool, bytes, type(None), slice, type)
_GETTERS = {"getter", "getter_nofancy", "getter_inline", "getitem"}
_CONTAINERS = (list, tuple, set, frozenset)

Environment = Mapping[Any, Any]


def reads_of(spec: Any, literals: Environment) -> list[Read]:
    """Returns the paths and ranges that a task may read. `literals` has the tasks that are plain values."""
    finder = _Finder()
    finder.walk(spec, literals)
    return list(finder.found)


class _Finder:
    def __init__(self) -> None:
        self.found: dict[Read, None] = {}
        self._left = VALUES_MAX

    def walk(self, value: Any, known: Environment) -> None:
        self._left -= 1
        if self._left < 0 or isinstance(value, _PLAIN):
            return
        if isinstance(value, str):
            if may_be_path(value):
                self._add(value)
        elif isinstance(value, (TaskRef, GraphNode)):
            self._node(value, known)
        elif isinstance(value, _CONTAINERS):
            for item in value:
                self.walk(item, known)
        elif isinstance(value, dict):
            for item in value.values():
                self.walk(item, known)
        elif isinstance(value, functools.partial):
            self._call(value.func, value.args, value.keywords, known)
        elif isinstance(value, os.PathLike):
            path = os.fspath(value)
            if isinstance(path, str):
                self._add(path)
        else:
            self._object(value)

    def _node(self, value: Any, known: Environment) -> None:
        if isinstance(value, (TaskRef, Alias)):
            literal = dereference(value, known)
            if literal is not None:
                self.walk(literal, known)
        elif isinstance(value, DataNode):
            self.walk(value.value, known)
        elif isinstance(value, NestedContainer):
            for item in value.args:
                self.walk(item, known)
        elif isinstance(value, Task):
            self._call(value.func, value.args, value.kwargs, known)

    def _call(self, function: Any, args: Any, kwargs: Any, known: Environment) -> None:
        name = getattr(function, "__name__", type(function).__name__)
        if name == "_execute_subgraph" and len(args) >= 3:
            self._subgraph(args, known)
        elif name == "read_block_from_file" and len(args) >= 3:
            self._block(*args[:3])
        elif name == "ParquetFunctionWrapper":
            for part in args:
                self._parquet_part(part, function.columns, known)
        elif name == "_fragment_to_table":
            self._fragments(
                [kwargs.get("fragment_wrapper", args[0] if args else None)], kwargs.get("columns")
            )
        elif name == "_load_multiple_files" and len(args) >= 2 and isinstance(args[0], list):
            self._fragments([fragment for fragment, _ in args[0]], args[1])
        elif name == "_gather_statistics":
            for path in fragments_in(args):
                self._footer(path)
        elif not (name in _GETTERS and len(args) >= 2 and self._slice(args[0], args[1], known)):
            # A callable object or a bound method may hold paths; a plain function has none.
            if isinstance(function, functools.partial):
                self.walk(function, known)
            for value in itertools.chain(args, kwargs.values()):
                self.walk(value, known)

    def _subgraph(self, args: Any, known: Environment) -> None:
        inner, _, names = args[:3]
        # An outer name may be an inner one too, so it is resolved outside.
        given = {name: dereference(value, known) for name, value in zip(names, args[3:])}
        scope: Environment = ChainMap(given, inner, cast(Any, known))
        for node in inner.values():
            # Plain values count where a task uses them: a task may read a slice only.
            if not isinstance(node, (DataNode, Alias)):
                self.walk(node, scope)
        for value in args[3:]:
            if not isinstance(value, (TaskRef, GraphNode)):
                self.walk(value, known)

    def _block(self, opened: Any, offset: Any, length: Any) -> None:
        path = local_path(opened)
        if path is None:
            return
        if getattr(opened, "compression", None) or not isinstance(offset, int) or not isinstance(length, int):
            self._add(path)
        else:
            self._add_range(path, offset, offset + length + DELIMITER_STEP_BYTES)

    def _parquet_part(self, part: Any, columns: Any, known: Environment) -> None:
        if isinstance(part, DataNode):
            part = part.value
        if isinstance(part, NestedContainer):
            part = list(part.args)
        for piece in part if isinstance(part, list) else [part]:
            data = getattr(piece, "data", piece)
            where = data.get("piece") if isinstance(data, Mapping) else None
            if isinstance(where, (list, tuple)) and where and isinstance(where[0], str):
                groups = where[1] if len(where) > 1 else None
                self._parquet(where[0], columns, groups if groups != [None] else None)
            else:
                self.walk(piece, known)

    def _fragments(self, fragments: Iterable[Any], columns: Any) -> None:
        for fragment in fragments:
            path, groups = fragment_of(fragment)
            if path is not None:
                self._parquet(path, columns, groups)

    def _parquet(self, path: str, columns: Any, groups: Iterable[int] | None) -> None:
        ranges = parquet_ranges(path, tuple(columns) if columns is not None else None, groups)
        if ranges is None:
            self._add(path)
        for start, end in ranges or ():
            self._add_range(path, start, end)

    def _footer(self, path: str) -> None:
        with contextlib.suppress(OSError):
            size = os.stat(path).st_size
            self._add_range(path, max(0, size - FOOTER_BYTES), size)

    def _slice(self, array: Any, index: Any, known: Environment) -> bool:
        """Adds the files that hold a slice of a stored array. Returns false for anything else."""
        stored, is_view = stored_array(dereference(array, known))
        if stored is None:
            return False
        # The index is one into a view that xarray has made, so it says nothing about the chunks.
        self._stored(stored, None if is_view else dereference(index, known))
        return True

    def _stored(self, stored: Any, index: Any) -> None:
        if isinstance(stored, str):
            self._add(stored)
            return
        for path in zarr_files(stored, index):
            self._add(path)

    def _object(self, value: Any) -> None:
        path = local_path(value)
        if path is not None:
            self._add(path)
            return
        path, _ = fragment_of(value)
        if path is not None:
            self._add(path)
            return
        stored, _ = stored_array(value)
        if stored is not None:
            self._stored(stored, None)

    def _add(self, path: str) -> None:
        self.found[(path, None, None)] = None

    def _add_range(self, path: str, start: int, end: int) -> None:
        self.found[(path, start, end - start)] = None


def may_be_path(value: str) -> bool:
    """Returns false for strings that are not worth a look at the file system, such as names of columns."""
    return 0 < len(value) <= PATH_CHARACTERS_MAX and ("/" in value or "." in value) and value.isprintable()


def dereference(value: Any, known: Environment) -> Any:
    """Returns the plain value that a reference leads to, or None if a task computes it."""
    for _ in range(16):
        if isinstance(value, TaskRef):
            value = known.get(value.key)
        elif isinstance(value, Alias):
            value = known.get(value.target)
        elif isinstance(value, DataNode):
            value = value.value
        elif isinstance(value, NestedContainer):
            items = [dereference(item, known) for item in value.args]
            return tuple(items) if value.klass is tuple else items
        else:
            break
    return None if isinstance(value, (TaskRef, GraphNode)) else value


def is_local(filesystem: Any) -> bool:
    """Returns true for fsspec's file system of this machine, also if it is wrapped for asynchronous use."""
    inner = getattr(filesystem, "sync_fs", filesystem)
    protocol = getattr(inner, "protocol", ())
    return "file" in ((protocol,) if isinstance(protocol, str) else protocol)


def local_path(value: Any) -> str | None:
    """Returns the path of an fsspec `OpenFile` on this machine."""
    if type(value).__name__ == "OpenFile" and type(value).__module__.startswith("fsspec"):
        return str(value.path) if is_local(value.fs) else None
    return None


def fragment_of(value: Any) -> tuple[str | None, list[int] | None]:
    """Returns the path and the row groups of a Parquet fragment. No row groups stand for all."""
    if type(value).__name__ == "FragmentWrapper":
        # Its property `fragment` changes the object while the scheduler may be pickling it in another
        # thread. The packed form is (format, path, filesystem, expression, size).
        packed, fragment = value._fragment_packed, value._fragment
        if packed is not None:
            return (packed[1], None) if isinstance(packed[1], str) else (None, None)
        value = fragment
    if type(value).__name__ == "ParquetFileFragment":
        # `row_groups` would read the footer of a fragment that was not limited to some.
        return str(value.path), None
    return None, None


@functools.lru_cache(maxsize=1024)
def _parquet_footer(path: str, size: int, modified_ns: int) -> list[list[tuple[str, int, int]]]:
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path)
    groups = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        chunks = []
        for column in map(group.column, range(group.num_columns)):
            start = column.data_page_offset
            if column.dictionary_page_offset is not None:
                start = min(start, column.dictionary_page_offset)
            chunks.append((column.path_in_schema, start, start + column.total_compressed_size))
        groups.append(chunks)
    return groups


def parquet_ranges(
    path: str, columns: tuple[str, ...] | None, groups: Iterable[int] | None
) -> list[tuple[int, int]] | None:
    """Returns the parts of a Parquet file that hold some columns of some row groups, and its footer.

    Returns None where the whole file is as good an answer.
    """
    if columns is None and groups is None:
        return None
    try:
        info = os.stat(path)
        if info.st_size <= STRIPE_BYTES:
            return None
        footer = _parquet_footer(path, info.st_size, info.st_mtime_ns)
    except (ImportError, OSError, ValueError):
        return None
    wanted = set(columns) if columns is not None else None
    chosen = set(groups) if groups is not None else set(range(len(footer)))
    parts = [
        (start, end)
        for index, chunks in enumerate(footer)
        if index in chosen
        for name, start, end in chunks
        if wanted is None or name in wanted or name.split(".")[0] in wanted
    ]
    parts.append((max(0, info.st_size - FOOTER_BYTES), info.st_size))
    merged: list[tuple[int, int]] = []
    for start, end in sorted(parts):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def stored_array(value: Any) -> tuple[Any, bool]:
    """Returns the zarr array or the path of the file behind an array that is not in memory, or None.

    The second value is true if the array is a part of the stored one.
    """
    is_view = False
    for _ in range(12):
        module, name = type(value).__module__, type(value).__name__
        if module.startswith("zarr.") and name == "Array":
            return value, is_view
        if not module.startswith("xarray."):
            return None, is_view
        if name == "LazilyIndexedArray":
            is_view = is_view or any(part != slice(None) for part in value.key.tuple)
        path = getattr(getattr(value, "datastore", None), "_filename", None)
        if isinstance(path, str):
            return path, is_view
        value = value._array if hasattr(value, "_array") else getattr(value, "array", None)
    return None, is_view


def fragments_in(value: Any) -> Iterator[str]:
    """Yields the paths of the Parquet fragments in nested lists."""
    if isinstance(value, NestedContainer):
        value = value.args
    if isinstance(value, _CONTAINERS):
        for item in value:
            yield from fragments_in(item)
    else:
        path, _ = fragment_of(value)
        if path is not None:
            yield path


def zarr_files(array: Any, index: Any) -> list[str]:
    """Returns the files that hold a slice of a zarr array, or its directory when it cannot be told."""
    store = array.store_path.store
    root = getattr(store, "root", None)
    if root is None and is_local(getattr(store, "fs", None)):
        root = store.path
    if root is None:
        return []
    base = os.path.join(str(root), array.path) if array.path else str(root)
    try:
        shape, chunks = array.shape, getattr(array, "shards", None) or array.chunks
        slices = index if isinstance(index, tuple) else () if index is None else (index,)
        spans = []
        for axis, (extent, chunk) in enumerate(zip(shape, chunks)):
            part = slices[axis] if axis < len(slices) else slice(None)
            part = slice(part, part + 1) if isinstance(part, int) else part
            start, stop, _ = part.indices(extent)
            spans.append(range(start // chunk, -(-stop // chunk)))
        if functools.reduce(lambda product, span: product * len(span), spans, 1) > FILES_MAX:
            return [base]
        encode = array.metadata.encode_chunk_key
        return [os.path.join(base, encode(place)) for place in itertools.product(*spans)]
    except (AttributeError, TypeError, ValueError, NotImplementedError, ZeroDivisionError):
        # Fancy indexes, other grids of chunks, older versions of zarr.
        return [base]

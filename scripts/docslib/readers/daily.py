"""A pipeline of a reader of the pages, without an engine: tells what it will read, and reads it."""

import json
import os
import pathlib
import socket

root = pathlib.Path(os.environ["COPPERFS_LRC_ROOT"])
files = sorted(str(path.relative_to(root)) for path in root.rglob("*.parquet"))
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(os.environ["COPPERFS_LRC_SOCKET"])
    stream = connection.makefile("rw")

    def tell(**line: object) -> None:
        """Sends a line, and takes its answer."""
        stream.write(json.dumps(line) + "\n")
        stream.flush()
        answer = json.loads(stream.readline())
        assert answer.get("accepted"), answer

    tasks = [{"id": str(number), "in": [number]} for number in range(len(files))]
    tell(v=1, op="submit", job="daily", files=files, tasks=tasks)
    for number, name in enumerate(files):
        (root / name).read_bytes()
        tell(v=1, op="done", job="daily", task=str(number))
    tell(v=1, op="end", job="daily")

"""Row 37: `find` over 200,000 entries of an S3 bucket whose names come from an index.

The server is `rclone serve s3` (scripts/test-servers) on loopback; what is measured asks it for no
name, so its speed only counts for making the index, which is reported.
"""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from . import report
from .clock import drop_caches, median, wait_until
from .mounts import flatten, mount_directory, unmount

DIRECTORIES, FILES = 2000, 99
ENTRIES = DIRECTORIES * (FILES + 1)
RCLONE = Path(__file__).resolve().parents[2] / ".venv/bin/rclone"
KEYS = ("bench-key", "bench-secret")


def row37(bench):
    bucket = _bucket(bench.data.base.parent / "buckets")
    with _server(bucket.parent) as environment, tempfile.TemporaryDirectory() as scratch:
        index = Path(scratch) / "index"
        begun = time.monotonic()
        command = [bench.copperfs, "index", "build", "s3://many", "-o", index, "--json"]
        made = json.loads(_run(command, environment))
        making = time.monotonic() - begun
        assert made["entries"] == ENTRIES, made
        walls = []
        for _ in range(bench.runs):
            drop_caches(2)
            walls.append(_find(bench, environment, index))
    each = made["index_bytes"] / ENTRIES
    return [
        report.at_most(
            "37a", f"S3, find over {ENTRIES:,} entries with an index, cold mount", 2,
            median(walls), " s", walls=walls,
        ),
        report.at_most("37b", "… bytes of the index for each entry", 40, each, " B"),
        report.reported("37c", "… making the index", f"{making:.1f} s"),
    ]


def _find(bench, environment, index):
    """How long a fresh mount takes to be walked, attributes and all; it lists nothing."""
    with mount_directory() as mountpoint:
        command = [bench.copperfs, "mount", mountpoint, "--origin", "/data=s3://many"]
        try:
            _run([*command, "--index", f"/data=file://{index}"], environment)
            begun = time.monotonic()
            found = _run(["find", mountpoint / "data", "-size", "+0"], environment)
            wall = time.monotonic() - begun
            assert found.count("\n") == ENTRIES - DIRECTORIES, found.count("\n")
            out = _run([bench.copperfs, "stats", mountpoint, "--json"], environment)
            stats = dict(flatten(json.loads(out)))
            # The top of the mount is listed: no store has it.
            assert stats["origin.listings"] <= 1 and stats["origin.stats"] == 0, stats
        finally:
            unmount(bench.copperfs, mountpoint)
    return wall


def _bucket(base):
    """The bucket as files, made once."""
    bucket, mark = base / "many", base / f"many-{ENTRIES}-unlike"
    if mark.exists():
        return bucket
    shutil.rmtree(bucket, ignore_errors=True)
    for number in range(DIRECTORIES):
        directory = bucket / f"part-{number:04}"
        directory.mkdir(parents=True)
        for file in range(FILES):
            (directory / f"image-{number:04}-{file:02}.jpg").write_bytes(b"%d-%d" % (number, file))
    mark.touch()
    return bucket


@contextmanager
def _server(buckets):
    """The server, and what a program needs in its environment to reach it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [RCLONE, "serve", "s3", "--config", "", "--addr", address]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*command, "--auth-key", ",".join(KEYS), buckets], **quiet)

    def answers():
        host, port = address.split(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    try:
        wait_until(answers, 30, "the S3 server")
        yield {
            **os.environ,
            "AWS_ACCESS_KEY_ID": KEYS[0],
            "AWS_SECRET_ACCESS_KEY": KEYS[1],
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT": f"http://{address}",
            "AWS_ALLOW_HTTP": "true",
        }
    finally:
        process.terminate()
        process.wait(10)


def _run(command, environment):
    words = [str(word) for word in command]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=600, check=False, env=environment
    )
    if done.returncode != 0:
        raise RuntimeError(f"{words[:3]}: status {done.returncode}: {done.stderr[-500:]}")
    return done.stdout

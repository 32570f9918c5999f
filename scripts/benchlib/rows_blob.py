"""Rows 31, 32 and 34: an S3 bucket, against its own server's speed and other mounts of it.

The server is `rclone serve s3` (scripts/test-servers) on a host of its own, the readers on another
(scripts/hosts.sh). A relay beside the server begins every answer DELAY_MS later: no S3 that is not on
this machine answers at once. All requests are unsigned, for everybody. Each run has a fresh mount; what
takes longer than SLOW_S is run once.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

from . import report
from .clock import median, wait_until
from .hosts import Hosts

SERVER, READER = 1, 2
DELAY_MS = 10
SLOW_S = 30.0
RATE = "800mbit"
NEAR, FAR = 9000, 9001
BUCKET = "bucket"
FILES, DIRECTORIES, BYTES = 5000, 50, 20 << 10
BIG = 1 << 30
PARTS = 8
RCLONE = Path(__file__).resolve().parents[2] / ".venv/bin/rclone"

# Runs a program; prints what it took and what it printed. With a mount of copperfs, also the CPU
# seconds of its daemon.
TIMED = """
import json, subprocess, sys, time
pid, words = int(sys.argv[1]), sys.argv[2:]
clock = lambda: time.clock_gettime((~pid << 3) | 2) if pid else 0.0
cpu, begun = clock(), time.monotonic()
done = subprocess.run(words, capture_output=True, text=True)
wall = time.monotonic() - begun
print(json.dumps({"wall": wall, "daemon": clock() - cpu, "status": done.returncode,
                  "out": done.stdout[-2000:], "lines": done.stdout.count("\\n"),
                  "error": done.stderr[-300:]}))
"""


class Store:
    """The server, its bucket and the reader's host."""

    def __init__(self, bench, hosts, scratch):
        self.bench, self.hosts, self.scratch = bench, hosts, scratch
        self.mountpoint = scratch / "mnt"
        self.mountpoint.mkdir()
        self.address = f"{hosts.environment['HOSTS_NET']}.{SERVER}"

    def url(self, port):
        return f"http://{self.address}:{port}"

    def timed(self, *words, pid=0, timeout=900):
        """Runs a program on the reader's host."""
        command = [sys.executable, "-c", TIMED, pid, *words]
        answer = json.loads(self.hosts.output(READER, *command, timeout=timeout))
        if answer["status"] != 0:
            raise RuntimeError(f"{words[:3]}: status {answer['status']}: {answer['error']}")
        return answer

    def read(self, base, list_file, pid=0, seconds=0):
        """The loop that reads files, on the reader's host."""
        loops = self.bench.clients.loops
        answer = self.timed(loops, "read", base, list_file, seconds, 1, pid=pid)
        return {**answer, **json.loads(answer["out"])}

    def find(self, base):
        """`find` that needs every entry's attributes; how long it took."""
        answer = self.timed("find", base, "-size", "+0")
        assert answer["lines"] >= FILES, answer["lines"]
        return answer["wall"]

    def parallel(self, keys, port, at_once):
        """Wall time of GETs of whole objects, `at_once` of them at a time."""
        config = self.scratch / "curl"
        lines = (f'url = "{self.url(port)}/{BUCKET}/{key}"\noutput = "/dev/null"\n' for key in keys)
        config.write_text("".join(lines))
        return self.timed(
            "curl", "-sf", "--parallel", "--parallel-max", at_once, "-K", config
        )["wall"]

    def parallel_ranges(self, key, port, size, count):
        """Wall time of one object as `count` ranges at once."""
        config, part = self.scratch / "curl", size // count
        lines = (
            f'url = "{self.url(port)}/{BUCKET}/{key}"\nrange = {at * part}-{(at + 1) * part - 1}\n'
            f'output = "/dev/null"\n' + ("next\n" if at + 1 < count else "")
            for at in range(count)
        )
        config.write_text("".join(lines))
        words = ["curl", "-sf", "--parallel", "--parallel-max", count, "-K", config]
        return self.timed(*words)["wall"]

    @contextmanager
    def copperfs(self, port, *flags):
        """A node that is alone."""
        options = self.scratch / "copperfs.toml"
        options.write_text(
            f'[[origin]]\nprefix = "/"\nuri = "s3://{BUCKET}"\n[origin.options]\n'
            f'endpoint = "{self.url(port)}"\nallow_http = "true"\nskip_signature = "true"\n'
            f'region = "us-east-1"\n'
        )
        command = [self.bench.copperfs, "mount", "--config", options, *flags, self.mountpoint]
        self.hosts.output(READER, *command)
        try:
            yield self.mountpoint
        finally:
            self.hosts.output(READER, self.bench.copperfs, "unmount", "--force", self.mountpoint)

    def stats(self):
        words = [self.bench.copperfs, "stats", "--json", self.mountpoint]
        return json.loads(self.hosts.output(READER, *words))

    @contextmanager
    def mounted(self, *command):
        """Another program's mount, in the foreground."""
        process = self.hosts.start(READER, *command, stderr=subprocess.DEVNULL)
        point = str(self.mountpoint)
        is_mounted = f"import os,sys; sys.exit(not os.path.ismount({point!r}))"

        def ready():
            if process.poll() is not None:
                raise RuntimeError(f"{command[0]} ended with {process.returncode}")
            words = [sys.executable, "-c", is_mounted]
            return self.hosts.start(READER, *words).wait(30) == 0

        try:
            wait_until(ready, 30, f"a mount of {command[0]}")
            yield self.mountpoint
        finally:
            self.hosts.start(READER, "umount", point, stderr=subprocess.DEVNULL).wait(30)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()

    @contextmanager
    def rclone(self, port):
        """rclone with a whole cache, many streams, and no request for what a listing tells."""
        remote = f":s3,provider=Other,endpoint='{self.url(port)}':{BUCKET}"
        with tempfile.TemporaryDirectory(dir=self.scratch) as cache:
            command = [RCLONE, "mount", remote, self.mountpoint, "--config", "", "--read-only"]
            command += ["--cache-dir", cache, "--vfs-cache-mode", "full", "--dir-cache-time", "1h"]
            command += ["--attr-timeout", "1h", "--use-server-modtime", "--vfs-fast-fingerprint"]
            command += ["--no-checksum", "--transfers", "32", "--checkers", "32"]
            command += ["--vfs-read-chunk-size", "8M", "--vfs-read-chunk-streams", "8"]
            with self.mounted(*command) as base:
                yield base

    @contextmanager
    def s3fs(self, port):
        """s3fs with as many requests at a time as the others."""
        options = f"public_bucket=1,url={self.url(port)},use_path_request_style,ro,kernel_cache"
        options += ",parallel_count=32,multireq_max=64,enable_noobj_cache"
        with self.mounted("s3fs", "-f", BUCKET, self.mountpoint, "-o", options) as base:
            yield base


@contextmanager
def store(bench):
    """A bucket on a host of its own."""
    if not RCLONE.exists():
        raise RuntimeError("no S3 server; try: scripts/test-servers")
    root = fill(bench)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="copperfs-bench-")))
        hosts = stack.enter_context(Hosts(2, net="10.79.0"))
        started = [
            hosts.start(SERVER, *command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for command in (
                [RCLONE, "serve", "s3", "--addr", f":{NEAR}", "--config", "", "--cache-dir"]
                + [scratch / "server", "--dir-cache-time", "24h", "--no-checksum", root],
                [relay(bench), FAR, NEAR, DELAY_MS],
            )
        ]
        stack.callback(lambda: [process.kill() for process in started])
        found = Store(bench, hosts, scratch)
        wait_until(lambda: reachable(found), 30, "the S3 server")
        # The server hashes each object once, when it is first read.
        found.parallel([*flat(), *tree(), "big.bin"], NEAR, 8)
        yield found


def reachable(found):
    try:
        found.timed("curl", "-sf", "-o", "/dev/null", f"{found.url(FAR)}/{BUCKET}?list-type=2")
    except RuntimeError:
        return False
    return True


def relay(bench):
    """Compiles relay.c if it changed."""
    source, binary = Path(__file__).with_name("relay.c"), bench.data.base.parent / "relay"
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        flags = ["-O2", "-Wall", "-Wextra", "-pthread"]
        subprocess.run([shutil.which("cc") or "gcc", *flags, "-o", binary, source], check=True)
    return binary


def fill(bench):
    """The bucket as a directory: the same bytes flat and as a tree, and one big object."""
    root = bench.data.base.parent / "blob"
    bucket = root / BUCKET
    (bucket / "flat").mkdir(parents=True, exist_ok=True)
    for key, other in zip(flat(), tree()):
        file, link = bucket / key, bucket / other
        if not file.exists() or file.stat().st_size != BYTES:
            file.write_bytes(os.urandom(BYTES))
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            os.link(file, link)
    big = bucket / "big.bin"
    if not big.exists() or big.stat().st_size != BIG:
        with open(big, "wb") as out:
            for _ in range(BIG >> 20):
                out.write(os.urandom(1 << 20))
    return root


def flat():
    return [f"flat/f{number:04}.bin" for number in range(FILES)]


def tree():
    each = FILES // DIRECTORIES
    return [f"tree/d{n // each:03}/f{n % each:03}.bin" for n in range(FILES)]


def shuffled(keys, seed):
    keys = list(keys)
    random.Random(seed).shuffle(keys)
    return keys


def in_turns(runs, cases):
    """Wall times by name: each case once a run, in turns; slow ones once."""
    walls = {name: [] for name in cases}
    for turn in range(runs):
        names = list(cases)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if walls[name] and max(walls[name]) > SLOW_S:
                continue
            walls[name].append(cases[name](turn))
    return walls


def row31(bench):
    """5,000 files of 20 KB in random order."""
    with store(bench) as found:

        def through(mount, port):
            def run(turn):
                keys = bench.data.list("blob", shuffled(flat(), turn))
                with mount(port) as base:
                    return found.read(base, keys)["wall"]

            return run

        cases = {
            "32 GETs": lambda turn: found.parallel(shuffled(flat(), turn), FAR, 32),
            "copperfs": through(found.copperfs, FAR),
            "rclone": through(found.rclone, FAR),
            "s3fs": through(found.s3fs, FAR),
            "32 GETs near": lambda turn: found.parallel(shuffled(flat(), turn), NEAR, 32),
            "copperfs near": through(found.copperfs, NEAR),
        }
        walls = in_turns(bench.runs, cases)
        warm = warm_rates(bench, found)
    took = {name: median(found) for name, found in walls.items()}
    what = f"S3 ({DELAY_MS} ms to the first byte), {FILES:,} × 20 KB, random order, cold"
    return [
        report.at_least(
            "31a", f"{what}: to 32 parallel GETs", 0.7, took["32 GETs"] / took["copperfs"], walls=walls
        ),
        faster("31b", "… faster than rclone mount by", 1.0, took["rclone"] / took["copperfs"]),
        faster("31c", "… faster than s3fs by", 1.0, took["s3fs"] / took["copperfs"]),
        report.reported(
            "31d",
            "… without the delay: to 32 parallel GETs",
            f"{took['32 GETs near'] / took['copperfs near']:.2f}",
        ),
        report.at_least(
            "31e",
            "… warm, CPU rate to native",
            0.8,
            median(warm["copperfs"]) / median(warm["native"]),
            rates=warm,
        ),
    ]


def faster(row, what, bar, ratio):
    return report.Result(row, what, f"≥ {bar:g} ×", f"{ratio:.1f} ×", "", bool(ratio >= bar))


def warm_rates(bench, found):
    """Reads per CPU-second, the same files from a directory and from a mount that has them."""
    keys = bench.data.list("blob", shuffled(flat(), 0))
    bucket = bench.data.base.parent / "blob" / BUCKET
    rates = {"native": [], "copperfs": []}
    with found.copperfs(FAR) as base:
        pid = found.stats()["pid"]
        found.read(base, keys)
        found.read(base, keys)
        wait_until(lambda: found.stats()["push"]["software"]["pending"] == 0, 60, "the push")
        for _ in range(bench.runs):
            for name, place, daemon in (("native", bucket, 0), ("copperfs", base, pid)):
                answer = found.read(place, keys, daemon, bench.seconds)
                rates[name].append(answer["ops"] / (answer["cpu"] + answer["daemon"]))
    return rates


def row32(bench):
    """find over 5,000 entries."""
    with store(bench) as found:

        def through(mount, below):
            def run(_turn):
                with mount(FAR) as base:
                    return found.find(base / below)

            return run

        mounts = {"copperfs": found.copperfs, "rclone": found.rclone, "s3fs": found.s3fs}
        cases = {
            f"{name} {below}": through(mount, below)
            for name, mount in mounts.items()
            for below in ("tree", "flat")
        }
        walls = in_turns(bench.runs, cases)
    took = {name: median(found) for name, found in walls.items()}

    def ratio(peer, below):
        return took[f"{peer} {below}"] / took[f"copperfs {below}"]

    what = f"S3 ({DELAY_MS} ms), find over {FILES:,} entries in {DIRECTORIES} directories, cold"
    flat_ones = ", ".join(f"{ratio(peer, 'flat'):.1f} × {peer}" for peer in ("s3fs", "rclone"))
    return [
        faster("32a", f"{what}: to s3fs", 10, ratio("s3fs", "tree")),
        faster("32b", "… to rclone mount", 2, ratio("rclone", "tree")),
        report.reported("32c", "… all in one directory", flat_ones, walls=walls),
    ]


def row34(bench):
    """1 GiB in order, the server's link limited."""
    with store(bench) as found:
        found.hosts.control("rate", SERVER, RATE)
        keys = bench.data.list("blob", ["big.bin"])

        def through(mount, *flags):
            def run(_turn):
                with mount(FAR, *flags) as base:
                    return found.read(base, keys)["wall"]

            return run

        cases = {
            "ranges": lambda _turn: found.parallel_ranges("big.bin", FAR, BIG, PARTS),
            "copperfs": through(found.copperfs, "--memory", bench.memory),
            "rclone": through(found.rclone),
            "s3fs": through(found.s3fs),
        }
        walls = in_turns(bench.runs, cases)
    took = {name: median(found) for name, found in walls.items()}
    rate = BIG / took["copperfs"] / 1e6
    what = f"S3 ({DELAY_MS} ms, {RATE}), 1 GiB in order, cold: to {PARTS} parallel ranged GETs"
    others = ", ".join(f"{name} {took['ranges'] / took[name]:.2f}" for name in ("rclone", "s3fs"))
    return [
        report.at_least("34a", what, 0.9, took["ranges"] / took["copperfs"], walls=walls),
        report.reported("34b", "… MB/s; others to the ranged GETs", f"{rate:.0f}; {others}"),
    ]

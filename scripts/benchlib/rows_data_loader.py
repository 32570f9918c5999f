"""Row 72: PyTorch's DataLoader with eight workers over JPEG images that a home holds, as files and in shards."""

import json
import select
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import report
from .clock import DaemonClock, drop_caches, median
from .hosts import Hosts, Tree
from .informed import REPOSITORY
from .mounts import run
from .rows_first_epoch import daemons
from .rows_hosts import origin_flag, scratch_dir
from .rows_jobs import TORCH_PYTHON
from .rows_sampling import origin_of
from .training import Training

IMAGES = 2048
WORKERS = 8
JOB = Path(__file__).with_name("data_loader_job.py")
VENV = REPOSITORY / ".venv-python-loaders"
SHARDS = {"tar": "WebDataset", "mds": "MosaicML MDS"}
HOST = {"native": 1, "here": 1, "elsewhere": 2}
"""The host of the job, by where it reads. The first one is the home of almost all items."""
EPOCH_S = 120


@dataclass
class Epoch:
    """An epoch's samples a second, and CPU in µs for each sample."""

    rate: float
    workers: float
    main: float
    daemons: float
    first: float
    """Seconds until the first mini-batch."""

    @property
    def client(self):
        """CPU of the main process and its workers."""
        return self.workers + self.main


class Job:
    """A DataLoader whose workers wait for the next epoch."""

    def __init__(self, nodes, origin, name, kind, place, how):
        self.native = origin / name if place == "native" else None
        base = origin if self.native else nodes.data / "bench"
        # `copperfs.connect` takes the mount point.
        root = nodes.data if kind == "copper" else base
        environment = [f"PYTHONPATH={REPOSITORY / 'python'}", "OMP_NUM_THREADS=1", "PYTHONWARNINGS=ignore"]
        command = ["env", *environment, VENV / "bin/python3", JOB, kind, root, name, how]
        if not self.native:
            job = f"{kind}-{place}-{how}"
            command = [nodes.tree.copperfs, "job", "run", "--dataset", name, "--name", job, "--", *command]
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = nodes.hosts.start(HOST[place], *command, **pipes)

    def epoch(self, pids, count):
        """Reads all `count` images once, without the kernel's pages of the mount."""
        drop_caches(1)
        if self.native:
            # `drop_caches` has emptied storage's pages too.
            for path in self.native.rglob("*.*"):
                path.read_bytes()
        with DaemonClock(pids) as clock:
            said = self.ask()
        if said["samples"] != count:
            raise RuntimeError(f"{self.process.args} has read {said['samples']} of {count} images")
        each = 1e6 / said["samples"]
        return Epoch(
            rate=said["samples"] / said["wall"],
            workers=each * said["workers"],
            main=each * said["main"],
            daemons=each * clock.cpu,
            first=said["first"],
        )

    def ask(self):
        """Has the job read an epoch, and returns its figures."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], EPOCH_S)[0]:
            raise TimeoutError(f"{self.process.args} has read no epoch within {EPOCH_S} s")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended with {self.process.wait(10)}")
        return json.loads(line)

    def end(self):
        """Closes the standard input, with which the job ends."""
        self.process.communicate(timeout=30)


def row72(bench):
    """The formats, native and on the mount, with and without decoding; jobs of one kind take turns."""
    need_loaders()
    count = IMAGES // 4 if bench.quick else IMAGES
    origin = origin_of(bench)
    names = make_images(bench.copperfs, origin, count)
    found = {}
    with two_nodes(bench, origin) as nodes:
        declare(nodes, names)
        for kinds in (("folder", "copper"), *((kind,) for kind in SHARDS)):
            for how in ("bytes", "decoded"):
                found |= turns(bench, nodes, origin, {kind: names[kind] for kind in kinds}, how, count)
    return rows_of(found, count)


def need_loaders():
    """Makes the environment of the loaders, if it is not there: Debian's torch, and packages for its numpy."""

    def bash(script, *words):
        command = ["bash", "-ec", f'. "$1"/scripts/lib.sh; shift; {script}', "-", REPOSITORY, *words]
        subprocess.run(command, check=True)

    bash('need_packages "$@"', "python3-venv", "python3-torch", "python3-torchvision")
    if not VENV.exists():
        run([TORCH_PYTHON, "-m", "venv", "--system-site-packages", VENV])
    version = run([TORCH_PYTHON, "-c", "import numpy; print(numpy.__version__)"])
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraint:
        constraint.write(f"numpy=={version}")
        constraint.flush()
        packages = ("webdataset", "mosaicml-streaming")
        bash('PIP_CONSTRAINT="$1" need_python "${@:2}"', constraint.name, VENV, *packages)


def make_images(copperfs, origin, count):
    """The images in each format, made once, and a manifest of the files. Returns the names of the datasets."""
    name = f"jpeg-{count}"
    manifest = origin / f"{name}.manifest"
    if not manifest.exists():
        run(["rm", "-rf", *(origin / f"{name}{suffix}" for suffix in ("", "-tar", "-mds"))])
        run([VENV / "bin/python3", JOB, "--make", origin, name, count], timeout=300)
        time.sleep(2.1)  # until their times tell one version from the next
        run([copperfs, "dataset", "manifest", origin / name, "-o", manifest])
        time.sleep(2.1)
    return {"folder": name, "copper": name} | {kind: f"{name}-{kind}" for kind in SHARDS}


@contextmanager
def two_nodes(bench, origin):
    """Two hosts with data mounts, of which the first is the home of almost all items."""
    with scratch_dir() as scratch, Hosts(2, mtu=9000) as hosts:
        data = scratch / "data"
        data.mkdir()
        flags = ["--memory", "2GiB", "--data-mount", data, *origin_flag(origin)]
        tree = Tree(bench.copperfs, hosts, scratch, flags)
        hosts.environment["COPPERFS_MOUNTPOINT"] = str(tree.mountpoint)
        try:
            tree.mount([1])
            tree.flags += ["--shared-reserve", "99%"]
            tree.mount([2])
            yield Training(tree, data)
        finally:
            tree.unmount()


def declare(nodes, names):
    """Declares the datasets: the files with their manifest, shards without."""
    files = names["folder"]
    nodes.add(files, "--manifest", f"{nodes.prefix}/{files}.manifest", "--origin-readers", "homes")
    for kind in SHARDS:
        nodes.add(names[kind], "--origin-readers", "homes")


def turns(bench, nodes, origin, names, how, count):
    """Epochs of jobs that take turns, by format, place and `how`, after one of each, which fills the homes."""
    pids = sorted(daemons(nodes.tree.mountpoint))
    places = [(kind, place) for kind in names for place in HOST if (kind, place) != ("copper", "native")]
    # Without decoding, an epoch takes some tenths of a second.
    epochs_each = bench.runs * (2 if how == "bytes" else 1)
    with ExitStack() as stack:
        jobs = {}
        for kind, place in places:
            jobs[kind, place, how] = job = Job(nodes, origin, names[kind], kind, place, how)
            stack.callback(job.end)
            job.epoch(pids, count)
        before = nodes.total("datasets.origin_bytes")
        epochs = {key: [] for key in jobs}
        for _ in range(epochs_each):
            for key, job in jobs.items():
                epochs[key].append(job.epoch(pids, count))
        if (read := nodes.total("datasets.origin_bytes") - before) != 0:
            raise RuntimeError(f"storage gave {read} bytes, and homes should have held all")
    for key, found in epochs.items():
        print(f"  {' '.join(key)}: {shown(found)}, first mini-batch after {middle(found, 'first'):.2f} s", flush=True)
    return epochs


def middle(epochs, field):
    """The median of a field."""
    return median(getattr(one, field) for one in epochs)


def shown(epochs, native=()):
    """Samples a second, their ratio to native by turns, and the CPU of a sample."""
    ratios = [one.rate / other.rate for one, other in zip(epochs, native)]
    ratio = f"{median(ratios):.2f} of native; " if ratios else ""
    cpu = " + ".join(f"{middle(epochs, field):.0f}" for field in ("client", "daemons"))
    return f"{middle(epochs, 'rate'):,.0f} ({ratio}{cpu} µs)"


def rows_of(found, count):
    """The table's rows."""
    rows = []
    letters = iter("abcdef")
    titles = {"folder": f"{count:,} JPEG images of 110 KB, a file each"} | SHARDS
    for kind, title in titles.items():
        for how in ("bytes", "decoded"):
            series = {place: found[kind, place, how] for place in HOST}
            if kind == "folder":
                series |= {f"CopperDataset {place}": found["copper", place, how] for place in ("here", "elsewhere")}
            native = series.pop("native")
            figures = [f"native {shown(native)}"]
            figures += [f"{name} {shown(epochs, native)}" for name, epochs in series.items()]
            what = f"{title}, {WORKERS} workers, {'bytes only' if how == 'bytes' else how}"
            what += ": samples/s (CPU of the job + the daemons for each)"
            rows.append(report.reported(f"72{next(letters)}", what, "; ".join(figures)))
    return rows

"""Rows 41, 44 and 45: whole training jobs: against the simulator, through faults, and PyTorch's own.

Row 41 is the micro-benchmark of SiloD (section 7.1.1), sizes 10,000 and rates 10 times smaller.
"""

import time
from dataclasses import dataclass

from . import report
from .clock import wait_until
from .mounts import run
from .rows_datasets import AMPLE, NODES, room
from .rows_hosts import scratch_dir
from .training import MB, Loader, end, make_files, predicted, training

CACHE, REMOTE_IO = 200 * MB, 20 * MB
ITEM_BYTES = 100_000
BERT_FILES = 20_900
POLICIES = {
    "greedy": ["--scheduler", "fifo", "--system", "silod"],
    "max-min": ["--scheduler", "gavel", "--system", "silod"],
    "sjf": ["--scheduler", "sjf", "--system", "silod"],
    "benefit": ["--scheduler", "fifo", "--system", "quiver"],
    "lru": ["--scheduler", "fifo", "--system", "alluxio"],
    "static": ["--scheduler", "fifo", "--system", "coordl"],
}
TORCH_PYTHON = "/usr/bin/python3"
"""Debian's, for which python3-torch and python3-pil are packaged."""


@dataclass(frozen=True)
class Model:
    """A job of row 41."""

    name: str
    host: int
    gpus: int
    rate: int
    epochs: float
    files: int
    seed: int

    @property
    def dataset(self):
        part = self.name == "bert" and self.files != BERT_FILES
        return f"set-{self.name}" + (f"-{self.files}" if part else "")


def models(quick, policy="greedy"):
    """The five jobs. Quick ones run fewer epochs, and rank no different for it.

    Jobs tell the system their work in whole epochs, by which sjf ranks them: with it BERT's set is only
    the part that it reads."""
    part = 0.3 if quick else 1.0
    bert = (0.07 * part, BERT_FILES)
    if policy == "sjf":
        bert = (1.0, round(0.07 * part * BERT_FILES))

    def epochs(full):
        return float(round(full * part))

    return [
        Model("resnet50-a", 1, 1, 11_400_000, epochs(13), 1300, 1),
        Model("resnet50-b", 2, 1, 11_400_000, epochs(13), 1300, 2),
        Model("efficientnetb1-c", 3, 1, 6_900_000, epochs(10), 1300, 3),
        Model("efficientnetb1-d", 4, 1, 6_900_000, epochs(10), 1300, 4),
        Model("bert", 4, 4, 800_000, *bert, 5),
    ]


def problem(jobs):
    """The same for the simulator."""
    lines = ["gpus = 8", f'cache = "{CACHE}B"', f'remote_io = "{REMOTE_IO}B/s"']
    for job in jobs:
        lines += ["[[dataset]]", f'name = "{job.dataset}"', f'size = "{job.files * ITEM_BYTES}B"']
    for job in jobs:
        lines += [
            "[[job]]",
            f'id = "{job.name}"',
            f'model = "{job.name}"',
            f'dataset = "{job.dataset}"',
            f"gpus = {job.gpus}",
            f'ideal_rate = "{job.rate}B/s"',
            f"epochs = {job.epochs}",
        ]
    return "\n".join(lines) + "\n"


def row41(bench):
    """Job completion times of five loaders under each policy, against the simulator."""
    origin = bench.data.base.parent / "datasets"
    rows = []
    for letter, policy in zip("abcdef", POLICIES, strict=True):
        jobs = models(bench.quick, policy)
        for job in jobs:
            make_files(origin / job.dataset, job.files, ITEM_BYTES, sparse=job.name == "bert")
        done = train(bench, origin, jobs, policy)
        with scratch_dir() as scratch:
            flags = [*POLICIES[policy], "--granularity", "item", "--items", 1300, "--batch", 4]
            model = predicted(bench.copperfs, problem(jobs), flags, scratch)
        rows.append(compared(f"41{letter}", policy, jobs, done, model))
        print(f"  {rows[-1].row} {rows[-1].what}: {rows[-1].figure}", flush=True)
    return rows


def compared(row, policy, jobs, done, model):
    """One policy's row."""
    expected = {job["id"]: job["jct_s"] for job in model["jobs"]}
    took = {name: one["seconds"] for name, one in done.items()}
    average = sum(took.values()) / len(took)
    makespan = max(took.values())
    off = [100 * (took[job.name] / expected[job.name] - 1) for job in jobs]
    off_average = 100 * (average / model["jct_mean_s"] - 1)
    off_makespan = 100 * (makespan / model["makespan_s"] - 1)
    each = ", ".join(f"{one:+.1f}" for one in off)
    return report.at_most(
        row,
        f"{policy}: five jobs, {jobs[0].epochs:.0f} and {jobs[2].epochs:.0f} epochs, average JCT {average:.1f} s (simulator "
        f"{model['jct_mean_s']:.1f} s, {off_average:+.1f} %), makespan {makespan:.1f} s "
        f"({model['makespan_s']:.1f} s, {off_makespan:+.1f} %), each job {each} %; furthest off",
        5,
        max(map(abs, [*off, off_average, off_makespan])),
        " %",
        measured=done,
        simulated=expected,
    )


def train(bench, origin, jobs, policy):
    """One run: what each loader says at its end, with its epochs."""
    flags = [
        "--page-cache=false", "--policy", policy, "--remote-io", f"{REMOTE_IO}B/s",
        *room(CACHE // NODES),
    ]  # fmt: skip
    with scratch_dir() as scratch, training(bench.copperfs, scratch, origin, NODES, flags) as nodes:
        for job in jobs:
            nodes.add(job.dataset, "--origin-readers", "homes")
        start = time.time() + 12  # until all have listed their files and the allocator knows them
        loaders = []
        try:
            for job in jobs:
                how = ["--rate", job.rate, "--epochs", job.epochs, "--seed", job.seed]
                declare = ["--ideal-rate", f"{job.rate}B/s", "--gpus", job.gpus]
                declare += ["--epochs", max(1, round(job.epochs))]
                loader = nodes.loader(
                    job.host, job.name, job.dataset, [*how, "--start", start], declare
                )
                loaders.append(loader)
            done = {loader.name: loader.finish(1200) for loader in loaders}
        finally:
            end(loaders)
        for loader in loaders:
            done[loader.name]["epochs"] = loader.epochs()
        return done


def row44(bench):
    """The allocator is killed, a node is lost, and both come back while jobs read."""
    origin = bench.data.base.parent / "datasets"
    names = ["first", "second", "third"]
    for name in names:
        make_files(origin / name, 1000, 40_000)
    flags = ["--takeover=false", "--page-cache=false", "--roots", 2, "--remote-io", "24MB/s"]
    flags += room(AMPLE)
    took = {}
    with scratch_dir() as scratch, training(bench.copperfs, scratch, origin, NODES, flags) as nodes:
        nodes.add("first", "--budget", "20MB", "--origin-readers", "homes")
        nodes.add("second", "--budget", "10MB", "--origin-readers", "homes")
        nodes.add("third", "--origin-readers", "homes")
        stop = scratch / "stop"
        how = ["--epochs", 10_000, "--rate", 8 * MB, "--stop", stop]
        jobs = [
            nodes.loader(
                2 + number % 2, f"job{number}", name,
                [*how, "--seed", number, "--compare", origin / name],
                ["--ideal-rate", "8MB/s"],
            )
            for number, name in enumerate(names)
        ]  # fmt: skip
        try:
            for job in jobs:
                job.wait_epoch(2, 120)
            # Two by hand; the third has what is left. (What the policy gives to several moves with
            # what they will hit next.)
            nodes.limit("job0", "5MB/s", on=2)
            nodes.limit("job1", "6MB/s", on=2)
            before = settled(nodes, 2)
            for what, fault, holds in FAULTS:
                begun = fault(nodes)
                wait_until(lambda h=holds: allocated(nodes, 2, h) == before, 30, f"{what}: the same")
                took[what] = time.time() - begun
                time.sleep(6)
            stop.touch()
            done = [job.finish(120) for job in jobs]
        finally:
            end(jobs)
    failed = sum(one["wrong"] for one in done)
    longest = max(one["longest_read_s"] for one in done)
    return [
        report.at_most(f"44{letter}", f"{what}: budgets and rates the same again after", 5, seconds, " s")
        for letter, (what, seconds) in zip("abcd", took.items(), strict=True)
    ] + [
        report.exactly("44e", "… reads that failed or gave other bytes", 0, failed),
        report.reported("44f", "… longest single read", f"{longest:.2f} s"),
    ]


def kill_allocator(nodes):
    pid = nodes.stats(1)["pid"]
    begun = time.time()
    nodes.hosts.output(1, "kill", "-9", pid)
    nodes.tree.mounted.remove(1)
    return begun


def lose_node(nodes):
    begun = time.time()
    nodes.hosts.control("crash", NODES)
    nodes.tree.mounted.remove(NODES)
    return begun


def back(number, boot):
    def fault(nodes):
        if boot:
            nodes.hosts.control("boot", number)
        nodes.tree.mount([number])
        return time.time()  # a mount's own start is row 12's

    return fault


FAULTS = [
    # What happens, and when it is over beside that everything is as before.
    ("allocator killed (kill -9), root 2 takes over", kill_allocator,
     lambda shown: shown["allocator"] != "h1"),
    ("… its node back, and it decides again", back(1, False),
     lambda shown: shown["allocator"] == "h1" and len(shown["nodes"]) == NODES),
    ("a node killed and cut off", lose_node,
     lambda shown: len(shown["nodes"]) == NODES - 1),
    ("… back", back(NODES, True),
     lambda shown: len(shown["nodes"]) == NODES),
]  # fmt: skip


def allocated(nodes, number, holds=lambda shown: True):
    """Budgets and rates, to a tenth of a MB, if that holds."""
    try:
        shown = nodes.json(number, "allocation")
    except RuntimeError:  # nobody decides just now
        return None
    if not holds(shown):
        return None
    budgets = {one["name"]: round(one["budget"] / MB, 1) for one in shown["datasets"]}
    rates = {
        one["id"]: round((one["remote_io_allowed"] or 0) / MB, 1)
        for one in shown["jobs"]
        if one["id"] != "unattributed"
    }
    return budgets, rates


def settled(nodes, number):
    """What is allocated, as soon as it stays so for three seconds."""
    last, since = allocated(nodes, number), time.time()
    while time.time() - since < 3:
        time.sleep(0.2)
        now = allocated(nodes, number)
        if now != last:
            last, since = now, time.time()
    return last


def row45(bench):
    """PyTorch's DataLoader over folders of images, unmodified: Eq. 4 epoch by epoch."""
    script = __file__.replace("rows_jobs.py", "torch_job.py")
    count = 200 if bench.quick else 600
    origin = bench.data.base.parent / "datasets"
    folders = [origin / f"images-{count}-{letter}" for letter in "ab"]
    for folder in folders:
        if not folder.exists():
            run([TORCH_PYTHON, script, "--make", folder, count], timeout=300)
    time.sleep(2.1)
    size = sum(path.stat().st_size for path in folders[0].glob("*/*"))
    rate, epochs, share = 1_500_000, 3, 50
    seen = []
    flags = ["--page-cache=false", *room(AMPLE)]
    with scratch_dir() as scratch, training(bench.copperfs, scratch, origin, 2, flags) as nodes:
        for folder in folders:
            nodes.add(folder.name, "--budget", f"{size * share // 100}B", "--origin-readers", "homes")
        start = time.time() + 12
        loaders: list[Loader] = []
        try:
            for number, folder in enumerate(folders, 1):
                command = ["env", f"START={start}", "PAUSE=6", TORCH_PYTHON, script]
                command += [nodes.directory(folder.name), epochs]
                name = f"torch{number}"
                loaders.append(nodes.run_job(number, name, folder.name, command))
                wait_until(lambda n=name: nodes.knows(n), 20, name)
                nodes.limit(name, f"{rate}B/s")
            for loader in loaders:
                loader.wait_epoch(epochs, 600)
                # It pauses once more: a job that has ended is no more shown.
                time.sleep(2)
                seen.append((loader.epochs(), nodes.job(loader.name)))
            for loader in loaders:
                loader.finish(600)
        finally:
            end(loaders)
    rows = []
    for letter, (lines, shown) in zip("ab", seen, strict=True):
        speeds = [line["bytes"] / line["seconds"] for line in lines]
        model = [rate] + [rate / (1 - share / 100)] * (epochs - 1)
        off = [100 * (speed / expected - 1) for speed, expected in zip(speeds, model, strict=True)]
        hits = [100 * epoch["hit_ratio"] for epoch in shown["past_epochs"]]
        rows.append(
            report.at_most(
                f"45{letter}",
                f"PyTorch, {count} images ({size / MB:.0f} MB), {share} % cached, {rate / MB} MB/s: "
                f"{', '.join(f'{speed / MB:.2f}' for speed in speeds)} MB/s an epoch, hits "
                f"{', '.join(f'{hit:.1f}' for hit in hits)} %; furthest off Eq. 4",
                5,
                max(map(abs, off)),
                " %",
                off_percent=off,
                epochs=lines,
                shown=shown,
            )
        )
    return rows



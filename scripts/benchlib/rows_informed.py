"""Rows 50 to 52 and 55: jobs on one dataset that take what the cache holds (Quiver), on four hosts.

Jobs are informed_job.py, with the package copperfs; each has an order and a pace of its own. What storage
gave is counted where it is read.
"""

import re
import time
from statistics import fmean

from . import report
from .chunk_plot import drawing
from .clock import wait_until
from .informed import (
    REPOSITORY,
    batches_of,
    declare,
    finished,
    informed,
    jobs_of,
    looks_of,
    make_entries,
    own_directory,
    paces,
    resident_between,
    rounds,
    storage_bytes,
    throughput,
    watched,
)
from .rows_datasets import AMPLE, NODES
from .rows_hosts import scratch_dir
from .training import predicted

JOBS = 7
ENTRY_BYTES = 32_768
RATE = 150
"""Entries a second of a job, in the mean."""
CONFIG = REPOSITORY / "config" / "simulate-quiver.toml"
CONFIG_SIZE = 154e9


def prepared(bench, entries=2000):
    """The directory of the datasets, the name of the one that is read, and its size."""
    entries = entries // 2 if bench.quick else entries
    origin = bench.data.base.parent / "datasets"
    origin.mkdir(exist_ok=True)
    return origin, make_entries(bench.copperfs, origin, entries, ENTRY_BYTES), entries * ENTRY_BYTES


def row50(bench):
    """What storage gives for a round of seven jobs, by what the cache does."""
    rows = []
    plain = [("none", 0, 7.0), ("lru", 10, 6.4), ("lru", 20, 5.8), ("lru", 50, 3.8), ("uniform", 20, 5.6)]
    if bench.quick:
        plain = [plain[0], plain[2], plain[4]]
    for letter, (rule, share, expected) in zip("abcde", plain, strict=False):
        found = plain_round(bench, rule, share)
        model = simulated_round(bench, rule, share)
        cache = rule if not share else f"{'LRU' if rule == 'lru' else rule} {share} %"
        rows.append(
            report.at_most(
                f"50{letter}",
                f"{JOBS} jobs, {NODES} hosts, cache: {cache}; from storage in a round {found:.2f} datasets "
                f"(simulator {model:.2f}), off {expected}",
                3,
                100 * abs(found / expected - 1),
                " %",
            )
        )
        print(f"  {rows[-1].row} {rows[-1].what}: {rows[-1].figure}", flush=True)
    return rows + chunk_rounds(bench) + [unequal(bench)]


def plain_round(bench, rule, share):
    """Datasets that storage gives in a round of jobs without substitutes, the cache being full."""
    origin, name, size = prepared(bench, 1400)
    lru = rule == "lru"
    flags = ["--policy", "lru"] if lru else []
    memory = size * share // 100 // NODES if lru else AMPLE
    with informed(bench, origin, flags, memory) as nodes:
        budget = [] if lru or not share else ["--budget", f"{size * share // 100}B"]
        declare(nodes, name, *budget, *([] if lru else ["--keep", rule]))
        gate = own_directory(nodes, "gate")
        count = 1 if rule == "none" else 2
        how = ["--plain", "--fill", 0, "--epochs", count, "--gate", gate]
        with jobs_of(nodes, name, paces(RATE, JOBS), how) as jobs:
            found = rounds(nodes, jobs, gate, count, size)
            finished(jobs)
    return found[-1]


def simulated_round(bench, rule, share, spread=0.0):
    """The same by config/simulate-quiver.toml: a round later than the first, in datasets."""
    cache = f"{CONFIG_SIZE * share / 100:.0f}B"
    flags = {
        "none": ["--system", "quiver", "--keep", "none"],
        "lru": ["--system", "alluxio", "--cache", cache],
        "uniform": ["--system", "silod", "--keep", "uniform", "--cache", cache],
        "chunks": ["--system", "quiver"],
    }[rule]
    rates = iter(paces(96, JOBS, spread))
    text = re.sub('"96MB/s"', lambda _: f'"{next(rates):.1f}MB/s"', CONFIG.read_text())
    sent = []
    with scratch_dir() as scratch:
        for epochs in (1, 5):
            problem = text.replace("epochs = 5\n", f"epochs = {epochs}\n")
            outcome = predicted(bench.copperfs, problem, [*flags, "--granularity", "item"], scratch)
            sent.append(outcome["remote_bytes"])
    return (sent[1] - sent[0]) / 4 / CONFIG_SIZE


def chunk_rounds(bench):
    """The same with two chunks: round by round, and with epochs that follow each other at once."""
    origin, name, size = prepared(bench, 1400)
    found = {}
    for together, count in ((True, 2 if bench.quick else 3), (False, 2)):
        with informed(bench, origin) as nodes:
            declare(nodes, name, "--keep", "chunks")
            gate = own_directory(nodes, "gate")
            how = ["--epochs", count, *(["--gate", gate] if together else ["--start", time.time() + 3])]
            with jobs_of(nodes, name, paces(RATE / 1.5, JOBS), how) as jobs:
                before = sum(storage_bytes(nodes).values())
                if together:
                    found[together] = rounds(nodes, jobs, gate, count, size)
                finished(jobs)
                if not together:
                    found[together] = [(sum(storage_bytes(nodes).values()) - before) / size]
    each = ", ".join(f"{one:.2f}" for one in found[True])
    model = simulated_round(bench, "chunks", 0)
    what = f"{JOBS} jobs, {NODES} hosts, two chunks; from storage in rounds that begin together {each}"
    return [
        report.at_most(
            "50f",
            f"{what} datasets (simulator {model:.2f}); most of all rounds from the second on",
            1.0,
            max(found[True][1:]),
        ),
        report.at_most("50g", "… in the first round", 1.2, found[True][0]),
        report.at_most(
            "50h",
            f"… {count} epochs that follow each other at once, in all",
            round(count + 0.2, 1),
            found[False][0],
        ),
    ]


def unequal(bench):
    """A round of jobs of which some are so much slower that the others would have to wait for them."""
    origin, name, size = prepared(bench, 1000)
    rate, spread = RATE / 4, 0.3
    with informed(bench, origin) as nodes:
        declare(nodes, name, "--keep", "chunks")
        gate = own_directory(nodes, "gate")
        with jobs_of(nodes, name, paces(rate, JOBS, spread), ["--gate", gate]) as jobs:
            (found,) = rounds(nodes, jobs, gate, 1, size)
            done = finished(jobs)
    chunk_s = size / ENTRY_BYTES / 10 / rate
    wanted = paces(rate, JOBS, spread)
    own = min(one["entries"] / one["seconds"] / pace for one, pace in zip(done, wanted, strict=True))
    model = simulated_round(bench, "chunks", 0, spread)
    return report.reported(
        "50i",
        f"… a chunk takes {chunk_s:.1f} s, and the jobs' paces differ by 30 % both ways: the first round "
        f"(simulator, later rounds: {model:.2f}); the least of a job's own pace that it has",
        f"{found:.2f}; {own:.2f}",
    )


def row51(bench):
    """Which chunks are resident over time: four jobs, and three more later (Figure 7)."""
    origin, name, _ = prepared(bench)
    first, phase = 4, 16 if bench.quick else 40
    rates = paces(RATE / 2, JOBS)
    with informed(bench, origin, ["--remote-io", f"{RATE / 3 * ENTRY_BYTES:.0f}B/s"]) as nodes:
        declare(nodes, name, "--keep", "chunks")
        stop = nodes.scratch / "stop"
        how = ["--epochs", 1000, "--trace", "--stop", stop]
        with (
            watched(nodes, name) as watcher,
            jobs_of(nodes, name, rates[:first], how) as early,
        ):
            begun = all_begun(early)
            time.sleep(phase)
            joined = time.time()
            with jobs_of(nodes, name, rates[first:], how, first) as late:
                all_begun(late)
                time.sleep(phase)
                ended = time.time()
                stop.touch()
                finished([*early, *late], 60)
    jobs, looks = [*early, *late], looks_of(watcher)
    before = throughput(early, max(begun, joined - phase / 2), joined)
    after = throughput(jobs, ended - phase / 2, ended)
    elsewhere = sum(outside(looks, batch) for job in late for batch in batches_of(job)[:3])
    drawn = plotted(bench.data.base.parent, looks, jobs, joined)
    return [
        report.within(
            "51a",
            f"{first} jobs, {len(late)} more after {joined - begun:.0f} s: resident chunks, the most of "
            f"{len(looks)} looks ({drawn.name})",
            max(len(chunks) for _, chunks in looks),
            2,
        ),
        report.exactly(
            "51b", "… entries of the newcomers' first 3 mini-batches in no resident chunk", 0, elsewhere
        ),
        report.at_least(
            "51c",
            f"… storage gives {RATE / 3:.0f} entries a second, a job could use {RATE / 2:.0f}: all jobs "
            f"{before:.0f} and {after:.0f} entries a second, after to before",
            1.1,
            after / before,
        ),
    ]


def all_begun(jobs):
    """Waits until every job has had a mini-batch; the moment."""
    for job in jobs:
        wait_until(lambda j=job: batches_of(j), 60, f"the first mini-batch of {job.name}")
    return time.time()


def outside(looks, batch):
    """Entries of a mini-batch whose chunk was not resident when it was drawn."""
    resident = resident_between(looks, batch["drawn"], batch["drawn"] + batch["took"])
    taken = [*batch["hits"].items(), *batch["misses"].items()]
    return sum(count for chunk, count in taken if int(chunk) not in resident)


def plotted(directory, looks, jobs, joined):
    """Writes what row 51 saw: looks and throughput as CSV, and a drawing, which is returned."""
    begun, ended = looks[0][0], looks[-1][0]
    with open(directory / "chunks.csv", "w") as file:
        file.write("seconds,chunk,state,held,entries\n")
        file.writelines(
            f"{at - begun:.3f},{one['chunk']},{one['state']},{one['held']},{one['entries']}\n"
            for at, chunks in looks
            for one in chunks
        )
    steps = [begun + step for step in range(int(ended - begun))]
    rates = [(at, throughput(jobs, at, at + 1)) for at in steps]
    with open(directory / "chunks-throughput.csv", "w") as file:
        file.write("seconds,entries_per_second\n")
        file.writelines(f"{at - begun:.0f},{rate:.0f}\n" for at, rate in rates)
    path = directory / "chunks.svg"
    path.write_text(drawing(looks, rates, joined))
    return path


def row52(bench):
    """One of seven jobs at a quarter of the speed of the others."""
    origin, name, size = prepared(bench, 1600)
    epochs = 2 if bench.quick else 3
    # As in the model: 60 s where the others take 160 s for a chunk.
    evict_after = 60 / 160 * (size / ENTRY_BYTES / 10) / RATE
    rates = {}
    for slow in (False, True):
        with informed(bench, origin) as nodes:
            declare(nodes, name, "--keep", "chunks", "--evict-after", f"{evict_after * 1000:.0f}ms")
            how = ["--epochs", epochs, "--start", time.time() + 3]
            with (
                jobs_of(nodes, name, [RATE] * (JOBS - 1), how, 1) as others,
                jobs_of(nodes, name, [RATE / 4] * slow, how) as slow_one,
            ):
                done = finished(others)
                rates[slow] = fmean(one["entries"] / one["seconds"] for one in done)
                finished(slow_one)
                sent = sum(storage_bytes(nodes).values()) / size
    return [
        report.at_least(
            "52a",
            f"one of {JOBS} jobs at a quarter of the speed, {epochs} epochs, --evict-after "
            f"{evict_after:.2f} s: rate of the others, to that without it "
            f"({rates[True]:.0f} and {rates[False]:.0f} of {RATE} entries/s)",
            0.9,
            rates[True] / rates[False],
        ),
        report.at_most(
            "52b",
            f"… from storage in all, in datasets ({epochs * JOBS} without a cache)",
            round(6.5 * epochs / 3, 1),
            sent,
        ),
    ]


def row55(bench):
    """A home is killed and cut off in the middle of an epoch."""
    epochs = 2 if bench.quick else 3
    without, alive = faulted(bench, epochs, kill=False)
    sent, jobs = faulted(bench, epochs, kill=True)
    return [
        report.exactly(
            "55a",
            f"one of {NODES} homes killed and cut off in the 2nd of {epochs} epochs of {len(jobs)} jobs: "
            "jobs that failed",
            0,
            sum(job.process.returncode != 0 for job in jobs),
        ),
        report.exactly(
            "55b",
            "… entries that came twice or not at all",
            0,
            sum(job.done["wrong"] if job.done else 1 for job in jobs),
        ),
        report.at_most(
            "55c",
            f"… longest wait for a mini-batch since (without the kill {longest_wait(alive):.2f} s)",
            1.5,
            longest_wait(jobs),
            " s",
            batches=[batches_of(job) for job in jobs],
        ),
        report.reported(
            "55d", "… from storage in all, in datasets; without the kill", f"{sent:.2f}; {without:.2f}"
        ),
    ]


def faulted(bench, epochs, kill):
    """Datasets from storage, and the jobs of a run in which a home may be killed in the second epoch.

    No job runs on that home's host, because it would end with it.
    """
    origin, name, size = prepared(bench)
    with informed(bench, origin) as nodes:
        declare(nodes, name, "--keep", "chunks")
        how = ["--epochs", epochs, "--trace"]
        with jobs_of(nodes, name, paces(RATE, JOBS - 1), how, hosts=NODES - 1) as jobs:
            for job in jobs:
                job.wait_epoch(1, 120)
            time.sleep(0.35 * size / ENTRY_BYTES / RATE)
            gone = storage_bytes(nodes)[f"h{NODES}"] if kill else 0
            moment = time.time()
            if kill:
                nodes.hosts.control("crash", NODES)
                nodes.tree.mounted.remove(NODES)
            for job in jobs:
                job.process.wait(timeout=300)
            sent = gone + sum(storage_bytes(nodes).values())
    for job in jobs:
        job.since = moment
    return sent / size, jobs


def longest_wait(jobs):
    """The longest wait of a job for a mini-batch that it has asked for since `since`."""
    return max(batch["waited"] for job in jobs for batch in batches_of(job) if batch["at"] >= job.since)

"""Rows 40, 42, 43 and 46: datasets, their budgets, remote IO, and what the data mount costs.

Nodes are hosts of their own with data mounts, and the readers are loader.py. What storage gave is
counted where it is read, not where it is told.
"""

import time
from statistics import fmean

from . import report
from .clock import median, wait_until
from .rows_hosts import scratch_dir
from .training import MB, Watch, end, make_files, training

NODES = 4
FILES, FILE_BYTES = 2000, 40_000
SHARES = range(10, 100, 10)
# A home takes whole items only, so each may be one short.
POINTS = 1.0
MEMORY_MIN = 128 << 20
AMPLE = 256 * MB


def row40(bench):
    """What an epoch finds in the cache, for budgets from a tenth to nine tenths of the dataset."""
    origin = bench.data.base.parent / "datasets"
    make_files(origin / "shares", FILES, FILE_BYTES)
    size = FILES * FILE_BYTES
    shares = (30, 70) if bench.quick else SHARES
    uniform = {share: measured_shares(bench, origin, size, share, "greedy") for share in shares}
    lru = {share: measured_shares(bench, origin, size, share, "lru") for share in shares}
    off = max(abs(hit - share) for share, hits in uniform.items() for hit in hits[1:])
    what = (
        f"cache of {', '.join(map(str, shares))} % of a dataset, {NODES} nodes: hits of an epoch are "
        f"{means(uniform)} %; of all epochs from the second on, furthest off"
    )
    return [
        report.at_most("40a", what, POINTS, off, " points", hits=uniform),
        report.reported("40b", "… with LRU", f"{means(lru)} %", hits=lru),
    ]


def means(hits):
    """The mean of each, without the first epoch."""
    return ", ".join(f"{fmean(epochs[1:]):.1f}" for epochs in hits.values())


def measured_shares(bench, origin, size, share, policy, epochs=4):
    """Percent of each epoch's bytes that storage was not asked for."""
    budget = size * share // 100
    flags = ["--page-cache=false", "--policy", policy, *room(budget // NODES if policy == "lru" else AMPLE)]
    with scratch_dir() as scratch, training(bench.copperfs, scratch, origin, NODES, flags) as nodes:
        nodes.add("shares", "--budget", f"{budget}B", "--origin-readers", "homes")
        how = ["--epochs", epochs, "--pause", 1, "--workers", 2, "--seed", share]
        job = nodes.loader(1 + share // 10 % NODES, "reader", "shares", how)
        try:
            hits, before = [], nodes.total("origin.read_bytes")
            for epoch in range(1, epochs + 1):
                job.wait_epoch(epoch, 120)
                after = nodes.total("origin.read_bytes")
                hits.append(100 * (1 - (after - before) / size))
                before = after
            job.finish()
        finally:
            end([job])
        return hits


def room(size):
    """Flags for nodes with so many bytes each for datasets: of memory, a tenth is for metadata, a tenth
    for names, and the reserve for other files is as large as a small room needs it (memory has a least
    size)."""
    for reserve in range(20, 100):
        memory = size / (1 - reserve / 100) / 0.8
        if memory >= MEMORY_MIN:
            return ["--memory", f"{round(memory)}B", "--shared-reserve", f"{reserve}%"]
    raise ValueError(f"{size} bytes are too few")


def row42(bench):
    """The budget of a dataset is halved and doubled while six jobs read."""
    origin = bench.data.base.parent / "datasets"
    make_files(origin / "shares", FILES, FILE_BYTES)
    size = FILES * FILE_BYTES
    budgets = [size // 2]
    for _ in range(2 if bench.quick else 4):
        budgets += [budgets[0] // 2, budgets[0]]
    took = []
    with scratch_dir() as scratch, training(
        bench.copperfs, scratch, origin, NODES, ["--page-cache=false", *room(AMPLE)]
    ) as nodes:
        nodes.add("shares", "--budget", f"{budgets[0]}B", "--origin-readers", "homes")
        stop = scratch / "stop"
        how = ["--epochs", 10_000, "--rate", 4 * MB, "--workers", 2, "--stop", stop]
        jobs = [
            nodes.loader(
                1 + number % NODES, f"job{number}", "shares",
                [*how, "--seed", number, "--compare", origin / "shares"],
            )
            for number in range(6)
        ]  # fmt: skip
        try:
            for job in jobs:
                job.wait_epoch(1, 120)
            with Watch(lambda: over_share(nodes), 0.1) as watch:
                for budget in budgets[1:]:
                    begun = time.time()
                    nodes.ask(1, "dataset", "set", "shares", "--budget", f"{budget}B")
                    wait_until(lambda wanted=budget: follows(nodes, wanted), 20, "a new share")
                    took.append(time.time() - begun)
                    time.sleep(3)
            stop.touch()
            done = [job.finish(120) for job in jobs]
        finally:
            end(jobs)
    most = max(over for _, _, over in watch.seen)
    failed = sum(one["wrong"] for one in done)
    what = f"budget halved and doubled {len(budgets) - 1} times while six jobs read"
    return [
        report.at_most(
            "42a",
            f"{what}: most items of a node above its share, {len(watch.seen)} looks at {NODES} nodes",
            1,
            most / FILE_BYTES,
            failed_looks=str(watch.failed),
        ),
        report.exactly("42b", "… reads that failed or gave other bytes", 0, failed),
        report.at_most(
            "42c", "… until every node holds no more than its new share", 2, max(took), " s", took=took
        ),
    ]


def over_share(nodes):
    """The most bytes that a node holds above its share."""
    return max(bytes_held - share for bytes_held, share in nodes.held())


def follows(nodes, budget):
    """Whether all nodes have shares of this budget, and hold no more."""
    held = nodes.held()
    return abs(sum(share for _, share in held) - budget) <= len(held) and all(
        bytes_held <= share + FILE_BYTES for bytes_held, share in held
    )


def row43(bench):
    """Remote IO: three jobs at 2:1:1, and one at 1 MB/s beside others."""
    origin = bench.data.base.parent / "datasets"
    names = ["first", "second", "third"]
    for name in names:
        make_files(origin / name, 1000, FILE_BYTES)
    cap, rates = 20 * MB, [10 * MB, 5 * MB, 5 * MB]
    flags = ["--page-cache=false", *room(AMPLE)]
    seconds = 10
    with scratch_dir() as scratch, training(
        bench.copperfs, scratch, origin, NODES, [*flags, "--remote-io", f"{cap}B/s"]
    ) as nodes:
        for name in names:
            nodes.add(name, "--budget", "1B", "--origin-readers", "roots")
        stop = scratch / "stop"
        how = ["--epochs", 10_000, "--workers", 4, "--every", 0.1, "--stop", stop]
        jobs = [
            nodes.loader(2 + number, f"job{number}", names[number], [*how, "--seed", number])
            for number in range(3)
        ]
        try:
            for job, rate in zip(jobs, rates, strict=True):
                wait_until(lambda name=job.name: nodes.knows(name), 20, job.name)
                nodes.limit(job.name, f"{rate}B/s")
            time.sleep(4)
            begun = time.time()
            with Watch(lambda: nodes.stats(1)["origin.read_bytes"], 0.1) as watch:
                time.sleep(seconds)
            ended = time.time()
            stop.touch()
            for job in jobs:
                job.finish(60)
        finally:
            end(jobs)
        got = [job.rate(begun, ended) for job in jobs]
    off = [100 * (found / rate - 1) for found, rate in zip(got, rates, strict=True)]
    whole = seen_rate(watch.seen, seconds / 2)
    rows = [
        report.at_most(
            "43a",
            f"remote IO of three jobs allowed 10, 5 and 5 MB/s, over {seconds} s: "
            f"{', '.join(f'{found / MB:.2f}' for found in got)} MB/s, furthest off",
            3,
            max(map(abs, off)),
            " %",
            off_percent=off,
        ),
        report.at_most(
            "43b",
            f"… all together, of the cap of {cap // MB} MB/s, the fastest {seconds / 2:.0f} s",
            1.02,
            whole / cap,
            bytes_seen=[(at, value) for at, _, value in watch.seen],
        ),
    ]
    waits = "32 reads that wait"
    rows += beside_a_slow_one(bench, origin, flags, ("cd", waits, [], []))
    # Hints and the reads of others are requests of one queue of the kernel, which is only used with its pages.
    waits = f"32 reads that wait, and {HINTS:,} files that it has hinted at"
    hints = ["--hints", HINTS]
    return rows + beside_a_slow_one(bench, origin, room(AMPLE), ("ef", waits, hints, ["--drop"]))


def seen_rate(seen, window_s):
    """The highest rate over a window, of a counter that was looked at now and then."""
    highest = 0.0
    for first, (begun, _, low) in enumerate(seen):
        for _, ended, high in seen[first + 1 :]:
            if ended - begun >= window_s:
                highest = max(highest, (high - low) / (ended - begun))
                break
    return highest


HINTS = 32 * 64
"""Of the slow job: as of 32 workers that ask for 64 files each."""


def beside_a_slow_one(bench, origin, flags, variant):
    """A job throttled to 1 MB/s with many reads that wait: hits and misses of others beside it."""
    letters, waits, of_slow, of_others = variant
    slow_set = make_files(origin / "hinted", 2 * HINTS, FILE_BYTES).name if of_slow else "first"
    hits, misses = {True: [], False: []}, {True: [], False: []}
    with scratch_dir() as scratch, training(bench.copperfs, scratch, origin, NODES, flags) as nodes:
        nodes.add(slow_set, "--budget", "1B", "--origin-readers", "homes")
        nodes.add("second", "--budget", "40MB", "--origin-readers", "homes")
        nodes.add("third", "--budget", "1B", "--origin-readers", "homes")
        warm = nodes.loader(2, "warm", "second", ["--epochs", 1])
        warm.finish()
        for turn in range(2 * bench.runs):
            slow = turn % 4 in (1, 2)
            stop = scratch / f"stop{turn}"
            jobs = []
            try:
                if slow:
                    how = ["--epochs", 10_000, "--workers", 32, "--window", 64, "--stop", stop]
                    how += of_slow
                    jobs.append(nodes.loader(2, f"slow{turn}", slow_set, how))
                    wait_until(lambda n=f"slow{turn}": nodes.knows(n), 20, "the slow job")
                    nodes.limit(f"slow{turn}", "1MB/s")
                    time.sleep(2)
                for name, found in (("second", hits), ("third", misses)):
                    # At half of what this machine gives: at all of it the two jobs' programs would
                    # take each other's processor time.
                    how = ["--epochs", 5, "--workers", 2, "--rate", 40 * MB, *of_others]
                    reader = nodes.loader(2, f"{name}{turn}", name, how)
                    jobs.append(reader)
                    done = reader.finish(120)
                    found[slow].append(done["bytes"] / done["seconds"])
                stop.touch()
                for job in jobs:
                    job.finish(120)
            finally:
                end(jobs)
    return [
        report.at_least(
            f"43{letter}",
            f"… beside a job held to 1 MB/s with {waits}, one that takes 40 MB/s of {what}: "
            "rate, to that without it",
            0.97,
            median(found[True]) / median(found[False]),
            beside=found[True],
            alone=found[False],
        )
        for letter, what, found in zip(letters, ("hits", "misses"), (hits, misses))
    ]

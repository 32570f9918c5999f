"""Rows 62 to 67: pipelines of Spark, Snakemake and Dask, their replays, a large submission, and other sizes
of the cache."""

import json
import shutil
import subprocess
import time
from random import Random
from statistics import fmean

from . import report
from .clock import load_average, median, wait_until
from .curves_plot import by_cache
from .hosts import Hosts
from .mounts import run
from .pipelines import (
    CACHE_PERCENT,
    NAME,
    NODES,
    make_warehouse,
    need_engines,
    nodes_of,
    on_four_hosts,
    read_bytes,
    run_pipeline,
    total_bytes,
    wait_for_shares,
)
from .rows_datasets import AMPLE, room
from .rows_hosts import scratch_dir
from .rows_sampling import origin_of

WAYS = ("references", "lru", "uniform")


def one_run(bench, engine, origin, plan, way, budget, lrc=None):
    """One run with an empty cache. `way` is how homes keep; `lrc` are further flags of `lrc run`."""
    policy = "lru" if way == "lru" else "greedy"
    flags = ["--policy", policy, "--remote-io", f"{engine.storage}B/s"]
    flags += room(budget // NODES if way == "lru" else AMPLE)
    keep = "references" if way.startswith("references") else "uniform"
    with nodes_of(bench, engine.hosts, engine.scratch, origin, flags) as nodes:
        nodes.add(NAME, "--budget", f"{budget}B", "--origin-readers", "homes", "--keep", keep)
        if way != "lru":
            wait_for_shares(nodes, budget)
        ran = run_pipeline(engine, nodes, plan, (lrc or []) if keep == "references" else None)
        ran.held = nodes.held()
    print(
        f"  {engine.name} {way}: {ran.storage / 1e6:.1f} MB, {ran.seconds:.1f} s, wall {ran.wall_s:.1f} s, "
        f"load {load_average():.1f}",
        flush=True,
    )
    return ran


def engine_row(row, letter, name):
    """A row of an engine: references, LRU and undeclared, in turns, and then with a profile."""

    def measure(bench):
        need_engines()
        origin = origin_of(bench)
        plan = make_warehouse(origin)
        budget = total_bytes(origin / NAME) * CACHE_PERCENT // 100
        ran, pairs = {way: [] for way in (*WAYS, "references, profile")}, []
        with scratch_dir() as scratch, on_four_hosts(name, scratch) as engine:
            (scratch / "plan.json").write_text(json.dumps(plan))
            profile = ["--profile", scratch / "profile"]
            try:
                for turn in range(bench.runs):
                    log = ["--log", scratch / f"run{turn}.log"]
                    for way in WAYS[turn % 3 :] + WAYS[: turn % 3]:
                        # The first run leaves the profile for the others.
                        how = log + (profile if turn == 0 else [])
                        done = one_run(bench, engine, origin, scratch / "plan.json", way, budget, how)
                        ran[way].append(done)
                        if way == "references":
                            pairs.append((done, replayed(bench, log[1], origin / NAME, shares_of(done))))
                    way = "references, profile"
                    ran[way].append(
                        one_run(bench, engine, origin, scratch / "plan.json", way, budget, log + profile)
                    )
            finally:
                keep_logs(bench, name, scratch)
        asked, inputs = read_bytes(plan, origin), total_bytes(origin / NAME)
        return [*compared(row, name, ran, asked, inputs, budget), beside_replay(letter, name, asked, pairs)]

    return measure


def keep_logs(bench, name, scratch):
    """Copies the logs of a row to the results."""
    kept = bench.data.base.parent / "pipelines" / name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for path in [*scratch.glob("*.log"), *scratch.glob("profile"), scratch / "plan.json"]:
        if path.exists():
            shutil.copy(path, kept)


def compared(row, name, ran, asked, inputs, budget):
    """The rows of an engine."""
    storage = {way: median(one.storage for one in runs) for way, runs in ran.items()}
    seconds = {way: median(one.seconds for one in runs) for way, runs in ran.items()}
    detail = {
        "runs": {way: [one.as_json() for one in runs] for way, runs in ran.items()},
        "asked": asked,
        "inputs": inputs,
        "budget": budget,
    }
    told = ", ".join(f"{way} {storage[way] / 1e6:.0f} MB, {seconds[way]:.1f} s" for way in ran)
    what = (
        f"{name}, {NODES} hosts, {len(ran['lru'])} runs: reports read {asked / 1e6:.0f} MB of "
        f"{inputs / 1e6:.0f}, cache {CACHE_PERCENT} %: {told}; storage bytes to LRU's"
    )
    rows = [
        report.at_most(f"{row}a", what, 0.8, storage["references"] / storage["lru"], **detail),
        report.at_most(f"{row}b", "… time to LRU's", 1, seconds["references"] / seconds["lru"]),
        report.at_most(
            f"{row}c", "… storage bytes to undeclared", 1, storage["references"] / storage["uniform"]
        ),
        report.at_most(
            f"{row}d", "… time to undeclared", 1, seconds["references"] / seconds["uniform"]
        ),
    ]
    if runs := ran.get("references, profile"):
        way = "references, profile"
        rows += [
            report.at_most(
                f"{row}e",
                f"… with a profile ({len(runs)} runs): storage bytes to LRU's",
                0.8,
                storage[way] / storage["lru"],
            ),
            report.at_most(f"{row}f", "… time to LRU's", 1, seconds[way] / seconds["lru"]),
        ]
    return rows


def replayed(bench, log, sizes, shares):
    """The hit ratios of the log of a run in `lrc replay`: with one cache, and with those of the homes."""
    command = [bench.copperfs, "lrc", "trace", log, "--sizes", sizes, "--cache", f"{sum(shares)}B"]
    trace = json.loads(run([*command, "--without-expected"]))
    apart = [home_by_home(bench, trace, shares, seed) for seed in range(PLACEMENTS)]
    return ratio(*replay(bench, trace)), fmean(apart)


def shares_of(done):
    """What each home may hold."""
    return [share for _, share in done.held]


def replay(bench, trace):
    """The hits and misses of a trace."""
    done = subprocess.run(
        [bench.copperfs, "lrc", "replay", "-"],
        input=json.dumps(trace),
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout)
    return said["hits"], said["misses"]


def ratio(hits, misses):
    return hits / (hits + misses)


PLACEMENTS = 5
"""Which home has an item is not told, so some placements are tried."""


def home_by_home(bench, trace, shares, seed):
    """The hit ratio with a cache for each home, and the blocks at random homes."""
    homes = {block: Random(f"{seed} {block}").randrange(len(shares)) for block in trace["blocks"]}
    found = []
    for home, share in enumerate(shares):

        def is_here(block, home=home):
            return homes[block] == home

        def only_here(event, is_here=is_here):
            if event["ev"] != "submit":
                return event
            tasks = [dict(task, **{"in": list(filter(is_here, task["in"]))}) for task in event["tasks"]]
            return dict(event, tasks=tasks)

        part = dict(
            trace,
            cache=share,
            blocks={block: size for block, size in trace["blocks"].items() if is_here(block)},
            options=dict(trace["options"], floor=share // 5),
            events=[only_here(event) for event in trace["events"] if "block" not in event or is_here(event["block"])],
        )
        found.append(replay(bench, part))
    return ratio(*map(sum, zip(*found, strict=True)))


def beside_replay(letter, name, asked, pairs):
    """The rows of an engine's live hits against those of the replays of its logs."""
    live = [100 * (1 - one.storage / asked) for one, _ in pairs]
    one_cache = [100 * one for _, (one, _) in pairs]
    homes = [100 * four for _, (_, four) in pairs]
    apart = [median(map(difference, live, other)) for other in (homes, one_cache)]
    what = (
        f"{name}, median of {len(pairs)} runs: bytes that storage did not give, {median(live):.1f} %; hits of "
        f"the replays of their logs, with a cache for each home {median(homes):.1f} %, with one cache "
        f"{median(one_cache):.1f} % ({apart[1]:.1f} points apart); live and the former apart"
    )
    detail = {"live": live, "one_cache": one_cache, "homes": homes}
    return report.at_most(f"65{letter}", what, 2, apart[0], " points", **detail)


def difference(here, there):
    return abs(here - there)


TASKS, FILES, INPUTS = 100_000, 60_000, 3
LARGE = "large"


def make_large(origin):
    """A submission of very many tasks, and its files, which are small: only their number matters."""
    names = [f"day={number // 2000:02}/part-{number % 2000:05}.parquet" for number in range(FILES)]
    path = origin / f"{LARGE}.json"
    if path.exists():
        return path
    for name in names:
        file = origin / LARGE / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"0123456789")
    random = Random(14)
    # Every file is read.
    first = list(range(FILES)) + random.choices(range(FILES), k=TASKS - FILES)
    tasks = []
    for number, one in enumerate(first):
        inputs = {one}
        while len(inputs) < INPUTS:
            inputs.add(random.randrange(FILES))
        tasks.append({"id": f"scan{number // 1000}/{number}", "in": sorted(inputs), "after": []})
    submission = {"v": 1, "op": "submit", "app": "large", "job": "large", "attempt": 0}
    submission |= {"dataset": LARGE, "files": names, "tasks": tasks}
    path.write_text(json.dumps(submission))
    time.sleep(2.1)  # until their times tell one version from the next
    return path


def row66(bench):
    """A large submission: until all homes count, what is sent, and the memory of its owner."""
    submission = make_large(origin_of(bench))
    ran = {True: [], False: []}
    for _ in range(bench.runs):
        for is_warm in (True, False):
            ran[is_warm].append(large(bench, submission, is_warm))
            print(f"  {'warm' if is_warm else 'cold'}: {ran[is_warm][-1]}, load {load_average():.1f}", flush=True)
    warm = {key: median(one[key] for one in ran[True]) for key in ran[True][0]}
    cold = {key: median(one[key] for one in ran[False]) for key in ran[False][0]}
    what = f"{TASKS:,} tasks × {INPUTS} inputs over {FILES:,} files, {NODES} hosts, {bench.runs} runs"
    mib = 1 << 20
    return [
        report.at_most(
            "66a",
            f"{what}: until all homes count, metadata cached",
            2,
            warm["seconds"],
            " s",
            runs=ran[True],
        ),
        report.reported("66b", "… of that, until it was accepted", f"{warm['accepted']:.2f} s"),
        report.at_most("66c", "… sent by the owner's host, all of it", 1, warm["sent"] / mib, " MiB"),
        report.at_most("66d", "… more memory of the owner", 64, warm["memory"] / mib, " MiB"),
        report.reported(
            "66e",
            "… without the metadata: time; more memory, with the metadata",
            f"{cold['seconds']:.2f} s; {cold['memory'] / mib:.0f} MiB",
            runs=ran[False],
        ),
    ]


def large(bench, submission, is_warm):
    """One large submission to a new node. `is_warm`: the node knows the metadata of the files already."""
    with scratch_dir() as scratch, Hosts(NODES) as hosts:
        with nodes_of(bench, hosts, scratch, submission.parent, room(AMPLE)) as nodes:
            nodes.add(LARGE, "--budget", "10MB", "--keep", "references")
            if is_warm:
                hosts.output(1, "find", nodes.directory(LARGE), "-type", "f", "-size", "-1", timeout=300)
            time.sleep(3)  # the work after the start
            pid = nodes.stats(1)["pid"]
            memory, sent = resident_kb(hosts, pid), sent_bytes(hosts)
            begin = time.monotonic()
            answer = json.loads(nodes.ask(1, "lrc", "submit", submission))
            accepted = time.monotonic() - begin
            if not answer.get("accepted") or answer.get("unknown_paths"):
                raise RuntimeError(f"the large submission: {str(answer)[:300]}")
            wait_until(lambda: nodes.stats(1)["pipelines.unconfirmed"] == 0, 60, "the counts of all homes")
            seconds = time.monotonic() - begin
            sent = sent_bytes(hosts) - sent
            memory = resident_kb(hosts, pid) - memory
            stats = nodes.stats(1)
            if stats["pipelines.references"] != TASKS * INPUTS:
                raise RuntimeError(f"{stats['pipelines.references']} references")
            return {
                "seconds": seconds, "accepted": accepted, "sent": sent, "memory": memory * 1024,
                "counts": stats["pipelines.counts"], "messages": stats["pipelines.messages"],
            }  # fmt: skip


SIZES = (10, 20, 30, 45, 60)
"""Of the cache, in percent of the bytes of all inputs."""
WAY_NAMES = {"references": "references", "lru": "LRU", "uniform": "undeclared"}


def row67(bench):
    """The time of Dask's reports by the size of the cache, as Figure 9 of the LRC paper."""
    need_engines()
    origin = origin_of(bench)
    plan, inputs = make_warehouse(origin), total_bytes(origin / NAME)
    cases = [(size, way) for size in SIZES for way in WAYS]
    ran = {case: [] for case in cases}
    with scratch_dir() as scratch, on_four_hosts("dask", scratch) as engine:
        (scratch / "plan.json").write_text(json.dumps(plan))
        for turn in range(bench.runs):
            for size, way in cases if turn % 2 == 0 else reversed(cases):
                done = one_run(bench, engine, origin, scratch / "plan.json", way, inputs * size // 100)
                ran[size, way].append(done)
    seconds = {case: median(one.seconds for one in runs) for case, runs in ran.items()}
    storage = {case: median(one.storage for one in runs) for case, runs in ran.items()}
    curves = {WAY_NAMES[way]: [(size, seconds[size, way]) for size in SIZES] for way in WAYS}
    plot = bench.data.base.parent / "pipelines-sizes.svg"
    plot.write_text(by_cache(curves, f"Run time of six reports by size of the cache (Dask on {NODES} hosts)"))
    print(f"  drawn: {plot}", flush=True)

    def told(size):
        each = (f"{WAY_NAMES[way]} {storage[size, way] / 1e6:.0f} MB, {seconds[size, way]:.1f} s" for way in WAYS)
        return f"cache {size} %: {', '.join(each)}"

    what = f"dask, {NODES} hosts, {bench.runs} runs: {'; '.join(map(told, SIZES))}; the longest time to LRU's"
    worst = max(seconds[size, "references"] / seconds[size, "lru"] for size in SIZES)
    detail = {f"{size} {way}": [one.as_json() for one in runs] for (size, way), runs in ran.items()}
    return [report.at_most("67", what, 1, worst, **detail)]


def resident_kb(hosts, pid):
    """The memory of a process on the first host, without pages of files."""
    status = hosts.output(1, "cat", f"/proc/{pid}/status")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))


def sent_bytes(hosts):
    """The bytes that the first host has sent, with all headers."""
    lines = hosts.output(1, "cat", "/proc/net/dev").splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("eth0:"))


row62 = engine_row("62", "a", "spark")
row63 = engine_row("63", "b", "snakemake")
row64 = engine_row("64", "c", "dask")

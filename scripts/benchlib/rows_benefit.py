"""Rows 58 to 61: what caches gain for jobs of several intensities, and whether the policy finds it out.

Jobs are informed_job.py, and timeline_job.py in row 59. Storage is limited, so that a job that reads alone
from it is slower than its GPU by a known factor: its intensity. The limit is shared evenly, as the policies share it among equals.
"""

import json
import time
from pathlib import Path
from statistics import fmean

from . import report
from .clock import wait_until
from .informed import (
    REPOSITORY,
    answer_of,
    batches_of,
    declare,
    finished,
    informed,
    jobs_of,
    make_entries,
    own_directory,
    paces,
    throughput,
)
from .mounts import run
from .rows_datasets import AMPLE, NODES
from .rows_hosts import scratch_dir
from .rows_jobs import TORCH_PYTHON
from .rows_sampling import origin_of
from .training import predicted

ENTRY_BYTES = 32_768
INTENSITIES = {"image model": 3.8, "larger image model": 1.9, "speech model": 1.3}
"""How much faster a job is on hits than on misses, if it waits for nothing else."""
JOBS = 7


def limit(rate):
    """The flag that limits storage to `rate` entries a second."""
    return ["--remote-io", f"{rate * ENTRY_BYTES:.0f}B/s"]


def row58(bench):
    """Seven jobs on one dataset: misses, co-operative misses, hits (Figure 3, Table 3)."""
    # A chunk takes the fastest jobs 4.4 s, several times as long as the allocator's decisions. Misses need many
    # entries, too: of few, several jobs would ask for the same at a time, and storage would give it once.
    alone, few, many = 12, 500, 500 if bench.quick else 2000
    origin = origin_of(bench)
    entries = {"miss": many, "co-operative": many, "hit": few}
    names = {count: make_entries(bench.copperfs, origin, count, ENTRY_BYTES) for count in {few, many}}
    rows = []
    for letters, (model, factor) in zip(("abc", "def", "ghi"), INTENSITIES.items(), strict=True):
        live, sim = {}, {}
        for how, count in entries.items():
            live[how] = epoch_rate(bench, origin, names[count], how, factor * alone, JOBS * alone)
            sim[how] = simulated_rate(bench, count, how, factor * alone, JOBS * alone)
            print(f"  {model}, {how}: {live[how]:.1f} entries/s a job, simulator {sim[how]:.1f}", flush=True)
        rows += compared(letters, model, factor, live, sim)
    return rows


def compared(letters, model, factor, live, sim):
    """The rows of one intensity."""
    speedup = {how: live[how] / live["miss"] for how in live}
    off = max(abs(live[how] / sim[how] - 1) for how in live)
    rates = ", ".join(f"{how} {live[how]:.1f} ({sim[how]:.1f})" for how in live)
    return [
        report.at_least(
            f"58{letters[0]}",
            f"{JOBS} jobs of a {model} that could be {factor} × as fast as storage lets them: entries/s of a job "
            f"(simulator): {rates}; hits to misses",
            round(0.95 * factor, 2),
            speedup["hit"],
        ),
        report.at_least(
            f"58{letters[1]}",
            "… co-operative misses to misses, with an empty cache of two chunks at the beginning",
            1,
            speedup["co-operative"],
        ),
        report.at_most(f"58{letters[2]}", "… the simulator is off by at most", 5, 100 * off, " %"),
    ]


def epoch_rate(bench, origin, name, how, pace, storage):
    """Entries a second of a job in an epoch, in the mean."""
    keep = {"miss": "none", "co-operative": "chunks", "hit": "uniform"}[how]
    if how == "miss":
        return missing_rate(bench, origin, name, pace, storage)
    epochs = 2 if how == "hit" else 1
    with informed(bench, origin, limit(storage)) as nodes:
        declare(nodes, name, "--keep", keep)
        gate = own_directory(nodes, "gate")
        with jobs_of(nodes, name, paces(pace, JOBS, 0.02), ["--epochs", epochs, "--gate", gate]) as jobs:
            for epoch in range(epochs):
                (gate / f"epoch{epoch}").touch()
                for job in jobs:
                    job.wait_epoch(epoch + 1, 300)
            finished(jobs)
    last = [job.epochs()[-1] for job in jobs]
    return fmean(epoch["entries"] / epoch["seconds"] for epoch in last)


def missing_rate(bench, origin, name, pace, storage):
    """The same without a cache, of a minute."""
    with informed(bench, origin, limit(storage)) as nodes:
        declare(nodes, name, "--keep", "none")
        stop = nodes.scratch / "stop"
        with jobs_of(nodes, name, paces(pace, JOBS, 0.02), ["--plain", "--fill", 0, "--stop", stop]) as jobs:
            time.sleep(20 if bench.quick else 60)
            stop.touch()
            done = finished(jobs)
    return fmean(one["entries"] / one["seconds"] for one in done)


def simulated_rate(bench, entries, how, pace, storage):
    """The same by the simulator."""
    flags = {
        "miss": ["--system", "quiver", "--keep", "none"],
        "co-operative": ["--system", "quiver", "--keep", "chunks"],
        "hit": ["--system", "silod", "--keep", "uniform"],
    }[how]
    flags += ["--granularity", "item", "--items", entries, "--batch", 16]
    ended = [
        [job["finish_s"] for job in simulated(bench, entries, epochs, paces(pace, JOBS, 0.02), storage, flags)]
        for epochs in ([1, 2] if how == "hit" else [1])
    ]
    begun = [0.0] * JOBS if len(ended) == 1 else ended[0]
    return fmean(entries / (end - begin) for begin, end in zip(begun, ended[-1], strict=True))


def simulated(bench, entries, epochs, rates, storage, flags):
    """What the simulator says of jobs on one dataset."""
    size = entries * ENTRY_BYTES
    text = [
        f'gpus = {len(rates)}\ncache = "{size}B"\nremote_io = "{storage * ENTRY_BYTES:.0f}B/s"',
        f'evict_after_s = 60\n[[dataset]]\nname = "d"\nsize = "{size}B"',
    ]
    text += [
        f'[[job]]\nid = "j{number}"\nmodel = "m"\ndataset = "d"\ngpus = 1\n'
        f'ideal_rate = "{rate * ENTRY_BYTES:.0f}B/s"\nepochs = {epochs}'
        for number, rate in enumerate(rates)
    ]
    with scratch_dir() as scratch:
        return predicted(bench.copperfs, "\n".join(text) + "\n", flags, scratch)["jobs"]


TIMELINE = Path(__file__).with_name("timeline_job.py")


def row59(bench):
    """Twenty mini-batches of a loop with workers, on misses and on hits (Figures 4 and 5)."""
    entries, rate, factor = 2000, 320, 4
    origin = origin_of(bench)
    name = make_entries(bench.copperfs, origin, entries, ENTRY_BYTES)
    rows = []
    for letter, keep, warm in (("a", "uniform", 1), ("b", "none", 0)):
        plot = bench.data.base.parent / f"timeline-{'hits' if warm else 'misses'}.svg"
        with informed(bench, origin, limit(rate / factor)) as nodes:
            declare(nodes, name, "--keep", keep)
            command = ["env", f"PYTHONPATH={REPOSITORY / 'python'}", "OMP_NUM_THREADS=1", TORCH_PYTHON, TIMELINE]
            command += [nodes.data, name, plot, "--rate", rate, "--warm", warm]
            done, _ = answer_of(nodes, "timeline", name, command, 300)
        stages = ", ".join(f"{stage} {1000 * done[stage]:.0f}" for stage in ("io", "transform", "compute"))
        what = f"{done['batches']} mini-batches of 64, in ms each: {stages} ({plot.name}); compute idle"
        figure = 100 * done["idle"]
        rows.append(
            report.at_most(f"59{letter}", f"CopperDataLoader, 2 workers, on hits: {what}", 5, figure, " %")
            if warm
            else report.reported(
                f"59{letter}", f"… on misses, storage gives a quarter of what the loop takes: {what}", f"{figure:.0f} %"
            )
        )
    return rows


MIX = [("imagenet", 154, 3.8), ("openimages", 531, 1.9), ("librispeech", 90, 1.3)]
"""The paper's datasets, in GB, and the intensities of the jobs on them."""
MIX_CHUNK = 15
MIX_JOBS = 4
MIX_SCALE = 10
"""Entries for each GB."""
MIX_ALONE = 5
"""Entries a second of a job without a cache."""


def row60(bench):
    """Twelve jobs on three datasets, with several cache sizes (Figure 6)."""
    origin = origin_of(bench)
    names = {
        model: make_entries(bench.copperfs, origin, size * MIX_SCALE, ENTRY_BYTES) for model, size, _ in MIX
    }
    base, _ = mixed(bench, origin, names, 0, "none")
    rows = []
    for letters, (share, bar) in zip(("abc", "def", "ghi"), ((13, 1.6), (26, None), (90, None)), strict=True):
        found = {}
        for policy in ("benefit", "lru"):
            rates, choices = mixed(bench, origin, names, share, policy)
            found[policy] = fmean(rates[job] / base[job] for job in base)
            shown = ", ".join(f"{name} {choice}" for name, choice in choices.items())
            print(f"  cache of {share} %, {policy}: {found[policy]:.2f} × ({shown})", flush=True)
            if policy == "benefit":
                chosen = shown
        what = f"12 jobs on three datasets, a cache of {share} % of all: rate of a job over that without a cache"
        rows += [
            report.at_least(f"60{letters[0]}", f"{what} ({chosen})", bar, found["benefit"])
            if bar
            else report.reported(f"60{letters[0]}", f"{what} ({chosen})", f"{found['benefit']:.2f}"),
            report.at_least(
                f"60{letters[1]}",
                f"… over that with LRU ({found['lru']:.2f})",
                1,
                found["benefit"] / found["lru"],
            ),
        ]
    return rows


def mixed(bench, origin, names, share, policy):
    """Entries a second of each job in a minute of the steady state, and the choice of each dataset."""
    size = sum(gb for _, gb, _ in MIX) * MIX_SCALE * ENTRY_BYTES
    flags = [*limit(MIX_ALONE * MIX_JOBS * len(MIX))]
    flags += [] if policy == "none" else ["--policy", policy]
    memory = size * share // 100 // NODES if share else AMPLE
    phase = 20 if bench.quick else 60
    with informed(bench, origin, flags, memory) as nodes:
        stop = nodes.scratch / "stop"
        how = ["--epochs", 1000, "--batch", 1, "--trace", "--stop", stop]
        how += [] if policy == "benefit" else ["--plain", "--fill", 0]
        loops = []
        for model, _, factor in MIX:
            keep = {"none": ["--keep", "none"], "lru": [], "benefit": ["--keep", "auto"]}[policy]
            chunk = f"{MIX_CHUNK * MIX_SCALE * ENTRY_BYTES}B"
            declare(nodes, names[model], *keep, *(["--chunk-size", chunk] if policy == "benefit" else []))
            loops.append(
                jobs_of(nodes, names[model], paces(factor * MIX_ALONE, MIX_JOBS, 0.02), how, len(loops) * MIX_JOBS)
            )
        with loops[0] as first, loops[1] as second, loops[2] as third:
            jobs = [*first, *second, *third]
            for job in jobs:
                wait_until(lambda j=job: batches_of(j), 120, f"the first mini-batch of {job.name}")
            settle(nodes, jobs, policy, size * share / 100)
            begun = time.time()
            time.sleep(phase)
            ended = time.time()
            rates = {job.name: throughput([job], begun, ended) for job in jobs}
            if policy == "benefit":
                for job in jobs:
                    print(f"    {job.name}: {rates[job.name]:.1f} entries/s, {said_of(nodes, job)}", flush=True)
            choices = {model: choice(nodes.dataset(names[model])) for model in names}
            stop.touch()
            for job in jobs:
                job.process.wait(timeout=60)
    return rates, choices


def said_of(nodes, job):
    """What the allocator knows of a job."""
    shown = nodes.job(job.name)
    times = {key: round(value, 3) for key, value in (shown["batch_s"] or {}).items() if value is not None}
    return f"{shown['mode']}, {times}"


def choice(dataset):
    """What a dataset's budget holds."""
    if dataset["chunks"] is not None:
        return "chunks"
    if not dataset["budget"]:
        return "none"
    return "whole" if dataset["budget"] >= dataset["size"] else "a part"


def settle(nodes, jobs, policy, cache):
    """Waits for the steady state: all jobs measured, if the policy measures them, and the caches full."""
    if policy == "benefit":
        wait_until(lambda: all(nodes.job(job.name)["batch_s"] for job in jobs), 600, "the times of all jobs")
    if policy == "none":
        time.sleep(10)
        return
    last, since = -1, time.time()
    end = since + 180
    while time.time() < end:
        held = sum(one for one, _ in nodes.held())
        if held > last * 1.01:
            last, since = held, time.time()
        # LRU goes on changing what it holds after it is full.
        if time.time() - since > 10:
            break
        time.sleep(1)


def row61(bench):
    """The measured benefit of a job, beside long runs with and without a cache."""
    entries, alone = (400, 40) if bench.quick else (800, 40)
    origin = origin_of(bench)
    name = make_entries(bench.copperfs, origin, entries, ENTRY_BYTES)
    rows = []
    for letter, factor in (("a", 3.0), ("b", 1.5)):
        long = {keep: long_run(bench, origin, name, keep, factor * alone, alone) for keep in ("none", "uniform")}
        expected = long["uniform"] / long["none"]
        found, held = probed(bench, origin, name, factor * alone, alone)
        rows.append(
            report.at_most(
                f"61{letter}",
                f"one job that could be {factor} × as fast as storage lets it: measured benefit {found:.2f}, long "
                f"runs {expected:.2f}; apart",
                10,
                100 * abs(found / expected - 1),
                " %",
            )
        )
    found, held = probed(bench, origin, name, alone / 2, alone)
    rows.append(
        report.exactly(
            "61c", f"a job that is bound by its GPU, measured benefit {found:.2f}: bytes cached for it", 0, held
        )
    )
    return rows


def long_run(bench, origin, name, keep, pace, storage):
    """Entries a second of a job after its first epoch."""
    with informed(bench, origin, limit(storage)) as nodes:
        declare(nodes, name, "--keep", keep)
        with jobs_of(nodes, name, [pace], ["--epochs", 3, "--batch", 2]) as jobs:
            finished(jobs)
    later = jobs[0].epochs()[1:]
    return sum(epoch["entries"] for epoch in later) / sum(epoch["seconds"] for epoch in later)


def probed(bench, origin, name, pace, storage):
    """The benefit that the allocator has measured of a job, and the bytes that are held for it a while later."""
    with informed(bench, origin, [*limit(storage), "--policy", "benefit"]) as nodes:
        declare(nodes, name, "--keep", "auto")
        stop = nodes.scratch / "stop"
        with jobs_of(nodes, name, [pace], ["--epochs", 1000, "--batch", 2, "--stop", stop]) as jobs:
            job = jobs[0].name
            wait_until(lambda: compared_times(nodes, job), 300, "the job's times")
            times = nodes.job(job)["batch_s"]
            time.sleep(10)
            held = sum(one for one, _ in nodes.held())
            stop.touch()
            finished(jobs, 60)
    print(f"  measured: {json.dumps(times)}", flush=True)
    return planned_benefit(bench, name, pace, storage, times), held


def compared_times(nodes, job):
    """Whether the times of a job with a cache are measured, too."""
    times = nodes.job(job)["batch_s"] if nodes.knows(job) else None
    return times and any(times[key] for key in ("whole", "chunks", "part"))


def planned_benefit(bench, name, pace, storage, times):
    """The benefit of the whole dataset that the policy makes of the times."""
    told = {"uncached_s": times["uncached"], "whole_s": times["whole"], "chunks_s": times["chunks"]}
    told |= {"part_s": times["part"], "part_hits": times["part_hit_ratio"]}
    size = 1000 * ENTRY_BYTES
    job = {"id": "j", "dataset": name, "ideal_rate": pace * ENTRY_BYTES, "gpus": 1}
    job["measured"] = {key: value for key, value in told.items() if value is not None}
    problem = {
        "totals": {"gpus": 1, "cache": size, "remote_io": storage * ENTRY_BYTES},
        "datasets": [{"name": name, "size": size}],
        "jobs": [job],
    }
    with scratch_dir() as scratch:
        path = scratch / "problem.json"
        path.write_text(json.dumps(problem))
        planned = json.loads(run([bench.copperfs, "plan", "--policy", "benefit", "--json", path]))
    return planned["jobs"]["j"]["score"]

"""Rows 53, 54 and 56: what it costs a job to choose by residency, and whether answers tell by their time.

The daemons are live, and tell which entries they hold. The entries are small pieces of a few shards:
only their number matters.
"""

import os
import time
from pathlib import Path
from statistics import fmean

from . import report
from .clock import median
from .informed import answer_of, declare, finished, informed, interpreter, start_job
from .mounts import run
from .training import end

JOB = Path(__file__).with_name("sampling_job.py")
HASHES_JOB = Path(__file__).with_name("hashes_job.py")
BATCH = 512
SHARDS = 10
MANY = 1_280_000


def make_samples(copperfs, origin, count, length):
    """A dataset of `count` samples of `length` bytes in a few shards, and its manifest."""
    name = f"samples-{count}x{length}"
    mark = origin / f"{name}.manifest"
    if mark.exists():
        return name
    (origin / name).mkdir(parents=True, exist_ok=True)
    listed = origin / f"{name}.entries"
    with open(listed, "w") as entries:
        for shard in range(SHARDS):
            numbers = range(shard * count // SHARDS, (shard + 1) * count // SHARDS)
            filling = os.urandom(length - 8)
            with open(origin / name / f"shard{shard}", "wb") as file:
                file.write(b"".join(number.to_bytes(8, "little") + filling for number in numbers))
            entries.writelines(
                f"shard{shard}\t{place * length}\t{length}\n" for place in range(len(numbers))
            )
    time.sleep(2.1)  # until their times tell one version from the next
    run([copperfs, "dataset", "manifest", origin / name, "-o", mark, "--entries", listed], timeout=600)
    listed.unlink()
    time.sleep(2.1)
    return name


def sampled(bench, name, what, *numbers, keep=()):
    """What sampling_job.py says of a dataset that is kept in chunks."""
    origin = bench.data.base.parent / "datasets"
    with informed(bench, origin) as nodes:
        declare(nodes, name, "--keep", "chunks", *keep)
        command = [*interpreter(), JOB, what, nodes.data, name, *numbers]
        return answer_of(nodes, what, name, command, 400)[0]


def origin_of(bench):
    """The directory of the datasets."""
    origin = bench.data.base.parent / "datasets"
    origin.mkdir(exist_ok=True)
    return origin


def row53(bench):
    """Look-ups for mini-batches of a resident tenth."""
    count = BATCH * 10 * (2 if bench.quick else 10)
    name = make_samples(bench.copperfs, origin_of(bench), count, 64)
    said = sampled(bench, name, "passes", BATCH, 20)
    if said["given"] != count:
        raise RuntimeError(f"{said['given']} of {count} entries came")
    mean = fmean(said["first"])
    expected = 10 * BATCH
    return [
        report.at_most(
            "53a",
            f"{count:,} entries, a tenth resident: look-ups up to the {BATCH}th hit, mean of "
            f"{len(said['first'])} mini-batches of first passes: {mean:,.0f}; off {expected:,}",
            2,
            100 * abs(mean / expected - 1),
            " %",
            lookups=said["first"],
        ),
        report.exactly("53b", "… passes of an epoch over ten tenths", 10, said["passes"]),
        report.at_most(
            "53c",
            f"… look-ups for each entry: {said['lookups'] / count:.2f}; off 5.5",
            2,
            100 * abs(said["lookups"] / count / 5.5 - 1),
            " %",
        ),
        report.exactly("53d", "… entries that were resident when they were drawn", count, said["hits"]),
    ]


def row54(bench):
    """Time: residency, a mini-batch of very many entries, and a whole job."""
    origin = origin_of(bench)
    few = make_samples(bench.copperfs, origin, 10_000, 64)
    asked = sampled(bench, few, "residency", 50 if bench.quick else 200)
    rows = [
        report.at_most(
            f"54{letter}",
            f"residency of 10,000 entries, {what}: half of {len(asked[kind]):,} answers within "
            f"{1000 * median(asked[kind]):.2f} ms, 99 of 100 within",
            1,
            1000 * percentile(asked[kind], 99),
            " ms",
            seconds=asked[kind],
        )
        for letter, kind, what in (("a", "whole", "whole"), ("b", "unchanged", "nothing new"))
    ]
    many = make_samples(bench.copperfs, origin, MANY, 16)
    stripes = 100
    drawn = sampled(bench, many, "draws", BATCH, 8, keep=["--chunk-size", f"{MANY * 16 // stripes}B"])
    rows.append(
        report.at_most(
            "54c",
            f"a mini-batch of {BATCH} of {MANY:,} entries, {drawn['part']:,} resident in a chunk: half of "
            f"{len(drawn['took'])} drawn within {1000 * median(drawn['took']):.2f} ms, 99 of 100 within",
            5,
            1000 * percentile(drawn["took"], 99),
            " ms",
            seconds=drawn["took"],
        )
    )
    asking = f"{1000 * median(drawn['asking']):.1f} ms; {drawn['slowest_s']:.2f} s"
    what = "… half of those that also ask the daemon; its slowest answer after the dataset was declared"
    rows.append(report.reported("54d", what, asking, seconds=drawn["asking"]))
    return rows + processor_time(bench, origin)


def row56(bench):
    """Hashes that are unknown, not resident, or of a private dataset: the same answer in the same time."""
    origin, tries = origin_of(bench), 2000 if bench.quick else 10_000
    absent, private = (make_samples(bench.copperfs, origin, 1000, size) for size in (72, 80))
    with informed(bench, origin) as nodes:
        declare(nodes, absent, "--keep", "none")
        declare(nodes, private, "--keep", "uniform", "--private")
        command = [*interpreter(), HASHES_JOB, nodes.data, absent, private, tries]
        took = answer_of(nodes, "hashes", private, command, 300)[0]["took"]
    rows = []
    for letter, (question, kinds) in zip("ab", took.items(), strict=True):
        medians = {kind: median(seconds) for kind, seconds in kinds.items()}
        shown = ", ".join(f"{kind} {1e6 * seconds:.1f}" for kind, seconds in medians.items())
        apart = max(abs(seconds / medians["unknown"] - 1) for seconds in medians.values())
        what = f"`{question}` by hash, medians of {tries:,} interleaved tries in µs: {shown}; apart"
        rows.append(report.at_most(f"56{letter}", what, 2, 100 * apart, " %"))
    return rows


def percentile(values, part):
    """The smallest value that is not below `part` of 100."""
    values = sorted(values)
    return values[min(len(values) - 1, len(values) * part // 100)]


def processor_time(bench, origin):
    """The processor time of choosing, in a job of 1,400 entries a second in mini-batches of 512."""
    count, rate = BATCH * 10 * (4 if bench.quick else 10), 1400
    name = make_samples(bench.copperfs, origin, count, 64)
    with informed(bench, origin) as nodes:
        declare(nodes, name, "--keep", "chunks")
        job = start_job(nodes, 1, "paced", name, "--rate", rate, "--batch", BATCH, "--fill", 8)
        try:
            (done,) = finished([job])
        finally:
            end([job])
    chosen = done["sampler_cpu_s"] + done["look_cpu_s"]
    return [
        report.at_most(
            "54e",
            f"a job of {done['entries'] / done['seconds']:,.0f} entries/s in mini-batches of {BATCH}: "
            "processor time of choosing, in the loop and for what is filled, of the job's time",
            1,
            100 * chosen / done["seconds"],
            " %",
            done=done,
        ),
        report.reported(
            "54f",
            "… of filling as a whole, reads included; of the whole job",
            f"{100 * done['filler_cpu_s'] / done['seconds']:.1f} %, "
            f"{100 * done['cpu_s'] / done['seconds']:.1f} %",
        ),
    ]

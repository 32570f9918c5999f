"""Row 57: does a network learn as well from chunks as from a global shuffle (Figure 2, Tables 1 and 2)?

The jobs are accuracy_job.py: an image model, and a sequence model whose mini-batches have names of similar
lengths. Each is trained with several seeds by a plain permutation, and by what two chunks of ten hold.
"""

import csv
import math
from pathlib import Path
from statistics import fmean, stdev

from . import report
from .accuracy_data import make_dataset
from .curves_plot import by_epoch
from .informed import REPOSITORY, answer_of, declare, informed
from .rows_jobs import TORCH_PYTHON
from .rows_sampling import origin_of

JOB = Path(__file__).with_name("accuracy_job.py")
SEEDS = 3
EPOCHS = {"digits": 20, "names": 12}
WHAT = {
    "digits": "a convolutional network on images of digits",
    "names": "a recurrent network on names, mini-batches of similar lengths",
}
HOW = {"global shuffle": ["--plain"], "chunks": []}


def row57(bench):
    """See the module."""
    rows = []
    for letter, kind in zip("ac", WHAT, strict=True):
        runs, chunks = trained(bench, kind)
        rows += compared(bench, letter, kind, runs, chunks)
    return rows


def trained(bench, kind):
    """What the jobs say of each epoch, by the way in which they shuffle, and the number of chunks."""
    origin = origin_of(bench)
    name, test = make_dataset(bench.copperfs, origin, kind)
    epochs = max(4, EPOCHS[kind] // 4) if bench.quick else EPOCHS[kind]
    runs = {how: [] for how in HOW}
    stripes = set()
    # The loader alone decides the order: every run has caches of its own.
    for seed in range(1, SEEDS + 1):
        for how, flags in HOW.items():
            with informed(bench, origin) as nodes:
                declare(nodes, name, "--keep", "chunks")
                command = ["env", f"PYTHONPATH={REPOSITORY / 'python'}", "OMP_NUM_THREADS=1", TORCH_PYTHON, JOB]
                command += [nodes.data, name, kind, test, "--epochs", epochs, "--seed", seed, *flags]
                command += ["--bucket"] if kind == "names" else []
                done, job = answer_of(nodes, f"{kind}{seed}", name, command, 900)
                if done["wrong"] or job.process.returncode:
                    raise RuntimeError(f"{name}, {how}: {done['wrong']} epochs with other entries than all")
                runs[how].append([line for line in job.lines if "epoch" in line])
                stripes.add(done["stripes"])
    return runs, stripes.pop()


def compared(bench, letter, kind, runs, stripes):
    """The rows of one model, its curves and its table."""
    curves = {how: [[line["accuracy"] for line in run] for run in own] for how, own in runs.items()}
    plot = bench.data.base.parent / f"accuracy-{kind}.svg"
    plot.write_text(by_epoch(curves, f"Accuracy on test samples: {WHAT[kind].partition(',')[0]}"))
    with open(plot.with_suffix(".csv"), "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["shuffle", "seed", "epoch", "accuracy"])
        for how, own in curves.items():
            for seed, run in enumerate(own, 1):
                table.writerows([how, seed, epoch, value] for epoch, value in enumerate(run, 1))
    last = {how: [run[-1] for run in own] for how, own in curves.items()}
    errors = [stdev(values) / math.sqrt(len(values)) for values in last.values()]
    means = [fmean(values) for values in last.values()]
    apart = abs(means[0] - means[1])
    both = math.hypot(*errors)
    drawn = [line["chunks"] / line["batches"] for run in runs["chunks"] for line in run]
    return [
        report.at_most(
            f"57{letter}",
            f"{WHAT[kind]}, {SEEDS} seeds, {len(curves['chunks'][0])} epochs: accuracy at the end with a global "
            f"shuffle {means[0]:.2f} ± {errors[0]:.2f} %, with chunks {means[1]:.2f} ± {errors[1]:.2f} % "
            f"({plot.name}); apart, in standard errors of the difference",
            2,
            apart / both if both else 0.0 if not apart else math.inf,
            accuracy=last,
        ),
        report.reported(
            f"57{chr(ord(letter) + 1)}",
            f"… chunks of which a mini-batch has entries, of {stripes}, in the mean; with a global shuffle",
            f"{fmean(drawn):.2f}; {fmean(line['chunks'] / line['batches'] for run in runs['global shuffle'] for line in run):.2f}",
        ),
    ]

//! The greedy choice among the options of all datasets. Pure.
//!
//! Each dataset starts with nothing. A *step* replaces its option by a larger one: nothing by chunks,
//! nothing by the whole dataset, or chunks by the whole dataset. Steps are tried in descending order
//! of what they gain for each byte that they cost.
//!
//! One pass over the sorted steps is enough. If the step from chunks to the whole comes before that to
//! the chunks, the step to the whole at once lies between them, and has been tried. A step that does
//! not fit never fits later: room only shrinks, and if the dataset takes its chunks meanwhile, the
//! step to the whole costs less by the same bytes. It also makes the gain grow with the cache: take two caches whose steps are the same
//! up to one that only fits into the larger one. All later steps gain less for each byte, and the
//! smaller cache has less room for them than that one step costs.

use super::super::choice::Choice;
use super::super::keep::Keep;
use super::super::problem::{Dataset, DatasetShare, Problem};
use super::super::shares::Caches;
use super::options::{Gain, Options};
use std::cmp::Ordering;

/// Gains are equal if they differ by less than this fraction: the rounding of a sum over jobs.
const EQUAL: f64 = 1e-9;

/// See the module documentation.
#[derive(Debug)]
struct Step {
    dataset: usize,
    from: Choice,
    to: DatasetShare,
    /// In bytes.
    cost: f64,
    /// Gained for each byte: GPUs, and where no GPUs are gained, remote IO saved.
    gain: Gain,
}

/// Chooses an option for each dataset.
pub(super) fn choose(problem: &Problem, options: &Options<'_>) -> Vec<DatasetShare> {
    let mut caches = Caches::after_budgets(problem);
    let mut shares: Vec<DatasetShare> = (0..problem.datasets.len())
        .map(|at| given(problem, options, at, caches.given[at]))
        .collect();
    let open = (0..problem.datasets.len()).filter(|&at| caches.open[at]);
    let mut steps: Vec<Step> = open
        .flat_map(|at| steps(&problem.datasets[at], at, options))
        .collect();
    let name = |step: &Step| &problem.datasets[step.dataset].name;
    // The sort is stable, so of equal steps of one dataset the smallest comes first.
    steps.sort_by(|a, b| by_gain(&b.gain, &a.gain).then_with(|| name(a).cmp(name(b))));
    for step in &steps {
        if shares[step.dataset].choice == step.from && step.cost <= caches.left {
            caches.give(step.dataset, step.cost);
            shares[step.dataset] = step.to;
        }
    }
    // Quiver has no parts of datasets. Where the rule is `uniform` by hand, a part is wanted.
    for step in &steps {
        let dataset = &problem.datasets[step.dataset];
        if dataset.keep == Keep::Uniform && shares[step.dataset].choice == Choice::None {
            caches.give(step.dataset, dataset.size);
            shares[step.dataset] = DatasetShare::of(dataset, caches.given[step.dataset]);
        }
    }
    shares
}

/// Returns what the bytes hold that a dataset was given by hand.
fn given(problem: &Problem, options: &Options<'_>, at: usize, cache: f64) -> DatasetShare {
    let dataset = &problem.datasets[at];
    let plain = DatasetShare::of(dataset, cache);
    if dataset.keep != Keep::Auto || plain.choice != Choice::Uniform || cache < dataset.two_chunks()
    {
        return plain;
    }
    // The bytes are given, and the rule is free.
    let chunks = DatasetShare {
        cache,
        choice: Choice::Chunks,
    };
    match by_gain(&options.gain(at, chunks), &options.gain(at, plain)) {
        Ordering::Greater => chunks,
        Ordering::Less | Ordering::Equal => plain,
    }
}

/// Returns the steps of a dataset that gain anything.
fn steps(dataset: &Dataset, at: usize, options: &Options<'_>) -> Vec<Step> {
    let whole = DatasetShare {
        cache: dataset.size,
        choice: Choice::Whole,
    };
    let chunks = DatasetShare {
        cache: dataset.two_chunks(),
        choice: Choice::Chunks,
    };
    let nothing = DatasetShare {
        cache: 0.0,
        choice: Choice::None,
    };
    let mut steps = Vec::with_capacity(3);
    if dataset.keep == Keep::Auto {
        steps.push(step(at, nothing, chunks, options));
        steps.push(step(at, chunks, whole, options));
    }
    steps.push(step(at, nothing, whole, options));
    steps.retain(|step| step.gain.gpus > 0.0 || step.gain.saved > 0.0);
    steps
}

fn step(dataset: usize, from: DatasetShare, to: DatasetShare, options: &Options<'_>) -> Step {
    let cost = to.cache - from.cache;
    let (before, after) = (options.gain(dataset, from), options.gain(dataset, to));
    // By its measurements a job may be slower with more cache. That is noise, and no reason for more.
    let loses = after.gpus < before.gpus * (1.0 - EQUAL);
    let per_byte = |before: f64, after: f64| {
        let more = after - before;
        if more > EQUAL * after && !loses {
            more / cost
        } else {
            0.0
        }
    };
    Step {
        dataset,
        from: from.choice,
        to,
        cost,
        gain: Gain {
            gpus: per_byte(before.gpus, after.gpus),
            saved: per_byte(before.saved, after.saved),
        },
    }
}

/// Compares gains by GPUs, and equal ones by saved remote IO.
fn by_gain(a: &Gain, b: &Gain) -> Ordering {
    let by_gpus = a.gpus.total_cmp(&b.gpus);
    by_gpus.then_with(|| a.saved.total_cmp(&b.saved))
}

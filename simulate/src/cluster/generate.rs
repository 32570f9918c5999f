//! Traces from a seed: Microsoft-like jobs that train SiloD's models (Table 4).
//!
//! Durations and GPU counts are the fit of Microsoft's published trace that Gavel uses: 80 % of jobs
//! take 10^1.5 to 10^3 minutes, 20 % 10^3 to 10^4, evenly in the exponent; 70 % have one GPU, 10 %
//! two, 15 % four, 5 % eight. Submissions are a Poisson process. Each of eight models is as likely as
//! another, and so is each of its datasets.

use super::workload::Builder;
use super::{Job, Workload, WorkloadError};
use crate::num::{index, index_f64};
use crate::random::Random;
use copperfs_policy::Keep;

/// The names and sizes of a model's datasets.
type Datasets = &'static [(&'static str, f64)];

const IMAGES: Datasets = &[
    ("imagenet22k", 1.36e12),
    ("openimages", 660e9),
    ("imagenet1k", 143e9),
];
const VIDEOS: Datasets = &[("youtube8m", 1.46e12)];
const PAGES: Datasets = &[("websearch", 20.9e12)];

/// The models of Table 4: their names, their ideal rates on one V100 in bytes per second, and their
/// datasets. The rates are those of Figure 6 where it has them. It has none
/// for AlexNet, EfficientNetB0 and InceptionV3, whose rates are assumed.
const MODELS: [(&str, f64, Datasets); 8] = [
    ("alexnet", 150e6, IMAGES),
    ("efficientnetb0", 90e6, IMAGES),
    ("efficientnetb1", 69e6, IMAGES),
    ("inceptionv3", 60e6, IMAGES),
    ("resnet50", 114e6, IMAGES),
    ("resnet152", 43e6, IMAGES),
    ("vlad", 10e6, VIDEOS),
    ("bert", 2e6, PAGES),
];

/// The parameters of a trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recipe {
    /// Jobs.
    pub jobs: usize,
    /// The number of days over which jobs are submitted.
    pub days: f64,
    /// The fraction of jobs on a shared dataset. Other jobs have their own dataset (`name#n`).
    pub sharing: f64,
    /// The seed of all random choices.
    pub seed: u64,
}

/// Generates a trace.
///
/// # Errors
/// There are no jobs, or too many for a workload.
pub fn generate(recipe: &Recipe) -> Result<Workload, WorkloadError> {
    let mut random = Random::new(recipe.seed);
    let mean = recipe.days * 86_400.0 / index_f64(recipe.jobs.max(1));
    let mut builder = Builder::default();
    let mut submit = 0.0;
    for number in 0..recipe.jobs {
        // Exponential gaps make a Poisson process.
        submit -= mean * (1.0 - random.unit()).ln();
        let &(model, ideal_rate, datasets) = pick(&MODELS, &mut random);
        let &(set, size) = pick(datasets, &mut random);
        let exponent = if random.unit() < 0.8 {
            1.5 + 1.5 * random.unit()
        } else {
            3.0 + random.unit()
        };
        let gpus: u32 = match random.unit() {
            ..0.7 => 1,
            0.7..0.8 => 2,
            0.8..0.95 => 4,
            _ => 8,
        };
        let name = if random.unit() < recipe.sharing {
            set.to_owned()
        } else {
            format!("{set}#{number}")
        };
        let ideal_rate = ideal_rate * f64::from(gpus);
        let dataset = builder.dataset(&name, size, Keep::Auto)?;
        builder.job(Job {
            id: number.to_string(),
            // Rounded like the written trace, so that it is identical when read again.
            submit: (submit * 1e3).round() / 1e3,
            model: model.to_owned(),
            dataset,
            gpus,
            ideal_rate,
            work: (10_f64.powf(exponent) * 60.0 * ideal_rate).round(),
            curriculum: None,
            substitutes: false,
        })?;
    }
    builder.finish()
}

fn pick<'a, T>(from: &'a [T], random: &mut Random) -> &'a T {
    let at = index(random.unit() * index_f64(from.len()));
    &from[at]
}

/// Returns the same workload with the fraction `sharing` of its jobs, chosen by `seed`, on shared
/// datasets. The part of a dataset's name before `#` is the name of the shared dataset.
///
/// # Errors
/// Datasets that would be shared have different sizes.
pub fn share(workload: &Workload, sharing: f64, seed: u64) -> Result<Workload, WorkloadError> {
    let mut random = Random::new(seed);
    let mut builder = Builder::default();
    for job in &workload.jobs {
        let set = &workload.datasets[job.dataset];
        let shared = random.unit() < sharing;
        let base = set
            .name
            .split_once('#')
            .map_or(&*set.name, |(base, _)| base);
        let name = if shared { base } else { &set.name };
        let dataset = builder.dataset(name, set.size, set.keep)?;
        builder.job(Job {
            dataset,
            ..job.clone()
        })?;
    }
    builder.finish()
}

#[cfg(test)]
mod tests {
    use super::super::trace::{from_csv, to_csv};
    use super::*;

    #[test]
    fn a_trace_is_like_microsofts_and_comes_back_from_its_text() {
        let recipe = Recipe {
            jobs: 4000,
            days: 14.0,
            sharing: 0.25,
            seed: 7,
        };
        let made = generate(&recipe).unwrap();
        assert_eq!(made, generate(&recipe).unwrap());
        assert_eq!(from_csv(&to_csv(&made)).unwrap(), made);
        let hours = |job: &Job| job.work / job.ideal_rate / 3600.0;
        let mean = made.jobs.iter().map(hours).sum::<f64>() / 4000.0;
        assert!((14.0..19.0).contains(&mean), "{mean}");
        let single = made.jobs.iter().filter(|job| job.gpus == 1).count();
        assert!((2700..2900).contains(&single), "{single}");
        let days = made.jobs.last().unwrap().submit / 86_400.0;
        assert!((13.0..15.0).contains(&days), "{days}");
        let own = made.datasets.iter().filter(|set| set.name.contains('#'));
        assert!((2900..3100).contains(&own.count()));
    }

    #[test]
    fn sharing_joins_datasets_of_a_name() {
        let recipe = Recipe {
            jobs: 200,
            days: 1.0,
            sharing: 0.0,
            seed: 1,
        };
        let apart = generate(&recipe).unwrap();
        assert_eq!(apart.datasets.len(), 200);
        assert_eq!(share(&apart, 0.0, 1).unwrap().jobs, apart.jobs);
        assert_eq!(share(&apart, 1.0, 1).unwrap().datasets.len(), 5);
    }
}

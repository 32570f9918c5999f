//! `copperfs plan`: computes the outcome of a policy without a cluster.

use super::{Table, fail, or_dash, percent, print};
use anyhow::Context;
use clap::Args;
use copperfs_policy::amounts::Decimal;
use copperfs_policy::{Allocation, Policy, Problem};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Options of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The problem as JSON; - reads standard input
    #[arg(value_name = "PROBLEM.json")]
    problem: PathBuf,
    /// greedy, max-min, sjf, benefit, lru or static
    #[arg(long, value_name = "POLICY", default_value = "greedy")]
    policy: String,
    /// Print JSON: bytes, bytes per second, seconds
    #[arg(long)]
    json: bool,
}

/// The maximum length of a problem. A hundred thousand jobs with every field take half of it.
const PROBLEM_BYTES_MAX: u64 = 64 << 20;

/// Reads a problem, solves it, prints the answer.
///
/// # Errors
/// The problem cannot be read or is invalid, or the policy does not exist.
pub fn plan(args: &PlanArgs) -> anyhow::Result<()> {
    let policy: Policy = args.policy.parse().context("--policy")?;
    let problem = read(&args.problem).and_then(|text| Ok(Problem::from_json(&text)?));
    let problem = problem.with_context(|| args.problem.display().to_string())?;
    for note in problem.notes() {
        fail(format_args!("note: {note}"));
    }
    let answer = policy.allocate(&problem);
    let value = answer.to_json(&problem, policy);
    print(args.json, &value, |_| report(policy, &problem, &answer))
}

fn read(path: &Path) -> anyhow::Result<String> {
    let input: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(std::fs::File::open(path)?),
    };
    let mut text = String::new();
    let mut input = input.take(PROBLEM_BYTES_MAX + 1);
    input.read_to_string(&mut text)?;
    anyhow::ensure!(
        text.len() as u64 <= PROBLEM_BYTES_MAX,
        "larger than 64 MiB; a problem has at most {} jobs",
        copperfs_policy::check::ENTRIES_MAX
    );
    Ok(text)
}

/// The answer for people.
fn report(policy: Policy, problem: &Problem, answer: &Allocation) -> String {
    let datasets = Table::of(problem.datasets.iter().zip(&answer.datasets))
        .column("dataset", |(dataset, _)| dataset.name.as_str())
        .column("size", |(dataset, _)| Decimal(dataset.size))
        .column("cache", |(_, share)| Decimal(share.cache))
        .column("part", |(all, share)| percent(share.cache / all.size));
    // Only this policy chooses.
    let datasets = match policy {
        Policy::Benefit => datasets.column("holds", |(_, share)| share.choice.name()),
        _ => datasets,
    };
    let dataset = |at: usize| problem.datasets[at].name.as_str();
    let mut jobs: Vec<_> = problem.jobs.iter().zip(&answer.jobs).collect();
    jobs.sort_by_key(|(_, share)| share.order);
    let jobs = Table::of(jobs)
        .column("job", |(job, _)| job.id.as_str())
        .column("dataset", |(job, _)| dataset(job.dataset))
        .column("hits", |(_, share)| percent(share.hit_ratio))
        .column("remote IO", |(_, share)| rate(share.remote_io))
        .column("limit", |(_, share)| rate(share.limit))
        .column("reads", |(_, share)| rate(share.throughput))
        .column("ideal", |(job, _)| rate(job.ideal_rate))
        .column("score", |(_, share)| or_dash(share.score.map(short)));
    let headline = headline(policy, problem, answer);
    format!("{headline}\n\n{}\n{}", datasets.text(), jobs.text())
}

fn headline(policy: Policy, problem: &Problem, answer: &Allocation) -> String {
    let objective = answer.objective;
    let (amount, saved) = (short(objective), rate(objective));
    let reached = match policy {
        Policy::Greedy | Policy::Lru | Policy::Static => {
            format!("at ideal speed the cache saves {saved} of remote IO")
        }
        Policy::Benefit => {
            format!("the jobs do the work of {amount} GPUs without a cache")
        }
        Policy::MaxMin => {
            format!("every job reads at least {amount} times what an equal share gives")
        }
        Policy::Sjf => format!("scores add up to {amount} s"),
    };
    let used: f64 = answer.jobs.iter().map(|share| share.remote_io).sum();
    let cached: f64 = answer.datasets.iter().map(|share| share.cache).sum();
    format!(
        "{policy}: {reached}\n{} of {} cache and {} of {} remote IO are used",
        Decimal(cached),
        Decimal(problem.totals.cache),
        rate(used),
        rate(problem.totals.remote_io),
    )
}

fn rate(bytes_per_s: f64) -> String {
    format!("{}/s", Decimal(bytes_per_s))
}

/// Three significant digits.
fn short(amount: f64) -> String {
    match amount.abs() {
        0.0 => "0".to_owned(),
        0.01..1000.0 => {
            let text = format!("{amount:.3}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        _ => format!("{amount:.2e}"),
    }
}

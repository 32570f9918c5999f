//! `copperfs plan`: computes the outcome of a policy without a cluster.

use super::{fail, say, table};
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
    let text = read(&args.problem).with_context(|| format!("{}", args.problem.display()))?;
    let problem =
        Problem::from_json(&text).with_context(|| format!("{}", args.problem.display()))?;
    for note in problem.notes() {
        fail(format!("note: {note}"));
    }
    let answer = policy.allocate(&problem);
    if args.json {
        say(serde_json::to_string_pretty(
            &answer.to_json(&problem, policy),
        )?);
    } else {
        say(report(policy, &problem, &answer).trim_end());
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let limit = PROBLEM_BYTES_MAX + 1;
    if path == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(limit)
            .read_to_string(&mut text)?;
    } else {
        std::fs::File::open(path)?
            .take(limit)
            .read_to_string(&mut text)?;
    }
    anyhow::ensure!(
        text.len() as u64 <= PROBLEM_BYTES_MAX,
        "larger than 64 MiB; a problem has at most {} jobs",
        copperfs_policy::check::ENTRIES_MAX
    );
    Ok(text)
}

/// The answer for people.
fn report(policy: Policy, problem: &Problem, answer: &Allocation) -> String {
    let row = |cells: [&str; 4]| cells.map(str::to_owned);
    let mut datasets = vec![row(["dataset", "size", "cache", "part"])];
    for (dataset, share) in problem.datasets.iter().zip(&answer.datasets) {
        datasets.push([
            dataset.name.clone(),
            Decimal(dataset.size).to_string(),
            Decimal(share.cache).to_string(),
            percent(share.cache / dataset.size),
        ]);
    }
    let head = [
        "job",
        "dataset",
        "hits",
        "remote IO",
        "limit",
        "reads",
        "ideal",
        "score",
    ];
    let mut jobs = vec![head.map(str::to_owned)];
    let mut order: Vec<usize> = (0..answer.jobs.len()).collect();
    order.sort_by_key(|&at| answer.jobs[at].order);
    for at in order {
        let (job, share) = (&problem.jobs[at], &answer.jobs[at]);
        jobs.push([
            job.id.clone(),
            problem.datasets[job.dataset].name.clone(),
            percent(share.hit_ratio),
            rate(share.remote_io),
            rate(share.limit),
            rate(share.throughput),
            rate(job.ideal_rate),
            share.score.map_or_else(|| "-".to_owned(), short),
        ]);
    }
    format!(
        "{}\n\n{}\n{}",
        headline(policy, problem, answer),
        table(&datasets),
        table(&jobs)
    )
}

fn headline(policy: Policy, problem: &Problem, answer: &Allocation) -> String {
    let objective = answer.objective;
    let reached = match policy {
        Policy::Greedy | Policy::Benefit | Policy::Lru | Policy::Static => {
            format!(
                "at ideal speed the cache saves {} of remote IO",
                rate(objective)
            )
        }
        Policy::MaxMin => {
            format!(
                "every job reads at least {} times what an equal share gives",
                short(objective)
            )
        }
        Policy::Sjf => format!("scores add up to {} s", short(objective)),
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

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
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

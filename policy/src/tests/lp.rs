//! Greedy and max-min against an independent linear programme, on a thousand random problems each.
//!
//! The programmes are written from the paper's equations and share no code with the policies.

use super::*;
use good_lp::{
    Expression, ProblemVariables, Solution, SolverModel, Variable, constraint, microlp, variable,
};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// The relative difference of equal values.
const AGREE: f64 = 1e-6;

/// One variable per dataset for its cached fraction, constrained to the total.
fn caches(problem: &Problem, variables: &mut ProblemVariables) -> (Vec<Variable>, Expression) {
    let parts: Vec<Variable> = problem
        .datasets
        .iter()
        .map(|_| variables.add(variable().min(0.0).max(1.0)))
        .collect();
    let sum = problem
        .datasets
        .iter()
        .zip(&parts)
        .map(|(dataset, part)| dataset.size / GB * *part)
        .sum();
    (parts, sum)
}

/// Returns the most remote IO that the cache can save, in bytes per second: Algorithm 2's
/// objective.
fn most_saved(problem: &Problem) -> f64 {
    let mut variables = ProblemVariables::new();
    let (parts, sum) = caches(problem, &mut variables);
    let jobs = problem.jobs.iter();
    let saved: Expression = jobs
        .map(|job| job.ideal_rate / MB * parts[job.dataset])
        .sum();
    let solution = variables
        .maximise(saved.clone())
        .using(microlp)
        .with(constraint!(sum <= problem.totals.cache / GB))
        .solve()
        .unwrap();
    solution.eval(saved) * MB
}

/// Returns SiloDPerf with an equal share of everything.
fn with_equal_share(problem: &Problem) -> Vec<f64> {
    let jobs = f64::from(u32::try_from(problem.jobs.len()).unwrap());
    let share = |at: usize| {
        let job = &problem.jobs[at];
        let sharing = problem
            .jobs
            .iter()
            .filter(|other| other.dataset == job.dataset);
        let sharing = f64::from(u32::try_from(sharing.count()).unwrap());
        let size = problem.datasets[job.dataset].size;
        let miss = 1.0 - (problem.totals.cache / jobs * sharing / size).min(1.0);
        if miss <= 1e-12 {
            job.ideal_rate
        } else {
            (problem.totals.remote_io / jobs / miss).min(job.ideal_rate)
        }
    };
    (0..problem.jobs.len()).map(share).collect()
}

/// Eq. 9. With `T = t · T_equal`, Eq. 2 summed over jobs is `Σ T_equal · (1 - c/d) ≤ B / t`: linear
/// in the caches and in `1/t`. No job exceeds its ideal rate, which bounds `t` too.
fn fairest(problem: &Problem, equal: &[f64]) -> f64 {
    let mut variables = ProblemVariables::new();
    let (parts, sum) = caches(problem, &mut variables);
    let inverse = variables.add(variable().min(0.0));
    let need: Expression = problem
        .jobs
        .iter()
        .zip(equal)
        .map(|(job, equal)| *equal / MB * (1.0 - parts[job.dataset]))
        .sum();
    let solution = variables
        .minimise(inverse)
        .using(microlp)
        .with(constraint!(sum <= problem.totals.cache / GB))
        .with(constraint!(need <= problem.totals.remote_io / MB * inverse))
        .solve()
        .unwrap();
    let jobs = problem.jobs.iter().zip(equal);
    jobs.map(|(job, equal)| job.ideal_rate / equal)
        .fold(1.0 / solution.value(inverse), f64::min)
}

/// Returns the least remote IO with which all jobs reach these rates.
fn least_need(problem: &Problem, rates: &[f64]) -> f64 {
    let mut variables = ProblemVariables::new();
    let (parts, sum) = caches(problem, &mut variables);
    let need: Expression = problem
        .jobs
        .iter()
        .zip(rates)
        .map(|(job, rate)| *rate / MB * (1.0 - parts[job.dataset]))
        .sum();
    let solution = variables
        .minimise(need.clone())
        .using(microlp)
        .with(constraint!(sum <= problem.totals.cache / GB))
        .solve()
        .unwrap();
    solution.eval(need) * MB
}

/// Checks a thousand problems in steady state.
fn on_a_thousand(check: impl Fn(&Problem)) {
    let config = Config {
        cases: 1_000,
        failure_persistence: None,
        ..Config::default()
    };
    // The same problems each time, because chance would find the tolerances of the solver.
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, random);
    runner
        .run(&steady_problems(), |problem| {
            check(&problem);
            Ok(())
        })
        .unwrap();
}

/// Equal, or both less than `nothing`.
#[track_caller]
fn assert_agree(found: f64, wanted: f64, nothing: f64, problem: &Problem) {
    let scale = found.abs().max(wanted.abs());
    assert!(
        (found - wanted).abs() <= AGREE * scale || scale < nothing,
        "{found} is not {wanted}: {problem:?}"
    );
}

#[test]
fn greedy_saves_as_much_as_the_linear_programme() {
    on_a_thousand(|problem| {
        let answer = Policy::Greedy.allocate(problem);
        assert_agree(answer.objective, most_saved(problem), 1.0, problem);
        // The caches really save that.
        let saved: f64 = problem
            .jobs
            .iter()
            .map(|job| {
                job.ideal_rate * answer.datasets[job.dataset].cache
                    / problem.datasets[job.dataset].size
            })
            .sum();
        assert_agree(saved, answer.objective, 1.0, problem);
    });
}

#[test]
fn max_min_is_as_fair_as_the_linear_programme() {
    on_a_thousand(|problem| {
        let equal = with_equal_share(problem);
        let answer = Policy::MaxMin.allocate(problem);
        let ratios: Vec<f64> = answer
            .jobs
            .iter()
            .zip(&equal)
            .map(|(share, equal)| share.throughput / equal)
            .collect();
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        assert_agree(answer.objective, least, 0.0, problem);
        assert_agree(least, fairest(problem, &equal), 0.0, problem);
        assert!(
            least >= 1.0 - 1e-9,
            "worse than the equal share: {problem:?}"
        );
        // Beyond the first minimum: the level of the jobs that are limited by remote IO.
        let held =
            |at: &usize| answer.jobs[*at].throughput < problem.jobs[*at].ideal_rate * 0.999_999;
        let Some(level) = (0..ratios.len())
            .filter(held)
            .map(|at| ratios[at])
            .reduce(f64::max)
        else {
            return;
        };
        for (at, ratio) in ratios.iter().enumerate().filter(|(at, _)| held(at)) {
            assert_agree(*ratio, level, 0.0, problem);
            assert!(answer.jobs[at].remote_io > 0.0);
        }
        let rates = |level: f64| -> Vec<f64> {
            let jobs = problem.jobs.iter().zip(&equal);
            jobs.map(|(job, equal)| job.ideal_rate.min(level * equal))
                .collect()
        };
        let available = problem.totals.remote_io;
        assert!(least_need(problem, &rates(level * (1.0 - AGREE))) <= available * (1.0 + 1e-9));
        assert!(least_need(problem, &rates(level * (1.0 + AGREE))) >= available * (1.0 - 1e-9));
    });
}

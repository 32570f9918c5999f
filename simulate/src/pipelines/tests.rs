//! The figures of the LRC paper, and the rules for workloads.

use super::*;
use copperfs_policy::references::EvictionPolicy as Policy;

mod bars;
mod files;
mod reports;
mod scripts;

/// Returns the traces of a named workload, one for each of the seeds 1 to `seeds`.
fn pipelines(name: &str, seeds: u64) -> Vec<Pipeline> {
    let workload = Workload::named(name).unwrap();
    (1..=seeds)
        .map(|seed| workload.pipeline(seed).unwrap())
        .collect()
}

fn plan(policies: &[Policy], caches: &[&str], hit_ratios: &[f64]) -> Plan {
    Plan {
        policies: policies.to_vec(),
        caches: caches.iter().map(|size| size.parse().unwrap()).collect(),
        hit_ratios: hit_ratios.to_vec(),
    }
}

fn studies(names: &[&str], seeds: u64, plan: &Plan) -> Vec<Study> {
    std::thread::scope(|scope| {
        let one = |name| scope.spawn(move || study(&mut pipelines(name, seeds), plan).unwrap());
        let running: Vec<_> = names.iter().map(|name| one(*name)).collect();
        running
            .into_iter()
            .map(|study| study.join().unwrap())
            .collect()
    })
}

fn space(study: &Study, policy: Policy, hit_ratio: f64) -> f64 {
    let mut spaces = study.spaces.iter();
    let found = spaces.find(|space| space.policy == policy.name() && space.hit_ratio == hit_ratio);
    found.unwrap().to_lru.unwrap()
}

//! Upgrades a whole launch: all nodes are asked first, then the leaves change, then the inner nodes, and then the roots,
//! one by one.

use super::{alone, own_program};
use crate::cli::daemon::ask_daemon;
use crate::cli::launch::together::{self, Outcome};
use crate::cli::launch::{self, NodeOutcomes, remote};
use crate::cli::record::{Kind, Record};
use crate::cli::stats::{ClusterReports, cluster_reports};
use crate::cli::teardown::ASK_TIMEOUT;
use crate::cli::unmount::all::{failures, launch_of};
use crate::cli::unmount::nothing_at;
use crate::cli::{explained, fail, say};
use crate::config::Machine;
use crate::daemon::mountpoint;
use crate::report::Report;
use anyhow::{Context, ensure};
use copperfs_fuse::ioctl::client;
use std::path::{Path, PathBuf};

/// Upgrades all nodes of the launch at `path`, or all mounts below it.
///
/// # Errors
/// A node cannot change: then none has. Or a node did not change: then those after it have not.
pub(super) fn upgrade(
    path: &Path,
    given: Option<&Path>,
    dry_run: bool,
    machine: &Machine,
) -> anyhow::Result<()> {
    let record = launch_of(path, machine)?;
    let work = match &record {
        Some(record) if record.kind != Kind::Local => {
            let program = given.unwrap_or(Path::new(&record.program));
            let program = program.to_str().context("the program's path is no UTF-8")?;
            Work::Elsewhere(record, program.to_owned())
        }
        record => {
            let nodes = record.iter().flat_map(|record| &record.nodes);
            let mut mounts: Vec<PathBuf> = nodes.map(|node| node.mountpoint.clone()).collect();
            if mounts.is_empty() {
                mounts = mountpoint::copperfs_below(path)?;
            }
            ensure!(!mounts.is_empty(), "{}", nothing_at(path, machine)?);
            let program = given.map_or_else(own_program, |given| Ok(given.to_owned()))?;
            Work::Local(mounts, program)
        }
    };
    let all: Vec<usize> = (0..work.count()).collect();
    let able = work.carry_out(&all, true, machine)?;
    for (node, error) in failures(&able) {
        fail(format_args!("{node}: {}", explained(error)));
    }
    let unable = failures(&able).count();
    ensure!(
        unable == 0,
        "{unable} of {} nodes cannot change: none has",
        all.len()
    );
    if dry_run {
        say(format_args!("{} nodes can change", all.len()));
        return Ok(());
    }
    for batch in batches(&work.roles(record.as_ref(), machine)?) {
        let outcomes = work.carry_out(&batch, false, machine)?;
        for (node, outcome) in &outcomes {
            match outcome {
                Ok(text) => say(text),
                Err(error) => fail(format_args!("{node}: {}", explained(error))),
            }
        }
        let left = failures(&outcomes).count();
        ensure!(left == 0, "the nodes that follow have not changed");
    }
    Ok(())
}

/// A node's place, in the order of the upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Leaf,
    Inner,
    Root,
}

/// The nodes that change at a time, as ranks of the launch.
fn batches(places: &[Place]) -> Vec<Vec<usize>> {
    let of = |place: Place| {
        let ranks = (0..places.len()).rev();
        ranks.filter(move |rank| places[*rank] == place)
    };
    let together = [Place::Leaf, Place::Inner].map(|place| of(place).collect::<Vec<_>>());
    let together = together.into_iter().filter(|ranks| !ranks.is_empty());
    together
        .chain(of(Place::Root).map(|rank| vec![rank]))
        .collect()
}

/// The nodes, and how they are reached.
enum Work<'a> {
    /// Mounts on this machine, and the program.
    Local(Vec<PathBuf>, PathBuf),
    /// Nodes on other hosts, and the program there.
    Elsewhere(&'a Record, String),
}

impl Work<'_> {
    fn count(&self) -> usize {
        match self {
            Self::Local(mounts, _) => mounts.len(),
            Self::Elsewhere(record, _) => record.nodes.len(),
        }
    }

    /// Upgrades the nodes `ranks`, or asks whether they could change.
    fn carry_out(
        &self,
        ranks: &[usize],
        dry_run: bool,
        machine: &Machine,
    ) -> anyhow::Result<NodeOutcomes> {
        match self {
            Self::Local(mounts, program) => {
                let outcome = |rank: &usize| {
                    let mount = &mounts[*rank];
                    let outcome = alone(mount, program, dry_run);
                    (mount.display().to_string(), outcome)
                };
                Ok(ranks.iter().map(outcome).collect())
            }
            Self::Elsewhere(record, program) => {
                let mut words = vec!["upgrade", "--program", program];
                words.extend(dry_run.then_some("--dry-run"));
                if record.kind == Kind::Remote {
                    return Ok(launch::on_mounts(record, ranks, &words));
                }
                let names = ranks.iter().map(|rank| record.nodes[*rank].name.as_str());
                let names = names.collect::<Vec<_>>().join(",");
                words.extend(["--nodes", &names]);
                let lines = together::on_mounts(record, &words, machine)?;
                let mut outcomes = together::outcomes(lines);
                // The hosts of other nodes have done nothing.
                outcomes.retain(|(_, outcome)| !matches!(outcome, Ok(done) if done.is_empty()));
                let (count, all) = (outcomes.len(), ranks.len());
                ensure!(count == all, "{count} of {all} nodes were found: {names}");
                Ok(outcomes)
            }
        }
    }

    /// The place of each node, by rank. A node that does not answer counts as a leaf.
    fn roles(&self, record: Option<&Record>, machine: &Machine) -> anyhow::Result<Vec<Place>> {
        let mut places = vec![Place::Leaf; self.count()];
        match (self, record) {
            // Mounts of no launch: each may be a tree of its own.
            (Self::Local(mounts, _), None) => {
                for (place, mount) in places.iter_mut().zip(mounts) {
                    let stats = ask_daemon(mount, ASK_TIMEOUT, client::node_stats)??;
                    *place = place_of(Report::from_lines(&stats).role());
                }
            }
            (Self::Elsewhere(record, _), _) if record.kind == Kind::Together => {
                for line in together::on_mounts(record, &["upgrade", "--which"], machine)? {
                    if let Outcome::Node { name, role } = line.outcome
                        && let Some(rank) = record.nodes.iter().position(|node| node.name == name)
                    {
                        places[rank] = place_of(&role);
                    }
                }
            }
            (_, Some(record)) => {
                for instance in record.instances() {
                    let first = &record.nodes[instance.start];
                    let reports: ClusterReports = match self {
                        Self::Local(..) => cluster_reports(&first.mountpoint)?,
                        Self::Elsewhere(..) => remote::cluster_reports(record, first)?,
                    };
                    for report in &reports.nodes {
                        let named = |rank: &usize| record.nodes[*rank].name == report.node();
                        if let Some(rank) = instance.clone().find(named) {
                            places[rank] = place_of(report.role());
                        }
                    }
                }
            }
            (Self::Elsewhere(..), None) => {}
        }
        Ok(places)
    }
}

fn place_of(role: &str) -> Place {
    match role {
        "root" => Place::Root,
        "inner" => Place::Inner,
        _ => Place::Leaf,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_change_first_and_roots_one_by_one() {
        let places = ["root", "root", "inner", "inner", "leaf", "leaf", "leaf"].map(place_of);
        let expected = vec![vec![6, 5, 4], vec![3, 2], vec![1], vec![0]];
        assert_eq!(batches(&places), expected);
        assert_eq!(batches(&[place_of("single")]), [[0]]);
    }
}

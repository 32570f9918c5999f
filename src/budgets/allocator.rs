//! The allocator: from what is declared and reported to decisions. Pure; time is an argument.
//!
//! Whole state: the registry, the newest report of every node, the counts of the datasets. A decision
//! is made anew on every change and each [`PERIOD`], never more often than each [`GAP`], and is given
//! out only if it says something else than the last one. See [`crate::budgets`] for how it travels, and
//! [`crate::allocator`] for the policies.
//!
//! What makes a decision, in this order: the homes (nodes that live and have room for datasets); the
//! problem (`problem`); the policy; budgets, held still where moving them gains nothing (`budgets`);
//! rates, divided over the nodes of each job (`rates`).

use super::counted::Counted;
use super::registry::{Limits, Registry};
use crate::model::{
    Command, CommandError, Counting, DatasetDecision, Decision, HomeNode, Homes, JobDecision,
    JobNode, NodeReport, Overview, Serial, UNATTRIBUTED,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

mod budgets;
mod presumed;
mod problem;
mod rates;
#[cfg(test)]
mod tests;

use problem::Estimates;

/// A node that was not heard of for so long is gone: its slots are given to others, and its part of
/// jobs' rates. A node whose parent dies reports again within three and a half seconds at most: a
/// second from the last report to the death, two until that is noticed, and the way elsewhere.
pub const NODE_GONE: Duration = Duration::from_secs(4);
/// An allocator that takes up from a decision presumes the nodes of that decision to live for so long:
/// those who find their way to it later than others have not lost anything.
pub const PRESUMED: Duration = Duration::from_secs(6);
/// Decisions come no faster than this, however many changes there are: a launch of a thousand nodes is
/// a few decisions, not a thousand.
pub const GAP: Duration = Duration::from_millis(200);
/// So often it is solved anew without a change: within an epoch a job uses up what was cached before
/// it, so that the part of its next reads that hits, and with it what it needs of remote IO, moves all
/// the time (§6).
pub const PERIOD: Duration = Duration::from_secs(5);
/// How long an allocator that begins listens before it decides: those who hold a decision tell it
/// within a report or two.
pub const LISTENING: Duration = Duration::from_millis(1_000);
/// A rate that moves by less is not worth a decision.
const NOISE: f64 = 0.01;

/// What the cluster was configured with.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AllocatorConfig {
    /// Bytes per second that storage gives; `None`: no limit.
    pub remote_io: Option<u64>,
    /// GPUs, if known.
    pub gpus: Option<u32>,
}

/// See the module.
#[derive(Debug)]
pub struct Allocator {
    config: AllocatorConfig,
    registry: Registry,
    /// What was configured, for the first decision of all.
    configured: Registry,
    /// By rank: what each node said last, and when that came.
    nodes: BTreeMap<u32, Node>,
    counts: BTreeMap<u64, Counted>,
    /// Datasets whose count is newer than the decision.
    recounted: BTreeSet<u64>,
    estimates: Estimates,
    began: Duration,
    decided: Option<Duration>,
    changed: bool,
    term: u64,
    decision: Decision,
    /// What was asked of this allocator since it began: done again on what it takes up later.
    asked: Vec<Command>,
    /// Jobs that were ended, as long as nodes report them, which they do until the processes have been
    /// gone for a while: they are not taken for seen ones.
    ended: BTreeMap<String, Ended>,
}

#[derive(Clone, Copy, Debug)]
struct Ended {
    at: Duration,
    /// What it had read, [`ENDING`] later.
    bytes: Option<u64>,
}

#[derive(Debug)]
struct Node {
    report: NodeReport,
    heard: Duration,
    /// Its process before this one: reports of that may still be on their way.
    earlier_boot: Option<u64>,
}

/// What a job that was ended has read is known after so long: a report and its way, with room. If it
/// reads more than that, it goes on.
const ENDING: Duration = Duration::from_secs(4);

/// Commands that are remembered for taking up: more than people give within the seconds in which an
/// older decision may still turn up. The oldest go first.
const ASKED_MAX: usize = 256;

impl Allocator {
    /// One that begins at `now`, as the root of `tree`, and has heard nothing yet. `configured` is what
    /// holds where nobody has a decision.
    ///
    /// Of two that have heard of nothing and do not know of each other, that of the later tree is taken up
    /// from when they meet: what was asked of the other is done again.
    #[must_use]
    pub fn new(config: AllocatorConfig, configured: Registry, tree: usize, now: Duration) -> Self {
        Self {
            config,
            registry: configured.clone(),
            configured,
            nodes: BTreeMap::new(),
            counts: BTreeMap::new(),
            recounted: BTreeSet::new(),
            estimates: Estimates::default(),
            began: now,
            decided: None,
            changed: true,
            term: u64::try_from(tree).unwrap_or(0).saturating_add(1),
            decision: Decision::default(),
            asked: Vec::new(),
            ended: BTreeMap::new(),
        }
    }

    /// The newest decision; with the serial 0.0 before the first one.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Whether it has decided anything yet: before, it listens.
    #[must_use]
    pub fn has_decided(&self) -> bool {
        self.decided.is_some()
    }

    /// A decision that some node holds. If it is newer than what is known here, it is taken up from: its
    /// declarations, jobs and what was set by hand stand, and this allocator goes on in a later term.
    pub fn heard_decision(&mut self, held: &Decision, now: Duration) {
        if held.serial <= self.decision.serial {
            return;
        }
        self.registry = Registry::of(held);
        // A policy of another version of copperfs: what is configured stands.
        let policy = self.registry.policy().to_owned();
        if self.registry.set_policy(&policy).is_err() {
            drop(self.registry.set_policy(self.configured.policy()));
        }
        let limits = Limits::default();
        for command in std::mem::take(&mut self.asked) {
            // What it contradicts came later.
            drop(self.registry.apply(&command, &limits));
        }
        self.term = held.serial.term.saturating_add(1);
        self.decision = held.clone();
        self.changed = true;
        self.presume(now);
    }

    /// The nodes of the decision that was taken up, as if they had just said what it says of them. Their
    /// own reports take the place of that.
    fn presume(&mut self, now: Duration) {
        let began = now.saturating_sub(self.began);
        let spare = PRESUMED.saturating_sub(began);
        for report in presumed::reports(&self.decision) {
            self.nodes.entry(report.rank).or_insert(Node {
                report,
                // Heard of in the future: silent `NODE_GONE` after the time has passed.
                heard: (now + spare).saturating_sub(NODE_GONE),
                earlier_boot: None,
            });
        }
    }

    /// What a node reports. Older reports of the same process are passed over.
    pub fn heard(&mut self, report: NodeReport, now: Duration) {
        let known = self.nodes.get(&report.rank);
        let same = known.filter(|known| known.report.boot == report.boot);
        let stale = known.is_some_and(|known| known.earlier_boot == Some(report.boot));
        if stale || same.is_some_and(|known| known.report.count >= report.count) {
            return;
        }
        let news = known.is_none_or(|known| {
            problem::differs(&known.report, &report) || now.saturating_sub(known.heard) >= NODE_GONE
        });
        let earlier_boot = match (known, same) {
            (_, Some(same)) => same.earlier_boot,
            (Some(known), None) => Some(known.report.boot),
            (None, None) => None,
        };
        self.changed |= news;
        let node = Node {
            heard: now,
            earlier_boot,
            report,
        };
        self.nodes.insert(node.report.rank, node);
    }

    /// What a dataset holds, or why it cannot be counted.
    pub fn counted(&mut self, id: u64, counted: Result<Counted, String>) {
        let told = counted.as_ref().map(|count| (count.bytes, count.items));
        self.changed |= self.registry.counted(id, told.map_err(Clone::clone));
        if let Ok(counted) = counted {
            self.changed = true;
            self.counts.insert(id, counted);
            self.recounted.insert(id);
        }
        let declared: BTreeSet<u64> = self.registry.datasets().iter().map(|one| one.id).collect();
        self.counts.retain(|id, _| declared.contains(id));
    }

    /// The datasets that are not counted here yet, with what they are declared as.
    pub fn uncounted(&self) -> impl Iterator<Item = &DatasetDecision> {
        let datasets = self.decision.datasets.iter();
        datasets.filter(|dataset| !self.counts.contains_key(&dataset.id))
    }

    /// The count of dataset `id` is out of date. What it said holds until there is another one.
    pub fn recount(&mut self, id: u64) {
        self.counts.remove(&id);
    }

    /// What dataset `id` was counted from.
    #[must_use]
    pub fn count_of(&self, id: u64) -> Option<&Counted> {
        self.counts.get(&id)
    }

    /// Carries out `command`, with the next decision; gives that decision.
    ///
    /// # Errors
    /// It is refused; nothing changes.
    pub fn command(&mut self, command: &Command, now: Duration) -> Result<Serial, CommandError> {
        let limits = Limits {
            // Before anybody has reported, nobody knows.
            cache: (!self.nodes.is_empty()).then(|| self.cache_total(now)),
            ..self.limits()
        };
        self.registry.apply(command, &limits)?;
        if let Command::ReplaceDataset(spec) = command {
            // The new declaration may name another index, so the dataset is counted again.
            self.counts
                .remove(&DatasetDecision::id_of(&spec.name, &spec.path));
        }
        if let Command::RemoveDataset(_) | Command::ReplaceDataset(_) = command {
            let kept: BTreeSet<u64> = self.registry.datasets().iter().map(|one| one.id).collect();
            self.counts.retain(|id, _| kept.contains(id));
        }
        match command {
            Command::EndJob(name) => {
                let ended = Ended {
                    at: now,
                    bytes: None,
                };
                self.ended.insert(name.clone(), ended);
            }
            Command::AddJob(spec) => {
                self.ended.remove(&spec.name);
            }
            _ => {}
        }
        if self.asked.len() == ASKED_MAX {
            self.asked.remove(0);
        }
        self.asked.push(command.clone());
        self.changed = true;
        // People wait for it; the gap is for what comes by itself.
        self.decide(now);
        Ok(self.decision.serial)
    }

    /// Makes a decision if one is due; gives whether there is a new one.
    pub fn tick(&mut self, now: Duration) -> bool {
        if now.saturating_sub(self.began) < LISTENING && self.decided.is_none() {
            return false;
        }
        let since = self.decided.map(|at| now.saturating_sub(at));
        let due = match since {
            None => true,
            Some(since) => since >= PERIOD || (self.news(now) && since >= GAP),
        };
        due && self.decide(now)
    }

    /// Whether something has changed since the last decision; a node that fell silent is news too.
    fn news(&self, now: Duration) -> bool {
        self.changed
            || self.nodes.values().any(|node| {
                let silent = |at: Duration| at.saturating_sub(node.heard) >= NODE_GONE;
                silent(now) && self.decided.is_none_or(|at| !silent(at))
            })
    }

    /// How it all stands, for people and tools.
    #[must_use]
    pub fn overview(&self, allocator: &str, counting: Vec<Counting>, now: Duration) -> Overview {
        Overview {
            allocator: allocator.to_owned(),
            decision: self.decision.clone(),
            reports: self.live(now).cloned().collect(),
            rates: self.estimates.rates(),
            counting,
            gpus: self.config.gpus,
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            cache: None,
            remote_io: self.config.remote_io,
            gpus: self.config.gpus,
        }
    }

    fn live(&self, now: Duration) -> impl Iterator<Item = &NodeReport> + Clone {
        let nodes = self.nodes.values();
        nodes
            .filter(move |node| now.saturating_sub(node.heard) < NODE_GONE)
            .map(|node| &node.report)
    }

    fn cache_total(&self, now: Duration) -> u64 {
        let capacities = self.live(now).map(|report| report.capacity);
        capacities.fold(0, u64::saturating_add)
    }

    /// Solves; gives whether that says something else than before.
    fn decide(&mut self, now: Duration) -> bool {
        self.decided = Some(now);
        self.changed = false;
        self.forget_silent(now);
        let reports: Vec<NodeReport> = self.live(now).cloned().collect();
        self.follow_jobs(&reports, now);
        let homes = homes(&reports);
        let solved = problem::Question {
            registry: &self.registry,
            reports: &reports,
            homes: &homes,
            remote_io: self.config.remote_io,
            gpus: self.config.gpus,
            before: &self.decision,
        }
        .solve(&mut self.estimates);
        let datasets = self.datasets(&homes, &solved.budgets);
        self.recounted.clear();
        let decision = Decision {
            serial: Serial {
                term: self.term,
                count: 1,
            },
            policy: self.registry.policy().to_owned(),
            cache_total: homes
                .iter()
                .fold(0, |sum, home| sum.saturating_add(home.capacity)),
            remote_io_total: self.config.remote_io,
            homes,
            datasets,
            jobs: self.jobs(&reports, &solved),
        };
        self.take(decision)
    }

    /// Makes `decision` the newest, if it says something else than the last one.
    fn take(&mut self, mut decision: Decision) -> bool {
        let before = self.decision.serial;
        if before.term == self.term {
            decision.serial.count = before.count;
            if !rates::says_more(&self.decision, &decision, NOISE) {
                return false;
            }
            decision.serial.count = before.count.saturating_add(1);
        }
        self.decision = decision;
        true
    }

    /// Nodes that have been silent for long are forgotten altogether: the table is bounded by the
    /// member list, and shows no ghosts.
    fn forget_silent(&mut self, now: Duration) {
        let kept = NODE_GONE * 20;
        self.nodes
            .retain(|_, node| now.saturating_sub(node.heard) < kept);
    }

    /// Jobs that are read for, and those that have ended.
    fn follow_jobs(&mut self, reports: &[NodeReport], now: Duration) {
        let by_job = problem::by_job(reports);
        self.ended.retain(|name, ended| {
            if now.saturating_sub(ended.at) < ENDING {
                return true;
            }
            let parts = by_job.get(name.as_str()).map_or(&[][..], Vec::as_slice);
            let live = || parts.iter().filter(|(_, part)| !part.ended);
            let bytes = live().fold(0, |sum: u64, (_, part)| {
                sum.saturating_add(part.total_bytes)
            });
            live().next().is_some() && bytes <= *ended.bytes.get_or_insert(bytes)
        });
        for (name, parts) in &by_job {
            let alive = || parts.iter().filter(|(_, part)| !part.ended);
            let main = alive().max_by_key(|(_, part)| (part.throughput, part.total_bytes));
            if let Some((_, main)) = main
                && !self.ended.contains_key(*name)
            {
                let irregular = alive().any(|(_, part)| part.irregular);
                self.registry.saw_job(name, &main.dataset, irregular);
            }
        }
        let live: BTreeSet<&str> = reports
            .iter()
            .flat_map(|report| &report.jobs)
            .filter(|job| !job.ended)
            .map(|job| job.job.as_str())
            .collect();
        self.registry.keep_seen(|name| live.contains(name));
    }

    fn datasets(&self, homes: &[HomeNode], budgets: &[u64]) -> Vec<DatasetDecision> {
        let same_homes = *homes == *self.decision.homes;
        let mut table: Option<Homes> = None;
        let declared = self.registry.datasets().iter().zip(budgets);
        declared
            .map(|(one, budget)| {
                let before = self.decision.dataset(&one.spec.name);
                let before = before.filter(|before| before.id == one.id && same_homes);
                let homed = match (self.counts.get(&one.id), before) {
                    // Its bytes are where they were. An allocator that has not counted anew yet knows
                    // that from the decision that it took up.
                    (_, Some(before))
                        if !before.homed.is_empty() && !self.recounted.contains(&one.id) =>
                    {
                        before.homed.clone()
                    }
                    (Some(counted), _) => {
                        let table = table.get_or_insert_with(|| Homes::new(homes));
                        homed(counted, table, homes.len())
                    }
                    (None, _) => Vec::new(),
                };
                DatasetDecision {
                    name: one.spec.name.clone(),
                    id: one.id,
                    path: one.spec.path.clone(),
                    uri: one.spec.uri.clone(),
                    size: one.size,
                    items: one.items,
                    index: one.spec.index.clone(),
                    origin_readers: one.spec.origin_readers,
                    pinned: one.spec.budget,
                    budget: *budget,
                    homed,
                    trouble: one.trouble.clone(),
                }
            })
            .collect()
    }

    fn jobs(&self, reports: &[NodeReport], solved: &problem::Solved) -> Vec<JobDecision> {
        let by_job = problem::by_job(reports);
        let nodes = |name: &str, rate: Option<u64>| -> Vec<JobNode> {
            let parts = by_job.get(name).map_or(&[][..], Vec::as_slice);
            rates::over_nodes(rate, &rates::demands(parts))
        };
        let declared = self.registry.jobs().iter().zip(&solved.rates);
        let mut jobs: Vec<JobDecision> = declared
            .map(|(job, rate)| JobDecision {
                name: job.name.clone(),
                dataset: job.dataset.clone(),
                declared: job.declared,
                owner: job.owner,
                ideal_rate: job.ideal_rate,
                gpus: job.gpus,
                epochs: job.epochs,
                irregular: job.irregular,
                pinned: job.pinned,
                remote_io: *rate,
                nodes: nodes(&job.name, *rate),
            })
            .collect();
        let everywhere = rates::unattributed_demands(reports);
        jobs.push(JobDecision {
            name: UNATTRIBUTED.to_owned(),
            dataset: None,
            declared: false,
            owner: None,
            ideal_rate: None,
            gpus: 0,
            epochs: None,
            irregular: true,
            pinned: None,
            remote_io: solved.unattributed,
            nodes: rates::over_nodes(solved.unattributed, &everywhere),
        });
        jobs
    }
}

/// The nodes that store datasets.
fn homes(reports: &[NodeReport]) -> Vec<HomeNode> {
    let storing = reports.iter().filter(|report| report.capacity > 0);
    storing
        .map(|report| HomeNode {
            rank: report.rank,
            name: report.name.clone(),
            capacity: report.capacity,
        })
        .collect()
}

/// Bytes of a dataset at each home: the sums over its slots.
fn homed(counted: &Counted, table: &Homes, homes: usize) -> Vec<u64> {
    let mut bytes = vec![0_u64; homes];
    for (slot, amount) in (0..).zip(&counted.slots) {
        let home = table.home_of_slot(slot);
        if let Some(home) = home.and_then(|home| bytes.get_mut(home)) {
            *home = home.saturating_add(*amount);
        }
    }
    bytes
}

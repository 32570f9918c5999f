//! The allocator: turns declarations and reports into decisions. Pure; time is an argument.
//!
//! Its state is the registry, the newest report of every node, and the counts of the datasets. It makes
//! a decision on every change and each [`SOLVE_INTERVAL`], at most once each [`DECISION_INTERVAL_MIN`],
//! and publishes it only if it differs from the last one. See [`crate::budgets`] for how decisions
//! travel, and [`copperfs_policy`] for the policies.
//!
//! A decision is made in these steps: the homes (live nodes with room for datasets); the resident chunks
//! (`chunks`); the problem (`problem`); the policy; budgets, kept as they are where a move gains nothing (`budgets`); rates,
//! divided among the nodes of each job (`rates`).

use super::counter::Counted;
use super::registry::{Limits, Registry};
use crate::model::{
    BatchReport, Command, CommandError, Counting, DatasetDecision, Decision, ErrorKind, HomeNode,
    JobDecision, JobNode, NodeReport, Overview, Serial, SlotTable, UNATTRIBUTED,
};
use crate::num::saturating_sum;
use copperfs_policy::benefit::{Probing, Report, ReportError};
use copperfs_policy::{Choice, Keep, Mode, Policy};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

mod budgets;
mod chunks;
mod history;
mod pipelines;
mod presumed;
mod problem;
mod rates;
#[cfg(test)]
mod tests;

use chunks::Rotations;
use history::History;
use problem::{Estimates, Question, Solution};

/// How long a node without reports counts as live. After that its slots and its parts of jobs' rates go
/// to other nodes. A node whose parent dies reports again within 3.5 seconds: one second from the last
/// report to the death, two until the death is noticed, and the time to connect elsewhere.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(4);
/// How long an allocator that continues from a decision presumes the nodes of that decision to be live:
/// a node that connects later than others has not lost anything.
pub const PRESUMED_LIVE: Duration = Duration::from_secs(6);
/// The minimum time between two decisions, however many changes there are: the launch of a thousand nodes
/// causes a few decisions and not a thousand.
pub const DECISION_INTERVAL_MIN: Duration = Duration::from_millis(200);
/// How often a decision is made without a change. Within an epoch a job uses up the items that were
/// cached before it, so the hit ratio of its next reads changes all the time, and with it its need for
/// remote IO (§6).
pub const SOLVE_INTERVAL: Duration = Duration::from_secs(5);
/// How long a new allocator listens before it decides. Nodes that hold a decision send it within a report
/// or two.
pub const LISTEN_TIME: Duration = Duration::from_secs(1);
/// The relative change of a rate that is too small for a new decision.
const RATE_NOISE: f64 = 0.01;

/// See the module.
#[derive(Debug)]
pub struct Allocator {
    /// The configured limits. The cache is that of the live nodes.
    limits: Limits,
    registry: Registry,
    /// The name of the configured policy, for a decision whose policy is unknown here.
    configured_policy: String,
    /// By rank.
    nodes: BTreeMap<u32, Node>,
    /// By dataset id. A dataset without an entry is counted, again if its entry was removed. Decisions use
    /// the earlier count until then.
    pub(super) counts: BTreeMap<u64, Counted>,
    /// Datasets whose count is newer than the decision.
    recounted: BTreeSet<u64>,
    estimates: Estimates,
    rotations: Rotations,
    probing: Probing,
    began: Duration,
    /// When it has made its last decision. `None`: it still listens.
    pub(super) decided: Option<Duration>,
    changed: bool,
    term: u64,
    decision: Decision,
    /// The last commands to this allocator. They are applied again if it adopts a decision later.
    commands: VecDeque<Command>,
    /// Jobs that were ended by command. Nodes report them until their processes have been gone for a
    /// while, and must not bring them back as observed jobs.
    ended: BTreeMap<String, EndedByCommand>,
    history: History,
}

#[derive(Clone, Copy, Debug)]
struct EndedByCommand {
    at: Duration,
    /// The bytes that it had read [`END_SETTLED`] later.
    bytes: Option<u64>,
}

/// The newest report of a node.
#[derive(Debug)]
struct Node {
    report: NodeReport,
    heard: Duration,
    /// The node's previous process, whose reports may still arrive.
    earlier_boot: Option<u64>,
    /// The report was made up from an adopted decision.
    is_presumed: bool,
}

/// When the bytes that an ended job has read are known: after one report and its way up, with room. If
/// the job reads more after that, it continues.
const END_SETTLED: Duration = Duration::from_secs(4);

/// The maximum number of commands that are kept: more than people issue within the seconds in which an
/// older decision may still arrive. The oldest is dropped first.
const COMMANDS_MAX: usize = 256;

impl Allocator {
    /// Creates an allocator at the time `now`, as the root of `tree`. `limits` are those of remote IO and
    /// GPUs. `configured` is the registry for a cluster in which no node holds a decision.
    ///
    /// If two allocators start without a decision and do not know of each other, both adopt the decision
    /// of the later tree when they meet, and apply the other's commands again.
    #[must_use]
    pub fn new(limits: Limits, configured: Registry, tree: usize, now: Duration) -> Self {
        Self {
            limits,
            configured_policy: configured.policy().to_owned(),
            registry: configured,
            nodes: BTreeMap::new(),
            counts: BTreeMap::new(),
            recounted: BTreeSet::new(),
            estimates: Estimates::default(),
            rotations: Rotations::default(),
            probing: Probing::default(),
            began: now,
            decided: None,
            changed: true,
            term: u64::try_from(tree).unwrap_or(0).saturating_add(1),
            decision: Decision::default(),
            commands: VecDeque::new(),
            ended: BTreeMap::new(),
            history: History::default(),
        }
    }

    /// Returns the newest decision, with the serial 0.0 before the first one.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Continues from `held`, a decision of some node, if it is newer than this allocator's: keeps its
    /// declarations, jobs and manual settings, and decides in a later term.
    pub fn adopt(&mut self, held: &Decision, now: Duration) {
        if held.serial <= self.decision.serial {
            return;
        }
        self.registry = Registry::of(held);
        // Another version of copperfs may have policies that this one does not have.
        let policy = self.registry.policy().to_owned();
        if self.registry.set_policy(&policy).is_err() {
            drop(self.registry.set_policy(&self.configured_policy));
        }
        for command in std::mem::take(&mut self.commands) {
            // A command that `held` contradicts is older than it.
            drop(self.registry.apply(&command, &Limits::default()));
        }
        self.term = held.serial.term.saturating_add(1);
        self.decision = held.clone();
        self.changed = true;
        // Treat the decision's nodes as if they had just reported. Their own reports replace this.
        let age = now.saturating_sub(self.began);
        let remaining = PRESUMED_LIVE.saturating_sub(age);
        self.rotations.rest(now + remaining);
        let measured = held.jobs.iter().filter_map(|job| job.measured.clone());
        self.probing.restore(measured.collect(), now);
        for report in presumed::reports(held) {
            self.nodes.entry(report.rank).or_insert(Node {
                report,
                // Possibly in the future, so that the node times out when the remaining time has passed.
                heard: (now + remaining).saturating_sub(NODE_TIMEOUT),
                earlier_boot: None,
                is_presumed: true,
            });
        }
    }

    /// Records a node's report, unless a newer one of the same process is known.
    pub fn record(&mut self, report: NodeReport, now: Duration) {
        let known = self.nodes.get(&report.rank);
        let same = known.filter(|known| known.report.boot == report.boot);
        // Boots have no order, so only the boot before the current one can be recognised as old.
        let stale = known.is_some_and(|known| known.earlier_boot == Some(report.boot));
        if stale || same.is_some_and(|known| known.report.count >= report.count) {
            return;
        }
        self.changed |= known.is_none_or(|known| {
            // Budgets may move again.
            known.is_presumed
                || problem::differs(&known.report, &report)
                || now.saturating_sub(known.heard) >= NODE_TIMEOUT
        });
        let earlier_boot = match same {
            Some(same) => same.earlier_boot,
            None => known.map(|known| known.report.boot),
        };
        let before = known.filter(|known| !known.is_presumed);
        self.history
            .record(before.map(|known| &known.report), &report);
        let node = Node {
            heard: now,
            earlier_boot,
            is_presumed: false,
            report,
        };
        self.nodes.insert(node.report.rank, node);
    }

    /// Records the count of a dataset.
    pub fn counted(&mut self, id: u64, counted: Counted) {
        // The count of a dataset that was removed meanwhile would stop the count of its next declaration.
        if self.registry.counted(id, &counted) {
            self.changed = true;
            self.counts.insert(id, counted);
            // The bytes at homes may differ although the homes are the same.
            self.recounted.insert(id);
        }
    }

    /// Records why a dataset cannot be counted.
    pub fn count_failed(&mut self, id: u64, trouble: String) {
        self.changed |= self.registry.count_failed(id, trouble);
    }

    /// Returns the datasets that this allocator has not counted yet.
    pub fn uncounted(&self) -> impl Iterator<Item = &DatasetDecision> {
        let datasets = self.decision.datasets.iter();
        datasets.filter(|dataset| !self.counts.contains_key(&dataset.id))
    }

    /// Carries out `command` and makes a decision. Returns the serial of that decision.
    ///
    /// # Errors
    /// The command is refused, and nothing changes.
    pub fn command(&mut self, command: &Command, now: Duration) -> Result<Serial, CommandError> {
        let capacities = self.live(now).map(|report| report.capacity);
        let limits = Limits {
            // The total is unknown before the first report.
            cache: (!self.nodes.is_empty()).then(|| saturating_sum(capacities)),
            ..self.limits
        };
        self.registry.apply(command, &limits)?;
        match command {
            Command::ReplaceDataset(spec) => {
                // The new declaration may name another index, so the dataset is counted again.
                let id = DatasetDecision::id_of(&spec.name, &spec.path);
                self.counts.remove(&id);
            }
            Command::EndJob(name) => {
                let (at, bytes) = (now, None);
                self.ended
                    .insert(name.clone(), EndedByCommand { at, bytes });
            }
            Command::AddJob(spec) => drop(self.ended.remove(&spec.name)),
            Command::SetResources(resources) => self.limits = Limits::of(*resources),
            _ => {}
        }
        if self.commands.len() == COMMANDS_MAX {
            self.commands.pop_front();
        }
        self.commands.push_back(command.clone());
        // Without regard to the minimum interval, because the caller waits for this decision.
        self.decide(now);
        Ok(self.decision.serial)
    }

    /// Records how long a job took for some mini-batches. Returns the serial of the current decision. Only
    /// the policy `benefit` uses them.
    ///
    /// # Errors
    /// The dataset is not declared, the report cannot be true, or there are too many jobs.
    pub fn report_batches(
        &mut self,
        report: &BatchReport,
        now: Duration,
    ) -> Result<Serial, CommandError> {
        // Times for an undeclared dataset would be recorded as those of a job without a cache.
        self.registry.named(&report.dataset)?;
        // A dataset that has just been declared may not be in the decision yet: nothing of it is kept.
        let dataset = self.decision.dataset(&report.dataset);
        let report = Report {
            job: &report.job,
            mode: report.mode,
            choice: dataset.map_or(Choice::None, DatasetDecision::choice),
            ranks: report.ranks,
            batches: report.batches,
            seconds: report.seconds,
            hits: report.hits,
            misses: report.misses,
        };
        let refused = |error: ReportError| {
            let advice = "Report the mini-batches since the last report";
            CommandError::new(ErrorKind::Invalid, error.to_string(), advice)
        };
        match self.measures() {
            true => self.changed |= self.probing.record(&report, now).map_err(refused)?,
            false => report.check().map_err(refused)?,
        }
        Ok(self.decision.serial)
    }

    /// Returns whether jobs are measured.
    fn measures(&self) -> bool {
        self.registry.policy() == Policy::Benefit.name()
    }

    /// Makes a decision if one is due. Returns whether there is a new one.
    pub fn tick(&mut self, now: Duration) -> bool {
        if self.measures() {
            self.changed |= self.probing.tick(now);
        }
        let due = match self.decided {
            None => now.saturating_sub(self.began) >= LISTEN_TIME,
            Some(at) => {
                let since = now.saturating_sub(at);
                since >= SOLVE_INTERVAL
                    || (since >= DECISION_INTERVAL_MIN && self.changed_since(at, now))
            }
        };
        due && self.decide(now)
    }

    /// Returns whether anything has changed since the decision at `at`, including a node's timeout.
    fn changed_since(&self, at: Duration, now: Duration) -> bool {
        let silent = |node: &Node, at: Duration| at.saturating_sub(node.heard) >= NODE_TIMEOUT;
        let mut nodes = self.nodes.values();
        self.changed
            || self.rotations.is_due(at, now)
            || nodes.any(|node| silent(node, now) && !silent(node, at))
    }

    /// Returns the current state, for people and tools.
    #[must_use]
    pub fn overview(&self, allocator: &str, counting: Vec<Counting>, now: Duration) -> Overview {
        Overview {
            allocator: allocator.to_owned(),
            decision: self.decision.clone(),
            reports: self.live(now).cloned().collect(),
            rates: self.estimates.0.clone(),
            ended: self.history.ended(now),
            counting,
            gpus: self.limits.gpus,
        }
    }

    fn live(&self, now: Duration) -> impl Iterator<Item = &NodeReport> {
        self.live_nodes(now).map(|node| &node.report)
    }

    fn live_nodes(&self, now: Duration) -> impl Iterator<Item = &Node> {
        let nodes = self.nodes.values();
        nodes.filter(move |node| now.saturating_sub(node.heard) < NODE_TIMEOUT)
    }

    /// Makes a decision. Returns whether it differs from the last one.
    fn decide(&mut self, now: Duration) -> bool {
        self.decided = Some(now);
        self.changed = false;
        let declared: BTreeSet<u64> = self.registry.datasets().iter().map(|one| one.id).collect();
        self.counts.retain(|id, _| declared.contains(id));
        // Nodes that have been silent for long are forgotten, so the member list bounds the table.
        self.nodes
            .retain(|_, node| now.saturating_sub(node.heard) < NODE_TIMEOUT * 20);
        let reports: Vec<NodeReport> = self.live(now).cloned().collect();
        self.follow_jobs(&reports, now);
        let home = |report: &NodeReport| HomeNode {
            rank: report.rank,
            name: report.name.clone(),
            capacity: report.capacity,
        };
        let storing = reports.iter().filter(|report| report.capacity > 0);
        let homes: Vec<HomeNode> = storing.map(home).collect();
        if self.measures() {
            let registry = &self.registry;
            self.probing.retain(|job| registry.job(job).is_some());
        } else {
            self.probing = Probing::default();
        }
        // The ideal rates of jobs on nodes that have not reported yet are unknown.
        let holds = self.live_nodes(now).any(|node| node.is_presumed);
        let solution = Question {
            registry: &self.registry,
            reports: &reports,
            homes: &homes,
            limits: self.limits,
            before: &self.decision,
            holds,
            probing: &self.probing,
        }
        .solve(&mut self.estimates);
        let declared = self.registry.datasets().iter().zip(&solution.choices);
        let chunked = declared.filter(|(dataset, choice)| match dataset.keep {
            Keep::Chunks => true,
            Keep::Auto => **choice == Choice::Chunks,
            Keep::Uniform | Keep::References | Keep::None => false,
        });
        let chunked: Vec<&DatasetDecision> = chunked.map(|(dataset, _)| dataset).collect();
        (self.rotations).decide(&chunked, &homes, &reports, &self.decision, now);
        let datasets = self.datasets(&homes, &reports, &solution.budgets);
        self.recounted.clear();
        let before = self.decision.serial;
        let same_term = before.term == self.term;
        let mut decision = Decision {
            serial: before,
            policy: self.registry.policy().to_owned(),
            cache_total: saturating_sum(homes.iter().map(|home| home.capacity)),
            remote_io_total: self.limits.remote_io,
            homes,
            datasets,
            jobs: self.jobs(&reports, &solution),
        };
        let differs = !same_term || rates::differs(&self.decision, &decision, RATE_NOISE);
        if differs {
            let last = if same_term { before.count } else { 0 };
            let (term, count) = (self.term, last.saturating_add(1));
            decision.serial = Serial { term, count };
            self.decision = decision;
        }
        let Decision { jobs, serial, .. } = &self.decision;
        self.history.follow(jobs, &reports, *serial, now);
        differs
    }

    /// Adds jobs that nodes report, and removes observed jobs that have ended.
    fn follow_jobs(&mut self, reports: &[NodeReport], now: Duration) {
        let by_job = problem::by_job(reports);
        let live = |name: &str| by_job.get(name).filter(|parts| !parts.is_empty());
        self.ended.retain(|name, ended| {
            if now.saturating_sub(ended.at) < END_SETTLED {
                return true;
            }
            live(name).is_some_and(|parts| {
                let bytes = saturating_sum(parts.iter().map(|(_, part)| part.total_bytes));
                bytes <= *ended.bytes.get_or_insert(bytes)
            })
        });
        for (name, parts) in &by_job {
            // A job that reads several datasets is planned with the one that it reads most.
            let main = parts
                .iter()
                .max_by_key(|(_, part)| (part.throughput, part.total_bytes));
            let Some((_, main)) = main else { continue };
            if !self.ended.contains_key(*name) {
                let irregular = parts.iter().any(|(_, part)| part.irregular);
                self.registry.observe_job(name, &main.dataset, irregular);
            }
        }
        self.registry.retain_observed(|name| live(name).is_some());
    }

    fn datasets(
        &self,
        homes: &[HomeNode],
        reports: &[NodeReport],
        budgets: &[u64],
    ) -> Vec<DatasetDecision> {
        let same_homes = *homes == *self.decision.homes;
        // An allocator that has not counted yet knows the bytes from the decision that it has adopted.
        let unchanged = |one: &DatasetDecision| {
            let before = self.decision.dataset(&one.name)?;
            let known = same_homes && before.id == one.id && !before.homed.is_empty();
            (known && !self.recounted.contains(&one.id)).then(|| before.homed.clone())
        };
        let mut table: Option<SlotTable> = None;
        let mut summed = |one: &DatasetDecision| {
            let counted = self.counts.get(&one.id)?;
            let table = table.get_or_insert_with(|| SlotTable::new(homes));
            Some(homed(counted, table, homes.len()))
        };
        let declared = self.registry.datasets().iter().zip(budgets);
        declared
            .map(|(one, budget)| DatasetDecision {
                budget: *budget,
                homed: unchanged(one).or_else(|| summed(one)).unwrap_or_default(),
                resident: self.rotations.resident(one.id),
                owners: pipelines::owners(one, reports),
                ..one.clone()
            })
            .collect()
    }

    fn jobs(&self, reports: &[NodeReport], solution: &Solution) -> Vec<JobDecision> {
        let by_job = problem::by_job(reports);
        let nodes = |name: &str, rate: Option<u64>| -> Vec<JobNode> {
            let parts = by_job.get(name).map_or(&[][..], Vec::as_slice);
            // A job's rate is divided among its nodes by their demands.
            rates::over_nodes(rate, &rates::demands(parts))
        };
        let given = solution.rates.iter().zip(&solution.modes);
        let declared = self.registry.jobs().iter().zip(given);
        let mut jobs: Vec<JobDecision> = declared
            .map(|(job, (rate, mode))| JobDecision {
                mode: match self.probing.mode(&job.name) {
                    Mode::Probe => Mode::Probe,
                    known => mode.unwrap_or(known),
                },
                measured: self.probing.state_of(&job.name),
                remote_io: *rate,
                nodes: nodes(&job.name, *rate),
                ..job.clone()
            })
            .collect();
        let everywhere = rates::unattributed_demands(reports);
        // Reads that belong to no job have a rate on every node.
        jobs.push(JobDecision {
            gpus: 0,
            irregular: true,
            remote_io: solution.unattributed,
            nodes: rates::over_nodes(solution.unattributed, &everywhere),
            ..JobDecision::observed(UNATTRIBUTED)
        });
        jobs
    }
}

/// Returns the bytes of a dataset homed on each node: sums over slots.
fn homed(counted: &Counted, table: &SlotTable, homes: usize) -> Vec<u64> {
    let mut bytes = vec![0_u64; homes];
    for (slot, amount) in (0..).zip(&counted.slots) {
        let home = table.home_of_slot(slot);
        if let Some(home) = home.and_then(|home| bytes.get_mut(home)) {
            *home = home.saturating_add(*amount);
        }
    }
    bytes
}

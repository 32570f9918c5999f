//! `copperfs launch`: starts every node of a tree, or none.
//!
//! Makes the job secret, gives every node its options (host list and rank among them) and the secret
//! over a pipe, waits until all answer, and takes down what it started when one does not.

mod bundle;
mod local;
pub(super) mod remote;
mod summary;
pub(super) mod together;

pub use bundle::{Answer, Bundle, start_here, start_node};

use super::flags::LaunchFlags;
use super::record::{Kind, Node, Record};
use super::stats::{self, ClusterReports};
use super::{fail, say, teardown};
use crate::config::hosts::launcher::Launcher;
use crate::config::network::topology;
use crate::config::{ConfigError, Layer, Machine, Source, file, hosts, keys, origins};
use crate::daemon::runtime_dir;
use crate::process::leave_no_core;
use anyhow::{Context, bail, ensure};
use copperfs_overlay::Secret;
use copperfs_overlay::loopback::Port;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Nodes that are being started or ended at a time.
const PARALLEL: usize = 64;

/// How long the tree may take to find together once every mount answers.
const TREE_TIMEOUT: Duration = Duration::from_secs(30);

/// How launches reach other hosts.
#[derive(Debug, clap::Args)]
pub struct LaunchArgs {
    #[command(flatten)]
    flags: LaunchFlags,
    /// The command that runs a program on another host: its host name and one command line follow
    #[arg(
        long,
        value_name = "COMMAND",
        default_value = "ssh -o BatchMode=yes -o ConnectTimeout=10"
    )]
    ssh: String,
    /// One command that runs a program on all hosts at once, with its standard input given to each, in
    /// place of --ssh; {nodes} in it is their number. ssh: none [default: with --hosts slurm an srun,
    /// with --hosts mpi an mpirun that run one task a node]
    #[arg(long, value_name = "COMMAND")]
    starter: Option<String>,
    /// A directory that all hosts see, for a --starter that does not give its standard input to each: the
    /// options and the secret stand there in a file of mode 0600 until all nodes are up [default: with
    /// --hosts mpi the home directory, otherwise none]
    #[arg(long, value_name = "DIR")]
    bundle_dir: Option<PathBuf>,
    /// Path of copperfs on the other hosts [default: the same as here]
    #[arg(long, value_name = "PATH")]
    remote_program: Option<String>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// How a launch reaches other hosts.
struct Reach {
    /// One by one.
    ssh: Vec<String>,
    /// All at once; empty: not that way.
    starter: Vec<String>,
    /// Path of copperfs there.
    program: String,
    /// Where all hosts find a file.
    bundle_dir: Option<PathBuf>,
}

/// A launch before it happens.
struct Plan {
    record: Record,
    /// What all nodes are told.
    layer: Layer,
    /// The host list, in the short form: every node gets all of it.
    hosts: String,
    /// Where each node listens, if that is decided here. Held until the nodes listen there.
    ports: Vec<Port>,
    secret: String,
    environment: BTreeMap<String, String>,
    /// Where nodes find what they are started with, if it does not come over a pipe.
    bundle_dir: Option<PathBuf>,
}

/// Starts all nodes.
///
/// # Errors
/// One node did not come up: which, and why. Those that had are taken down again.
pub fn launch(args: LaunchArgs) -> anyhow::Result<()> {
    leave_no_core();
    let machine = Machine::inspect();
    let layer = args.flags.gather(&machine)?;
    let ssh: Vec<String> = args.ssh.split_whitespace().map(ToOwned::to_owned).collect();
    ensure!(!ssh.is_empty(), "--ssh names no command");
    let program = match args.remote_program {
        Some(program) => program,
        None => std::env::current_exe()?.display().to_string(),
    };
    let launcher = layer.text("hosts").and_then(Launcher::named);
    let reach = Reach {
        ssh,
        starter: together::starter(args.starter.as_deref(), launcher).unwrap_or_default(),
        program,
        bundle_dir: args.bundle_dir.or_else(|| {
            let home = || machine.variables.get("HOME").map(PathBuf::from);
            (launcher == Some(Launcher::Mpi)).then(home).flatten()
        }),
    };
    let plan = Plan::make(layer, &machine, reach)?;
    let before = Record::load(&plan.record.mountpoint, &machine)?;
    // Written first: whatever happens to this process, unmount --all finds what it started.
    plan.record.save(&machine)?;
    let launched = plan.run(&machine).and_then(|answers| {
        let reports = plan.wait_for_tree().inspect_err(|_| {
            let all: Vec<usize> = (0..plan.record.nodes.len()).collect();
            plan.take_down(&all, &machine);
        })?;
        Ok((answers, reports))
    });
    let (answers, reports) = match launched {
        Ok(launched) => launched,
        Err(error) => {
            match before {
                Some(before) => before.save(&machine)?,
                None => plan.record.remove(&machine),
            }
            return Err(error);
        }
    };
    if args.json {
        say(serde_json::to_string_pretty(&summary::json(
            &plan.record,
            &answers,
        ))?);
    } else {
        say(summary::text(&plan.record, &answers, &reports));
    }
    Ok(())
}

impl Plan {
    fn make(mut layer: Layer, machine: &Machine, reach: Reach) -> anyhow::Result<Self> {
        let place = layer.place("hosts");
        let given = layer
            .remove("hosts")
            .and_then(|given| given.values.into_iter().next());
        let Some(given) = given.filter(|hosts| !hosts.text.is_empty()) else {
            bail!(
                "no --hosts given: --hosts local:4 starts four nodes here, --hosts FILE one on each host"
            );
        };
        let base = PathBuf::from(layer.text("mountpoint").unwrap_or("/"));
        let (kind, mut nodes, ports) = match given.text.strip_prefix("local:") {
            Some(count) => local::nodes(count, &base)?,
            None => {
                let wrong = |why: String| ConfigError::Value {
                    place: place.clone(),
                    why,
                };
                let asks = Launcher::named(&given.text) == Some(Launcher::Mpi);
                let list = if asks && !reach.starter.is_empty() {
                    together::ask_hosts(&reach.starter, &reach.program, machine)?.join(",") + ","
                } else {
                    given.text
                };
                let (kind, nodes) = remote::nodes(&list, &base, machine, wrong)?;
                let all_at_once = !reach.starter.is_empty();
                (
                    if all_at_once { Kind::Together } else { kind },
                    nodes,
                    Vec::new(),
                )
            }
        };
        if kind == Kind::Local {
            for key in ["interface", "host_suffix", "topology"] {
                layer.remove(key);
            }
        }
        order(&mut layer, &mut nodes)?;
        let secret = new_secret(machine)?;
        // The comma marks a list even if it has one entry.
        let hosts = hosts::fold(nodes.iter().map(|node| node.name.as_str())) + ",";
        let id = blake3::hash(secret.as_bytes()).to_hex()[..32].to_owned();
        let environment = if reads_objects(&layer) {
            machine.storage_environment()
        } else {
            BTreeMap::new()
        };
        Ok(Self {
            record: Record {
                id,
                kind,
                mountpoint: base,
                nodes,
                ssh: reach.ssh,
                starter: reach.starter,
                program: reach.program,
            },
            layer,
            hosts,
            ports,
            secret,
            environment,
            bundle_dir: reach.bundle_dir,
        })
    }

    /// Below which each node of this machine has its data mount, as it has its mount point.
    fn data_mount_base(&self) -> Option<PathBuf> {
        let base = self
            .layer
            .text("data_mount")
            .filter(|base| !base.is_empty())?;
        (self.record.kind == Kind::Local).then(|| PathBuf::from(base))
    }

    /// What the node of rank `rank` is started with, or every node. Made one by one: each holds the
    /// whole host list.
    fn bundle(&self, rank: Option<usize>) -> Bundle {
        let mut layer = self.layer.clone();
        let mut set = |key, value| layer.set(key, Source::Flag, vec![value]);
        set("hosts", self.hosts.clone());
        set("mountpoint", self.record.mountpoint.display().to_string());
        if let Some(rank) = rank {
            set("rank", rank.to_string());
            let mountpoint = &self.record.nodes[rank].mountpoint;
            set("mountpoint", mountpoint.display().to_string());
            if let Some(base) = self.data_mount_base() {
                set(
                    "data_mount",
                    base.join(rank.to_string()).display().to_string(),
                );
            }
            if let Some(port) = self.ports.get(rank) {
                set("listen", port.address().to_string());
            }
        }
        Bundle {
            launch: self.record.id.clone(),
            options: file::render(&layer),
            secret: self.secret.clone(),
            environment: self.environment.clone(),
        }
    }

    /// Starts all, or takes down what came up. After the first failure the others are not waited for:
    /// below a parent that is not there they would only run into their timeouts.
    fn run(&self, machine: &Machine) -> anyhow::Result<Vec<Answer>> {
        let nodes = &self.record.nodes;
        if self.record.kind == Kind::Together {
            return self.run_together(machine);
        }
        let mut answers: Vec<Option<Answer>> = vec![None; nodes.len()];
        let mut failed = Vec::new();
        let given_up = AtomicBool::new(false);
        let (sender, outcomes) = mpsc::sync_channel(nodes.len());
        std::thread::scope(|scope| {
            let given_up = &given_up;
            scope.spawn(move || {
                in_parallel(nodes.len(), |rank| {
                    if !given_up.load(Ordering::Relaxed) {
                        // The receiver is there until all have sent.
                        let _received = sender.send((rank, self.start(rank, machine)));
                    }
                    Ok(())
                })
            });
            let mut progress = Progress::new(nodes.len());
            while let Some((rank, outcome)) = next(&outcomes, !failed.is_empty()) {
                match outcome {
                    Ok(answer) => answers[rank] = Some(answer),
                    Err(error) => failed.push((rank, error)),
                }
                progress.step();
            }
            drop(progress);
            if failed.is_empty() {
                return;
            }
            given_up.store(true, Ordering::Relaxed);
            // Ends also those that are still starting (what they say then is our own doing), and
            // nothing that this launch has not started.
            let is_down = |rank: &usize| failed.iter().any(|(failed, _)| failed == rank);
            let others: Vec<usize> = (0..nodes.len()).filter(|rank| !is_down(rank)).collect();
            self.take_down(&others, machine);
            let late: Vec<usize> = outcomes
                .iter()
                .filter_map(|(rank, outcome)| outcome.is_ok().then_some(rank))
                .collect();
            self.take_down(&late, machine);
        });
        if failed.is_empty() {
            return Ok(answers.into_iter().flatten().collect());
        }
        failed.sort_by_key(|(rank, _)| *rank);
        let name = |rank: usize| nodes[rank].name.clone();
        let failed = failed.into_iter().map(|(rank, error)| (name(rank), error));
        Err(self.explain(failed.collect()))
    }

    /// As [`Self::run`], by one command.
    fn run_together(&self, machine: &Machine) -> anyhow::Result<Vec<Answer>> {
        let nodes = &self.record.nodes;
        let mut progress = Progress::new(nodes.len());
        let (bundle, dir) = (self.bundle(None), self.bundle_dir.as_deref());
        let started = together::start(&self.record, &bundle, dir, machine, || progress.step());
        drop(progress);
        let (mut outcomes, mut running) = started?;
        if outcomes.failed.is_empty() {
            outcomes.up.sort_by_key(|answer| answer.rank);
            let in_order = (0..nodes.len()).eq(outcomes.up.iter().map(|answer| answer.rank));
            if in_order {
                return Ok(outcomes.up);
            }
            let why = "the tasks do not have one rank each: does --starter run one task a node?";
            let who = self.record.starter.join(" ");
            outcomes.failed.push((who, anyhow::Error::msg(why)));
        }
        self.take_down(&(0..nodes.len()).collect::<Vec<_>>(), machine);
        running.end();
        Err(self.explain(outcomes.failed))
    }

    fn start(&self, rank: usize, machine: &Machine) -> anyhow::Result<Answer> {
        match self.record.kind {
            Kind::Local => start_here(&self.bundle(Some(rank)), machine),
            Kind::Remote | Kind::Together => {
                remote::start(&self.record, rank, &self.bundle(Some(rank)))
            }
        }
    }

    /// The first failures by name; equal ones together.
    fn explain(&self, failed: Vec<(String, anyhow::Error)>) -> anyhow::Error {
        let mut by_text: Vec<(String, Vec<String>)> = Vec::new();
        let count = failed.len();
        for (name, error) in failed {
            let text = super::explained(&error);
            match by_text.iter_mut().find(|(known, _)| *known == text) {
                Some((_, names)) => names.push(name),
                None => by_text.push((text, vec![name])),
            }
        }
        let nodes = &self.record.nodes;
        let mut message = format!("{count} of {} nodes did not come up", nodes.len());
        for (text, all) in by_text.iter().take(4) {
            let names = &all[..all.len().min(4)];
            let more = all.len().saturating_sub(4);
            let more = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            message.push_str(&format!("\n  {}{more}: {text}", names.join(", ")));
        }
        if count < nodes.len() {
            message.push_str("\nthe others have been taken down again");
        }
        anyhow::Error::msg(message)
    }

    fn take_down(&self, ranks: &[usize], machine: &Machine) {
        let nodes = &self.record.nodes;
        if self.record.kind == Kind::Together {
            let flags = ["--of-launch", &self.record.id];
            let failures = match together::unmount(&self.record, &flags, machine) {
                Ok(said) => said
                    .into_iter()
                    .filter_map(|(name, outcome)| Some((name, outcome.err()?)))
                    .collect(),
                Err(error) => vec![("what was started".to_owned(), error)],
            };
            for (name, error) in failures {
                let why = super::explained(&error);
                fail(format_args!("warning: {name} is left behind: {why}"));
            }
            return;
        }
        let outcomes = in_parallel(ranks.len(), |index| {
            let node = &nodes[ranks[index]];
            match self.record.kind {
                Kind::Local => {
                    teardown::of_launch(&node.mountpoint, &self.record.id, machine).map(drop)
                }
                Kind::Remote | Kind::Together => remote::unmount_own(&self.record, node),
            }
        });
        for (index, outcome) in outcomes.into_iter().enumerate() {
            if let Err(error) = outcome {
                let name = &nodes[ranks[index]].name;
                fail(format_args!(
                    "warning: {name} is left behind: {}",
                    super::explained(&error)
                ));
            }
        }
    }
}

impl Plan {
    /// Waits until the tree has found together. Nodes that were started together have said so: a mount
    /// answers when its parent does. Then the reports, as far as they are to be had here.
    fn wait_for_tree(&self) -> anyhow::Result<ClusterReports> {
        if self.record.kind == Kind::Together {
            let nothing = ClusterReports {
                nodes: Vec::new(),
                missing: Vec::new(),
                list: None,
            };
            return Ok(stats::cluster_reports(&self.record.mountpoint).unwrap_or(nothing));
        }
        wait_for_tree(&self.record)
    }
}

/// The next outcome; `None` when there are no more, or, after a failure, when no other one follows
/// closely (a mistake in the options fails everywhere at once).
fn next<T>(outcomes: &mpsc::Receiver<T>, failed: bool) -> Option<T> {
    const CLOSELY: Duration = Duration::from_millis(500);
    if failed {
        outcomes.recv_timeout(CLOSELY).ok()
    } else {
        outcomes.recv().ok()
    }
}

/// A line on the terminal that counts, if there is a terminal; gone when dropped.
struct Progress {
    shown: bool,
    done: usize,
    of: usize,
}

impl Progress {
    fn new(of: usize) -> Self {
        let shown = std::io::stderr().is_terminal();
        Self { shown, done: 0, of }
    }

    fn step(&mut self) {
        self.done += 1;
        if self.shown {
            let (done, of) = (self.done, self.of);
            let _no_terminal = write!(std::io::stderr(), "\r{done} of {of} nodes");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _no_terminal = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Whether an origin is an object store, whose credentials the nodes need.
fn reads_objects(layer: &Layer) -> bool {
    let origins = layer.get("origin").map_or(&[][..], |given| &given.values);
    origins
        .iter()
        .any(|origin| !origins::split(&origin.text).1.starts_with("file://"))
}

/// A new secret, as the content of its file. It is only ever written to files of mode 0600.
fn new_secret(machine: &Machine) -> anyhow::Result<String> {
    let dir = machine.runtime_base().join("launches");
    runtime_dir::prepare(&dir)?;
    let path = dir.join(format!("secret.{}", std::process::id()));
    let _absent = std::fs::remove_file(&path);
    Secret::write_new(&path)?;
    let text = std::fs::read_to_string(&path);
    let _removed = std::fs::remove_file(&path);
    text.with_context(|| format!("cannot read back {}", path.display()))
}

/// Runs `work` for 0 to `count` - 1 on a bounded number of threads; the outcomes in order.
fn in_parallel<T: Send>(
    count: usize,
    work: impl Fn(usize) -> anyhow::Result<T> + Sync,
) -> Vec<anyhow::Result<T>> {
    let next = AtomicUsize::new(0);
    // Held only to put an outcome down; no order with other locks.
    let outcomes: Mutex<Vec<(usize, anyhow::Result<T>)>> = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..count.min(PARALLEL) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    let outcome = work(index);
                    let mut outcomes = outcomes.lock();
                    outcomes.push((index, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner();
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Orders `nodes` by the topology that `layer` names, and puts in its place what they need of it to count
/// crossing edges: they may not have the file.
fn order(layer: &mut Layer, nodes: &mut Vec<Node>) -> anyhow::Result<()> {
    let Some(given) = layer.text("topology").filter(|text| !text.is_empty()) else {
        return Ok(());
    };
    let wrong = |key: &'static str, why: String| ConfigError::Value {
        place: layer.place(key),
        why,
    };
    let topology = topology(given, |why| wrong("topology", why))?;
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let members = hosts::parse(&(names.join(",") + ","), hosts::DEFAULT_PORT)?;
    let default = keys::find("arity").map_or("", |key| key.default);
    let arity = layer.text("arity").unwrap_or(default);
    let arity = arity
        .parse()
        .map_err(|error| wrong("arity", format!("{arity:?}: {error}")))?;
    let roots = layer.text("roots").and_then(|text| text.parse().ok());
    let roots = roots.unwrap_or(1).clamp(1, members.len());
    let (order, _) = topology.order(&members, arity, roots);
    let ordered = order.iter().map(|given| nodes[*given].clone()).collect();
    *nodes = ordered;
    layer.set("topology", Source::Flag, vec![topology.text_for(&members)]);
    Ok(())
}

/// Waits until the root hears of every node.
fn wait_for_tree(record: &Record) -> anyhow::Result<ClusterReports> {
    let wanted = record.nodes.len();
    let root = &record.nodes[0];
    let (_never, pause) = mpsc::sync_channel::<()>(0);
    let tries = TREE_TIMEOUT.as_millis() / 200;
    let mut last = None;
    for _ in 0..tries {
        let asked = match record.kind {
            Kind::Local => stats::cluster_reports(&root.mountpoint),
            Kind::Remote | Kind::Together => remote::cluster_reports(record),
        };
        match asked {
            Ok(reports) if reports.nodes.len() >= wanted => return Ok(reports),
            other => last = Some(other),
        }
        let _elapsed = pause.recv_timeout(Duration::from_millis(200));
    }
    match last {
        Some(Ok(reports)) => {
            let heard: Vec<Option<u64>> = reports.nodes.iter().map(|node| node.rank()).collect();
            let silent: Vec<&str> = (0_u64..)
                .zip(&record.nodes)
                .filter(|(rank, _)| !heard.contains(&Some(*rank)))
                .map(|(_, node)| node.name.as_str())
                .collect();
            bail!(
                "every mount answers, but the root does not hear of {} within {TREE_TIMEOUT:?}: is \
                 UDP between the nodes open? The launch has been taken down again",
                silent.join(", ")
            )
        }
        Some(Err(error)) => Err(error).context("the root does not say which nodes it has"),
        None => bail!("the root was never asked"),
    }
}

/// The members of a list for ssh: names for people, hosts to reach.
fn members(
    list: &str,
    wrong: impl Fn(String) -> ConfigError,
) -> Result<Vec<(String, String)>, ConfigError> {
    let members = hosts::parse(list, hosts::DEFAULT_PORT).map_err(|e| wrong(e.to_string()))?;
    Ok(members
        .iter()
        .map(|member| (member.name.clone(), hosts::host_of(member).to_owned()))
        .collect())
}

//! `copperfs launch`: starts every node of a tree, or none.
//!
//! Makes the job secret, gives every node its options (host list and rank among them) and the secret
//! over a pipe, waits until all answer, and takes all nodes down if one does not.

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
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Nodes that are started or ended at a time.
const PARALLEL: usize = 64;

/// How long the tree may take to connect after every mount answers.
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
    /// The command that reaches one host.
    ssh: Vec<String>,
    /// The command that runs a program on all hosts; empty to use `ssh`.
    starter: Vec<String>,
    /// The path of copperfs on the hosts.
    program: String,
    /// A directory that all hosts see.
    bundle_dir: Option<PathBuf>,
}

/// A prepared launch.
struct Plan {
    record: Record,
    /// The options of all nodes.
    layer: Layer,
    /// The host list, in the short form: every node gets all of it.
    hosts: String,
    /// The ports of local nodes. They stay reserved until the nodes listen on them.
    ports: Vec<Port>,
    secret: String,
    environment: BTreeMap<String, String>,
    /// The directory through which nodes receive their bundle, if not over a pipe.
    bundle_dir: Option<PathBuf>,
}

/// Starts all nodes.
///
/// # Errors
/// A node did not come up. Then the nodes that did are taken down again.
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
    // The record of an earlier launch at this mount point is restored if this launch fails.
    let before = Record::load(&plan.record.mountpoint, &machine)?;
    // Saved first, so that unmount --all finds the nodes even if this process is killed.
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
        let location = layer.location("hosts");
        let given = layer.text("hosts").filter(|hosts| !hosts.is_empty());
        let Some(given) = given.map(ToOwned::to_owned) else {
            bail!(
                "no --hosts given: --hosts local:4 starts four nodes here, --hosts FILE one on each host"
            );
        };
        // Each node gets the list in another form.
        layer.remove("hosts");
        let base = PathBuf::from(layer.text("mountpoint").unwrap_or("/"));
        let (kind, mut nodes, ports) = match given.strip_prefix("local:") {
            Some(count) => {
                let (nodes, ports) = local::nodes(count, &base)?;
                (Kind::Local, nodes, ports)
            }
            None => {
                let all_at_once = !reach.starter.is_empty();
                let list = if all_at_once && Launcher::named(&given) == Some(Launcher::Mpi) {
                    together::ask_hosts(&reach.starter, &reach.program, machine)?.join(",") + ","
                } else {
                    given
                };
                let nodes = remote::nodes(&list, &base, machine, &location)?;
                let kind = match all_at_once {
                    true => Kind::Together,
                    false => Kind::Remote,
                };
                (kind, nodes, Vec::new())
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
        // Derived from the secret, so that the id is unique without more randomness. It does not reveal the secret.
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

    /// The directory that holds the data mounts of local nodes.
    fn data_mount_base(&self) -> Option<PathBuf> {
        let base = self
            .layer
            .text("data_mount")
            .filter(|base| !base.is_empty())?;
        (self.record.kind == Kind::Local).then(|| PathBuf::from(base))
    }

    /// The bundle of the node with this rank, or of every node. Bundles are made one at a time, because each
    /// holds the whole host list.
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

    /// Starts all nodes, or takes down those that came up. After the first failure, the remaining nodes are
    /// not awaited, because nodes below a missing parent would only time out.
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
                        // The receiver lives until all senders are done.
                        let _received = sender.send((rank, self.start(rank, machine)));
                    }
                    Ok(())
                })
            });
            let progress = progress(nodes.len());
            while let Some((rank, outcome)) = next(&outcomes, !failed.is_empty()) {
                match outcome {
                    Ok(answer) => answers[rank] = Some(answer),
                    Err(error) => failed.push((rank, error)),
                }
                progress.inc(1);
            }
            progress.finish_and_clear();
            if failed.is_empty() {
                return;
            }
            given_up.store(true, Ordering::Relaxed);
            // This also ends nodes that are still starting, whose outcome does not matter any more. It ends
            // only nodes of this launch.
            let is_down = |rank: &usize| failed.iter().any(|(failed, _)| failed == rank);
            let others: Vec<usize> = (0..nodes.len()).filter(|rank| !is_down(rank)).collect();
            self.take_down(&others, machine);
            // Nodes that came up while the others were taken down.
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

    /// As [`Self::run`], with one command for all nodes.
    fn run_together(&self, machine: &Machine) -> anyhow::Result<Vec<Answer>> {
        let nodes = &self.record.nodes;
        let progress = progress(nodes.len());
        let (bundle, dir) = (self.bundle(None), self.bundle_dir.as_deref());
        let started = together::start(&self.record, &bundle, dir, machine, || progress.inc(1));
        progress.finish_and_clear();
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

    /// The first failures, with the names of the nodes; equal failures are merged.
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

    /// Ends the nodes that this launch has started. Failures are printed as warnings.
    fn take_down(&self, ranks: &[usize], machine: &Machine) {
        let record = &self.record;
        let outcomes: Vec<(String, anyhow::Result<()>)> = if record.kind == Kind::Together {
            match together::unmount(record, &["--of-launch", &record.id], machine) {
                Ok(outcomes) => outcomes
                    .into_iter()
                    .map(|(name, outcome)| (name, outcome.map(drop)))
                    .collect(),
                Err(error) => vec![("what was started".to_owned(), Err(error))],
            }
        } else {
            let nodes: Vec<&Node> = ranks.iter().map(|rank| &record.nodes[*rank]).collect();
            let outcomes = in_parallel(nodes.len(), |index| match record.kind {
                Kind::Local => {
                    teardown::of_launch(&nodes[index].mountpoint, &record.id, machine).map(drop)
                }
                Kind::Remote | Kind::Together => remote::unmount_own(record, nodes[index]),
            });
            let names = nodes.iter().map(|node| node.name.clone());
            names.zip(outcomes).collect()
        };
        for (name, outcome) in outcomes {
            if let Err(error) = outcome {
                let why = super::explained(&error);
                fail(format_args!("warning: {name} is left behind: {why}"));
            }
        }
    }

    /// Waits until the tree is connected, and returns the nodes' reports. Nodes that were started together are
    /// connected already, because a mount answers only after its parent's. Their reports are returned as far
    /// as the root is on this host.
    fn wait_for_tree(&self) -> anyhow::Result<ClusterReports> {
        if self.record.kind == Kind::Together {
            return Ok(stats::cluster_reports(&self.record.mountpoint).unwrap_or_default());
        }
        wait_for_tree(&self.record)
    }
}

/// The next outcome. Returns `None` when there are no more, or, after a failure, when no other outcome follows
/// soon. (A mistake in the options fails on all nodes at once.)
fn next<T>(outcomes: &mpsc::Receiver<T>, failed: bool) -> Option<T> {
    const FAILURE_WINDOW: Duration = Duration::from_millis(500);
    if failed {
        outcomes.recv_timeout(FAILURE_WINDOW).ok()
    } else {
        outcomes.recv().ok()
    }
}

/// A progress line on the terminal, if standard error is one.
fn progress(nodes: usize) -> ProgressBar {
    let bar = ProgressBar::new(nodes as u64);
    match ProgressStyle::with_template("{pos} of {len} nodes") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Whether an origin is an object store, whose credentials the nodes need.
fn reads_objects(layer: &Layer) -> bool {
    let mut origins = layer.values("origin").iter();
    origins.any(|origin| !origins::split(&origin.text).1.starts_with("file://"))
}

/// A new secret, as the content of its file. It is written to files of mode 0600 only.
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

/// Runs `work` for 0 to `count` - 1 on a bounded number of threads. Returns the outcomes in order.
fn in_parallel<T: Send>(
    count: usize,
    work: impl Fn(usize) -> anyhow::Result<T> + Sync,
) -> Vec<anyhow::Result<T>> {
    let next = AtomicUsize::new(0);
    // Held only while an outcome is added. No other lock is taken under it.
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

/// Orders `nodes` by the topology that `layer` names. Then replaces the name of the file with the text that the
/// nodes need to count crossing edges, because they may not have the file.
fn order(layer: &mut Layer, nodes: &mut Vec<Node>) -> anyhow::Result<()> {
    let Some(given) = layer.text("topology").filter(|text| !text.is_empty()) else {
        return Ok(());
    };
    let topology = topology(given, layer.location("topology"))?;
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let members = hosts::parse(&(names.join(",") + ","), hosts::DEFAULT_PORT)?;
    let default = keys::find("arity").map_or("", |key| key.default);
    let arity = layer.text("arity").unwrap_or(default);
    let arity = arity.parse().map_err(|error| {
        ConfigError::value(layer.location("arity"), format!("{arity:?}: {error}"))
    })?;
    // Named roots count as one here, as on the nodes.
    let roots = layer.text("roots").and_then(|text| text.parse().ok());
    let roots = roots.unwrap_or(1).clamp(1, members.len());
    let (order, _) = topology.order(&members, arity, roots);
    let ordered = order.iter().map(|given| nodes[*given].clone()).collect();
    *nodes = ordered;
    layer.set("topology", Source::Flag, vec![topology.text_for(&members)]);
    Ok(())
}

/// Waits until the root reports every node.
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

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
use super::mount::warn_of_variables;
use super::record::{Kind, Node, Record};
use super::stats::{self, ClusterReports};
use super::{INTERRUPTED, daemon, explained, fail, listed, print, teardown};
use crate::config::hosts::launcher::Launcher;
use crate::config::network::{instance_per_rack, rack_of, topology};
use crate::config::{ConfigError, Layer, Machine, Member, Source, file, hosts, keys, origins};
use crate::daemon::runtime_dir;
use crate::process::leave_no_core;
use crate::report::Report;
use anyhow::{Context, anyhow, bail, ensure};
use copperfs_overlay::Secret;
use copperfs_overlay::loopback::Port;
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Nodes that are started or ended at a time.
const PARALLEL: usize = 64;

/// How long the tree may take to connect after every mount answers.
const TREE_TIMEOUT: Duration = Duration::from_secs(30);

/// After a failure, how long other outcomes are awaited. A mistake in the options fails on all nodes at once.
const FAILURE_WINDOW: Duration = Duration::from_millis(500);

/// The name of each node, and its outcome.
pub(super) type NodeOutcomes = Vec<(String, anyhow::Result<String>)>;

/// How launches reach other hosts.
#[derive(Debug, clap::Args)]
pub struct LaunchArgs {
    /// Start N nodes on this machine: --hosts local:N
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "hosts")]
    nodes: Option<u32>,
    #[command(flatten)]
    flags: LaunchFlags,
    #[command(flatten)]
    reach: remote::ReachArgs,
    /// One command that runs a program on all hosts at once, with its standard input given to each, in
    /// place of --ssh; {nodes} in it is their number. ssh: none [default: with --hosts slurm an srun,
    /// with --hosts mpi an mpirun that run one task a node]
    #[arg(long, value_name = "COMMAND", hide_short_help = true)]
    starter: Option<String>,
    /// A directory that all hosts see, for a --starter that does not give its standard input to each: the
    /// options and the secret stand there in a file of mode 0600 until all nodes are up [default: with
    /// --hosts mpi the home directory, otherwise none]
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    bundle_dir: Option<PathBuf>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
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
    let json = args.json;
    warn_of_variables(&machine);
    let plan = Plan::make(args, &machine)?;
    let record = &plan.record;
    // The record of an earlier launch at this mount point is restored if this launch fails.
    let before = Record::load(&record.mountpoint, &machine)?;
    // Saved first, so that unmount --all finds the nodes even if this process is killed.
    record.save(&machine)?;
    explain_interrupts(&record.mountpoint);
    let launched = plan.run(&machine);
    if launched.is_err() {
        match before {
            Some(before) => before.save(&machine)?,
            None => record.remove(&machine),
        }
        record.remove_made();
    }
    let (answers, reports) = launched?;
    let value = summary::json(record, &answers);
    print(json, &value, |_| summary::text(record, &answers, &reports))
}

impl Plan {
    fn make(args: LaunchArgs, machine: &Machine) -> anyhow::Result<Self> {
        let mut layer = args.flags.gather(machine)?;
        if let Some(nodes) = args.nodes {
            layer.set("hosts", Source::Flag, vec![format!("local:{nodes}")]);
        }
        let (ssh, program) = args.reach.find()?;
        let location = layer.location("hosts");
        let given = layer.text("hosts").filter(|hosts| !hosts.is_empty());
        let Some(given) = given.map(ToOwned::to_owned) else {
            bail!(
                "no nodes are named: -n 4 starts four on this machine, --hosts FILE one on each host of a list"
            );
        };
        // Each node gets the list in another form.
        layer.remove("hosts");
        let launcher = Launcher::named(&given);
        let mpi = launcher == Some(Launcher::Mpi);
        let starter = together::starter(args.starter.as_deref(), launcher).unwrap_or_default();
        let mut record = Record {
            id: String::new(),
            kind: match starter.is_empty() {
                true => Kind::Remote,
                false => Kind::Together,
            },
            mountpoint: PathBuf::from(layer.text("mountpoint").unwrap_or("/")),
            nodes: Vec::new(),
            ssh,
            starter,
            program,
            made: Vec::new(),
        };
        let mut ports = Vec::new();
        if let Some(count) = given.strip_prefix("local:") {
            record.kind = Kind::Local;
            (record.nodes, ports) = local::nodes(count, &record.mountpoint)?;
            ensure!(
                layer.text("instance_per") != Some("rack"),
                "--instance-per rack: local nodes have no racks. Leave it out, or name hosts"
            );
            for key in ["interface", "host_suffix", "topology"] {
                layer.remove(key);
            }
        } else {
            let list = match mpi && record.kind == Kind::Together {
                true => together::ask_hosts(&record, machine)?.join(",") + ",",
                false => given,
            };
            record.nodes = remote::nodes(&list, &record.mountpoint, machine, &location)?;
        }
        order(&mut layer, &mut record.nodes)?;
        record.note_missing(layer.text("data_mount").map(Path::new));
        let secret = new_secret(machine)?;
        // Derived from the secret, so that the id is unique without more randomness. It does not reveal the secret.
        record.id = blake3::hash(secret.as_bytes()).to_hex()[..32].to_owned();
        let environment = match reads_objects(&layer) {
            true => machine.storage_environment(),
            false => BTreeMap::new(),
        };
        let home = machine.variables.get("HOME").filter(|_| mpi);
        Ok(Self {
            layer,
            hosts: list(&record.nodes),
            ports,
            secret,
            environment,
            bundle_dir: args.bundle_dir.or_else(|| home.map(PathBuf::from)),
            record,
        })
    }

    /// The bundle of the node with this rank, or of every node. Bundles are made one at a time, because each
    /// holds the whole host list.
    fn bundle(&self, rank: Option<usize>) -> Bundle {
        let record = &self.record;
        let mut layer = self.layer.clone();
        let mut set = |key, value| layer.set(key, Source::Flag, vec![value]);
        let own = rank.map_or(&record.mountpoint, |rank| &record.nodes[rank].mountpoint);
        set("hosts", self.hosts.clone());
        set("mountpoint", own.display().to_string());
        if let Some(rank) = rank {
            set("rank", rank.to_string());
            // The directory that holds the data mounts of local nodes.
            if let Some(base) = self
                .layer
                .text("data_mount")
                .filter(|base| !base.is_empty())
                && record.kind == Kind::Local
            {
                let own = Path::new(base).join(rank.to_string());
                set("data_mount", own.display().to_string());
            }
            if let Some(port) = self.ports.get(rank) {
                set("listen", port.address().to_string());
            }
        }
        Bundle {
            launch: record.id.clone(),
            options: file::render(&layer),
            secret: self.secret.clone(),
            environment: self.environment.clone(),
        }
    }

    /// Starts all nodes and waits until the tree of each instance is connected, or takes down those that came
    /// up. Returns the answers in the order of the record's nodes, and the nodes' reports.
    fn run(&self, machine: &Machine) -> anyhow::Result<(Vec<Answer>, Vec<Report>)> {
        let answers = match self.record.kind {
            Kind::Local | Kind::Remote => self.start_each(machine)?,
            Kind::Together => self.start_together(machine)?,
        };
        // Nodes that were started together are connected already, because a mount answers only after its
        // parent's. Their reports are returned as far as they are known on this host.
        if self.record.kind == Kind::Together {
            let reports = stats::cluster_reports(&self.record.mountpoint).unwrap_or_default();
            return Ok((answers, reports.nodes));
        }
        let mut reports = Vec::new();
        for nodes in self.record.instances() {
            let connected = self.wait_for_tree(&self.record.nodes[nodes]);
            reports.extend(connected.inspect_err(|_| self.take_down(&self.ranks(), machine))?);
        }
        Ok((answers, reports))
    }

    fn ranks(&self) -> Vec<usize> {
        (0..self.record.nodes.len()).collect()
    }

    /// Starts each node by itself. After the first failure, the remaining nodes are not awaited, because nodes
    /// below a missing parent would only time out.
    fn start_each(&self, machine: &Machine) -> anyhow::Result<Vec<Answer>> {
        let nodes = &self.record.nodes;
        let (mut up, mut failed) = (Vec::new(), Vec::new());
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
                })
            });
            let progress = progress(nodes.len());
            let mut window = Duration::MAX;
            while let Ok((rank, outcome)) = outcomes.recv_timeout(window) {
                match outcome {
                    Ok(answer) => up.push((rank, answer)),
                    Err(error) => {
                        failed.push((rank, error));
                        window = FAILURE_WINDOW;
                    }
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
            let mut others = self.ranks();
            others.retain(|rank| failed.iter().all(|(failed, _)| failed != rank));
            self.take_down(&others, machine);
            // Nodes that came up while the others were taken down.
            let late = outcomes.iter().filter(|(_, outcome)| outcome.is_ok());
            let late: Vec<usize> = late.map(|(rank, _)| rank).collect();
            self.take_down(&late, machine);
        });
        if failed.is_empty() {
            up.sort_by_key(|(rank, _)| *rank);
            return Ok(up.into_iter().map(|(_, answer)| answer).collect());
        }
        failed.sort_by_key(|(rank, _)| *rank);
        let name = |rank: usize| nodes[rank].name.clone();
        let failed = failed.into_iter().map(|(rank, error)| (name(rank), error));
        Err(self.explain(failed.collect()))
    }

    /// Starts all nodes with one command.
    fn start_together(&self, machine: &Machine) -> anyhow::Result<Vec<Answer>> {
        let progress = progress(self.record.nodes.len());
        let (bundle, dir) = (self.bundle(None), self.bundle_dir.as_deref());
        let started = together::start(&self.record, &bundle, dir, machine, || progress.inc(1));
        progress.finish_and_clear();
        let ((mut up, mut failed), mut running) = started?;
        if failed.is_empty() {
            // By rank within each instance, in the order of the instances.
            let instances = self.record.instances();
            let place = |answer: &Answer| {
                let same =
                    |nodes: &Range<usize>| self.record.nodes[nodes.start].rack == answer.rack;
                let nodes = instances.iter().find(|nodes| same(nodes))?;
                Some(nodes.start + answer.rank)
            };
            up.sort_by_key(place);
            if up.iter().map(place).eq(self.ranks().into_iter().map(Some)) {
                return Ok(up);
            }
            let why = "the tasks do not have one rank each: does --starter run one task a node?";
            failed.push((self.record.starter.join(" "), anyhow!(why)));
        }
        self.take_down(&self.ranks(), machine);
        running.end();
        Err(self.explain(failed))
    }

    fn start(&self, rank: usize, machine: &Machine) -> anyhow::Result<Answer> {
        let bundle = self.bundle(Some(rank));
        match self.record.kind {
            Kind::Local => start_here(&bundle, machine).map(|(answer, _)| answer),
            Kind::Remote | Kind::Together => remote::start(&self.record, rank, &bundle),
        }
    }

    /// The first failures, with the names of the nodes; equal failures are merged.
    fn explain(&self, failed: Vec<(String, anyhow::Error)>) -> anyhow::Error {
        let mut by_text: Vec<(String, Vec<String>)> = Vec::new();
        let (count, all) = (failed.len(), self.record.nodes.len());
        for (name, error) in failed {
            let text = explained(&error);
            match by_text.iter_mut().find(|(known, _)| *known == text) {
                Some((_, names)) => names.push(name),
                None => by_text.push((text, vec![name])),
            }
        }
        let mut message = format!("{count} of {all} nodes did not come up");
        for (text, names) in by_text.iter().take(4) {
            message.push_str(&format!("\n  {}: {text}", listed(names, 4)));
        }
        if count < all {
            message.push_str("\nthe others have been taken down again");
        }
        anyhow::Error::msg(message)
    }

    /// Ends the nodes that this launch has started. Failures are printed as warnings.
    fn take_down(&self, ranks: &[usize], machine: &Machine) {
        let record = &self.record;
        let outcomes = match record.kind {
            Kind::Local => Ok(each(record, ranks, |node| {
                let done = teardown::of_launch(&node.mountpoint, &record.id, machine)?;
                Ok(done.map(|done| done.to_string()).unwrap_or_default())
            })),
            _ => unmount(record, ranks, &["--of-launch", &record.id], machine),
        };
        let failed = |error| vec![("what was started".to_owned(), Err(error))];
        for (name, outcome) in outcomes.unwrap_or_else(failed) {
            if let Err(error) = outcome {
                let why = explained(&error);
                fail(format_args!("warning: {name} is left behind: {why}"));
            }
        }
    }

    /// Waits until the root of an instance reports all its `nodes`, and returns the reports.
    fn wait_for_tree(&self, nodes: &[Node]) -> anyhow::Result<Vec<Report>> {
        let ask = || match self.record.kind {
            Kind::Local => stats::cluster_reports(&nodes[0].mountpoint),
            Kind::Remote | Kind::Together => remote::cluster_reports(&self.record, &nodes[0]),
        };
        let (_never, pause) = mpsc::sync_channel::<()>(0);
        let is_whole = |reports: &ClusterReports| reports.nodes.len() >= nodes.len();
        let mut reports = ask();
        for _ in 1..TREE_TIMEOUT.as_millis() / 200 {
            if reports.as_ref().is_ok_and(is_whole) {
                break;
            }
            let _elapsed = pause.recv_timeout(Duration::from_millis(200));
            reports = ask();
        }
        let reports = reports.context("the root does not say which nodes it has")?;
        if is_whole(&reports) {
            return Ok(reports.nodes);
        }
        let heard: Vec<Option<u64>> = reports.nodes.iter().map(|node| node.rank()).collect();
        let silent = (0_u64..).zip(nodes);
        let silent = silent.filter(|(rank, _)| !heard.contains(&Some(*rank)));
        let silent: Vec<&str> = silent.map(|(_, node)| node.name.as_str()).collect();
        bail!(
            "every mount answers, but the root does not hear of {} within {TREE_TIMEOUT:?}: is UDP \
             between the nodes open? The launch has been taken down again",
            silent.join(", ")
        )
    }
}

/// Runs `unmount` with `flags` for the nodes `ranks` of a launch on other hosts, or with one command for all
/// nodes if they were started so.
///
/// # Errors
/// The command for all nodes cannot be run or fails.
pub(super) fn unmount(
    record: &Record,
    ranks: &[usize],
    flags: &[&str],
    machine: &Machine,
) -> anyhow::Result<NodeOutcomes> {
    match record.kind {
        Kind::Together => {
            let words = [&["unmount"], flags].concat();
            Ok(together::outcomes(together::on_mounts(
                record, &words, machine,
            )?))
        }
        _ => Ok(on_mounts(record, ranks, &[&["unmount"], flags].concat())),
    }
}

/// Runs a command of this program for the mounts of the nodes `ranks`, one by one on their hosts.
pub(super) fn on_mounts(record: &Record, ranks: &[usize], words: &[&str]) -> NodeOutcomes {
    each(record, ranks, |node| remote::on_mount(record, node, words))
}

/// Does `work` for the nodes `ranks`.
fn each(
    record: &Record,
    ranks: &[usize],
    work: impl Fn(&Node) -> anyhow::Result<String> + Sync,
) -> NodeOutcomes {
    in_parallel(ranks.len(), |at| {
        let node = &record.nodes[ranks[at]];
        (node.name.clone(), work(node))
    })
}

/// A progress line on the terminal, if standard error is one.
fn progress(nodes: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{pos} of {len} nodes");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(nodes as u64).with_style(style);
    // It shows that something is going on before the first node is up.
    bar.tick();
    bar
}

/// Tells at Ctrl-C how to take away the nodes that have been started. They are in the record of the launch.
fn explain_interrupts(mountpoint: &Path) {
    let shown = mountpoint.display().to_string();
    let told = move || {
        let waited = daemon::run(async { Ok(tokio::signal::ctrl_c().await?) });
        if waited.is_ok() {
            fail(format_args!(
                "interrupted; nodes may have been started: copperfs unmount --all {shown} takes them away"
            ));
            std::process::exit(INTERRUPTED.into());
        }
    };
    // Without the thread, Ctrl-C ends the launch without a word.
    let _no_thread = std::thread::Builder::new()
        .name("interrupts".into())
        .spawn(told);
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
fn in_parallel<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|index| *index < count);
    // Held only while an outcome is added. No other lock is taken under it.
    let outcomes: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..count.min(PARALLEL) {
            scope.spawn(|| {
                while let Some(index) = take() {
                    let outcome = work(index);
                    outcomes.lock().push((index, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner();
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// The host list of `nodes`. Its last comma marks a list even if it has one entry.
fn list(nodes: &[Node]) -> String {
    let entries: Vec<String> = nodes
        .iter()
        .map(|node| hosts::entry(&member(node)))
        .collect();
    hosts::fold(entries.iter().map(String::as_str)) + ","
}

fn member(node: &Node) -> Member {
    Member {
        name: node.name.clone(),
        address: node.address.clone(),
    }
}

/// Orders `nodes` by the topology that `layer` names, or rack by rack if each is an instance. Then replaces the
/// name of the file with the text that the nodes need, because they may not have the file.
fn order(layer: &mut Layer, nodes: &mut Vec<Node>) -> anyhow::Result<()> {
    let per_rack = instance_per_rack(layer)?;
    let Some(given) = layer.text("topology").filter(|text| !text.is_empty()) else {
        return Ok(());
    };
    let topology = topology(given, layer.location("topology"))?;
    let members: Vec<Member> = nodes.iter().map(member).collect();
    let text = topology.text_for(&members);
    if per_rack {
        for (node, member) in nodes.iter_mut().zip(&members) {
            node.rack = Some(rack_of(layer, &topology, member)?.to_owned());
        }
        // In the order in which the list names the racks. The sort keeps the order within a rack.
        let racks: Vec<_> = nodes.iter().map(|node| node.rack.clone()).collect();
        nodes.sort_by_key(|node| racks.iter().position(|rack| *rack == node.rack));
        layer.set("topology", Source::Flag, vec![text]);
        return Ok(());
    }
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
    layer.set("topology", Source::Flag, vec![text]);
    Ok(())
}

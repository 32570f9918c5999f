//! Starts all nodes with one command that runs a program on every host: `srun`, `mpirun`.
//!
//! All nodes get the same bundle. Each node finds its rank by its name, and prints one line when its mount
//! answers, which happens only after its parent's mount answers. `srun` copies its standard input to every
//! task, so the bundle is sent over it. MPI launchers do not (Open MPI 4.1 skips the tasks of its own host,
//! Hydra serves rank 0 only); their tasks read the bundle from a file of mode 0600, which is removed when all
//! have started. Only the work of the launching process grows with the number of nodes. The tasks stay in the
//! foreground while their daemons live, because a scheduler that tracks processes kills those that outlive
//! their step.

use super::super::record::Record;
use super::super::{explained, say};
use super::bundle::{Answer, Bundle, start_here};
use super::{FAILURE_WINDOW, NodeOutcomes};
use crate::cli::stay;
use crate::config::Machine;
use crate::config::hosts::launcher::{Launcher, task_rank};
use crate::config::secret_file::check_secret_file;
use crate::daemon::{SHUTDOWN_TIMEOUT, runtime_dir};
use crate::process::{Process, leave_no_core};
use anyhow::{Context, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// How long the lines of all hosts may take.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Lines that wait for the launcher. When the queue is full, the command's output blocks.
const LINES_MAX: usize = 1024;

/// The line of one host, as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::cli) struct HostLine {
    /// The host's name.
    pub(in crate::cli) host: String,
    /// The outcome on the host.
    pub(in crate::cli) outcome: Outcome,
}

/// The outcome on one host.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::cli) enum Outcome {
    /// Its node is up.
    Up(Answer),
    /// A description of what was done; empty if there was nothing to do.
    Done(String),
    /// The host has this node, with this role in the tree.
    Node { name: String, role: String },
    /// The action failed.
    Failed(String),
    /// The host runs the task with this number.
    Here(Option<u64>),
}

impl HostLine {
    /// This host's line with `outcome`.
    pub(in crate::cli) fn here(machine: &Machine, outcome: Outcome) -> Self {
        Self {
            host: machine.host_name().to_owned(),
            outcome,
        }
    }

    /// Prints the line with a single write.
    pub(in crate::cli) fn say(&self) {
        match serde_json::to_string(self) {
            Ok(line) => say(line),
            Err(error) => super::super::fail(error),
        }
    }
}

/// The words of the command that starts tasks on all hosts; `None` if the hosts are reached one by one. `given`
/// is the value of `--starter`, and `launcher` that of `--hosts`.
pub(super) fn starter(given: Option<&str>, launcher: Option<Launcher>) -> Option<Vec<String>> {
    // A step that overlaps the job's own steps, and whose tasks may end one by one.
    const SRUN: &str = "srun --overlap --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 \
                        --cpu-bind=none --mem=0 --gres=none --mpi=none --no-kill \
                        --kill-on-bad-exit=0 --wait=0 --quiet";
    const OPEN_MPI: &str = "mpirun --map-by ppr:1:node --bind-to none --stdin none";
    const HYDRA: &str = "mpiexec -ppn 1 -bind-to none";
    let line = match (given, launcher) {
        (Some("ssh"), _) => return None,
        (Some(line), _) => line,
        (None, Some(Launcher::Slurm)) => SRUN,
        (None, Some(Launcher::Mpi)) if is_hydra() => HYDRA,
        (None, Some(Launcher::Mpi)) => OPEN_MPI,
        (None, Some(Launcher::Pbs) | None) => return None,
    };
    Some(line.split_whitespace().map(ToOwned::to_owned).collect())
}

/// Whether `mpirun` is Hydra, the launcher of MPICH and its derivatives.
fn is_hydra() -> bool {
    let version = Command::new("mpirun").arg("--version").output();
    version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("HYDRA"))
}

/// The hosts that the command runs tasks on, in the order of the tasks.
///
/// # Errors
/// The command fails, or no task prints its host.
pub(super) fn ask_hosts(record: &Record, machine: &Machine) -> anyhow::Result<Vec<String>> {
    let mut running = Running::start(record, &["start-node", "--who"], &[], machine)?;
    let mut tasks: Vec<(u64, String)> = Vec::new();
    let deadline = Instant::now() + TIMEOUT;
    while let Some(line) = running.next(deadline)? {
        if let Outcome::Here(rank) = line.outcome {
            tasks.push((rank.unwrap_or(u64::MAX), line.host));
        }
    }
    // Tasks without a number are last. A host with several tasks is listed once, at its first task.
    running.finished()?;
    tasks.sort();
    let mut hosts: Vec<String> = Vec::with_capacity(tasks.len());
    for (_, host) in tasks {
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    ensure!(
        !hosts.is_empty(),
        "{} ran nothing that says its host: does it run programs here? {}",
        record.starter.join(" "),
        running.tail()
    );
    Ok(hosts)
}

/// The outcome of a start: the answers of nodes that are up, and the failures with the names of their hosts.
pub(super) type Outcomes = (Vec<Answer>, Vec<(String, anyhow::Error)>);

/// A bundle in a file that all hosts see. The drop removes the file.
#[derive(Debug)]
struct BundleFile(PathBuf);

impl BundleFile {
    fn write(dir: &Path, launch: &str, bundle: &[u8]) -> anyhow::Result<Self> {
        let path = dir.join(format!(".copperfs-launch.{launch}"));
        let mut file = fs::File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| {
                format!(
                    "cannot write the options for the nodes to {}; --bundle-dir names another \
                     directory that all hosts see",
                    dir.display()
                )
            })?;
        let file_of_nodes = Self(path);
        file.write_all(bundle)?;
        file.sync_all()?;
        Ok(file_of_nodes)
    }
}

impl Drop for BundleFile {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}

/// Starts all nodes and collects their lines. The command keeps running. The bundle is sent through a file in
/// `bundle_dir` if that is set, and over standard input otherwise.
///
/// # Errors
/// The command cannot be run, or the file cannot be written.
pub(super) fn start(
    record: &Record,
    bundle: &Bundle,
    bundle_dir: Option<&Path>,
    machine: &Machine,
    mut heard: impl FnMut(),
) -> anyhow::Result<(Outcomes, Running)> {
    let bundle = serde_json::to_vec(bundle)?;
    let file = bundle_dir.map(|dir| BundleFile::write(dir, &record.id, &bundle));
    let file = file.transpose()?;
    let path = file.as_ref().map(|file| file.0.display().to_string());
    let mut args = vec!["start-node", "--together"];
    let mut input = bundle.as_slice();
    if let Some(path) = &path {
        args.extend(["--bundle", path]);
        input = &[];
    }
    let mut running = Running::start(record, &args, input, machine)?;
    let (mut up, mut failed) = Outcomes::default();
    let mut deadline = Instant::now() + TIMEOUT;
    while up.len() < record.nodes.len() {
        match running.next(deadline) {
            Ok(Some(line)) => match line.outcome {
                Outcome::Up(answer) => up.push(answer),
                Outcome::Failed(why) => {
                    failed.push((line.host, anyhow!(why)));
                    // Further nodes are awaited only briefly: the launch fails in any case.
                    deadline = deadline.min(Instant::now() + FAILURE_WINDOW);
                }
                Outcome::Done(_) | Outcome::Node { .. } | Outcome::Here(_) => continue,
            },
            // The command has ended before all nodes printed a line.
            Ok(None) => {
                let why = running.reason();
                // A starter that runs several tasks a node prints more lines than there are nodes.
                let silent = record.nodes.len().saturating_sub(up.len() + failed.len());
                if silent > 0 {
                    let error = anyhow!("{silent} nodes said nothing before it ended. {why}");
                    failed.push((running.command.clone(), error));
                }
                break;
            }
            Err(error) => {
                if failed.is_empty() {
                    failed.push((running.command.clone(), error));
                }
                break;
            }
        }
        heard();
    }
    Ok(((up, failed), running))
}

/// Runs a command of this program for the mount of every host of a launch. Returns the hosts' lines.
///
/// # Errors
/// The command cannot be run or fails, or a host prints no line.
pub(in crate::cli) fn on_mounts(
    record: &Record,
    words: &[&str],
    machine: &Machine,
) -> anyhow::Result<Vec<HostLine>> {
    let mount = record.mountpoint.display().to_string();
    let args: Vec<&str> = [words, &["--report", "--", &mount]].concat();
    let mut running = Running::start(record, &args, &[], machine)?;
    let mut heard = Vec::new();
    let deadline = Instant::now() + TIMEOUT;
    while heard.len() < record.nodes.len() {
        let Some(line) = running.next(deadline)? else {
            break;
        };
        heard.push(line);
    }
    let (said, all) = (heard.len(), record.nodes.len());
    if said < all {
        let why = running.reason();
        bail!("only {said} of {all} nodes said anything. {why}");
    }
    running.finished()?;
    Ok(heard)
}

/// The outcomes that hosts have printed. Hosts with nothing to do are left out.
pub(in crate::cli) fn outcomes(lines: Vec<HostLine>) -> NodeOutcomes {
    let outcome = |line: HostLine| match line.outcome {
        Outcome::Done(done) => Some((line.host, Ok(done))),
        Outcome::Failed(why) => Some((line.host, Err(anyhow!(why)))),
        Outcome::Up(_) | Outcome::Node { .. } | Outcome::Here(_) => None,
    };
    lines.into_iter().filter_map(outcome).collect()
}

/// A running command that runs a program on all hosts, and its output.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    lines: Receiver<String>,
    log: PathBuf,
    command: String,
}

impl Running {
    /// Runs this program with `args` on all hosts.
    fn start(
        record: &Record,
        args: &[&str],
        input: &[u8],
        machine: &Machine,
    ) -> anyhow::Result<Self> {
        let count = match record.nodes.len() {
            // The command itself is asked for the hosts.
            0 => String::new(),
            count => count.to_string(),
        };
        let words = record.starter.iter();
        let words: Vec<String> = words.map(|word| word.replace("{nodes}", &count)).collect();
        let (command, options) = words.split_first().context("--starter names no command")?;
        let dir = machine.runtime_base().join("launches");
        runtime_dir::prepare(&dir)?;
        let name = Path::new(command).file_name().unwrap_or_default();
        let log = format!("{}.{}.log", name.to_string_lossy(), std::process::id());
        let log = dir.join(log);
        // In a process group of its own, so that signals to this process's group do not end the nodes.
        let mut child = Command::new(command)
            .args(options)
            .arg(&record.program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(runtime_dir::open_log(&log)?)
            // Lets an mpirun that uses srun share the job's nodes with other steps.
            .env("SLURM_OVERLAP", "1")
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {command}; --starter names another command"))?;
        let (sender, lines) = sync_channel(LINES_MAX);
        let (pipe, output) = (child.stdin.take(), child.stdout.take());
        let input = input.to_vec();
        // Two threads, because a task may print its line before it reads all input, or without reading any.
        std::thread::spawn(move || {
            // A command that ends without reading its input reports the reason on its output.
            let _gone = pipe.map(|mut pipe| pipe.write_all(&input));
        });
        std::thread::spawn(move || {
            let output = BufReader::new(output?);
            // Ends with the output or with the receiver.
            let mut lines = output.lines().map_while(Result::ok);
            lines.try_for_each(|line| sender.send(line).ok())
        });
        Ok(Self {
            child,
            lines,
            log,
            command: command.clone(),
        })
    }

    /// The next line of a host; `None` when the command has ended or closed its output. The launcher's own
    /// lines are skipped.
    fn next(&mut self, deadline: Instant) -> anyhow::Result<Option<HostLine>> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    if let Ok(line) = serde_json::from_str(&line) {
                        return Ok(Some(line));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {
                    bail!("not all nodes have said something within {TIMEOUT:?}")
                }
            }
        }
    }

    /// Waits for the end of the command.
    fn finished(&mut self) -> anyhow::Result<()> {
        if let Some(process) = Process::open(self.child.id())?
            && !process.wait(Duration::from_secs(10))?
        {
            self.end();
            bail!("{} does not end", self.command);
        }
        let status = self.child.wait()?;
        ensure!(
            status.success(),
            "{} ended with {status}: {}",
            self.command,
            self.tail()
        );
        Ok(())
    }

    /// Ends the command, by force if necessary.
    pub(super) fn end(&mut self) {
        if let Ok(Some(process)) = Process::open(self.child.id()) {
            let _best_effort = process.end(SHUTDOWN_TIMEOUT);
        }
        let _reaped = self.child.wait();
    }

    /// The last lines of the command's standard error.
    fn tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[text.len().saturating_sub(2000)..]);
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let lines: Vec<&str> = lines.collect();
        lines[lines.len().saturating_sub(6)..].join(" | ")
    }

    /// Why the command, which has closed its output, has ended.
    fn reason(&mut self) -> String {
        let failure = self.finished().err();
        failure.map_or_else(|| self.tail(), |error| explained(&error))
    }
}

/// Removes the log, which is needed only for errors of the launch. The command keeps running.
impl Drop for Running {
    fn drop(&mut self) {
        let _absent = fs::remove_file(&self.log);
    }
}

/// `copperfs start-node --who`: prints the host of this task.
pub(in crate::cli) fn print_host() {
    let machine = Machine::inspect();
    HostLine::here(&machine, Outcome::Here(task_rank(&machine))).say();
}

/// `copperfs start-node --together`: one of many tasks with the same bundle. Ends with the mount. A failure to
/// start is printed, but the task succeeds, because some launchers end all tasks if one fails.
///
/// # Errors
/// The daemon cannot be waited for.
pub(in crate::cli) fn start_node(bundle: Option<&Path>) -> anyhow::Result<()> {
    leave_no_core();
    let bundle = bundle.map(Path::to_owned);
    let started = move || {
        let machine = Machine::inspect();
        let started = start_task(bundle.as_deref(), &machine);
        let (outcome, runtime_dir) = match started {
            Ok((answer, runtime_dir)) => (Outcome::Up(answer), Some(runtime_dir)),
            Err(error) => (Outcome::Failed(explained(&error)), None),
        };
        HostLine::here(&machine, outcome).say();
        Ok(runtime_dir)
    };
    stay::with_daemon(started, || {}).map(drop)
}

/// Starts the node of this task. Returns also its runtime directory.
fn start_task(bundle: Option<&Path>, machine: &Machine) -> anyhow::Result<(Answer, PathBuf)> {
    let Some(path) = bundle else {
        return start_here(&Bundle::read(io::stdin().lock())?, machine);
    };
    check_secret_file(path, machine.uid)
        .context("this host does not see what --bundle-dir holds on the others")?;
    let bundle = Bundle::read(BufReader::new(fs::File::open(path)?))?;
    start_here(&bundle, machine)
}

#[cfg(test)]
mod tests {
    use super::super::super::record::{Kind, Node};
    use super::*;

    #[test]
    fn each_launcher_has_its_command() {
        let words = starter(None, Some(Launcher::Slurm)).unwrap();
        assert_eq!(words[0], "srun");
        assert!(words.contains(&"--ntasks={nodes}".into()));
        assert_eq!(starter(None, None), None);
        assert_eq!(starter(None, Some(Launcher::Pbs)), None);
        assert_eq!(starter(Some("ssh"), Some(Launcher::Slurm)), None);
        assert_eq!(starter(Some("x -a"), None).unwrap(), ["x", "-a"]);
    }

    #[test]
    fn a_line_of_a_host_is_read_back_and_others_are_not() {
        let text = serde_json::to_string(&HostLine {
            host: "h1".into(),
            outcome: Outcome::Here(Some(3)),
        });
        assert_eq!(text.unwrap(), r#"{"host":"h1","outcome":{"here":3}}"#);
        assert!(serde_json::from_str::<HostLine>("srun: job 3 queued").is_err());
    }

    #[test]
    fn a_starter_that_runs_too_many_tasks_is_a_failure_of_each() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine {
            runtime_bases: vec![dir.path().join("copperfs-0")],
            ..Machine::inspect()
        };
        let lines = r#"
            echo '{"host":"a","outcome":{"up":{"rank":0,"pid":1,"log":"/l"}}}'
            echo '{"host":"b","outcome":{"failed":"x"}}'
            echo '{"host":"b","outcome":{"failed":"y"}}'"#;
        let node = |name: &str| Node {
            name: name.into(),
            address: format!("{name}:7470"),
            host: name.into(),
            mountpoint: "/m".into(),
            rack: None,
        };
        let record = Record {
            id: "1".into(),
            kind: Kind::Together,
            mountpoint: "/m".into(),
            nodes: vec![node("a"), node("b")],
            ssh: Vec::new(),
            starter: ["sh", "-c", lines].map(String::from).to_vec(),
            program: "copperfs".into(),
            made: Vec::new(),
        };
        let bundle = Bundle {
            launch: "1".into(),
            options: String::new(),
            secret: String::new(),
            environment: Default::default(),
        };
        let ((up, failed), _running) = start(&record, &bundle, None, &machine, || {}).unwrap();
        assert_eq!((up.len(), failed.len()), (1, 2));
    }

    #[test]
    fn a_task_that_holds_the_secret_leaves_no_core() {
        start_node(Some(Path::new("/none"))).unwrap();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Core);
        assert!(limit.current.is_some_and(|bytes| bytes <= 1));
    }
}

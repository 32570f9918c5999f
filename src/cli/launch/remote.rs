//! Starts and ends nodes on other hosts, each with a command such as ssh.
//!
//! The command gets the host and one line for the remote shell. Options and the secret are sent over its standard
//! input, so that they never appear in a process table.

use super::super::record::{Node, Record};
use super::super::stats::ClusterReports;
use super::{Answer, Bundle, in_parallel};
use crate::config::network::host_list;
use crate::config::{ConfigError, Location, Machine, hosts};
use crate::process::Process;
use anyhow::{Context, bail};
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// How long starting or ending one node may take.
const NODE_TIMEOUT: Duration = Duration::from_secs(180);

/// The nodes of a host list.
///
/// # Errors
/// The list cannot be read or parsed.
pub(super) fn nodes(
    given: &str,
    base: &Path,
    machine: &Machine,
    location: &Location,
) -> Result<Vec<Node>, ConfigError> {
    let list = host_list(given, machine, location.clone())?;
    let members = hosts::parse(&list, hosts::DEFAULT_PORT)
        .map_err(|error| ConfigError::value(location.clone(), error))?;
    let nodes = members.iter().map(|member| Node {
        name: member.name.clone(),
        host: hosts::host_of(member).to_owned(),
        mountpoint: base.to_owned(),
    });
    Ok(nodes.collect())
}

/// Starts the node of rank `rank`.
pub(super) fn start(record: &Record, rank: usize, bundle: &Bundle) -> anyhow::Result<Answer> {
    let input = serde_json::to_vec(bundle)?;
    let output = run(record, &record.nodes[rank].host, &["start-node"], &input)?;
    serde_json::from_slice(&output)
        .with_context(|| format!("its answer is not understood: {}", shown(&output)))
}

/// Runs `unmount` with `flags` for one node. Returns its output.
fn unmount(record: &Record, node: &Node, flags: &[&str]) -> anyhow::Result<String> {
    let mount = node.mountpoint.display().to_string();
    let args = [&["unmount"], flags, &["--", &mount]].concat();
    let output = run(record, &node.host, &args, &[])?;
    Ok(shown(&output))
}

/// Ends one node if this launch has started it.
pub(super) fn unmount_own(record: &Record, node: &Node) -> anyhow::Result<()> {
    let mount = node.mountpoint.display().to_string();
    let args = ["unmount", "--of-launch", &record.id, "--", &mount];
    run(record, &node.host, &args, &[]).map(drop)
}

/// Runs `unmount` with `flags` for every node of a launch, leaves first. Returns each node's name and
/// output.
pub(in crate::cli) fn each(
    record: &Record,
    flags: &[&str],
) -> Vec<(String, anyhow::Result<String>)> {
    let nodes = &record.nodes;
    let outcomes = in_parallel(nodes.len(), |index| {
        unmount(record, &nodes[nodes.len() - 1 - index], flags)
    });
    let names = nodes.iter().rev().map(|node| node.name.clone());
    names.zip(outcomes).collect()
}

/// The reports of all nodes, from the root.
pub(super) fn cluster_reports(record: &Record) -> anyhow::Result<ClusterReports> {
    let root = &record.nodes[0];
    let mount = root.mountpoint.display().to_string();
    let output = run(
        record,
        &root.host,
        &["stats", "--cluster", "--json", "--", &mount],
        &[],
    )?;
    ClusterReports::parse(&output)
}

/// Runs this program with `args` on `host`. Returns its output.
fn run(record: &Record, host: &str, args: &[&str], input: &[u8]) -> anyhow::Result<Vec<u8>> {
    let line: Vec<String> = [record.program.as_str()]
        .iter()
        .chain(args)
        .map(|word| quoted(word))
        .collect();
    let (command, options) = record
        .ssh
        .split_first()
        .context("no command to reach hosts")?;
    let mut child = Command::new(command)
        .args(options)
        .arg(host)
        .arg(line.join(" "))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {command}; --ssh names another command"))?;
    if let Some(mut pipe) = child.stdin.take() {
        match pipe.write_all(input) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
            _ => {}
        }
    }
    let process = Process::open(child.id())?;
    // The output is read while the program runs, because a long report does not fit in a pipe.
    let (stdout, stderr) = (reading(child.stdout.take()), reading(child.stderr.take()));
    let in_time = process
        .as_ref()
        .map_or(Ok(true), |process| process.wait(NODE_TIMEOUT))?;
    if !in_time {
        child.kill()?;
    }
    let output = Output {
        status: child.wait()?,
        stdout: read_by(stdout)?,
        stderr: read_by(stderr)?,
    };
    if !in_time {
        bail!("{command} {host} did not end within {NODE_TIMEOUT:?}");
    }
    understood(command, host, output)
}

/// Starts a thread that reads all of `pipe`.
fn reading(
    pipe: Option<impl io::Read + Send + 'static>,
) -> Option<std::thread::JoinHandle<io::Result<Vec<u8>>>> {
    let mut pipe = pipe?;
    Some(std::thread::spawn(move || {
        let mut text = Vec::new();
        pipe.read_to_end(&mut text)?;
        Ok(text)
    }))
}

fn read_by(reader: Option<std::thread::JoinHandle<io::Result<Vec<u8>>>>) -> io::Result<Vec<u8>> {
    match reader.map(std::thread::JoinHandle::join) {
        Some(Ok(text)) => text,
        Some(Err(_panicked)) => Err(io::Error::other("its output could not be read")),
        None => Ok(Vec::new()),
    }
}

fn understood(command: &str, host: &str, output: Output) -> anyhow::Result<Vec<u8>> {
    if output.status.success() {
        return Ok(output.stdout);
    }
    let text = shown(&output.stderr);
    let text = text.strip_prefix("copperfs: ").unwrap_or(&text).to_owned();
    // ssh's own failures all end with 255.
    match (output.status.code(), text.as_str()) {
        (Some(255), _) => bail!(
            "cannot reach {host}: {text}; {command} must work without a password (keys, agent)"
        ),
        (Some(127), _) => {
            bail!("there is no copperfs at that path: {text}; --remote-program names it")
        }
        (_, "") => bail!("ended with {}", output.status),
        _ => bail!("{text}"),
    }
}

fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim().chars().take(2000).collect()
}

/// `word` for a POSIX shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,=@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A "remote shell" that runs the line here: the last argument, as sshd does.
    fn record(script: &str) -> Record {
        Record {
            id: "0123".into(),
            kind: crate::cli::record::Kind::Remote,
            mountpoint: "/m".into(),
            nodes: vec![Node {
                name: "h1".into(),
                host: "h1".into(),
                mountpoint: "/m it's".into(),
            }],
            ssh: ["sh", "-c", script, "remote"].map(String::from).to_vec(),
            starter: Vec::new(),
            program: "printf '%s|' \"$@\"; cat; :".into(),
        }
    }

    #[test]
    fn words_survive_the_other_shell() {
        for word in ["plain", "a b", "it's", "$(x)", "", "-x;y"] {
            let output = Command::new("sh")
                .args(["-c", &format!("printf %s {}", quoted(word))])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
    }

    #[test]
    fn input_goes_over_the_pipe_and_output_comes_back() {
        let record = record("cat; printf ' %s' \"$1\"");
        let output = run(&record, "h1", &["x"], b"secret").unwrap();
        assert_eq!(shown(&output), "secret h1");
    }

    #[test]
    fn a_report_longer_than_a_pipe_comes_back_whole() {
        let long = run(&record("yes | head -c 300000"), "h1", &["x"], b"").unwrap();
        assert_eq!(long.len(), 300_000);
    }

    #[test]
    fn failures_contain_advice() {
        let unreachable = record("echo 'Permission denied' >&2; exit 255");
        let error = run(&unreachable, "h1", &[], b"").unwrap_err().to_string();
        assert!(
            error.contains("cannot reach h1: Permission denied"),
            "{error}"
        );
        let absent = record("exit 127");
        let error = run(&absent, "h1", &[], b"").unwrap_err().to_string();
        assert!(error.contains("--remote-program"), "{error}");
        let failing = record("echo 'copperfs: no origin' >&2; exit 1");
        let error = run(&failing, "h1", &[], b"").unwrap_err().to_string();
        assert_eq!(error, "no origin");
    }
}

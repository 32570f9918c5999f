//! Starts and ends nodes on other hosts, each with a command such as ssh.
//!
//! The command gets the host and one line for the remote shell. Options and the secret are sent over its standard
//! input, so that they never appear in a process table.

use super::super::record::{Node, Record};
use super::super::stats::ClusterReports;
use super::{Answer, Bundle};
use crate::cli::daemon;
use crate::config::network::host_list;
use crate::config::{ConfigError, Location, Machine, hosts};
use anyhow::{Context, bail, ensure};
use clap::Args;
use std::io;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// How long starting or ending one node may take.
const NODE_TIMEOUT: Duration = Duration::from_secs(180);

/// How other hosts are reached.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct ReachArgs {
    /// The command that runs a program on another host: its host name and one command line follow
    #[arg(
        long,
        hide_short_help = true,
        value_name = "COMMAND",
        default_value = "ssh -o BatchMode=yes -o ConnectTimeout=10"
    )]
    ssh: String,
    /// Path of copperfs on the other hosts [default: the same as here]
    #[arg(long, value_name = "PATH", hide_short_help = true)]
    remote_program: Option<String>,
}

impl ReachArgs {
    /// The words of the command, and the path of the program on the other hosts.
    ///
    /// # Errors
    /// The command is empty, or this program's own path is unknown.
    pub(in crate::cli) fn find(&self) -> anyhow::Result<(Vec<String>, String)> {
        let words = self.ssh.split_whitespace().map(ToOwned::to_owned);
        let ssh: Vec<String> = words.collect();
        ensure!(!ssh.is_empty(), "--ssh names no command");
        let program = match &self.remote_program {
            Some(program) => program.clone(),
            None => std::env::current_exe()?.display().to_string(),
        };
        Ok((ssh, program))
    }
}

/// The nodes of a host list.
///
/// # Errors
/// The list cannot be read or parsed.
pub(in crate::cli) fn nodes(
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
        address: member.address.clone(),
        host: hosts::host_of(member).to_owned(),
        mountpoint: base.to_owned(),
        rack: None,
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

/// Runs a command of this program for the mount of one node. Returns its output.
pub(super) fn on_mount(record: &Record, node: &Node, words: &[&str]) -> anyhow::Result<String> {
    let mount = node.mountpoint.display().to_string();
    let args = [words, &["--", &mount]].concat();
    let output = run(record, &node.host, &args, &[])?;
    Ok(shown(&output))
}

/// The reports of all nodes of an instance, from its first node.
pub(in crate::cli) fn cluster_reports(
    record: &Record,
    root: &Node,
) -> anyhow::Result<ClusterReports> {
    let mount = root.mountpoint.display().to_string();
    let args = ["stats", "--all", "--json", "--", &mount];
    ClusterReports::parse(&run(record, &root.host, &args, &[])?)
}

/// Runs this program with `args` on `host`. Returns its output.
///
/// # Errors
/// The host cannot be reached, or the program fails.
pub(in crate::cli) fn run(
    record: &Record,
    host: &str,
    args: &[&str],
    input: &[u8],
) -> anyhow::Result<Vec<u8>> {
    let words = std::iter::once(record.program.as_str()).chain(args.iter().copied());
    let line: Vec<String> = words.map(quoted).collect();
    let ssh = record.ssh.split_first();
    let (command, options) = ssh.context("no command to reach hosts")?;
    let output = daemon::run(async {
        let mut child = Command::new(command)
            .args(options)
            .arg(host)
            .arg(line.join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {command}; --ssh names another command"))?;
        let pipe = child.stdin.take().context("no pipe to the command")?;
        let writing = async move {
            let mut pipe = pipe;
            match pipe.write_all(input).await {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
                _ => Ok(()),
            }
        };
        // The output is read while the program runs, because a long report does not fit in a pipe.
        let ended = async { tokio::try_join!(child.wait_with_output(), writing) };
        match tokio::time::timeout(NODE_TIMEOUT, ended).await {
            Ok(ended) => Ok(ended?.0),
            Err(_late) => bail!("{command} {host} did not end within {NODE_TIMEOUT:?}"),
        }
    })?;
    // A single name may have been meant as the file of a list.
    let no_file = match record.nodes.as_slice() {
        [only] if only.host == host => format!(", and there is no file {host} here"),
        _ => String::new(),
    };
    understood((command, host, &no_file), output)
}

fn understood(
    (command, host, no_file): (&str, &str, &str),
    output: Output,
) -> anyhow::Result<Vec<u8>> {
    if output.status.success() {
        return Ok(output.stdout);
    }
    let text = shown(&output.stderr);
    let text = text.strip_prefix("copperfs: ").unwrap_or(&text);
    // ssh's own failures all end with 255.
    match (output.status.code(), text) {
        (Some(255), _) => bail!(
            "cannot reach {host}: {text}{no_file}; {command} must work without a password (keys, agent)"
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
                address: "h1:7470".into(),
                host: "h1".into(),
                mountpoint: "/m it's".into(),
                rack: None,
            }],
            ssh: ["sh", "-c", script, "remote"].map(String::from).to_vec(),
            starter: Vec::new(),
            program: "printf '%s|' \"$@\"; cat; :".into(),
            made: Vec::new(),
        }
    }

    #[test]
    fn words_survive_the_other_shell() {
        for word in ["plain", "a b", "it's", "$(x)", "", "-x;y"] {
            let output = std::process::Command::new("sh")
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

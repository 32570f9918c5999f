//! Runs a program and forwards this process's signals to it.

use anyhow::bail;
use rustix::process::Signal as Kind;
use std::ffi::OsString;
use std::future::poll_fn;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::task::Poll;
use tokio::process::Command;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The program that a command was to run cannot be run.
#[derive(Debug, thiserror::Error)]
#[error("cannot run {program}: {source}")]
pub(super) struct CannotRun {
    program: String,
    source: std::io::Error,
}

impl CannotRun {
    /// The exit status, as in a shell.
    pub(super) fn code(&self) -> ExitCode {
        ExitCode::from(match self.source.kind() {
            std::io::ErrorKind::NotFound => 127,
            _ => 126,
        })
    }
}

/// The exit status of a program, as in a shell.
pub(super) fn exit_code(status: ExitStatus) -> ExitCode {
    let of_signal = || Some(128 + status.signal()?);
    let number = status.code().or_else(of_signal).unwrap_or(1);
    ExitCode::from(u8::try_from(number).unwrap_or(u8::MAX))
}

/// The signals that are forwarded to a program. While this value lives, they do not end this process. Signals
/// that arrive before the program runs are forwarded when it does.
pub(super) struct Signals {
    streams: Vec<(Signal, Kind)>,
    /// Whether standard input is a terminal, which sends [`OF_TERMINAL`] to the program itself.
    terminal: bool,
}

const OF_TERMINAL: [Kind; 2] = [Kind::INT, Kind::QUIT];
/// The last two announce the end of a job for some schedulers, and training programs write checkpoints.
const OTHERS: [Kind; 4] = [Kind::TERM, Kind::HUP, Kind::USR1, Kind::USR2];

impl Signals {
    pub(super) fn new() -> anyhow::Result<Self> {
        let kinds = OF_TERMINAL.into_iter().chain(OTHERS);
        let streams = kinds.map(|kind| Ok((signal(SignalKind::from_raw(kind.as_raw()))?, kind)));
        Ok(Self {
            streams: streams.collect::<std::io::Result<_>>()?,
            terminal: std::io::IsTerminal::is_terminal(&std::io::stdin()),
        })
    }

    /// Runs `command` to its end, with `variables` added to its environment.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) async fn watch(
        mut self,
        command: &[OsString],
        variables: &[(&str, &str)],
    ) -> anyhow::Result<ExitStatus> {
        let [program, arguments @ ..] = command else {
            bail!("no program to run");
        };
        let mut child = Command::new(program)
            .args(arguments)
            .envs(variables.iter().copied())
            .spawn()
            .map_err(|source| CannotRun {
                program: program.display().to_string(),
                source,
            })?;
        loop {
            tokio::select! {
                status = child.wait() => return Ok(status?),
                signal = self.next() => {
                    if let Some(pid) = child.id()
                        && let Ok(pid) = i32::try_from(pid)
                        && let Some(pid) = rustix::process::Pid::from_raw(pid)
                        && let Some(signal) = signal
                    {
                        // Fails if the program has just ended.
                        let _gone = rustix::process::kill_process(pid, signal);
                    }
                }
            }
        }
    }

    /// The next signal; `None` if the program receives it from the terminal itself.
    async fn next(&mut self) -> Option<Kind> {
        let next = poll_fn(|context| {
            let mut streams = self.streams.iter_mut();
            let ready = streams
                .find_map(|(stream, kind)| stream.poll_recv(context).is_ready().then_some(*kind));
            ready.map_or(Poll::Pending, Poll::Ready)
        });
        let kind = next.await;
        (!self.terminal || !OF_TERMINAL.contains(&kind)).then_some(kind)
    }
}

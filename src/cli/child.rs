//! Runs a program and forwards this process's signals to it.

use anyhow::{Context, bail};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use tokio::process::Command;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The exit status of a program, as in a shell.
pub(super) fn exit_code(status: ExitStatus) -> ExitCode {
    let number = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 1,
    };
    ExitCode::from(u8::try_from(number).unwrap_or(u8::MAX))
}

/// The signals that are forwarded to a program. While this value lives, they do not end this process. Signals
/// that arrive before the program runs are forwarded when it does.
pub(super) struct Signals {
    interrupt: Signal,
    quit: Signal,
    terminate: Signal,
    hang_up: Signal,
    /// Schedulers announce the end of a job with these, and training programs write checkpoints.
    user: [Signal; 2],
    /// Whether standard input is a terminal, which sends the first two signals to the program itself.
    terminal: bool,
}

impl Signals {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            user: [
                signal(SignalKind::user_defined1())?,
                signal(SignalKind::user_defined2())?,
            ],
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
            .with_context(|| format!("cannot run {}", program.display()))?;
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
    async fn next(&mut self) -> Option<rustix::process::Signal> {
        use rustix::process::Signal as Kind;
        let from_terminal = !self.terminal;
        let [first, second] = &mut self.user;
        tokio::select! {
            _ = self.interrupt.recv() => from_terminal.then_some(Kind::INT),
            _ = self.quit.recv() => from_terminal.then_some(Kind::QUIT),
            _ = self.terminate.recv() => Some(Kind::TERM),
            _ = self.hang_up.recv() => Some(Kind::HUP),
            _ = first.recv() => Some(Kind::USR1),
            _ = second.recv() => Some(Kind::USR2),
        }
    }
}

//! Starting the daemon that takes mounts over, and asking a program whether it could.

use super::{Legacy, READY, Role};
use crate::process::{OWN_PROGRAM, Process};
use copperfs_overlay::wire::ALPN;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// The maximum length of a message.
const MESSAGE_BYTES_MAX: u64 = 64 << 10;
/// How often a successor that does not answer yet is examined.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// How long a program may take to say whether it fits.
const FIT_TIMEOUT: Duration = Duration::from_secs(10);

/// How a successor begins.
#[derive(Debug, Clone, Default)]
pub struct Begun {
    /// Its program; `None`: this one.
    pub program: Option<PathBuf>,
    /// When earlier daemons have died, in seconds since 1970.
    pub died: Vec<u64>,
    /// Why another program did not take over.
    pub refused: Option<String>,
}

/// What a program says of itself before it takes over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fit {
    /// Its version.
    pub version: String,
    /// The version of the messages between nodes.
    pub wire: String,
}

impl Fit {
    /// What this program says.
    #[must_use]
    pub fn own() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            wire: String::from_utf8_lossy(ALPN).into_owned(),
        }
    }
}

/// Starts the daemon that takes the mounts at `mountpoint` over, and waits until they answer, for at most `timeout`.
///
/// # Errors
/// It cannot be started, does not answer in time ([`io::ErrorKind::TimedOut`]), or ends, with a message or without. Then
/// it is dead.
pub async fn start(
    mountpoint: &Path,
    legacy: &Legacy,
    begun: &Begun,
    timeout: Duration,
) -> io::Result<()> {
    let died: Vec<String> = begun.died.iter().map(u64::to_string).collect();
    let died = (!died.is_empty()).then(|| format!("--died={}", died.join(",")));
    let refused = begun.refused.as_ref();
    let refused = refused.map(|reason| format!("--refused={reason}"));
    let flags: Vec<OsString> = died
        .into_iter()
        .chain(refused)
        .map(OsString::from)
        .collect();
    let program = begun.program.as_deref().unwrap_or(Path::new(OWN_PROGRAM));
    let log = Stdio::from(legacy.file(Role::Log)?);
    let mut child = command(program, mountpoint, legacy, &flags, log)?.spawn()?;
    let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let process = child.id().map_or(Ok(None), Process::open)?;
    let said = tokio::time::timeout(timeout, async {
        tokio::select! {
            said = read_message(output) => said,
            () = death(process.as_ref()) => Ok(String::new()),
        }
    });
    let said = said.await;
    let outcome = match said {
        Ok(Ok(said)) if said == READY => return Ok(()),
        Ok(Ok(said)) => match said.trim() {
            "" => Err(io::Error::other("it has died at once")),
            said => Err(io::Error::other(said.to_owned())),
        },
        Ok(Err(error)) => Err(error),
        Err(_elapsed) => {
            let error = format!("it does not answer within {} s", timeout.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, error))
        }
    };
    child.start_kill()?;
    while !process.as_ref().is_none_or(Process::is_dead) {
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
    outcome
}

/// Waits until `process` has died. Its threads may still hang in the kernel, for requests that its successor will answer,
/// and its output is open as long as they do.
async fn death(process: Option<&Process>) {
    // The message of a process that ends in order comes before this is seen twice.
    let mut seen = 0;
    while seen < 2 {
        tokio::time::sleep(LOOK_INTERVAL).await;
        seen += u32::from(process.is_none_or(Process::is_dead));
    }
}

/// Asks `program` whether it could take over what `legacy` has. Nothing changes.
///
/// # Errors
/// It cannot be started, does not answer, or says why it could not.
pub async fn ask(program: &Path, mountpoint: &Path, legacy: &Legacy) -> io::Result<Fit> {
    let flags = [OsString::from("--check")];
    let mut command = command(program, mountpoint, legacy, &flags, Stdio::piped())?;
    let output = command.kill_on_drop(true).output();
    let output = tokio::time::timeout(FIT_TIMEOUT, output).await;
    let output = output.map_err(|_elapsed| io::Error::other("it does not answer"))??;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let said = text(&output.stdout);
    if let (true, Ok(fit)) = (output.status.success(), serde_json::from_str(&said)) {
        return Ok(fit);
    }
    let complaint = text(&output.stderr);
    let first = complaint.lines().next().unwrap_or_default();
    Err(io::Error::other(match (said.as_str(), first) {
        ("", "") => format!("it ends with {}", output.status),
        ("", first) => first.to_owned(),
        (said, _) => said.to_owned(),
    }))
}

fn command(
    program: &Path,
    mountpoint: &Path,
    legacy: &Legacy,
    flags: &[OsString],
    complaints: Stdio,
) -> io::Result<Command> {
    let (ours, theirs) = UnixStream::pair()?;
    legacy.send(&ours)?;
    let mut command = Command::new(program);
    command
        .arg0("copperfs")
        .arg("daemon")
        .arg(format!("--legacy={}", legacy.count()))
        .args(flags)
        .arg("--")
        .arg(mountpoint)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::piped())
        .stderr(complaints);
    Ok(command)
}

/// Reads up to `ready` or the end.
async fn read_message(output: impl AsyncRead + Unpin) -> io::Result<String> {
    let mut output = output.take(MESSAGE_BYTES_MAX);
    let mut said = Vec::new();
    while said != READY.as_bytes() {
        if output.read_buf(&mut said).await? == 0 {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

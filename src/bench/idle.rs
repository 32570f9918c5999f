//! Measures the memory of an idle connection: the growth of a process with many of them, on each side.
//!
//! The sides are two processes: this one listens, as a parent does, and a second process of the same program
//! connects. Only resident memory counts, so memory that is allocated but never used does not.

use super::{on_worker, runtime};
use crate::process;
use anyhow::{Context, bail, ensure};
use copperfs_overlay::Secret;
use copperfs_overlay::bench::Idle;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Connections before the first measurement. By then, memory that all connections share is allocated.
const FIRST: usize = 64;
/// The wait before a measurement, for MTU discovery and the last acknowledgements.
const SETTLE: Duration = Duration::from_secs(2);

/// The error of a write to the other side, or of a read from it.
const TALK: &str = "cannot talk to the other side";

/// Bytes of resident memory per connection.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct IdleResult {
    /// Connections by which the processes grew.
    pub connections: usize,
    /// On the side that listens: a parent.
    pub parent_bytes: u64,
    /// On the side that connects: a child.
    pub child_bytes: u64,
}

/// The other process's task, a line of JSON on its standard input.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    address: SocketAddr,
    secret: std::path::PathBuf,
    connections: usize,
}

/// Measures with `connections` connections. `program` is this program, `peer` the arguments that make
/// it call [`peer`]; `secret` is a path for a secret file, made here and removed. Blocks; must not be
/// called within a runtime.
///
/// # Errors
/// The connections cannot be made or measured.
pub fn run(
    connections: usize,
    program: &Path,
    peer: &[&str],
    secret: &Path,
) -> anyhow::Result<IdleResult> {
    let made = Secret::write_new(secret)?;
    let _file = Removed(secret);
    let runtime = runtime(1)?;
    let mut idle = {
        let _within = runtime.enter();
        Idle::listen(&made)?
    };
    let task = Task {
        address: idle.local_addr(),
        secret: secret.to_owned(),
        connections,
    };
    let mut other = Other::start(program, peer, &task)?;
    let (mut idle, before) = on_worker(&runtime, async move {
        idle.accept(FIRST).await?;
        Ok((idle, settled().await?))
    })?;
    // The peer measures its own memory between the two sets of connections, and waits for this line.
    other.tell("")?;
    let (idle, after) = on_worker(&runtime, async move {
        idle.accept(connections).await?;
        Ok((idle, settled().await?))
    })?;
    let child_bytes = other.answer()?;
    let (made, alive) = (FIRST + connections, idle.alive());
    ensure!(alive == made, "of {made} connections {alive} live");
    Ok(IdleResult {
        connections,
        parent_bytes: each(before, after, connections),
        child_bytes,
    })
}

/// The connecting side: reads its task from standard input, prints how much it grew.
///
/// # Errors
/// As [`run`].
pub fn peer() -> anyhow::Result<()> {
    let input = io::stdin();
    let task: Task = serde_json::from_str(&line(&mut input.lock())?).context("no task")?;
    let secret = Secret::read_file(&task.secret)?;
    let runtime = runtime(1)?;
    let mut idle = {
        let _within = runtime.enter();
        Idle::connector(&secret)?
    };
    let (mut idle, before) = on_worker(&runtime, async move {
        idle.connect(task.address, FIRST).await?;
        Ok((idle, settled().await?))
    })?;
    line(&mut input.lock())?;
    let (_idle, after) = on_worker(&runtime, async move {
        idle.connect(task.address, task.connections).await?;
        Ok((idle, settled().await?))
    })?;
    let grown = each(before, after, task.connections);
    writeln!(io::stdout(), "{grown}").context(TALK)?;
    // The other side closes the pipe after its last measurement.
    let _end = line(&mut input.lock());
    Ok(())
}

struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _absent = std::fs::remove_file(self.0);
    }
}

/// The other process. The drop kills it.
struct Other(Child);

impl Other {
    fn start(program: &Path, peer: &[&str], task: &Task) -> anyhow::Result<Self> {
        let child = Command::new(program)
            .args(peer)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the other side")?;
        let mut other = Self(child);
        other.tell(&serde_json::to_string(task).context("no task")?)?;
        Ok(other)
    }

    fn tell(&mut self, text: &str) -> anyhow::Result<()> {
        let input = self.0.stdin.as_mut().context(TALK)?;
        writeln!(input, "{text}").context(TALK)
    }

    fn answer(&mut self) -> anyhow::Result<u64> {
        let output = self.0.stdout.take().context(TALK)?;
        let text = line(&mut BufReader::new(output))?;
        let said = text.trim().parse().ok();
        said.with_context(|| format!("the other side said {text:?}"))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Killed, because it has answered already or the measurement has failed.
        let _gone = self.0.kill();
        let _status = self.0.wait();
    }
}

fn line(input: &mut impl BufRead) -> anyhow::Result<String> {
    let mut text = String::new();
    match input.read_line(&mut text).context(TALK)? {
        0 => bail!("the other side has ended"),
        _ => Ok(text),
    }
}

/// The resident bytes of this process, after connections have settled.
async fn settled() -> anyhow::Result<u64> {
    tokio::time::sleep(SETTLE).await;
    let status = std::fs::read_to_string("/proc/self/status");
    let status = status.context("cannot read /proc/self/status")?;
    resident(&status).context("no VmRSS in /proc/self/status")
}

fn resident(status: &str) -> Option<u64> {
    let kib = process::field(status, "VmRSS:")?.strip_suffix(" kB")?;
    Some(kib.trim().parse::<u64>().ok()? << 10)
}

fn each(before: u64, after: u64, connections: usize) -> u64 {
    let grown = after.saturating_sub(before);
    grown / u64::try_from(connections).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_kernel_s_text() {
        assert_eq!(
            resident("Name:\tx\nVmRSS:\t   123 kB\nRssAnon:\t 1 kB\n"),
            Some(123 << 10)
        );
        assert_eq!(resident("Name:\tx\n"), None);
        assert_eq!(each(1000, 5000, 4), 1000);
        assert_eq!(each(5000, 1000, 0), 0);
    }
}

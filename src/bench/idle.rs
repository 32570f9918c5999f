//! Measures the memory of an idle connection: the growth of a process with many of them, on each side.
//!
//! The sides are two processes: this one listens, as a parent does, and a second process of the same program
//! connects. Only resident memory counts, so memory that is allocated but never used does not.

use super::{BenchError, on_worker, runtime};
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
/// See [`BenchError`].
pub fn run(
    connections: usize,
    program: &Path,
    peer: &[&str],
    secret: &Path,
) -> Result<IdleResult, BenchError> {
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
    let alive = idle.alive();
    if alive != FIRST + connections {
        return Err(BenchError::Broken(format!(
            "of {} connections {alive} live",
            FIRST + connections
        )));
    }
    Ok(IdleResult {
        connections,
        parent_bytes: each(before, after, connections),
        child_bytes,
    })
}

/// The connecting side: reads its task from standard input, prints how much it grew.
///
/// # Errors
/// See [`BenchError`].
pub fn peer() -> Result<(), BenchError> {
    let input = io::stdin();
    let task: Task = serde_json::from_str(&line(&mut input.lock())?)
        .map_err(|error| BenchError::Broken(format!("no task: {error}")))?;
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
    writeln!(io::stdout(), "{grown}").map_err(talking)?;
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
    fn start(program: &Path, peer: &[&str], task: &Task) -> Result<Self, BenchError> {
        let child = Command::new(program)
            .args(peer)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|source| BenchError::Io {
                what: "cannot start the other side",
                source,
            })?;
        let mut other = Self(child);
        let text = serde_json::to_string(task)
            .map_err(|error| BenchError::Broken(format!("no task: {error}")))?;
        other.tell(&text)?;
        Ok(other)
    }

    fn tell(&mut self, text: &str) -> Result<(), BenchError> {
        match &mut self.0.stdin {
            Some(input) => writeln!(input, "{text}").map_err(talking),
            None => Err(talking(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn answer(&mut self) -> Result<u64, BenchError> {
        let output = self.0.stdout.take();
        let output = output.ok_or_else(|| talking(io::ErrorKind::BrokenPipe.into()))?;
        let text = line(&mut BufReader::new(output))?;
        text.trim()
            .parse()
            .map_err(|_other| BenchError::Broken(format!("the other side said {text:?}")))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Killed, because it has answered already or the measurement has failed.
        let _gone = self.0.kill();
        let _status = self.0.wait();
    }
}

fn talking(source: io::Error) -> BenchError {
    BenchError::Io {
        what: "cannot talk to the other side",
        source,
    }
}

fn line(input: &mut impl BufRead) -> Result<String, BenchError> {
    let mut text = String::new();
    match input.read_line(&mut text).map_err(talking)? {
        0 => Err(BenchError::Broken("the other side has ended".into())),
        _ => Ok(text),
    }
}

/// The resident bytes of this process, after connections have settled.
async fn settled() -> Result<u64, BenchError> {
    tokio::time::sleep(SETTLE).await;
    let text = std::fs::read_to_string("/proc/self/status").map_err(|source| BenchError::Io {
        what: "cannot read /proc/self/status",
        source,
    })?;
    resident(&text).ok_or_else(|| BenchError::Broken("no VmRSS in /proc/self/status".into()))
}

fn resident(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib << 10)
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

//! A conversation with the daemon of a mount, over its control socket.

use crate::control::Command;
use crate::daemon::mountpoint::within;
use anyhow::{Context, bail};
use copperfs_fuse::ioctl::client;
use serde::Serialize;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, BufWriter};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// How long a daemon may take to say where its socket is.
const FIND_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may say nothing.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest line of an answer.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// What the daemon says.
#[derive(Debug)]
pub(super) struct Hears(BufReader<OwnedReadHalf>);

/// What it is told.
#[derive(Debug)]
pub(super) struct Says(BufWriter<OwnedWriteHalf>);

/// Begins a conversation with the daemon of `mountpoint`.
///
/// # Errors
/// It is no copperfs mount, its daemon is gone, or it is somebody else's.
pub(super) async fn talk(mountpoint: &Path, command: Command) -> anyhow::Result<(Hears, Says)> {
    let asked = mountpoint.to_owned();
    let socket = within(FIND_TIMEOUT, move || client::control_socket(&asked))
        .with_context(|| format!("the daemon of {} does not answer", mountpoint.display()))??;
    let stream = UnixStream::connect(&socket).await.with_context(|| {
        format!(
            "cannot reach the daemon of {} at {}. Is it another user's, or gone?",
            mountpoint.display(),
            socket.display()
        )
    })?;
    let (read, write) = stream.into_split();
    let mut says = Says(BufWriter::new(write));
    says.say(&command).await?;
    says.flush().await?;
    Ok((Hears(BufReader::new(read)), says))
}

impl Hears {
    /// The next line, as it is. Not to be cancelled.
    ///
    /// # Errors
    /// The daemon is gone.
    pub(super) async fn line(&mut self) -> anyhow::Result<Vec<u8>> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.0).take(LINE_BYTES_MAX);
        let reading = bounded.read_until(b'\n', &mut line);
        let read = tokio::time::timeout(PATIENCE, reading).await;
        read.context("the daemon says nothing any more")?
            .context("the daemon has gone away")?;
        if line.last() != Some(&b'\n') {
            bail!("the daemon has gone away: its log says why");
        }
        Ok(line)
    }

    /// The next value.
    ///
    /// # Errors
    /// The daemon is gone, or refuses.
    pub(super) async fn value(&mut self) -> anyhow::Result<Value> {
        let value: Value = serde_json::from_slice(&self.line().await?)
            .context("the answer of the daemon is no JSON: is it another version?")?;
        match value.get("error").and_then(Value::as_str) {
            Some(error) => bail!("{error}"),
            None => Ok(value),
        }
    }
}

impl Says {
    /// Tells the daemon one value; [`Says::flush`] sends it off.
    ///
    /// # Errors
    /// The daemon is gone.
    pub(super) async fn say<T: Serialize>(&mut self, value: &T) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec(value)?;
        text.push(b'\n');
        let said = self.0.write_all(&text).await;
        said.context("the daemon has gone away")
    }

    /// Sends off what was said.
    ///
    /// # Errors
    /// The daemon is gone.
    pub(super) async fn flush(&mut self) -> anyhow::Result<()> {
        self.0.flush().await.context("the daemon has gone away")
    }
}

/// Runs `work` to its end on this thread.
///
/// # Errors
/// Those of `work`.
pub(super) fn run<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

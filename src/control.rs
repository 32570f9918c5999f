//! The control socket: questions whose answers do not fit an ioctl, in JSON lines.
//!
//! A Unix socket, mode 0600, beside the daemon's other files. `{"cmd":"reports"}` is answered with
//! `{"nodes":[…],"missing":[…],"list":{"arity":…,"roots":[…],"names":[…]}}`; some commands are
//! conversations of several lines ([`Talk`]). Connections and lines are bounded; a client that says
//! nothing is dropped.

use crate::profile::LINE_BYTES_MAX;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// Clients served at a time; more wait in the socket's backlog.
const CLIENTS_MAX: usize = 16;
/// How long a client may take to ask, and for each line that it is to say or to hear.
const PATIENCE: Duration = Duration::from_secs(5);

/// A question.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// The reports of all nodes.
    Reports,
    /// Record accesses on this node until the client ends the recording, then send it. If the client
    /// disconnects first, the recording is discarded.
    Record,
    /// Start a recording that lasts until [`Command::RecordStop`] or [`Command::RecordDiscard`].
    RecordStart,
    /// End the recording, and send it.
    RecordStop,
    /// End the recording, and discard it.
    RecordDiscard,
    /// Have all nodes bring into their kernels what the following lines name.
    Warm,
}

/// A conversation with a client, behind its command.
#[derive(Debug)]
pub struct Talk {
    lines: Lines,
    voice: Voice,
}

/// What the client says.
#[derive(Debug)]
pub struct Lines(BufReader<OwnedReadHalf>);

/// What it is told.
#[derive(Debug)]
pub struct Voice(OwnedWriteHalf);

impl Talk {
    fn new(stream: UnixStream) -> Self {
        let (read, write) = stream.into_split();
        Self {
            lines: Lines(BufReader::new(read)),
            voice: Voice(write),
        }
    }

    /// Both directions, to be used at the same time.
    pub fn halves(&mut self) -> (&mut Lines, &mut Voice) {
        (&mut self.lines, &mut self.voice)
    }

    /// Tells the client one value.
    ///
    /// # Errors
    /// It is gone, or does not listen.
    pub async fn say(&mut self, value: &serde_json::Value) -> io::Result<()> {
        self.voice.say(value).await
    }
}

impl Lines {
    /// The next line; `None` when the client has closed its end.
    ///
    /// # Errors
    /// None comes in time, or it does not end.
    pub async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        tokio::time::timeout(PATIENCE, self.wait()).await?
    }

    /// Waits for the next line without a time limit, because a recorded program may run for days. `None`
    /// when the client has closed its end.
    ///
    /// # Errors
    /// The line is too long, or the connection fails.
    pub async fn wait(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let bound = u64::try_from(LINE_BYTES_MAX + 1).unwrap_or(u64::MAX);
        let mut bounded = (&mut self.0).take(bound);
        bounded.read_until(b'\n', &mut line).await?;
        if line.len() > LINE_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a line without end",
            ));
        }
        Ok((!line.is_empty()).then_some(line))
    }
}

impl Voice {
    /// Says one value.
    ///
    /// # Errors
    /// The client is gone, or does not listen.
    pub async fn say(&mut self, value: &serde_json::Value) -> io::Result<()> {
        self.say_all(std::slice::from_ref(value)).await
    }

    /// Says several values, a line each, at once.
    ///
    /// # Errors
    /// As [`Voice::say`].
    pub async fn say_all<T: Serialize>(&mut self, values: &[T]) -> io::Result<()> {
        let mut text = Vec::new();
        for value in values {
            serde_json::to_writer(&mut text, value)?;
            text.push(b'\n');
        }
        tokio::time::timeout(PATIENCE, self.0.write_all(&text)).await?
    }
}

/// A socket file that goes when its owner does.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl ControlSocket {
    /// Listens at `path`, in place of what a dead daemon left there, and has `answer` answer each
    /// command in the rest of its conversation.
    ///
    /// # Errors
    /// What the system says about the socket file.
    pub fn serve<F, A>(path: &Path, answer: F) -> io::Result<Self>
    where
        F: Fn(Command, Talk) -> A + Send + Sync + 'static,
        A: Future<Output = io::Result<()>> + Send + 'static,
    {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        // The directory is 0700 already: nobody could connect between these two lines.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let task = tokio::spawn(accept(listener, Arc::new(answer)));
        Ok(Self {
            path: path.to_owned(),
            task,
        })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.task.abort();
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "the control socket is gone");
        }
    }
}

async fn accept<F, A>(listener: UnixListener, answer: Arc<F>)
where
    F: Fn(Command, Talk) -> A + Send + Sync + 'static,
    A: Future<Output = io::Result<()>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(CLIENTS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the control socket cannot accept");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let answer = Arc::clone(&answer);
        drop(tokio::spawn(async move {
            if let Err(error) = talk(stream, &*answer).await {
                tracing::debug!(%error, "a control client went away");
            }
            drop(place);
        }));
    }
}

async fn talk<F, A>(stream: UnixStream, answer: &F) -> io::Result<()>
where
    F: Fn(Command, Talk) -> A,
    A: Future<Output = io::Result<()>>,
{
    let mut talk = Talk::new(stream);
    let Some(line) = talk.lines.next().await? else {
        return Ok(());
    };
    match serde_json::from_slice(&line) {
        Ok(command) => answer(command, talk).await,
        Err(error) => {
            let error = format!("not a command: {error}");
            talk.say(&serde_json::json!({ "error": error })).await
        }
    }
}

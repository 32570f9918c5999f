//! The control socket: questions whose answers do not fit an ioctl, one JSON line each way.
//!
//! A Unix socket, mode 0600, beside the daemon's other files. `{"cmd":"reports"}` is answered with
//! `{"nodes":[…],"missing":[…],"list":{"arity":…,"roots":[…],"names":[…]}}`. Connections and lines are
//! bounded; a client that says nothing is dropped.

use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// Clients served at a time; more wait in the socket's backlog.
const CLIENTS_MAX: usize = 16;
/// Longest question in bytes.
const LINE_BYTES_MAX: u64 = 4096;
/// How long a client may take to ask.
const PATIENCE: Duration = Duration::from_secs(5);

/// A question.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// The reports of all nodes.
    Reports,
}

/// A socket file that goes when its owner does.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl ControlSocket {
    /// Listens at `path`, in place of what a dead daemon left there, and answers each command with
    /// what `answer` makes of it: one JSON value.
    ///
    /// # Errors
    /// What the system says about the socket file.
    pub fn serve<F, A>(path: &Path, answer: F) -> io::Result<Self>
    where
        F: Fn(Command) -> A + Send + Sync + 'static,
        A: Future<Output = serde_json::Value> + Send + 'static,
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
    F: Fn(Command) -> A + Send + Sync + 'static,
    A: Future<Output = serde_json::Value> + Send + 'static,
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
    F: Fn(Command) -> A,
    A: Future<Output = serde_json::Value>,
{
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut reader = BufReader::new(read.take(LINE_BYTES_MAX));
    tokio::time::timeout(PATIENCE, reader.read_line(&mut line)).await??;
    let value = match serde_json::from_str(&line) {
        Ok(command) => answer(command).await,
        Err(error) => serde_json::json!({ "error": format!("not a command: {error}") }),
    };
    let mut reply = value.to_string();
    reply.push('\n');
    tokio::time::timeout(PATIENCE, write.write_all(reply.as_bytes())).await?
}

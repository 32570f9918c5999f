//! Sending commands to a daemon, over its Unix sockets.

use super::conversation::{Lines, queued_body, write_lines};
use axum::body::{Body, Bytes, to_bytes};
use copperfs_fuse::Sockets;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

/// How long a daemon may take to answer, and for each line of an answer: longer than the daemon's own
/// timeout.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(70);
/// The pause between two connection attempts while the socket's queue is full.
const QUEUE_PAUSE: Duration = Duration::from_millis(20);
/// Bytes of an answer. The reports of a million nodes fit.
const ANSWER_BYTES_MAX: usize = 4 << 30;
/// Bytes of a line of an answer.
const LINE_BYTES_MAX: usize = 4 << 20;
/// Bytes of a chunk of a request.
const CHUNK_BYTES: usize = 64 << 10;

fn unreachable(socket: &Path, source: &io::Error) -> String {
    let socket = socket.display();
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("only the owner of the mount and root may do this (no access to {socket})")
        }
        _ => format!("cannot reach the daemon at {socket}: {source}. Has it ended?"),
    }
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The daemon cannot be reached.
    #[error("{}", unreachable(socket, source))]
    Unreachable {
        /// Its socket.
        socket: PathBuf,
        /// The failure of the connection.
        source: io::Error,
    },
    /// It does not answer, or not with a valid answer.
    #[error("the daemon at {} does not answer: {why}", socket.display())]
    Silent {
        /// Its socket.
        socket: PathBuf,
        /// What went wrong.
        why: String,
    },
    /// It began to answer, and reported a failure.
    #[error("{0}")]
    Failed(String),
    /// It refused the request.
    #[error("{error}. {advice}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The failure and its reason.
        error: String,
        /// Advice for the user.
        advice: String,
    },
}

/// A daemon that takes commands.
#[derive(Clone, Debug)]
pub struct ControlClient {
    sockets: Sockets,
}

impl ControlClient {
    /// The daemon with `sockets`.
    #[must_use]
    pub fn new(sockets: Sockets) -> Self {
        Self { sockets }
    }

    /// Sends one request. If the future is dropped, the command may still be carried out.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, ClientError> {
        let body = Body::from(body.map(Value::to_string).unwrap_or_default());
        self.in_time(async {
            let response = self.send(method, path, body).await?;
            self.read_json(response).await
        })
        .await
    }

    /// Begins a conversation of JSON lines.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn converse(
        &self,
        method: &str,
        path: &str,
    ) -> Result<(AnswerLines, RequestLines), ClientError> {
        let (chunks, body) = queued_body();
        let response = self.in_time(self.send(method, path, body)).await?;
        // A refusal has an ordinary JSON body instead of lines.
        if !response.status().is_success() {
            let refused = self.read_json(response).await.err();
            return Err(refused.unwrap_or_else(|| self.silent("its answer makes no sense")));
        }
        let answer = AnswerLines {
            client: self.clone(),
            lines: Lines::new(Body::new(response.into_body()), LINE_BYTES_MAX),
        };
        let request = RequestLines {
            client: self.clone(),
            chunks,
            chunk: Vec::new(),
        };
        Ok((answer, request))
    }

    async fn in_time<T>(
        &self,
        asking: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        let outcome = tokio::time::timeout(ANSWER_TIMEOUT, asking).await;
        outcome.unwrap_or_else(|_elapsed| Err(self.silent("it takes too long")))
    }

    /// Reads a whole answer, which is JSON.
    async fn read_json(&self, response: Response<Incoming>) -> Result<Value, ClientError> {
        let status = response.status();
        let body = to_bytes(Body::new(response.into_body()), ANSWER_BYTES_MAX).await;
        let body = body.map_err(|error| self.silent(error.to_string()))?;
        let value: Value = serde_json::from_slice(&body).map_err(|error| {
            let why = format!("its answer ({status}) is no JSON ({error}): is it another version?");
            self.silent(why)
        })?;
        if status.is_success() {
            return Ok(value);
        }
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        Err(ClientError::Refused {
            status: status.as_u16(),
            error: text("error"),
            advice: text("try"),
        })
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        body: Body,
    ) -> Result<Response<Incoming>, ClientError> {
        let stream = self.connect().await.map_err(|source| {
            let socket = self.sockets.owner.clone();
            ClientError::Unreachable { socket, source }
        })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.silent(error.to_string()))?;
        // The task ends when both the request and the answer are complete or dropped, or with the runtime.
        drop(tokio::spawn(connection));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "copperfs")
            .header(CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(|error| self.silent(error.to_string()))?;
        let answer = sender.send_request(request).await;
        answer.map_err(|error| self.silent(error.to_string()))
    }

    /// The owner's socket serves everything; other users can connect to the users' socket only.
    async fn connect(&self) -> io::Result<UnixStream> {
        match connect(&self.sockets.owner).await {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                // A name that begins with a zero byte is abstract.
                let users = connect(format!("\0{}", self.sockets.users)).await;
                users.map_err(|_closed| error)
            }
            owner => owner,
        }
    }

    fn silent(&self, why: impl Into<String>) -> ClientError {
        ClientError::Silent {
            socket: self.sockets.owner.clone(),
            why: why.into(),
        }
    }
}

/// The lines of an answer.
pub struct AnswerLines {
    client: ControlClient,
    lines: Lines,
}

impl AnswerLines {
    /// The next line, without its end.
    ///
    /// # Errors
    /// The daemon has gone, or it sends nothing for too long.
    pub async fn line(&mut self) -> Result<Vec<u8>, ClientError> {
        let why = match tokio::time::timeout(ANSWER_TIMEOUT, self.lines.wait()).await {
            Ok(Ok(line)) => match line.as_deref().and_then(|line| line.strip_suffix(b"\n")) {
                Some(line) => return Ok(line.to_owned()),
                None => "it has gone away: its log says why".to_owned(),
            },
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                "a line of its answer does not end".to_owned()
            }
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => "it sends nothing any more".to_owned(),
        };
        Err(self.client.silent(why))
    }

    /// The next line, without its end, however long it takes. `None`: the daemon has gone. If the future is dropped,
    /// the part of the line that has come is lost.
    ///
    /// # Errors
    /// The connection fails, or the line does not end.
    pub async fn wait(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line = self.lines.wait().await?;
        Ok(line.and_then(|line| Some(line.strip_suffix(b"\n")?.to_owned())))
    }

    /// The next value.
    ///
    /// # Errors
    /// As [`AnswerLines::line`]; the daemon reports a failure.
    pub async fn value(&mut self) -> Result<Value, ClientError> {
        let line = self.line().await?;
        let value: Value = serde_json::from_slice(&line).map_err(|error| {
            let why = format!("its answer is no JSON ({error}): is it another version?");
            self.client.silent(why)
        })?;
        match value["error"].as_str() {
            Some(error) => Err(ClientError::Failed(error.to_owned())),
            None => Ok(value),
        }
    }
}

/// The lines of a request. Its drop ends the request.
#[derive(Debug)]
pub struct RequestLines {
    client: ControlClient,
    chunks: mpsc::Sender<Bytes>,
    chunk: Vec<u8>,
}

impl RequestLines {
    /// Adds one line, and sends the lines so far if they are many.
    ///
    /// # Errors
    /// The daemon is gone.
    pub async fn send<T: Serialize>(&mut self, value: &T) -> Result<(), ClientError> {
        write_lines(&mut self.chunk, std::slice::from_ref(value))
            .map_err(|error| ClientError::Failed(error.to_string()))?;
        match self.chunk.len() {
            CHUNK_BYTES.. => self.flush().await,
            _ => Ok(()),
        }
    }

    /// Sends whole lines, or parts of them, at once.
    ///
    /// # Errors
    /// The daemon is gone.
    pub async fn send_bytes(&mut self, bytes: Vec<u8>) -> Result<(), ClientError> {
        self.chunk.extend(bytes);
        self.flush().await
    }

    /// Sends all lines.
    ///
    /// # Errors
    /// The daemon is gone.
    pub async fn flush(&mut self) -> Result<(), ClientError> {
        let chunk = std::mem::take(&mut self.chunk);
        let sent = self.chunks.send(chunk.into()).await;
        sent.map_err(|_gone| self.client.silent("it has gone away"))
    }
}

/// Connects to the socket at `path`. Waits while the queue of the socket is full: the kernel refuses further
/// connections then (`EAGAIN`), and tells nothing when there is room again.
async fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(&path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(QUEUE_PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

/// `name`, percent-encoded as one component of a path.
#[must_use]
pub fn encoded(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::SOON;
    use std::os::unix::net::UnixListener;
    use tokio::time::timeout;

    #[tokio::test]
    async fn a_client_waits_while_the_queue_of_the_socket_is_full() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        // A queue for a single connection.
        rustix::net::listen(&listener, 0).unwrap();
        let _first = connect(&path).await.unwrap();
        let mut second = std::pin::pin!(connect(&path));
        let waiting = timeout(QUEUE_PAUSE * 3, &mut second).await;
        assert!(waiting.is_err(), "{waiting:?}");
        let _served = listener.accept().unwrap();
        timeout(SOON, second).await.unwrap().unwrap();
        let error = connect(dir.path().join("absent")).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}

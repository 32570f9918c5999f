//! Sending commands to a daemon, over its Unix sockets.

use copperfs_fuse::Sockets;
use futures_util::{Stream, StreamExt, TryStreamExt};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::Value;
use std::convert::Infallible;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream as StdUnixStream};
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

/// How long a daemon may take to answer, and for each line of an answer: longer than the daemon's own
/// timeout.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(70);
/// Bytes of an answer. The reports of a million nodes fit.
const ANSWER_BYTES_MAX: usize = 4 << 30;
/// Bytes of a line of an answer.
const LINE_BYTES_MAX: usize = 4 << 20;
/// Chunks of a request that wait for the daemon, and bytes of a chunk.
const CHUNKS_QUEUED: usize = 4;
const CHUNK_BYTES: usize = 64 << 10;

type RequestBody = BoxBody<Bytes, Infallible>;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The daemon cannot be reached.
    #[error("cannot reach the daemon at {}: {source}. Is it another user's, or gone?", socket.display())]
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
        let body = body.map(Value::to_string).unwrap_or_default();
        let body = Full::new(Bytes::from(body)).boxed();
        let asking = async {
            let response = self.send(method, path, body).await?;
            self.read_json(response).await
        };
        match tokio::time::timeout(ANSWER_TIMEOUT, asking).await {
            Ok(answer) => answer,
            Err(_elapsed) => Err(self.silent("it takes too long")),
        }
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
        let (chunks, out) = mpsc::channel::<Bytes>(CHUNKS_QUEUED);
        let out = futures_util::stream::unfold(out, |mut out| async {
            let chunk = out.recv().await?;
            Some((Ok::<_, Infallible>(Frame::data(chunk)), out))
        });
        let sending = self.send(method, path, BodyExt::boxed(StreamBody::new(out)));
        let response = match tokio::time::timeout(ANSWER_TIMEOUT, sending).await {
            Ok(response) => response?,
            Err(_elapsed) => return Err(self.silent("it takes too long")),
        };
        // A refusal has an ordinary JSON body instead of lines.
        if !response.status().is_success() {
            let refused = self.read_json(response).await.err();
            return Err(refused.unwrap_or_else(|| self.silent("its answer makes no sense")));
        }
        let answer = AnswerLines {
            client: self.clone(),
            chunks: Box::pin(
                response
                    .into_body()
                    .into_data_stream()
                    .map_err(io::Error::other),
            ),
            rest: Vec::new(),
        };
        let request = RequestLines {
            client: self.clone(),
            chunks,
            chunk: Vec::new(),
        };
        Ok((answer, request))
    }

    /// Reads a whole answer, which is JSON.
    async fn read_json(&self, response: Response<Incoming>) -> Result<Value, ClientError> {
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await;
        let body = body
            .map_err(|error| self.silent(error.to_string()))?
            .to_bytes();
        let value: Value = serde_json::from_slice(&body).map_err(|error| {
            self.silent(format!(
                "its answer ({status}) is no JSON ({error}): is it another version?"
            ))
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
        body: RequestBody,
    ) -> Result<Response<Incoming>, ClientError> {
        let stream = self
            .connect()
            .await
            .map_err(|source| ClientError::Unreachable {
                socket: self.sockets.owner.clone(),
                source,
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
        let owner = UnixStream::connect(&self.sockets.owner).await;
        match owner {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let address = SocketAddr::from_abstract_name(&self.sockets.users)?;
                let stream = StdUnixStream::connect_addr(&address).map_err(|_closed| error)?;
                stream.set_nonblocking(true)?;
                UnixStream::from_std(stream)
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
    chunks: std::pin::Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>,
    rest: Vec<u8>,
}

impl AnswerLines {
    /// The next line, without its end.
    ///
    /// # Errors
    /// The daemon has gone, or it sends nothing for too long.
    pub async fn line(&mut self) -> Result<Vec<u8>, ClientError> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.rest[searched..].iter().position(|&byte| byte == b'\n') {
                let mut line: Vec<u8> = self.rest.drain(..=searched + at).collect();
                line.pop();
                return Ok(line);
            }
            searched = self.rest.len();
            if searched > LINE_BYTES_MAX {
                return Err(self.client.silent("a line of its answer does not end"));
            }
            match tokio::time::timeout(ANSWER_TIMEOUT, self.chunks.next()).await {
                Ok(Some(Ok(chunk))) => self.rest.extend_from_slice(&chunk),
                Ok(Some(Err(error))) => return Err(self.client.silent(error.to_string())),
                Ok(None) => return Err(self.client.silent("it has gone away: its log says why")),
                Err(_elapsed) => return Err(self.client.silent("it sends nothing any more")),
            }
        }
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
        if let Err(error) = serde_json::to_writer(&mut self.chunk, value) {
            return Err(ClientError::Failed(error.to_string()));
        }
        self.chunk.push(b'\n');
        match self.chunk.len() {
            CHUNK_BYTES.. => self.flush().await,
            _ => Ok(()),
        }
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

/// `name`, percent-encoded as one component of a path.
#[must_use]
pub fn encoded(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

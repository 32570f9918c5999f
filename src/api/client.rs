//! Asking a daemon's API, over its Unix socket.

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;

/// How long a daemon may take to answer: longer than it takes itself to give up.
const PATIENCE: Duration = Duration::from_secs(40);
/// Bytes of an answer: thousands of nodes and jobs.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Why there is no answer, or not the one that was hoped for.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The daemon cannot be reached.
    #[error("cannot reach the daemon at {}: {source}. Is it another user's, or gone?", socket.display())]
    Unreachable {
        /// Its socket.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It does not answer.
    #[error("the daemon at {} does not answer: {why}", socket.display())]
    Silent {
        /// Its socket.
        socket: PathBuf,
        /// Why.
        why: String,
    },
    /// It refuses.
    #[error("{error}. {advice}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// What failed, and why.
        error: String,
        /// What to try.
        advice: String,
    },
}

/// A daemon's API.
#[derive(Clone, Debug)]
pub struct ApiClient {
    socket: PathBuf,
}

impl ApiClient {
    /// The API at `socket`.
    #[must_use]
    pub fn at(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
        }
    }

    /// One request. Not to be cancelled, where it changes anything: it may have been carried out then.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, ClientError> {
        let asking = tokio::time::timeout(PATIENCE, self.exchange(method, path, body));
        let (status, answer) = match asking.await {
            Ok(answer) => answer?,
            Err(_elapsed) => return Err(self.silent("it takes too long")),
        };
        let value: Value = serde_json::from_slice(&answer).map_err(|error| {
            self.silent(format!(
                "its answer is no JSON ({error}): is it another version?"
            ))
        })?;
        if (200..300).contains(&status) {
            return Ok(value);
        }
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        Err(ClientError::Refused {
            status,
            error: text("error"),
            advice: text("try"),
        })
    }

    async fn exchange(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Bytes), ClientError> {
        let stream = UnixStream::connect(&self.socket).await;
        let stream = stream.map_err(|source| ClientError::Unreachable {
            socket: self.socket.clone(),
            source,
        })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.silent(error.to_string()))?;
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "copperfs")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| self.silent(error.to_string()))?;
        let exchange = async {
            let answer = sender.send_request(request).await?;
            let status = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX)
                .collect()
                .await;
            Ok::<_, hyper::Error>((status, body.map(http_body_util::Collected::to_bytes)))
        };
        tokio::pin!(connection);
        tokio::select! {
            biased;
            answer = exchange => {
                let (status, body) = answer.map_err(|error| self.silent(error.to_string()))?;
                let body = body.map_err(|error| self.silent(error.to_string()))?;
                Ok((status, body))
            }
            ended = &mut connection => {
                let why = ended.err().map_or("it has gone away".into(), |error| error.to_string());
                Err(self.silent(why))
            }
        }
    }

    fn silent(&self, why: impl Into<String>) -> ClientError {
        ClientError::Silent {
            socket: self.socket.clone(),
            why: why.into(),
        }
    }
}

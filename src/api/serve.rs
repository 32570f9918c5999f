//! Serving the API over HTTP/1.1: on its Unix socket, and on TCP under the cluster's TLS.

use super::{Answer, Api};
use bytes::Bytes;
use copperfs_overlay::tls::TlsListener;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

/// Concurrent clients of each socket. A new client replaces the client that was idle the longest; if none
/// is idle, it waits until a connection ends.
const CLIENTS_MAX: usize = 32;
/// Concurrent clients of one TCP address, so that no node can lock out the others. A new client replaces
/// the longest idle client of the same address; if none is idle, it is refused.
const CLIENTS_OF_ADDRESS_MAX: usize = 16;
/// Bytes of a request's body: a problem of thousands of jobs. Larger ones are refused.
const BODY_BYTES_MAX: usize = 4 << 20;
/// Bodies above [`SMALL_BODY_BYTES`] that each socket holds at a time, from reading to answer, which limits
/// the memory of all clients together. Further ones wait, at most as long as an answer may take.
const LARGE_BODIES_MAX: usize = 2;
/// Bodies up to this many bytes do not wait.
const SMALL_BODY_BYTES: u64 = 64 << 10;
/// Bytes of a request's head, which holds a name at most.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// How long a client may take to ask, or say nothing between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request's body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer may take: longer than the allocator may.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves until it is dropped; the socket file goes with it.
#[derive(Debug)]
pub struct ApiServer {
    socket: Option<PathBuf>,
    task: JoinHandle<()>,
}

impl ApiServer {
    /// Listens at `path`, in place of what a dead daemon left there: mode 0600.
    ///
    /// # Errors
    /// What the system says about the socket file.
    pub fn on_socket(path: &Path, api: Api) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        // The directory is 0700 already: nobody could connect between these two lines.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self {
            socket: Some(path.to_owned()),
            task: tokio::spawn(accept_local(listener, api)),
        })
    }

    /// Serves members of the cluster who come by TCP.
    #[must_use]
    pub fn on_tls(listener: TlsListener, api: Api) -> Self {
        Self {
            socket: None,
            task: tokio::spawn(accept_remote(listener, api)),
        }
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.task.abort();
        let removed = self.socket.as_ref().map(std::fs::remove_file);
        if let Some(Err(error)) = removed {
            tracing::debug!(%error, "the API's socket is gone");
        }
    }
}

async fn accept_local(listener: UnixListener, api: Api) {
    let mut clients = Clients::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let user = stream.peer_cred().map(|peer| peer.uid());
                let api = user.map_or_else(|_| api.clone(), |user| api.for_user(user));
                clients.serve(stream, api, None).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the API cannot accept");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn accept_remote(mut listener: TlsListener, api: Api) {
    let mut clients = Clients::new();
    loop {
        let (stream, from) = listener.accept().await;
        clients.serve(stream, api.clone(), Some(from.ip())).await;
    }
}

/// Those who are served. They go when it does.
struct Clients {
    serving: JoinSet<()>,
    connections: Vec<Connection>,
    large_bodies: Arc<Semaphore>,
}

struct Connection {
    task: AbortHandle,
    /// The client's address; `None` on the Unix socket.
    from: Option<IpAddr>,
    activity: Arc<Activity>,
}

/// Since when a connection is idle; `None` while a request is being answered.
struct Activity(Mutex<Option<Instant>>);

impl Activity {
    fn idle_since(&self) -> Option<Instant> {
        *self.0.lock()
    }

    fn set(&self, idle_since: Option<Instant>) {
        *self.0.lock() = idle_since;
    }
}

impl Clients {
    fn new() -> Self {
        Self {
            serving: JoinSet::new(),
            connections: Vec::new(),
            large_bodies: Arc::new(Semaphore::new(LARGE_BODIES_MAX)),
        }
    }

    /// Makes room for a client of `from`. Returns `false` if it must be refused.
    async fn admit(&mut self, from: Option<IpAddr>) -> bool {
        loop {
            while self.serving.try_join_next().is_some() {}
            self.connections.retain(|one| !one.task.is_finished());
            let is_same = |one: &Connection| from.is_some() && one.from == from;
            let same = self.connections.iter().filter(|one| is_same(one)).count();
            let address_is_full = same >= CLIENTS_OF_ADDRESS_MAX;
            if !address_is_full && self.connections.len() < CLIENTS_MAX {
                return true;
            }
            let candidates = self.connections.iter().enumerate();
            let candidates = candidates.filter(|(_, one)| !address_is_full || is_same(one));
            let idle = candidates.filter_map(|(at, one)| Some((one.activity.idle_since()?, at)));
            if let Some((_, idlest)) = idle.min() {
                self.connections.swap_remove(idlest).task.abort();
            } else if address_is_full {
                return false;
            } else {
                // This ends, because every answer has a time limit.
                drop(self.serving.join_next().await);
            }
        }
    }

    async fn serve(
        &mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        api: Api,
        from: Option<IpAddr>,
    ) {
        if !self.admit(from).await {
            tracing::debug!(?from, "refused a client: its address has too many");
            return;
        }
        let activity = Arc::new(Activity(Mutex::new(Some(Instant::now()))));
        let shown = Arc::clone(&activity);
        let large_bodies = Arc::clone(&self.large_bodies);
        let task = self.serving.spawn(async move {
            let service = service_fn(|request| {
                let (api, activity, large_bodies) = (&api, &activity, &large_bodies);
                async move {
                    activity.set(None);
                    let answered = answer(api, large_bodies, request).await;
                    activity.set(Some(Instant::now()));
                    answered
                }
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            if let Err(error) = served {
                tracing::debug!(%error, "a client of the API went away");
            }
        });
        self.connections.push(Connection {
            task,
            from,
            activity: shown,
        });
    }
}

async fn answer(
    api: &Api,
    large_bodies: &Semaphore,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let too_large = || {
        let why = format!("the request has more than {BODY_BYTES_MAX} bytes");
        response(&refusal(413, &why, "Send less at a time"))
    };
    // One that says so is not waited for.
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Ok(too_large());
    }
    let mut place = None;
    if body
        .size_hint()
        .upper()
        .is_none_or(|bytes| bytes > SMALL_BODY_BYTES)
    {
        let waiting = tokio::time::timeout(ANSWER_TIMEOUT, large_bodies.acquire());
        let Ok(Ok(free)) = waiting.await else {
            let why = "too many large requests are being answered";
            return Ok(response(&refusal(503, why, "Try again")));
        };
        place = Some(free);
    }
    let reading = Limited::new(body, BODY_BYTES_MAX).collect();
    let read = tokio::time::timeout(BODY_TIMEOUT, reading).await;
    let body = match read {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Ok(too_large()),
        Ok(Err(error)) => {
            let why = format!("the request cannot be read: {error}");
            return Ok(response(&refusal(400, &why, "Send it again")));
        }
        Err(_elapsed) => {
            return Ok(response(&refusal(
                408,
                "the request does not end",
                "Send it again",
            )));
        }
    };
    let answering = api.answer(head.method.as_str(), head.uri.path(), &body);
    let answered = tokio::time::timeout(ANSWER_TIMEOUT, answering).await;
    drop(place);
    Ok(response(&answered.unwrap_or_else(|_elapsed| {
        refusal(503, "no answer came in time", "Try again")
    })))
}

fn refusal(status: u16, error: &str, advice: &str) -> Answer {
    super::ApiError::new(status, error, advice).into_answer()
}

fn response(answer: &Answer) -> Response<Full<Bytes>> {
    let body = Bytes::from(answer.body.to_string() + "\n");
    let mut response = Response::new(Full::new(body));
    *response.status_mut() =
        StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if answer.status == 405
        && let Some(methods) = answer.body["try"]
            .as_str()
            .and_then(|t| t.strip_prefix("It takes "))
        && let Ok(methods) = HeaderValue::from_str(methods)
    {
        headers.insert(ALLOW, methods);
    }
    response
}

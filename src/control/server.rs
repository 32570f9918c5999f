//! Serving over HTTP/1.1: on the owner's socket, on the users' socket, and on TCP under the cluster's TLS.

use super::Control;
use super::error::ControlError;
use super::request::{Access, Peer};
use super::router::router;
use crate::job::Proc;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use copperfs_overlay::tls::TlsListener;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
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
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tower::ServiceExt;

/// Concurrent clients of each socket. A new client replaces the client that was idle the longest; if none
/// is idle, it waits until a connection ends.
const CLIENTS_MAX: usize = 32;
/// Concurrent clients of one TCP address, so that no node can lock out the others. A new client replaces
/// the longest idle client of the same address; if none is idle, it is refused.
const CLIENTS_OF_ADDRESS_MAX: usize = 16;
/// Bytes of a request's head, which holds a name at most.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// How long a client may take for the head of a request, and between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer may take: longer than the allocator's own timeout.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Serves until it is dropped. The drop also removes the socket file.
#[derive(Debug)]
pub struct ControlServer {
    socket: Option<PathBuf>,
    task: JoinHandle<()>,
}

impl ControlServer {
    /// Serves all routes at `path`, replacing the socket of a dead daemon: mode 0600.
    ///
    /// # Errors
    /// The socket file cannot be created.
    pub fn for_owner(path: &Path, control: Control) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        // The directory has mode 0700, so no other user can connect between these two lines.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let router = router(control, Access::Owner);
        Ok(Self {
            socket: Some(path.to_owned()),
            task: tokio::spawn(accept_local(listener, router, |_| true)),
        })
    }

    /// Serves the routes of users at the abstract socket `name`, to the users whose ids `admits` accepts.
    /// Other users are refused.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn for_users(
        name: &str,
        control: Control,
        admits: impl Fn(u32) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        // A name that begins with a zero byte is abstract.
        let listener = UnixListener::bind(format!("\0{name}"))?;
        let router = router(control, Access::Users);
        Ok(Self {
            socket: None,
            task: tokio::spawn(accept_local(listener, router, admits)),
        })
    }

    /// Serves all routes over TCP to holders of the job's secret.
    #[must_use]
    pub fn on_tls(listener: TlsListener, control: Control) -> Self {
        let router = router(control, Access::Owner);
        Self {
            socket: None,
            task: tokio::spawn(accept_remote(listener, router)),
        }
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.task.abort();
        let removed = self.socket.as_ref().map(std::fs::remove_file);
        if let Some(Err(error)) = removed {
            tracing::debug!(%error, "the control socket is gone");
        }
    }
}

async fn accept_local(listener: UnixListener, router: Router, admits: impl Fn(u32) -> bool) {
    // Answers users to whom the mount is closed.
    let closed = Router::new().fallback(async || {
        let error = "this mount is open to its owner and root only";
        ControlError::new(403, error, "Its owner can mount it with --allow-other")
    });
    let (mut clients, proc) = (Clients::default(), Proc::default());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let peer = peer_of(&stream, &proc);
                let router = match peer.user.is_some_and(&admits) {
                    true => &router,
                    false => &closed,
                };
                clients.serve(stream, router, peer, None).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the control socket cannot accept");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Returns what the kernel says of a client.
fn peer_of(stream: &UnixStream, proc: &Proc) -> Peer {
    let Ok(known) = stream.peer_cred() else {
        return Peer::default();
    };
    // A process of another PID namespace has no number here.
    let pid = known.pid().and_then(|pid| u32::try_from(pid).ok());
    let process = pid.and_then(|pid| proc.process(pid));
    Peer {
        user: Some(known.uid()),
        process: process.map(|(process, _parent)| process),
    }
}

async fn accept_remote(mut listener: TlsListener, router: Router) {
    let mut clients = Clients::default();
    loop {
        let (stream, from) = listener.accept().await;
        clients
            .serve(stream, &router, Peer::default(), Some(from.ip()))
            .await;
    }
}

/// The clients of one socket. Dropping it closes their connections.
#[derive(Default)]
struct Clients {
    serving: JoinSet<()>,
    connections: Vec<Connection>,
}

struct Connection {
    task: AbortHandle,
    /// The client's address; `None` on the Unix socket.
    from: Option<IpAddr>,
    idle_since: IdleSince,
}

/// The time since which a connection is idle; `None` until its latest answer has been sent. The lock guards
/// only this value.
type IdleSince = Arc<Mutex<Option<Instant>>>;

/// Its connection is not idle while this guard lives.
struct BusyGuard(IdleSince);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        *self.0.lock() = Some(Instant::now());
    }
}

impl Clients {
    /// Makes room for a client of `from`. Returns `false` if it must be refused.
    async fn admit(&mut self, from: Option<IpAddr>) -> bool {
        loop {
            // Connections that have ended make room first.
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
            let idle = candidates.filter_map(|(at, one)| Some(((*one.idle_since.lock())?, at)));
            // The idle connection with the earliest time has been idle the longest. A client whose connection is
            // closed between two requests opens another one.
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
        router: &Router,
        peer: Peer,
        from: Option<IpAddr>,
    ) {
        if !self.admit(from).await {
            tracing::debug!(?from, "refused a client: its address has too many");
            return;
        }
        let idle_since = Arc::new(Mutex::new(Some(Instant::now())));
        let (shared, router) = (Arc::clone(&idle_since), router.clone());
        let task = self.serving.spawn(async move {
            // One guard per request: the connection counts as idle only between requests.
            let service = service_fn(|request: Request<Incoming>| {
                *shared.lock() = None;
                let (busy, router) = (BusyGuard(Arc::clone(&shared)), router.clone());
                async move { Ok::<_, Infallible>(answer(router, peer, busy, request).await) }
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            if let Err(error) = served {
                tracing::debug!(%error, "a client of the control socket went away");
            }
        });
        self.connections.push(Connection {
            task,
            from,
            idle_since,
        });
    }
}

/// Answers `request`. The head of the answer is sent within [`ANSWER_TIMEOUT`]. A streamed body may take any
/// time, and keeps the connection busy.
async fn answer(
    router: Router,
    peer: Peer,
    busy: BusyGuard,
    mut request: Request<Incoming>,
) -> Response {
    request.extensions_mut().insert(peer);
    let answering = tokio::time::timeout(ANSWER_TIMEOUT, router.oneshot(request));
    let response = match answering.await {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(_elapsed) => {
            ControlError::new(503, "no answer came in time", "Try again").into_response()
        }
    };
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            // Moved into the body, so that the connection is busy until the last frame is sent.
            let _busy = &busy;
            frame
        }))
    })
}

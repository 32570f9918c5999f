//! Serving over HTTP/1.1: on the owner's socket, on the users' socket, and on TCP under the cluster's TLS.

use super::Control;
use super::error::ControlError;
use super::request::{Access, User};
use super::router::router;
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
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
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
/// How long a client may take to ask, or say nothing between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer may take: longer than the allocator may.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Serves until it is dropped. A socket file goes with it.
#[derive(Debug)]
pub struct ControlServer {
    socket: Option<PathBuf>,
    task: JoinHandle<()>,
}

impl ControlServer {
    /// Serves all routes at `path`, in place of what a dead daemon left there: mode 0600.
    ///
    /// # Errors
    /// What the system says about the socket file.
    pub fn for_owner(path: &Path, control: Control) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        // The directory is 0700 already: nobody could connect between these two lines.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let router = router(control, Access::Owner);
        Ok(Self {
            socket: Some(path.to_owned()),
            task: tokio::spawn(accept_local(
                listener,
                Door {
                    router,
                    access: Access::Owner,
                },
                |_| true,
            )),
        })
    }

    /// Serves the routes of users at the abstract socket `name`, to those users whom `admits` names by
    /// their ids. Others are refused.
    ///
    /// # Errors
    /// What the system says about the socket.
    pub fn for_users(
        name: &str,
        control: Control,
        admits: impl Fn(u32) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let address = SocketAddr::from_abstract_name(name)?;
        let listener = std::os::unix::net::UnixListener::bind_addr(&address)?;
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let router = router(control, Access::Users);
        Ok(Self {
            socket: None,
            task: tokio::spawn(accept_local(
                listener,
                Door {
                    router,
                    access: Access::Users,
                },
                admits,
            )),
        })
    }

    /// Serves all routes to holders of the job's secret who come by TCP.
    #[must_use]
    pub fn on_tls(listener: TlsListener, control: Control) -> Self {
        let router = router(control, Access::Owner);
        Self {
            socket: None,
            task: tokio::spawn(accept_remote(
                listener,
                Door {
                    router,
                    access: Access::Owner,
                },
            )),
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

/// What the clients of a socket are served.
#[derive(Clone)]
struct Door {
    router: Router,
    access: Access,
}

async fn accept_local(listener: UnixListener, door: Door, admits: impl Fn(u32) -> bool) {
    let closed = closed_door();
    let mut clients = Clients::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let user = stream.peer_cred().ok().map(|peer| peer.uid());
                let door = match user.is_some_and(&admits) {
                    true => &door,
                    false => &closed,
                };
                clients.serve(stream, door, User(user), None).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the control socket cannot accept");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// For users to whom the mount is closed.
fn closed_door() -> Door {
    let forbidden = async || {
        let error = "this mount is open to its owner and root only";
        ControlError::new(403, error, "Its owner can mount it with --allow-other")
    };
    Door {
        router: Router::new().fallback(forbidden),
        access: Access::Users,
    }
}

async fn accept_remote(mut listener: TlsListener, door: Door) {
    let mut clients = Clients::new();
    loop {
        let (stream, from) = listener.accept().await;
        clients
            .serve(stream, &door, User(None), Some(from.ip()))
            .await;
    }
}

/// Those who are served. They go when it does.
struct Clients {
    serving: JoinSet<()>,
    connections: Vec<Connection>,
}

struct Connection {
    task: AbortHandle,
    /// The client's address; `None` on the Unix socket.
    from: Option<IpAddr>,
    activity: Arc<Activity>,
}

/// Since when a connection is idle; `None` until its latest answer has been sent.
struct Activity(Mutex<Option<Instant>>);

/// While it lives, its connection is not idle.
struct Busy(Arc<Activity>);

impl Busy {
    fn new(activity: &Arc<Activity>) -> Self {
        *activity.0.lock() = None;
        Self(Arc::clone(activity))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        *self.0.0.lock() = Some(Instant::now());
    }
}

impl Activity {
    fn idle_since(&self) -> Option<Instant> {
        *self.0.lock()
    }
}

impl Clients {
    fn new() -> Self {
        Self {
            serving: JoinSet::new(),
            connections: Vec::new(),
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
        door: &Door,
        user: User,
        from: Option<IpAddr>,
    ) {
        if !self.admit(from).await {
            tracing::debug!(?from, "refused a client: its address has too many");
            return;
        }
        let activity = Arc::new(Activity(Mutex::new(Some(Instant::now()))));
        let shown = Arc::clone(&activity);
        let door = door.clone();
        let task = self.serving.spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let (busy, door) = (Busy::new(&activity), door.clone());
                async move { Ok::<_, Infallible>(answer(door, user, busy, request).await) }
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
            activity: shown,
        });
    }
}

/// The answer to `request`. Its head comes within [`ANSWER_TIMEOUT`]; a body that is a stream may take as
/// long as it likes, and keeps the connection busy.
async fn answer(door: Door, user: User, busy: Busy, mut request: Request<Incoming>) -> Response {
    request.extensions_mut().insert(user);
    request.extensions_mut().insert(door.access);
    let answering = tokio::time::timeout(ANSWER_TIMEOUT, door.router.oneshot(request));
    let response = match answering.await {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(_elapsed) => {
            ControlError::new(503, "no answer came in time", "Try again").into_response()
        }
    };
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _until_it_is_sent = &busy;
            frame
        }))
    })
}

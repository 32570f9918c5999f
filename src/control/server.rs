//! Serving over HTTP/1.1: on the owner's socket, on the users' socket, and on TCP under the cluster's TLS.

use super::Control;
use super::clients::{Clients, Limits, Sender};
use super::error::ControlError;
use super::request::{Access, Peer};
use super::router::router;
use crate::job::Proc;
use axum::Router;
use copperfs_overlay::tls::TlsListener;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

/// Clients of the owner's socket, which only the owner and root can open.
const OWNER_LIMITS: Limits = Limits {
    all: 32,
    of_sender: 32,
};
/// Clients of the users' socket. A user's data loaders have a process per core, of which few ask at the same time;
/// two users cannot be kept out by a third.
pub(super) const USERS_LIMITS: Limits = Limits {
    all: 64,
    of_sender: 32,
};
/// Clients over TCP. The senders are nodes.
const NODES_LIMITS: Limits = Limits {
    all: 32,
    of_sender: 16,
};

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
        let router = router(control, Access::Host);
        Ok(Self {
            socket: Some(path.to_owned()),
            task: tokio::spawn(accept_local(listener, router, OWNER_LIMITS, |_| true)),
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
            task: tokio::spawn(accept_local(listener, router, USERS_LIMITS, admits)),
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

async fn accept_local(
    listener: UnixListener,
    router: Router,
    limits: Limits,
    admits: impl Fn(u32) -> bool,
) {
    // Answers users to whom the mount is closed.
    let closed = Router::new().fallback(async || {
        let error = "this mount is open to its owner and root only";
        ControlError::new(403, error, "Its owner can mount it with --allow-other")
    });
    let (mut clients, proc) = (Clients::new(limits), Proc::default());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let peer = peer_of(&stream, &proc);
                let router = match peer.user.is_some_and(&admits) {
                    true => &router,
                    false => &closed,
                };
                let from = peer.user.map(Sender::User);
                clients.serve(stream, router, peer, from).await;
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
    let mut clients = Clients::new(NODES_LIMITS);
    loop {
        let (stream, from) = listener.accept().await;
        let from = Some(Sender::Address(from.ip()));
        clients.serve(stream, &router, Peer::default(), from).await;
    }
}

//! The connections over which the kernel reads the files of images.
//!
//! An attendant makes one, and its keeper passes it to the daemon ([`handover`]). If that attendant dies, the next one makes
//! another, and programs that have files of the earlier images open go on over the first.

use super::Natives;
use crate::failpoint;
use crate::image::files;
use copperfs_fuse::{self as fuse, Inherited, MountError, MountOptions, Session, handover};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::task::JoinError;

/// How long a keeper may take to send what it has begun.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause after a failure to accept, which is for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a connection is not served.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("it is of another user")]
    Stranger,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Task(#[from] JoinError),
}

/// Listens for keepers in the runtime directory.
pub(super) fn listen(runtime_dir: &Path) -> io::Result<UnixListener> {
    let path = runtime_dir.join(files::SOCKET);
    match fs::remove_file(&path) {
        // An earlier daemon has left it.
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves the connections of all keepers that come. Ends with the daemon.
pub(super) async fn accept(natives: Natives, listener: UnixListener, options: MountOptions) {
    loop {
        match listener.accept().await {
            Ok((keeper, _)) => {
                let (natives, options) = (natives.clone(), options.clone());
                drop(tokio::spawn(async move {
                    if let Err(error) = serve(natives, keeper, options).await {
                        tracing::warn!(%error, "a connection of images is not served");
                    }
                }));
            }
            Err(error) => {
                tracing::warn!(%error, "no connection of images can come");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves the connection that `keeper` sends. Returns when the kernel needs it no more.
async fn serve(
    natives: Natives,
    keeper: UnixStream,
    options: MountOptions,
) -> Result<(), ConnectionError> {
    let user = keeper.peer_cred()?.uid();
    if user != natives.0.owner && user != 0 {
        return Err(ConnectionError::Stranger);
    }
    let keeper = keeper.into_std()?;
    keeper.set_nonblocking(false)?;
    keeper.set_read_timeout(Some(RECEIVE_TIMEOUT))?;
    let (backend, runtime) = (natives.clone(), Handle::current());
    let beginning = move || {
        let (connection, made) = handover::receive(&keeper)?;
        let session = begin(backend.clone(), options, &runtime, connection, made)?;
        // Before an image can be read over it.
        backend.0.notifiers.lock().push(session.notifier());
        failpoint::hit("images.served");
        handover::confirm(&keeper, session.handshake())?;
        Ok::<_, ConnectionError>((keeper, session))
    };
    let beginning = tokio::task::spawn_blocking(beginning);
    let (keeper, session): (BlockingStream, Session) = beginning.await??;
    session.closed().await;
    (natives.0.notifiers.lock()).retain(|notifier| !notifier.is_closed());
    // Its end tells the keeper that the connection is not served any more.
    drop(keeper);
    Ok(())
}

fn begin(
    natives: Natives,
    options: MountOptions,
    runtime: &Handle,
    connection: OwnedFd,
    made: Option<fuse::Handshake>,
) -> Result<Session, MountError> {
    let backend = Arc::new(natives);
    let Some(handshake) = made else {
        return Session::start(backend, options, runtime, &connection, None);
    };
    let inherited = Inherited {
        connection,
        handshake,
        // A kernel that has images from files sends requests again.
        in_hand: 0..0,
        opens: Vec::new(),
    };
    let connection = &inherited.connection;
    Session::start(backend, options, runtime, connection, Some(&inherited))
}

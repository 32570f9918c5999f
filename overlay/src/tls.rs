//! TCP with the job's mutual TLS, for the HTTP API.
//!
//! It uses the same certificates as the connections between nodes: only holders of the job's secret can connect.

use crate::identity::{Identity, IdentityError, Secret};
use crate::transport::host_of;
use rustls::pki_types::ServerName;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The protocol inside TLS (ALPN).
const PROTOCOL: &[u8] = b"http/1.1";
/// Concurrent handshakes. Beyond it a new handshake replaces the oldest one whose peer has sent nothing, or
/// the oldest of all if every peer has sent something.
const HANDSHAKES_MAX: usize = 64;
/// Concurrent handshakes of one host. Beyond it a new handshake replaces another one of the same host, by the same
/// rule.
const HANDSHAKES_OF_HOST_MAX: usize = 16;
/// Limits making a TCP connection, and the handshake after it.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after an error of the listening socket, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why there is no listener, or no connection.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The socket failed.
    #[error("{address} (TCP): {source}")]
    Socket {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: io::Error,
    },
    /// The handshake failed: the peer does not belong to this job, or is no copperfs.
    #[error("{address} (TCP): no TLS with this job's certificates: {source}")]
    Handshake {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: io::Error,
    },
    /// No certificate could be made.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// Listens on a TCP address for peers of the job.
pub struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    handshakes: JoinSet<(SocketAddr, io::Result<TlsStream>)>,
    /// Handshakes in progress, oldest first.
    in_progress: Vec<Handshake>,
    refused: RateLimitedLog,
    unaccepted: RateLimitedLog,
}

struct Handshake {
    task: AbortHandle,
    host: IpAddr,
    /// The peer has sent something.
    has_sent: Arc<AtomicBool>,
}

impl TlsListener {
    /// Binds `address`.
    ///
    /// # Errors
    /// `Socket` when it cannot be bound; faults of the cryptographic library.
    pub async fn bind(address: SocketAddr, secret: &Secret) -> Result<Self, TlsError> {
        let listener = std::net::TcpListener::bind(address);
        let listener = listener.map_err(|source| TlsError::Socket { address, source })?;
        Self::on(listener, address, secret)
    }

    /// Accepts connections on `listener`, which is bound to `address`. Must be called within a runtime.
    ///
    /// # Errors
    /// `Socket` when it cannot be used; faults of the cryptographic library.
    pub fn on(
        listener: std::net::TcpListener,
        address: SocketAddr,
        secret: &Secret,
    ) -> Result<Self, TlsError> {
        let listened = listener.set_nonblocking(true);
        let listener = listened.and_then(|()| TcpListener::from_std(listener));
        let listener = listener.map_err(|source| TlsError::Socket { address, source })?;
        let mut config = Identity::new(secret)?.server()?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Self {
            listener,
            acceptor: TlsAcceptor::from(Arc::new(config)),
            handshakes: JoinSet::new(),
            in_progress: Vec::new(),
            refused: RateLimitedLog::new("refused TLS peers"),
            unaccepted: RateLimitedLog::new("cannot accept TCP connections"),
        })
    }

    /// The bound address.
    ///
    /// # Errors
    /// The system does not tell it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns the next peer that has proven to belong to this job, and its address. Handshakes run concurrently, so
    /// a slow peer delays no other. Failed handshakes are skipped and logged at a limited rate. Cancel safe.
    pub async fn accept(&mut self) -> (TlsStream, SocketAddr) {
        loop {
            let due = [self.refused.due(), self.unaccepted.due()];
            let log_due = due.into_iter().flatten().min();
            tokio::select! {
                Some(done) = self.handshakes.join_next_with_id() => {
                    let id = done.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
                    self.in_progress.retain(|handshake| handshake.task.id() != id);
                    match done {
                        Ok((_, (peer, Ok(stream)))) => return (stream, peer),
                        Ok((_, (peer, Err(error)))) => self.refused.note(Some(peer), &error),
                        Err(_aborted) => {}
                    }
                }
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        self.begin(stream, peer);
                        // Let the running handshakes notice what their peers have sent, before the next
                        // connection replaces one that seems silent.
                        tokio::task::yield_now().await;
                    }
                    Err(error) => {
                        self.unaccepted.note(None, &error);
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                () = sleep_until(log_due.unwrap_or_else(Instant::now)), if log_due.is_some() => {
                    self.refused.flush();
                    self.unaccepted.flush();
                }
            }
        }
    }

    fn begin(&mut self, stream: TcpStream, peer: SocketAddr) {
        let host = host_of(peer.ip());
        self.make_room(host);
        let (acceptor, has_sent) = (self.acceptor.clone(), Arc::new(AtomicBool::new(false)));
        let sent = Arc::clone(&has_sent);
        let handshake = async move { (peer, accept_tls(acceptor, stream, &sent).await) };
        self.in_progress.push(Handshake {
            task: self.handshakes.spawn(handshake),
            host,
            has_sent,
        });
    }

    /// Ends one handshake if there is no room for one more of `host`.
    fn make_room(&mut self, host: IpAddr) {
        let of_host = self.in_progress.iter().filter(|one| one.host == host);
        let same_host_only = of_host.count() >= HANDSHAKES_OF_HOST_MAX;
        if !same_host_only && self.in_progress.len() < HANDSHAKES_MAX {
            return;
        }
        let candidates = self.in_progress.iter().enumerate();
        let candidates = candidates.filter(|(_, one)| !same_host_only || one.host == host);
        // Silent peers first, then the oldest.
        let ended = candidates.min_by_key(|(at, one)| (one.has_sent.load(Ordering::Relaxed), *at));
        if let Some((at, _)) = ended {
            let peer = self.in_progress.remove(at);
            peer.task.abort();
            let error = io::Error::other("another peer has taken the place of its handshake");
            self.refused.note(Some((peer.host, 0).into()), &error);
        }
    }
}

/// Logs an event that any stranger can cause at will. The first one is logged at once, later ones as one line per
/// [`RateLimitedLog::PERIOD`], so that they cannot fill the log.
#[derive(Debug)]
struct RateLimitedLog {
    message: &'static str,
    last_logged: Option<Instant>,
    /// Events since then.
    count: u64,
    last: String,
}

impl RateLimitedLog {
    const PERIOD: Duration = Duration::from_secs(60);

    fn new(message: &'static str) -> Self {
        Self {
            message,
            last_logged: None,
            count: 0,
            last: String::new(),
        }
    }

    /// Records one event.
    fn note(&mut self, peer: Option<SocketAddr>, error: &io::Error) {
        self.count += 1;
        self.last = match peer {
            Some(peer) => format!("{}: {error}", peer.ip().to_canonical()),
            None => error.to_string(),
        };
        self.flush();
    }

    /// When the events that are not logged yet are due to be logged.
    fn due(&self) -> Option<Instant> {
        let last = self.last_logged.filter(|_| self.count > 0)?;
        Some(last + Self::PERIOD)
    }

    /// Logs the events if a line is due. Returns their number if it logged.
    fn flush(&mut self) -> Option<u64> {
        let now = Instant::now();
        let last = self.last_logged;
        if self.count == 0 || last.is_some_and(|last| now < last + Self::PERIOD) {
            return None;
        }
        let count = std::mem::take(&mut self.count);
        self.last_logged = Some(now);
        tracing::warn!(count, last = %self.last, "{}", self.message);
        Some(count)
    }
}

/// Makes one handshake, and notes in `has_sent` that the peer has sent something.
async fn accept_tls(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    has_sent: &AtomicBool,
) -> io::Result<TlsStream> {
    stream.set_nodelay(true)?;
    let handshake = async {
        stream.readable().await?;
        has_sent.store(true, Ordering::Relaxed);
        acceptor.accept(stream).await
    };
    Ok(Box::new(in_time(handshake).await?.into()))
}

/// Connects to a [`TlsListener`] of the same job.
///
/// # Errors
/// See [`TlsError`].
pub async fn tls_connect(address: SocketAddr, secret: &Secret) -> Result<TlsStream, TlsError> {
    let config = Identity::new(secret)?.client(&[PROTOCOL])?;
    let connecting = async {
        let stream = in_time(TcpStream::connect(address)).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    let connected = connecting.await;
    let stream = connected.map_err(|source| TlsError::Socket { address, source })?;
    let handshake = async {
        let name = ServerName::try_from(Identity::NAME).map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::new(config));
        in_time(connector.connect(name, stream)).await
    };
    let connected = handshake.await;
    let stream = connected.map_err(|source| TlsError::Handshake { address, source })?;
    Ok(Box::new(stream.into()))
}

/// Limits `step` to [`HANDSHAKE_TIMEOUT`].
async fn in_time<T>(step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let done = timeout(HANDSHAKE_TIMEOUT, step).await;
    done.unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into()))
}

/// A connection to a peer of this job.
pub type TlsStream = Box<tokio_rustls::TlsStream<TcpStream>>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn listen(secret: &Secret) -> (TlsListener, SocketAddr) {
        let any = ([127, 0, 0, 1], 0).into();
        let listener = TlsListener::bind(any, secret).await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// Connects with `config` and waits until the listener has refused.
    async fn refused(address: SocketAddr, config: rustls::ClientConfig) -> bool {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from(Identity::NAME).unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let Ok(mut stream) = connector.connect(name, stream).await else {
            return true;
        };
        // With TLS 1.3 a client learns of the refusal only when it reads.
        !matches!(stream.read(&mut [0; 1]).await, Ok(1))
    }

    #[tokio::test]
    async fn peers_of_the_job_connect_and_a_silent_one_delays_no_other() {
        let secret = Secret::generate().unwrap();
        let (mut listener, address) = listen(&secret).await;
        let own = tokio::spawn(async move {
            let (mut stream, peer) = listener.accept().await;
            let mut asked = [0; 4];
            stream.read_exact(&mut asked).await.unwrap();
            stream.write_all(b"pong").await.unwrap();
            stream.shutdown().await.unwrap();
            (asked, peer)
        });
        let _silent = TcpStream::connect(address).await.unwrap();
        let mut stream = tls_connect(address, &secret).await.unwrap();
        stream.write_all(b"ping").await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"pong");
        let (asked, peer) = own.await.unwrap();
        assert_eq!(&asked, b"ping");
        assert!(peer.ip().is_loopback());
    }

    #[tokio::test]
    async fn peers_without_the_secret_get_no_byte() {
        let secret = Secret::generate().unwrap();
        let (mut listener, address) = listen(&secret).await;
        let accepting = tokio::spawn(async move {
            let (mut stream, _peer) = listener.accept().await;
            stream.write_all(b"!").await.unwrap();
            stream.flush().await.unwrap();
            stream
        });
        let other = Secret::generate().unwrap();
        let refusal = tls_connect(address, &other).await.unwrap_err();
        assert!(matches!(refusal, TlsError::Handshake { .. }), "{refusal}");
        let own = Identity::new(&secret).unwrap();
        let nodes = own.client(&[wire::ALPN]).unwrap();
        assert!(refused(address, nodes).await, "the nodes' own protocol");
        // A peer that trusts the job, and has no certificate of it.
        let stranger = own.client_without_certificate().unwrap();
        assert!(refused(address, stranger).await, "no certificate");
        assert!(!accepting.is_finished());
        let mut stream = tls_connect(address, &secret).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'!');
        drop(accepting.await.unwrap());
    }

    /// A member's handshake succeeds with any number of silent connections before and during it.
    #[tokio::test]
    async fn silent_connections_do_not_lock_members_out() {
        let secret = Secret::generate().unwrap();
        let (mut listener, address) = listen(&secret).await;
        let (flooded, over) = tokio::sync::oneshot::channel::<()>();
        let accepting = tokio::spawn(async move {
            let (member, _) = listener.accept().await;
            tokio::select! {
                _ = listener.accept() => panic!("a silent connection was let in"),
                _ = over => {}
            }
            (member, listener)
        });
        let mut silent = Vec::new();
        for _ in 0..4 * HANDSHAKES_MAX {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let flood = tokio::spawn(async move {
            for _ in 0..4 * HANDSHAKES_MAX {
                silent.push(TcpStream::connect(address).await.unwrap());
                tokio::task::yield_now().await;
            }
            silent
        });
        let stream = tls_connect(address, &secret).await.unwrap();
        let silent = flood.await.unwrap();
        drop(flooded);
        let (_member, listener) = accepting.await.unwrap();
        assert!(listener.in_progress.len() <= HANDSHAKES_OF_HOST_MAX);
        drop((stream, silent));
    }

    /// Many refusals within a minute add only a line or two to the log.
    #[tokio::test(start_paused = true)]
    async fn refusals_are_logged_once_a_minute() {
        let mut refused = RateLimitedLog::new("refused");
        let error = io::Error::other("no certificate");
        let peer = Some(([127, 0, 0, 1], 1).into());
        let (mut lines, mut logged) = (0, 0);
        for _ in 0..24_000 {
            let before = refused.last_logged;
            refused.note(peer, &error);
            if refused.last_logged != before {
                lines += 1;
                logged += 1 + refused.count;
            }
            tokio::time::advance(Duration::from_micros(208)).await;
        }
        assert_eq!((lines, logged), (1, 1));
        sleep_until(refused.due().unwrap()).await;
        assert_eq!(refused.flush(), Some(23_999));
        assert_eq!((refused.due(), refused.flush()), (None, None));
        assert!(refused.last.contains("127.0.0.1: no certificate"));
    }

    #[tokio::test]
    async fn errors_name_the_address() {
        let secret = Secret::generate().unwrap();
        let (listener, address) = listen(&secret).await;
        let taken = TlsListener::bind(address, &secret).await.err().unwrap();
        assert!(taken.to_string().contains(&address.to_string()), "{taken}");
        drop(listener);
        let gone = tls_connect(address, &secret).await.unwrap_err();
        assert!(matches!(gone, TlsError::Socket { .. }), "{gone}");
    }
}

//! TCP with the job's mutual TLS, for what is no part of the trees.
//!
//! The HTTP API listens on it. The same certificates as between nodes: whoever holds the job's secret
//! may connect, nobody else gets a byte.

use crate::identity::{Identity, IdentityError, Secret};
use rustls::pki_types::ServerName;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// What is spoken inside, as TLS agrees on it (ALPN).
const PROTOCOL: &[u8] = b"http/1.1";
/// Concurrent handshakes. Beyond it a new handshake replaces the oldest one whose peer has sent nothing, or
/// the oldest of all if every peer has sent something.
const HANDSHAKES_MAX: usize = 64;
/// Concurrent handshakes of one address (of one /64 in IPv6, which is one host). Beyond it a new handshake
/// replaces another one of the same address, by the same rule.
const HANDSHAKES_OF_ADDRESS_MAX: usize = 16;
/// How long a handshake may take, and a connection.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// After an error of the listening socket (too many open files, say) nothing is accepted for so long.
const PAUSE: Duration = Duration::from_millis(100);

/// Why there is no listener, or no connection.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The socket failed.
    #[error("{address} (TCP): {source}")]
    Socket {
        /// Which address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The handshake failed: the other side is not of this job, or is no copperfs.
    #[error("{address} (TCP): no TLS with this job's certificates: {source}")]
    Handshake {
        /// Which address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// No certificate could be made.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// Listens on a TCP address and lets the job's members in.
#[derive(Debug)]
pub struct TlsListener {
    listener: TcpListener,
    acceptor: Acceptor,
    handshakes: JoinSet<(SocketAddr, io::Result<TlsStream>)>,
    /// Handshakes in progress, oldest first.
    under_way: Vec<Handshake>,
    refused: Repeated,
    unaccepted: Repeated,
}

#[derive(Debug)]
struct Handshake {
    task: AbortHandle,
    address: IpAddr,
    /// The peer has sent something.
    spoke: Arc<AtomicBool>,
}

struct Acceptor(TlsAcceptor);

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Acceptor(..)")
    }
}

impl TlsListener {
    /// Binds `address`.
    ///
    /// # Errors
    /// `Socket` when it cannot be bound; faults of the cryptographic library.
    pub async fn bind(address: SocketAddr, secret: &Secret) -> Result<Self, TlsError> {
        let mut config = Identity::new(secret)?.server()?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| TlsError::Socket { address, source })?;
        Ok(Self {
            listener,
            acceptor: Acceptor(TlsAcceptor::from(Arc::new(config))),
            handshakes: JoinSet::new(),
            under_way: Vec::new(),
            refused: Repeated::new("refused TLS peers"),
            unaccepted: Repeated::new("cannot accept TCP connections"),
        })
    }

    /// Where it is bound.
    ///
    /// # Errors
    /// The system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next peer that has proven to be of this job, and its address. Handshakes run concurrently, so a
    /// slow peer delays no other. Failed handshakes are skipped and logged at a limited rate. May be
    /// cancelled.
    pub async fn accept(&mut self) -> (TlsStream, SocketAddr) {
        loop {
            let due = [self.refused.due(), self.unaccepted.due()];
            let told = due.into_iter().flatten().min();
            tokio::select! {
                Some(done) = self.handshakes.join_next_with_id() => {
                    let id = match &done {
                        Ok((id, _)) => *id,
                        Err(error) => error.id(),
                    };
                    self.under_way.retain(|handshake| handshake.task.id() != id);
                    match done {
                        Ok((_, (peer, Ok(stream)))) => return (stream, peer),
                        Ok((_, (peer, Err(error)))) => self.refused.note(Some(peer), &error),
                        Err(_made_room) => {}
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
                        tokio::time::sleep(PAUSE).await;
                    }
                },
                () = sleep_until(told) => {
                    self.refused.tell();
                    self.unaccepted.tell();
                }
            }
        }
    }

    fn begin(&mut self, stream: TcpStream, peer: SocketAddr) {
        let address = network(peer.ip());
        self.make_room(address);
        let (acceptor, spoke) = (self.acceptor.0.clone(), Arc::new(AtomicBool::new(false)));
        let speaks = Arc::clone(&spoke);
        let shaking = async move { (peer, shake(acceptor, stream, &speaks).await) };
        self.under_way.push(Handshake {
            task: self.handshakes.spawn(shaking),
            address,
            spoke,
        });
    }

    /// Ends one handshake if there are too many.
    fn make_room(&mut self, address: IpAddr) {
        let of_address = self.under_way.iter().filter(|one| one.address == address);
        let own_only = of_address.count() >= HANDSHAKES_OF_ADDRESS_MAX;
        if !own_only && self.under_way.len() < HANDSHAKES_MAX {
            return;
        }
        let candidates = self.under_way.iter().enumerate();
        let candidates = candidates.filter(|(_, one)| !own_only || one.address == address);
        let goes = candidates.min_by_key(|(at, one)| (one.spoke.load(Ordering::Relaxed), *at));
        if let Some((at, _)) = goes {
            let peer = self.under_way.remove(at);
            peer.task.abort();
            let error = io::Error::other("another peer has taken the place of its handshake");
            self.refused.note(Some((peer.address, 0).into()), &error);
        }
    }
}

/// The part of an address that stands for one host: the IPv4 address, or the /64 network in IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let mask = u128::MAX << 64;
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}

async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// An event that any stranger can cause at will. The first one is logged at once, later ones as one line
/// per [`Repeated::PERIOD`], so that they cannot fill the log.
#[derive(Debug)]
struct Repeated {
    what: &'static str,
    /// When it was last logged.
    told: Option<Instant>,
    /// Events since then.
    count: u64,
    last: String,
}

impl Repeated {
    const PERIOD: Duration = Duration::from_secs(60);

    fn new(what: &'static str) -> Self {
        Self {
            what,
            told: None,
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
        self.tell();
    }

    /// When the events that are not logged yet are due to be logged.
    fn due(&self) -> Option<Instant> {
        let told = self.told.filter(|_| self.count > 0)?;
        Some(told + Self::PERIOD)
    }

    /// Logs the events if a line is due. Returns their number if it logged.
    fn tell(&mut self) -> Option<u64> {
        let now = Instant::now();
        let early = self.told.is_some_and(|told| now < told + Self::PERIOD);
        if self.count == 0 || early {
            return None;
        }
        let count = std::mem::take(&mut self.count);
        self.told = Some(now);
        tracing::warn!(count, last = %self.last, "{}", self.what);
        Some(count)
    }
}

async fn shake(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    spoke: &AtomicBool,
) -> io::Result<TlsStream> {
    stream.set_nodelay(true)?;
    let shaking = async {
        stream.readable().await?;
        spoke.store(true, Ordering::Relaxed);
        acceptor.accept(stream).await
    };
    let shaken = timeout(HANDSHAKE, shaking).await;
    let stream = shaken.map_err(|_elapsed| io::Error::from(io::ErrorKind::TimedOut))??;
    Ok(TlsStream(Box::new(stream.into())))
}

/// Connects to a [`TlsListener`] of the same job.
///
/// # Errors
/// See [`TlsError`].
pub async fn tls_connect(address: SocketAddr, secret: &Secret) -> Result<TlsStream, TlsError> {
    let config = Identity::new(secret)?.client(&[PROTOCOL])?;
    let late = |_elapsed| io::Error::from(io::ErrorKind::TimedOut);
    let connecting = async {
        let stream = timeout(HANDSHAKE, TcpStream::connect(address))
            .await
            .map_err(late)??;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    let stream = connecting
        .await
        .map_err(|source| TlsError::Socket { address, source })?;
    let shaking = async {
        let name = ServerName::try_from(Identity::NAME).map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::new(config));
        timeout(HANDSHAKE, connector.connect(name, stream))
            .await
            .map_err(late)?
    };
    let stream = shaking
        .await
        .map_err(|source| TlsError::Handshake { address, source })?;
    Ok(TlsStream(Box::new(stream.into())))
}

/// A connection to a peer of this job.
pub struct TlsStream(Box<tokio_rustls::TlsStream<TcpStream>>);

impl std::fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsStream(..)")
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
}

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
        // A client of TLS 1.3 learns of it only when it reads.
        !matches!(stream.read(&mut [0; 1]).await, Ok(1))
    }

    #[tokio::test]
    async fn members_of_the_job_talk_and_a_slow_one_keeps_nobody_waiting() {
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
    async fn nobody_else_gets_a_byte() {
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
        // Somebody who trusts the job, and has no certificate of it.
        let nobody = own.client_without_certificate().unwrap();
        assert!(refused(address, nobody).await, "no certificate");
        assert!(!accepting.is_finished());
        let mut stream = tls_connect(address, &secret).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'!');
        drop(accepting.await.unwrap());
    }

    /// A member's handshake succeeds however many silent connections exist or arrive during it.
    #[tokio::test]
    async fn silent_connections_keep_no_member_out() {
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
        assert!(listener.under_way.len() <= HANDSHAKES_OF_ADDRESS_MAX);
        drop((stream, silent));
    }

    /// Many refusals within a minute add only a line or two to the log.
    #[tokio::test(start_paused = true)]
    async fn refusals_are_told_once_a_minute() {
        let mut refused = Repeated::new("refused");
        let error = io::Error::other("no certificate");
        let peer = Some(([127, 0, 0, 1], 1).into());
        let (mut lines, mut told) = (0, 0);
        for _ in 0..24_000 {
            let before = refused.told;
            refused.note(peer, &error);
            if refused.told != before {
                lines += 1;
                told += 1 + refused.count;
            }
            tokio::time::advance(Duration::from_micros(208)).await;
        }
        assert_eq!((lines, told), (1, 1));
        tokio::time::sleep_until(refused.due().unwrap()).await;
        assert_eq!(refused.tell(), Some(23_999));
        assert_eq!((refused.due(), refused.tell()), (None, None));
        assert!(refused.last.contains("127.0.0.1: no certificate"));
    }

    #[test]
    fn a_host_of_ipv6_has_one_place_whatever_addresses_it_takes() {
        let one = network("2001:db8::1".parse().unwrap());
        assert_eq!(one, network("2001:db8::ffff:1".parse().unwrap()));
        assert_ne!(one, network("2001:db8:0:1::1".parse().unwrap()));
        let mapped = network("::ffff:10.0.0.1".parse().unwrap());
        assert_eq!(mapped, network("10.0.0.1".parse().unwrap()));
    }

    #[tokio::test]
    async fn what_cannot_be_bound_or_reached_says_so() {
        let secret = Secret::generate().unwrap();
        let (listener, address) = listen(&secret).await;
        let taken = TlsListener::bind(address, &secret).await.unwrap_err();
        assert!(taken.to_string().contains(&address.to_string()), "{taken}");
        drop(listener);
        let gone = tls_connect(address, &secret).await.unwrap_err();
        assert!(matches!(gone, TlsError::Socket { .. }), "{gone}");
    }
}

//! TCP with the job's mutual TLS, for what is no part of the trees.
//!
//! The HTTP API listens on it. The same certificates as between nodes: whoever holds the job's secret
//! may connect, nobody else gets a byte.

use crate::identity::{Identity, IdentityError, Secret};
use rustls::pki_types::ServerName;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// What is spoken inside, as TLS agrees on it (ALPN).
const PROTOCOL: &[u8] = b"http/1.1";
/// Handshakes under way at a time: further peers wait in the kernel's queue.
const HANDSHAKES_MAX: usize = 64;
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
        })
    }

    /// Where it is bound.
    ///
    /// # Errors
    /// The system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next peer that has proven to be of this job, and its address. Handshakes go on side by side:
    /// nobody waits for a slow one. Those who fail are logged and left out. May be cancelled.
    pub async fn accept(&mut self) -> (TlsStream, SocketAddr) {
        loop {
            tokio::select! {
                Some(done) = self.handshakes.join_next() => match done {
                    Ok((peer, Ok(stream))) => return (stream, peer),
                    Ok((peer, Err(error))) => {
                        tracing::warn!(%peer, %error, "refused a TLS peer");
                    }
                    Err(_gone) => {}
                },
                accepted = self.listener.accept(), if self.handshakes.len() < HANDSHAKES_MAX => {
                    match accepted {
                        Ok((stream, peer)) => {
                            let acceptor = self.acceptor.0.clone();
                            self.handshakes.spawn(async move { (peer, shake(acceptor, stream).await) });
                        }
                        Err(error) => {
                            tracing::warn!(%error, "cannot accept a TCP connection");
                            tokio::time::sleep(PAUSE).await;
                        }
                    }
                }
            }
        }
    }
}

async fn shake(acceptor: TlsAcceptor, stream: TcpStream) -> io::Result<TlsStream> {
    stream.set_nodelay(true)?;
    let shaken = timeout(HANDSHAKE, acceptor.accept(stream)).await;
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

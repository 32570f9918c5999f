//! Benchmarks of the transport: bulk transfer compared with TCP and TLS, and idle connections.
//!
//! For `copperfs bench`; here because only this crate knows QUIC and TLS. Both wires use the same identities, the same
//! cipher suite and mutual authentication. Each end has a runtime of one thread, like a daemon. Knows neither frames nor
//! trees: the command measures a whole hop, with frames and verification, through [`crate::Overlay`]. Loopback only.

use crate::error::OverlayError;
use crate::identity::{Identity, IdentityError, Secret, SecretError};
use crate::transport::{KernelNetwork, Transport};
use bytes::Bytes;
use quinn::{Connection, RecvStream, SendStream};
use rustix::time::{ClockId, clock_gettime};
use rustls::pki_types::ServerName;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Bytes in one write.
const PIECE_BYTES: usize = 64 << 10;
/// Limits each step of a benchmark.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// A transport under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// This crate's transport.
    Quic,
    /// TCP without Nagle's algorithm, and rustls.
    Tls,
}

/// One transfer.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    /// Bytes of payload.
    pub bytes: u64,
    /// Time from the request to the last byte, at the receiver.
    pub wall: Duration,
    /// Processor time of the whole process meanwhile, which has both ends.
    pub cpu: Duration,
}

/// Why a benchmark failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The transport cannot be set up.
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    /// No certificate could be made.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// No secret could be made.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The connection failed.
    #[error("the connection under test failed: {0}")]
    Connection(String),
}

fn broken(error: impl std::fmt::Display) -> BenchError {
    BenchError::Connection(error.to_string())
}

/// Transfers `bytes` over one connection of `wire`, `samples` times after one warm-up. Blocks; must not be called within
/// a runtime.
///
/// # Errors
/// See [`BenchError`].
pub fn bulk(wire: Wire, bytes: u64, samples: usize) -> Result<Vec<Transfer>, BenchError> {
    let secret = Secret::generate()?;
    match wire {
        Wire::Quic => quic(&secret, bytes, samples),
        Wire::Tls => tls(&secret, bytes, samples),
    }
}

/// Returns the processor time of this process: all threads, user and system.
#[must_use]
pub fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
}

/// Runs both ends of a benchmark, each on a runtime of its own: `serve` sends the address on which it listens, and
/// `ask` connects to it.
fn both_ends<S, A>(
    serve: impl FnOnce(SyncSender<SocketAddr>) -> S + Send + 'static,
    ask: impl FnOnce(SocketAddr) -> A,
) -> Result<Vec<Transfer>, BenchError>
where
    S: Future<Output = Result<(), BenchError>> + Send + 'static,
    A: Future<Output = Result<Vec<Transfer>, BenchError>> + Send + 'static,
{
    // Lives until the other end has ended, so that it is told of the end.
    let asking = runtime()?;
    let (address_out, address_in) = sync_channel(1);
    let serving = std::thread::spawn(move || {
        let runtime = runtime()?;
        let serving = runtime.spawn(serve(address_out));
        let ended = runtime.block_on(serving).map_err(broken)?;
        runtime.shutdown_timeout(Duration::from_secs(1));
        ended
    });
    let asked = match address_in.recv() {
        Ok(address) => {
            let asked = asking.spawn(ask(address));
            asking.block_on(asked).map_err(broken).flatten()
        }
        Err(_never_listened) => Err(broken("the listening end died")),
    };
    serving.join().map_err(|_panic| closed())??;
    asked
}

/// Times `samples` calls of `transfer`, after one warm-up.
async fn timed<F>(
    bytes: u64,
    samples: usize,
    mut transfer: impl FnMut() -> F,
) -> Result<Vec<Transfer>, BenchError>
where
    F: Future<Output = Result<(), BenchError>>,
{
    let mut transfers = Vec::with_capacity(samples);
    for sample in 0..=samples {
        let (start, cpu) = (Instant::now(), cpu_time());
        transfer().await?;
        let transfer = Transfer {
            bytes,
            wall: start.elapsed(),
            cpu: cpu_time().saturating_sub(cpu),
        };
        if sample > 0 {
            transfers.push(transfer);
        }
    }
    Ok(transfers)
}

fn quic(secret: &Secret, bytes: u64, samples: usize) -> Result<Vec<Transfer>, BenchError> {
    let (of_server, secret) = (secret.clone(), secret.clone());
    let serve = move |address: SyncSender<SocketAddr>| async move {
        let transport =
            Transport::bind(&KernelNetwork, loopback(), &of_server, "server", true, &[])?;
        let _gone = address.send(transport.local_addr);
        let incoming = transport.endpoint.accept().await.ok_or_else(closed)?;
        let connection = incoming.await.map_err(broken)?;
        // Ends when the client closes the connection.
        while let Ok((send, recv)) = connection.accept_bi().await {
            answer(send, recv, bytes).await?;
        }
        Ok(())
    };
    both_ends(serve, move |address| async move {
        let client = Transport::bind(&KernelNetwork, loopback(), &secret, "client", false, &[])?;
        let connection = connect(&client, address).await?;
        let transfers = timed(bytes, samples, || ask(connection.clone(), bytes)).await;
        connection.close(0u32.into(), b"done");
        transfers
    })
}

fn closed() -> BenchError {
    broken("it was closed")
}

async fn connect(client: &Transport, address: SocketAddr) -> Result<Connection, BenchError> {
    let (config, endpoint) = (client.client.clone(), &client.endpoint);
    let connecting = endpoint.connect_with(config, address, Identity::NAME);
    connecting.map_err(broken)?.await.map_err(broken)
}

async fn answer(mut send: SendStream, mut recv: RecvStream, bytes: u64) -> Result<(), BenchError> {
    recv.read_to_end(64).await.map_err(broken)?;
    let piece = Bytes::from(vec![0x5a; PIECE_BYTES]);
    let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
    while left > 0 {
        // Two pieces in one write, like a parent that has the bytes.
        let first = piece.slice(..left.min(PIECE_BYTES));
        left -= first.len();
        let second = piece.slice(..left.min(PIECE_BYTES));
        left -= second.len();
        send.write_all_chunks(&mut [first, second])
            .await
            .map_err(broken)?;
    }
    send.finish().map_err(broken)
}

async fn ask(connection: Connection, bytes: u64) -> Result<(), BenchError> {
    let (mut send, mut recv) = connection.open_bi().await.map_err(broken)?;
    send.write_all(b"go").await.map_err(broken)?;
    send.finish().map_err(broken)?;
    let mut chunks: [Bytes; 16] = Default::default();
    let mut got = 0_u64;
    loop {
        let reading = tokio::time::timeout(STEP_TIMEOUT, recv.read_chunks(&mut chunks));
        match reading.await.map_err(broken)?.map_err(broken)? {
            Some(count) => {
                let lens = chunks[..count].iter().map(|chunk| chunk.len() as u64);
                got += lens.sum::<u64>();
            }
            None if got == bytes => return Ok(()),
            None => return Err(broken("bytes are missing")),
        }
    }
}

fn tls(secret: &Secret, bytes: u64, samples: usize) -> Result<Vec<Transfer>, BenchError> {
    let config = Identity::new(secret)?.server()?;
    let serve = move |address: SyncSender<SocketAddr>| async move {
        let listener = TcpListener::bind(loopback()).await?;
        let _gone = address.send(listener.local_addr()?);
        let (stream, _peer) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let mut stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await?;
        let piece = vec![0x5a; PIECE_BYTES];
        let mut go = [0; 2];
        // Ends when the client closes the connection.
        while stream.read_exact(&mut go).await.is_ok() {
            let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
            while left > 0 {
                let now = left.min(PIECE_BYTES);
                stream.write_all(&piece[..now]).await?;
                left -= now;
            }
            stream.flush().await?;
        }
        Ok(())
    };
    let config = Identity::new(secret)?.client(&[crate::wire::ALPN])?;
    both_ends(serve, move |address| async move {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(Identity::NAME).map_err(broken)?;
        let connector = TlsConnector::from(Arc::new(config));
        let stream = connector.connect(name, stream).await?;
        let stream = Arc::new(tokio::sync::Mutex::new(stream));
        timed(bytes, samples, || {
            let stream = Arc::clone(&stream);
            async move {
                let mut stream = stream.lock().await;
                stream.write_all(b"go").await?;
                stream.flush().await?;
                let mut buffer = vec![0; PIECE_BYTES];
                let mut left = bytes;
                while left > 0 {
                    match stream.read(&mut buffer).await? {
                        0 => return Err(closed()),
                        got => left = left.saturating_sub(got as u64),
                    }
                }
                Ok(())
            }
        })
        .await
    })
}

/// One side of idle connections, over the transport of nodes. Dropping it closes them.
pub struct Idle {
    transport: Transport,
    connections: Vec<Connection>,
}

impl Idle {
    /// The listening side, like a parent, on a loopback port. Must be called within a runtime.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn listen(secret: &Secret) -> Result<Self, BenchError> {
        Self::bind(secret, "server", true)
    }

    /// The connecting side, like a child. Must be called within a runtime.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn connector(secret: &Secret) -> Result<Self, BenchError> {
        Self::bind(secret, "client", false)
    }

    fn bind(secret: &Secret, name: &str, serve: bool) -> Result<Self, BenchError> {
        Ok(Self {
            transport: Transport::bind(&KernelNetwork, loopback(), secret, name, serve, &[])?,
            connections: Vec::new(),
        })
    }

    /// The bound address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.transport.local_addr
    }

    /// Accepts `count` further connections.
    ///
    /// # Errors
    /// See [`BenchError`]; a minute without a connection.
    pub async fn accept(&mut self, count: usize) -> Result<(), BenchError> {
        for _ in 0..count {
            let accepting = tokio::time::timeout(STEP_TIMEOUT, self.transport.endpoint.accept());
            let incoming = accepting.await.map_err(broken)?.ok_or_else(closed)?;
            self.connections.push(incoming.await.map_err(broken)?);
        }
        Ok(())
    }

    /// Makes `count` further connections to `address`, one after another.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub async fn connect(&mut self, address: SocketAddr, count: usize) -> Result<(), BenchError> {
        for _ in 0..count {
            let connection = connect(&self.transport, address).await?;
            self.connections.push(connection);
        }
        Ok(())
    }

    /// The number of live connections.
    #[must_use]
    pub fn alive(&self) -> usize {
        let connections = self.connections.iter();
        let alive = connections.filter(|connection| connection.close_reason().is_none());
        alive.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_wires_transfer_all_bytes() {
        for wire in [Wire::Quic, Wire::Tls] {
            let found = bulk(wire, (1 << 20) + 1, 2).unwrap();
            assert_eq!(found.len(), 2, "{wire:?}");
            for transfer in found {
                assert_eq!(transfer.bytes, (1 << 20) + 1);
                assert!(transfer.wall > Duration::ZERO && transfer.cpu > Duration::ZERO);
            }
        }
    }

    #[tokio::test]
    async fn idle_connections_stay_alive() {
        let secret = Secret::generate().unwrap();
        let mut server = Idle::listen(&secret).unwrap();
        let mut client = Idle::connector(&secret).unwrap();
        let address = server.local_addr();
        let (accepted, connected) = tokio::join!(server.accept(5), client.connect(address, 5));
        accepted.unwrap();
        connected.unwrap();
        assert_eq!((server.alive(), client.alive()), (5, 5));
    }
}

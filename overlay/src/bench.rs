//! What the transport costs, measured: bulk transfer against TCP with TLS, idle connections.
//!
//! For `copperfs bench`, here because only this crate knows QUIC and TLS. Both wires use the same
//! identities, the same cipher suite and mutual authentication; each end has a runtime of one thread,
//! as a daemon has. Knows neither frames nor the tree: a whole hop, with frames and verification, is
//! measured through [`crate::Overlay`] by whoever owns the command. Loopback only.

use crate::error::OverlayError;
use crate::identity::{Identity, IdentityError, Secret, SecretError};
use crate::transport::{KernelNetwork, Transport};
use bytes::Bytes;
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use rustix::time::{ClockId, clock_gettime};
use rustls::pki_types::ServerName;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Bytes that are handed to the wire at a time.
const PIECE_BYTES: usize = 64 << 10;
/// Longest time that any step may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What carries the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// This crate's transport.
    Quic,
    /// TCP (without delay) and rustls.
    Tls,
}

/// One transfer.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    /// Bytes of payload.
    pub bytes: u64,
    /// From the question to the last byte, at the receiver.
    pub wall: Duration,
    /// Processor time of the whole process meanwhile: both ends.
    pub cpu: Duration,
}

/// Why something could not be measured.
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

/// Moves `bytes` over one connection of `wire`, `samples` times after one time that does not count.
/// Blocks; must not be called within a runtime.
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

/// Processor time that this process has used, all threads, user and system.
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

/// Runs `serve` on a thread and a runtime of its own; the address comes from `bind`.
fn server<F>(
    serve: impl FnOnce(std::sync::mpsc::SyncSender<SocketAddr>) -> F + Send + 'static,
) -> Result<(SocketAddr, JoinHandle<Result<(), BenchError>>), BenchError>
where
    F: Future<Output = Result<(), BenchError>> + Send + 'static,
{
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::spawn(move || {
        let runtime = runtime()?;
        let serving = runtime.spawn(serve(tell));
        let ended = runtime.block_on(serving).map_err(broken)?;
        runtime.shutdown_timeout(Duration::from_secs(1));
        ended
    });
    match told.recv() {
        Ok(address) => Ok((address, thread)),
        Err(_never_listened) => Err(match thread.join() {
            Ok(Err(error)) => error,
            _ => broken("the listening end died"),
        }),
    }
}

/// `samples` timed calls of `transfer` after one that does not count.
async fn timed<F>(
    bytes: u64,
    samples: usize,
    mut transfer: impl FnMut() -> F,
) -> Result<Vec<Transfer>, BenchError>
where
    F: Future<Output = Result<(), BenchError>>,
{
    let mut found = Vec::with_capacity(samples);
    for sample in 0..=samples {
        let (start, cpu) = (Instant::now(), cpu_time());
        transfer().await?;
        let transfer = Transfer {
            bytes,
            wall: start.elapsed(),
            cpu: cpu_time().saturating_sub(cpu),
        };
        if sample > 0 {
            found.push(transfer);
        }
    }
    Ok(found)
}

fn quic(secret: &Secret, bytes: u64, samples: usize) -> Result<Vec<Transfer>, BenchError> {
    let of_server = secret.clone();
    let (address, serving) = server(move |tell| async move {
        let transport = Transport::bind(&KernelNetwork, loopback(), &of_server, "server", true)?;
        let _gone = tell.send(transport.local_addr);
        let incoming = transport.endpoint.accept().await.ok_or_else(closed)?;
        let connection = incoming.await.map_err(broken)?;
        // Until the other side closes.
        while let Ok((send, recv)) = connection.accept_bi().await {
            answer(send, recv, bytes).await?;
        }
        Ok(())
    })?;
    let secret = secret.clone();
    let runtime = runtime()?;
    let asking = runtime.spawn(async move {
        let (_endpoint, connection) = connect(&secret, address).await?;
        let found = timed(bytes, samples, || ask(connection.clone(), bytes)).await;
        connection.close(0u32.into(), b"done");
        found
    });
    let found = runtime.block_on(asking).map_err(broken)?;
    serving.join().map_err(|_panic| closed())??;
    found
}

fn closed() -> BenchError {
    broken("it was closed")
}

async fn connect(
    secret: &Secret,
    address: SocketAddr,
) -> Result<(Endpoint, Connection), BenchError> {
    let transport = Transport::bind(&KernelNetwork, loopback(), secret, "client", false)?;
    let connecting =
        transport
            .endpoint
            .connect_with(transport.client.clone(), address, Identity::NAME);
    let connection = connecting.map_err(broken)?.await.map_err(broken)?;
    Ok((transport.endpoint, connection))
}

async fn answer(mut send: SendStream, mut recv: RecvStream, bytes: u64) -> Result<(), BenchError> {
    recv.read_to_end(64).await.map_err(broken)?;
    let piece = Bytes::from(vec![0x5a; PIECE_BYTES]);
    let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
    while left > 0 {
        // Two at a time: what a parent that has the bytes writes at once.
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
        let reading = tokio::time::timeout(PATIENCE, recv.read_chunks(&mut chunks));
        match reading.await.map_err(broken)?.map_err(broken)? {
            Some(count) => {
                got += chunks[..count]
                    .iter()
                    .map(|chunk| chunk.len() as u64)
                    .sum::<u64>();
            }
            None if got == bytes => return Ok(()),
            None => return Err(broken("bytes are missing")),
        }
    }
}

fn tls(secret: &Secret, bytes: u64, samples: usize) -> Result<Vec<Transfer>, BenchError> {
    let config = Identity::new(secret)?.server()?;
    let (address, serving) = server(move |tell| async move {
        let listener = TcpListener::bind(loopback()).await?;
        let _gone = tell.send(listener.local_addr()?);
        let (stream, _peer) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let mut stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await?;
        let piece = vec![0x5a; PIECE_BYTES];
        let mut go = [0; 2];
        // Until the other side closes.
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
    })?;
    let config = Identity::new(secret)?.client(&[crate::wire::ALPN])?;
    let runtime = runtime()?;
    let asking = runtime.spawn(async move {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(Identity::NAME).map_err(broken)?;
        let stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await?;
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
    });
    let found = runtime.block_on(asking).map_err(broken)?;
    serving.join().map_err(|_panic| closed())??;
    found
}

/// Connections that nobody uses, one side of them. They live as long as this does; its transport is
/// the one that nodes use.
#[derive(Debug)]
pub struct Idle {
    transport: Transport,
    connections: Vec<Connection>,
}

impl Idle {
    /// The side that listens, as a parent does, on a loopback port. Must be called within a runtime.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn listen(secret: &Secret) -> Result<Self, BenchError> {
        Ok(Self {
            transport: Transport::bind(&KernelNetwork, loopback(), secret, "server", true)?,
            connections: Vec::new(),
        })
    }

    /// The side that connects, as a child does. Must be called within a runtime.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn connector(secret: &Secret) -> Result<Self, BenchError> {
        Ok(Self {
            transport: Transport::bind(&KernelNetwork, loopback(), secret, "client", false)?,
            connections: Vec::new(),
        })
    }

    /// Where it is bound.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.transport.local_addr
    }

    /// Accepts `count` more connections.
    ///
    /// # Errors
    /// See [`BenchError`]; a minute without a connection.
    pub async fn accept(&mut self, count: usize) -> Result<(), BenchError> {
        for _ in 0..count {
            let accepting = tokio::time::timeout(PATIENCE, self.transport.endpoint.accept());
            let incoming = accepting.await.map_err(broken)?.ok_or_else(closed)?;
            self.connections.push(incoming.await.map_err(broken)?);
        }
        Ok(())
    }

    /// Makes `count` more connections to `address`, one after another.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub async fn connect(&mut self, address: SocketAddr, count: usize) -> Result<(), BenchError> {
        for _ in 0..count {
            let connecting = self.transport.endpoint.connect_with(
                self.transport.client.clone(),
                address,
                Identity::NAME,
            );
            let connection = connecting.map_err(broken)?.await.map_err(broken)?;
            self.connections.push(connection);
        }
        Ok(())
    }

    /// How many connections are alive.
    #[must_use]
    pub fn alive(&self) -> usize {
        self.connections
            .iter()
            .filter(|connection| connection.close_reason().is_none())
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_wires_move_what_they_say() {
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
    async fn idle_connections_stay() {
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

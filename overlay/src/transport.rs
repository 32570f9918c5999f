//! QUIC, tuned by measurement: socket buffers, windows, MTU, keep-alive.
//!
//! The project's benchmarks give the reasons. Windows larger than the socket's receive buffer collapse throughput,
//! so they are sized from the buffer that the kernel grants. A send of more than 64 KiB is lost silently, so
//! segments are capped. quinn's default initial window starves a fresh connection. Knows neither frames nor trees.

mod endpoints;
mod group;
mod socket;
pub(crate) mod stream;

pub(crate) use endpoints::Transport;

use crate::error::OverlayError;
use crate::identity::Identity;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use quinn::congestion::CubicConfig;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{AsyncUdpSocket, ServerConfig, TransportConfig, VarInt};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

/// Most lanes of a node.
pub const LANES_MAX: usize = 16;
/// Streams that a child or a reader of items may have open at first. quinn allocates memory for all of them, so a
/// peer gets more only when it needs them ([`more_streams`]).
pub(crate) const STREAMS_OF_CHILD: u32 = 64;
/// Most streams that a child may have open, so that hundreds of hanging requests do not block the next one. They
/// take 95 KiB of the parent's memory.
const STREAMS_OF_CHILD_MAX: u32 = 1024;
/// Streams that a parent may have open, for requests to the whole tree.
const STREAMS_OF_PARENT: u32 = 16;
/// Requested size of the socket buffers.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// Most bytes in flight on one connection, if the socket buffers hold them.
const WINDOW_BYTES_MAX: u64 = 1 << 20;
/// The smallest window, even if the kernel grants less.
const WINDOW_BYTES_MIN: u64 = 128 << 10;
/// Streams of a child that may stall, unread by their consumer, before its connection stalls.
const STALLED_STREAMS: u64 = 16;
/// The same for a connection to a home, of which a node has many. Items are assembled in memory as they arrive, so
/// that a stream stalls only if this node does.
const STALLED_STREAMS_OF_READER: u64 = 4;
/// Bytes from one child that a parent holds unread: requests and reports, never files.
const QUESTIONS_BYTES_MAX: u64 = 1 << 20;
/// Largest UDP payload that is probed for: a jumbo frame of 9,000 bytes less its headers.
const DATAGRAM_BYTES_MAX: u16 = 8972;
/// Interval of packets on an idle connection. Only the child sends them. While requests are in flight it probes more
/// often ([`crate::OverlayConfig::silence`]).
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// A connection without packets for this long ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of probes that either side holds. They are never read, and newer ones replace older ones. quinn sends no
/// datagrams to a peer that takes none.
const PROBES_BYTES_MAX: usize = 256;
/// Round trip before the first measurement. A lost first packet is repeated after three times this.
const INITIAL_RTT: Duration = Duration::from_millis(30);
/// First packets that wait for a decision. quinn silently drops further ones, including those of children,
/// so the queue must be large enough for a burst from strangers.
const INCOMING_MAX: usize = 1024;
/// Bytes received after a first packet and before the decision on it, for each connection and for all.
const INCOMING_BYTES: u64 = 16 << 10;
const INCOMING_BYTES_ALL: u64 = 4 << 20;

/// Codes that close a connection (`docs/wire.md`).
pub(crate) mod close {
    /// The node leaves.
    pub(crate) const LEAVING: u32 = 0;
    /// The peer is refused; the reason tells why.
    pub(crate) const REFUSED: u32 = 1;
    /// The peer broke the protocol.
    pub(crate) const PROTOCOL: u32 = 2;
    /// The same child has connected again.
    pub(crate) const REPLACED: u32 = 3;
    /// The peer was silent for too long, or sent a corrupt block.
    pub(crate) const GIVEN_UP: u32 = 4;
    /// The node can reach no root. Another ancestor of the child may.
    pub(crate) const CUT_OFF: u32 = 5;
}

/// Packets that the peer may leave unacknowledged. An acknowledgement of its own, between an answer and the next
/// request, would wake the other side needlessly: a request for a small file costs a third less if the
/// acknowledgement travels with the next packet. Well below the smallest window in full packets.
const ACK_AFTER_PACKETS: u32 = 10;
/// How long the peer may delay an acknowledgement.
const ACK_DELAY_MAX: Duration = Duration::from_millis(5);

/// The part of an address that stands for one host: the whole IPv4 address, or the /64 network in IPv6.
pub(crate) fn host_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let network = address.to_bits() & (u128::MAX << 64);
            Ipv6Addr::from_bits(network).into()
        }
    }
}

/// A network for datagrams: the kernel's sockets, or a simulation.
pub trait Network: Send + Sync + 'static {
    /// Returns a socket bound to `address`, and the size of its receive buffer in bytes as the kernel counts it, which
    /// is twice its capacity.
    ///
    /// # Errors
    /// The address cannot be bound.
    fn bind(&self, address: SocketAddr) -> io::Result<(Arc<dyn AsyncUdpSocket>, usize)>;

    /// Returns the addresses of `address` (host and port, or IP and port), best first.
    ///
    /// # Errors
    /// The name cannot be resolved.
    fn resolve(&self, address: &str) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>>;

    /// The seed of an endpoint's random numbers; `None`: the system's random numbers.
    fn seed(&self) -> Option<[u8; 32]> {
        None
    }
}

/// The kernel's UDP sockets.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelNetwork;

impl Network for KernelNetwork {
    fn bind(&self, address: SocketAddr) -> io::Result<(Arc<dyn AsyncUdpSocket>, usize)> {
        wrapped(socket::bind(address, SOCKET_BUFFER_BYTES, false)?)
    }

    fn resolve(&self, address: &str) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
        let address = address.to_owned();
        Box::pin(async move { Ok(tokio::net::lookup_host(address).await?.collect()) })
    }
}

/// Returns UDP sockets bound to `address`, with large buffers: that of a node, and one for each of its `lanes`, of which there
/// are at most [`LANES_MAX`]. They share the port, and the kernel gives each packet to the socket of its connection. Where
/// the kernel cannot do that, the result is the node's socket alone. [`Bound`] uses them.
///
/// # Errors
/// The address cannot be bound, or is in use.
pub fn bind(address: SocketAddr, lanes: usize) -> io::Result<Vec<UdpSocket>> {
    let bind = |lanes| group::bind(address, SOCKET_BUFFER_BYTES, lanes);
    let lanes = u8::try_from(lanes.min(LANES_MAX)).unwrap_or(u8::MAX);
    if lanes == 0 {
        return bind(0);
    }
    bind(lanes).or_else(|error| {
        // If it is the address, this fails, too.
        let alone = bind(0)?;
        tracing::warn!(%error, "sockets cannot share a port here: one thread carries all items, in place of lanes");
        Ok(alone)
    })
}

/// A network in which sockets for other nodes are bound already.
pub struct Bound {
    sockets: Mutex<VecDeque<UdpSocket>>,
    network: Arc<dyn Network>,
}

impl Bound {
    /// The first sockets in `network` are `sockets`, in the order of [`bind`].
    #[must_use]
    pub fn new(sockets: Vec<UdpSocket>, network: Arc<dyn Network>) -> Self {
        Self {
            sockets: Mutex::new(sockets.into()),
            network,
        }
    }
}

impl Network for Bound {
    fn bind(&self, address: SocketAddr) -> io::Result<(Arc<dyn AsyncUdpSocket>, usize)> {
        let bound = self.sockets.lock().pop_front();
        bound.map_or_else(|| self.network.bind(address), wrapped)
    }

    fn resolve(&self, address: &str) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
        self.network.resolve(address)
    }

    fn seed(&self) -> Option<[u8; 32]> {
        self.network.seed()
    }
}

/// Returns `socket` for quinn, and the size of its receive buffer, as the kernel counts it.
fn wrapped(socket: UdpSocket) -> io::Result<(Arc<dyn AsyncUdpSocket>, usize)> {
    let granted = socket::buffer_bytes(&socket)?;
    Ok((socket::wrap(socket, DATAGRAM_BYTES_MAX)?, granted))
}

/// The kernel's UDP sockets, restricted to the addresses of a host in one network. A host's name often has an address
/// in a slower network too.
pub struct WithinNetwork<F>(
    /// Whether an address is in the network.
    pub F,
);

impl<F> Network for WithinNetwork<F>
where
    F: Fn(IpAddr) -> bool + Clone + Send + Sync + 'static,
{
    fn bind(&self, address: SocketAddr) -> io::Result<(Arc<dyn AsyncUdpSocket>, usize)> {
        KernelNetwork.bind(address)
    }

    fn resolve(&self, address: &str) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
        let (all, within) = (KernelNetwork.resolve(address), self.0.clone());
        Box::pin(async move {
            let mut found = all.await?;
            found.retain(|remote| within(remote.ip()));
            Ok(found)
        })
    }
}

fn server_config(identity: &Identity, window: u64) -> Result<ServerConfig, OverlayError> {
    let tls = QuicServerConfig::try_from(identity.server()?)
        .map_err(|error| OverlayError::Quic(error.into()))?;
    let mut server = ServerConfig::with_crypto(Arc::new(tls));
    // Children send requests, and never files.
    let config = transport_config(window, QUESTIONS_BYTES_MAX, STREAMS_OF_CHILD);
    server
        .transport_config(Arc::new(config))
        // Nodes do not change addresses, and forged packets must not move a connection.
        .migration(false)
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(INCOMING_BYTES_ALL);
    Ok(server)
}

/// Returns the bytes in flight that fit a receive buffer of `buffer_bytes`: a quarter, because the kernel doubles the
/// size that it reports, and half of the rest is its own overhead.
fn window_bytes(buffer_bytes: usize) -> u64 {
    let granted = u64::try_from(buffer_bytes).unwrap_or(u64::MAX);
    if granted / 4 < WINDOW_BYTES_MAX {
        tracing::warn!(
            granted_bytes = granted,
            "the kernel grants small socket buffers: transfers between nodes will be slower. As \
             root: sysctl -w net.core.rmem_max=4194304 net.core.wmem_max=4194304"
        );
    }
    (granted / 4).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX)
}

/// Returns the number of streams that a peer with `open` streams may have from now on, if it is more than `allowed`.
pub(crate) fn more_streams(allowed: u32, open: usize) -> Option<u32> {
    let scarce = open >= usize::try_from(allowed / 2).unwrap_or(usize::MAX);
    let more = allowed.saturating_mul(4).min(STREAMS_OF_CHILD_MAX);
    (scarce && more > allowed).then_some(more)
}

/// The configuration for connections of one direction. The sender's `window`, sized for the socket, bounds the bytes in
/// flight. The receive windows bound the unread bytes: `window` for a stream, `unread_max` for a connection. The peer may
/// open `streams` at a time.
fn transport_config(window: u64, unread_max: u64, streams: u32) -> TransportConfig {
    let mut cubic = CubicConfig::default();
    cubic.initial_window(window);
    let mut mtu = quinn::MtuDiscoveryConfig::default();
    mtu.upper_bound(DATAGRAM_BYTES_MAX);
    let varint = |value: u64| VarInt::from_u64(value).unwrap_or(VarInt::MAX);
    let mut acks = quinn::AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(VarInt::from_u32(ACK_AFTER_PACKETS))
        .max_ack_delay(Some(ACK_DELAY_MAX));
    let mut config = TransportConfig::default();
    config
        .mtu_discovery_config(Some(mtu))
        .ack_frequency_config(Some(acks))
        .congestion_controller_factory(Arc::new(cubic))
        .initial_rtt(INITIAL_RTT)
        .send_window(window)
        .stream_receive_window(varint(window.min(unread_max)))
        .receive_window(varint(unread_max))
        .max_concurrent_bidi_streams(VarInt::from_u32(streams))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(Some(PROBES_BYTES_MAX))
        .max_idle_timeout(quinn::IdleTimeout::try_from(IDLE_TIMEOUT).ok());
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_host() {
        let host = |text: &str| host_of(text.parse().unwrap());
        assert_eq!(host("2001:db8::1"), host("2001:db8::ffff:2"));
        assert_ne!(host("2001:db8::1"), host("2001:db8:0:1::1"));
        assert_eq!(host("::ffff:10.0.0.1"), host("10.0.0.1"));
        assert_ne!(host("10.0.0.2"), host("10.0.0.1"));
    }

    #[test]
    fn a_peer_gets_more_streams_when_it_uses_them() {
        assert_eq!(more_streams(STREAMS_OF_CHILD, 31), None);
        assert_eq!(more_streams(STREAMS_OF_CHILD, 32), Some(256));
        assert_eq!(more_streams(256, 128), Some(1024));
        assert_eq!(more_streams(1024, 1024), None);
    }

    #[test]
    fn windows_follow_the_granted_buffers() {
        assert_eq!(window_bytes(8 << 20), WINDOW_BYTES_MAX);
        assert_eq!(window_bytes(425_984), WINDOW_BYTES_MIN);
        assert_eq!(window_bytes(2 << 20), 512 << 10);
        assert_eq!(window_bytes(0), WINDOW_BYTES_MIN);
    }
}

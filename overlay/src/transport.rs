//! QUIC as measured to be fastest: socket buffers, windows, MTU, keep-alive.
//!
//! What is tuned here and why is in the project's benchmarks: windows larger than the socket's
//! receive buffer collapse throughput, so they are sized from what the kernel granted; a datagram of
//! more than 64 KiB is lost silently, so segments are capped; quinn's default initial window starves
//! a fresh connection. Does not know frames or the tree.

mod socket;
pub(crate) mod stream;

use crate::error::OverlayError;
use crate::identity::{Identity, Secret};
use crate::wire;
use futures_util::future::BoxFuture;
use quinn::congestion::CubicConfig;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    AsyncUdpSocket, ClientConfig, Endpoint, EndpointConfig, ServerConfig, TokioRuntime,
    TransportConfig, VarInt,
};
use quinn_proto::HashedConnectionIdGenerator;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Questions that a child, or a reader of items, may have open at first. quinn allocates for all of them, so that there are
/// more only for one that needs them ([`more_streams`]).
pub(crate) const STREAMS_OF_CHILD: u32 = 64;
/// Questions that a child may have open at most: so many that hundreds of hanging ones do not stop the
/// next. 95 KiB of the parent's memory.
const STREAMS_OF_CHILD_MAX: u32 = 1024;
/// Questions that a parent may have open: what is asked of the whole tree.
const STREAMS_OF_PARENT: u32 = 16;
/// What the socket buffers are asked to be.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// Bytes that may be on their way on one connection, if the socket buffers hold them.
const WINDOW_BYTES_MAX: u64 = 1 << 20;
/// The least window, whatever the kernel grants.
const WINDOW_BYTES_MIN: u64 = 128 << 10;
/// How many of a child's streams may stall, unread by their consumer, before its connection does.
const STALLED_STREAMS: u64 = 16;
/// The same towards a home, of which a node has many: items are put together in memory as they come,
/// so that a stream stalls only where this node does.
const STALLED_STREAMS_OF_READER: u64 = 4;
/// Bytes from one child that a parent holds unread: questions and reports, never files.
const QUESTIONS_BYTES_MAX: u64 = 1 << 20;
/// Largest UDP payload that is probed for: a jumbo frame of 9,000 bytes less its headers.
const DATAGRAM_BYTES_MAX: u16 = 8972;
/// Packets between neighbours that have nothing to say. Only the child sends them. While requests are
/// under way it looks for life more often ([`crate::Liveness`]).
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// After so long without a packet a connection without requests is given up.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of probes that either side holds: nobody reads them, and older ones make room. quinn sends
/// none where it would take none.
const PROBES_BYTES_MAX: usize = 256;
/// What is assumed before the first measurement: a lost first packet is repeated after three of it.
const INITIAL_RTT: Duration = Duration::from_millis(30);
/// First packets that wait for a decision. Quinn silently drops further ones, including those of children,
/// so the queue must be large enough for a burst from strangers.
const INCOMING_MAX: usize = 1024;
/// Bytes received after a first packet and before the decision on it, for each connection and for all.
const INCOMING_BYTES: u64 = 16 << 10;
const INCOMING_BYTES_ALL: u64 = 4 << 20;

/// Codes with which a connection is closed (`docs/wire.md`).
pub(crate) mod close {
    /// The node leaves.
    pub(crate) const LEAVING: u32 = 0;
    /// The peer is not wanted here; the reason says why.
    pub(crate) const REFUSED: u32 = 1;
    /// The peer broke the protocol.
    pub(crate) const PROTOCOL: u32 = 2;
    /// The same child has connected anew.
    pub(crate) const REPLACED: u32 = 3;
    /// Nothing came for too long, or something wrong.
    pub(crate) const GIVEN_UP: u32 = 4;
    /// The node can reach no root: the child may know one that can.
    pub(crate) const CUT_OFF: u32 = 5;
}

/// Packets that the peer may leave unacknowledged. Between an answer and the next question an
/// acknowledgement of its own would wake the other side for nothing: a request for a small file costs
/// a third less when it travels with the next packet. Well below the smallest window in full packets.
const ACK_AFTER_PACKETS: u32 = 10;
/// How long it may take its time.
const ACK_DELAY_MAX: Duration = Duration::from_millis(5);

/// Where datagrams travel: the kernel's sockets, or a simulated network.
pub trait Network: Send + Sync + fmt::Debug + 'static {
    /// A socket bound to `address`, and the receive buffer in bytes that it was granted (as the
    /// kernel counts: twice what fits).
    ///
    /// # Errors
    /// The address cannot be bound.
    fn bind(&self, address: SocketAddr) -> io::Result<(Arc<dyn AsyncUdpSocket>, usize)>;

    /// The addresses of `address` (host and port, or IP and port), best first.
    ///
    /// # Errors
    /// Nobody knows the name.
    fn resolve(&self, address: &str) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>>;

    /// The seed of all that is random in an endpoint; `None`: the system's randomness.
    fn seed(&self) -> Option<[u8; 32]> {
        None
    }
}

/// The kernel's UDP sockets.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelNetwork;

impl Network for KernelNetwork {
    fn bind(&self, address: SocketAddr) -> io::Result<(Arc<dyn AsyncUdpSocket>, usize)> {
        let (socket, granted) = socket::bind(address, SOCKET_BUFFER_BYTES)?;
        Ok((socket::wrap(socket, DATAGRAM_BYTES_MAX)?, granted))
    }

    fn resolve(&self, address: &str) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
        let address = address.to_owned();
        Box::pin(async move { Ok(tokio::net::lookup_host(address).await?.collect()) })
    }
}

/// The kernel's UDP sockets, towards those addresses of a host only that lie in one network: a host's
/// name often leads to a slow one too.
pub struct WithinNetwork<F>(
    /// Whether an address lies in it.
    pub F,
);

impl<F> fmt::Debug for WithinNetwork<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WithinNetwork")
    }
}

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

/// A node's end of all its connections.
#[derive(Debug)]
pub(crate) struct Transport {
    pub(crate) endpoint: Endpoint,
    /// Towards ancestors.
    pub(crate) client: ClientConfig,
    /// Towards the homes of items.
    pub(crate) reader: ClientConfig,
    pub(crate) local_addr: SocketAddr,
}

impl Transport {
    /// Binds `listen` and accepts connections of this job there if `serve`. `name` salts the key of
    /// stateless resets: a node that restarts at the same place tells its old peers at once that
    /// their connections are gone.
    pub(crate) fn bind(
        network: &dyn Network,
        listen: SocketAddr,
        secret: &Secret,
        name: &str,
        serve: bool,
    ) -> Result<Self, OverlayError> {
        let identity = Identity::new(secret)?;
        let listen_failed = |source| OverlayError::Listen {
            address: listen,
            source,
        };
        let (socket, buffer_bytes) = network.bind(listen).map_err(listen_failed)?;
        let local_addr = socket.local_addr().map_err(listen_failed)?;
        let window = window_bytes(buffer_bytes);
        let server = if serve {
            let tls = QuicServerConfig::try_from(identity.server()?)
                .map_err(|error| OverlayError::Tls(error.to_string()))?;
            let mut server = ServerConfig::with_crypto(Arc::new(tls));
            server
                .transport_config(Arc::new(server_transport(window)))
                .migration(false)
                .max_incoming(INCOMING_MAX)
                .incoming_buffer_size(INCOMING_BYTES)
                .incoming_buffer_size_total(INCOMING_BYTES_ALL);
            Some(server)
        } else {
            None
        };
        let tls = QuicClientConfig::try_from(identity.client(&[wire::ALPN])?)
            .map_err(|error| OverlayError::Tls(error.to_string()))?;
        let mut client = ClientConfig::new(Arc::new(tls));
        client.transport_config(Arc::new(client_transport(window)));
        let mut reader = client.clone();
        reader.transport_config(Arc::new(reader_transport(window)));
        let endpoint = Endpoint::new_with_abstract_socket(
            endpoint_config(secret, name, local_addr, network.seed())?,
            server,
            socket,
            Arc::new(TokioRuntime),
        )
        .map_err(listen_failed)?;
        Ok(Self {
            endpoint,
            client,
            reader,
            local_addr,
        })
    }
}

fn endpoint_config(
    secret: &Secret,
    name: &str,
    local_addr: SocketAddr,
    seed: Option<[u8; 32]>,
) -> Result<EndpointConfig, OverlayError> {
    let salt = format!("{name} {local_addr}");
    let key = secret.derive("copperfs 1 2026-11 stateless reset", salt.as_bytes());
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &key);
    // A node answers with a reset only for identifiers that it recognises as its own of earlier.
    let [a, b, c, d, e, f, g, h, ..] =
        secret.derive("copperfs 1 2026-11 connection identifiers", salt.as_bytes());
    let id_key = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let mut config = EndpointConfig::new(Arc::new(key));
    config
        .rng_seed(seed)
        .cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(id_key)))
        .max_udp_payload_size(DATAGRAM_BYTES_MAX)
        .map_err(|error| OverlayError::Tls(error.to_string()))?;
    Ok(config)
}

/// Bytes in flight that a receive buffer of `buffer_bytes` takes: the kernel counts its overhead
/// too, about as much again, and doubles what it says.
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

/// The streams that a child with `open` ones may have from now on, if those are more than `allowed`.
pub(crate) fn more_streams(allowed: u32, open: usize) -> Option<u32> {
    let scarce = open >= usize::try_from(allowed / 2).unwrap_or(usize::MAX);
    let more = allowed.saturating_mul(4).min(STREAMS_OF_CHILD_MAX);
    (scarce && more > allowed).then_some(more)
}

/// Towards children: they ask, and never send files.
fn server_transport(window: u64) -> TransportConfig {
    let mut config = transport_config(window, QUESTIONS_BYTES_MAX);
    config.max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_OF_CHILD));
    config
}

/// Towards the parent: its answers may have to wait for their consumers here.
fn client_transport(window: u64) -> TransportConfig {
    let mut config = transport_config(window, window * STALLED_STREAMS);
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_OF_PARENT))
        .keep_alive_interval(Some(KEEP_ALIVE));
    config
}

/// Towards a home: it asks nothing, and its answers are taken as they come.
fn reader_transport(window: u64) -> TransportConfig {
    let mut config = transport_config(window, window * STALLED_STREAMS_OF_READER);
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .keep_alive_interval(Some(KEEP_ALIVE));
    config
}

/// What is on its way is bounded by the sender's `window`, sized for the socket; what a consumer
/// leaves unread, by the receive windows: `window` a stream, `unread_max` a connection.
fn transport_config(window: u64, unread_max: u64) -> TransportConfig {
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
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(Some(PROBES_BYTES_MAX))
        .max_idle_timeout(quinn::IdleTimeout::try_from(IDLE_TIMEOUT).ok());
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_given_to_those_who_use_them() {
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

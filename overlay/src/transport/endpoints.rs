//! The endpoints of a node: one alone, or with lanes one for all sockets of the group and for each side that connects.

use super::group::{self, ConnectionIds};
use super::{
    DATAGRAM_BYTES_MAX, KEEP_ALIVE, Network, STALLED_STREAMS, STALLED_STREAMS_OF_READER,
    STREAMS_OF_PARENT, server_config, transport_config, window_bytes,
};
use crate::error::OverlayError;
use crate::identity::{Identity, Secret};
use crate::wire;
use copperfs_topology::digest;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{AsyncUdpSocket, ClientConfig, Endpoint, EndpointConfig, ServerConfig, TokioRuntime};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::runtime::Handle;

/// A node's endpoints.
#[derive(Clone, Debug)]
pub(crate) struct Transport {
    /// Accepts the connections of children, and of readers if there are no lanes.
    pub(crate) endpoint: Endpoint,
    /// Makes connections to ancestors, and to homes of items if there are no lanes. With lanes it is another endpoint: see
    /// [`group`].
    pub(crate) connecting: Endpoint,
    /// For connections to ancestors.
    pub(crate) client: ClientConfig,
    /// For connections to homes of items, if there are no lanes.
    pub(crate) reader: ClientConfig,
    pub(crate) lanes: Vec<LaneEndpoints>,
    pub(crate) local_addr: SocketAddr,
}

/// The endpoints of one lane, for readers of items and to homes of items.
#[derive(Clone, Debug)]
pub(crate) struct LaneEndpoints {
    /// Runs all tasks of its connections.
    pub(crate) runtime: Handle,
    /// `None` if the node accepts no connections.
    pub(crate) accepting: Option<Endpoint>,
    pub(crate) connecting: Endpoint,
    pub(crate) reader: ClientConfig,
}

impl Transport {
    /// Binds `listen` and, with `serve`, accepts connections of this job there. `name` salts the key of stateless
    /// resets, so that a node that restarts at the same address tells its peers at once that their connections are
    /// gone. With `lanes` the first sockets in `network` must be those of [`bind`](super::bind).
    pub(crate) fn bind(
        network: &dyn Network,
        listen: SocketAddr,
        secret: &Secret,
        name: &str,
        serve: bool,
        lanes: &[Handle],
    ) -> Result<Self, OverlayError> {
        let identity = Identity::new(secret)?;
        let binding = Binding {
            network,
            secret,
            name,
            lanes: u8::try_from(lanes.len()).unwrap_or(u8::MAX),
        };
        let any_port = SocketAddr::new(listen.ip(), 0);
        let (socket, buffer_bytes) = binding.socket(listen)?;
        let local_addr = socket
            .local_addr()
            .map_err(|error| listen_failed(listen, error))?;
        let window = window_bytes(buffer_bytes);
        let server = serve.then(|| server_config(&identity, window));
        let server = server.transpose()?;
        let endpoint = binding.endpoint(socket, server.clone(), 0)?;
        let mut accepting = Vec::new();
        for (lane, runtime) in (1..).zip(lanes) {
            let _runtime = runtime.enter();
            let accept = |server: &ServerConfig| {
                let (socket, _bytes) = binding.socket(listen)?;
                binding.endpoint(socket, Some(server.clone()), lane)
            };
            accepting.push(server.as_ref().map(accept).transpose()?);
        }
        // Only after all sockets of the group.
        let connect = || binding.endpoint(binding.socket(any_port)?.0, None, 0);
        let connecting = match lanes {
            [] => endpoint.clone(),
            _ => connect()?,
        };
        let [client, reader] = client_configs(&identity, window)?;
        // Nodes begin with different lanes, so that those of a large node are used alike by nodes with few.
        let offset = u8::try_from(digest(name.as_bytes()) & 0x7f).unwrap_or(0);
        let reader_of = |lane: u8| {
            let mut reader = reader.clone();
            let lane = offset.wrapping_add(lane) & 0x7f;
            reader.initial_dst_cid_provider(Arc::new(move || group::first_id(Some(lane))));
            reader
        };
        let mut of_lanes = Vec::new();
        for ((lane, runtime), accepting) in (0..).zip(lanes).zip(accepting) {
            let _runtime = runtime.enter();
            of_lanes.push(LaneEndpoints {
                runtime: runtime.clone(),
                accepting,
                connecting: connect()?,
                reader: reader_of(lane),
            });
        }
        Ok(Self {
            endpoint,
            connecting,
            client,
            reader: reader_of(0),
            lanes: of_lanes,
            local_addr,
        })
    }

    /// All endpoints.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        let of_lanes = self
            .lanes
            .iter()
            .flat_map(|lane| lane.accepting.iter().chain([&lane.connecting]));
        [&self.endpoint, &self.connecting]
            .into_iter()
            .chain(of_lanes)
    }
}

fn listen_failed(address: SocketAddr, source: io::Error) -> OverlayError {
    OverlayError::Listen { address, source }
}

/// What the endpoints of a node have in common.
struct Binding<'a> {
    network: &'a dyn Network,
    secret: &'a Secret,
    name: &'a str,
    lanes: u8,
}

impl Binding<'_> {
    fn socket(
        &self,
        address: SocketAddr,
    ) -> Result<(Arc<dyn AsyncUdpSocket>, usize), OverlayError> {
        let bound = self.network.bind(address);
        bound.map_err(|error| listen_failed(address, error))
    }

    /// An endpoint with a socket of the group, or with one of its own, whose number does not matter. Runs on the current
    /// runtime.
    fn endpoint(
        &self,
        socket: Arc<dyn AsyncUdpSocket>,
        server: Option<ServerConfig>,
        number: u8,
    ) -> Result<Endpoint, OverlayError> {
        let failed = |error| listen_failed(SocketAddr::from(([0, 0, 0, 0], 0)), error);
        let address = socket.local_addr().map_err(failed)?;
        let lanes = if server.is_some() { self.lanes } else { 0 };
        let config = self.endpoint_config(address, (number, lanes))?;
        let runtime = Arc::new(TokioRuntime);
        Endpoint::new_with_abstract_socket(config, server, socket, runtime)
            .map_err(|error| listen_failed(address, error))
    }

    fn endpoint_config(
        &self,
        local_addr: SocketAddr,
        (number, lanes): (u8, u8),
    ) -> Result<EndpointConfig, OverlayError> {
        let salt = format!("{} {local_addr}", self.name);
        let derive = |purpose| self.secret.derive(purpose, salt.as_bytes());
        let key = derive("copperfs 1 2026-11 stateless reset");
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &key);
        // quinn sends a reset only for identifiers that this key has made.
        let [a, b, c, d, e, f, g, h, ..] = derive("copperfs 1 2026-11 connection identifiers");
        let id_key = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let mut config = EndpointConfig::new(Arc::new(key));
        config
            .rng_seed(self.network.seed())
            .cid_generator(move || Box::new(ConnectionIds::new(id_key, number, lanes)))
            .max_udp_payload_size(DATAGRAM_BYTES_MAX)
            .map_err(|error| OverlayError::Quic(error.into()))?;
        Ok(config)
    }
}

/// The configurations for connections to ancestors, and to homes of items.
fn client_configs(identity: &Identity, window: u64) -> Result<[ClientConfig; 2], OverlayError> {
    let tls = QuicClientConfig::try_from(identity.client(&[wire::ALPN])?)
        .map_err(|error| OverlayError::Quic(error.into()))?;
    let mut client = ClientConfig::new(Arc::new(tls));
    client.initial_dst_cid_provider(Arc::new(|| group::first_id(None)));
    let reader = client.clone();
    // An ancestor's answers may wait for their consumers here; those of a home are read as they arrive.
    let mut sides = [client, reader];
    for (side, (stalled, streams)) in sides.iter_mut().zip([
        (STALLED_STREAMS, STREAMS_OF_PARENT),
        (STALLED_STREAMS_OF_READER, 0),
    ]) {
        let mut config = transport_config(window, window * stalled, streams);
        config.keep_alive_interval(Some(KEEP_ALIVE));
        side.transport_config(Arc::new(config));
    }
    Ok(sides)
}

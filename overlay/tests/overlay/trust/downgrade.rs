//! Handshakes that were made weaker, or that were recorded.

use crate::support::{TestTree, raw_client, within};
use copperfs_overlay::identity::Identity;
use copperfs_overlay::wire;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::crypto::{self, ExportKeyingMaterialError, KeyPair, Keys, Session};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError};
use rustls::CipherSuite;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// Offers TLS 1.2 where rustls would offer TLS 1.3.
struct Downgrading(Arc<QuicClientConfig>);

struct DowngradedSession(Box<dyn Session>);

impl crypto::ClientConfig for Downgrading {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let inner = Arc::clone(&self.0).start_session(version, server_name, params)?;
        Ok(Box::new(DowngradedSession(inner)))
    }
}

impl Session for DowngradedSession {
    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        // The extension supported_versions (43) with TLS 1.3 (0x0304) alone.
        const TLS13: [u8; 7] = [0, 43, 0, 3, 2, 3, 4];
        let begin = out.len();
        let keys = self.0.write_handshake(out);
        let offer = out[begin..].windows(TLS13.len()).position(|at| at == TLS13);
        if let Some(at) = offer {
            out[begin + at + TLS13.len() - 1] = 3;
        }
        keys
    }

    fn initial_keys(&self, id: &ConnectionId, side: Side) -> Keys {
        self.0.initial_keys(id, side)
    }
    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.0.handshake_data()
    }
    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.0.peer_identity()
    }
    fn early_crypto(&self) -> Option<(Box<dyn crypto::HeaderKey>, Box<dyn crypto::PacketKey>)> {
        self.0.early_crypto()
    }
    fn early_data_accepted(&self) -> Option<bool> {
        self.0.early_data_accepted()
    }
    fn is_handshaking(&self) -> bool {
        self.0.is_handshaking()
    }
    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        self.0.read_handshake(bytes)
    }
    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.0.transport_parameters()
    }
    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn crypto::PacketKey>>> {
        self.0.next_1rtt_keys()
    }
    fn is_valid_retry(&self, id: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.0.is_valid_retry(id, header, payload)
    }
    fn export_keying_material(
        &self,
        out: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.0.export_keying_material(out, label, context)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_1_2_is_refused() {
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(2));
    tree.start_node(0);
    let tls = Identity::new(&tree.secret)
        .unwrap()
        .client(&[wire::ALPN])
        .unwrap();
    let tls = Downgrading(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let mut endpoint = quinn::Endpoint::client(crate::support::LOOPBACK.parse().unwrap()).unwrap();
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(tls)));
    let connecting = endpoint.connect(tree.address(0), Identity::NAME).unwrap();
    let error = within(5, connecting).await.unwrap_err().to_string();
    // QUIC: "peer doesn't support any known protocol version", TLS alert 70.
    assert!(
        error.contains("protocol version") || error.contains("70"),
        "{error}"
    );
    assert!(tree.node(0).children(0).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_cipher_suites_are_refused() {
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(2));
    tree.start_node(0);
    let usual = rustls::crypto::aws_lc_rs::default_provider();
    let initial = usual
        .cipher_suites
        .iter()
        .find(|suite| suite.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256)
        .and_then(|suite| suite.tls13()?.quic_suite())
        .unwrap();
    for suite in [
        CipherSuite::TLS13_AES_256_GCM_SHA384,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    ] {
        let mut tls = Identity::new(&tree.secret)
            .unwrap()
            .client(&[wire::ALPN])
            .unwrap();
        let mut provider = usual.clone();
        provider
            .cipher_suites
            .retain(|offered| offered.suite() == suite);
        let mut other = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(super::TrustAnyone))
            .with_no_client_auth();
        other.alpn_protocols = std::mem::take(&mut tls.alpn_protocols);
        other.client_auth_cert_resolver = tls.client_auth_cert_resolver;
        let tls = QuicClientConfig::with_initial(Arc::new(other), initial).unwrap();
        let mut endpoint =
            quinn::Endpoint::client(crate::support::LOOPBACK.parse().unwrap()).unwrap();
        endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(tls)));
        let connecting = endpoint.connect(tree.address(0), Identity::NAME).unwrap();
        let error = within(5, connecting).await.unwrap_err().to_string();
        assert!(
            error.contains("NoCipherSuitesInCommon"),
            "{suite:?}: {error}"
        );
    }
    assert!(tree.node(0).children(0).is_empty());
}

/// Recorded early data could be replayed. No session is resumed, so there is no early data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_is_no_early_data_to_replay() {
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(2));
    tree.start_node(0);
    let mut tls = Identity::new(&tree.secret)
        .unwrap()
        .client(&[wire::ALPN])
        .unwrap();
    tls.resumption = rustls::client::Resumption::in_memory_sessions(16);
    tls.enable_early_data = true;
    let endpoint = raw_client(tls);
    for _ in 0..3 {
        let connecting = endpoint.connect(tree.address(0), Identity::NAME).unwrap();
        let Err(connecting) = connecting.into_0rtt() else {
            panic!("early data was possible");
        };
        let connection = within(5, connecting).await.unwrap();
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        send.write_all(&tree.hello(1)).await.unwrap();
        send.finish().unwrap();
        assert!(within(5, recv.read_to_end(64)).await.is_ok());
        connection.close(0u32.into(), b"");
    }
}

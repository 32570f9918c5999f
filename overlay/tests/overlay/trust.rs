//! Who gets in: members of this job that speak this version.

mod downgrade;
mod forged;
mod replay;

use crate::support::{TestTree, kind, path, raw_client, within};
use copperfs_overlay::identity::Identity;
use copperfs_overlay::{FailureKind, Files, LinkStatus, Secret, wire};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use std::sync::Arc;
use std::time::Duration;

/// A client that trusts every server.
#[derive(Debug)]
struct TrustAnyone;

impl ServerCertVerifier for TrustAnyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

/// Connects with `tls`. The node must not answer the hello.
async fn reception(tree: &TestTree, tls: rustls::ClientConfig) -> String {
    let endpoint = raw_client(tls);
    let connecting = endpoint.connect(tree.address(0), Identity::NAME).unwrap();
    let connection = match within(5, connecting).await {
        Ok(connection) => connection,
        Err(error) => return error.to_string(),
    };
    // The client's handshake ends before the server has looked at its certificate.
    if let Ok((mut send, mut recv)) = connection.open_bi().await {
        let _refused = send.write_all(&tree.hello(1)).await;
        let mut bytes = Vec::new();
        while let Ok(Some(chunk)) = within(5, recv.read_chunk(100, true)).await {
            bytes.extend_from_slice(&chunk.bytes);
        }
        assert_eq!(bytes, b"", "not one byte");
    }
    within(5, connection.closed()).await.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_certificate_of_the_job_no_byte_is_sent() {
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(2));
    tree.start_node(0);
    let anyone = || Arc::new(TrustAnyone);
    let other = Identity::new(&Secret::generate().unwrap()).unwrap();

    let mut stranger = other.client(&[wire::ALPN]).unwrap();
    stranger.dangerous().set_certificate_verifier(anyone());
    let error = reception(&tree, stranger).await;
    assert!(
        error.contains("certificate") || error.contains("cert"),
        "{error}"
    );

    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut nameless = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(anyone())
        .with_no_client_auth();
    nameless.alpn_protocols = vec![wire::ALPN.to_vec()];
    let error = reception(&tree, nameless).await;
    assert!(error.contains("certificate"), "{error}");
    assert!(tree.node(0).children(0).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_secret_is_named_as_the_reason() {
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(1));
    tree.start_node(0);
    tree.secret = Secret::generate().unwrap();
    tree.start_node(1);
    let failure = tree
        .parent(1)
        .list_page(path("dir"), None, 1)
        .await
        .unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unavailable);
    assert!(failure.detail.contains("job secret"), "{failure}");
    assert!(tree.node(0).children(0).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_protocol_version_is_refused_by_name() {
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(2));
    tree.start_node(0);
    let identity = Identity::new(&tree.secret).unwrap();
    for protocols in [&[&b"copperfs/1"[..]][..], &[&b"h3"[..]], &[]] {
        let error = reception(&tree, identity.client(protocols).unwrap()).await;
        assert!(error.contains("protocol"), "{error}");
    }
    // One that speaks both is welcome.
    let both = raw_client(identity.client(&[b"copperfs/1", wire::ALPN]).unwrap());
    let connecting = both.connect(tree.address(0), Identity::NAME).unwrap();
    assert!(within(5, connecting).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_of_another_version_is_named_as_the_reason() {
    let mut tree = TestTree::plan(2, 2, Duration::from_millis(800));
    let mut tls = Identity::new(&tree.secret).unwrap().server().unwrap();
    tls.alpn_protocols = vec![b"copperfs/99".to_vec()];
    let tls = quinn::crypto::rustls::QuicServerConfig::try_from(tls).unwrap();
    let config = quinn::ServerConfig::with_crypto(Arc::new(tls));
    let endpoint = quinn::Endpoint::server(config, tree.address(0)).unwrap();
    let accepting = endpoint.clone();
    let task = tokio::spawn(async move {
        while let Some(incoming) = accepting.accept().await {
            assert!(incoming.await.is_err());
        }
    });
    tree.start_node(1);
    assert_eq!(
        kind(tree.parent(1).list_page(path("dir"), None, 1).await),
        FailureKind::Unavailable
    );
    let LinkStatus::Connecting {
        reason: Some(reason),
    } = tree.status(1)
    else {
        panic!("not connected");
    };
    assert!(
        reason.contains("another version") && reason.contains("copperfs/11"),
        "{reason}"
    );
    endpoint.close(0u32.into(), b"");
    task.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_different_lists_report_the_difference() {
    let mut tree = TestTree::plan(3, 2, Duration::from_secs(1));
    tree.start_node(0);
    tree.arity = 3;
    tree.start_node(1);
    let failure = tree
        .parent(1)
        .list_page(path("dir"), None, 1)
        .await
        .unwrap_err();
    assert!(failure.detail.contains("arity"), "{failure}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaf_accepts_no_member() {
    let tree = TestTree::start(3, 2).await;
    let leaf = tree.node(1).local_addr().unwrap();
    for rank in 0..3 {
        let error = crate::support::refusal(&tree.secret, leaf, &tree.hello(rank)).await;
        assert!(error.contains("not above"), "{error}");
    }
}

//! Certificates that the job's own authority would not make today.
//!
//! The authority's key is derived here once more, by the rule of `docs/wire.md`: who holds the secret
//! can make any certificate, and still only a current one of the right kind opens.

use super::reception;
use crate::support::{LOOPBACK, TestTree, frame, path, raw_client, within};
use copperfs_overlay::identity::Identity;
use copperfs_overlay::wire::{self, FrameKind};
use copperfs_overlay::{FailureKind, Files, LinkStatus, Secret};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose as Purpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ED25519, date_time_ymd,
};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::sync::Arc;
use std::time::Duration;

type Authority = Issuer<'static, KeyPair>;

/// A certificate with its chain, and its key.
struct Forged {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

/// A new job's secret, and its authority as every holder of the secret can make it.
fn job() -> (Secret, CertificateDer<'static>, Authority) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    let secret = Secret::write_new(&file).unwrap();
    let hex = std::fs::read_to_string(file).unwrap();
    let digits = (0..64).step_by(2);
    let bytes: Vec<u8> = digits
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect();
    let seed = blake3::derive_key("copperfs 1 2026-11 job certificate authority", &bytes);
    let prefix = [
        0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20,
    ];
    let key = PrivatePkcs8KeyDer::from([&prefix[..], &seed].concat());
    let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ED25519).unwrap();
    let params = authority_params("copperfs job");
    let certificate = params.self_signed(&key).unwrap().der().clone();
    (secret, certificate, Issuer::new(params, key))
}

/// A leaf like those of nodes, modified by `change`.
fn leaf(issuer: &Authority, change: impl FnOnce(&mut CertificateParams)) -> Forged {
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let mut params = CertificateParams::new(vec![Identity::NAME.to_owned()]).unwrap();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![Purpose::ServerAuth, Purpose::ClientAuth];
    change(&mut params);
    let chain = vec![params.signed_by(&key, issuer).unwrap().der().clone()];
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    Forged { chain, key }
}

/// A leaf signed by another leaf, which a node could make with its own key.
fn leaf_of_leaf(issuer: &Authority) -> Forged {
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let mut params = CertificateParams::new(vec![Identity::NAME.to_owned()]).unwrap();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let between = params.signed_by(&key, issuer).unwrap().der().clone();
    let mut forged = leaf(&Issuer::new(params, key), |_| {});
    forged.chain.push(between);
    forged
}

/// A leaf of an authority of the same name, and another key.
fn leaf_of_namesake() -> Forged {
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    leaf(&Issuer::new(authority_params("copperfs job"), key), |_| {})
}

fn expire(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2021, 1, 1);
}

fn client(authority: &CertificateDer<'static>, forged: Forged) -> rustls::ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(forged.chain, forged.key)
        .unwrap();
    tls.alpn_protocols = vec![wire::ALPN.to_vec()];
    tls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_certificates_and_other_kinds_are_refused() {
    let (secret, authority, issuer) = job();
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(2));
    tree.secret = secret;
    tree.start_node(0);
    let cases = [
        ("expired", leaf(&issuer, expire)),
        (
            "of the future",
            leaf(&issuer, |params| {
                params.not_before = date_time_ymd(2400, 1, 1);
                params.not_after = date_time_ymd(2401, 1, 1);
            }),
        ),
        (
            "for servers only",
            leaf(&issuer, |params| {
                params.extended_key_usages = vec![Purpose::ServerAuth];
            }),
        ),
        ("of another leaf", leaf_of_leaf(&issuer)),
        ("of a namesake", leaf_of_namesake()),
    ];
    for (what, forged) in cases {
        let error = reception(&tree, client(&authority, forged)).await;
        assert!(
            error.contains("certificate") || error.contains("cert"),
            "{what}: {error}"
        );
        assert!(tree.node(0).children(0).is_empty(), "{what}");
    }
    // The forgeries are correct in all other respects: a current one is accepted.
    let endpoint = raw_client(client(&authority, leaf(&issuer, |_| {})));
    let connecting = endpoint.connect(tree.address(0), Identity::NAME).unwrap();
    let connection = within(5, connecting).await.unwrap();
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(&tree.hello(1)).await.unwrap();
    send.finish().unwrap();
    let answer = within(5, recv.read_to_end(64)).await.unwrap();
    assert_eq!(answer, frame(FrameKind::Welcome, &[1]));
}

/// Returns a child's reason for refusing a parent with this certificate.
async fn child_of(secret: Secret, forged: Forged) -> String {
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(1));
    tree.secret = secret;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(forged.chain, forged.key)
        .unwrap();
    tls.alpn_protocols = vec![wire::ALPN.to_vec()];
    let tls = quinn::crypto::rustls::QuicServerConfig::try_from(tls).unwrap();
    let config = quinn::ServerConfig::with_crypto(Arc::new(tls));
    let endpoint = quinn::Endpoint::server(config, LOOPBACK.parse().unwrap()).unwrap();
    tree.members[0].address = endpoint.local_addr().unwrap().to_string();
    let accepting = endpoint.clone();
    let task = tokio::spawn(async move {
        while let Some(incoming) = accepting.accept().await {
            assert!(incoming.await.is_err(), "a child took it for its parent");
        }
    });
    tree.start_node(1);
    let asked = tree.parent(1).list_page(path("dir"), None, 1).await;
    assert_eq!(asked.unwrap_err().kind, FailureKind::Unavailable);
    let status = tree.status(1);
    assert!(!task.is_finished());
    endpoint.close(0u32.into(), b"");
    task.abort();
    match status {
        LinkStatus::Connecting {
            reason: Some(reason),
        } => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_with_a_forged_certificate_is_refused() {
    let (secret, _authority, issuer) = job();
    for forged in [
        leaf(&issuer, expire),
        leaf(&issuer, |params| {
            params.extended_key_usages = vec![Purpose::ClientAuth];
        }),
        leaf_of_leaf(&issuer),
        leaf_of_namesake(),
    ] {
        let reason = child_of(secret.clone(), forged).await;
        assert!(reason.contains("TLS alert"), "{reason}");
    }
}

//! Certificates and TLS configurations from the job secret.
//!
//! The authority's Ed25519 key is derived from the secret, so every node has the same one. The leaf's key is new in
//! every process and never leaves it. TLS 1.3 only, one cipher suite, both sides authenticated, no resumption, no
//! early data.

use super::{Cipher, Secret};
use crate::wire;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, crypto::CryptoProvider};
use std::fmt;
use std::sync::Arc;

/// The certificates of a node: the authority of its job, which it trusts, and its own leaf.
pub struct Identity {
    authority: CertificateDer<'static>,
    leaf: CertificateDer<'static>,
    leaf_key: PrivatePkcs8KeyDer<'static>,
    cipher: Cipher,
}

/// Why no identity could be made. These are faults of the cryptographic library, never of the secret.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The certificate could not be made.
    #[error("cannot make this node's certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// TLS does not take it.
    #[error("cannot make this node's certificate: {0}")]
    Tls(#[from] rustls::Error),
    /// TLS cannot verify certificates of the authority.
    #[error("cannot make this node's certificate: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

impl Identity {
    /// The name in every leaf. A certificate proves that its node belongs to the job, not a host's name.
    pub const NAME: &str = "node.copperfs.invalid";

    /// Derives the job's authority and issues a leaf for this process. Its connections use the fastest cipher.
    ///
    /// # Errors
    /// Faults of the cryptographic library.
    pub fn new(secret: &Secret) -> Result<Self, IdentityError> {
        Self::with_cipher(secret, Cipher::fastest())
    }

    /// The same with this cipher.
    fn with_cipher(secret: &Secret, cipher: Cipher) -> Result<Self, IdentityError> {
        let key = authority_key(secret)?;
        let mut params = CertificateParams::default();
        let name = &mut params.distinguished_name;
        name.push(DnType::CommonName, "copperfs job");
        // There are no intermediate authorities.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = params.self_signed(&key)?.der().clone();
        let issuer = Issuer::new(params, key);

        let leaf_key = KeyPair::generate_for(&PKCS_ED25519)?;
        let mut params = CertificateParams::new(vec![Self::NAME.to_owned()])?;
        let name = &mut params.distinguished_name;
        name.push(DnType::CommonName, "copperfs node");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let leaf = params.signed_by(&leaf_key, &issuer)?.der().clone();
        let leaf_key = PrivatePkcs8KeyDer::from(leaf_key.serialize_der());
        Ok(Self {
            authority,
            leaf,
            leaf_key,
            cipher,
        })
    }

    /// Returns the TLS configuration of a client that offers `protocols` (normally [`wire::ALPN`] alone).
    ///
    /// # Errors
    /// Faults of the cryptographic library.
    pub fn client(&self, protocols: &[&[u8]]) -> Result<rustls::ClientConfig, IdentityError> {
        let mut config = rustls::ClientConfig::builder_with_provider(provider(self.cipher))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(self.roots()?)
            .with_client_auth_cert(vec![self.leaf.clone()], self.key())?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        config.resumption = rustls::client::Resumption::disabled();
        Ok(config)
    }

    /// Returns the TLS configuration of a server.
    ///
    /// # Errors
    /// Faults of the cryptographic library.
    pub fn server(&self) -> Result<rustls::ServerConfig, IdentityError> {
        let verifier = WebPkiClientVerifier::builder_with_provider(
            Arc::new(self.roots()?),
            provider(self.cipher),
        )
        .build()?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider(self.cipher))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![self.leaf.clone()], self.key())?;
        config.alpn_protocols = vec![wire::ALPN.to_vec()];
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// Returns the TLS configuration of a client that trusts the job and has no certificate.
    #[cfg(test)]
    pub(crate) fn client_without_certificate(&self) -> Result<rustls::ClientConfig, IdentityError> {
        Ok(
            rustls::ClientConfig::builder_with_provider(provider(self.cipher))
                .with_protocol_versions(&[&rustls::version::TLS13])?
                .with_root_certificates(self.roots()?)
                .with_no_client_auth(),
        )
    }

    fn roots(&self) -> Result<RootCertStore, IdentityError> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone())?;
        Ok(roots)
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.leaf_key.clone_key())
    }
}

/// Reveals nothing about the keys.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(..)")
    }
}

/// The authority's key: an Ed25519 seed derived from the secret, as PKCS#8 version 1 (RFC 8410).
fn authority_key(secret: &Secret) -> Result<KeyPair, IdentityError> {
    const PREFIX: [u8; 16] = [
        0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04,
        0x20,
    ];
    let seed = secret.derive("copperfs 1 2026-11 job certificate authority", b"");
    let key = PrivatePkcs8KeyDer::from([&PREFIX[..], &seed[..]].concat());
    Ok(KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ED25519)?)
}

/// aws-lc-rs with one cipher suite, the fastest on machines with AES instructions, of the library `cipher`.
fn provider(cipher: Cipher) -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![cipher.suite()],
        ..rustls::crypto::aws_lc_rs::default_provider()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{CipherSuite, SupportedCipherSuite};
    use std::io::{Read, Write};

    #[test]
    fn nodes_with_one_secret_share_an_authority_and_no_leaf() {
        let secret = Secret::generate().unwrap();
        let (a, b) = (
            Identity::new(&secret).unwrap(),
            Identity::new(&secret).unwrap(),
        );
        assert_eq!(a.authority, b.authority);
        assert_ne!(a.leaf, b.leaf);
        let other = Identity::new(&Secret::generate().unwrap()).unwrap();
        assert_ne!(a.authority, other.authority);
    }

    #[test]
    fn only_one_cipher_suite_is_offered() {
        for cipher in Cipher::ALL {
            let suites = &provider(cipher).cipher_suites;
            let suites: Vec<CipherSuite> = suites.iter().map(SupportedCipherSuite::suite).collect();
            assert_eq!(suites, [CipherSuite::TLS13_AES_128_GCM_SHA256]);
        }
    }

    /// Nodes on different processors use the ciphers of different libraries.
    #[test]
    fn nodes_with_other_libraries_connect() {
        let secret = Secret::generate().unwrap();
        for (client, server) in [(0, 1), (1, 0), (1, 1)] {
            let [client, server] = [client, server].map(|at| {
                let cipher = Cipher::ALL[at];
                Identity::with_cipher(&secret, cipher).unwrap()
            });
            let config = Arc::new(client.client(&[wire::ALPN]).unwrap());
            let name = Identity::NAME.try_into().unwrap();
            let mut client = rustls::ClientConnection::new(config, name).unwrap();
            let config = Arc::new(server.server().unwrap());
            let mut server = rustls::ServerConnection::new(config).unwrap();
            client.writer().write_all(b"hello").unwrap();
            for _round in 0..10 {
                let mut sent = Vec::new();
                client.write_tls(&mut sent).unwrap();
                server.read_tls(&mut sent.as_slice()).unwrap();
                server.process_new_packets().unwrap();
                let mut sent = Vec::new();
                server.write_tls(&mut sent).unwrap();
                client.read_tls(&mut sent.as_slice()).unwrap();
                client.process_new_packets().unwrap();
            }
            let mut received = [0; 5];
            server.reader().read_exact(&mut received).unwrap();
            assert_eq!(&received, b"hello");
        }
    }
}

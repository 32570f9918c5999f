//! The implementation of the cipher, chosen by measurement.
//!
//! All connections use AES-128-GCM. Two libraries have it, and each is the faster one on some processors: by a factor of
//! two, where the cipher is the largest part of the processor time of a transfer. So both are measured once in a process.
//! The peers of a connection may use different ones.

use rustls::crypto::{aws_lc_rs, ring};
use rustls::quic::{Keys, Version};
use rustls::{Side, SupportedCipherSuite};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The bytes of a measured packet: about those of a packet on a network with large frames.
const PACKET_BYTES: usize = 8192;
/// Packets in a round.
const PACKETS: u64 = 16;
/// Rounds, of which the shortest counts. All rounds of both libraries take less than a millisecond.
const ROUNDS: usize = 7;

/// An implementation of AES-128-GCM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cipher {
    /// That of `aws-lc-rs`.
    AwsLc,
    /// That of `ring`.
    Ring,
}

impl Cipher {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::AwsLc, Self::Ring];

    /// Returns the fastest one on this machine. Measures them at the first call.
    #[must_use]
    pub fn fastest() -> Self {
        static FASTEST: OnceLock<Cipher> = OnceLock::new();
        *FASTEST.get_or_init(|| {
            let all = Self::ALL.into_iter();
            let fastest = all.min_by_key(|cipher| cipher.round().unwrap_or(Duration::MAX));
            let fastest = fastest.unwrap_or(Self::AwsLc);
            tracing::debug!(name = fastest.name(), "the faster cipher");
            fastest
        })
    }

    /// Returns the name of the library.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AwsLc => "aws-lc-rs",
            Self::Ring => "ring",
        }
    }

    /// Measures how many bytes it encrypts per second, on one core. `None`: it cannot be used.
    #[must_use]
    pub fn bytes_per_second(self) -> Option<f64> {
        let bytes = PACKETS * PACKET_BYTES as u64;
        #[expect(clippy::cast_precision_loss, reason = "some 100,000")]
        let bytes = bytes as f64;
        Some(bytes / self.round()?.as_secs_f64())
    }

    /// Returns the cipher suite for TLS and QUIC.
    pub(super) fn suite(self) -> SupportedCipherSuite {
        match self {
            Self::AwsLc => aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
            Self::Ring => ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        }
    }

    /// Returns the keys of packets for a measurement or a test.
    fn keys(self, side: Side) -> Option<Keys> {
        let suite = self.suite().tls13()?;
        let quic = suite.quic?;
        Some(Keys::initial(Version::V1, suite, quic, b"measured", side))
    }

    /// Returns the time for [`PACKETS`].
    fn round(self) -> Option<Duration> {
        let keys = self.keys(Side::Client)?;
        let mut packet = vec![0; PACKET_BYTES];
        let mut round = || {
            let begun = Instant::now();
            for number in 0..PACKETS {
                let tag = keys
                    .local
                    .packet
                    .encrypt_in_place(number, b"header", &mut packet);
                tag.ok()?;
            }
            Some(begun.elapsed())
        };
        (0..ROUNDS).map(|_| round()).min()?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one library has encrypted, the other one decrypts.
    #[test]
    fn libraries_read_each_others_packets() {
        for (from, to) in
            [(0, 1), (1, 0), (0, 0), (1, 1)].map(|(from, to)| (Cipher::ALL[from], Cipher::ALL[to]))
        {
            let sender = from.keys(Side::Client).unwrap().local.packet;
            let receiver = to.keys(Side::Server).unwrap().remote.packet;
            let text = vec![7; 1000];
            let mut packet = text.clone();
            let tag = sender.encrypt_in_place(5, b"header", &mut packet).unwrap();
            assert_ne!(packet, text);
            packet.extend_from_slice(tag.as_ref());
            let mut forged = packet.clone();
            forged[3] ^= 1;
            receiver
                .decrypt_in_place(5, b"header", &mut forged)
                .unwrap_err();
            let found = receiver.decrypt_in_place(5, b"header", &mut packet);
            assert_eq!(found.unwrap(), text, "{from:?} to {to:?}");
        }
    }

    #[test]
    fn one_is_chosen_by_its_speed() {
        let speeds = Cipher::ALL.map(|cipher| cipher.bytes_per_second().unwrap());
        println!("{:?}: {speeds:?}", Cipher::ALL.map(Cipher::name));
        assert!(speeds.iter().all(|speed| *speed > 0.0));
        assert_eq!(Cipher::fastest(), Cipher::fastest());
    }
}

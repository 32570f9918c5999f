//! Why a node cannot start.

use crate::identity::IdentityError;
use crate::membership::MembershipError;
use std::io;
use std::net::SocketAddr;

/// Why a node could not start.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    /// The member list, the roots and this node's identity do not fit together.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// A timeout is 0.
    #[error("a time-out of 0 leaves no time for any answer")]
    ZeroTimeout,
    /// The address cannot be bound.
    #[error("cannot listen on {address} (UDP): {source}. {}", listen_hint(.source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: io::Error,
    },
    /// No certificate could be made.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The QUIC library refuses its configuration.
    #[error("cannot set up TLS: {0}")]
    Quic(#[source] Box<dyn std::error::Error + Send + Sync>),
}

fn listen_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "Another copperfs, or another program, holds the port: unmount the other one, or choose \
             another port with --listen"
        }
        io::ErrorKind::AddrNotAvailable => {
            "This machine has no such address: check --listen and --interface"
        }
        io::ErrorKind::PermissionDenied => {
            "Ports below 1024 are root's: choose another with --listen"
        }
        _ => "Check --listen and --interface",
    }
}

//! The wire format: what two neighbours say to each other on a stream, byte by byte.
//!
//! `docs/wire.md` is the specification; this module is its only implementation. Pure: bytes in,
//! values out, no I/O. Nothing that a peer sends can panic here or make it allocate more than the
//! bounds below: each length is checked before memory is taken for it.
//!
//! Neighbour: `transport::stream` moves these frames over QUIC streams.

pub mod bundle;
pub mod frame;
pub mod message;
pub mod page;

pub use bundle::BundleDecoder;
pub use frame::{FrameHeader, FrameKind, HEADER_BYTES};
pub use message::{Head, Hello, Question, Request};
pub use page::{PageReader, PageWriter};

/// The protocol's name and version, as agreed on by TLS (ALPN). A change that an older peer would
/// misread gets another version.
pub const ALPN: &[u8] = b"copperfs/5";

/// Names in one stat request.
pub const STAT_NAMES_MAX: usize = 4096;
/// Bytes of all names in one stat request, with room for the rest of the frame.
pub const STAT_NAME_BYTES_MAX: usize = 192 << 10;
/// Bytes of all names in one bundle request, with room for versions, sizes, contents and the rest of
/// the frame.
pub const BUNDLE_NAME_BYTES_MAX: usize = 192 << 10;
/// Blocks in one read request: 1 TiB. A stream costs the same memory whatever its length.
pub const READ_BLOCKS_MAX: u64 = 1 << 20;
/// Extended attributes of one file.
pub const XATTRS_MAX: usize = 16_384;
/// Bytes of a [`crate::Cursor`].
pub const CURSOR_BYTES_MAX: usize = 4096;
/// Bytes of one node's report.
pub const REPORT_BYTES_MAX: usize = 64 << 10;
/// Bytes of a node's name.
pub const NAME_BYTES_MAX: usize = 255;
/// Origins of one node.
pub const ORIGINS_MAX: usize = 4096;
/// Bytes of one frame of steering, and of a command and its answer.
pub const STEERING_BYTES_MAX: usize = 1 << 20;
/// Uncompressed bytes of all pages of one answer.
pub const ANSWER_BYTES_MAX: usize = 128 << 20;

/// What is wrong with bytes from a peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// No frame has this kind.
    #[error("a frame of unknown kind {0}")]
    UnknownKind(u8),
    /// The announced length is above the kind's bound.
    #[error("a {kind:?} frame of {len} bytes, more than the {max} allowed")]
    TooLong {
        /// Which frame.
        kind: FrameKind,
        /// Announced bytes.
        len: u64,
        /// Allowed bytes.
        max: u32,
    },
    /// A frame that does not belong here.
    #[error("a {got:?} frame where {wanted} was due")]
    Unexpected {
        /// What came.
        got: FrameKind,
        /// What was due.
        wanted: &'static str,
    },
    /// A body that does not decode.
    #[error("a malformed {what}")]
    Malformed {
        /// Which part.
        what: &'static str,
    },
    /// More than was announced or asked for.
    #[error("{what}: {got}, more than the {max} allowed")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        got: u64,
        /// Allowed.
        max: u64,
    },
    /// A block that is not what its hash says.
    #[error("a block whose hash is wrong")]
    WrongHash,
    /// Something that cannot be true.
    #[error("{0}")]
    Impossible(&'static str),
}

//! The wire format: the frames on a stream between two nodes.
//!
//! `docs/wire.md` is the specification; this module is its only implementation. Pure: no I/O. No input from a peer can
//! cause a panic here, or allocations beyond the limits below: each length is checked before memory is allocated for
//! it. `transport::stream` sends and receives these frames.

pub mod bundle;
pub mod frame;
pub mod message;
pub mod page;

pub use bundle::BundleDecoder;
pub use frame::{FrameHeader, FrameKind, HEADER_BYTES};
pub use message::{Head, Hello, Question, Request};
pub use page::{PageReader, PageWriter};

use copperfs_topology::ItemPath;

/// The protocol's name and version, for TLS (ALPN). A change that an older peer would misread gets another version.
pub const ALPN: &[u8] = b"copperfs/11";

/// Most names in one stat request.
pub const STAT_NAMES_MAX: usize = 4096;
/// Most bytes of all names in one stat request, with room for the rest of the frame.
pub const STAT_NAME_BYTES_MAX: usize = 192 << 10;
/// Most bytes of all names in one bundle request, with room for versions, sizes, contents and the rest of the frame.
pub const BUNDLE_NAME_BYTES_MAX: usize = 192 << 10;
/// Most blocks in one read request: 1 TiB. The memory of a stream does not depend on its length.
pub const READ_BLOCKS_MAX: u64 = 1 << 20;
/// Most extended attributes of one file.
pub const XATTRS_MAX: usize = 16_384;
/// Most bytes of a [`crate::Cursor`].
pub const CURSOR_BYTES_MAX: usize = 4096;
/// Most bytes of one node's report.
pub const REPORT_BYTES_MAX: usize = 64 << 10;
/// Most bytes of a node's name.
pub const NAME_BYTES_MAX: usize = 255;
/// Most origins of one node.
pub const ORIGINS_MAX: usize = 4096;
/// Most bytes of a steering frame, of a command, and of its answer.
pub const STEERING_BYTES_MAX: usize = 1 << 20;
/// Most uncompressed bytes of all pages of one answer.
pub const ANSWER_BYTES_MAX: usize = 128 << 20;

/// Why bytes from a peer are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// There is no such kind of frame.
    #[error("a frame of unknown kind {0}")]
    UnknownKind(u8),
    /// The announced length exceeds the kind's limit.
    #[error("a {kind:?} frame of {len} bytes, more than the {max} allowed")]
    TooLong {
        /// The kind.
        kind: FrameKind,
        /// The announced length.
        len: u64,
        /// The limit.
        max: u32,
    },
    /// A frame of another kind than expected.
    #[error("a {got:?} frame where {wanted} was due")]
    Unexpected {
        /// The kind that came.
        got: FrameKind,
        /// The frame that was due.
        wanted: &'static str,
    },
    /// A body that does not decode.
    #[error("a malformed {what}")]
    Malformed {
        /// The part.
        what: &'static str,
    },
    /// More than was announced or requested.
    #[error("{what}: {got}, more than the {max} allowed")]
    TooMany {
        /// The unit.
        what: &'static str,
        /// The number.
        got: u64,
        /// The limit.
        max: u64,
    },
    /// A block that does not have its hash.
    #[error("a block whose hash is wrong")]
    WrongHash,
    /// A value that cannot be true.
    #[error("{0}")]
    Impossible(&'static str),
}

impl WireError {
    /// A frame of kind `got` came where `wanted` was due.
    pub(crate) fn unexpected(got: FrameKind, wanted: &'static str) -> Self {
        Self::Unexpected { got, wanted }
    }
}

/// Refuses more than `max` of `what`.
pub(crate) fn at_most(
    what: &'static str,
    got: impl TryInto<u64>,
    max: impl TryInto<u64>,
) -> Result<(), WireError> {
    let got = got.try_into().unwrap_or(u64::MAX);
    let max = max.try_into().unwrap_or(u64::MAX);
    match got <= max {
        true => Ok(()),
        false => Err(WireError::TooMany { what, got, max }),
    }
}

/// Refuses bytes unless `possible`, for the reason `otherwise`.
pub(crate) fn ensure(possible: bool, otherwise: &'static str) -> Result<(), WireError> {
    match possible {
        true => Ok(()),
        false => Err(WireError::Impossible(otherwise)),
    }
}

/// Refuses a name that no entry of a directory can have.
fn check_name(name: &[u8]) -> Result<(), WireError> {
    ensure(
        ItemPath::check_name(name).is_ok(),
        "a name that no file can have",
    )
}

//! Frame headers: the kind of a frame, and its length, which the kind bounds.

use super::{REPORT_BYTES_MAX, WireError};
use crate::model::BLOCK_BYTES;
use crate::wire::STEERING_BYTES_MAX;
use bytes::Bytes;

/// Bytes of a frame header: the length of the body as `u32` little-endian, then the kind.
pub const HEADER_BYTES: usize = 5;

/// The kind of a frame, which determines its body.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// A child introduces itself in one tree, or a reader itself: postcard [`super::Hello`]. Alone on its stream.
    Hello = 1,
    /// The peer is accepted. One byte: 1 if the sender has a parent in that tree or is its root, otherwise 0.
    Welcome = 2,
    /// A request: postcard [`super::Question`]. The only frame from the requester, except that a plan (pages and a done
    /// frame), steering frames, a command, or an item (data frames and an end frame) may follow.
    Request = 3,
    /// The request failed: postcard [`crate::Failure`]. Last frame.
    Failure = 4,
    /// The first part of an answer: postcard [`super::Head`].
    Head = 5,
    /// Items of an answer, encoded by [`super::page`]; or a page of a plan.
    Page = 6,
    /// Bytes of the current block.
    Data = 7,
    /// The current block is complete: its 32-byte BLAKE3 hash.
    End = 8,
    /// One node's report: postcard [`super::message::Reported`].
    Report = 9,
    /// One node has cleared its caches: postcard [`super::message::Cleared`].
    Cleared = 10,
    /// The end of a sequence of frames. Empty.
    Done = 11,
    /// Takes back the sent part of the current block, or of the listing, which begins again. Empty.
    Restart = 12,
    /// Part of a bundle's files, encoded by [`super::bundle`].
    Bundle = 13,
    /// The progress of warming in a part of the tree: postcard [`crate::WarmProgress`].
    Progress = 14,
    /// Nodes that are warm: postcard list of [`super::message::NodeId`].
    Warmed = 15,
    /// A steering frame, or a command or its answer. The services at both ends define the bytes. Empty in a steering
    /// stream: a sign of life.
    Steering = 16,
}

impl FrameKind {
    const ALL: [Self; 16] = [
        Self::Hello,
        Self::Welcome,
        Self::Request,
        Self::Failure,
        Self::Head,
        Self::Page,
        Self::Data,
        Self::End,
        Self::Report,
        Self::Cleared,
        Self::Done,
        Self::Restart,
        Self::Bundle,
        Self::Progress,
        Self::Warmed,
        Self::Steering,
    ];

    /// Most bytes of the body of a frame of this kind.
    #[must_use]
    pub const fn body_max(self) -> u32 {
        match self {
            Self::Done | Self::Restart => 0,
            Self::Welcome => 1,
            Self::End => 32,
            Self::Hello => 1 << 10,
            Self::Failure | Self::Cleared | Self::Progress => 4 << 10,
            Self::Warmed => 64 << 10,
            Self::Head => 32 << 10,
            // The largest bundle request: names, and for each file its version, size and content.
            Self::Request => 320 << 10,
            #[expect(clippy::cast_possible_truncation, reason = "64 KiB and a name fit")]
            Self::Report => REPORT_BYTES_MAX as u32 + 512,
            Self::Page => super::page::PAGE_BODY_BYTES_MAX,
            #[expect(clippy::cast_possible_truncation, reason = "1 MiB fits")]
            Self::Data | Self::Bundle => BLOCK_BYTES as u32,
            #[expect(clippy::cast_possible_truncation, reason = "1 MiB fits")]
            Self::Steering => STEERING_BYTES_MAX as u32,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte).checked_sub(1)?).copied()
    }
}

/// A frame header, whose length is within the kind's limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// Length of the body in bytes, at most [`FrameKind::body_max`].
    pub len: u32,
}

impl FrameHeader {
    /// Returns the header for a body of `len` bytes.
    ///
    /// # Errors
    /// `TooLong` above the kind's limit.
    pub fn new(kind: FrameKind, len: usize) -> Result<Self, WireError> {
        let max = kind.body_max();
        match u32::try_from(len) {
            Ok(fits) if fits <= max => Ok(Self { kind, len: fits }),
            _ => Err(WireError::TooLong {
                kind,
                len: u64::try_from(len).unwrap_or(u64::MAX),
                max,
            }),
        }
    }

    /// Parses a header, and checks its length against the kind's limit.
    ///
    /// # Errors
    /// `UnknownKind`, `TooLong`.
    pub fn parse(bytes: [u8; HEADER_BYTES]) -> Result<Self, WireError> {
        let [a, b, c, d, kind] = bytes;
        let kind = FrameKind::from_byte(kind).ok_or(WireError::UnknownKind(kind))?;
        let len = u32::from_le_bytes([a, b, c, d]);
        Self::new(kind, usize::try_from(len).unwrap_or(usize::MAX))
    }

    /// Returns the encoded header for a body of `len` bytes.
    pub(crate) fn bytes(kind: FrameKind, len: usize) -> Result<Bytes, WireError> {
        Ok(Bytes::copy_from_slice(&Self::new(kind, len)?.encode()))
    }

    /// Encodes the header.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let [a, b, c, d] = self.len.to_le_bytes();
        [a, b, c, d, self.kind as u8]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kinds_round_trip() {
        for kind in FrameKind::ALL {
            assert_eq!(FrameKind::from_byte(kind as u8), Some(kind));
            let full = FrameHeader::new(kind, usize::try_from(kind.body_max()).unwrap()).unwrap();
            assert_eq!(FrameHeader::parse(full.encode()), Ok(full));
        }
        assert_eq!(FrameKind::from_byte(0), None);
        assert_eq!(FrameKind::from_byte(17), None);
    }

    #[test]
    fn a_length_above_the_limit_is_refused_before_any_body() {
        for kind in FrameKind::ALL {
            let mut header = [0xff; HEADER_BYTES];
            header[4] = kind as u8;
            assert!(matches!(
                FrameHeader::parse(header),
                Err(WireError::TooLong { .. })
            ));
            let above = usize::try_from(kind.body_max()).unwrap() + 1;
            assert!(FrameHeader::new(kind, above).is_err());
        }
        assert!(FrameHeader::new(FrameKind::Data, 1 << 60).is_err());
    }

    proptest! {
        #[test]
        fn parsed_headers_encode_to_the_same_bytes(bytes: [u8; HEADER_BYTES]) {
            if let Ok(header) = FrameHeader::parse(bytes) {
                prop_assert!(header.len <= header.kind.body_max());
                prop_assert_eq!(header.encode(), bytes);
            }
        }
    }
}

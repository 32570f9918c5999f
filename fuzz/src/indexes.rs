//! The decoders of an index, a file from an untrusted author. They belong to the program, which takes long to build, so
//! their module is included as it is.

use crate::{alloc, values};
use arbitrary::Unstructured;
use bytes::Bytes;
use copperfs_overlay::Version;

#[allow(
    dead_code,
    unreachable_pub,
    reason = "of the program, not of this crate"
)]
#[path = "../../src/index/format.rs"]
pub mod format;

use format::{
    BlockLocation, Decoder, Encoder, HEADER_BYTES, Header, IndexedEntry, Tail, Totals, checksum,
    unpack,
};

/// Memory that a decoder may allocate beside a multiple of its input.
const SLACK_BYTES: usize = 512 << 10;
/// Memory that one byte of input may cost: a name or path may share a prefix with the one before it.
const PER_BYTE: usize = 8192;

/// One body; the first byte selects its kind.
pub fn indexes(data: &[u8]) {
    let Some((&kind, body)) = data.split_first() else {
        return;
    };
    let bound = body.len() * PER_BYTE + SLACK_BYTES;
    alloc::within(bound, || match kind % 5 {
        0 => entries(body),
        1 => directories(body),
        2 => drop(Header::decode(body, body.len() as u64)),
        3 => drop(Tail::decode(body, &header(body))),
        _ => drop(unpack(body, body.len() * 2, &checksum(body))),
    });
}

/// Accepted entries encode and decode to the same values.
fn entries(body: &[u8]) {
    let mut decoder = Decoder::new(body);
    let mut encoder = Encoder::default();
    let (mut count, mut out) = (0, Vec::new());
    while let Ok(indexed) = decoder.entry() {
        let IndexedEntry { entry, first_part, xattrs } = &indexed;
        let xattrs = xattrs.as_ref();
        count += 1;
        assert!(count <= body.len());
        let mut alone = Vec::new();
        Encoder::default().entry(&mut alone, entry, *first_part, xattrs);
        assert_eq!(Decoder::new(&alone).entry().as_ref(), Ok(&indexed));
        out.clear();
        encoder.entry(&mut out, entry, *first_part, xattrs);
        assert!(out.len() <= format::ENTRY_BYTES_MAX);
    }
}

fn directories(body: &[u8]) {
    let mut decoder = Decoder::new(body);
    while let Ok(Some(record)) = decoder.directory() {
        let mut alone = Vec::new();
        Encoder::default().directory(&mut alone, &record);
        assert_eq!(Decoder::new(&alone).directory(), Ok(Some(record)));
    }
}

/// A header for `tail`.
fn header(tail: &[u8]) -> Header {
    let stored = u32::try_from(tail.len()).unwrap_or(u32::MAX);
    Header {
        hashed: false,
        file_bytes: 0,
        tail_offset: HEADER_BYTES as u64,
        tail_stored: stored,
        tail_raw: stored,
        tail_sum: checksum(tail),
        made_at: 0,
        totals: Totals::default(),
        top: Version::from_data([0; 16]),
    }
}

/// Bodies from the encoders.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut from = Unstructured::new(&[0x5a; 4000]);
    let mut entries = vec![0];
    let mut encoder = Encoder::default();
    for _ in 0..3 {
        let entry = values::entry(&mut from).expect("enough bytes");
        let xattrs = vec![(Bytes::from_static(b"user.x"), Bytes::from_static(b"y"))];
        encoder.entry(&mut entries, &entry, 70_000, Some(&xattrs));
    }
    let tail = Tail {
        uri: "s3://bucket/set".into(),
        entries: vec![BlockLocation {
            offset: HEADER_BYTES as u64,
            stored: 9,
            raw: 9,
            sum: [1; 16],
        }],
        directories: Vec::new(),
        parts: vec![BlockLocation {
            offset: HEADER_BYTES as u64 + 9,
            stored: 64,
            raw: 64,
            sum: [2; 16],
        }],
    };
    let (tail, _) = tail.encode();
    let header = header(&tail).encode();
    vec![
        entries,
        [&[2], &header[..]].concat(),
        [&[3], &tail[..]].concat(),
        [&[4], &tail[..]].concat(),
    ]
}

//! The decoder of a manifest, a file from an untrusted author. It belongs to the program, which takes long to build, so
//! its module is included as it is.

use crate::alloc;
use bytes::Bytes;
use copperfs_overlay::{ContentHash, Version};

#[allow(
    dead_code,
    unreachable_pub,
    reason = "of the program, not of this crate"
)]
#[path = "../../src/manifest/format.rs"]
pub mod format;

use format::{Counts, Encoder, Entry, HEADER_BYTES, Manifest, PART_BYTES, TRAILER_BYTES, parts_of};

/// Memory that opening may allocate beside a multiple of its input.
const SLACK_BYTES: usize = 64 << 10;
/// Memory that one byte of input may cost: a look-up of four numbers for an entry of at least 52 bytes.
const PER_BYTE: usize = 2;

/// One manifest; the first byte tells whether its checksums are made right, as an author of a wrong manifest would.
pub fn manifests(data: &[u8]) {
    let Some((&kind, body)) = data.split_first() else {
        return;
    };
    let mut body = body.to_vec();
    if kind % 2 == 1 && body.len() >= HEADER_BYTES + TRAILER_BYTES {
        seal(&mut body);
    }
    let body = Bytes::from(body);
    let bound = body.len() * PER_BYTE + SLACK_BYTES;
    if let Ok(manifest) = alloc::within(bound, || Manifest::from_bytes(body)) {
        answers(&manifest);
    }
}

/// An accepted manifest answers all questions about itself.
fn answers(manifest: &Manifest) {
    for number in 0..manifest.len() {
        let entry = manifest.entry(number).expect("an entry");
        assert_eq!(manifest.parts(number).len() as u64, parts_of(entry.length));
        let path = manifest.path(entry.file).expect("a path");
        assert_eq!(manifest.find(path, entry.offset), Some(number));
        let number = u32::try_from(number).expect("few entries");
        assert!(manifest.with_hash(&entry.hash).contains(&number));
    }
}

/// Writes the checksums of the header and of the whole.
fn seal(body: &mut [u8]) {
    let (head, sum) = body[..HEADER_BYTES].split_at_mut(HEADER_BYTES - 32);
    sum.copy_from_slice(blake3::hash(head).as_bytes());
    let (summed, trailer) = body.split_at_mut(body.len() - TRAILER_BYTES);
    trailer.copy_from_slice(blake3::hash(summed).as_bytes());
}

/// Manifests from the encoder.
pub fn seeds() -> Vec<Vec<u8>> {
    let small = encoded(&[(b"a", 3), (b"b/c", 0), (b"d", 9)], &[(0, 0, 3), (1, 0, 0), (2, 5, 4), (2, 0, 5)]);
    let long = encoded(&[(b"shard", 4 * PART_BYTES)], &[(0, 3 * PART_BYTES, 9), (0, 7, 2 * PART_BYTES)]);
    let seeds = [(0, &small), (1, &small), (1, &long)];
    seeds.map(|(kind, manifest)| [&[kind], &manifest[..]].concat()).to_vec()
}

/// A manifest of files (path, size) and entries (file, offset, length).
fn encoded(files: &[(&[u8], u64)], entries: &[(u32, u64, u64)]) -> Vec<u8> {
    let parts = |length| vec![[3; 32]; usize::try_from(parts_of(length)).expect("few parts")];
    let mut counts = Counts {
        entries: entries.len() as u64,
        files: files.len() as u64,
        ..Counts::default()
    };
    counts.path_bytes = files.iter().map(|(path, _)| path.len() as u64).sum();
    for (.., length) in entries {
        counts.long += u64::from(parts_of(*length) > 0);
        counts.parts += parts_of(*length);
    }
    let mut encoder = Encoder::new(&counts).expect("few entries");
    for (path, size) in files {
        encoder.file(path, *size, &Version::from_data([7; 16]));
    }
    for (file, offset, length) in entries.iter().copied() {
        let entry = Entry {
            hash: ContentHash([length.to_le_bytes()[0]; 32]),
            file,
            offset,
            length,
        };
        encoder.entry(&entry, &parts(length));
    }
    let (header, head) = encoder.header(0);
    let mut bytes = vec![0; usize::try_from(header.file_bytes).expect("a short manifest")];
    bytes[..head.len()].copy_from_slice(&head);
    for (at, section) in encoder.take(1) {
        let at = usize::try_from(at).expect("a short manifest");
        bytes[at..at + section.len()].copy_from_slice(&section);
    }
    seal(&mut bytes);
    bytes
}

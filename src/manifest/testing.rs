//! Manifests in memory, for tests of this module and of others.

use super::format::{Counts, Encoder, Entry, TRAILER_BYTES, parts_of};
use crate::testing::noise;
use copperfs_overlay::{ContentHash, Version};

/// When the manifests of tests are finished.
pub(crate) const MADE_AT: i64 = 1_700_000_000;

/// A file: its path, its size, and a number for its version.
pub(crate) type File<'a> = (&'a [u8], u64, u8);

/// The bytes of a manifest of these `files` and entries. The hash of an entry's parts follow from its own.
pub(crate) fn encoded(files: &[File<'_>], entries: &[Entry]) -> Vec<u8> {
    let mut counts = Counts {
        entries: entries.len() as u64,
        files: files.len() as u64,
        ..Counts::default()
    };
    counts.path_bytes = files.iter().map(|file| file.0.len() as u64).sum();
    for entry in entries {
        counts.long += u64::from(parts_of(entry.length) > 0);
        counts.parts += parts_of(entry.length);
    }
    let mut encoder = Encoder::new(&counts).unwrap();
    for (path, size, version) in files {
        encoder.file(path, *size, &Version::from_data([*version; 16]));
    }
    for entry in entries {
        encoder.entry(entry, &parts(entry));
    }
    let (header, head) = encoder.header(MADE_AT);
    let mut bytes = vec![0; usize::try_from(header.file_bytes).unwrap()];
    bytes[..head.len()].copy_from_slice(&head);
    for (at, section) in encoder.take(1) {
        let at = usize::try_from(at).unwrap();
        bytes[at..at + section.len()].copy_from_slice(&section);
    }
    seal(&mut bytes);
    bytes
}

/// Writes the trailer again, as the author of a wrong manifest would.
pub(crate) fn seal(bytes: &mut [u8]) {
    let (summed, trailer) = bytes.split_at_mut(bytes.len() - TRAILER_BYTES);
    trailer.copy_from_slice(blake3::hash(summed).as_bytes());
}

/// The hashes of the parts of `entry`.
pub(crate) fn parts(entry: &Entry) -> Vec<[u8; 32]> {
    let parts = noise(entry.hash.0, 32 * parts_of(entry.length));
    parts.as_chunks().0.to_vec()
}

/// An entry with the hash of `text`.
pub(crate) fn entry(text: &str, file: u32, offset: u64, length: u64) -> Entry {
    Entry {
        hash: ContentHash(*blake3::hash(text.as_bytes()).as_bytes()),
        file,
        offset,
        length,
    }
}

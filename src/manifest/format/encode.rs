//! Encodes a manifest entry by entry, in bounded memory: each section is a buffer whose bytes the caller writes to
//! their place as it fills.

use super::header::{Counts, Header, Layout, Section};
use super::{Entry, FormatError, HEADER_BYTES, narrow, parts_of, stored_version, to_usize};
use copperfs_overlay::Version;

/// Bytes of one section that wait for the caller.
struct Pending {
    /// Where they belong.
    at: u64,
    bytes: Vec<u8>,
}

/// The encoder of one manifest.
pub struct Encoder {
    file_bytes: u64,
    done: Counts,
    entry_bytes: u64,
    identity: blake3::Hasher,
    sections: [Pending; Section::COUNT],
}

impl Encoder {
    /// An encoder of a manifest with exactly `counts`.
    ///
    /// # Errors
    /// `Empty`; `TooLarge`.
    pub fn new(counts: &Counts) -> Result<Self, FormatError> {
        counts.check()?;
        let layout = Layout::of(counts).ok_or(FormatError::Damaged("its counts"))?;
        let sections = layout.starts().map(|at| Pending {
            at,
            bytes: Vec::new(),
        });
        Ok(Self {
            file_bytes: layout.file_bytes,
            done: Counts::default(),
            entry_bytes: 0,
            identity: blake3::Hasher::new(),
            sections,
        })
    }

    /// Adds a file, before its first entry and after the first entries of all files before it. Returns its number.
    pub fn file(&mut self, path: &[u8], size: u64, version: &Version) -> u32 {
        let number = narrow(to_usize(self.done.files));
        self.done.files += 1;
        self.done.path_bytes += path.len() as u64;
        self.put(Section::Sizes, &size.to_le_bytes());
        self.put(Section::Versions, &stored_version(version));
        self.put(Section::PathEnds, &self.done.path_bytes.to_le_bytes());
        self.put(Section::Paths, path);
        number
    }

    /// Adds the next entry in dataset order, with the hashes of its parts if it is long.
    pub fn entry(&mut self, entry: &Entry, parts: &[[u8; 32]]) {
        debug_assert_eq!(parts.len() as u64, parts_of(entry.length));
        self.put(Section::Hashes, &entry.hash.0);
        self.put(Section::Lengths, &entry.length.to_le_bytes());
        self.put(Section::Offsets, &entry.offset.to_le_bytes());
        self.put(Section::Files, &entry.file.to_le_bytes());
        if !parts.is_empty() {
            self.put(Section::Long, &self.done.entries.to_le_bytes());
            self.put(Section::PartsAt, &self.done.parts.to_le_bytes());
            self.put(Section::Parts, parts.as_flattened());
            self.done.long += 1;
            self.done.parts += parts.len() as u64;
        }
        self.identity.update(&entry.hash.0);
        self.identity.update(&entry.length.to_le_bytes());
        self.entry_bytes += entry.length;
        self.done.entries += 1;
    }

    fn put(&mut self, section: Section, bytes: &[u8]) {
        self.sections[section as usize]
            .bytes
            .extend_from_slice(bytes);
    }

    /// Takes the bytes of each section that has at least `least` of them, with their positions in the manifest.
    pub fn take(&mut self, least: usize) -> impl Iterator<Item = (u64, Vec<u8>)> + '_ {
        let sections = self.sections.iter_mut();
        let full = sections.filter(move |section| section.bytes.len() >= least.max(1));
        full.map(|section| {
            let bytes = std::mem::take(&mut section.bytes);
            let at = section.at;
            section.at += bytes.len() as u64;
            (at, bytes)
        })
    }

    /// The header, after all files and entries. `made_at` is in seconds since 1970. The manifest ends with the BLAKE3
    /// hash of all bytes before it, which only the caller has.
    #[must_use]
    pub fn header(&self, made_at: i64) -> (Header, [u8; HEADER_BYTES]) {
        let header = Header {
            file_bytes: self.file_bytes,
            counts: self.done,
            entry_bytes: self.entry_bytes,
            identity: *self.identity.finalize().as_bytes(),
            made_at,
        };
        (header, header.encode())
    }
}

//! A whole manifest in memory, checked, with its look-ups.

use super::header::{Header, Layout};
use super::lookup::Lookup;
use super::sections::Sections;
use super::{Entry, FormatError, check, version_of};
use bytes::Bytes;
use copperfs_overlay::{Attributes, ContentHash, FileKind, Version};

/// An open manifest. It keeps its bytes in memory, and adds at most 20 bytes for each entry.
pub struct Manifest {
    header: Header,
    sections: Sections,
    lookup: Lookup,
}

/// How a file is now, compared with its state when the manifest was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freshness {
    /// The same state: the hashes are those of its bytes.
    Same,
    /// Only its status has changed, by `chmod` for example. Its bytes are probably the same, but must be compared
    /// with the hashes before they are treated as the same.
    StatusChanged,
    /// The manifest is older than the file, which has other bytes now, or is no file any more.
    Changed,
}

impl Manifest {
    /// Opens the manifest that `bytes` are.
    ///
    /// # Errors
    /// They are not a complete manifest of this format, or break one of its rules.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, FormatError> {
        let header = Header::decode(&bytes, bytes.len() as u64)?;
        let layout = Layout::of(&header.counts).ok_or(FormatError::Damaged("its counts"))?;
        check::checksum(&bytes)?;
        let sections = Sections { bytes, layout };
        check::rules(&header, &sections)?;
        let lookup = Lookup::new(&sections, header.counts.files);
        check::places(&lookup, &sections)?;
        Ok(Self {
            header,
            sections,
            lookup,
        })
    }

    /// Its header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What it identifies: the hashes and lengths of all entries in order. Two manifests of equal content in equal
    /// order have the same identity, whatever the paths.
    #[must_use]
    pub fn identity(&self) -> &[u8; 32] {
        &self.header.identity
    }

    /// The number of entries, at least 1.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no manifest is empty")]
    pub fn len(&self) -> usize {
        self.sections.hashes().len()
    }

    /// The number of files, at least 1.
    #[must_use]
    pub fn files(&self) -> usize {
        self.lookup.by_path.len()
    }

    /// Entry `number` in dataset order. Returns `None` beyond the last one.
    #[must_use]
    pub fn entry(&self, number: usize) -> Option<Entry> {
        self.sections.entry(number)
    }

    /// The hashes of all entries, in dataset order.
    #[must_use]
    pub fn hashes(&self) -> &[[u8; 32]] {
        self.sections.hashes()
    }

    /// The hashes of the parts of entry `number`: one for each [`super::PART_BYTES`], the last of which may be
    /// shorter. Empty for an entry of at most that length, whose own hash verifies it whole.
    #[must_use]
    pub fn parts(&self, number: usize) -> &[[u8; 32]] {
        let length = self.sections.entry(number).map_or(0, |entry| entry.length);
        self.sections.parts(number, length)
    }

    /// The path of `file`, relative to the dataset's root. Returns `None` if there is no such file.
    #[must_use]
    pub fn path(&self, file: u32) -> Option<&[u8]> {
        self.sections.path(file as usize)
    }

    /// The size of `file` in bytes. Returns `None` if there is no such file.
    #[must_use]
    pub fn size(&self, file: u32) -> Option<u64> {
        self.sections.size(file as usize)
    }

    /// The version of `file` when it was read. Returns `None` if there is no such file.
    #[must_use]
    pub fn version(&self, file: u32) -> Option<Version> {
        self.sections.version(file as usize).and_then(version_of)
    }

    /// The number of the file at `path`, relative to the dataset's root.
    #[must_use]
    pub fn file_at(&self, path: &[u8]) -> Option<u32> {
        let by_path = &self.lookup.by_path;
        let found = by_path.binary_search_by_key(&Some(path), |file| self.path(*file));
        found.ok().map(|at| by_path[at])
    }

    /// The numbers of the entries of `file`, in the order of their offsets.
    #[must_use]
    pub fn entries_of(&self, file: u32) -> &[u32] {
        self.lookup.of_file(file as usize)
    }

    /// The number of the entry that begins at `offset` of the file at `path`.
    #[must_use]
    pub fn find(&self, path: &[u8], offset: u64) -> Option<usize> {
        let entries = self.entries_of(self.file_at(path)?);
        let start = |entry: &u32| self.sections.extent(*entry as usize).map(|found| found.0);
        let found = entries.binary_search_by_key(&Some(offset), start);
        found.ok().map(|at| entries[at] as usize)
    }

    /// The numbers of all entries with `hash`, in dataset order. Empty if there is none.
    #[must_use]
    pub fn with_hash(&self, hash: &ContentHash) -> &[u32] {
        self.lookup.with_hash(&self.sections, &hash.0)
    }

    /// Compares `file` with its attributes `now`. Returns [`Freshness::Changed`] for a file that the manifest does
    /// not have.
    #[must_use]
    pub fn freshness(&self, file: u32, now: &Attributes) -> Freshness {
        let known = self.version(file).zip(self.size(file));
        let known = known.filter(|(_, size)| now.kind == FileKind::File && now.size == *size);
        match known {
            Some((version, _)) if now.version.is_state_of(&version) => Freshness::Same,
            Some((version, _)) if now.version.has_data_of(&version) => Freshness::StatusChanged,
            _ => Freshness::Changed,
        }
    }
}

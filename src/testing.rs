//! Values and parts of fakes that unit tests of several modules use. The fake of one module stands with
//! that module's tests; waiting is in `crate::waiting`.

use crate::manifest::Manifest;
use crate::manifest::format::{Counts, Entry, PART_BYTES};
use crate::manifest::write::ManifestWriter;
use copperfs_overlay::{
    Attributes, ContentHash, Failure, FailureKind, FileKind, ItemPath, Timestamp, Version,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::time::Duration;

/// An idle machine does in this time what a test waits for.
pub(crate) const SOON: Duration = Duration::from_secs(15);

pub(crate) fn path(text: &str) -> ItemPath {
    ItemPath::parse(text.as_bytes()).unwrap()
}

/// Attributes of an item in its state number `state`.
pub(crate) fn attributes(kind: FileKind, size: u64, state: u8) -> Attributes {
    let time = Timestamp {
        seconds: 0,
        nanoseconds: 0,
    };
    Attributes {
        kind,
        mode: 0o644,
        uid: 0,
        gid: 0,
        links: 1,
        device: 0,
        size,
        blocks: 0,
        block_size: 4096,
        atime: time,
        mtime: time,
        ctime: time,
        version: Version::from_data([state; 16]),
        link_target: None,
        content: None,
    }
}

/// Bytes that follow from `seed` and look random: no two blocks and no two seeds share any.
pub(crate) fn noise(seed: impl AsRef<[u8]>, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    let mut hasher = blake3::Hasher::new();
    hasher.update(seed.as_ref());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// How `Files` answers.
pub(crate) type Answer<T> = BoxFuture<'static, Result<T, Failure>>;

/// The answer of a fake to a question that its tests do not ask.
pub(crate) fn refuse<T: Send + 'static>() -> Answer<T> {
    let failure = Failure::new(FailureKind::Unsupported, "not part of these tests");
    std::future::ready(Err(failure)).boxed()
}

/// The named methods of `Files`, for a fake whose tests ask none of them.
macro_rules! unasked {
    ($($method:ident),+) => {
        $(crate::testing::unasked!(@$method);)+
    };
    (@list) => {
        fn list(
            &self,
            _request: copperfs_overlay::ListRequest,
        ) -> copperfs_overlay::FilesFuture<copperfs_overlay::Listed> {
            crate::testing::refuse()
        }
    };
    (@stat) => {
        fn stat(
            &self,
            _request: copperfs_overlay::StatRequest,
        ) -> copperfs_overlay::FilesFuture<copperfs_overlay::Leased<copperfs_overlay::StatAnswers>> {
            crate::testing::refuse()
        }
    };
    (@read) => {
        fn read(
            &self,
            _request: copperfs_overlay::ReadRequest,
        ) -> copperfs_overlay::FilesFuture<copperfs_overlay::ReadStream> {
            crate::testing::refuse()
        }
    };
    (@xattrs) => {
        fn xattrs(
            &self,
            _path: copperfs_overlay::ItemPath,
        ) -> copperfs_overlay::FilesFuture<copperfs_overlay::Leased<copperfs_overlay::XattrList>> {
            crate::testing::refuse()
        }
    };
    (@usage) => {
        fn usage(
            &self,
            _path: copperfs_overlay::ItemPath,
        ) -> copperfs_overlay::FilesFuture<copperfs_overlay::FilesystemUsage> {
            crate::testing::refuse()
        }
    };
}
pub(crate) use unasked;

/// An entry of a manifest, and its bytes.
pub(crate) struct NamedBytes {
    pub(crate) path: String,
    /// The size of the file.
    pub(crate) size: u64,
    /// Where the entry begins in the file.
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
}

/// A manifest with these entries in this order; those of a file stand together. All files are in version 1.
pub(crate) fn manifest(entries: &[NamedBytes]) -> Manifest {
    let hash = |bytes: &[u8]| ContentHash(*blake3::hash(bytes).as_bytes());
    let parts_of = |entry: &NamedBytes| -> Vec<[u8; 32]> {
        let parts = entry.bytes.chunks(usize::try_from(PART_BYTES).unwrap());
        let parts = parts.filter(|part| part.len() < entry.bytes.len());
        parts.map(|part| hash(part).0).collect()
    };
    let files: BTreeMap<&str, u64> = entries
        .iter()
        .map(|one| (one.path.as_str(), one.size))
        .collect();
    let parts = entries.iter().map(|entry| parts_of(entry).len() as u64);
    let counts = Counts {
        entries: entries.len() as u64,
        files: files.len() as u64,
        long: parts.clone().filter(|parts| *parts > 0).count() as u64,
        parts: parts.sum(),
        path_bytes: files.keys().map(|path| path.len() as u64).sum(),
    };
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("manifest");
    let mut writer = ManifestWriter::create(&target, "test", &counts).unwrap();
    let mut last: Option<(&str, u32)> = None;
    for entry in entries {
        let known = last.filter(|(path, _)| *path == entry.path);
        let version = Version::from_data([1; 16]);
        let file = known.map_or_else(
            || writer.file(entry.path.as_bytes(), entry.size, &version),
            |known| known.1,
        );
        last = Some((&entry.path, file));
        let described = Entry {
            hash: hash(&entry.bytes),
            file,
            offset: entry.offset,
            length: entry.bytes.len() as u64,
        };
        writer.entry(&described, &parts_of(entry)).unwrap();
    }
    writer.finish(0).unwrap();
    Manifest::open(&target).unwrap()
}

/// Numbers that look random and are the same for the same seed (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }
}

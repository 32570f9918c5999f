//! Values and parts of fakes that unit tests of several modules use. The fake of one module stands with
//! that module's tests; waiting is in `crate::waiting`.

use copperfs_overlay::{Attributes, Failure, FailureKind, FileKind, ItemPath, Timestamp, Version};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
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

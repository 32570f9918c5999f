//! The one question that every layer answers: what is in the namespace, and what are its bytes?
//!
//! Implemented by the stub towards the other nodes ([`crate::Upstream`]), by the origins at the root, and by a node's
//! own read path, which stacks caches and single-flight on either of the two. So a child node and a
//! local application are served by the same ladder.

mod range;

pub use range::{RANGE_ALIGN, RANGE_BYTES_MAX, RangeAnswer, RangeRequest};

use super::freshness::{Leased, ListingDigest};
use super::item::{
    Attributes, BlockPart, ContentHash, Cursor, Entry, Failure, FailureKind, FilesystemUsage,
    Listing, XattrList,
};
use super::version::Version;
use bytes::Bytes;
use copperfs_topology::{BLOCK_BYTES, ItemPath, STRIPE_BLOCKS};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Larger files (more than one stripe) are not read before their version has settled: they may take several
/// requests, and a file with an unsettled version must be read by a single request.
pub const UNSETTLED_BYTES_MAX: u64 = STRIPE_BLOCKS * BLOCK_BYTES;

/// How many entries a listing may have before the directory counts as large: see [`Files::list`].
pub const LISTING_ENTRIES_MAX: usize = 100_000;

/// A run of blocks of one version of one file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReadRequest {
    /// The file.
    pub path: ItemPath,
    /// The version wanted; another one at the origin is answered with `Stale`.
    pub version: Version,
    /// Size of that version in bytes: with it both sides know every block's length.
    pub size: u64,
    /// Index of the first block, in units of [`BLOCK_BYTES`].
    pub first_block: u64,
    /// Number of blocks, at least 1.
    pub block_count: u64,
    /// The hash of the whole file, where the asker knows it ([`Attributes::content`]).
    pub content: Option<ContentHash>,
    /// Nobody on the way to storage keeps the bytes, looks for them among what it keeps, or has others
    /// wait for them: who asks keeps them himself, and each such request reads storage.
    pub through: bool,
}

impl ReadRequest {
    /// Length in bytes of block `index` of a file of `size` bytes; 0 beyond its end.
    #[must_use]
    pub fn block_len(size: u64, index: u64) -> u64 {
        size.saturating_sub(index.saturating_mul(BLOCK_BYTES))
            .min(BLOCK_BYTES)
    }
}

/// The blocks of a [`ReadRequest`] in order, each as bytes followed by its hash. A block that is ended
/// is verified; what comes before its end may be taken back by a restart, and is never all of it.
/// After an error nothing more comes. Dropping the stream cancels the read.
pub type ReadStream = BoxStream<'static, Result<BlockPart, Failure>>;

/// What is known of a listing before its entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListingHead {
    /// Attributes of the directory itself.
    pub directory: Attributes,
    /// Where to go on; `None` when the directory ends here.
    pub next: Option<Cursor>,
    /// How many entries come.
    pub entries: usize,
    /// How long the listing may be used, from when this was given; `None`: until it is cleared.
    pub lease: Option<Duration>,
}

/// The answer to a question for a listing.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "few at a time, and none is kept")]
pub enum Listed {
    /// It is the one that the asker knows: nothing of it is sent.
    Unchanged {
        /// As [`ListingHead::lease`].
        lease: Option<Duration>,
    },
    /// It is another one, or the asker knows none.
    Listing(ListingStream),
}

impl Listed {
    /// The listing, for an asker who knows none.
    ///
    /// # Errors
    /// `Corrupt` when the answer is that it is unchanged.
    pub fn stream(self) -> Result<ListingStream, Failure> {
        match self {
            Self::Listing(listing) => Ok(listing),
            Self::Unchanged { .. } => {
                let detail = "a listing that nobody knows is said to be unchanged";
                Err(Failure::new(FailureKind::Corrupt, detail))
            }
        }
    }
}

/// One answer for each name, in the order of the names.
pub type StatAnswers = Vec<Result<Attributes, Failure>>;

/// A piece of a listing that arrives.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::large_enum_variant, reason = "few at a time, and none is kept")]
pub enum ListingPart {
    /// The next entries, in order.
    Entries(Vec<Entry>),
    /// What was given is void: the listing begins anew, with this head.
    Restart(ListingHead),
}

/// A listing on its way: its head, and its entries as they arrive. After an error nothing more comes.
/// Dropping it cancels the rest.
pub struct ListingStream {
    /// What is known at once.
    pub head: ListingHead,
    /// The rest.
    pub parts: BoxStream<'static, Result<ListingPart, Failure>>,
}

impl fmt::Debug for ListingStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListingStream")
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}

impl From<Listing> for ListingStream {
    fn from(listing: Listing) -> Self {
        let head = ListingHead {
            directory: listing.directory,
            next: listing.next,
            entries: listing.entries.len(),
            lease: None,
        };
        let all = std::future::ready(Ok(ListingPart::Entries(listing.entries)));
        Self {
            head,
            parts: stream::once(all).boxed(),
        }
    }
}

impl ListingStream {
    /// All of it.
    ///
    /// # Errors
    /// What ended the stream early; `Corrupt` when entries are missing.
    pub async fn collect(mut self) -> Result<Listing, Failure> {
        let mut entries = Vec::with_capacity(self.head.entries.min(1024));
        while let Some(part) = self.parts.next().await {
            match part? {
                ListingPart::Entries(more) if entries.is_empty() => entries = more,
                ListingPart::Entries(more) => entries.extend(more),
                ListingPart::Restart(head) => {
                    entries.clear();
                    self.head = head;
                }
            }
        }
        if entries.len() != self.head.entries {
            let (come, due) = (entries.len(), self.head.entries);
            let detail = format!("a listing ended after {come} of {due} entries");
            return Err(Failure::new(FailureKind::Corrupt, detail));
        }
        Ok(Listing {
            directory: self.head.directory,
            entries,
            next: self.head.next,
        })
    }
}

/// Largest file of a bundle, in bytes.
pub const BUNDLE_FILE_BYTES_MAX: u64 = 256 << 10;
/// Files in one [`BundleRequest`].
pub const BUNDLE_FILES_MAX: usize = 2048;

/// Small files of one directory, wanted together.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BundleRequest {
    /// Where they are.
    pub directory: ItemPath,
    /// Which: 1 to [`BUNDLE_FILES_MAX`] of them.
    pub files: Vec<BundleFile>,
}

/// One file of a [`BundleRequest`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BundleFile {
    /// Its name in the directory.
    pub name: Bytes,
    /// The version wanted.
    pub version: Version,
    /// Size of that version: 1 to [`BUNDLE_FILE_BYTES_MAX`] bytes.
    pub size: u64,
    /// The hash of the whole file, where the asker knows it ([`Attributes::content`]).
    pub content: Option<ContentHash>,
}

/// The whole content of one file of a bundle, in the version wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BundleItem {
    /// Which of the request's files.
    pub index: usize,
    /// Its bytes.
    pub bytes: Bytes,
    /// Their hash, checked where they arrived.
    pub hash: ContentHash,
}

/// The files of a [`BundleRequest`] as they arrive. A file that cannot be returned (it changed, is gone, or
/// could not be read) is left out: a reader of that file requests it separately and gets the reason. The
/// stream ends after an error. Dropping the stream cancels the rest.
pub type BundleStream = BoxStream<'static, Result<BundleItem, Failure>>;

/// That nobody has bytes with this hash.
pub(crate) fn not_here(hash: ContentHash, len: u64) -> Failure {
    let hash = blake3::Hash::from_bytes(hash.0);
    let detail = format!("nobody on the way has the {len} bytes that hash to {hash}");
    Failure::new(FailureKind::NotFound, detail)
}

/// Extracts the answer to a question about a single name in `parent`.
pub(crate) fn only_answer(
    parent: &ItemPath,
    answers: Leased<StatAnswers>,
) -> Result<Leased<Attributes>, Failure> {
    let Leased { value, lease } = answers;
    let none = || {
        Failure::new(
            FailureKind::Corrupt,
            format!("{parent}: no answer about a name"),
        )
    };
    let value = value.into_iter().next().ok_or_else(none)??;
    Ok(Leased { value, lease })
}

/// Answers for a namespace of files. All calls may be cancelled by dropping the future.
pub trait Files: Send + Sync + 'static {
    /// The entries of directory `path` from `cursor` (`None`: from its beginning), at most `limit` of
    /// them. With `limit` = [`LISTING_ENTRIES_MAX`] and no cursor, a `next` in the answer says that
    /// the directory is large: it is then paged for readers and looked up by name.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`; `PermissionDenied` when it may not be listed, though perhaps
    /// searched; faults.
    fn list(
        &self,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'static, Result<Listing, Failure>>;

    /// As [`Files::list`], entry by entry as they arrive. Where all of them are at hand at once they
    /// come at once. `known` is the digest of a listing that the asker holds, of any age: where it is
    /// that of the answer, no entries come ([`Listed::Unchanged`], given only then).
    ///
    /// # Errors
    /// As [`Files::list`], also in mid-stream.
    fn list_parts(
        &self,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
        known: Option<ListingDigest>,
    ) -> BoxFuture<'static, Result<Listed, Failure>> {
        let listing = self.list(path, cursor, limit);
        Box::pin(async move {
            let listing = listing.await?;
            if known.is_some() && known == ListingDigest::of_page(&listing) {
                return Ok(Listed::Unchanged { lease: None });
            }
            Ok(Listed::Listing(listing.into()))
        })
    }

    /// The attributes of `names` in directory `parent`, one answer per name in the same order. The
    /// empty name stands for the directory itself.
    ///
    /// # Errors
    /// The outer failure is about the directory, an inner one about one name.
    fn stat(
        &self,
        parent: ItemPath,
        names: Vec<Bytes>,
    ) -> BoxFuture<'static, Result<Leased<StatAnswers>, Failure>>;

    /// The attributes of `name` in directory `parent`, after storage has denied that the file has the
    /// version `denied`. No cache on the way answers with that version; only storage may confirm it.
    ///
    /// # Errors
    /// `NotFound`, also about `parent`; faults.
    fn stat_again(
        &self,
        parent: ItemPath,
        name: Bytes,
        denied: Version,
    ) -> BoxFuture<'static, Result<Leased<Attributes>, Failure>> {
        let _no_cache_here = denied;
        let answers = self.stat(parent.clone(), vec![name]);
        Box::pin(async move { only_answer(&parent, answers.await?) })
    }

    /// Like [`Files::stat`]. With `denied` and exactly one name, like [`Files::stat_again`].
    ///
    /// # Errors
    /// As [`Files::stat`].
    fn stat_unlike(
        &self,
        parent: ItemPath,
        names: Vec<Bytes>,
        denied: Option<Version>,
    ) -> BoxFuture<'static, Result<Leased<StatAnswers>, Failure>> {
        let (Some(denied), [name]) = (denied, &names[..]) else {
            return self.stat(parent, names);
        };
        let answer = self.stat_again(parent, name.clone(), denied);
        Box::pin(async move {
            match answer.await {
                Ok(answer) => Ok(answer.map(|attributes| vec![Ok(attributes)])),
                Err(failure) if failure.kind == FailureKind::NotFound => {
                    Ok(Leased::lasting(vec![Err(failure)]))
                }
                Err(failure) => Err(failure),
            }
        })
    }

    /// Opens a stream over a run of blocks.
    ///
    /// # Errors
    /// `Stale` when the file is no longer of that version (also in mid-stream); faults.
    fn read(&self, request: ReadRequest) -> BoxFuture<'static, Result<ReadStream, Failure>>;

    /// What is known of `path` and below is out of date: whoever keeps something looks again when he is
    /// asked next. Not passed on to other nodes.
    fn forget(&self, path: &ItemPath) {
        let _nothing_kept = path;
    }

    /// A run of bytes within one block, with their hash. Where no shorter way is known the whole block
    /// is read for it.
    ///
    /// # Errors
    /// As [`Files::read`]; `Corrupt` for a request with a [`RangeRequest::fault`].
    fn read_range(
        &self,
        request: RangeRequest,
    ) -> BoxFuture<'static, Result<RangeAnswer, Failure>> {
        let block = self.read(range::block_of(&request));
        Box::pin(async move { range::cut(&request, block.await?).await })
    }

    /// Bytes by what they hash to, verified, from whatever caches there are here and on the way to the
    /// roots: for who knows the hash of what storage has no more. Storage is never asked for them.
    ///
    /// # Errors
    /// `NotFound` where nobody has them, or nobody said so in time.
    fn find(&self, hash: ContentHash, len: u64) -> BoxFuture<'static, Result<Bytes, Failure>> {
        Box::pin(std::future::ready(Err(not_here(hash, len))))
    }

    /// Streams small files of one directory.
    ///
    /// # Errors
    /// `Unsupported` where files travel one by one only; faults.
    fn bundle(&self, request: BundleRequest) -> BoxFuture<'static, Result<BundleStream, Failure>> {
        let detail = format!("{}: no bundles here", request.directory);
        let failure = Failure::new(FailureKind::Unsupported, detail);
        Box::pin(std::future::ready(Err(failure)))
    }

    /// All extended attributes of `path`.
    ///
    /// # Errors
    /// `Unsupported` where the origin has none; faults.
    fn xattrs(&self, path: ItemPath) -> BoxFuture<'static, Result<Leased<XattrList>, Failure>>;

    /// Usage of the filesystem that holds `path`.
    ///
    /// # Errors
    /// Faults of the origin.
    fn usage(&self, path: ItemPath) -> BoxFuture<'static, Result<FilesystemUsage, Failure>>;
}

//! [`Files`], the trait of all sources for the namespace and its content.
//!
//! The client for the other nodes ([`crate::Upstream`]) implements it, the origins at the root, and a node's own read
//! path, which adds caches and single-flight to either of them. So child nodes and local applications are served by the
//! same layers.

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
use std::time::Duration;

/// Largest file that is read before its version has settled: one stripe. Larger files may take several requests, and a
/// file with an unsettled version must be read by a single one.
pub const UNSETTLED_BYTES_MAX: u64 = STRIPE_BLOCKS * BLOCK_BYTES;

/// Most entries of a listing. A directory with more counts as large: see [`Files::list`].
pub const LISTING_ENTRIES_MAX: usize = 100_000;

/// Requests consecutive blocks of one version of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReadRequest {
    /// The file.
    pub path: ItemPath,
    /// The requested version. If the origin has another one, the answer is `Stale`.
    pub version: Version,
    /// Size of that version in bytes. It gives both sides the length of every block.
    pub size: u64,
    /// Index of the first block, in units of [`BLOCK_BYTES`].
    pub first_block: u64,
    /// Number of blocks, at least 1.
    pub block_count: u64,
    /// The hash of the whole file, if the requester knows it ([`Attributes::content`]).
    pub content: Option<ContentHash>,
    /// Each such request reads storage: no node on the way caches the bytes, looks them up in its caches, or merges the
    /// request with others. The requester caches them itself.
    pub through: bool,
}

impl ReadRequest {
    /// Returns the length in bytes of block `index` of a file of `size` bytes; 0 beyond its end.
    #[must_use]
    pub fn block_len(size: u64, index: u64) -> u64 {
        size.saturating_sub(index.saturating_mul(BLOCK_BYTES))
            .min(BLOCK_BYTES)
    }

    /// Returns the number of bytes of all its blocks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let from = |block: u64| self.size.min(block.saturating_mul(BLOCK_BYTES));
        from(self.first_block.saturating_add(self.block_count)) - from(self.first_block)
    }
}

/// The blocks of a [`ReadRequest`] in order, each as bytes followed by its hash. A block is verified once its hash has
/// come. Before that its bytes may be taken back by a restart, and are never complete. The stream ends after an error.
/// Dropping the stream cancels the read.
pub type ReadStream = BoxStream<'static, Result<BlockPart, Failure>>;

/// The part of a listing before its entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListingHead {
    /// Attributes of the directory itself.
    pub directory: Attributes,
    /// Where the next page begins; `None` at the end of the directory.
    pub next: Option<Cursor>,
    /// Number of entries that follow.
    pub entries: usize,
    /// How long the listing may be used from now on; `None`: until it is cleared.
    pub lease: Option<Duration>,
}

/// The answer to a request for a listing.
#[expect(clippy::large_enum_variant, reason = "short-lived, and few at a time")]
pub enum Listed {
    /// The listing is the one that the requester knows, and is not sent.
    Unchanged {
        /// As [`ListingHead::lease`].
        lease: Option<Duration>,
    },
    /// The listing differs from the known one, or the requester knows none.
    Listing(ListingStream),
}

impl Listed {
    /// Makes an answer that is at hand whole, for a requester that knows the listing with the digest `known`.
    #[must_use]
    pub fn new(listing: Listing, known: Option<ListingDigest>) -> Self {
        if known.is_some() && known == ListingDigest::of_page(&listing) {
            return Self::Unchanged { lease: None };
        }
        Self::Listing(listing.into())
    }

    /// Collects the listing, for a requester that knows none.
    ///
    /// # Errors
    /// As [`ListingStream::collect`]; `Corrupt` if the answer is [`Listed::Unchanged`].
    pub async fn collect(self) -> Result<Listing, Failure> {
        match self {
            Self::Listing(listing) => listing.collect().await,
            Self::Unchanged { .. } => {
                let detail = "a listing is said to be unchanged, but none was known";
                Err(Failure::new(FailureKind::Corrupt, detail))
            }
        }
    }
}

/// One answer for each name, in the order of the names.
pub type StatAnswers = Vec<Result<Attributes, Failure>>;

/// A part of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::large_enum_variant, reason = "short-lived, and few at a time")]
pub enum ListingPart {
    /// The next entries, in order.
    Entries(Vec<Entry>),
    /// Takes back all entries so far: the listing begins again with this head.
    Restart(ListingHead),
}

/// A listing in transit: its head, and its entries as they arrive. The stream ends after an error. Dropping it cancels
/// the rest.
pub struct ListingStream {
    /// The part before the entries.
    pub head: ListingHead,
    /// The entries.
    pub parts: BoxStream<'static, Result<ListingPart, Failure>>,
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
    /// Collects the whole listing.
    ///
    /// # Errors
    /// The failure that ended the stream; `Corrupt` if entries are missing.
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
/// Most files in one [`BundleRequest`].
pub const BUNDLE_FILES_MAX: usize = 2048;

/// Requests small files of one directory together.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BundleRequest {
    /// The directory.
    pub directory: ItemPath,
    /// The files, 1 to [`BUNDLE_FILES_MAX`].
    pub files: Vec<BundleFile>,
}

/// One file of a [`BundleRequest`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BundleFile {
    /// Its name in the directory.
    pub name: Bytes,
    /// The requested version.
    pub version: Version,
    /// Size of that version: 1 to [`BUNDLE_FILE_BYTES_MAX`] bytes.
    pub size: u64,
    /// The hash of the whole file, if the requester knows it ([`Attributes::content`]).
    pub content: Option<ContentHash>,
}

/// The whole content of one file of a bundle, in the requested version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BundleItem {
    /// Index of the file in the request.
    pub index: usize,
    /// Its bytes.
    pub bytes: Bytes,
    /// Their hash, verified on arrival.
    pub hash: ContentHash,
}

/// The files of a [`BundleRequest`] as they arrive. A file that cannot be returned (it changed, is gone, or
/// could not be read) is left out: a reader of that file requests it separately and gets the reason. The
/// stream ends after an error. Dropping the stream cancels the rest.
pub type BundleStream = BoxStream<'static, Result<BundleItem, Failure>>;

/// The failure if no node has bytes with this hash.
pub(crate) fn not_here(hash: ContentHash, len: u64) -> Failure {
    let hash = blake3::Hash::from_bytes(hash.0);
    let detail = format!("nobody on the way has the {len} bytes that hash to {hash}");
    Failure::new(FailureKind::NotFound, detail)
}

/// Requests one page of a listing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListRequest {
    /// The directory.
    pub path: ItemPath,
    /// Where the page begins; `None`: at the beginning of the directory.
    pub cursor: Option<Cursor>,
    /// Most entries in the answer. With [`LISTING_ENTRIES_MAX`] and no cursor, a `next` in the answer means that
    /// the directory is large: it is then paged for readers and looked up by name.
    pub limit: usize,
    /// The digest of a listing that the requester holds, of any age. If it equals that of the answer, no entries
    /// are sent ([`Listed::Unchanged`]).
    pub known: Option<ListingDigest>,
}

/// Requests attributes of names in one directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StatRequest {
    /// The directory.
    pub parent: ItemPath,
    /// The names. The empty name stands for the directory itself.
    pub names: Vec<Bytes>,
    /// A version of the one file in `names`; storage has denied that the file has it. No cache on the way
    /// answers with that version; only storage may confirm it.
    pub denied: Option<Version>,
}

/// An answer of [`Files`]. Dropping it cancels the request.
pub type FilesFuture<T> = BoxFuture<'static, Result<T, Failure>>;

/// A source for a namespace of files.
pub trait Files: Send + Sync + 'static {
    /// Returns the entries of a directory as they arrive.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`; `PermissionDenied` if it may not be listed, although its names may perhaps be looked
    /// up; faults. Also in mid-stream.
    fn list(&self, request: ListRequest) -> FilesFuture<Listed>;

    /// [`Files::list`] for a requester that needs the whole page at once. Not to be overridden.
    ///
    /// # Errors
    /// As [`Files::list`].
    fn list_page(
        &self,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> FilesFuture<Listing> {
        let known = None;
        let listed = self.list(ListRequest {
            path,
            cursor,
            limit,
            known,
        });
        Box::pin(async move { listed.await?.collect().await })
    }

    /// Returns attributes, one answer per name in the order of the names.
    ///
    /// # Errors
    /// The outer failure concerns the directory, an inner one a single name.
    fn stat(&self, request: StatRequest) -> FilesFuture<Leased<StatAnswers>>;

    /// [`Files::stat`] of `names` in `parent`. Not to be overridden.
    ///
    /// # Errors
    /// As [`Files::stat`].
    fn stat_names(&self, parent: ItemPath, names: Vec<Bytes>) -> FilesFuture<Leased<StatAnswers>> {
        let denied = None;
        self.stat(StatRequest {
            parent,
            names,
            denied,
        })
    }

    /// [`Files::stat`] of one name. Not to be overridden.
    ///
    /// # Errors
    /// `NotFound`, also about `parent`; faults.
    fn stat_one(
        &self,
        parent: ItemPath,
        name: Bytes,
        denied: Option<Version>,
    ) -> FilesFuture<Leased<Attributes>> {
        let request = StatRequest {
            parent: parent.clone(),
            names: vec![name],
            denied,
        };
        let answers = self.stat(request);
        Box::pin(async move {
            let Leased { value, lease } = answers.await?;
            let none = || {
                let detail = format!("{parent}: no answer about a name");
                Failure::new(FailureKind::Corrupt, detail)
            };
            let value = value.into_iter().next().ok_or_else(none)??;
            Ok(Leased { value, lease })
        })
    }

    /// Opens a stream of consecutive blocks.
    ///
    /// # Errors
    /// `Stale` if the file has another version, also in mid-stream; faults.
    fn read(&self, request: ReadRequest) -> FilesFuture<ReadStream>;

    /// Marks the cached metadata of `path` and below as out of date: it is requested again at its next use. Other nodes
    /// are not told.
    fn forget(&self, path: &ItemPath) {
        let _nothing_cached = path;
    }

    /// Returns consecutive bytes within one block, with their hash. By default the whole block is read.
    ///
    /// # Errors
    /// As [`Files::read`]; `Corrupt` for a request with a [`RangeRequest::fault`].
    fn read_range(&self, request: RangeRequest) -> FilesFuture<RangeAnswer> {
        let block = self.read(range::block_of(&request));
        Box::pin(async move { range::cut(&request, block.await?).await })
    }

    /// Returns content by its hash, verified, from the caches of this node and of the nodes up to the roots: for callers
    /// that hold the hash of content deleted from storage. Storage is never read.
    ///
    /// # Errors
    /// `NotFound` if no node has the content, or none has answered in time.
    fn find(&self, hash: ContentHash, len: u64) -> FilesFuture<Bytes> {
        Box::pin(std::future::ready(Err(not_here(hash, len))))
    }

    /// Streams small files of one directory.
    ///
    /// # Errors
    /// `Unsupported` if this source has no bundles; faults.
    fn bundle(&self, request: BundleRequest) -> FilesFuture<BundleStream> {
        let detail = format!("{}: no bundles here", request.directory);
        let failure = Failure::new(FailureKind::Unsupported, detail);
        Box::pin(std::future::ready(Err(failure)))
    }

    /// Returns all extended attributes of `path`.
    ///
    /// # Errors
    /// `Unsupported` if the origin has none; faults.
    fn xattrs(&self, path: ItemPath) -> FilesFuture<Leased<XattrList>>;

    /// Returns the usage of the filesystem that holds `path`.
    ///
    /// # Errors
    /// Faults of the origin.
    fn usage(&self, path: ItemPath) -> FilesFuture<FilesystemUsage>;
}

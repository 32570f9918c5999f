//! Reading an object: one GET, or several concurrent ones for a long range.
//!
//! Every answer names its version, and by the rules of HTTP its body is of that version. So each part of a
//! range is checked where it begins, and parts of two versions never follow each other. (`If-Match` would
//! cost another round trip: a request knows only the hash of a tag.) If the store has no strong `ETag`, and
//! on web servers, which send the current content of a file, the version is checked again before the last
//! piece of a part is returned.
//!
//! One connection to a store is slower than the store. So a range longer than [`PART_BYTES`] is requested in
//! parts. Several parts are prefetched, in memory that all readers of the store share.

use super::gate::{Permit, Priority};
use super::{Shared, error};
use crate::num::to_usize;
use crate::origin::bundle::item_of;
use crate::origin::failure::Cause;
use crate::origin::{ByteRange, ByteStream, ClaimFile, FileClaim, collected};
use bytes::Bytes;
use copperfs_overlay::{BundleItem, Failure, FailureKind, UNSETTLED_BYTES_MAX};
use futures_util::{StreamExt, TryFutureExt, stream};
use object_store::{GetOptions, GetRange};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Length of a part. At 50 ms to the first byte and 80 MB/s per connection, a part half as long would spend
/// as much time on waiting as on bytes; one twice as long halves the number of connections in use.
const PART_BYTES: u64 = 4 << 20;
/// Prefetched parts of one range.
const PREFETCH_PARTS_MAX: usize = 8;
/// Prefetched parts of all readers of one store: 48 MiB. Without a free one, a reader reads part by part.
pub(super) const PREFETCH_PARTS_TOTAL: usize = 12;
/// Pieces of a prefetched part that wait for their reader. A part never has more, even packet by packet, so
/// that a slow reader holds no permit.
const PIECES_MAX: usize = 4096;

const ACTION: &str = "read";

impl Shared {
    /// Opens `range`. The stream returns the bytes of its first answer as they arrive.
    pub(super) async fn open(self: Arc<Self>, range: ByteRange) -> Result<ByteStream, Failure> {
        let path = &range.path;
        let fail = |kind, text| self.failure(ACTION, path, &Cause::new(kind, text));
        let key = self.key(path)?;
        if path.is_root() {
            return Err(fail(FailureKind::IsADirectory, "a directory"));
        }
        let end = range
            .offset
            .checked_add(range.length)
            .filter(|end| *end <= range.size)
            .ok_or_else(|| fail(FailureKind::Io, "a range beyond the end"))?;
        // Relaxed: an outdated value costs only speed.
        if range.length <= PART_BYTES || !self.supports_ranges.load(Ordering::Relaxed) {
            let permit = self.connection.gate.enter(Priority::Demand).await;
            return self.open_part(key, range, Priority::Demand, permit).await;
        }
        let mut parts = Parts {
            key,
            next: range.offset,
            end,
            current: stream::empty().boxed(),
            prefetched: VecDeque::with_capacity(PREFETCH_PARTS_MAX),
            range,
            shared: self,
        };
        parts.advance().await?;
        Ok(stream::try_unfold(parts, Parts::next).boxed())
    }

    /// Reads file `index` of a bundle. Such files are prefetched for their readers, and claimed first: a file that a reader
    /// requests earlier is fetched for the reader, and left out of the bundle.
    pub(super) async fn fetch(
        self: Arc<Self>,
        index: usize,
        range: ByteRange,
        claim: ClaimFile,
    ) -> Option<(BundleItem, FileClaim)> {
        let key = self.key(&range.path).ok()?;
        // Claimed after the wait, in which another request may have read the file.
        let permit = self.connection.gate.enter(Priority::Prefetch).await;
        let claim = claim(index)?;
        let (path, size) = (range.path.clone(), range.size);
        let opening = self.open_part(key, range, Priority::Prefetch, permit);
        let reading = opening.and_then(|pieces| collected(pieces, size, &path));
        let bytes = (reading.await)
            .inspect_err(|failure| tracing::debug!(%failure, "left out of a bundle"));
        // A copy, because the cache keeps it, and the received bytes may be part of a larger buffer.
        let bytes = Bytes::copy_from_slice(&bytes.ok()?);
        Some((item_of(index, bytes), claim))
    }

    /// One GET for all of `range`, with a permit of this `priority`.
    pub(super) async fn open_part(
        self: Arc<Self>,
        key: String,
        range: ByteRange,
        priority: Priority,
        permit: Permit,
    ) -> Result<ByteStream, Failure> {
        let path = &range.path;
        let stale = |text| self.failure(ACTION, path, &Cause::stale(text));
        let is_whole = range.length == range.size;
        let is_unsettled = !range.version.is_settled();
        if is_unsettled && !(is_whole && range.size <= UNSETTLED_BYTES_MAX) {
            return Err(stale("the object is too young to be read in parts"));
        }
        let is_part = !is_whole && range.length > 0;
        let options = GetOptions {
            head: range.length == 0,
            range: is_part.then(|| GetRange::Bounded(range.offset..range.offset + range.length)),
            ..GetOptions::default()
        };
        let mut skip = 0;
        let mut result = self.get(&key, options, &permit).await;
        if let Err(error) = &result
            && error::is_without_ranges(error)
        {
            // Request the whole object, and skip the bytes before the range.
            self.supports_ranges.store(false, Ordering::Relaxed);
            skip = range.offset;
            result = self.get(&key, GetOptions::default(), &permit).await;
        } else if result.is_ok() && is_part {
            self.supports_ranges.store(true, Ordering::Relaxed);
        }
        let result = result.map_err(|error| match error {
            object_store::Error::NotFound { .. } => stale("the object is gone"),
            error => self.failed(ACTION, path, &error),
        })?;
        let is_same = self.version(&result.meta).is_state_of(&range.version);
        if !is_same || result.meta.size != range.size {
            return Err(stale("the object has changed"));
        }
        if is_unsettled && !self.admits(&result.meta, &range) {
            return Err(stale(
                "the object is too young to be read under this version, or was read already",
            ));
        }
        if range.length == 0 {
            return Ok(stream::empty().boxed());
        }
        let is_reliable = self.has_reliable_version(&result.meta);
        let body = Body {
            pieces: result.into_stream(),
            is_reliable,
            // The body of a demanded part is read at the reader's pace, which must not block other requests.
            // A prefetched body is read as it arrives.
            permit: (priority == Priority::Prefetch).then_some(permit),
            shared: self,
            key,
            range,
            skip,
            done: 0,
        };
        Ok(stream::try_unfold(body, Body::next).boxed())
    }
}

/// The body of one answer, cut to the range.
struct Body {
    pieces: stream::BoxStream<'static, object_store::Result<Bytes>>,
    shared: Arc<Shared>,
    key: String,
    range: ByteRange,
    /// Bytes before the range that a server without ranges sends.
    skip: u64,
    /// Returned bytes of the range.
    done: u64,
    /// The version shows every change during the transfer.
    is_reliable: bool,
    permit: Option<Permit>,
}

impl Body {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, Failure> {
        let (shared, path) = (Arc::clone(&self.shared), self.range.path.clone());
        loop {
            let left = self.range.length - self.done;
            if left == 0 {
                return Ok(None);
            }
            let mut piece = match self.pieces.next().await {
                Some(Ok(piece)) => piece,
                Some(Err(error)) => return Err(shared.failed(ACTION, &path, &error)),
                None => {
                    let cause = Cause::new(FailureKind::Unavailable, "the answer ended early");
                    return Err(shared.failure(ACTION, &path, &cause));
                }
            };
            let skipped = self.skip.min(piece.len() as u64);
            self.skip -= skipped;
            let mut piece = piece.split_off(to_usize(skipped));
            piece.truncate(to_usize(left));
            if piece.is_empty() {
                continue;
            }
            self.done += piece.len() as u64;
            if self.done == self.range.length && !self.is_reliable {
                let meta = shared.head(&self.key, false, self.permit.take()).await;
                let meta = meta.map_err(|error| shared.failed(ACTION, &path, &error))?;
                if !shared.version(&meta).is_state_of(&self.range.version) {
                    let cause = Cause::stale("the object has changed while it was read");
                    return Err(shared.failure(ACTION, &path, &cause));
                }
            }
            return Ok(Some((piece, self)));
        }
    }
}

/// A long range that is read part by part.
struct Parts {
    shared: Arc<Shared>,
    key: String,
    range: ByteRange,
    /// The first byte that is not requested yet.
    next: u64,
    end: u64,
    /// The part whose bytes are returned.
    current: ByteStream,
    /// The parts after the current one, in order. Each is fetched by a task, which ends when the part is dropped.
    prefetched: VecDeque<ByteStream>,
}

impl Parts {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, Failure> {
        loop {
            if let Some(piece) = self.current.next().await {
                return Ok(Some((piece?, self)));
            }
            if !self.advance().await? {
                return Ok(None);
            }
        }
    }

    /// Turns to the next part. Returns false after the last one.
    async fn advance(&mut self) -> Result<bool, Failure> {
        if let Some(part) = self.prefetched.pop_front() {
            self.current = part;
            self.prefetch();
        } else if self.next < self.end {
            // Taken before any part is prefetched, because those are returned after it.
            let part = self.next_part();
            self.prefetch();
            let permit = self.shared.connection.gate.enter(Priority::Demand).await;
            let (shared, key) = (Arc::clone(&self.shared), self.key.clone());
            let opening = shared.open_part(key, part, Priority::Demand, permit);
            self.current = opening.await?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn next_part(&mut self) -> ByteRange {
        let offset = self.next;
        self.next = (offset + PART_BYTES).min(self.end);
        ByteRange {
            offset,
            length: self.next - offset,
            ..self.range.clone()
        }
    }

    /// Starts to prefetch as many parts as the bounds allow.
    fn prefetch(&mut self) {
        while self.prefetched.len() < PREFETCH_PARTS_MAX && self.next < self.end {
            let Ok(share) = Arc::clone(&self.shared.prefetch).try_acquire_owned() else {
                return;
            };
            let part = self.next_part();
            let (shared, key) = (Arc::clone(&self.shared), self.key.clone());
            let (sender, pieces) = mpsc::channel(PIECES_MAX);
            let mut fetch = JoinSet::new();
            fetch.spawn(async move {
                let permit = shared.connection.gate.enter(Priority::Prefetch).await;
                let opened = shared
                    .open_part(key, part, Priority::Prefetch, permit)
                    .await;
                let mut pieces =
                    opened.unwrap_or_else(|failure| stream::iter([Err(failure)]).boxed());
                while let Some(piece) = pieces.next().await {
                    if sender.send(piece).await.is_err() {
                        return;
                    }
                }
            });
            // The share of the memory for prefetching is released after the part's last piece.
            let part = stream::unfold((pieces, fetch, share), async |mut part| {
                Some((part.0.recv().await?, part))
            });
            self.prefetched.push_back(part.boxed());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::origin::{ByteRange, ObjectOrigin, Origin, OriginOptions, claim_any};
    use crate::testing::{noise, path};
    use bytes::Bytes;
    use copperfs_overlay::{Attributes, BundleFile, BundleRequest, ItemPath};
    use futures_util::{StreamExt, TryStreamExt};
    use object_store::memory::InMemory;
    use object_store::path::Path;
    use object_store::{ObjectStore, ObjectStoreExt};
    use std::sync::Arc;

    /// A store that has one object, `file`, and the attributes of that file.
    async fn with_one_file(content: Bytes) -> (ObjectOrigin, Attributes) {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        store
            .put(&Path::from("file"), content.into())
            .await
            .unwrap();
        let options = OriginOptions::default();
        let origin = ObjectOrigin::over(store, &Path::default(), "memory", &options);
        let names = vec![Bytes::from_static(b"file")];
        let found = origin.stat(path(""), names).await.unwrap().remove(0);
        (origin, found.unwrap())
    }

    /// The memory for prefetching is taken when a read begins, and becomes free before its second part.
    #[tokio::test]
    async fn parts_keep_their_order_when_prefetching_begins_late() {
        let content = noise("parts", 11 * super::PART_BYTES + 5);
        let (origin, found) = with_one_file(content.clone().into()).await;
        let memory = Arc::clone(&origin.shared.prefetch);
        let all = u32::try_from(super::PREFETCH_PARTS_TOTAL).unwrap();
        let taken = memory.acquire_many_owned(all).await.unwrap();
        let range = ByteRange {
            path: path("file"),
            version: found.version,
            size: found.size,
            offset: 0,
            length: found.size,
        };
        let pieces = origin.open(range).await.unwrap();
        drop(taken);
        let pieces: Vec<Bytes> = pieces.try_collect().await.unwrap();
        assert!(pieces.concat() == content, "other bytes");
    }

    /// The bytes of a bundle are cached, so they must not keep a larger buffer alive, such as the client's.
    #[tokio::test]
    async fn files_of_bundles_have_their_own_memory() {
        let buffer = Bytes::from(noise("buffer", 64 << 10));
        let content = buffer.slice(..100);
        let (origin, found) = with_one_file(content.clone()).await;
        let file = BundleFile {
            name: Bytes::from_static(b"file"),
            version: found.version,
            size: content.len() as u64,
            content: None,
        };
        let request = BundleRequest {
            directory: ItemPath::root(),
            files: vec![file],
        };
        let items: Vec<_> = origin.bundle(request, claim_any()).collect().await;
        let bytes = &items[0].0.bytes;
        assert_eq!(*bytes, content);
        assert_ne!(bytes.as_ptr(), content.as_ptr());
    }
}

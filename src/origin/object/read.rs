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
use super::{ListingMode, Shared, error};
use crate::num::to_usize;
use crate::origin::failure::Cause;
use crate::origin::{ByteRange, ByteStream};
use bytes::Bytes;
use copperfs_overlay::{Failure, FailureKind, UNSETTLED_BYTES_MAX};
use futures_util::{StreamExt, stream};
use object_store::{GetOptions, GetRange};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;

/// Length of a part. At 50 ms to the first byte and 80 MB/s per connection, a part half as long would spend
/// as much time on waiting as on bytes; one twice as long halves the number of connections in use.
const PART_BYTES: u64 = 4 << 20;
/// Prefetched parts of one range.
const PREFETCH_PARTS_MAX: usize = 8;
/// Prefetched parts of all readers of one store: 48 MiB. Without a free one, a reader reads part by part.
const PREFETCH_PARTS_TOTAL: usize = 12;
/// Pieces of a prefetched part that wait for their reader. A part never has more, even packet by packet, so
/// that a slow reader holds no permit.
const PIECES_MAX: usize = 4096;

const ACTION: &str = "read";

/// State that the readers of one store share.
pub(super) struct SharedReads {
    /// A permit for each prefetched part, until its last piece is returned.
    prefetch: Arc<Semaphore>,
    /// The store is known to support ranges. A store without them sends the whole object for each part.
    supports_ranges: AtomicBool,
}

impl SharedReads {
    /// A plain HTTP origin may be any web server, which first has to prove that it supports ranges.
    pub(super) fn new(listing: &ListingMode) -> Self {
        let is_web_server = matches!(listing, ListingMode::Unsupported);
        Self {
            prefetch: Arc::new(Semaphore::new(PREFETCH_PARTS_TOTAL)),
            supports_ranges: AtomicBool::new(!is_web_server),
        }
    }
}

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
        if range.length <= PART_BYTES || !self.reads.supports_ranges.load(Ordering::Relaxed) {
            let permit = self.connection.gate.enter(Priority::Demand).await;
            return self.open_part(key, range, Priority::Demand, permit).await;
        }
        let mut parts = Parts {
            key,
            next: range.offset + PART_BYTES,
            end,
            prefetched: VecDeque::with_capacity(PREFETCH_PARTS_MAX),
            current: None,
            range,
            shared: self,
        };
        parts.prefetch();
        let first = parts.range.offset..parts.range.offset + PART_BYTES;
        parts.current = Some(CurrentPart::Direct(parts.open_direct(first).await?));
        Ok(stream::try_unfold(parts, Parts::next).boxed())
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
            self.reads.supports_ranges.store(false, Ordering::Relaxed);
            skip = range.offset;
            result = self.get(&key, GetOptions::default(), &permit).await;
        } else if result.is_ok() && is_part {
            self.reads.supports_ranges.store(true, Ordering::Relaxed);
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
                let meta = match self.permit.take() {
                    Some(permit) => shared.head_with(&self.key, false, &permit).await,
                    None => shared.head(&self.key, false).await,
                };
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
    /// The parts after the current one, in order.
    prefetched: VecDeque<PrefetchedPart>,
    current: Option<CurrentPart>,
}

/// The part whose bytes are returned.
enum CurrentPart {
    /// It was not prefetched.
    Direct(ByteStream),
    Prefetched(PrefetchedPart),
}

/// A part that is prefetched by a task. Dropping it ends the task.
struct PrefetchedPart {
    pieces: mpsc::Receiver<Result<Bytes, Failure>>,
    fetch: JoinHandle<()>,
    /// Its share of the memory for prefetching.
    _share: OwnedSemaphorePermit,
}

impl Drop for PrefetchedPart {
    fn drop(&mut self) {
        self.fetch.abort();
    }
}

impl Parts {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, Failure> {
        loop {
            let piece = match &mut self.current {
                Some(CurrentPart::Direct(pieces)) => pieces.next().await,
                Some(CurrentPart::Prefetched(part)) => part.pieces.recv().await,
                None => None,
            };
            if let Some(piece) = piece {
                return Ok(Some((piece?, self)));
            }
            self.current = self.prefetched.pop_front().map(CurrentPart::Prefetched);
            self.prefetch();
            if self.current.is_none() {
                if self.next >= self.end {
                    return Ok(None);
                }
                let part = self.next_part();
                self.current = Some(CurrentPart::Direct(self.open_direct(part).await?));
            }
        }
    }

    fn next_part(&mut self) -> Range<u64> {
        let start = self.next;
        self.next = (start + PART_BYTES).min(self.end);
        start..self.next
    }

    fn range_of(&self, part: Range<u64>) -> ByteRange {
        ByteRange {
            offset: part.start,
            length: part.end - part.start,
            ..self.range.clone()
        }
    }

    /// The future borrows nothing, because a stream in `self` cannot be shared between threads.
    fn open_direct(
        &self,
        part: Range<u64>,
    ) -> impl Future<Output = Result<ByteStream, Failure>> + Send + use<> {
        let (shared, key) = (Arc::clone(&self.shared), self.key.clone());
        let range = self.range_of(part);
        async move {
            let permit = shared.connection.gate.enter(Priority::Demand).await;
            shared.open_part(key, range, Priority::Demand, permit).await
        }
    }

    /// Starts to prefetch as many parts as the bounds allow.
    fn prefetch(&mut self) {
        while self.prefetched.len() < PREFETCH_PARTS_MAX && self.next < self.end {
            let Ok(share) = Arc::clone(&self.shared.reads.prefetch).try_acquire_owned() else {
                return;
            };
            let part = self.next_part();
            let (shared, key) = (Arc::clone(&self.shared), self.key.clone());
            let range = self.range_of(part);
            let (sender, pieces) = mpsc::channel(PIECES_MAX);
            let fetch = tokio::spawn(async move {
                let permit = shared.connection.gate.enter(Priority::Prefetch).await;
                let opened = shared
                    .open_part(key, range, Priority::Prefetch, permit)
                    .await;
                let mut pieces = match opened {
                    Ok(pieces) => pieces,
                    Err(failure) => stream::iter([Err(failure)]).boxed(),
                };
                while let Some(piece) = pieces.next().await {
                    if sender.send(piece).await.is_err() {
                        return;
                    }
                }
            });
            self.prefetched.push_back(PrefetchedPart {
                pieces,
                fetch,
                _share: share,
            });
        }
    }
}

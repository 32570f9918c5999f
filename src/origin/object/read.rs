//! Reading an object: one GET, or several at a time for a long range.
//!
//! Every answer names the version it is of, and its body is of that version by the meaning of HTTP; so
//! each part of a range is checked where it begins, and parts of two versions never follow each other.
//! (`If-Match` would say the same one round trip later: a request knows the hash of a tag, not the
//! tag.) Where the store has no strong `ETag`, and on web servers, which send what is in a file at
//! the moment, the version is looked at again before a part's last piece is handed on.
//!
//! One connection to a store is slower than the store: a range longer than [`PART_BYTES`] is asked for
//! in parts, several ahead of the one that is handed on, in memory that all readers of the store share.

use super::gate::{Permit, Turn};
use super::{Inner, Names, error};
use crate::origin::failure::stale;
use crate::origin::{ByteRange, ByteStream};
use bytes::Bytes;
use copperfs_overlay::{Failure, FailureKind, UNSETTLED_BYTES_MAX};
use futures_util::StreamExt;
use futures_util::stream;
use object_store::{GetOptions, GetRange};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;

/// Length of a part. At 50 ms to the first byte and 80 MB/s a connection, a part half as long would
/// spend as much time on waiting as on bytes; one twice as long halves the connections in use.
const PART_BYTES: u64 = 4 << 20;
/// Parts of one range that are under way behind the one that is handed on.
const PARTS_AHEAD: usize = 8;
/// Parts ahead of all readers of one store: 48 MiB. Who finds none left reads part by part.
const PARTS_AHEAD_ALL: usize = 12;
/// Pieces of a part that wait for their reader; more than a part has, even
/// packet by packet, so that a slow reader keeps nobody's permit.
const PIECES: usize = 4096;

const ACTION: &str = "read";

/// What the readers of one store share.
#[derive(Debug)]
pub(super) struct Reads {
    /// One for each part that is fetched ahead, until it is handed on.
    ahead: Arc<Semaphore>,
    /// The store is known to give ranges: others send all of an object for each part.
    ranged: AtomicBool,
}

impl Reads {
    /// Any web server may stand behind a plain HTTP origin: it has to show that it gives ranges.
    pub(super) fn new(names: &Names) -> Self {
        Self {
            ahead: Arc::new(Semaphore::new(PARTS_AHEAD_ALL)),
            ranged: AtomicBool::new(!names.probed),
        }
    }
}

impl Inner {
    /// Opens `range`; gives its first answer's bytes as soon as they come.
    pub(super) async fn open(self: Arc<Self>, range: ByteRange) -> Result<ByteStream, Failure> {
        let path = &range.path;
        let key = self.key(path)?;
        if path.is_root() {
            return Err(self.fault(FailureKind::IsADirectory, ACTION, path, "a directory"));
        }
        let end = range
            .offset
            .checked_add(range.length)
            .filter(|end| *end <= range.size)
            .ok_or_else(|| self.fault(FailureKind::Io, ACTION, path, "a range beyond the end"))?;
        if range.length <= PART_BYTES || !self.reads.ranged.load(Ordering::Relaxed) {
            let permit = self.gate.enter(Turn::Demand).await;
            return self.open_part(key, range, Turn::Demand, permit).await;
        }
        let mut parts = Parts {
            key,
            next: range.offset + PART_BYTES,
            end,
            ahead: VecDeque::with_capacity(PARTS_AHEAD),
            current: None,
            range,
            origin: self,
        };
        parts.fetch_ahead();
        let first = parts.range.offset..parts.range.offset + PART_BYTES;
        parts.current = Some(Current::Here(parts.open_here(first).await?));
        Ok(stream::try_unfold(parts, Parts::next).boxed())
    }

    /// One GET for all of `range`, with a permit that was got for `turn`.
    pub(super) async fn open_part(
        self: Arc<Self>,
        key: String,
        range: ByteRange,
        turn: Turn,
        permit: Permit,
    ) -> Result<ByteStream, Failure> {
        let path = &range.path;
        let whole = range.length == range.size;
        let read_at_once = whole && range.size <= UNSETTLED_BYTES_MAX;
        if !range.version.is_settled() && !read_at_once {
            let cause = "the object is too young to be read in parts";
            return Err(stale(&self.label, path, cause));
        }
        let wanted = GetRange::Bounded(range.offset..range.offset + range.length);
        let options = GetOptions {
            head: range.length == 0,
            range: (!whole && range.length > 0).then_some(wanted),
            ..GetOptions::default()
        };
        let mut skip = 0;
        let result = match self.get(&key, options, &permit).await {
            // A server without ranges: take it all, and cut here.
            Err(failure) if error::is_without_ranges(&failure) => {
                self.reads.ranged.store(false, Ordering::Relaxed);
                skip = range.offset;
                self.get(&key, GetOptions::default(), &permit).await
            }
            Ok(result) => {
                if !whole && range.length > 0 {
                    self.reads.ranged.store(true, Ordering::Relaxed);
                }
                Ok(result)
            }
            Err(failure) => Err(failure),
        };
        let result = result.map_err(|failure| match failure {
            object_store::Error::NotFound { .. } => stale(&self.label, path, "the object is gone"),
            failure => self.failure(ACTION, path, &failure),
        })?;
        let same = self.version(&result.meta).is_state_of(&range.version);
        if !same || result.meta.size != range.size {
            return Err(stale(&self.label, path, "the object has changed"));
        }
        if !range.version.is_settled() && !self.admits(&result.meta, &range) {
            let cause =
                "the object is too young to be read under this version, or was read already";
            return Err(stale(&self.label, path, cause));
        }
        if range.length == 0 {
            return Ok(stream::empty().boxed());
        }
        let strong = self.has_sure_version(&result.meta);
        // A reader may take its time over the body, and must not keep others from the store. What is
        // fetched ahead is taken as it comes.
        let permit = (turn == Turn::Ahead).then_some(permit);
        let body = Body {
            pieces: result.into_stream(),
            origin: self,
            key,
            range,
            skip,
            done: 0,
            strong,
            permit,
        };
        Ok(stream::try_unfold(body, Body::next).boxed())
    }
}

/// The body of one answer, cut to the range.
struct Body {
    pieces: stream::BoxStream<'static, object_store::Result<Bytes>>,
    origin: Arc<Inner>,
    key: String,
    range: ByteRange,
    /// Bytes before the range that a server without ranges sends.
    skip: u64,
    done: u64,
    strong: bool,
    permit: Option<Permit>,
}

impl Body {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, Failure> {
        let (origin, path) = (Arc::clone(&self.origin), self.range.path.clone());
        loop {
            let left = self.range.length - self.done;
            if left == 0 {
                return Ok(None);
            }
            let mut piece = match self.pieces.next().await {
                Some(Ok(piece)) => piece,
                Some(Err(failure)) => return Err(origin.failure(ACTION, &path, &failure)),
                None => {
                    let cause = "the answer ended early";
                    return Err(origin.fault(FailureKind::Unavailable, ACTION, &path, cause));
                }
            };
            let before = usize::try_from(self.skip)
                .unwrap_or(usize::MAX)
                .min(piece.len());
            self.skip -= u64::try_from(before).unwrap_or(self.skip);
            let mut piece = piece.split_off(before);
            piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            if piece.is_empty() {
                continue;
            }
            self.done += u64::try_from(piece.len()).unwrap_or(left);
            if self.done == self.range.length && !self.strong {
                let meta = match self.permit.take() {
                    Some(permit) => origin.head_by(&self.key, false, &permit).await,
                    None => origin.head(&self.key, false).await,
                };
                let meta = meta.map_err(|failure| origin.failure(ACTION, &path, &failure))?;
                if !origin.version(&meta).is_state_of(&self.range.version) {
                    let cause = "the object has changed while it was read";
                    return Err(stale(&origin.label, &path, cause));
                }
            }
            return Ok(Some((piece, self)));
        }
    }
}

/// A long range on its way, part by part.
struct Parts {
    origin: Arc<Inner>,
    key: String,
    range: ByteRange,
    /// The first byte that nobody has asked for.
    next: u64,
    end: u64,
    /// Under way behind the current one, in order.
    ahead: VecDeque<Part>,
    current: Option<Current>,
}

/// The part that is handed on.
enum Current {
    /// It was not fetched ahead.
    Here(ByteStream),
    Ahead(Part),
}

/// A part that is fetched ahead. Dropped, it is given up.
struct Part {
    pieces: mpsc::Receiver<Result<Bytes, Failure>>,
    fetch: JoinHandle<()>,
    /// Its share of the memory.
    _share: OwnedSemaphorePermit,
}

impl Drop for Part {
    fn drop(&mut self) {
        self.fetch.abort();
    }
}

impl Parts {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, Failure> {
        loop {
            let piece = match &mut self.current {
                Some(Current::Here(pieces)) => pieces.next().await,
                Some(Current::Ahead(part)) => part.pieces.recv().await,
                None => None,
            };
            if let Some(piece) = piece {
                return Ok(Some((piece?, self)));
            }
            self.current = self.ahead.pop_front().map(Current::Ahead);
            self.fetch_ahead();
            if self.current.is_none() {
                if self.next >= self.end {
                    return Ok(None);
                }
                let run = self.next_run();
                self.current = Some(Current::Here(self.open_here(run).await?));
            }
        }
    }

    fn next_run(&mut self) -> std::ops::Range<u64> {
        let start = self.next;
        self.next = (start + PART_BYTES).min(self.end);
        start..self.next
    }

    fn part_of(&self, run: std::ops::Range<u64>) -> ByteRange {
        ByteRange {
            offset: run.start,
            length: run.end - run.start,
            ..self.range.clone()
        }
    }

    /// The future borrows nothing: what is held here cannot be shared between threads.
    fn open_here(
        &self,
        run: std::ops::Range<u64>,
    ) -> impl Future<Output = Result<ByteStream, Failure>> + Send + use<> {
        let origin = Arc::clone(&self.origin);
        let (key, part) = (self.key.clone(), self.part_of(run));
        async move {
            let permit = origin.gate.enter(Turn::Demand).await;
            origin.open_part(key, part, Turn::Demand, permit).await
        }
    }

    /// Begins as many parts as there is room for.
    fn fetch_ahead(&mut self) {
        while self.ahead.len() < PARTS_AHEAD && self.next < self.end {
            let Ok(share) = Arc::clone(&self.origin.reads.ahead).try_acquire_owned() else {
                return;
            };
            let run = self.next_run();
            let (origin, key, part) = (
                Arc::clone(&self.origin),
                self.key.clone(),
                self.part_of(run),
            );
            let (sender, pieces) = mpsc::channel(PIECES);
            let fetch = tokio::spawn(async move {
                let permit = origin.gate.enter(Turn::Ahead).await;
                let mut pieces = match origin.open_part(key, part, Turn::Ahead, permit).await {
                    Ok(pieces) => pieces,
                    Err(failure) => stream::once(std::future::ready(Err(failure))).boxed(),
                };
                while let Some(piece) = pieces.next().await {
                    if sender.send(piece).await.is_err() {
                        return;
                    }
                }
            });
            self.ahead.push_back(Part {
                pieces,
                fetch,
                _share: share,
            });
        }
    }
}

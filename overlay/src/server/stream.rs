//! One stream: one request, received, checked and answered.
//!
//! The memory of a stream is bounded by one request frame, one batch of parts, and quinn's windows: parts are
//! taken from the service only as fast as the peer reads them. When the peer stops the stream, the service's
//! future is dropped.

mod item;
mod steering;

use crate::cluster;
use crate::connected::{RoomFor, RoomForItems, RoomPermit};
use crate::exchange::{AnswerError, encode_parts};
use crate::model::{
    BUNDLE_FILES_MAX, BlockPart, BundleItem, BundleStream, Failure, FailureKind, Leased, Listed,
    ListingHead, ListingPart, ListingStream, RangeAnswer, ReadStream, to_ms,
};
use crate::shared::Shared;
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::wire::bundle::{ITEM_HEAD_BYTES, put_head};
use crate::wire::message::{self, NodeId};
use crate::wire::{
    FrameHeader, FrameKind, Head, Hello, PageWriter, Question, Request, WireError, ensure,
};
use bytes::{Bytes, BytesMut};
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt};
use quinn::{Connection, RecvStream, SendStream};
use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;

/// How long a peer may leave an answer unread.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(60);
/// The same for an item. Its reader assembles it at once, and other readers wait for the room that it takes.
const ITEM_UNREAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests of one connection that are received at a time.
const RECEIVED_MAX: usize = 32;
/// Bytes of parts that share one write, if they are ready together.
const BATCH_BYTES: usize = 128 << 10;
/// Parts in a batch.
const BATCH_PARTS: usize = 64;
/// Bytes of files that share one frame, if they are ready together. With one more file the frame stays within
/// its limit.
const BUNDLE_BATCH_BYTES: usize = 256 << 10;

/// The sender of a request, which determines the permitted requests.
pub(crate) enum Requester {
    /// An ancestor of this node: requests about this node's subtree.
    Ancestor,
    /// A child over its connection: requests for files, and about the cluster.
    Child(NodeId, Connection),
    /// A reader of items: requests for items, and on a root for the bytes of files, within its room. With the lane that
    /// serves it.
    Reader(NodeId, RoomForItems, usize),
}

impl fmt::Debug for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ancestor => f.write_str("Ancestor"),
            Self::Child(id, _) => f.debug_tuple("Child").field(id).finish(),
            Self::Reader(id, ..) => f.debug_tuple("Reader").field(id).finish(),
        }
    }
}

/// The requests of one connection.
pub(crate) struct RequestSlots {
    requester: Requester,
    /// Permits to receive a request. A waiting request stays in QUIC's windows, so that many large requests take
    /// no more memory than a few.
    receiving: Semaphore,
    /// A refused request was logged. Further ones are not, so that they cannot fill the disk.
    refusal_logged: AtomicBool,
}

impl RequestSlots {
    pub(crate) fn new(requester: Requester) -> Self {
        Self {
            requester,
            receiving: Semaphore::new(RECEIVED_MAX),
            refusal_logged: AtomicBool::new(false),
        }
    }
}

/// Answers one stream. An error ends this stream only.
pub(crate) async fn answer(
    shared: Arc<Shared>,
    slots: Arc<RequestSlots>,
    send: SendStream,
    recv: RecvStream,
) {
    let requester = &slots.requester;
    let unread_timeout = match requester {
        Requester::Reader(..) => ITEM_UNREAD_TIMEOUT,
        Requester::Ancestor | Requester::Child(..) => UNREAD_TIMEOUT,
    };
    let mut writer = FrameWriter::new(send, unread_timeout);
    let mut reader = FrameReader::new(recv, shared.request_timeout);
    // Cancels the service's work when the peer loses interest.
    let stopped = writer.stopped();
    let answering = async {
        match receive(&mut reader, &slots, shared.upstream.is_root()).await {
            Ok(Opening::Question(question)) => {
                let mut answer = Answer {
                    shared: &shared,
                    requester,
                    reader: &mut reader,
                    writer: &mut writer,
                };
                match answer.respond(question).await {
                    Err(AnswerError::Failure(failure)) => answer.fail(&failure).await,
                    Err(AnswerError::Stream(error)) => Err(error),
                    Ok(()) => Ok(()),
                }
            }
            Ok(Opening::Hello(hello)) => {
                answer_hello(&shared, requester, &mut writer, &hello).await
            }
            Err(StreamError::Wire(error)) => {
                if !slots.refusal_logged.swap(true, Ordering::Relaxed) {
                    tracing::warn!(from = ?requester, %error, "refused a request; said once a connection");
                }
                let text = format!("refused a request: {error}");
                let failure = Failure::new(FailureKind::Corrupt, text);
                writer.message(FrameKind::Failure, &failure).await.map(drop)
            }
            Err(error) => Err(error),
        }
    };
    let outcome = tokio::select! {
        biased;
        outcome = answering => outcome,
        () = stopped => return,
    };
    match outcome {
        Ok(()) => writer.finish(),
        Err(error) => tracing::debug!(from = ?requester, %error, "an answer was not delivered"),
    }
}

/// The first frame of a stream.
enum Opening {
    Question(Question),
    /// The peer becomes a child in another tree too.
    Hello(Hello),
}

/// Receives the first frame, and checks that its sender may send it to this node, which may be a root.
async fn receive(
    reader: &mut FrameReader,
    slots: &RequestSlots,
    is_root: bool,
) -> Result<Opening, StreamError> {
    // The semaphore is never closed.
    let _permit = slots.receiving.acquire().await.ok();
    let (kind, body) = reader.frame().await?;
    match kind {
        FrameKind::Request => {}
        FrameKind::Hello => return Ok(Opening::Hello(message::decode("hello", &body)?)),
        got => return Err(WireError::unexpected(got, "request").into()),
    }
    let question: Question = message::decode("request", &body)?;
    question.request.check()?;
    // Each direction of a connection has its own requests, so that no request can loop.
    let permitted = match &question.request {
        Request::ReportsBelow { .. } | Request::ClearBelow { .. } | Request::WarmBelow { .. } => {
            matches!(slots.requester, Requester::Ancestor)
        }
        Request::Item(_)
        | Request::Held(_)
        | Request::Content { .. }
        | Request::Insert { .. }
        | Request::Message => matches!(slots.requester, Requester::Reader(..)),
        Request::Read(_) | Request::ReadRange(_) if is_root => {
            matches!(
                slots.requester,
                Requester::Reader(..) | Requester::Child(..)
            )
        }
        _ => matches!(slots.requester, Requester::Child(..)),
    };
    ensure(permitted, "a request in the wrong direction")?;
    Ok(Opening::Question(question))
}

/// Answers a hello over a connection that has had one.
async fn answer_hello(
    shared: &Shared,
    requester: &Requester,
    writer: &mut FrameWriter,
    hello: &Hello,
) -> Result<(), StreamError> {
    let refusal = match requester {
        _ if hello.reader => "a reader of items needs a connection of its own".into(),
        Requester::Child(id, connection) => {
            match super::admit(shared, hello, connection, Some(id)) {
                Ok(_id) => {
                    return super::send_welcome(shared, usize::from(hello.tree), writer).await;
                }
                Err(error) => error.to_string(),
            }
        }
        Requester::Reader(..) => "a reader of items is no child".into(),
        Requester::Ancestor => "an ancestor is no child of its descendant".into(),
    };
    let failure = Failure::new(FailureKind::PermissionDenied, refusal);
    writer.message(FrameKind::Failure, &failure).await.map(drop)
}

/// Waits for room for `len` bytes of files, if the requester is a reader. Storage has answered by then, so that
/// no slow storage takes the room of another.
async fn room_for_blocks<'a>(
    shared: &'a Shared,
    requester: &'a Requester,
    len: u64,
) -> Option<RoomPermit<'a>> {
    match requester {
        Requester::Reader(_, own, lane) => {
            let room = shared.readers.acquire((own, *lane), RoomFor::Blocks, len);
            Some(room.await)
        }
        Requester::Child(..) | Requester::Ancestor => None,
    }
}

/// An answer in progress.
struct Answer<'a> {
    shared: &'a Arc<Shared>,
    requester: &'a Requester,
    reader: &'a mut FrameReader,
    writer: &'a mut FrameWriter,
}

impl Answer<'_> {
    /// Answers a checked request. The caller sends the failure that this returns.
    async fn respond(
        &mut self,
        Question { attempt, request }: Question,
    ) -> Result<(), AnswerError> {
        let shared = Arc::clone(self.shared);
        match request {
            Request::Find { tree, hash, len } => {
                let found = match shared.service.find(hash, len).await {
                    Some(bytes) => Ok(bytes),
                    None => {
                        let tree = usize::from(tree);
                        let above = shared.upstream.find_in(tree..tree + 1, hash, len);
                        above.await
                    }
                };
                self.count_request();
                let bytes = found?;
                self.range(RangeAnswer { bytes, hash }).await
            }
            Request::Origins { tree } => {
                let tree = usize::from(tree);
                let origins = match shared.membership.is_root_of(tree) {
                    true => shared.service.origins().await?,
                    false => shared.upstream.origins(tree).await?,
                };
                let head = Head::Origins {
                    origins: count(&origins),
                };
                self.items(&head, origins).await
            }
            Request::Item(request) => self.item(request).await,
            Request::Held(request) => self.held(request).await,
            Request::Content { hash } => self.content(hash).await,
            Request::Insert { hash, len } => self.insert(hash, len).await,
            Request::Message => self.answer_message().await,
            Request::Steer { tree } => self.steer(usize::from(tree)).await,
            Request::Command { tree } => self.command(usize::from(tree)).await,
            Request::Warm { .. } | Request::WarmBelow { .. } => {
                let (reader, writer) = (&mut *self.reader, &mut *self.writer);
                Ok(cluster::warm::answer(&shared, &request, reader, writer).await?)
            }
            Request::ClusterReports { .. }
            | Request::ClusterClear { .. }
            | Request::ReportsBelow { .. }
            | Request::ClearBelow { .. } => {
                Ok(cluster::answer(&shared, request, self.writer).await?)
            }
            request => self.respond_from_files(attempt, request).await,
        }
    }

    /// Answers a request of [`crate::Files`].
    async fn respond_from_files(
        &mut self,
        attempt: u8,
        request: Request,
    ) -> Result<(), AnswerError> {
        let (shared, requester) = (self.shared, self.requester);
        let files = shared.service.files(attempt);
        match request {
            Request::List(request) => {
                let listed = files.list(request).await;
                self.count_request();
                self.listing(listed?).await
            }
            Request::Stat(request) => {
                let answers = files.stat(request).await;
                self.count_request();
                let Leased { value, lease } = answers?;
                let head = Head::Stat {
                    answers: count(&value),
                    lease_ms: to_ms(lease),
                };
                self.items(&head, value).await
            }
            Request::Read(request) => {
                // Counted before the answer, which may stream for long.
                self.count_request();
                let len = request.bytes();
                let parts = files.read(request).await?;
                let _room = room_for_blocks(shared, requester, len).await;
                self.blocks(parts).await
            }
            Request::ReadRange(request) => {
                let len = request.len;
                let range = files.read_range(request).await;
                self.count_request();
                let range = range?;
                let _room = room_for_blocks(shared, requester, len).await;
                self.range(range).await
            }
            Request::Bundle(request) => {
                self.count_request();
                let items = files.bundle(request).await?;
                self.bundle(items).await
            }
            Request::Xattrs { path } => {
                let attributes = files.xattrs(path).await;
                self.count_request();
                let Leased { value, lease } = attributes?;
                let head = Head::Xattrs {
                    attributes: count(&value),
                    lease_ms: to_ms(lease),
                };
                self.items(&head, value).await
            }
            Request::Usage { path } => {
                let usage = files.usage(path).await;
                self.count_request();
                self.message(FrameKind::Head, &Head::Usage(usage?)).await
            }
            _ => Err(WireError::Impossible("a request that files do not answer").into()),
        }
    }

    fn count_request(&self) {
        self.shared.counters().downstream_requests.increment();
    }

    fn count_sent(&self, bytes: u64) {
        self.shared.counters().downstream_bytes_sent.add(bytes);
    }

    async fn frame(&mut self, kind: FrameKind, body: Bytes) -> Result<(), AnswerError> {
        let sent = self.writer.frame(kind, body).await?;
        self.count_sent(sent);
        Ok(())
    }

    async fn message<T: Serialize>(
        &mut self,
        kind: FrameKind,
        value: &T,
    ) -> Result<(), AnswerError> {
        self.frame(kind, message::encode("message", value)?).await
    }

    async fn chunks(&mut self, mut frames: Vec<Bytes>) -> Result<(), AnswerError> {
        let sent = self.writer.chunks(&mut frames).await?;
        self.count_sent(sent);
        Ok(())
    }

    /// Ends the answer with `failure`.
    async fn fail(&mut self, failure: &Failure) -> Result<(), StreamError> {
        if self.shared.leaving.load(Ordering::Acquire) {
            // The failure may come from the shutdown. The stream is reset, so that the child asks elsewhere.
            return Err(StreamError::Cancelled);
        }
        let sent = self.writer.message(FrameKind::Failure, failure).await?;
        self.count_sent(sent);
        Ok(())
    }

    /// Sends a listing page by page. Entries that are ready do not wait for further ones.
    async fn listing(&mut self, listed: Listed) -> Result<(), AnswerError> {
        let ListingStream { head, parts } = match listed {
            Listed::Listing(listing) => listing,
            Listed::Unchanged { lease } => {
                let lease_ms = to_ms(lease);
                let head = Head::Unchanged { lease_ms };
                return self.message(FrameKind::Head, &head).await;
            }
        };
        self.listing_head(head).await?;
        let mut parts = parts.fuse();
        let mut pages = PageWriter::default();
        loop {
            let part = match parts.next().now_or_never() {
                Some(ready) => ready,
                None => {
                    // The next entries may take long: send those that are here.
                    self.last_page(&mut pages).await?;
                    parts.next().await
                }
            };
            match part.transpose()? {
                Some(ListingPart::Entries(entries)) => {
                    self.full_pages(&mut pages, entries).await?;
                }
                Some(ListingPart::Restart(head)) => {
                    pages = PageWriter::default();
                    self.frame(FrameKind::Restart, Bytes::new()).await?;
                    self.listing_head(head).await?;
                }
                None => return self.last_page(&mut pages).await,
            }
        }
    }

    async fn listing_head(&mut self, head: ListingHead) -> Result<(), AnswerError> {
        let head = Head::Listing {
            directory: head.directory,
            next: head.next,
            entries: u32::try_from(head.entries).unwrap_or(u32::MAX),
            lease_ms: to_ms(head.lease),
        };
        self.message(FrameKind::Head, &head).await
    }

    /// Sends `head`, and `items` as pages. One page is in memory at a time.
    async fn items<T: Serialize>(&mut self, head: &Head, items: Vec<T>) -> Result<(), AnswerError> {
        self.message(FrameKind::Head, head).await?;
        let mut pages = PageWriter::default();
        self.full_pages(&mut pages, items).await?;
        self.last_page(&mut pages).await
    }

    /// Adds `items` to `pages`, and sends the pages that are full.
    async fn full_pages<T: Serialize>(
        &mut self,
        pages: &mut PageWriter,
        items: Vec<T>,
    ) -> Result<(), AnswerError> {
        let too_big = |error| {
            let text = format!("an answer too big to send: {error}");
            Failure::new(FailureKind::Unsupported, text)
        };
        for item in items {
            if let Some(page) = pages.push(&item).map_err(too_big)? {
                self.frame(FrameKind::Page, page).await?;
            }
        }
        Ok(())
    }

    async fn last_page(&mut self, pages: &mut PageWriter) -> Result<(), AnswerError> {
        match pages.finish() {
            Some(page) => self.frame(FrameKind::Page, page).await,
            None => Ok(()),
        }
    }

    async fn range(&mut self, range: RangeAnswer) -> Result<(), AnswerError> {
        let parts = vec![BlockPart::Bytes(range.bytes), BlockPart::End(range.hash)];
        self.chunks(encode_parts(parts)?).await
    }

    async fn blocks(&mut self, parts: ReadStream) -> Result<(), AnswerError> {
        let len = |part: &BlockPart| match part {
            BlockPart::Bytes(bytes) => bytes.len(),
            BlockPart::End(_) | BlockPart::Restart => 0,
        };
        self.batches(parts, (BATCH_BYTES, BATCH_PARTS), len, encode_parts)
            .await
    }

    /// Sends the files of a bundle. One write's worth of them is in memory at a time.
    async fn bundle(&mut self, files: BundleStream) -> Result<(), AnswerError> {
        let limits = (BUNDLE_BATCH_BYTES, BUNDLE_FILES_MAX);
        let len = |file: &BundleItem| file.bytes.len();
        self.batches(files, limits, len, encode_files).await?;
        self.frame(FrameKind::Done, Bytes::new()).await
    }

    /// Sends the items of `stream`: waits for one, and takes those that are ready after it, until they have
    /// `bytes_max` bytes or are `items_max`. So no item waits for another, and many small ones share one write.
    async fn batches<T>(
        &mut self,
        stream: BoxStream<'static, Result<T, Failure>>,
        (bytes_max, items_max): (usize, usize),
        len: fn(&T) -> usize,
        encode: fn(Vec<T>) -> Result<Vec<Bytes>, WireError>,
    ) -> Result<(), AnswerError> {
        let mut stream = stream.fuse();
        while let Some(first) = stream.next().await {
            let (mut items, mut bytes, mut failed) = (Vec::new(), 0, Ok(()));
            let mut next = Some(first);
            while let Some(item) = next.take() {
                match item {
                    Ok(item) => {
                        bytes += len(&item);
                        items.push(item);
                        if bytes < bytes_max && items.len() < items_max {
                            next = stream.next().now_or_never().flatten();
                        }
                    }
                    Err(failure) => failed = Err(failure),
                }
            }
            if !items.is_empty() {
                self.chunks(encode(items)?).await?;
            }
            failed?;
        }
        Ok(())
    }
}

fn count<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).unwrap_or(u32::MAX)
}

/// Encodes whole files as one frame, without copying their bytes.
fn encode_files(files: Vec<BundleItem>) -> Result<Vec<Bytes>, WireError> {
    let lens = files.iter().map(|file| ITEM_HEAD_BYTES + file.bytes.len());
    let header = FrameHeader::new(FrameKind::Bundle, lens.sum())?.encode();
    let mut heads = BytesMut::with_capacity(header.len() + files.len() * ITEM_HEAD_BYTES);
    heads.extend_from_slice(&header);
    let mut chunks = Vec::with_capacity(2 * files.len());
    for file in files {
        put_head(&mut heads, file.index, &file.hash);
        chunks.push(heads.split().freeze());
        chunks.push(file.bytes);
    }
    Ok(chunks)
}

#[cfg(test)]
mod tests;

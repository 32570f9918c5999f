//! One stream: one question heard, checked and answered.
//!
//! Memory per stream is bounded by one request frame, one batch of parts and quinn's windows: parts
//! are taken from the service only as fast as the peer takes them. When the peer stops the stream,
//! the service's future is dropped.

use crate::cluster;
use crate::model::{
    BLOCK_BYTES, BlockPart, ContentHash, Failure, FailureKind, Leased, Listed, ListingHead,
    ListingPart, ListingStream, OriginFingerprint, RangeAnswer, ReadStream, StatAnswers, XattrList,
    to_ms,
};
use crate::readers::Rooms;
use crate::shared::Shared;
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::wire::message::{self, NodeId};
use crate::wire::{FrameHeader, FrameKind, Head, Hello, PageWriter, Question, Request, WireError};
use bytes::Bytes;
use futures_util::stream::Fuse;
use futures_util::{FutureExt, StreamExt};
use quinn::{Connection, RecvStream, SendStream};
use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;

mod bundle;
mod item;
mod steering;

/// How long a peer may leave an answer untaken.
const UNTAKEN: Duration = Duration::from_secs(60);
/// The same of an item: its reader puts it together as it comes, and others wait for the room.
const ITEM_UNTAKEN: Duration = Duration::from_secs(10);
/// Bytes of parts that are gathered into one write, if they are ready at once.
const BATCH_BYTES: usize = 128 << 10;
/// Requests of one connection that are being received at a time.
const HEARD_AT_ONCE: usize = 32;
/// Parts in a batch.
const BATCH_PARTS: usize = 64;

/// Who asks, and so what may be asked.
pub(crate) enum Asker {
    /// An ancestor of this node: about what lies below.
    Parent,
    /// That child, over that connection: about files, and about the cluster.
    Child(NodeId, Connection),
    /// That node, which has so much room: about items.
    Reader(NodeId, Rooms),
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parent => f.write_str("Parent"),
            Self::Child(id, _) => f.debug_tuple("Child").field(id).finish(),
            Self::Reader(id, _) => f.debug_tuple("Reader").field(id).finish(),
        }
    }
}

/// One connection's asker and the turns in which its requests are heard: what waits for a turn lies
/// in QUIC's windows, so that many large requests at once cost no more memory than a few.
#[derive(Clone, Debug)]
pub(crate) struct Floor {
    from: Arc<Asker>,
    turns: Arc<Semaphore>,
    /// A refused request was logged: a peer that sends a thousand of them fills no disk.
    complained: Arc<AtomicBool>,
}

impl Floor {
    pub(crate) fn new(from: Asker) -> Self {
        Self {
            from: Arc::new(from),
            turns: Arc::new(Semaphore::new(HEARD_AT_ONCE)),
            complained: Arc::default(),
        }
    }
}

/// Answers one stream. Whatever goes wrong concerns this stream only.
pub(crate) async fn answer(shared: Arc<Shared>, floor: Floor, send: SendStream, recv: RecvStream) {
    let from = Arc::clone(&floor.from);
    let untaken = match *from {
        Asker::Reader(..) => ITEM_UNTAKEN,
        Asker::Parent | Asker::Child(..) => UNTAKEN,
    };
    let mut writer = FrameWriter::new(send, untaken);
    let mut reader = FrameReader::new(recv, shared.request_timeout);
    let abandoned = writer.abandoned();
    let answering = async {
        match hear(&mut reader, &floor).await {
            Ok(Heard::Question(Question {
                request: request @ (Request::Warm { .. } | Request::WarmBelow { .. }),
                ..
            })) => cluster::warm::answer(&shared, &request, &mut reader, &mut writer).await,
            Ok(Heard::Question(Question {
                request: Request::Steer { tree },
                ..
            })) => {
                let mut answer = Answer::new(&shared, &mut writer);
                answer.steer(&from, usize::from(tree), &mut reader).await
            }
            Ok(Heard::Question(Question {
                request: Request::Command { tree },
                ..
            })) => {
                let mut answer = Answer::new(&shared, &mut writer);
                answer.command(&from, usize::from(tree), &mut reader).await
            }
            Ok(Heard::Question(Question {
                request: Request::Item(request),
                ..
            })) => {
                let mut answer = Answer::new(&shared, &mut writer);
                answer.item(&from, request).await
            }
            Ok(Heard::Question(question)) => respond(&shared, &mut writer, question).await,
            Ok(Heard::Hello(hello)) => greet(&shared, &from, &mut writer, &hello).await,
            Err(StreamError::Wire(error)) => {
                if !floor.complained.swap(true, Ordering::Relaxed) {
                    tracing::warn!(?from, %error, "refused a request; said once a connection");
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
        () = abandoned => return,
    };
    match outcome {
        Ok(()) => writer.finish(),
        Err(error) => tracing::debug!(?from, %error, "an answer was not delivered"),
    }
}

/// What a stream begins with.
enum Heard {
    Question(Question),
    /// The child hangs from this node in another tree too.
    Hello(Hello),
}

async fn hear(reader: &mut FrameReader, floor: &Floor) -> Result<Heard, StreamError> {
    // The semaphore is never closed.
    let _turn = floor.turns.acquire().await.ok();
    let (kind, body) = reader.frame().await?.ok_or(StreamError::Truncated)?;
    match kind {
        FrameKind::Request => {}
        FrameKind::Hello => return Ok(Heard::Hello(message::decode("hello", &body)?)),
        got => {
            let wanted = "request";
            return Err(WireError::Unexpected { got, wanted }.into());
        }
    }
    let question: Question = message::decode("request", &body)?;
    question.request.check()?;
    let fits = match (&*floor.from, &question.request) {
        (
            from,
            Request::ReportsBelow { .. } | Request::ClearBelow { .. } | Request::WarmBelow { .. },
        ) => matches!(from, Asker::Parent),
        (from, Request::Item(_)) => matches!(from, Asker::Reader(..)),
        (from, _) => matches!(from, Asker::Child(..)),
    };
    if !fits {
        return Err(WireError::Impossible("a request in the wrong direction").into());
    }
    Ok(Heard::Question(question))
}

async fn greet(
    shared: &Arc<Shared>,
    from: &Asker,
    writer: &mut FrameWriter,
    hello: &Hello,
) -> Result<(), StreamError> {
    let admitted = match from {
        _ if hello.reader => Err("a reader of items needs a connection of its own".into()),
        Asker::Child(id, connection) => match super::admit(shared, hello, connection) {
            Ok(admitted) if admitted == *id => Ok(()),
            Ok(_other) => Err("another node's hello".into()),
            Err(reason) => Err(reason),
        },
        Asker::Reader(..) => Err("a reader of items hangs from nobody".into()),
        Asker::Parent => Err("an ancestor does not hang from its descendant".into()),
    };
    match admitted {
        Ok(()) => super::greeting(shared, usize::from(hello.tree), writer).await,
        Err(reason) => {
            let failure = Failure::new(FailureKind::PermissionDenied, reason);
            let sent = writer.message(FrameKind::Failure, &failure).await;
            sent.map(drop)
        }
    }
}

async fn respond(
    shared: &Arc<Shared>,
    writer: &mut FrameWriter,
    Question { attempt, request }: Question,
) -> Result<(), StreamError> {
    let mut answer = Answer::new(shared, writer);
    let files = || shared.service.files(attempt);
    match request {
        Request::List {
            path,
            cursor,
            limit,
            known,
        } => {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let listing = files().list_parts(path, cursor, limit, known).await;
            answer.count_request();
            answer.listing(listing).await
        }
        Request::Stat {
            parent,
            names,
            denied,
        } => {
            let answers = files().stat_unlike(parent, names, denied).await;
            answer.count_request();
            answer.stat(answers).await
        }
        Request::Read(request) => {
            answer.count_request();
            answer.read(files().read(request).await).await
        }
        Request::ReadRange(request) => {
            let found = files().read_range(request).await;
            answer.count_request();
            answer.range(found).await
        }
        Request::Find { tree, hash, len } => {
            let found = find(shared, usize::from(tree), hash, len).await;
            answer.count_request();
            answer.range(found).await
        }
        Request::Bundle(request) => {
            answer.count_request();
            answer.bundle(files().bundle(request).await).await
        }
        Request::Xattrs { path } => {
            let found = files().xattrs(path).await;
            answer.count_request();
            answer.xattrs(found).await
        }
        Request::Usage { path } => {
            let usage = files().usage(path).await;
            answer.count_request();
            match usage {
                Ok(usage) => answer.message(FrameKind::Head, &Head::Usage(usage)).await,
                Err(failure) => answer.failure(&failure).await,
            }
        }
        Request::Origins { tree } => {
            let tree = usize::from(tree);
            let origins = if shared.membership.is_root_of(tree) {
                shared.service.origins().await
            } else {
                shared.upstream.origins(tree).await
            };
            answer.origins(origins).await
        }
        // To the tree; what is neither was answered before.
        request => cluster::answer(shared, request, writer).await,
    }
}

/// Bytes by their hash: those that this node holds, otherwise those of the nodes above it in `tree`.
async fn find(
    shared: &Shared,
    tree: usize,
    hash: ContentHash,
    len: u64,
) -> Result<RangeAnswer, Failure> {
    if let Some(bytes) = shared.service.find(hash, len).await {
        return Ok(RangeAnswer { bytes, hash });
    }
    let bytes = shared.upstream.find_in(tree, hash, len).await?;
    Ok(RangeAnswer { bytes, hash })
}

/// An answer to a child, counted.
struct Answer<'a> {
    shared: &'a Shared,
    writer: &'a mut FrameWriter,
}

impl<'a> Answer<'a> {
    fn new(shared: &'a Shared, writer: &'a mut FrameWriter) -> Self {
        Self { shared, writer }
    }
}

impl Answer<'_> {
    fn count_request(&self) {
        self.shared.meters.downstream_requests.increment();
    }

    fn count(&self, bytes: u64) {
        self.shared.meters.downstream_bytes_sent.add(bytes);
    }

    async fn frame(&mut self, kind: FrameKind, body: Bytes) -> Result<(), StreamError> {
        let sent = self.writer.frame(kind, body).await?;
        self.count(sent);
        Ok(())
    }

    async fn message<T: Serialize>(
        &mut self,
        kind: FrameKind,
        value: &T,
    ) -> Result<(), StreamError> {
        let sent = self.writer.message(kind, value).await?;
        self.count(sent);
        Ok(())
    }

    async fn failure(&mut self, failure: &Failure) -> Result<(), StreamError> {
        if self.shared.leaving.load(Ordering::Acquire) {
            // The stream is reset: the child asks elsewhere.
            return Err(StreamError::Cancelled);
        }
        self.message(FrameKind::Failure, failure).await
    }

    /// A listing page by page as it arrives: a page is never held back for the next.
    async fn listing(&mut self, listed: Result<Listed, Failure>) -> Result<(), StreamError> {
        let ListingStream { head, parts } = match listed {
            Ok(Listed::Listing(listing)) => listing,
            Ok(Listed::Unchanged { lease }) => {
                let lease_ms = to_ms(lease);
                return self
                    .message(FrameKind::Head, &Head::Unchanged { lease_ms })
                    .await;
            }
            Err(failure) => return self.failure(&failure).await,
        };
        self.listing_head(head).await?;
        let mut parts = parts.fuse();
        let mut pages = PageWriter::default();
        loop {
            let ready = parts.next().now_or_never();
            let part = match ready {
                Some(part) => part,
                None => {
                    if let Some(page) = pages.finish() {
                        self.frame(FrameKind::Page, page).await?;
                    }
                    parts.next().await
                }
            };
            match part {
                Some(Ok(ListingPart::Entries(entries))) => {
                    if !self.page_items(&mut pages, entries).await? {
                        return Ok(());
                    }
                }
                Some(Ok(ListingPart::Restart(head))) => {
                    pages = PageWriter::default();
                    self.frame(FrameKind::Restart, Bytes::new()).await?;
                    self.listing_head(head).await?;
                }
                Some(Err(failure)) => return self.failure(&failure).await,
                None => break,
            }
        }
        match pages.finish() {
            Some(page) => self.frame(FrameKind::Page, page).await,
            None => Ok(()),
        }
    }

    async fn listing_head(&mut self, head: ListingHead) -> Result<(), StreamError> {
        let head = Head::Listing {
            directory: head.directory,
            next: head.next,
            entries: u32::try_from(head.entries).unwrap_or(u32::MAX),
            lease_ms: to_ms(head.lease),
        };
        self.message(FrameKind::Head, &head).await
    }

    async fn stat(
        &mut self,
        answers: Result<Leased<StatAnswers>, Failure>,
    ) -> Result<(), StreamError> {
        match answers {
            Ok(Leased {
                value: answers,
                lease,
            }) => {
                self.message(
                    FrameKind::Head,
                    &Head::Stat {
                        answers: count(&answers),
                        lease_ms: to_ms(lease),
                    },
                )
                .await?;
                self.pages(answers).await
            }
            Err(failure) => self.failure(&failure).await,
        }
    }

    async fn xattrs(
        &mut self,
        found: Result<Leased<XattrList>, Failure>,
    ) -> Result<(), StreamError> {
        match found {
            Ok(Leased {
                value: found,
                lease,
            }) => {
                self.message(
                    FrameKind::Head,
                    &Head::Xattrs {
                        attributes: count(&found),
                        lease_ms: to_ms(lease),
                    },
                )
                .await?;
                self.pages(found).await
            }
            Err(failure) => self.failure(&failure).await,
        }
    }

    async fn origins(
        &mut self,
        found: Result<Vec<OriginFingerprint>, Failure>,
    ) -> Result<(), StreamError> {
        match found {
            Ok(found) => {
                let origins = count(&found);
                self.message(FrameKind::Head, &Head::Origins { origins })
                    .await?;
                self.pages(found).await
            }
            Err(failure) => self.failure(&failure).await,
        }
    }

    /// Items as pages: one page in memory at a time.
    async fn pages<T: Serialize>(&mut self, items: Vec<T>) -> Result<(), StreamError> {
        let mut pages = PageWriter::default();
        if !self.page_items(&mut pages, items).await? {
            return Ok(());
        }
        match pages.finish() {
            Some(page) => self.frame(FrameKind::Page, page).await,
            None => Ok(()),
        }
    }

    /// Adds items to the answer's pages and sends those that are full; `false` after an item that
    /// does not fit, which ends the answer with a failure.
    async fn page_items<T: Serialize>(
        &mut self,
        pages: &mut PageWriter,
        items: Vec<T>,
    ) -> Result<bool, StreamError> {
        for item in items {
            match pages.push(&item) {
                Ok(Some(page)) => self.frame(FrameKind::Page, page).await?,
                Ok(None) => {}
                Err(error) => {
                    let text = format!("an answer too big to send: {error}");
                    self.failure(&Failure::new(FailureKind::Unsupported, text))
                        .await?;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    async fn range(&mut self, found: Result<RangeAnswer, Failure>) -> Result<(), StreamError> {
        match found {
            Ok(RangeAnswer { bytes, hash }) => {
                let parts = vec![BlockPart::Bytes(bytes), BlockPart::End(hash)];
                let sent = self.writer.chunks(&mut encode(parts)?).await?;
                self.count(sent);
                Ok(())
            }
            Err(failure) => self.failure(&failure).await,
        }
    }

    async fn read(&mut self, parts: Result<ReadStream, Failure>) -> Result<(), StreamError> {
        let mut parts = match parts {
            Ok(parts) => parts.fuse(),
            Err(failure) => return self.failure(&failure).await,
        };
        while let Some(batch) = gather(&mut parts).await {
            let sent = self.writer.chunks(&mut encode(batch.parts)?).await?;
            self.count(sent);
            if let Some(failure) = batch.failure {
                return self.failure(&failure).await;
            }
        }
        Ok(())
    }
}

fn count<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).unwrap_or(u32::MAX)
}

/// Parts that were ready together, and the failure behind them, if one came.
#[derive(Default)]
struct Batch {
    parts: Vec<BlockPart>,
    failure: Option<Failure>,
}

/// Waits for one part and takes those that are ready behind it: a part is never held back for the
/// next, and many small ones do not cost a write each.
async fn gather(parts: &mut Fuse<ReadStream>) -> Option<Batch> {
    let mut batch = Batch::default();
    let mut bytes = 0;
    let mut next = parts.next().await;
    loop {
        match next {
            Some(Ok(part)) => {
                if let BlockPart::Bytes(piece) = &part {
                    bytes += piece.len();
                }
                batch.parts.push(part);
            }
            Some(Err(failure)) => {
                batch.failure = Some(failure);
                return Some(batch);
            }
            None => return (!batch.parts.is_empty()).then_some(batch),
        }
        if bytes >= BATCH_BYTES || batch.parts.len() >= BATCH_PARTS {
            return Some(batch);
        }
        match parts.next().now_or_never() {
            Some(ready) => next = ready,
            None => return Some(batch),
        }
    }
}

/// The frames of a batch: neighbouring bytes share a frame.
fn encode(parts: Vec<BlockPart>) -> Result<Vec<Bytes>, WireError> {
    let data_max = usize::try_from(BLOCK_BYTES).unwrap_or(usize::MAX);
    let mut frames = Vec::with_capacity(parts.len() + 2);
    let mut run: Vec<Bytes> = Vec::new();
    let mut run_bytes = 0;
    let close = |run: &mut Vec<Bytes>, run_bytes: &mut usize, frames: &mut Vec<Bytes>| {
        if *run_bytes > 0 {
            let header = FrameHeader::new(FrameKind::Data, *run_bytes)?.encode();
            frames.push(Bytes::copy_from_slice(&header));
            frames.append(run);
            *run_bytes = 0;
        }
        Ok::<(), WireError>(())
    };
    for part in parts {
        match part {
            BlockPart::Bytes(mut piece) => {
                while !piece.is_empty() {
                    let fits = piece.split_to(piece.len().min(data_max - run_bytes));
                    run_bytes += fits.len();
                    run.push(fits);
                    if run_bytes == data_max {
                        close(&mut run, &mut run_bytes, &mut frames)?;
                    }
                }
            }
            BlockPart::Restart => {
                close(&mut run, &mut run_bytes, &mut frames)?;
                let header = FrameHeader::new(FrameKind::Restart, 0)?.encode();
                frames.push(Bytes::copy_from_slice(&header));
            }
            BlockPart::End(hash) => {
                close(&mut run, &mut run_bytes, &mut frames)?;
                let mut end = FrameHeader::new(FrameKind::End, hash.0.len())?
                    .encode()
                    .to_vec();
                end.extend_from_slice(&hash.0);
                frames.push(end.into());
            }
        }
    }
    close(&mut run, &mut run_bytes, &mut frames)?;
    Ok(frames)
}

#[cfg(test)]
mod tests;

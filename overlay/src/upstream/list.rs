//! Reading a listing from an ancestor: entries are passed on as their pages arrive.
//!
//! A listing whose connection is lost in the middle is asked for anew, and begins anew: the directory
//! may have changed meanwhile.

use super::{ANOTHER, Answer, Asked, Inner, REPLAYS_MAX, Route, Upstream, again};
use crate::exchange::{trimmed, unexpected};
use crate::model::{
    Cursor, Entry, Failure, ItemPath, LISTING_ENTRIES_MAX, Listed, ListingDigest, ListingHead,
    ListingPart, ListingStream, from_ms,
};
use crate::transport::stream::StreamError;
use crate::wire::{FrameKind, Head, PageReader, Request, WireError, message};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use std::time::Duration;
use tokio::time::Instant;

/// How often the sender of one listing may take it back.
const RESTARTS_MAX: u32 = 64;

/// Opens a stream over a listing: waits for its head, or for the word that `known` is it.
pub(super) async fn open(
    upstream: Upstream,
    path: ItemPath,
    cursor: Option<Cursor>,
    limit: usize,
    known: Option<ListingDigest>,
) -> Result<Listed, Failure> {
    let wanted = u32::try_from(limit.min(LISTING_ENTRIES_MAX)).unwrap_or(u32::MAX);
    let mut request = Request::List {
        path: path.clone(),
        cursor: cursor.clone(),
        limit: wanted,
        known,
    };
    let (mut replays, mut resets) = (0, 0);
    let (answer, head) = loop {
        let mut answer = match upstream.ask(&Route::Item(&path), &request).await? {
            Asked::Storage(storage) => {
                return storage.list_parts(path, cursor, limit, known).await;
            }
            Asked::Answer(answer) => answer,
        };
        let kind = answer.header.kind;
        let opened = match answer.reader.body(answer.header).await {
            Ok(body) => parse_head(&upstream.inner, kind, &body, &request),
            Err(error) => Err(Broken::Stream(error)),
        };
        match opened {
            Ok(Opened::Unchanged(lease)) => return Ok(Listed::Unchanged { lease }),
            Ok(Opened::Listing(head)) => break (answer, head),
            Err(Broken::Remote(failure)) => return Err(failure),
            Err(Broken::Stream(error)) if replays < REPLAYS_MAX && again(&error, &mut resets) => {
                replays += 1;
                upstream
                    .replayed(&Route::Item(&path), &answer, &error)
                    .await;
            }
            Err(Broken::Stream(error)) => {
                return Err(upstream.inner.failure(answer.asking.peer(), &error));
            }
        }
    };
    if let Request::List { known, .. } = &mut request {
        // From here on it is not that one.
        *known = None;
    }
    let entries = Entries {
        pages: PageReader::new(head.entries),
        upstream,
        answer,
        request,
        path,
        replays,
        resets,
        restarts: 0,
    };
    Ok(Listed::Listing(ListingStream {
        head,
        parts: stream::unfold(Some(entries), step).boxed(),
    }))
}

/// How an answer begins.
#[expect(clippy::large_enum_variant, reason = "few at a time, and none is kept")]
enum Opened {
    /// That is all; the lease.
    Unchanged(Option<Duration>),
    Listing(ListingHead),
}

impl Opened {
    /// Where nothing was said to be known: [`Head::check`] has seen to it.
    fn head(self) -> Result<ListingHead, Broken> {
        match self {
            Self::Listing(head) => Ok(head),
            Self::Unchanged(_) => Err(WireError::Impossible(ANOTHER).into()),
        }
    }
}

enum Broken {
    Stream(StreamError),
    Remote(Failure),
}

impl<E: Into<StreamError>> From<E> for Broken {
    fn from(error: E) -> Self {
        Self::Stream(error.into())
    }
}

fn parse_head(
    inner: &Inner,
    kind: FrameKind,
    body: &Bytes,
    request: &Request,
) -> Result<Opened, Broken> {
    match kind {
        FrameKind::Head => {}
        FrameKind::Failure => {
            return Err(Broken::Remote(trimmed(message::decode("failure", body)?)));
        }
        got => return Err(unexpected(got, "head").into()),
    }
    let head: Head = message::decode("head", body)?;
    head.check(request)?;
    match head {
        Head::Listing {
            directory,
            next,
            entries,
            lease_ms,
        } => Ok(Opened::Listing(ListingHead {
            directory: inner.checked(directory).map_err(Broken::Remote)?,
            next,
            entries: usize::try_from(entries).unwrap_or(usize::MAX),
            lease: from_ms(lease_ms),
        })),
        Head::Unchanged { lease_ms } => Ok(Opened::Unchanged(from_ms(lease_ms))),
        _ => Err(WireError::Impossible(ANOTHER).into()),
    }
}

/// The entries of one listing in progress.
struct Entries {
    upstream: Upstream,
    answer: Answer,
    pages: PageReader<Entry>,
    request: Request,
    path: ItemPath,
    replays: u32,
    resets: u32,
    restarts: u32,
}

type Step = Option<(Result<ListingPart, Failure>, Option<Entries>)>;

async fn step(state: Option<Entries>) -> Step {
    let mut entries = state?;
    let failure = match entries.next().await {
        Ok(Some(part)) => return Some((Ok(part), Some(entries))),
        Ok(None) => return None,
        Err(Broken::Remote(failure)) => failure,
        Err(Broken::Stream(error))
            if entries.replays < REPLAYS_MAX && again(&error, &mut entries.resets) =>
        {
            match entries.anew(&error).await {
                Ok(head) => return Some((Ok(ListingPart::Restart(head)), Some(entries))),
                Err(failure) => failure,
            }
        }
        Err(Broken::Stream(error)) => {
            let peer = entries.answer.asking.peer();
            entries.upstream.inner.failure(peer, &error)
        }
    };
    Some((Err(failure), None))
}

impl Entries {
    async fn next(&mut self) -> Result<Option<ListingPart>, Broken> {
        let inner = &self.upstream.inner;
        let reader = &mut self.answer.reader;
        if self.pages.is_complete() {
            reader.finish()?;
            return Ok(None);
        }
        let (kind, body) = reader.frame().await?.ok_or(StreamError::Truncated)?;
        match kind {
            FrameKind::Page => {
                self.pages.add(&body)?;
                let entries = self.pages.take();
                let checked = entries.into_iter().map(|entry| inner.checked_entry(entry));
                let entries = checked.collect::<Result<_, _>>().map_err(Broken::Remote)?;
                Ok(Some(ListingPart::Entries(entries)))
            }
            FrameKind::Restart if self.restarts < RESTARTS_MAX => {
                self.restarts += 1;
                let (kind, body) = reader.frame().await?.ok_or(StreamError::Truncated)?;
                let head = parse_head(inner, kind, &body, &self.request)?.head()?;
                self.pages = PageReader::new(head.entries);
                Ok(Some(ListingPart::Restart(head)))
            }
            FrameKind::Failure => Err(Broken::Remote(trimmed(message::decode("failure", &body)?))),
            got => Err(unexpected(got, "page").into()),
        }
    }

    /// Asks for the whole listing once more, over another connection.
    async fn anew(&mut self, error: &StreamError) -> Result<ListingHead, Failure> {
        self.replays += 1;
        let route = Route::Item(&self.path);
        self.upstream.replayed(&route, &self.answer, error).await;
        self.answer = match self.upstream.ask(&route, &self.request).await? {
            Asked::Answer(answer) => answer,
            // Cut off in the middle: whoever asks again is answered by storage from the beginning.
            Asked::Storage(_) => {
                return Err(self.upstream.inner.unreachable("cut off in a listing"));
            }
        };
        let kind = self.answer.header.kind;
        let opened = match self.answer.reader.body(self.answer.header).await {
            Ok(body) => {
                parse_head(&self.upstream.inner, kind, &body, &self.request).and_then(Opened::head)
            }
            Err(error) => Err(Broken::Stream(error)),
        };
        match opened {
            Ok(head) => {
                self.pages = PageReader::new(head.entries);
                Ok(head)
            }
            Err(Broken::Remote(failure)) => Err(failure),
            Err(Broken::Stream(error)) => Err(self
                .upstream
                .inner
                .failure(self.answer.asking.peer(), &error)),
        }
    }
}

impl Upstream {
    /// Takes note that `answer` was lost with its connection, and waits until another can be asked.
    async fn replayed(&self, route: &Route<'_>, answer: &Answer, error: &StreamError) {
        self.inner.meters.replays.increment();
        let deadline = Instant::now() + self.inner.patience;
        self.moved(route, answer.asking.peer(), error, deadline)
            .await;
    }
}

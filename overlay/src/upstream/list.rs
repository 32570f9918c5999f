//! Listings from an ancestor: entries are returned as their pages arrive.
//!
//! If the connection is lost, the listing is requested again from its beginning, because the directory may
//! have changed meanwhile.

use super::{
    RemoteAnswer, Response, Retries, Route, Upstream, answer_failure, check_attributes,
    check_entry, unavailable, wrong_answer,
};
use crate::exchange::{AnswerError, expect_body, read_failure};
use crate::model::{
    Entry, Failure, ItemPath, LISTING_ENTRIES_MAX, ListRequest, Listed, ListingHead, ListingPart,
    ListingStream, from_ms,
};
use crate::transport::stream::FrameReader;
use crate::wire::{FrameKind, Head, PageReader, Request, message};
use futures_util::{StreamExt, stream};
use std::time::Duration;

/// Restarts that the sender of one listing may announce.
const RESTARTS_MAX: u32 = 64;

/// Requests a listing, and waits for its head or the notice that it is the known one.
pub(super) async fn open(upstream: Upstream, listing: ListRequest) -> Result<Listed, Failure> {
    let limit = listing.limit.min(LISTING_ENTRIES_MAX);
    let request = |known| {
        Request::List(ListRequest {
            limit,
            known,
            ..listing.clone()
        })
    };
    let (route, first_request) = (Route::Item(&listing.path), request(listing.known));
    let mut retries = Retries::default();
    let (answer, head) = loop {
        let mut answer = match upstream.request(route, &first_request).await? {
            Response::Storage(storage) => return storage.list(listing).await,
            Response::Remote(answer) => answer,
        };
        match read_head(&mut answer.reader, &first_request).await {
            Ok(Start::Unchanged(lease)) => return Ok(Listed::Unchanged { lease }),
            Ok(Start::Listing(head)) => break (answer, head),
            Err(error) => {
                upstream
                    .prepare_retry(route, &answer, error, &mut retries)
                    .await?;
            }
        }
    };
    let entries = Entries {
        pages: PageReader::new(head.entries),
        upstream,
        answer,
        // The listing differs from `known`: a repeated request needs all of it.
        request: request(None),
        path: listing.path,
        retries,
        restarts: 0,
    };
    let parts = stream::try_unfold(entries, async |mut entries| {
        Ok(entries.next_part().await?.map(|part| (part, entries)))
    });
    Ok(Listed::Listing(ListingStream {
        head,
        parts: parts.boxed(),
    }))
}

/// The beginning of an answer.
#[expect(clippy::large_enum_variant, reason = "short-lived, and few at a time")]
enum Start {
    /// The listing is the known one. Holds its lease.
    Unchanged(Option<Duration>),
    Listing(ListingHead),
}

/// Reads the first frame of the answer to `request`.
async fn read_head(reader: &mut FrameReader, request: &Request) -> Result<Start, AnswerError> {
    let body = expect_body(reader, FrameKind::Head, "head").await?;
    let head: Head = message::decode("head", &body)?;
    head.check(request)?;
    match head {
        Head::Listing {
            directory,
            next,
            entries,
            lease_ms,
        } => Ok(Start::Listing(ListingHead {
            directory: check_attributes(directory)?,
            next,
            entries: usize::try_from(entries).unwrap_or(usize::MAX),
            lease: from_ms(lease_ms),
        })),
        Head::Unchanged { lease_ms } => Ok(Start::Unchanged(from_ms(lease_ms))),
        _ => Err(wrong_answer().into()),
    }
}

/// A listing in progress.
struct Entries {
    upstream: Upstream,
    answer: RemoteAnswer,
    pages: PageReader<Entry>,
    /// Requests the whole listing.
    request: Request,
    path: ItemPath,
    retries: Retries,
    restarts: u32,
}

impl Entries {
    /// Returns the next part, from another connection if need be; `None` after the last.
    async fn next_part(&mut self) -> Result<Option<ListingPart>, Failure> {
        match self.receive().await {
            Ok(part) => Ok(part),
            Err(error) => Ok(Some(self.request_again(error).await?)),
        }
    }

    async fn receive(&mut self) -> Result<Option<ListingPart>, AnswerError> {
        let reader = &mut self.answer.reader;
        if self.pages.is_complete() {
            reader.finish()?;
            return Ok(None);
        }
        match reader.header().await?.kind {
            FrameKind::Page => {
                self.pages.add(&reader.body().await?)?;
                let entries = self.pages.take().into_iter().map(check_entry);
                Ok(Some(ListingPart::Entries(
                    entries.collect::<Result<_, _>>()?,
                )))
            }
            FrameKind::Restart if self.restarts < RESTARTS_MAX => {
                self.restarts += 1;
                self.restart().await.map(Some)
            }
            got => Err(read_failure(reader, got, "page").await),
        }
    }

    /// Reads the head of a listing that begins again.
    async fn restart(&mut self) -> Result<ListingPart, AnswerError> {
        match read_head(&mut self.answer.reader, &self.request).await? {
            Start::Listing(head) => {
                self.pages = PageReader::new(head.entries);
                Ok(ListingPart::Restart(head))
            }
            Start::Unchanged(_) => Err(wrong_answer().into()),
        }
    }

    /// Requests the whole listing again after `error`.
    async fn request_again(&mut self, error: AnswerError) -> Result<ListingPart, Failure> {
        let route = Route::Item(&self.path);
        self.upstream
            .prepare_retry(route, &self.answer, error, &mut self.retries)
            .await?;
        self.answer = match self.upstream.request(route, &self.request).await? {
            Response::Remote(answer) => answer,
            // Storage would have to answer from the beginning: that is left to the reader's next request.
            Response::Storage(_) => return Err(unavailable("cut off in a listing")),
        };
        let head = self.restart().await;
        head.map_err(|error| answer_failure(&self.answer.in_flight, error))
    }
}

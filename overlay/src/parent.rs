//! The parent's stub: [`Files`] asked over the one connection to the parent.
//!
//! Checks every answer against its question before anybody sees it: what cannot be true is
//! `Corrupt`, what does not come is `Unavailable`. Caches nothing and verifies no hash: that is the
//! read path's. The connection itself is kept by the `link` module.

mod bundle;
pub(crate) mod link;
mod read;

use crate::counters::Meters;
use crate::files::{
    BundleRequest, BundleStream, Files, LISTING_ENTRIES_MAX, ReadRequest, ReadStream,
};
use crate::item::{
    Attributes, Cursor, Entry, Failure, FailureKind, FilesystemUsage, ItemPath, Listing, XattrList,
};
use crate::overlay::Member;
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::wire::{
    FrameHeader, FrameKind, Head, PageReader, Request, STAT_NAME_BYTES_MAX, STAT_NAMES_MAX,
    WireError, message,
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use link::Link;
use quinn::Connection;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

pub use link::LinkStatus;

/// A node's stub towards its parent. Clones share one connection.
#[derive(Clone, Debug)]
pub struct Parent {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    member: Member,
    link: Link,
    patience: Duration,
    meters: Arc<Meters>,
}

impl Parent {
    pub(crate) fn new(member: Member, patience: Duration, meters: Arc<Meters>) -> Self {
        let link = Link::new(&member);
        Self {
            inner: Arc::new(Inner {
                member,
                link,
                patience,
                meters,
            }),
        }
    }

    /// The parent's entry in the member list.
    #[must_use]
    pub fn member(&self) -> &Member {
        &self.inner.member
    }

    /// Resolves once the parent has accepted this node for the first time; at once from then on.
    /// Waits for as long as it takes: [`Parent::status`] says why it takes long.
    pub async fn first_connected(&self) {
        self.inner.link.first_connected().await;
    }

    /// Whether the parent is connected now, and if not, why.
    #[must_use]
    pub fn status(&self) -> LinkStatus {
        self.inner.link.status()
    }

    pub(crate) fn link(&self) -> &Link {
        &self.inner.link
    }

    pub(crate) fn stop(&self) {
        self.inner.link.stop();
    }

    /// The live connection, waited for until `deadline`.
    pub(crate) async fn connection(&self, deadline: Instant) -> Result<Connection, Failure> {
        self.inner
            .link
            .connection(deadline)
            .await
            .map_err(|reason| {
                Failure::new(
                    FailureKind::Unavailable,
                    format!("{}: {reason}", self.inner.describe()),
                )
            })
    }

    /// Sends `request`; gives the reader of its answer behind the first frame's header. A
    /// connection that is lost before that is made anew, within the request time-out.
    async fn ask(&self, request: &Request) -> Result<(FrameReader, FrameHeader), Failure> {
        let inner = &self.inner;
        let unsound = |error: WireError| {
            Failure::new(
                FailureKind::Io,
                format!("a request that cannot be sent: {error}"),
            )
        };
        request.check().map_err(unsound)?;
        let body = message::encode("request", request).map_err(unsound)?;
        let deadline = Instant::now() + inner.patience;
        loop {
            let connection = self.connection(deadline).await?;
            let asking = timeout_at(deadline, inner.ask_once(&connection, body.clone()));
            match asking.await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(StreamError::Lost(_))) if Instant::now() < deadline => {
                    // The link's keeper sees the loss too, and this waits for it to act.
                    inner.link.lost(&connection, deadline).await;
                }
                Ok(Err(error)) => return Err(inner.failure(&error)),
                Err(_elapsed) => return Err(inner.failure(&StreamError::Silent(inner.patience))),
            }
        }
    }

    /// Asks a question that is answered by a head and `T`s.
    async fn answer<T: DeserializeOwned>(
        &self,
        request: &Request,
    ) -> Result<(Head, Vec<T>), Failure> {
        let (mut reader, header) = self.ask(request).await?;
        let inner = &self.inner;
        match header.kind {
            FrameKind::Head => {}
            FrameKind::Failure => return Err(inner.remote_failure(&mut reader, header).await),
            got => return Err(inner.failure(&unexpected(got, "head"))),
        }
        let collect = async {
            let head: Head = message::decode("head", &reader.body(header).await?)?;
            head.check(request)?;
            let mut pages = PageReader::new(usize::try_from(head.items()).unwrap_or(usize::MAX));
            while !pages.is_complete() {
                match reader.frame().await? {
                    Some((FrameKind::Page, body)) => pages.add(&body)?,
                    Some((FrameKind::Failure, body)) => {
                        return Ok(Err(message::decode::<Failure>("failure", &body)?));
                    }
                    Some((got, _)) => return Err(unexpected(got, "page")),
                    None => return Err(StreamError::Truncated),
                }
            }
            reader.finish()?;
            Ok(Ok((head, pages.into_items())))
        };
        match collect.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(failure)) => Err(trimmed(failure)),
            Err(error) => Err(inner.failure(&error)),
        }
    }

    async fn stat_batches(
        self,
        parent: ItemPath,
        names: Vec<Bytes>,
    ) -> Result<Vec<Result<Attributes, Failure>>, Failure> {
        let mut answers = Vec::with_capacity(names.len());
        for batch in batches(names) {
            let request = Request::Stat {
                parent: parent.clone(),
                names: batch,
            };
            let (_head, items) = self.answer::<Result<Attributes, Failure>>(&request).await?;
            for item in items {
                answers.push(match item {
                    Ok(attributes) => Ok(self.inner.checked(attributes)?),
                    Err(failure) => Err(trimmed(failure)),
                });
            }
        }
        Ok(answers)
    }
}

impl Inner {
    fn describe(&self) -> String {
        format!("parent {} ({})", self.member.name, self.member.address)
    }

    async fn ask_once(
        &self,
        connection: &Connection,
        body: Bytes,
    ) -> Result<(FrameReader, FrameHeader), StreamError> {
        let (send, recv) = connection.open_bi().await.map_err(StreamError::Lost)?;
        self.meters
            .upstream_requests
            .fetch_add(1, Ordering::Relaxed);
        let meter = Arc::clone(&self.meters.upstream_bytes_received);
        let mut reader = FrameReader::new(recv, self.patience).metered(meter);
        let mut writer = FrameWriter::new(send, self.patience);
        writer.frame(FrameKind::Request, body).await?;
        writer.finish();
        let header = reader.header().await?.ok_or(StreamError::Truncated)?;
        Ok((reader, header))
    }

    /// What a broken stream means to whoever asked.
    fn failure(&self, error: &StreamError) -> Failure {
        let kind = match error {
            StreamError::Silent(_) | StreamError::Lost(_) | StreamError::Cancelled => {
                FailureKind::Unavailable
            }
            StreamError::Truncated | StreamError::Wire(_) => {
                tracing::warn!(parent = %self.member.name, %error, "the parent broke the protocol");
                FailureKind::Corrupt
            }
        };
        Failure::new(kind, format!("{}: {error}", self.describe()))
    }

    /// The failure that the parent sent.
    async fn remote_failure(&self, reader: &mut FrameReader, header: FrameHeader) -> Failure {
        let body = match reader.body(header).await {
            Ok(body) => body,
            Err(error) => return self.failure(&error),
        };
        match message::decode("failure", &body) {
            Ok(failure) => trimmed(failure),
            Err(error) => self.failure(&error.into()),
        }
    }

    fn checked(&self, attributes: Attributes) -> Result<Attributes, Failure> {
        let times = [attributes.atime, attributes.mtime, attributes.ctime];
        let link_bytes = attributes.link_target.as_ref().map_or(0, Bytes::len);
        if times.iter().any(|time| time.nanoseconds >= 1_000_000_000)
            || link_bytes > ItemPath::BYTES_MAX
        {
            let error = WireError::Impossible("attributes that no file can have");
            return Err(self.failure(&error.into()));
        }
        Ok(attributes)
    }

    fn checked_entry(&self, mut entry: Entry) -> Result<Entry, Failure> {
        if ItemPath::check_name(&entry.name).is_err() {
            let error = WireError::Impossible("an entry whose name no file can have");
            return Err(self.failure(&error.into()));
        }
        entry.attributes = entry
            .attributes
            .map(|found| self.checked(found))
            .transpose()?;
        Ok(entry)
    }
}

impl Files for Parent {
    fn list(
        &self,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'static, Result<Listing, Failure>> {
        let parent = self.clone();
        Box::pin(async move {
            let limit = u32::try_from(limit.min(LISTING_ENTRIES_MAX)).unwrap_or(u32::MAX);
            let request = Request::List {
                path,
                cursor,
                limit,
            };
            let (head, entries) = parent.answer::<Entry>(&request).await?;
            let Head::Listing {
                directory, next, ..
            } = head
            else {
                return Err(parent.inner.failure(&wrong_head()));
            };
            let directory = parent.inner.checked(directory)?;
            let entries = entries
                .into_iter()
                .map(|entry| parent.inner.checked_entry(entry))
                .collect::<Result<Vec<_>, _>>()?;
            Ok(Listing {
                directory,
                entries,
                next,
            })
        })
    }

    fn stat(
        &self,
        parent: ItemPath,
        names: Vec<Bytes>,
    ) -> BoxFuture<'static, Result<Vec<Result<Attributes, Failure>>, Failure>> {
        Box::pin(self.clone().stat_batches(parent, names))
    }

    fn read(&self, request: ReadRequest) -> BoxFuture<'static, Result<ReadStream, Failure>> {
        Box::pin(read::open(self.clone(), request))
    }

    fn bundle(&self, request: BundleRequest) -> BoxFuture<'static, Result<BundleStream, Failure>> {
        Box::pin(bundle::open(self.clone(), request))
    }

    fn xattrs(&self, path: ItemPath) -> BoxFuture<'static, Result<XattrList, Failure>> {
        let parent = self.clone();
        Box::pin(async move { Ok(parent.answer(&Request::Xattrs { path }).await?.1) })
    }

    fn usage(&self, path: ItemPath) -> BoxFuture<'static, Result<FilesystemUsage, Failure>> {
        let parent = self.clone();
        Box::pin(async move {
            match parent.answer::<()>(&Request::Usage { path }).await?.0 {
                Head::Usage(usage) => Ok(usage),
                _ => Err(parent.inner.failure(&wrong_head())),
            }
        })
    }
}

/// `names` in as few requests as the bounds of one allow.
fn batches(names: Vec<Bytes>) -> Vec<Vec<Bytes>> {
    let mut batches = Vec::new();
    let mut batch: Vec<Bytes> = Vec::new();
    let mut bytes = 0;
    for name in names {
        let full = batch.len() == STAT_NAMES_MAX || bytes + name.len() > STAT_NAME_BYTES_MAX;
        if full && !batch.is_empty() {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes += name.len();
        batch.push(name);
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}

fn unexpected(got: FrameKind, wanted: &'static str) -> StreamError {
    WireError::Unexpected { got, wanted }.into()
}

fn wrong_head() -> StreamError {
    WireError::Impossible("an answer to another question").into()
}

/// A failure from a peer, its text cut to what is kept.
fn trimmed(failure: Failure) -> Failure {
    Failure::new(failure.kind, failure.detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_asked_for_in_bounded_batches() {
        assert!(batches(Vec::new()).is_empty());
        let many = vec![Bytes::from_static(b"a"); STAT_NAMES_MAX + 1];
        assert_eq!(
            batches(many).iter().map(Vec::len).collect::<Vec<_>>(),
            [STAT_NAMES_MAX, 1]
        );
        let long = vec![Bytes::from(vec![b'a'; 255]); 2000];
        let split = batches(long);
        assert_eq!(split.iter().map(Vec::len).sum::<usize>(), 2000);
        for names in split {
            let request = Request::Stat {
                parent: ItemPath::root(),
                names,
            };
            assert_eq!(request.check(), Ok(()));
            let body = message::encode("request", &request).unwrap();
            assert!(FrameHeader::new(FrameKind::Request, body.len()).is_ok());
        }
    }
}

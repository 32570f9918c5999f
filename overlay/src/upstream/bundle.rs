//! Bundles from ancestors: each file is checked against its hash when it is complete.
//!
//! The files of one directory may have different roots: each root's share comes through its own tree,
//! and they come as they come. A connection that is lost ends its share: whoever still wants a file of
//! it asks for that file.

use super::{ANOTHER, Answer, Asked, Route, Upstream, impossible};
use crate::exchange::{trimmed, unexpected};
use crate::model::{BundleItem, BundleRequest, BundleStream, Failure, FailureKind, ItemPath};
use crate::transport::stream::StreamError;
use crate::wire::{BundleDecoder, FrameHeader, FrameKind, Request, WireError, message};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use std::collections::BTreeMap;

/// The places in a request of the files that go one way, and the path of the first of them.
type Share = (ItemPath, Vec<usize>);

/// Opens the streams: waits for the first frame of each, so that a refusal is the outer failure.
pub(super) async fn open(
    upstream: Upstream,
    request: BundleRequest,
) -> Result<BundleStream, Failure> {
    let mut shares = upstream.shares(&request);
    if shares.len() <= 1 {
        let key = shares.pop().map_or(ItemPath::root(), |(key, _all)| key);
        return open_share(&upstream, &key, request).await;
    }
    let mut streams = Vec::with_capacity(shares.len());
    for (key, places) in shares {
        let share = BundleRequest {
            directory: request.directory.clone(),
            files: places
                .iter()
                .filter_map(|place| request.files.get(*place).cloned())
                .collect(),
        };
        let items = open_share(&upstream, &key, share).await?;
        streams.push(items.map(move |item| {
            let mut item = item?;
            item.index = *places.get(item.index).ok_or_else(|| impossible(ANOTHER))?;
            Ok(item)
        }));
    }
    Ok(stream::select_all(streams).boxed())
}

impl Upstream {
    /// The files of `request` by the tree through which each is to be asked for now.
    fn shares(&self, request: &BundleRequest) -> Vec<Share> {
        let mut shares: BTreeMap<Option<usize>, Share> = BTreeMap::new();
        for (place, file) in request.files.iter().enumerate() {
            let Ok(path) = request.directory.join(&file.name) else {
                continue;
            };
            let mut ways = (self.attempt..=u8::MAX)
                .map_while(|attempt| self.inner.membership.placement().tree(&path, attempt));
            let way = ways.find(|&tree| self.hold(tree).is_none_or(|hold| !hold.is_stranded()));
            shares
                .entry(way)
                .or_insert_with(|| (path, Vec::new()))
                .1
                .push(place);
        }
        shares.into_values().collect()
    }
}

async fn open_share(
    upstream: &Upstream,
    key: &ItemPath,
    request: BundleRequest,
) -> Result<BundleStream, Failure> {
    let decoder = BundleDecoder::new(&request);
    let question = Request::Bundle(request);
    let mut answer = match upstream.ask(&Route::Item(key), &question).await? {
        Asked::Storage(storage) => {
            let Request::Bundle(request) = question else {
                return Err(impossible(ANOTHER));
            };
            return storage.bundle(request).await;
        }
        Asked::Answer(answer) => answer,
    };
    if answer.header.kind == FrameKind::Failure {
        let body = answer.reader.body(answer.header).await;
        let failure = body.and_then(|body| Ok(message::decode("failure", &body)?));
        return Err(match failure {
            Ok(failure) => trimmed(failure),
            Err(error) => upstream.inner.failure(answer.asking.peer(), &error),
        });
    }
    let files = Files {
        pending: Some(answer.header),
        answer,
        upstream: upstream.clone(),
        decoder,
        frame_left: 0,
        piece: Bytes::new(),
    };
    Ok(stream::unfold(Some(files), step).boxed())
}

/// One answer in progress.
struct Files {
    answer: Answer,
    upstream: Upstream,
    decoder: BundleDecoder,
    /// A header that was read already.
    pending: Option<FrameHeader>,
    /// Bytes left in the current frame, behind `piece`.
    frame_left: usize,
    piece: Bytes,
}

enum Broken {
    Stream(StreamError),
    Said(Failure),
}

impl<E: Into<StreamError>> From<E> for Broken {
    fn from(error: E) -> Self {
        Self::Stream(error.into())
    }
}

async fn step(state: Option<Files>) -> Option<(Result<BundleItem, Failure>, Option<Files>)> {
    let mut files = state?;
    match files.next().await {
        Ok(Some(item)) => Some((Ok(item), Some(files))),
        Ok(None) => None,
        Err(Broken::Said(failure)) => Some((Err(failure), None)),
        Err(Broken::Stream(error)) => {
            let peer = files.answer.asking.peer();
            let failure = files.upstream.inner.failure(peer, &error);
            Some((Err(failure), None))
        }
    }
}

impl Files {
    async fn next(&mut self) -> Result<Option<BundleItem>, Broken> {
        loop {
            while !self.piece.is_empty() {
                if let Some(item) = self.decoder.take(&mut self.piece)? {
                    return self.verified(item).map(Some);
                }
            }
            if self.frame_left > 0 {
                let piece = self.answer.reader.piece(self.frame_left).await?;
                self.piece = piece.ok_or(StreamError::Truncated)?;
                self.frame_left -= self.piece.len();
                continue;
            }
            let header = match self.pending.take() {
                Some(header) => header,
                None => self
                    .answer
                    .reader
                    .header()
                    .await?
                    .ok_or(StreamError::Truncated)?,
            };
            match header.kind {
                FrameKind::Bundle => {
                    self.frame_left = usize::try_from(header.len).unwrap_or(usize::MAX);
                }
                FrameKind::Done if self.decoder.is_between_files() => {
                    self.answer.reader.finish()?;
                    return Ok(None);
                }
                FrameKind::Done => return Err(StreamError::Truncated.into()),
                FrameKind::Failure => {
                    let body = self.answer.reader.body(header).await?;
                    return Err(Broken::Said(trimmed(message::decode("failure", &body)?)));
                }
                got => return Err(unexpected(got, "bundle or done").into()),
            }
        }
    }

    fn verified(&self, item: BundleItem) -> Result<BundleItem, Broken> {
        let meters = &self.upstream.inner.meters;
        if *blake3::hash(&item.bytes).as_bytes() == item.hash.0 {
            meters.blocks_verified.increment();
            return Ok(item);
        }
        meters.wrong_blocks.increment();
        self.answer.asking.peer().lied();
        let detail = WireError::WrongHash.to_string();
        Err(Broken::Said(Failure::new(FailureKind::Corrupt, detail)))
    }
}

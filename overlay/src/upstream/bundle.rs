//! Bundles from ancestors: each file is verified when it is complete.
//!
//! The files of one directory may have different roots. Each root's share comes through its own tree, and the
//! shares are merged as they arrive. A lost connection ends its share; readers then request the files that
//! they still need one by one.

use super::{RemoteAnswer, Response, Route, Upstream, answer_failure, wrong_answer};
use crate::exchange::{AnswerError, read_failure};
use crate::model::{BundleItem, BundleRequest, BundleStream, Failure, FailureKind, ItemPath};
use crate::transport::stream::StreamError;
use crate::wire::{BundleDecoder, FrameKind, Request, WireError};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use std::collections::BTreeMap;

/// The files of a request that come through one tree: the path of the first of them, and their positions.
type Share = (ItemPath, Vec<usize>);

/// Opens the streams, and waits for the first frame of each, so that a refusal is returned at once.
pub(super) async fn open(
    upstream: Upstream,
    request: BundleRequest,
) -> Result<BundleStream, Failure> {
    let mut shares = upstream.shares(&request);
    if shares.len() <= 1 {
        let key = shares.pop().map_or(ItemPath::root(), |(key, _)| key);
        return open_share(&upstream, &key, request).await;
    }
    let mut streams = Vec::with_capacity(shares.len());
    for (key, positions) in shares {
        let files = positions.iter();
        let files = files.filter_map(|position| request.files.get(*position).cloned());
        let share = BundleRequest {
            directory: request.directory.clone(),
            files: files.collect(),
        };
        let items = open_share(&upstream, &key, share).await?;
        streams.push(items.map(move |item| {
            let mut item = item?;
            item.index = *positions.get(item.index).ok_or_else(wrong_answer)?;
            Ok(item)
        }));
    }
    Ok(stream::select_all(streams).boxed())
}

impl Upstream {
    /// Groups the files of `request` by the tree through which each is requested now.
    fn shares(&self, request: &BundleRequest) -> Vec<Share> {
        let mut shares: BTreeMap<Option<usize>, Share> = BTreeMap::new();
        for (position, file) in request.files.iter().enumerate() {
            // An invalid name is in no share: its file is left out of the answer.
            let Ok(path) = request.directory.join(&file.name) else {
                continue;
            };
            let mut trees = self.trees_of(Route::Item(&path)).map(|(_, tree)| tree);
            let usable = |tree: &usize| {
                let link = self.parent_link(*tree);
                link.is_none_or(|link| !link.is_stranded())
            };
            let tree = trees.find(usable);
            drop(trees);
            let (_key, positions) = shares.entry(tree).or_insert((path, Vec::new()));
            positions.push(position);
        }
        shares.into_values().collect()
    }
}

async fn open_share(
    upstream: &Upstream,
    key: &ItemPath,
    request: BundleRequest,
) -> Result<BundleStream, Failure> {
    let message = Request::Bundle(request.clone());
    let mut answer = match upstream.request(Route::Item(key), &message).await? {
        Response::Storage(storage) => return storage.bundle(request).await,
        Response::Remote(answer) => answer,
    };
    answer.refused().await?;
    let files = BundleFiles {
        decoder: BundleDecoder::new(&request),
        answer,
        upstream: upstream.clone(),
        piece: Bytes::new(),
    };
    let items = stream::try_unfold(files, async |mut files| match files.next_file().await {
        Ok(item) => Ok(item.map(|item| (item, files))),
        Err(error) => Err(answer_failure(&files.answer.in_flight, error)),
    });
    Ok(items.boxed())
}

/// One share in progress.
struct BundleFiles {
    answer: RemoteAnswer,
    upstream: Upstream,
    decoder: BundleDecoder,
    /// Bytes that the decoder has not taken yet.
    piece: Bytes,
}

impl BundleFiles {
    /// Returns the next complete file; `None` after the last.
    async fn next_file(&mut self) -> Result<Option<BundleItem>, AnswerError> {
        let reader = &mut self.answer.reader;
        loop {
            while !self.piece.is_empty() {
                if let Some(item) = self.decoder.take(&mut self.piece)? {
                    return self.verify(item).map(Some);
                }
            }
            if reader.body_left() > 0 {
                self.piece = reader.body_piece().await?;
                continue;
            }
            match reader.header().await?.kind {
                FrameKind::Bundle => {}
                FrameKind::Done if self.decoder.is_between_files() => {
                    reader.finish()?;
                    return Ok(None);
                }
                FrameKind::Done => return Err(StreamError::Truncated.into()),
                got => return Err(read_failure(reader, got, "bundle or done").await),
            }
        }
    }

    fn verify(&self, item: BundleItem) -> Result<BundleItem, AnswerError> {
        let counters = &self.upstream.inner.counters;
        if *blake3::hash(&item.bytes).as_bytes() == item.hash.0 {
            counters.blocks_verified.increment();
            return Ok(item);
        }
        counters.wrong_blocks.increment();
        self.answer.in_flight.report_corrupt();
        let detail = WireError::WrongHash.to_string();
        Err(Failure::new(FailureKind::Corrupt, detail).into())
    }
}

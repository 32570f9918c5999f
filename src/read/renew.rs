//! Finds the new version of a file that is being read, and compares it with the bytes that were returned.

use super::attributes::{Demand, Known, attributes_in};
use super::blocks::Haste;
use super::directory::Found;
use super::file::FileRef;
use super::given::{Account, Scattered};
use super::single_flight::{Joined, answer_of};
use super::{Inner, ReadPath, given_up};
use crate::num::to_usize;
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, BLOCK_BYTES, ContentHash, Failure, ItemPath, Leased, RANGE_ALIGN, Version,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Blocks that are requested at a time during a comparison.
const COMPARED_BLOCKS: u64 = 16;
/// Blocks whose pieces are requested at a time during a comparison.
const COMPARED_SCATTERED: usize = 16;

impl Inner {
    /// The cached attributes of `path`, if they are of another version than `denied`.
    pub(super) fn known_unlike(&self, path: &ItemPath, denied: Version) -> Option<Known> {
        let (parent, name) = path.split()?;
        let known = self.peek_name(&parent, name, Duration::ZERO)?;
        let other = matches!(&known.found, Found::Attributes(it) if it.version != denied);
        other.then_some(known)
    }

    fn is_known(&self, path: &ItemPath) -> bool {
        let Some((parent, name)) = path.split() else {
            return true;
        };
        self.peek_name(&parent, name, Duration::ZERO).is_some()
    }
}

impl ReadPath {
    /// The attributes of `path`, after storage has denied its version `denied`: from the caches if they
    /// have another version, else from storage. No cache on the way answers with the denied version.
    ///
    /// # Errors
    /// `NotFound`; faults.
    pub async fn attributes_unlike(
        &self,
        path: &ItemPath,
        denied: Version,
    ) -> Result<Leased<Attributes>, Failure> {
        let Some((parent, name)) = path.split() else {
            return self.leased_attributes_of(path).await;
        };
        let inner = &self.0;
        if let Some(known) = inner.known_unlike(path, denied) {
            return found(known, path);
        }
        if !denied.is_settled() {
            inner.forget_unsettled(path);
        } else if inner.is_known(path) {
            inner.forget_attributes(path);
        }
        let name = Bytes::copy_from_slice(name);
        let look_again = || inner.known_unlike(path, denied).map(Ok);
        let known = match inner.attribute_flights.join(path, look_again) {
            Joined::Answered(known) => known?,
            Joined::Follow(pending) => {
                let known = answer_of(pending).await;
                known.unwrap_or_else(|| Err(given_up(path)))?
            }
            Joined::Lead(lead, pending) => {
                let asking = Arc::clone(inner).stat(
                    parent.clone(),
                    vec![(name.clone(), lead)],
                    Demand::Denied(denied),
                );
                drop(inner.runtime.spawn(asking));
                let known = answer_of(pending).await;
                known.unwrap_or_else(|| Err(given_up(path)))?
            }
        };
        let answer = found(known, path)?;
        if answer.value.version != denied {
            return Ok(answer);
        }
        // The flight may have been an ordinary question, which a cache further up has answered.
        inner.source.stat_again(parent, name, denied).await
    }

    /// Whether `file` has the blocks and pieces of `account`. They are fetched like any others.
    ///
    /// # Errors
    /// Like [`ReadPath::read`].
    pub async fn has_given(&self, file: &FileRef, account: &Account) -> Result<bool, Failure> {
        let blocks: Vec<u64> = account.blocks().collect();
        let mut blocks = blocks.into_iter().peekable();
        while let Some(first) = blocks.next() {
            let mut end = first + 1;
            while end - first < COMPARED_BLOCKS && blocks.next_if_eq(&end).is_some() {
                end += 1;
            }
            let comparing = self.blocks_agree(file, first..end, account);
            let bytes = (end - first) * BLOCK_BYTES;
            if !self.0.room.within(bytes, comparing).await? {
                return Ok(false);
            }
        }
        let scattered = account.scattered().iter();
        let comparing: Vec<_> = scattered.map(|row| self.pieces_agree(file, row)).collect();
        stream::iter(comparing)
            .buffer_unordered(COMPARED_SCATTERED)
            .try_all(std::future::ready)
            .await
    }

    async fn blocks_agree(
        &self,
        file: &FileRef,
        run: Range<u64>,
        account: &Account,
    ) -> Result<bool, Failure> {
        for index in run.clone() {
            let wanted = || [index..run.end, 0..0];
            let block = self.block(file, index, wanted, Haste::InTurn).await?;
            if !account.agrees(index, &block.hash) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn pieces_agree(&self, file: &FileRef, row: &Scattered) -> Result<bool, Failure> {
        let mut hashes: Vec<ContentHash> = Vec::new();
        let pieces: Vec<u64> = row.pieces().collect();
        let mut pieces = pieces.into_iter().peekable();
        while let Some(first) = pieces.next() {
            let mut end = first + 1;
            while pieces.next_if_eq(&end).is_some() {
                end += 1;
            }
            let base = row.block * BLOCK_BYTES;
            let range = base + first * RANGE_ALIGN..(base + end * RANGE_ALIGN).min(file.size);
            let bytes = range.end - range.start;
            let reading = self.pieces(file, row.block, &range);
            let cut = self.0.room.within(bytes, reading).await?;
            let hashed = cut.bytes.chunks(to_usize(RANGE_ALIGN)).map(blake3::hash);
            hashes.extend(hashed.map(|hash| ContentHash(*hash.as_bytes())));
        }
        Ok(row.agrees(&hashes))
    }
}

fn found(known: Known, path: &ItemPath) -> Result<Leased<Attributes>, Failure> {
    attributes_in(known.leased()).ok_or_else(|| Failure::not_found(path))
}

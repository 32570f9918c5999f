//! Bytes by their hash, from the nodes above: for what storage has no more.
//!
//! A question climbs one tree, from each node to the ancestor from which that hangs, until somebody has
//! the bytes: so it is heard by every node on the way to the root, and by nobody twice. It never gets to
//! storage, and from one tree into another it does not pass.

use super::{Inner, Upstream};
use crate::exchange::take;
use crate::model::{ContentHash, Failure, not_here};
use crate::transport::stream::StreamError;
use crate::wire::{Request, WireError, message};
use bytes::Bytes;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Questions that one node has under way in one tree, its children's among them: each may hold a block.
/// The others wait, within their time-out.
pub(super) const FINDS_AT_ONCE: usize = 4;
/// How long all trees together may take: an application waits, and what is sought is most likely gone.
const FIND_TIMEOUT: Duration = Duration::from_secs(2);

/// The bytes, from the first tree in which somebody has them.
pub(super) async fn anywhere(
    upstream: Upstream,
    hash: ContentHash,
    len: u64,
) -> Result<Bytes, Failure> {
    let deadline = Instant::now() + FIND_TIMEOUT;
    let trees = upstream.inner.holds.len();
    for tree in 0..trees {
        // A tree that does not answer leaves the others their share.
        let now = Instant::now();
        let left = u32::try_from(trees - tree).unwrap_or(u32::MAX);
        let share = now + deadline.saturating_duration_since(now) / left;
        if let Some(bytes) = upstream.inner.find(tree, hash, len, share).await {
            return Ok(bytes);
        }
    }
    Err(not_here(hash, len))
}

impl Upstream {
    /// The bytes, from the nodes above this one in `tree`.
    pub(crate) async fn find_in(
        &self,
        tree: usize,
        hash: ContentHash,
        len: u64,
    ) -> Result<Bytes, Failure> {
        let deadline = Instant::now() + FIND_TIMEOUT;
        let found = self.inner.find(tree, hash, len, deadline).await;
        found.ok_or_else(|| not_here(hash, len))
    }
}

impl Inner {
    async fn find(
        &self,
        tree: usize,
        hash: ContentHash,
        len: u64,
        deadline: Instant,
    ) -> Option<Bytes> {
        // Nothing is held in a tree whose root this node is, and in one that there is not.
        let turns = self.holds.get(tree)?.as_ref().and(self.finds.get(tree))?;
        let finding = async {
            let _turn = turns.acquire().await.ok()?;
            self.find_once(tree, hash, len, deadline).await
        };
        timeout_at(deadline, finding).await.ok().flatten()
    }

    async fn find_once(
        &self,
        tree: usize,
        hash: ContentHash,
        len: u64,
        deadline: Instant,
    ) -> Option<Bytes> {
        let number = u8::try_from(tree).ok()?;
        let request = Request::Find {
            tree: number,
            hash,
            len,
        };
        request.check().ok()?;
        let body = message::encode_question(0, &request).ok()?;
        let peer = self.holds.get(tree)?.as_ref()?.peer(deadline).await.ok()?;
        let taken = async {
            let mut answer = self.ask_once(&peer, body, FIND_TIMEOUT).await?;
            match take(&mut answer.reader, answer.header, len).await? {
                Ok(found) if found.hash == hash => Ok(Some(found.bytes)),
                Ok(_other) => Err(WireError::WrongHash.into()),
                Err(_failure) => Ok(None),
            }
        };
        let taken: Result<Option<Bytes>, StreamError> = taken.await;
        match taken {
            Ok(Some(bytes)) => {
                self.meters.blocks_verified.increment();
                Some(bytes)
            }
            Ok(None) => None,
            Err(error) => {
                if matches!(&error, StreamError::Wire(WireError::WrongHash)) {
                    self.meters.wrong_blocks.increment();
                    peer.lied();
                }
                tracing::warn!(peer = %peer.label, %error, "bytes sought by their hash did not come");
                None
            }
        }
    }
}

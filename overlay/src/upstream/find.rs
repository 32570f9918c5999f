//! Content by its hash, from the caches of the nodes above, for content that storage has deleted.
//!
//! A request climbs one tree, from parent to parent, until a node has the content. So every node up to the
//! root gets it at most once. It never reaches storage, and does not pass from one tree into another.

use super::{Target, Upstream};
use crate::exchange::{AnswerError, read_verified};
use crate::model::{ContentHash, Failure, not_here};
use crate::transport::stream::StreamError;
use crate::wire::{Request, WireError};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Requests by hash that one node has in flight in one tree, its children's included, because each may hold
/// a block. Further requests wait, within their timeout.
pub(super) const FINDS_MAX: usize = 4;
/// Limits the search in all trees together: an application waits, and the content is most likely gone.
const FIND_TIMEOUT: Duration = Duration::from_secs(2);

impl Upstream {
    /// Returns the content from the nodes above this one, in the first of `trees` that has it.
    pub(crate) async fn find_in(
        &self,
        trees: Range<usize>,
        hash: ContentHash,
        len: u64,
    ) -> Result<Bytes, Failure> {
        let deadline = Instant::now() + FIND_TIMEOUT;
        for tree in trees.clone() {
            // Each tree gets an equal share of the time that is left, so that a silent one leaves time to the others.
            let now = Instant::now();
            let trees_left = u32::try_from(trees.end - tree).unwrap_or(u32::MAX);
            let until = now + deadline.saturating_duration_since(now) / trees_left;
            let finding = self.find_above(tree, hash, len, until);
            if let Ok(Some(bytes)) = timeout_at(until, finding).await {
                return Ok(bytes);
            }
        }
        Err(not_here(hash, len))
    }

    /// Returns the content if the parent in `tree` answers with it. Waits for a parent until `deadline`.
    async fn find_above(
        &self,
        tree: usize,
        hash: ContentHash,
        len: u64,
        deadline: Instant,
    ) -> Option<Bytes> {
        let (inner, number) = (&self.inner, u8::try_from(tree).ok()?);
        let client = inner.trees.get(tree)?;
        // A root has no node above it to ask.
        let link = client.link.as_ref()?;
        let request = Request::Find {
            tree: number,
            hash,
            len,
        };
        request.check().ok()?;
        let _permit = client.find_permits.acquire().await.ok()?;
        let peer = link.parent(deadline).await.ok()?;
        let receiving = async {
            let target = Target::parent(Arc::clone(&peer), 0);
            let mut answer = inner.send(&target, &request, FIND_TIMEOUT).await?;
            match read_verified(&mut answer.reader, len).await? {
                found if found.hash == hash => Ok(found.bytes),
                _ => Err(WireError::WrongHash.into()),
            }
        };
        let error = match receiving.await {
            Ok(bytes) => {
                inner.counters.blocks_verified.increment();
                return Some(bytes);
            }
            // The nodes above do not have the content.
            Err(AnswerError::Failure(_)) => return None,
            Err(AnswerError::Stream(error)) => error,
        };
        if matches!(&error, StreamError::Wire(WireError::WrongHash)) {
            inner.counters.wrong_blocks.increment();
            peer.report_corrupt();
        }
        tracing::warn!(peer = %peer.label, %error, "bytes sought by their hash did not come");
        None
    }
}

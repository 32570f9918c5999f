//! The memory of reads in progress.
//!
//! The data cache has its own bound, but blocks on their way into it, and blocks that are being sent, take
//! memory too. All of it is part of the node's memory for data: [`reserve`] returns the part for these
//! transfers, and the cache gets the rest. Each kind of holder has a share:
//!
//! - *Fetches*: bytes that a request to the source receives, for any reader. A fetch takes room before it
//!   asks and keeps it until it ends ([`Charge`]).
//! - *Separate requests*: blocks that a reader waits for at the end of a run ([`super::urgent`]). They must
//!   not wait for the runs, so they have room of their own.
//! - *Readers*: bytes that a local read assembles. A reader waits for fetches, never the other way round.
//! - *Hand-outs*: blocks that are sent to children ([`super::handouts`]). Children wait for each other.
//!
//! No holder waits for ever. A holder that receives nothing for [`IDLE_TIMEOUT`] releases its room. Usually it
//! has received nothing at all by then, so it holds no memory. So storage that hangs does not block other
//! reads, and nodes that ask each other, in several trees, never wait in a circle. When bytes arrive after
//! all, the holder waits for room again before it takes the first bytes of a block; within a block it
//! continues even if there is none.

use super::handouts::Handouts;
use super::share::{Held, Share};
use futures_util::FutureExt;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;

/// One part in this many of the bytes for data is for transfers in progress …
const RESERVE_SHARE: u64 = 4;
/// … but no more than this: 256 blocks in progress keep any link busy.
const RESERVE_BYTES_MAX: u64 = 256 << 20;
/// How long a read keeps its room without an answer.
const IDLE_TIMEOUT: Duration = Duration::from_millis(250);

/// The maximum that a fetch holds: the block that it fills, and those that its source has begun.
pub(super) const FETCH_BYTES_MAX: u64 = 3 << 20;

/// Bytes sent to a child in one step if there is no room to pin a block.
pub(in crate::read) const COPY_BYTES: usize = 64 << 10;

/// The part of `data_bytes` for transfers in progress.
pub(super) fn reserve(data_bytes: u64) -> u64 {
    (data_bytes / RESERVE_SHARE).min(RESERVE_BYTES_MAX)
}

/// See the module.
#[derive(Debug)]
pub(in crate::read) struct MemoryBudget {
    fetches: Share,
    urgent: Share,
    readers: Share,
    /// The room for blocks that are sent to children.
    pub(in crate::read) handouts: Handouts,
    requested: Notify,
}

impl MemoryBudget {
    pub(super) fn new(bytes: u64) -> Self {
        Self {
            fetches: Share::new(bytes / 8 * 3),
            urgent: Share::new(bytes / 8),
            readers: Share::new(bytes / 4),
            handouts: Handouts::new(bytes / 4),
            requested: Notify::new(),
        }
    }

    /// Changes the room to `bytes`. Holders keep theirs: less room means that the next ones wait.
    pub(super) fn resize(&self, bytes: u64) {
        self.fetches.resize(bytes / 8 * 3);
        self.urgent.resize(bytes / 8);
        self.readers.resize(bytes / 4);
        self.handouts.resize(bytes / 4);
    }

    /// Runs `work`, a local read that assembles `bytes`, once there is room for them. Larger reads are
    /// clamped to the capacity.
    pub(super) async fn within<T>(&self, bytes: u64, work: impl Future<Output = T>) -> T {
        Charge::of(&self.readers, bytes).await.during(work).await
    }

    /// Waits for room for a fetch that holds up to `bytes` at a time.
    pub(super) async fn fetch(&self, bytes: u64) -> Charge {
        self.requested.notify_one();
        Charge::of(&self.fetches, bytes).await
    }

    /// Waits for the next fetch, or returns at once if there was one since the last call.
    pub(in crate::read) async fn requested(&self) {
        self.requested.notified().await;
    }

    /// Waits for room for the separate request of a block of `bytes`.
    pub(super) async fn urgent(&self, bytes: u64) -> Charge {
        Charge::of(&self.urgent, bytes).await
    }
}

/// The room of one fetch, from before its request until it ends.
#[derive(Debug)]
pub(super) struct Charge {
    share: Share,
    bytes: u64,
    held: Option<Held>,
}

impl Charge {
    async fn of(share: &Share, bytes: u64) -> Self {
        Self {
            share: share.clone(),
            bytes,
            held: share.take(bytes).await,
        }
    }

    /// Waits for `coming`; releases the room while nothing arrives.
    pub(super) async fn awaiting<T>(&mut self, coming: impl Future<Output = T>) -> T {
        let mut coming = pin!(coming);
        // No timer for parts that are here already.
        match (&mut coming).now_or_never() {
            Some(here) => here,
            None => self.during(coming).await,
        }
    }

    async fn during<T>(&mut self, coming: impl Future<Output = T>) -> T {
        let mut coming = pin!(coming);
        match timeout(IDLE_TIMEOUT, &mut coming).await {
            Ok(here) => here,
            Err(_elapsed) => {
                self.held = None;
                coming.await
            }
        }
    }

    /// Called with the first bytes of a block: waits for room if it was released.
    pub(super) async fn begin(&mut self) {
        if self.held.is_none() {
            self.held = self.share.take(self.bytes).await;
        }
    }

    /// Called with further bytes of a block: takes room again if there is any.
    pub(super) fn go_on(&mut self) {
        if self.held.is_none() {
            self.held = self.share.take_now(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[tokio::test]
    async fn reads_wait_for_room_and_those_that_hang_make_it() {
        let room = Arc::new(MemoryBudget::new(16 << 20));
        let (now, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let reads = (0..64).map(|_| {
            let (room, now, most) = (Arc::clone(&room), Arc::clone(&now), Arc::clone(&most));
            tokio::spawn(async move {
                room.within(1 << 20, async {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    now.fetch_sub(1, Ordering::SeqCst);
                })
                .await;
            })
        });
        for read in reads.collect::<Vec<_>>() {
            read.await.unwrap();
        }
        assert_eq!(most.load(Ordering::SeqCst), 4);

        let hanging = Arc::clone(&room);
        let hanging = tokio::spawn(async move {
            hanging.within(1 << 40, std::future::pending::<()>()).await;
        });
        tokio::task::yield_now().await;
        room.within(1 << 20, std::future::ready(())).await;
        hanging.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_fetch_keeps_its_room_while_it_comes_and_gives_it_back_while_it_hangs() {
        let room = MemoryBudget::new(4 << 20);
        let mut first = room.fetch(2 << 20).await;
        first.awaiting(tokio::time::sleep(IDLE_TIMEOUT / 2)).await;
        assert!(
            timeout(IDLE_TIMEOUT * 9, room.fetch(1)).await.is_err(),
            "it comes"
        );
        first.awaiting(tokio::time::sleep(IDLE_TIMEOUT * 2)).await;
        let second = timeout(IDLE_TIMEOUT * 9, room.fetch(2 << 20))
            .await
            .unwrap();
        first.go_on();
        assert!(
            timeout(IDLE_TIMEOUT * 9, first.begin()).await.is_err(),
            "no room"
        );
        drop(second);
        first.begin().await;
        assert!(timeout(IDLE_TIMEOUT * 9, room.fetch(1)).await.is_err());
        drop(first);
        room.fetch(1).await;
    }

    #[tokio::test(start_paused = true)]
    async fn each_kind_has_room_of_its_own() {
        let room = MemoryBudget::new(4 << 20);
        let _fetch = room.fetch(1 << 40).await;
        let held = room.handouts.hold(1 << 20).await;
        assert_eq!(held.extend(1), 0);
        room.within(1 << 20, std::future::ready(())).await;
    }
}

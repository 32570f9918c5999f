//! Memory for blocks that are sent to children.
//!
//! A block is held from the moment it is wanted until it is sent. Otherwise a small cache would lose it to
//! the blocks of other children first, and storage would be asked for it again. So sending needs room: a
//! feed takes a [`Hold`] before it looks for a block, and feeds wait for each other in order.
//!
//! A child that stops reading must not keep the others waiting. Therefore a hold that was not used for
//! [`STALLED`] may lose its blocks to a feed that waits. Its feed takes room again when the child continues.
//! Only a block that was passed to the network as a whole stays accounted for until the child has it. That
//! happens only while at least half of the room is free; beyond that, blocks are sent in small copies. So
//! children that hang pin half of the room at most.

use super::Block;
use super::flight::Flight;
use super::share::{Held, Share};
use copperfs_overlay::BLOCK_BYTES;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long a hold may be unused before others may take its room. Longer than storage takes to answer, so
/// that blocks on their way here are still wanted when they arrive.
const STALLED: Duration = Duration::from_secs(2);
/// Holds that are listed before those that ended are first removed from the list.
const HOLDS_LISTED: usize = 64;

/// The room for hand-outs, and the feeds that hold some of it.
#[derive(Debug)]
pub(in crate::read) struct Handouts {
    share: Share,
    /// Guards the list; taken before the lock of a hold. Bounded by twice the holds that exist.
    holds: Mutex<Vec<Weak<Hold>>>,
}

/// The blocks of one feed.
#[derive(Debug)]
pub(in crate::read) struct Hold {
    share: Share,
    /// Guards itself; held for a change, never across an await.
    blocks: Mutex<Blocks>,
}

#[derive(Debug)]
struct Blocks {
    /// For the current block and those of `ahead`.
    room: Option<Held>,
    /// The block that is being sent.
    current: Option<Block>,
    /// The current block was passed to the network as a whole.
    given: bool,
    /// The blocks after it, on their way here or landed.
    ahead: VecDeque<Arc<Flight>>,
    used: Instant,
}

impl Handouts {
    pub(super) fn new(bytes: u64) -> Self {
        Self {
            share: Share::new(bytes),
            holds: Mutex::default(),
        }
    }

    pub(super) fn resize(&self, bytes: u64) {
        self.share.resize(bytes);
    }

    /// Waits for room for a block of `bytes`. Takes it from feeds that are not used, if need be.
    pub(in crate::read) async fn hold(&self, bytes: u64) -> Arc<Hold> {
        let mut taking = pin!(self.share.take(bytes));
        let room = loop {
            match timeout(STALLED, &mut taking).await {
                Ok(room) => break room,
                Err(_elapsed) => self.reclaim(),
            }
        };
        let hold = Arc::new(Hold {
            share: self.share.clone(),
            blocks: Mutex::new(Blocks {
                room,
                current: None,
                given: false,
                ahead: VecDeque::new(),
                used: Instant::now(),
            }),
        });
        let mut holds = self.holds.lock();
        if holds.len() == holds.capacity() {
            holds.retain(|hold| hold.strong_count() > 0);
            // Removed again when there are twice as many, so that each hold pays for few others.
            let listed = HOLDS_LISTED.max(2 * holds.len());
            holds.shrink_to(listed);
            let more = listed - holds.len();
            holds.reserve_exact(more);
        }
        holds.push(Arc::downgrade(&hold));
        hold
    }

    fn reclaim(&self) {
        let listed = self.holds.lock().clone();
        for hold in listed.iter().filter_map(Weak::upgrade) {
            hold.reclaim();
        }
    }
}

impl Hold {
    /// The feed is alive. Whether it has its room still.
    pub(in crate::read) fn touch(&self) -> bool {
        let mut blocks = self.blocks.lock();
        blocks.used = Instant::now();
        blocks.room.is_some()
    }

    /// Takes room for up to `more` further blocks, as long as half of all room stays free for other feeds.
    /// Returns for how many.
    pub(in crate::read) fn extend(&self, more: u64) -> u64 {
        let mut blocks = self.blocks.lock();
        let Some(room) = &mut blocks.room else {
            return 0;
        };
        for taken in 0..more {
            match self.share.take_now(BLOCK_BYTES) {
                Some(extra) if self.share.is_half_free() => room.merge(extra),
                _ => return taken,
            }
        }
        more
    }

    /// Keeps the flights of the blocks that come after the current one.
    pub(in crate::read) fn lead(&self, ahead: impl Iterator<Item = Arc<Flight>>) {
        self.blocks.lock().ahead.extend(ahead);
    }

    /// Keeps the block that is being sent.
    pub(in crate::read) fn keep(&self, block: Block) {
        self.blocks.lock().current = Some(block);
    }

    /// Whether the current block may be passed to the network as a whole. Otherwise it is sent in copies.
    pub(in crate::read) fn give(&self) -> bool {
        let mut blocks = self.blocks.lock();
        blocks.given = blocks.given || self.share.is_half_free();
        blocks.given
    }

    /// The block that is being sent, unless its room was taken away.
    pub(in crate::read) fn current(&self) -> Option<Block> {
        self.blocks.lock().current.clone()
    }

    /// The current block is sent. The flight of the next one, if there is room for it.
    pub(in crate::read) fn next(&self) -> Option<Arc<Flight>> {
        let mut blocks = self.blocks.lock();
        (blocks.current, blocks.given) = (None, false);
        let next = blocks.ahead.pop_front()?;
        let units = self.share.units(BLOCK_BYTES) as usize;
        let room = blocks.room.as_mut()?;
        drop(room.split(units));
        Some(next)
    }

    fn reclaim(&self) {
        let mut blocks = self.blocks.lock();
        if blocks.used.elapsed() < STALLED {
            return;
        }
        blocks.ahead.clear();
        if blocks.given {
            let units = self.share.units(BLOCK_BYTES) as usize;
            if let Some(room) = &mut blocks.room
                && let Some(rest) = room.units().checked_sub(units)
            {
                drop(room.split(rest));
            }
        } else {
            blocks.current = None;
            blocks.room = None;
        }
    }
}

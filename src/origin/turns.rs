//! Whose turn it is to read a file of a bundle.
//!
//! A bundle is asked for long before its last file is read, and others may have asked for one of its
//! files by then. So an origin begins no file of a bundle without its turn, and gives the turn along with
//! the bytes: it ends once the bytes lie where the next one who asks will find them.

use super::once::Held;
use copperfs_overlay::BundleItem;
use futures_util::stream::BoxStream;
use std::sync::Arc;

/// Says whether a file of a bundle is still to be read for it.
pub trait Turns: Send + Sync + 'static {
    /// The turn to read file `index` of the request; `None`: another has read it, or does so now, and
    /// the bundle leaves it out. Asked right before the file is read.
    fn begin(&self, index: usize) -> Option<Turn>;
}

/// The right to read something, until it is dropped.
#[derive(Debug, Default)]
pub struct Turn {
    _held: Option<Held>,
}

impl From<Held> for Turn {
    fn from(held: Held) -> Self {
        Self { _held: Some(held) }
    }
}

/// For one who is the only asker: every turn is free.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Turns for Alone {
    fn begin(&self, _index: usize) -> Option<Turn> {
        Some(Turn::default())
    }
}

/// Files of a bundle as they come, each with the turn in which it was read. What is of another version
/// than wanted, cannot be read, or is not the bundle's to read is left out.
pub type TurnStream = BoxStream<'static, (BundleItem, Turn)>;

/// Turns of a request out of which some files were taken: `places` says where each of the rest was.
pub(super) struct Renumbered {
    pub(super) places: Arc<[usize]>,
    pub(super) turns: Arc<dyn Turns>,
}

impl Turns for Renumbered {
    fn begin(&self, index: usize) -> Option<Turn> {
        self.turns.begin(*self.places.get(index)?)
    }
}

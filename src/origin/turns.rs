//! Turns to read the files of a bundle.
//!
//! A bundle is requested long before its last file is read, and other requests may have asked for some of
//! its files by then. So an origin takes a turn before it reads a file of a bundle, and returns the turn
//! with the bytes. The turn ends when the bytes are cached where the next request looks for them.

use super::under_way::Held;
use copperfs_overlay::BundleItem;
use futures_util::stream::BoxStream;
use std::sync::Arc;

/// Decides whether a bundle still has to read its files.
pub trait Turns: Send + Sync + 'static {
    /// Takes the turn to read file `index` of the request. Returns `None` if another request has read the
    /// file or reads it now; the bundle then leaves it out. Called right before the file is read.
    fn begin(&self, index: usize) -> Option<Turn>;
}

/// The right to read a file, until it is dropped.
#[derive(Debug, Default)]
pub struct Turn {
    _held: Option<Held>,
}

impl From<Held> for Turn {
    fn from(held: Held) -> Self {
        Self { _held: Some(held) }
    }
}

/// For a request that competes with no others: every turn is free.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Turns for Alone {
    fn begin(&self, _index: usize) -> Option<Turn> {
        Some(Turn::default())
    }
}

/// The files of a bundle in the order in which their reads complete, each with its turn. Files of another
/// version, files that cannot be read, and files whose turn is not free are left out.
pub type TurnStream = BoxStream<'static, (BundleItem, Turn)>;

/// The turns of a request without some of its files: `places` has the original index of each remaining
/// file.
pub(super) struct Renumbered {
    pub(super) places: Arc<[usize]>,
    pub(super) turns: Arc<dyn Turns>,
}

impl Turns for Renumbered {
    fn begin(&self, index: usize) -> Option<Turn> {
        self.turns.begin(*self.places.get(index)?)
    }
}

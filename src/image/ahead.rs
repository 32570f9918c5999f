//! Which files behind a data file its reader wants next.
//!
//! The kernel reads a data file ahead of programs, but only a little: it does not know that each byte comes from far away.
//! The files that a profile names come first in the data file, in its order, and a program that reads them is probably the
//! recorded one. So a node requests the next ones ahead.

use super::extents::{Damaged, Extent, Extents};
use copperfs_overlay::BLOCK_BYTES;

/// The bytes of the data file that are requested ahead of a reader …
const AHEAD_BYTES: u64 = 8 << 20;
/// … as soon as fewer than these are on their way.
const AHEAD_BYTES_MIN: u64 = 6 << 20;

/// The readers of one data file.
#[derive(Debug, Default)]
pub struct Ahead {
    /// The first file that was not requested ahead.
    next: usize,
}

/// A file that is wanted next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Next {
    /// The file.
    pub file: Extent,
    /// The number of its bytes that are wanted, from its beginning.
    pub bytes: u64,
}

impl Ahead {
    /// Called when the data file is read up to the position `end`, which is in file number `last`. Returns the files to
    /// request now, in the order of the data file.
    ///
    /// # Errors
    /// The table is damaged.
    pub fn on_read<B: AsRef<[u8]>>(
        &mut self,
        end: u64,
        last: usize,
        extents: &Extents<B>,
    ) -> Result<Vec<Next>, Damaged> {
        let is_far = |next, bytes| extents.position(next) >= end.saturating_add(bytes);
        if self.next > last && is_far(self.next, AHEAD_BYTES_MIN) {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        // Files that a reader has passed by are not wanted.
        let mut at = self.next.max(last + 1);
        while at < extents.count() && !is_far(at, AHEAD_BYTES) {
            let file = extents.file(at)?;
            let Some(bytes) = wanted(&file) else {
                break;
            };
            found.push(Next { file, bytes });
            at += 1;
        }
        self.next = at;
        Ok(found)
    }
}

/// The bytes of a file that the recorded program has read, as far as they are requested ahead. It may have read little of a
/// large library.
fn wanted(file: &Extent) -> Option<u64> {
    let most = match file.state.wanted {
        0 => return None,
        wanted if wanted >= file.size / 2 => AHEAD_BYTES,
        _ => BLOCK_BYTES,
    };
    Some(file.size.min(most))
}

//! Gives the pages of data files back to the kernel.
//!
//! The kernel copies what it reads of small files from a data file into pages of the image's files, and from then on it needs
//! only these. Without this, it would hold everything twice until memory is short. Pages that it has read ahead, for files
//! that no program has opened yet, go too: the daemon has their bytes.

use super::Natives;
use std::time::Duration;

/// A program that starts does not pause for so long between two reads.
const QUIET: Duration = Duration::from_secs(3);

/// Fewer bytes are left to the kernel.
const SPENT_BYTES_MIN: u64 = 16 << 20;

/// Whenever the data files were not read for [`QUIET`], has the kernel drop the pages of those of which it has read much.
/// Ends with the daemon.
pub(super) async fn drop_spent_pages(natives: Natives) {
    let files = &natives.0.files;
    while !natives.is_ending() {
        files.until_read().await;
        let mut before = files.read_bytes();
        loop {
            tokio::time::sleep(QUIET).await;
            let now = files.read_bytes();
            if now == before {
                break;
            }
            before = now;
        }
        for ino in files.take_spent(SPENT_BYTES_MIN) {
            tracing::debug!(ino = ino.0, "the kernel drops the pages of a data file");
            for notifier in natives.notifiers() {
                notifier.invalidate_inode(ino).await;
            }
        }
    }
}

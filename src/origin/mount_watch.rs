//! Notices changes of the mount table without a call into any filesystem.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io;

/// An open mount table of this process.
pub(super) struct MountWatch(File);

impl MountWatch {
    pub(super) fn open() -> io::Result<Self> {
        File::open("/proc/self/mountinfo").map(Self)
    }

    /// Whether anything was mounted or unmounted since the last call, or since the watch was opened.
    pub(super) fn has_changed(&self) -> bool {
        // The kernel reports a change once for each open file, as an exceptional condition.
        let mut changed = [PollFd::new(&self.0, PollFlags::PRI)];
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // If the poll fails, assume a change.
        poll(&mut changed, Some(&timeout)) != Ok(0)
    }
}

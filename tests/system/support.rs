//! What the themes share: running programs within a bound, mounts and trees that clean up after
//! themselves, counters, trees of files, and the kernel's caches.

pub mod command;
pub mod datasets;
pub mod fixture;
pub mod fronts;
pub mod hosts;
pub mod images;
pub mod kernel;
pub mod leash;
pub mod mount;
pub mod slurm;
pub mod stats;
pub mod stores;
pub mod takeover;
pub mod tree;

pub use command::{Background, Finished, check, python, run, sh};
pub use fixture::Scratch;
pub use mount::{Mount, copperfs, program_for_all};
pub use stats::Stats;
pub use tree::Tree;

pub(crate) use crate::skipping::is_root;
pub(crate) use crate::waiting::{BUSY, eventually};

use std::time::Duration;

/// Gives up a test that this machine cannot run; loudly, and in strict mode as a failure.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        $crate::skipping::skipped(&format!($($reason)*));
        return;
    }};
}

/// Runs `work` on another thread and fails if it is not done within `limit`, which is meant for an idle
/// machine like that of [`eventually`]. For work that may hang in the kernel.
pub fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let worker = std::thread::spawn(move || drop(sender.send(work())));
    match receiver.recv_timeout(limit * BUSY) {
        Ok(value) => value,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("not done after {limit:?}"),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => match worker.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the worker sends before it ends"),
        },
    }
}

/// The errno of a failed operation.
#[track_caller]
pub fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> rustix::io::Errno {
    let error = result.expect_err("an error");
    rustix::io::Errno::from_io_error(&error).unwrap_or_else(|| panic!("no errno: {error}"))
}

//! The lanes of a node: threads that carry items of datasets between nodes.
//!
//! Each has an async runtime of its own, and with it connections and sockets ([`copperfs_overlay::OverlayConfig`]). A READ of
//! a dataset's file that has to wait for another node does so on a lane, which depends on the file, so that all work for it
//! is done by one thread. Nothing moves from one lane to another. Everything else that a node does is on the daemon's
//! runtime.

use std::io;
use std::thread;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// The names of the threads begin with this.
const THREADS: &str = "copperfs-lane";

/// See the module. The threads end when it is dropped.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    handles: Vec<Handle>,
    /// A lane ends when its sender is dropped.
    ends: Vec<oneshot::Sender<()>>,
}

impl Lanes {
    /// Starts `count` lanes.
    ///
    /// # Errors
    /// There are no threads or descriptors left.
    pub(super) fn start(count: usize) -> io::Result<Self> {
        let mut lanes = Self::default();
        for number in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (end, ended) = oneshot::channel::<()>();
            lanes.handles.push(runtime.handle().clone());
            lanes.ends.push(end);
            thread::Builder::new()
                .name(format!("{THREADS}{number}"))
                .spawn(move || {
                    drop(runtime.block_on(ended));
                    // A call of storage may hang in one of its threads.
                    runtime.shutdown_background();
                })?;
        }
        Ok(lanes)
    }

    /// Their runtimes.
    pub(super) fn handles(&self) -> &[Handle] {
        &self.handles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_lane_is_one_thread_until_the_end() {
        let lanes = Lanes::start(3).unwrap();
        let name = || thread::current().name().map(str::to_owned);
        for (number, lane) in lanes.handles().iter().enumerate() {
            for _ in 0..2 {
                let met = lane.spawn(async move { name() }).await.unwrap();
                assert_eq!(met, Some(format!("{THREADS}{number}")));
            }
        }
        let left = lanes.handles()[0].clone();
        let hanging = left.spawn(std::future::pending::<()>());
        drop(lanes);
        assert!(hanging.await.unwrap_err().is_cancelled());
    }
}

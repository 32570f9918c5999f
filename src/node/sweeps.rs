//! Shares one sweep of all nodes among the callers that wait for it.
//!
//! Any user of a mount may ask for the cluster's counters, and each sweep is a message to every node. So
//! this node runs one sweep at a time, and for users who do not own the mount at most one per [`KEPT`].

use copperfs_fuse::StatsAge;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long a sweep is reused for users who do not own the mount.
pub(super) const KEPT: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Sweeps<T> {
    /// The latest sweep. The lock is held during a sweep.
    last: Mutex<Option<Swept<T>>>,
}

#[derive(Debug)]
struct Swept<T> {
    begun: Instant,
    ended: Instant,
    value: T,
}

impl<T: Clone> Sweeps<T> {
    pub(super) fn new() -> Self {
        Self {
            last: Mutex::new(None),
        }
    }

    /// Returns the answer of `sweep`, or of another sweep that is recent enough: [`KEPT`] at most, or begun after the
    /// call, so that it includes the effects of the owner's earlier actions. May be cancelled; then the
    /// next caller starts its own.
    pub(super) async fn get(&self, wanted: StatsAge, sweep: impl Future<Output = T>) -> T {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        let serves = |swept: &&Swept<T>| match wanted {
            StatsAge::New => swept.begun >= asked,
            // It also serves callers that waited for it, even if it took longer than KEPT.
            StatsAge::Recent => swept.ended + KEPT > asked,
        };
        if let Some(swept) = last.as_ref().filter(serves) {
            return swept.value.clone();
        }
        let begun = Instant::now();
        let value = sweep.await;
        *last = Some(Swept {
            begun,
            ended: Instant::now(),
            value: value.clone(),
        });
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Default)]
    struct Cluster(AtomicU32);

    impl Cluster {
        async fn sweep(&self) -> u32 {
            let number = self.0.fetch_add(1, Ordering::Relaxed) + 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
            number
        }
    }

    async fn ask(sweeps: &Sweeps<u32>, cluster: &Cluster, wanted: StatsAge, callers: usize) {
        let asking = (0..callers).map(|_| sweeps.get(wanted, cluster.sweep()));
        drop(join_all(asking).await);
    }

    /// Users who do not own the mount cause one sweep per second, however many they are.
    #[tokio::test(start_paused = true)]
    async fn other_users_share_one_sweep_a_second() {
        let (sweeps, cluster) = (Sweeps::new(), Cluster::default());
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) {
            ask(&sweeps, &cluster, StatsAge::Recent, 100).await;
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let swept = cluster.0.load(Ordering::Relaxed);
        assert!((5..=10).contains(&swept), "{swept} sweeps in 10 s");
    }

    /// The owner's sweep begins after the call, and concurrent programs of the owner share two sweeps.
    #[tokio::test(start_paused = true)]
    async fn the_owner_gets_a_sweep_that_began_after_the_question() {
        let (sweeps, cluster) = (Sweeps::new(), Cluster::default());
        assert_eq!(sweeps.get(StatsAge::New, cluster.sweep()).await, 1);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(sweeps.get(StatsAge::Recent, cluster.sweep()).await, 1);
        assert_eq!(sweeps.get(StatsAge::New, cluster.sweep()).await, 2);
        let late = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            ask(&sweeps, &cluster, StatsAge::New, 100).await;
        };
        tokio::time::advance(Duration::from_millis(1)).await;
        let early = ask(&sweeps, &cluster, StatsAge::New, 100);
        tokio::join!(early, late);
        assert_eq!(cluster.0.load(Ordering::Relaxed), 4, "one for each half");
    }

    /// If a caller is cancelled during its sweep, the next caller starts its own.
    #[tokio::test(start_paused = true)]
    async fn a_sweep_that_is_given_up_is_nobodys_answer() {
        let (sweeps, cluster) = (Sweeps::new(), Cluster::default());
        let short = Duration::from_millis(10);
        let given_up = tokio::time::timeout(short, sweeps.get(StatsAge::Recent, cluster.sweep()));
        assert!(given_up.await.is_err());
        assert_eq!(sweeps.get(StatsAge::Recent, cluster.sweep()).await, 2);
    }
}

//! The delays of a well-behaved child while another peer misbehaves.

use crate::support::{TestTree, path, within};
use copperfs_overlay::{Files, Upstream};
use std::future::Future;
use std::time::{Duration, Instant};

/// How long requests took.
#[derive(Debug)]
pub(super) struct Noticed {
    pub(super) requests: usize,
    pub(super) median: Duration,
    pub(super) longest: Duration,
}

impl Noticed {
    fn of(mut took: Vec<Duration>) -> Self {
        took.sort_unstable();
        Self {
            requests: took.len(),
            median: took[took.len() / 2],
            longest: took[took.len() - 1],
        }
    }

    /// Fails where the typical request has become much slower: by a factor that a loaded machine does
    /// not reach by itself, and not within what one scheduling delay costs.
    #[track_caller]
    pub(super) fn is_no_worse_than(&self, quiet: &Self) {
        let allowed = quiet.median * 20 + Duration::from_millis(30);
        assert!(self.median <= allowed, "{self:?}, before: {quiet:?}");
        assert!(self.longest < Duration::from_secs(5), "{self:?}");
    }
}

/// Asks `count` times, each of which must be answered.
pub(super) async fn quietly(child: &Upstream, count: usize) -> Noticed {
    let mut took = Vec::with_capacity(count);
    for _ in 0..count {
        took.push(once(child).await);
    }
    Noticed::of(took)
}

/// Asks while `trouble` is made, and not less than once.
pub(super) async fn during(child: &Upstream, trouble: impl Future<Output = ()>) -> Noticed {
    let mut took = Vec::new();
    tokio::pin!(trouble);
    loop {
        took.push(once(child).await);
        tokio::select! {
            biased;
            () = &mut trouble => return Noticed::of(took),
            () = tokio::time::sleep(Duration::from_millis(2)) => {}
        }
    }
}

async fn once(child: &Upstream) -> Duration {
    let start = Instant::now();
    let asked = within(15, child.list_page(path("dir"), None, 3)).await;
    assert_eq!(asked.unwrap().entries.len(), 3);
    start.elapsed()
}

/// Resident memory of this process in bytes.
pub(super) fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

/// A root with room for many children, and one that behaves.
pub(super) async fn root_and_child(members: usize, child: usize) -> (TestTree, Upstream) {
    let mut tree = TestTree::plan(members, members, Duration::from_secs(10));
    tree.start_node(0);
    tree.start_node(child);
    tree.connected(child).await;
    let stub = tree.parent(child);
    (tree, stub)
}

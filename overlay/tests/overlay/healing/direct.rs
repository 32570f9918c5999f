//! Roots that are asked past the tree.

use super::cable::Cabled;
use crate::support::{drain, kind, path, whole, within};
use copperfs_overlay::{FailureKind, Files, HomesBounds, RangeRequest, StatRequest, Upstream};

const MIB: u64 = 1 << 20;

fn direct(cabled: &Cabled, rank: usize) -> Upstream {
    cabled.tree.parent(rank).direct()
}

async fn read(files: &Upstream, name: &str, size: u64) {
    let parts = within(10, files.read(whole(name, size))).await.unwrap();
    assert_eq!(within(10, drain(parts)).await, (size, Ok(())));
}

/// Requests that each node has answered, and those that node `rank` has sent past the tree.
fn requests(cabled: &Cabled, rank: usize) -> (Vec<u64>, u64) {
    let answered = |node: &copperfs_overlay::Overlay| node.counters().downstream_requests.get();
    let nodes = cabled.tree.nodes.iter().flatten();
    let asked = &cabled.tree.node(rank).counters().roots_asked;
    (nodes.map(answered).collect(), asked.get())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_come_past_the_nodes_between() {
    let cabled = Cabled::start(4, 1, vec![0]).await;
    let files = direct(&cabled, 3);
    read(&files, "file", 3 * MIB + 17).await;
    let request = whole("file", 3 * MIB);
    let range = RangeRequest {
        path: request.path,
        version: request.version,
        size: request.size,
        offset: MIB,
        len: 4096,
        content: None,
    };
    let found = within(10, files.read_range(range)).await.unwrap();
    assert_eq!(found.bytes, crate::support::content(MIB, 4096));
    assert_eq!(requests(&cabled, 3), (vec![2, 0, 0, 0], 2));
    // Nodes on the way keep what they hear of names, and spare the root.
    let stat = StatRequest {
        parent: path(""),
        names: vec!["file".into()],
        denied: None,
    };
    within(10, files.stat(stat)).await.unwrap();
    assert_eq!(requests(&cabled, 3), (vec![3, 1, 1, 0], 2));
    // The parent of node 1 is the root: it needs no second connection.
    read(&direct(&cabled, 1), "file", MIB).await;
    assert_eq!(requests(&cabled, 1), (vec![4, 1, 1, 0], 0));
    assert_eq!(cabled.tree.node(1).homes().connected(), 0);
    // A failure of the root is an answer, and is not asked for again.
    let absent = within(10, files.read(whole("absent", MIB))).await;
    assert_eq!(kind(absent), FailureKind::NotFound);
    assert_eq!(requests(&cabled, 3), (vec![5, 1, 1, 0], 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_connection_to_spare_the_tree_is_asked() {
    let mut cabled = Cabled::plan(3, 1, vec![0]);
    for rank in 0..3 {
        cabled.start_node(rank, |config| {
            config.homes = HomesBounds {
                connections_max: 0,
                ..config.homes
            };
        });
    }
    cabled.tree.connected(2).await;
    read(&direct(&cabled, 2), "file", MIB).await;
    assert_eq!(requests(&cabled, 2), (vec![1, 1, 0], 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_root_that_only_the_tree_reaches_is_asked_by_way_of_it() {
    let cabled = Cabled::start(3, 1, vec![0]).await;
    // As behind a firewall.
    cabled.cables[2].avoid(cabled.tree.address(0));
    let files = direct(&cabled, 2);
    read(&files, "file", MIB).await;
    assert_eq!(requests(&cabled, 2), (vec![1, 1, 0], 0));
    read(&files, "file", MIB).await;
    assert_eq!(requests(&cabled, 2), (vec![2, 2, 0], 0));
}

/// A root falls silent in the middle of an answer. The read goes on from the other root.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_survives_the_silent_death_of_its_root() {
    let cabled = Cabled::start(5, 1, vec![0, 1]).await;
    let files = direct(&cabled, 4);
    let size = 64 * MIB;
    let placement = cabled.tree.node(4).membership().placement();
    let mut names = (0..).map(|number| format!("file-{number}"));
    let file = names.find(|name| placement.tree(&path(name), 0) == Some(0));
    let file = file.unwrap();
    // Much more than the windows let through unread.
    let parts = within(10, files.read(whole(&file, size))).await.unwrap();
    assert_eq!(requests(&cabled, 4).1, 1, "the root is asked itself");
    cabled.cables[0].pull();
    assert_eq!(within(20, drain(parts)).await, (size, Ok(())));
    assert!(requests(&cabled, 4).0[1] > 0, "the other root has answered");
    // From then on no read waits for the dead root.
    within(2, read(&files, &file, MIB)).await;
}

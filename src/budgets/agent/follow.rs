//! The child's side: finds the tree with a live allocator, reports there, and follows its decisions.

use super::{Role, Shared};
use crate::model::{DecisionFrame, Heartbeat, Serial, decode};
use copperfs_overlay::Steering;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The longest time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// How long an early report waits for further changes.
const REPORT_DELAY: Duration = Duration::from_millis(100);
/// The time limit for opening a stream. A dead ancestor is detected within it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an allocator counts as reachable without a heartbeat: four heartbeats.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long each tree is tried: ancestors may be about to change to it themselves.
pub(super) const TREE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the first tree is tried when the node starts: the nodes of a launch do not start all at once.
pub(super) const FIRST_TREE_TIMEOUT: Duration = Duration::from_secs(5);
/// The delay between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(250);
/// How often a node that does not use the first tree tries the trees before its own.
const RETURN_INTERVAL: Duration = Duration::from_secs(2);

/// A stream to a node that receives an allocator's heartbeats.
pub(super) struct Link {
    tree: usize,
    steering: Steering,
    first: DecisionFrame,
}

/// The result of a search.
pub(super) enum Turn {
    /// An allocator is reachable.
    Follow(Link),
    /// This node is to be the allocator, as the root of this tree.
    Allocate(usize),
}

/// Finds the first tree that has a live allocator or whose root this node is. Does not return while no
/// other node can be reached.
pub(super) async fn search(shared: &Shared, mut tree_timeout: Duration) -> Turn {
    loop {
        for tree in 0..shared.neighbours.trees() {
            shared.set_role(Role::Searching(tree));
            if shared.neighbours.is_root_of(tree) {
                return Turn::Allocate(tree);
            }
            let trying = async {
                loop {
                    if let Some(link) = connect(shared, tree).await {
                        return link;
                    }
                    sleep(RETRY_DELAY).await;
                }
            };
            if let Ok(link) = timeout(tree_timeout, trying).await {
                return Turn::Follow(link);
            }
            tree_timeout = TREE_TIMEOUT;
        }
    }
}

/// Opens a stream in `tree`, and waits for a heartbeat on it.
async fn connect(shared: &Shared, tree: usize) -> Option<Link> {
    let connecting = timeout(CONNECT_TIMEOUT, shared.neighbours.steer(tree));
    let mut steering = match connecting.await {
        Ok(Ok(steering)) => steering,
        Ok(Err(failure)) => {
            tracing::debug!(tree, %failure, "no stream to the allocator");
            return None;
        }
        Err(_elapsed) => return None,
    };
    // A node without an allocator accepts the stream and sends nothing.
    let frame = timeout(HEARTBEAT_TIMEOUT, steering.down.recv())
        .await
        .ok()??;
    Some(Link {
        tree,
        steering,
        first: decode_frame(tree, &frame)?,
    })
}

fn decode_frame(tree: usize, frame: &[u8]) -> Option<DecisionFrame> {
    let decoded = decode(frame).inspect_err(|error| {
        tracing::warn!(tree, %error, "what the node above says cannot be read");
    });
    decoded.ok()
}

/// Waits until an allocator can be reached in a tree before `tree`. May be cancelled.
pub(super) async fn earlier_tree(shared: &Shared, tree: usize) -> Link {
    loop {
        sleep(RETURN_INTERVAL).await;
        for earlier in 0..tree {
            if shared.neighbours.is_root_of(earlier) {
                continue;
            }
            if let Some(link) = connect(shared, earlier).await {
                return link;
            }
        }
    }
}

/// Reports and follows on `link` until it is lost. Returns a link in an earlier tree if there is one.
pub(super) async fn follow(shared: &Shared, link: Link) -> Option<Link> {
    let Link {
        tree,
        mut steering,
        first,
    } = link;
    // The decision that the node above holds.
    let mut above = Serial::default();
    let mut heartbeat = Heartbeat::default();
    let mut heard = Instant::now();
    let mut received = Some(first);
    // The allocator belongs to the first tree with a live root, so look for earlier trees all the
    // time.
    let returning = earlier_tree(shared, tree);
    tokio::pin!(returning);
    let mut due = Instant::now();
    loop {
        if let Some(frame) = received.take() {
            above = frame.serial;
            if let Some(decision) = frame.decision {
                shared.adopt(&decision);
            }
            // Only a new heartbeat proves that the allocator is alive.
            if frame.heartbeat != heartbeat {
                heartbeat = frame.heartbeat;
                heard = Instant::now();
                shared.status.send_modify(|status| {
                    status.role = Role::Following(tree);
                    status.heartbeat = heartbeat;
                });
            }
        }
        tokio::select! {
            frame = steering.down.recv() => received = Some(decode_frame(tree, &frame?)?),
            () = sleep_until(due) => {
                steering.up.send(shared.report_frame(above)).ok()?;
                due = Instant::now() + REPORT_INTERVAL;
            }
            // Changes within a short time share one report.
            () = shared.report_soon.notified() => due = due.min(Instant::now() + REPORT_DELAY),
            () = sleep_until(heard + HEARTBEAT_TIMEOUT) => {
                tracing::info!(tree, "no sign of life of the allocator");
                return None;
            }
            better = &mut returning, if tree > 0 => return Some(better),
        }
    }
}

//! The child's side: connects to a live allocator in a tree, reports there, and follows its decisions.

use super::{Role, Shared, Status};
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
/// How often a node that does not use the first tree tries the trees before its own.
const RETURN_INTERVAL: Duration = Duration::from_secs(2);

/// A stream to a node that receives an allocator's heartbeats.
pub(super) struct Link {
    tree: usize,
    steering: Steering,
    first: DecisionFrame,
}

/// Opens a stream in `tree`, and waits for a heartbeat on it.
pub(super) async fn connect(shared: &Shared, tree: usize) -> Option<Link> {
    let connecting = timeout(CONNECT_TIMEOUT, shared.neighbours.steer(tree));
    let connected = connecting.await.ok()?.inspect_err(|failure| {
        tracing::debug!(tree, %failure, "no stream to the allocator");
    });
    let mut steering = connected.ok()?;
    // A node without an allocator accepts the stream and sends nothing.
    let frame = timeout(HEARTBEAT_TIMEOUT, steering.down.recv());
    let first = decode_frame(tree, &frame.await.ok()??)?;
    Some(Link {
        tree,
        steering,
        first,
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
    let (tree, mut steering) = (link.tree, link.steering);
    // The decision that the node above holds.
    let mut above = Serial::default();
    let mut heartbeat = Heartbeat::default();
    let mut heard = Instant::now();
    let mut received = Some(link.first);
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
                let role = Role::Following;
                shared.status.send_replace(Status {
                    tree,
                    role,
                    heartbeat,
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

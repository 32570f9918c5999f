//! The child's side: finds the tree in which an allocator lives, reports there, and follows what comes.

use super::{Inner, Station};
use crate::model::{Beat, Down, Serial};
use copperfs_overlay::Steering;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// So often a node reports at least.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// What is to be said soon waits so long for more of its kind.
const REPORT_GAP: Duration = Duration::from_millis(100);
/// How long an ancestor may take to welcome a stream. One that is dead is known to be within the time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// After so long without a sign of life an allocator cannot be reached this way: four that did not come.
pub(super) const SILENCE: Duration = Duration::from_secs(2);
/// How long a tree is tried before the next one: those above may be about to turn to it themselves.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// As [`PATIENCE`], of the first tree when the node starts: nodes of a launch do not start all at once.
pub(super) const PATIENCE_FIRST: Duration = Duration::from_secs(5);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(250);
/// So often a node that is not in the first tree looks whether that, or one before its own, is back.
const RETURN_EVERY: Duration = Duration::from_secs(2);

/// A stream on which a sign of life has come.
pub(super) struct Link {
    tree: usize,
    steering: Steering,
    first: Down,
}

/// What a search comes to.
pub(super) enum Found {
    /// An allocator lives there.
    Link(Link),
    /// It is this node's turn, as the root of this tree.
    Own(usize),
}

/// The first tree in which an allocator lives, or whose root this node is. Without end where nobody can
/// be reached.
pub(super) async fn search(inner: &Inner, mut patience: Duration) -> Found {
    loop {
        for tree in 0..inner.neighbours.trees() {
            inner.stand(Station::Searching(tree));
            if inner.neighbours.is_root_of(tree) {
                return Found::Own(tree);
            }
            let trying = async {
                loop {
                    if let Some(link) = reach(inner, tree).await {
                        return link;
                    }
                    sleep(PAUSE).await;
                }
            };
            if let Ok(link) = timeout(patience, trying).await {
                return Found::Link(link);
            }
            patience = PATIENCE;
        }
    }
}

/// A stream in `tree`, once a sign of life has come on it.
async fn reach(inner: &Inner, tree: usize) -> Option<Link> {
    let connecting = timeout(CONNECT_TIMEOUT, inner.neighbours.steer(tree));
    let mut steering = match connecting.await {
        Ok(Ok(steering)) => steering,
        Ok(Err(failure)) => {
            tracing::debug!(tree, %failure, "no stream to the allocator");
            return None;
        }
        Err(_elapsed) => return None,
    };
    let frame = timeout(SILENCE, steering.down.recv()).await.ok()??;
    let first = Down::decode(&frame);
    let first = first.inspect_err(|error| {
        tracing::warn!(tree, %error, "what the node above says cannot be read");
    });
    Some(Link {
        tree,
        steering,
        first: first.ok()?,
    })
}

/// Waits until an allocator can be reached in a tree before `tree`. May be cancelled.
pub(super) async fn return_to(inner: &Inner, tree: usize) -> Link {
    loop {
        sleep(RETURN_EVERY).await;
        for lower in 0..tree {
            if inner.neighbours.is_root_of(lower) {
                continue;
            }
            if let Some(link) = reach(inner, lower).await {
                return link;
            }
        }
    }
}

/// Reports and follows on `link` until it is lost; gives a better one if there is one.
pub(super) async fn follow(inner: &Inner, link: Link) -> Option<Link> {
    let Link {
        tree,
        mut steering,
        first,
    } = link;
    let mut above = Serial::default();
    let mut beat = Beat::default();
    let mut heard = Instant::now();
    let hear = |down: Down, above: &mut Serial, beat: &mut Beat, heard: &mut Instant| {
        *above = down.holds;
        if let Some(decision) = down.decision {
            inner.adopt(*decision);
        }
        if down.beat != *beat {
            *beat = down.beat;
            *heard = Instant::now();
            inner.pulse.send_modify(|pulse| {
                pulse.station = Station::Below(tree);
                pulse.beat = down.beat;
            });
        }
    };
    hear(first, &mut above, &mut beat, &mut heard);
    let returning = return_to(inner, tree);
    tokio::pin!(returning);
    let mut due = Instant::now();
    loop {
        tokio::select! {
            frame = steering.down.recv() => match frame.map(|frame| Down::decode(&frame)) {
                Some(Ok(down)) => hear(down, &mut above, &mut beat, &mut heard),
                Some(Err(error)) => {
                    tracing::warn!(tree, %error, "what the node above says cannot be read");
                    return None;
                }
                None => return None,
            },
            () = sleep_until(due) => {
                if steering.up.send(inner.up_frame(above)).is_err() {
                    return None;
                }
                due = Instant::now() + REPORT_EVERY;
            }
            () = inner.soon.notified() => due = due.min(Instant::now() + REPORT_GAP),
            () = sleep_until(heard + SILENCE) => {
                tracing::info!(tree, "no sign of life of the allocator");
                return None;
            }
            better = &mut returning, if tree > 0 => return Some(better),
        }
    }
}

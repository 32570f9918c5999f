//! The parent's side of a stream: receives a child's reports, and sends it decisions and heartbeats.

use super::{Role, Shared};
use crate::model::{ReportFrame, Serial, decode};
use copperfs_overlay::{Failure, FailureKind, LatestReceiver, LatestSender};

/// Serves `child` until it is gone, or until this node uses another tree.
///
/// # Errors
/// `Unavailable` if this node uses another tree than the child; `Corrupt` if a frame cannot be decoded.
pub(super) async fn serve(
    shared: &Shared,
    child: &str,
    tree: usize,
    mut up: LatestReceiver,
    down: LatestSender,
) -> Result<(), Failure> {
    let mut status = shared.status.subscribe();
    let mut decision = shared.decision.subscribe();
    // The decision that the child holds.
    let mut held = Serial::default();
    let mut sent = None;
    loop {
        let current = *status.borrow_and_update();
        if current.role.tree() != tree {
            let (name, tree) = (&shared.config.name, current.role.tree());
            let why = format!("{name} looks for the allocator in tree {tree}");
            return Err(Failure::new(FailureKind::Unavailable, why));
        }
        let frame = (current.heartbeat, decision.borrow_and_update().serial, held);
        // While this node searches, its last heartbeat proves nothing, so the child must not receive it.
        let alive = !matches!(current.role, Role::Searching(_));
        if alive && sent != Some(frame) {
            sent = Some(frame);
            if down.send(shared.decision_frame(held)).is_err() {
                return Ok(());
            }
        }
        tokio::select! {
            frame = up.recv() => {
                let Some(frame) = frame else { return Ok(()) };
                let frame: ReportFrame = decode(&frame).map_err(|error| {
                    let why = format!("the report of {child} cannot be read: {error}");
                    Failure::new(FailureKind::Corrupt, why)
                })?;
                // Decisions that the child holds are not sent to it again.
                held = frame.serial;
                shared.record(frame);
            }
            changed = status.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
            }
            changed = decision.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
            }
            () = down.ended() => return Ok(()),
        }
    }
}

//! The parent's side of a stream: hears a child's reports, tells it decisions and signs of life.

use super::{Inner, Station};
use crate::model::{Serial, Up};
use copperfs_overlay::{Failure, FailureKind, LatestReceiver, LatestSender};

/// Serves `child` until it is gone, or this node turns to another tree.
///
/// # Errors
/// This node looks for an allocator in another tree than the child; the child says what makes no sense.
pub(super) async fn serve(
    inner: &Inner,
    child: &str,
    tree: usize,
    mut up: LatestReceiver,
    down: LatestSender,
) -> Result<(), Failure> {
    let mut pulse = inner.pulse.subscribe();
    let mut decision = inner.decision.subscribe();
    let mut holds = Serial::default();
    let mut told = None;
    loop {
        let now = *pulse.borrow_and_update();
        if now.station.tree() != tree {
            return Err(elsewhere(inner, now.station));
        }
        let serial = decision.borrow_and_update().serial;
        // A sign of life is only one while this node hears the allocator itself.
        let alive = !matches!(now.station, Station::Searching(_));
        if alive && told != Some((now.beat, serial, holds)) {
            told = Some((now.beat, serial, holds));
            if down.send(inner.down_frame(holds)).is_err() {
                return Ok(());
            }
        }
        tokio::select! {
            frame = up.recv() => {
                let Some(frame) = frame else { return Ok(()) };
                let said = Up::decode(&frame).map_err(|error| {
                    let why = format!("the report of {child} cannot be read: {error}");
                    Failure::new(FailureKind::Corrupt, why)
                })?;
                holds = said.holds;
                inner.heard(said);
            }
            changed = pulse.changed() => {
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

fn elsewhere(inner: &Inner, station: Station) -> Failure {
    let name = &inner.config.name;
    let why = format!("{name} looks for the allocator in tree {}", station.tree());
    Failure::new(FailureKind::Unavailable, why)
}

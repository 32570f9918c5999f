//! The `warm` command, on the node that receives it: makes the plan while it is sent out, and reports the progress to the
//! client line by line (`docs/profiles.md`).

use super::planner::{Extent, PATHS_MAX, PlanError, Planner};
use super::walk::walk;
use crate::control::Conversation;
use crate::control::conversation::Lines;
use crate::profile::{ProfileError, parse_line, path_form};
use crate::read::ReadPath;
use copperfs_overlay::{ItemPath, Overlay, WarmProgress};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, interval};

/// Pages between the planner and the overlay.
const PAGES_QUEUED: usize = 4;
/// The time between two reports to the client.
const TICK: Duration = Duration::from_millis(250);

/// A line from the client that is no access of a profile.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "plan", rename_all = "snake_case")]
pub(crate) enum Order {
    /// Everything below a path.
    Below {
        /// The path.
        #[serde(with = "path_form")]
        path: ItemPath,
    },
    /// The last line.
    End,
}

/// Makes all nodes carry out the client's plan. It ends when the client disconnects.
///
/// # Errors
/// The client has disconnected.
pub(crate) async fn ask(
    overlay: &Overlay,
    read: &ReadPath,
    conversation: Conversation,
) -> io::Result<()> {
    let (out, pages) = mpsc::channel(PAGES_QUEUED);
    let extent = Arc::new(Extent::default());
    let planner = Planner::new(out, Arc::clone(&extent));
    let progress = watch::Sender::new(WarmProgress::default());
    let started = Instant::now();
    let Conversation { mut lines, answer } = conversation;
    let planning = async {
        match plan(&mut lines, read, planner).await {
            Ok(()) | Err(PlanError::Ended) => Ok(()),
            Err(error) => Err(error),
        }
    };
    let warming = async { Ok(overlay.warm_cluster(pages, &progress).await) };
    let work = async { tokio::try_join!(planning, warming) };
    tokio::pin!(work);
    let mut ticks = interval(TICK);
    let outcome = loop {
        tokio::select! {
            outcome = &mut work => break outcome,
            _now = ticks.tick() => {
                let now = progress.borrow().clone();
                let line = line("progress", &now, &extent, started);
                // This fails if the client has disconnected. Then the plan ends on all nodes.
                answer.send(&line).await?;
            }
        }
    };
    match outcome {
        Ok(((), outcome)) => {
            let mut line = line("done", &outcome.progress, &extent, started);
            line["nodes_warm"] = outcome.warmed.into();
            line["not_warmed"] = outcome.missing.into();
            answer.send(&line).await
        }
        Err(error) => {
            let line = json!({ "event": "error", "error": error.to_string() });
            answer.send(&line).await
        }
    }
}

fn line(event: &str, now: &WarmProgress, extent: &Extent, started: Instant) -> Value {
    let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
    let slowest = now.slowest.as_ref();
    json!({
        "event": event,
        "elapsed_ms": u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        "plan": {
            "items": load(&extent.items),
            "bytes": load(&extent.bytes),
            "complete": extent.complete.load(Ordering::Relaxed),
        },
        "nodes": now.nodes,
        "nodes_done": now.nodes_done,
        "items": now.items,
        "bytes": now.bytes,
        "vanished": now.vanished,
        "failed": now.failed,
        "reasons": now.reasons,
        "slowest": slowest.map(|node| json!({ "node": node.node, "items": node.items })),
    })
}

/// Makes the plan: first the client's accesses, then everything below the paths.
async fn plan(lines: &mut Lines, read: &ReadPath, mut planner: Planner) -> Result<(), PlanError> {
    let mut below = Vec::new();
    for number in 1.. {
        let Some(line) = lines.next().await? else {
            return Err(PlanError::Gone(io::ErrorKind::UnexpectedEof.into()));
        };
        if line.starts_with(b"{\"plan\"") {
            let wrong = |source| ProfileError::Line {
                line: number,
                source,
            };
            match serde_json::from_slice(&line).map_err(wrong)? {
                Order::End => break,
                Order::Below { path } if below.len() < PATHS_MAX => below.push(path),
                Order::Below { .. } => return Err(PlanError::TooManyPaths),
            }
        } else if let Some(access) = parse_line(&line, number)? {
            planner.add(access.into()).await?;
        }
    }
    for path in &below {
        walk(read, path, &mut planner).await?;
    }
    planner.finish().await
}

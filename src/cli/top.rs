//! `copperfs top`: shows the activity of each node, live.
//!
//! The main thread draws. Requests to the daemon, one at a time, and the keyboard have threads of their own.
//! The terminal is restored at the end, on an error, on a panic and on signals that end the program.

mod app;
mod rates;
mod screen;

use super::daemon::run;
use super::mounted::MountArg;
use super::stats::{ClusterReports, cluster_reports};
use crate::config::Machine;
use anyhow::{Context, ensure};
use app::{App, Step};
use copperfs_policy::amounts::parse_duration;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use rates::{Picture, Snapshot};
use screen::Situation;
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::sync::oneshot;

/// Keys that wait to be handled. When the queue is full, the keyboard is not read.
const EVENTS_QUEUED: usize = 64;
/// More frequent requests would load all nodes.
const INTERVAL_MIN: Duration = Duration::from_millis(200);

/// What to show.
#[derive(Debug, clap::Args)]
pub struct TopArgs {
    #[command(flatten)]
    mount: MountArg,
    /// How often the nodes are asked, at least 200ms
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    interval: Duration,
}

fn interval(text: &str) -> anyhow::Result<Duration> {
    let interval = parse_duration(text)?;
    ensure!(
        interval >= INTERVAL_MIN,
        "{text:?} is less than {INTERVAL_MIN:?}"
    );
    Ok(interval)
}

/// Shows the rates of all nodes until the user quits.
///
/// # Errors
/// Standard output is no terminal, it is no copperfs mount, or its daemon does not answer the first
/// request. Later failures are shown on the screen.
pub fn top(args: &TopArgs) -> anyhow::Result<()> {
    ensure!(
        std::io::stdout().is_terminal(),
        "top needs a terminal to draw on; for a program or a file: copperfs stats --all --json"
    );
    let mountpoint = args.mount.find()?;
    let shown = mountpoint.display().to_string();
    let first = cluster_reports(&mountpoint);
    let first = first.with_context(|| format!("cannot ask the daemon of {shown}"))?;
    let mut live = Live {
        began: Instant::now(),
        app: App::default(),
        last: None,
        picture: Picture::default(),
        situation: Situation {
            mountpoint: shown,
            interval: args.interval,
            trouble: None,
            colours: Machine::inspect().wants_colours(),
        },
    };
    live.look(Instant::now(), first);
    run(async {
        let signals = [
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ];
        // From here on, every path must restore the terminal.
        let mut terminal = ratatui::try_init().or_else(|error| {
            ratatui::try_restore()?;
            Err(error)
        })?;
        let shown = live.run(&mut terminal, &mountpoint, signals).await;
        let restored = ratatui::try_restore().context("cannot give the terminal back");
        shown.and(restored)
    })
}

/// Starts a thread that reads the keyboard. It runs until the receiver or the terminal is gone.
fn keyboard() -> Receiver<Event> {
    let (sender, events) = channel(EVENTS_QUEUED);
    drop(std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    }));
    events
}

/// Asks all nodes after a pause, on a thread of its own: a request in progress ends with the process.
async fn ask_after(pause: Duration, mountpoint: &Path) -> anyhow::Result<ClusterReports> {
    tokio::time::sleep(pause).await;
    let (sender, reports) = oneshot::channel();
    let mountpoint = mountpoint.to_owned();
    drop(std::thread::spawn(move || {
        let _receiver_gone = sender.send(cluster_reports(&mountpoint));
    }));
    reports.await?
}

/// The displayed state, and the reports that it is computed from.
struct Live {
    began: Instant,
    app: App,
    last: Option<Snapshot>,
    picture: Picture,
    situation: Situation,
}

impl Live {
    /// Updates the state from the reports received at `at`.
    fn look(&mut self, at: Instant, reports: ClusterReports) {
        let now = Snapshot {
            at: at.saturating_duration_since(self.began),
            reports,
        };
        match rates::picture(self.last.as_ref(), &now) {
            Ok(picture) => {
                self.picture = picture;
                self.situation.trouble = None;
                self.last = Some(now);
            }
            Err(error) => self.situation.trouble = Some(error.to_string()),
        }
    }

    /// Sends requests, waits and draws until the user quits or a signal arrives. At most one request is in progress.
    async fn run(
        &mut self,
        terminal: &mut DefaultTerminal,
        mountpoint: &Path,
        [mut terminate, mut hang_up]: [Signal; 2],
    ) -> anyhow::Result<()> {
        let interval = self.situation.interval;
        let mut keys = keyboard();
        let mut answer = Box::pin(ask_after(interval, mountpoint));
        loop {
            terminal.draw(|frame| {
                screen::draw(frame, &mut self.app, &self.picture, &self.situation);
            })?;
            tokio::select! {
                event = keys.recv() => match event {
                    Some(Event::Key(key)) if self.app.key(key) == Step::Quit => return Ok(()),
                    // A new size takes effect on the next draw.
                    Some(_) => {}
                    None => return Ok(()),
                },
                reports = &mut answer => {
                    match reports {
                        Ok(reports) => self.look(Instant::now(), reports),
                        Err(error) => self.situation.trouble = Some(super::explained(&error)),
                    }
                    // Counted from the answer, because rates over a short interval are unreliable.
                    answer.set(ask_after(interval, mountpoint));
                }
                _ = terminate.recv() => return Ok(()),
                _ = hang_up.recv() => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests;

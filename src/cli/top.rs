//! `copperfs top`: shows the activity of each node, live.
//!
//! One thread sends requests to the daemon, one at a time; another reads the keyboard; the main thread draws.
//! The terminal is restored at the end, on an error, on a panic and on signals that end the program.

mod app;
mod rates;
mod screen;

use super::stats::{ClusterReports, cluster_reports};
use crate::config::Machine;
use crate::daemon::mountpoint::canonical;
use anyhow::{Context, ensure};
use app::{App, Step};
use copperfs_policy::amounts::parse_duration;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use rates::{Picture, Snapshot};
use screen::Situation;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// Keys and answers that wait to be handled.
const EVENTS_QUEUED: usize = 64;
/// More frequent requests would load all nodes.
const INTERVAL_MIN: Duration = Duration::from_millis(200);

/// What to show.
#[derive(Debug, clap::Args)]
pub struct TopArgs {
    /// The mount point
    mountpoint: PathBuf,
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

/// An event that the main thread waits for.
enum TopEvent {
    Terminal(Event),
    Answer(Instant, anyhow::Result<ClusterReports>),
    End,
}

/// Shows the rates of all nodes until the user quits.
///
/// # Errors
/// Standard output is no terminal, it is no copperfs mount, or its daemon does not answer the first
/// request. Later failures are shown on the screen.
pub fn top(args: &TopArgs) -> anyhow::Result<()> {
    ensure!(
        std::io::stdout().is_terminal(),
        "top needs a terminal to draw on; for a program or a file: copperfs stats {} --cluster --json",
        args.mountpoint.display()
    );
    let mountpoint = canonical(&args.mountpoint);
    let first = cluster_reports(&mountpoint)
        .with_context(|| format!("cannot ask the daemon of {}", mountpoint.display()))?;
    let mut live = Live::new(args.interval, &mountpoint);
    live.look(Instant::now(), first);
    let (sender, events) = sync_channel(EVENTS_QUEUED);
    let ask = asking(mountpoint, sender.clone());
    watch_signals(sender.clone())?;
    // From here on, every path must restore the terminal.
    let mut terminal = ratatui::try_init().or_else(|error| {
        ratatui::try_restore()?;
        Err(error)
    })?;
    drop(std::thread::spawn(move || read_keyboard(&sender)));
    let shown = live.run(&mut terminal, &ask, &events);
    let restored = ratatui::try_restore().context("cannot give the terminal back");
    shown.and(restored)
}

/// Starts a thread that sends one request for each token, and one event with the answer. It ends with the last
/// sender of tokens; a request in progress then ends with the process.
fn asking(mountpoint: PathBuf, sender: SyncSender<TopEvent>) -> SyncSender<()> {
    let (ask, asked) = sync_channel(1);
    drop(std::thread::spawn(move || {
        while let Ok(()) = asked.recv() {
            let answer = cluster_reports(&mountpoint);
            let event = TopEvent::Answer(Instant::now(), answer);
            if sender.send(event).is_err() {
                return;
            }
        }
    }));
    ask
}

/// Runs until the receiver or the terminal is gone.
fn read_keyboard(sender: &SyncSender<TopEvent>) {
    while let Ok(event) = event::read() {
        if sender.send(TopEvent::Terminal(event)).is_err() {
            return;
        }
    }
    let _receiver_gone = sender.send(TopEvent::End);
}

/// Starts a thread that turns signals that would end the program into an orderly end.
fn watch_signals(sender: SyncSender<TopEvent>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("cannot watch for signals")?;
    let (mut term, mut hangup) = {
        let _within = runtime.enter();
        (
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        )
    };
    drop(std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = term.recv() => {}
                _ = hangup.recv() => {}
            }
        });
        let _receiver_gone = sender.send(TopEvent::End);
    }));
    Ok(())
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
    fn new(interval: Duration, mountpoint: &Path) -> Self {
        Self {
            began: Instant::now(),
            app: App::default(),
            last: None,
            picture: Picture::default(),
            situation: Situation {
                mountpoint: mountpoint.display().to_string(),
                interval,
                trouble: None,
                colours: Machine::inspect().wants_colours(),
            },
        }
    }

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

    /// Sends requests, waits and draws until the user quits. At most one request is in progress.
    fn run(
        &mut self,
        terminal: &mut DefaultTerminal,
        ask: &SyncSender<()>,
        events: &Receiver<TopEvent>,
    ) -> anyhow::Result<()> {
        let interval = self.situation.interval;
        let mut next = Instant::now() + interval;
        let mut asked = false;
        loop {
            terminal.draw(|frame| {
                screen::draw(frame, &mut self.app, &self.picture, &self.situation);
            })?;
            let event = if asked {
                events.recv().map_err(RecvTimeoutError::from)
            } else {
                events.recv_timeout(next.saturating_duration_since(Instant::now()))
            };
            match event {
                Ok(TopEvent::Terminal(Event::Key(key))) => {
                    if self.app.key(key) == Step::Quit {
                        return Ok(());
                    }
                }
                // A new size takes effect on the next draw.
                Ok(TopEvent::Terminal(_)) => {}
                Ok(TopEvent::Answer(at, answer)) => {
                    asked = false;
                    // Counted from the answer, because rates over a short interval are unreliable.
                    next = at + interval;
                    match answer {
                        Ok(reports) => self.look(at, reports),
                        Err(error) => {
                            self.situation.trouble = Some(super::explained(&error));
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    asked = ask.try_send(()).is_ok();
                }
                Ok(TopEvent::End) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! `copperfs top`: what each node does, live.
//!
//! One thread asks the daemon, one question at a time; one reads the keyboard; this one draws what
//! they say. The terminal is given back as it was: at the end, on an error, on a panic and on signals
//! that end the program.

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
use rates::{Look, Picture};
use screen::Situation;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// Keys and answers that wait to be drawn.
const HAPPENINGS_QUEUED: usize = 64;
/// Asking all nodes more often would keep them from their work.
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

fn interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text).map_err(|error| error.to_string())?;
    if interval < INTERVAL_MIN {
        return Err(format!("{text:?} is less than {INTERVAL_MIN:?}"));
    }
    Ok(interval)
}

/// What the screen waits for.
enum Happening {
    Terminal(Event),
    Answer(Instant, anyhow::Result<ClusterReports>),
    End,
}

/// Shows the rates of all nodes until the viewer has seen enough.
///
/// # Errors
/// Standard output is no terminal, it is no copperfs mount, or its daemon does not answer the first
/// question. Later ones may fail: the screen says so.
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
    let (happens, happenings) = sync_channel(HAPPENINGS_QUEUED);
    let ask = asking(mountpoint, happens.clone());
    watch_signals(happens.clone())?;
    // From here on every way out gives the terminal back.
    let mut terminal = ratatui::try_init().or_else(|error| {
        ratatui::try_restore()?;
        Err(error)
    })?;
    drop(std::thread::spawn(move || read_keyboard(&happens)));
    let shown = live.run(&mut terminal, &ask, &happenings);
    let restored = ratatui::try_restore().context("cannot give the terminal back");
    shown.and(restored)
}

/// A thread that asks once for each token, and then answers once. It ends with the last token's
/// sender; a question that is under way then ends with the process.
fn asking(mountpoint: PathBuf, happens: SyncSender<Happening>) -> SyncSender<()> {
    let (ask, asked) = sync_channel(1);
    drop(std::thread::spawn(move || {
        while let Ok(()) = asked.recv() {
            let answer = cluster_reports(&mountpoint);
            let happening = Happening::Answer(Instant::now(), answer);
            if happens.send(happening).is_err() {
                return;
            }
        }
    }));
    ask
}

/// Runs until nobody listens, or the terminal is gone.
fn read_keyboard(happens: &SyncSender<Happening>) {
    while let Ok(event) = event::read() {
        if happens.send(Happening::Terminal(event)).is_err() {
            return;
        }
    }
    let _nobody_listens = happens.send(Happening::End);
}

/// A thread that turns signals that would end the program into an orderly end.
fn watch_signals(happens: SyncSender<Happening>) -> anyhow::Result<()> {
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
        let _nobody_listens = happens.send(Happening::End);
    }));
    Ok(())
}

/// What is shown, and what it is made from.
struct Live {
    began: Instant,
    app: App,
    last: Option<Look>,
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

    /// Takes in what the nodes said at `at`.
    fn look(&mut self, at: Instant, reports: ClusterReports) {
        let now = Look {
            at: at.saturating_duration_since(self.began),
            reports,
        };
        match rates::picture(self.last.as_ref(), &now) {
            Ok(picture) => {
                self.picture = picture;
                self.situation.trouble = None;
                self.last = Some(now);
            }
            Err(trouble) => self.situation.trouble = Some(trouble),
        }
    }

    /// Asks, waits and draws until the viewer quits. Never asks twice at a time.
    fn run(
        &mut self,
        terminal: &mut DefaultTerminal,
        ask: &SyncSender<()>,
        happenings: &Receiver<Happening>,
    ) -> anyhow::Result<()> {
        let interval = self.situation.interval;
        let mut next = Instant::now() + interval;
        let mut asked = false;
        loop {
            terminal.draw(|frame| {
                screen::draw(frame, &mut self.app, &self.picture, &self.situation);
            })?;
            let happening = if asked {
                happenings.recv().map_err(RecvTimeoutError::from)
            } else {
                happenings.recv_timeout(next.saturating_duration_since(Instant::now()))
            };
            match happening {
                Ok(Happening::Terminal(Event::Key(key))) => {
                    if self.app.key(key) == Step::Quit {
                        return Ok(());
                    }
                }
                // A new size is found when drawing.
                Ok(Happening::Terminal(_)) => {}
                Ok(Happening::Answer(at, answer)) => {
                    asked = false;
                    // After the answer: two looks close together make rates of chance.
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
                Ok(Happening::End) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests;

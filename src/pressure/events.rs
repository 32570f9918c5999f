//! Wakes the monitor when the kernel says that memory is short.
//!
//! Two kinds of files say so with POLLPRI: `memory.pressure` after a trigger was written to it (PSI: tasks waited for
//! memory for so long within a window), and `memory.events` of version 2. Each is used where this process may open it.
//! Since Linux 6.5 a process without privileges may write a trigger whose window is a multiple of 2 s. Without any of
//! them the monitor's timer is all there is.

use super::reading::groups;
use futures_util::future::select_all;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Tasks waited for memory for 150 ms within 2 s.
const TRIGGER: &[u8] = b"some 150000 2000000\0";

/// What the kernel says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// Tasks wait for memory.
    Stalled,
    /// A limit was reached. Perhaps only pages of files had to go.
    Reached,
}

/// See the module.
pub(super) struct Events(Vec<Source>);

struct Source {
    file: AsyncFd<File>,
    /// A file that tells of [`Event::Reached`] must be read before it can tell of the next one.
    event: Event,
}

impl Events {
    /// Opens the files below `root`. Must be called within a runtime.
    pub(super) fn open(root: &Path) -> Self {
        let groups = groups(root);
        let counts = groups
            .iter()
            .filter_map(|group| group.pollable("memory.events"));
        let counts = counts.filter_map(|path| Source::counts(&path).ok());
        let own = groups
            .first()
            .and_then(|group| group.pollable("memory.pressure"));
        let machine = root.join("proc/pressure/memory");
        let triggers = own.into_iter().chain([machine]);
        let triggers = triggers.filter_map(|path| match Source::trigger(&path) {
            Ok(source) => Some(source),
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "no trigger for memory pressure");
                None
            }
        });
        Self(triggers.chain(counts).collect())
    }

    /// Waits for the next event.
    pub(super) async fn next(&mut self) -> Event {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        let waits = self.0.iter_mut().map(|source| Box::pin(source.wait()));
        let (woken, at, rest) = select_all(waits).await;
        drop(rest);
        let event = self.0[at].event;
        if woken.is_err() {
            // Its cgroup was removed, because this process was moved to another one.
            drop(self.0.swap_remove(at));
        }
        event
    }
}

impl Source {
    fn trigger(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        file.write_all(TRIGGER)?;
        let file = register(file)?;
        Ok(Self {
            file,
            event: Event::Stalled,
        })
    }

    fn counts(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        read_again(&mut file)?;
        let file = register(file)?;
        Ok(Self {
            file,
            event: Event::Reached,
        })
    }

    async fn wait(&mut self) -> io::Result<()> {
        let mut ready = self.file.ready_mut(Interest::PRIORITY).await?;
        ready.clear_ready();
        match self.event {
            Event::Reached => read_again(ready.get_inner_mut()),
            Event::Stalled => Ok(()),
        }
    }
}

#[expect(
    unsafe_code,
    reason = "tokio has no safe form for other interests than the usual ones"
)]
fn register(file: File) -> io::Result<AsyncFd<File>> {
    // SAFETY: a `File` owns its descriptor, which stays open and the same one until the `AsyncFd` drops it.
    let registered = unsafe { AsyncFd::register_with_interest(file, Interest::PRIORITY) };
    Ok(registered?)
}

fn read_again(file: &mut File) -> io::Result<()> {
    let mut text = [0; 512];
    file.rewind()?;
    file.read(&mut text).map(drop)
}

//! Warming: this node's part of a plan ([`Warmer`]), and the command that asks for it ([`ask`]).
//!
//! Steps are carried out in order. Up to [`WINDOW`] of them at a time are fetched into this node's caches, all the
//! way from storage if necessary. After that a helper process ([`crate::warm::touch`]) repeats them on the mount, where
//! they are answered from memory. All nodes have the same plan in the same order. So they request the same things at
//! about the same time, and the requests are merged on the way up.

pub(crate) mod ask;
mod helper;
mod planner;
mod walk;

use crate::read::{FileRef, ReadAhead, ReadPath};
use crate::warm::Step;
use crate::warm::touch::{Touched, encode};
use bytes::Bytes;
use copperfs_overlay::wire::PageReader;
use copperfs_overlay::{BLOCK_BYTES, Failure, FailureKind, FileKind, ItemPath, PlanReader, Tally};
use futures_util::{FutureExt, Stream, StreamExt, stream};
use helper::{Answers, Helper, Orders};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Semaphore, watch};

/// Steps that are fetched at a time.
const WINDOW: usize = 32;
/// Larger files are fetched while the helper reads them, with the read path's prefetching. Otherwise a window of large
/// files would evict files that were fetched but not touched yet.
const AHEAD_BYTES_MAX: u64 = 2 << 20;
/// Steps whose small files are requested together, one request for each directory.
const BUNDLED: usize = 128;
/// Plans that a node carries out at a time; more wait.
const PLANS_MAX: usize = 4;
/// After this many consecutive failures the plan is abandoned.
const FAILURES_MAX: u32 = 64;

/// Carries out plans on this node. Cheap to clone.
#[derive(Clone)]
pub(super) struct Warmer(Arc<Inner>);

struct Inner {
    read: ReadPath,
    mountpoint: PathBuf,
    state: watch::Sender<State>,
    turns: Semaphore,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Starting,
    Mounted,
    Stopped,
}

impl Warmer {
    pub(super) fn new(read: ReadPath, mountpoint: PathBuf) -> Self {
        Self(Arc::new(Inner {
            read,
            mountpoint,
            state: watch::Sender::new(State::Starting),
            turns: Semaphore::new(PLANS_MAX),
        }))
    }

    /// Called when the mount answers.
    pub(super) fn mounted(&self) {
        self.0.state.send_replace(State::Mounted);
    }

    /// Ends the plans in progress, so that they do not keep the mount busy.
    pub(super) fn stop(&self) {
        self.0.state.send_replace(State::Stopped);
    }

    /// Carries out the plan as it comes. Dropping the future ends the helper.
    pub(super) async fn carry_out(self, pages: PlanReader, tally: Tally) {
        let mut state = self.0.state.subscribe();
        if *state.borrow_and_update() != State::Mounted {
            return tally.failed("not mounted");
        }
        tokio::select! {
            outcome = self.work(pages, &tally) => {
                if let Err(reason) = outcome {
                    tally.failed(&reason);
                }
            }
            _stopped = state.changed() => tally.failed("unmounted"),
        }
    }

    async fn work(&self, pages: PlanReader, tally: &Tally) -> Result<(), String> {
        // The semaphore is never closed.
        let _turn = self.0.turns.acquire().await.ok();
        let (helper, orders, answers) = Helper::start(&self.0.mountpoint).map_err(lost)?;
        let giving = self.give(pages, tally, orders);
        let hearing = async { hear(answers, tally).await.map_err(lost) };
        let (given, heard) = tokio::try_join!(giving, hearing)?;
        helper.end().await.map_err(lost)?;
        if heard < given {
            return Err(format!("the helper answered {heard} of {given} steps"));
        }
        Ok(())
    }

    /// Fetches the data of the steps, and passes the steps to the helper. Returns their number.
    async fn give(
        &self,
        pages: PlanReader,
        tally: &Tally,
        mut orders: Orders,
    ) -> Result<u64, String> {
        let fetched = steps(self.clone(), pages)
            .map(async |step| {
                let step = step?;
                let outcome = self.fetch(&step).await;
                Ok::<_, String>((step, outcome))
            })
            .buffered(WINDOW);
        tokio::pin!(fetched);
        let (mut given, mut failures) = (0, 0);
        loop {
            let next = match fetched.next().now_or_never() {
                Some(ready) => ready,
                None => {
                    orders.flush().await.map_err(lost)?;
                    fetched.next().await
                }
            };
            let Some(next) = next else {
                orders.flush().await.map_err(lost)?;
                return Ok(given);
            };
            let (step, outcome) = next?;
            match outcome {
                Ok(()) => {
                    failures = 0;
                    given += 1;
                    let order = encode(&step).map_err(lost)?;
                    orders.write_all(&order).await.map_err(lost)?;
                }
                Err(failure) => {
                    failures += 1;
                    tally.failed(&failure.to_string());
                    if failures == FAILURES_MAX {
                        return Err(format!("given up after {failures} failures in a row"));
                    }
                }
            }
        }
    }

    /// Requests the small files that these steps read, together for each directory. A failure here has no effect: each
    /// step requests anything that is missing.
    async fn bring(&self, steps: &[Step]) {
        let mut directories: BTreeMap<ItemPath, Vec<Bytes>> = BTreeMap::new();
        for step in steps {
            if let Step::Read { path, .. } = step
                && let Some((directory, name)) = path.split()
            {
                let names = directories.entry(directory).or_default();
                names.push(Bytes::copy_from_slice(name));
            }
        }
        for (directory, names) in directories.iter().filter(|(_, names)| names.len() > 1) {
            if let Err(failure) = self.0.read.prefetch(directory, names).await {
                tracing::debug!(path = %directory, %failure, "nothing to bring");
            }
        }
    }

    /// Fetches the data of a step into this node's caches. A file that no longer exists is no failure here: the helper
    /// reports it.
    async fn fetch(&self, step: &Step) -> Result<(), Failure> {
        let read = &self.0.read;
        let outcome = match step {
            Step::List(path) => read.metadata().directory(path).await.map(drop),
            Step::Stat(path) => read.metadata().attributes_of(path).await.map(drop),
            Step::Absent(path) => match path.split() {
                Some((parent, name)) => read.metadata().look_up(&parent, name).await.map(drop),
                None => Ok(()),
            },
            Step::Xattrs(path) => match read.metadata().xattrs(path).await {
                Err(failure) if failure.kind == FailureKind::Unsupported => Ok(()),
                outcome => outcome.map(drop),
            },
            Step::Read { path, .. } => self.fetch_file(path).await,
        };
        match outcome {
            Err(Failure {
                kind: FailureKind::NotFound | FailureKind::NotADirectory | FailureKind::Stale,
                ..
            }) => Ok(()),
            outcome => outcome,
        }
    }

    async fn fetch_file(&self, path: &ItemPath) -> Result<(), Failure> {
        let read = &self.0.read;
        let attributes = read.metadata().attributes_of(path).await?.value;
        if attributes.kind != FileKind::File || attributes.size > AHEAD_BYTES_MAX {
            return Ok(());
        }
        let file = FileRef::of(path.clone(), &attributes);
        let ahead = ReadAhead::default();
        // Whole blocks: a request for a part of a block would fetch only that part.
        let len = u32::try_from(BLOCK_BYTES).unwrap_or(u32::MAX);
        for block in 0..attributes.size.div_ceil(BLOCK_BYTES) {
            let offset = block * BLOCK_BYTES;
            if read.data().try_read(&file, offset, len).is_none() {
                read.read(&file, &ahead, offset, len).await?;
            }
        }
        Ok(())
    }
}

fn lost<E: std::fmt::Display>(error: E) -> String {
    format!("the helper that touches the mount: {error}")
}

/// The steps of a plan's pages; the small files that they read are on their way.
fn steps(warmer: Warmer, pages: PlanReader) -> impl Stream<Item = Result<Step, String>> {
    let begin = (warmer, pages, VecDeque::new(), VecDeque::new());
    stream::unfold(
        begin,
        |(warmer, mut pages, mut page, mut ready)| async move {
            loop {
                if let Some(step) = ready.pop_front() {
                    return Some((Ok(step), (warmer, pages, page, ready)));
                }
                if !page.is_empty() {
                    ready.extend(page.drain(..BUNDLED.min(page.len())));
                    warmer.bring(ready.make_contiguous()).await;
                    continue;
                }
                let mut reader = PageReader::new(usize::MAX);
                if let Err(error) = reader.add(&pages.page().await?) {
                    let reason = format!("the plan cannot be read: {error}");
                    return Some((Err(reason), (warmer, pages, page, ready)));
                }
                page.extend(reader.take());
            }
        },
    )
}

/// Counts the helper's answers. Returns the number of answered steps.
async fn hear(mut answers: Answers, tally: &Tally) -> std::io::Result<u64> {
    let mut heard = 0;
    while let Some(touched) = helper::next(&mut answers).await? {
        heard += 1;
        match touched {
            Touched::Here(bytes) => tally.item(bytes),
            Touched::Vanished => tally.vanished(),
            Touched::Failed(reason) => tally.failed(&reason),
        }
    }
    Ok(heard)
}

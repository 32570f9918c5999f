//! Reads the files of a dataset once, several at a time, and hashes their entries.
//!
//! Small files of one directory are requested together, because a request for each would cost more than its bytes.
//! Any other file is one stream, of which only pieces are in memory. Storage is asked for the blocks that entries lie
//! in, and each block once.

pub mod cut;

use super::items::DatasetFile;
use super::journal::Hashed;
use super::plan::Plan;
use bytes::Bytes;
use copperfs_overlay::{
    BLOCK_BYTES, BUNDLE_FILE_BYTES_MAX, BlockPart, BundleFile, BundleRequest, ContentHash, Failure,
    FailureKind, Files, ItemPath, ReadRequest,
};
use cut::{ByteSpan, Cutter};
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;
use tokio::task::JoinError;

/// The maximum number of files in one bundle. More would only delay the other directories.
const BUNDLE_FILES: usize = 256;
/// A gap between entries of up to this many blocks is read and ignored: another request would cost more.
const GAP_BLOCKS: u64 = 1;
/// Hashes of a file are passed on after this many bytes or entries, so that an interruption loses no more.
const REPORT_BYTES: u64 = 64 << 20;
const REPORT_ENTRIES: usize = 4096;
/// Results of one task that wait for the journal. A task beyond it waits.
const RESULTS_MAX: usize = 64;

/// The progress of a manifest. Relaxed, because it is only shown.
#[derive(Debug, Default)]
pub struct Progress {
    /// Files found.
    pub files: AtomicU64,
    /// Entries of the manifest, once they are decided.
    pub entries: AtomicU64,
    /// Entries whose hashes are known.
    pub known: AtomicU64,
    /// Bytes of all entries.
    pub bytes: AtomicU64,
    /// Bytes of entries whose hashes were known without a read.
    pub reused: AtomicU64,
    /// Bytes read.
    pub read: AtomicU64,
}

/// The hashes of some entries of one file.
#[derive(Debug)]
pub struct Outcome {
    /// The file's index in the plan.
    pub file: u32,
    /// The hashes, or why the file cannot be read. Hashes that were passed on before a failure are of the same version.
    pub hashed: Result<Vec<Hashed>, Failure>,
}

/// A file with entries that are to be hashed.
#[derive(Clone, Debug)]
struct Unread {
    /// Its index in the plan.
    number: u32,
    file: DatasetFile,
    spans: VecDeque<ByteSpan>,
}

impl Unread {
    /// Whether it can be read in a bundle.
    fn is_small(&self) -> bool {
        let size = self.file.size;
        let is_whole = self.spans.front()
            == Some(&ByteSpan {
                offset: 0,
                length: size,
            });
        is_whole && (1..=BUNDLE_FILE_BYTES_MAX).contains(&size)
    }
}

/// Files that one task reads.
enum Work {
    /// Small files of one directory.
    Bundle(ItemPath, Vec<Unread>),
    /// One file.
    File(Unread),
}

/// Reads and hashes. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    files: Arc<dyn Files>,
    progress: Arc<Progress>,
}

impl Reader {
    /// A reader of `files`, whose root is the dataset's.
    #[must_use]
    pub fn new(files: Arc<dyn Files>, progress: Arc<Progress>) -> Self {
        Self { files, progress }
    }

    /// Hashes all entries of `plan` that are not `known`, `concurrency` files or bundles at a time. Each task holds a
    /// few MiB. Dropping the stream ends the reads.
    ///
    /// # Errors
    /// A task panicked. Failures of files are in the outcomes.
    pub fn hashes<'a>(
        &self,
        plan: &'a Plan,
        known: impl Fn(u32) -> bool + Send + 'a,
        concurrency: usize,
    ) -> BoxStream<'a, Result<Outcome, JoinError>> {
        let this = self.clone();
        // A task starts when it is taken from this stream, and only so many are taken at a time.
        stream::iter(works(plan, known))
            .map(move |work| Box::pin(this.clone().outcomes(work)))
            .flatten_unordered(concurrency.max(1))
            .boxed()
    }

    /// Carries out `work` in a task of its own, so that hashing uses all processors. After the stream is dropped, the
    /// task ends at the next outcome that it cannot pass on.
    fn outcomes(self, work: Work) -> impl Stream<Item = Result<Outcome, JoinError>> {
        let (sender, receiver) = mpsc::channel(RESULTS_MAX);
        let task = tokio::spawn(async move { self.work(work, &sender).await });
        stream::unfold(Some((task, receiver)), async |running| {
            let (task, mut receiver) = running?;
            if let Some(outcome) = receiver.recv().await {
                return Some((Ok(outcome), Some((task, receiver))));
            }
            // A task that panicked has not passed on all of its outcomes.
            let panicked = task.await.err()?;
            Some((Err(panicked), None))
        })
    }

    async fn work(&self, work: Work, outcomes: &mpsc::Sender<Outcome>) {
        // A closed channel: the receiver was dropped, and the rest is not wanted.
        let _closed = match work {
            Work::Bundle(directory, files) => self.bundle(directory, files, outcomes).await,
            Work::File(file) => self.file(file, outcomes).await,
        };
    }

    async fn bundle(
        &self,
        directory: ItemPath,
        files: Vec<Unread>,
        outcomes: &mpsc::Sender<Outcome>,
    ) -> Result<(), mpsc::error::SendError<Outcome>> {
        let wanted = files.iter().map(|unread| BundleFile {
            name: Bytes::copy_from_slice(name_of(&unread.file.path)),
            version: unread.file.version,
            size: unread.file.size,
            content: None,
        });
        let request = BundleRequest {
            directory,
            files: wanted.collect(),
        };
        let mut left: Vec<Option<Unread>> = files.into_iter().map(Some).collect();
        if let Ok(mut items) = self.files.bundle(request).await {
            while let Some(Ok(item)) = items.next().await {
                let unread = left.get_mut(item.index).and_then(Option::take);
                let Some(unread) = unread else { continue };
                self.count(item.bytes.len() as u64);
                let hashed = Hashed {
                    offset: 0,
                    length: item.bytes.len() as u64,
                    hash: item.hash,
                    parts: Vec::new(),
                };
                let outcome = Outcome {
                    file: unread.number,
                    hashed: Ok(vec![hashed]),
                };
                outcomes.send(outcome).await?;
            }
        }
        // A file that a bundle leaves out is requested alone, which also gives the reason.
        for unread in left.into_iter().flatten() {
            self.file(unread, outcomes).await?;
        }
        Ok(())
    }

    async fn file(
        &self,
        unread: Unread,
        outcomes: &mpsc::Sender<Outcome>,
    ) -> Result<(), mpsc::error::SendError<Outcome>> {
        let Unread {
            number,
            file,
            spans,
        } = unread;
        let outcome = |hashed| Outcome {
            file: number,
            hashed,
        };
        if file.size == 0 {
            let hash = ContentHash(*blake3::hash(b"").as_bytes());
            let (offset, length, parts) = (0, 0, Vec::new());
            let empty = Hashed {
                offset,
                length,
                hash,
                parts,
            };
            return outcomes.send(outcome(Ok(vec![empty]))).await;
        }
        let runs = runs(spans.iter().copied());
        let mut cutter = Cutter::new(spans);
        for blocks in runs {
            let mut parts = match self.files.read(request(&file, &blocks)).await {
                Ok(parts) => parts,
                Err(failure) => return outcomes.send(outcome(Err(failure))).await,
            };
            cutter.skip_to(blocks.start * BLOCK_BYTES);
            let mut unreported = 0;
            while let Some(part) = parts.next().await {
                let bytes = match part {
                    Ok(BlockPart::Bytes(bytes)) => bytes,
                    // Storage never restarts a block.
                    Ok(BlockPart::End(_) | BlockPart::Restart) => continue,
                    Err(failure) => return outcomes.send(outcome(Err(failure))).await,
                };
                self.count(bytes.len() as u64);
                unreported += bytes.len() as u64;
                cutter.feed(&bytes);
                if unreported >= REPORT_BYTES || cutter.done() >= REPORT_ENTRIES {
                    unreported = 0;
                    outcomes.send(outcome(Ok(cutter.take()))).await?;
                }
            }
        }
        let hashed = match cutter.is_finished() {
            true => Ok(cutter.take()),
            false => Err(Failure::new(
                FailureKind::Io,
                "storage returned too few bytes",
            )),
        };
        outcomes.send(outcome(hashed)).await
    }

    fn count(&self, bytes: u64) {
        self.progress.read.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn request(file: &DatasetFile, blocks: &std::ops::Range<u64>) -> ReadRequest {
    ReadRequest {
        path: file.path.clone(),
        version: file.version,
        size: file.size,
        first_block: blocks.start,
        block_count: blocks.end - blocks.start,
        content: None,
        through: false,
    }
}

fn name_of(path: &ItemPath) -> &[u8] {
    let mut names = path.as_bytes().rsplit(|byte| *byte == b'/');
    names.next().unwrap_or_default()
}

/// The blocks that contain `spans`, in runs: one request each. No block is in two runs.
fn runs(spans: impl Iterator<Item = ByteSpan>) -> Vec<std::ops::Range<u64>> {
    let mut runs: Vec<std::ops::Range<u64>> = Vec::new();
    for span in spans {
        let blocks = span.offset / BLOCK_BYTES..span.end().div_ceil(BLOCK_BYTES);
        match runs.last_mut() {
            Some(last) if blocks.start <= last.end + GAP_BLOCKS => {
                last.end = last.end.max(blocks.end);
            }
            _ => runs.push(blocks),
        }
    }
    runs
}

/// The files of `plan` with entries that are not `known`, as tasks.
fn works<'a>(plan: &'a Plan, known: impl Fn(u32) -> bool + 'a) -> impl Iterator<Item = Work> + 'a {
    let unread = plan.places().filter_map(move |(number, entries)| {
        let unknown = entries.iter().filter(|entry| !known(**entry));
        let spans = unknown.map(|entry| {
            let entry = plan.entries()[*entry as usize];
            ByteSpan {
                offset: entry.offset,
                length: entry.length,
            }
        });
        let spans: VecDeque<ByteSpan> = spans.collect();
        let file = plan.files().get(number as usize)?.clone();
        (!spans.is_empty()).then_some(Unread {
            number,
            file,
            spans,
        })
    });
    let mut unread = unread.peekable();
    std::iter::from_fn(move || {
        let first = unread.next()?;
        let parent = |unread: &Unread| unread.file.path.split().map(|(parent, _)| parent);
        let directory = parent(&first).filter(|_| first.is_small());
        let Some(directory) = directory else {
            return Some(Work::File(first));
        };
        let mut files = vec![first];
        while files.len() < BUNDLE_FILES
            && let Some(next) =
                unread.next_if(|next| next.is_small() && parent(next).as_ref() == Some(&directory))
        {
            files.push(next);
        }
        Some(Work::Bundle(directory, files))
    })
}

#[cfg(test)]
mod tests;

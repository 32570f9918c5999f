//! Bundles: one request for several small files of a directory, and the flights that it fills.
//!
//! While a bundle is in progress its files have flights, so readers join it. A file that a reader waits for
//! and that comes late in the bundle is requested separately ([`super::urgent`]). When a bundle ends, each
//! file that it did not bring and that a reader waits for is requested separately, too.
//!
//! A bundle is not cancelled while it may still bring files, because storage would read those files again.
//! A bundle that has brought nothing for [`STALL_TIMEOUT`] does not prevent others from starting.
//!
//! Which files to bring is decided elsewhere: in `read::ahead` for this node's readers, and by the node below
//! for its own.

use super::blocks::{FetchKind, Priority};
use super::flight::Flight;
use super::{Block, Data};
use crate::read::file::FileRef;
use bytes::Bytes;
use copperfs_overlay::{
    BUNDLE_FILES_MAX, BundleFile, BundleItem, BundleRequest, BundleStream, ItemPath,
};
use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::timeout;

/// Bytes and name bytes of one request.
const REQUEST_BYTES: u64 = 16 << 20;
const REQUEST_NAME_BYTES: usize = 128 << 10;
/// The maximum number of this node's own bundles in progress. Beyond it no further one begins.
const OWN_MAX: usize = 8;
/// The maximum number of bundles in progress for children. Beyond it their files are requested one by one,
/// as the child takes them.
const FOR_CHILDREN_MAX: usize = 64;
/// How long a bundle may bring nothing before another may start in its place.
const STALL_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum number of bundles that have brought nothing for [`STALL_TIMEOUT`]; beyond it none is started.
/// They end when storage, or the parent, fails the hanging files.
const STALLED_MAX: usize = 64;
/// The maximum number of files that are reported as arrived together.
const REPORT_FILES: usize = 32;

/// Receives news of what this node's own bundles bring. The front implements it and tells the kernel.
pub trait Arrivals: Send + Sync + 'static {
    /// These files of `directory` are about to arrive.
    fn expected(&self, directory: &ItemPath, files: &[FileRef]);

    /// These files are cached now, and no reader was waiting for them.
    fn arrived(&self, files: &[FileRef]);
}

/// The bundles in progress. Relaxed atomics: the limits may be exceeded by a few.
#[derive(Default)]
pub(in crate::read) struct BundleCounts {
    /// By [`Counted`].
    in_progress: [AtomicUsize; 3],
    arrivals: OnceLock<Arc<dyn Arrivals>>,
}

/// How a bundle in progress is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Counted {
    Own,
    ForChildren,
    /// It has brought nothing for [`STALL_TIMEOUT`].
    Stalled,
}

impl BundleCounts {
    fn of(&self, counted: Counted) -> &AtomicUsize {
        &self.in_progress[counted as usize]
    }

    /// Whether there are fewer than `max`, and few that are stalled.
    fn has_room(&self, counted: Counted, max: usize) -> bool {
        self.of(counted).load(Ordering::Relaxed) < max
            && self.of(Counted::Stalled).load(Ordering::Relaxed) < STALLED_MAX
    }
}

/// A small file that a bundle is to bring, and the flight of its only block.
pub(in crate::read) struct BundledFile {
    pub(in crate::read) file: FileRef,
    flight: Arc<Flight>,
}

impl Data {
    /// The numbers of this node's own bundles in progress, and of stalled ones.
    #[cfg(test)]
    pub(in crate::read) fn bundles_in_progress(&self) -> (usize, usize) {
        let count = |of| self.0.shared.bundles.of(of).load(Ordering::Relaxed);
        (count(Counted::Own), count(Counted::Stalled))
    }

    /// Tells `arrivals` what this node's bundles bring, from now on.
    pub(in crate::read) fn connect(&self, arrivals: Arc<dyn Arrivals>) {
        if self.0.shared.bundles.arrivals.set(arrivals).is_err() {
            tracing::warn!("the read path was connected twice");
        }
    }

    /// Tells the front that `files` of `directory` are about to arrive.
    pub(in crate::read) fn expect(&self, directory: &ItemPath, files: &[BundledFile]) {
        if let Some(arrivals) = self.0.shared.bundles.arrivals.get() {
            let files: Vec<_> = files.iter().map(|claimed| claimed.file.clone()).collect();
            arrivals.expected(directory, &files);
        }
    }

    /// Whether another bundle of this node's own may begin.
    pub(in crate::read) fn may_begin_bundle(&self) -> bool {
        self.0.shared.bundles.has_room(Counted::Own, OWN_MAX)
    }

    /// Claims a small file for a bundle; `None` if it is cached or on its way.
    pub(in crate::read) fn claim_for_bundle(&self, file: FileRef) -> Option<BundledFile> {
        let flight = self.claim(&file, file.key(0))?;
        Some(BundledFile { file, flight })
    }

    /// Requests `files` of `directory`, for this node's readers (`own`) or for a child. Returns the number of
    /// requests.
    pub(in crate::read) fn fetch_bundle(
        &self,
        directory: &ItemPath,
        files: Vec<BundledFile>,
        own: bool,
    ) -> u64 {
        let bytes_max = REQUEST_BYTES.min(self.cache().capacity_bytes() / 4);
        let mut batches: Vec<Vec<Option<BundledFile>>> = Vec::new();
        let (mut bytes, mut names) = (0, 0);
        for claimed in files {
            claimed.flight.give_to_bundle();
            let fits = |batch: &Vec<_>| {
                batch.len() < BUNDLE_FILES_MAX
                    && bytes + claimed.file.size <= bytes_max
                    && names + ItemPath::NAME_BYTES_MAX <= REQUEST_NAME_BYTES
            };
            if !batches.last().is_some_and(fits) {
                batches.push(Vec::new());
                (bytes, names) = (0, 0);
            }
            bytes += claimed.file.size;
            names += claimed.file.path.as_bytes().len() - directory.as_bytes().len();
            if let Some(batch) = batches.last_mut() {
                batch.push(Some(claimed));
            }
        }
        let requests = batches.len() as u64;
        let counted = if own {
            Counted::Own
        } else {
            Counted::ForChildren
        };
        for files in batches {
            (self.0.shared.bundles.of(counted)).fetch_add(1, Ordering::Relaxed);
            let bundle = Bundle {
                data: self.clone(),
                directory: directory.clone(),
                files,
                own,
                counted,
                arrived: Vec::new(),
            };
            drop(self.0.metadata.runtime().spawn(bundle.run()));
        }
        requests
    }

    /// Answers a child's bundle. Missing files are requested at once, but only one file at a time is held, so
    /// that a slow child pins little memory.
    pub(in crate::read) fn bundle_for_child(&self, request: BundleRequest) -> BundleStream {
        let BundleRequest { directory, files } = request;
        let file_of = |(index, file): (usize, BundleFile)| {
            let path = directory.join(&file.name).ok()?;
            let file = FileRef::requested(path, file.version, file.size, file.content);
            Some((index, file))
        };
        let files: Vec<_> = files.into_iter().enumerate().filter_map(file_of).collect();
        let bundles = &self.0.shared.bundles;
        if bundles.has_room(Counted::ForChildren, FOR_CHILDREN_MAX) {
            let claims = files.iter().map(|(_, file)| file.clone());
            let claimed = claims.filter_map(|file| self.claim_for_bundle(file));
            self.fetch_bundle(&directory, claimed.collect(), false);
        }
        let this = self.clone();
        stream::iter(files)
            .then(move |(index, file)| {
                let this = this.clone();
                async move {
                    let block = this.block(&file, 0, &[], Priority::InTurn).await.ok()?;
                    let Block { bytes, hash, .. } = block;
                    Some(Ok(BundleItem { index, bytes, hash }))
                }
            })
            .filter_map(std::future::ready)
            .boxed()
    }
}

/// One request for a bundle.
struct Bundle {
    data: Data,
    directory: ItemPath,
    /// `None`: has arrived, or was given back.
    files: Vec<Option<BundledFile>>,
    /// This node decided on it, not a child.
    own: bool,
    counted: Counted,
    /// Cached files that are still to be reported.
    arrived: Vec<FileRef>,
}

impl Bundle {
    async fn run(mut self) {
        let files = self.files.iter().flatten();
        let to_request = |BundledFile { file, .. }: &BundledFile| {
            let name = (file.path.split()).map(|(_, name)| Bytes::copy_from_slice(name));
            BundleFile {
                name: name.unwrap_or_default(),
                version: file.version,
                size: file.size,
                content: file.content,
            }
        };
        let request = BundleRequest {
            directory: self.directory.clone(),
            files: files.clone().map(to_request).collect(),
        };
        // One file at a time is assembled, and then cached.
        let largest = files.map(|claimed| claimed.file.size).max().unwrap_or(0);
        let data = self.data.clone();
        let _charge = data.memory().fetch(largest).await;
        match self.watch_stalls(data.0.source.bundle(request)).await {
            Ok(stream) => self.fill(stream).await,
            Err(failure) => {
                tracing::debug!(directory = %self.directory, %failure, "no bundle");
            }
        }
        // `drop` gives back the files that have not arrived.
    }

    async fn fill(&mut self, mut stream: BundleStream) {
        loop {
            let next = match stream.next().now_or_never() {
                Some(ready) => ready,
                None => {
                    // Before it waits: files that arrived together are reported together.
                    self.report();
                    self.watch_stalls(stream.next()).await
                }
            };
            match next {
                Some(Ok(item)) => self.take(item),
                Some(Err(failure)) => {
                    tracing::debug!(directory = %self.directory, %failure, "a bundle broke off");
                    return;
                }
                None => return,
            }
        }
    }

    /// Waits for `coming`. If that takes too long, the bundle counts as stalled meanwhile.
    async fn watch_stalls<T>(&mut self, coming: impl Future<Output = T>) -> T {
        let mut coming = std::pin::pin!(coming);
        if let Ok(done) = timeout(STALL_TIMEOUT, &mut coming).await {
            return done;
        }
        tracing::debug!(directory = %self.directory, "a bundle brings nothing");
        let before = self.count_as(Counted::Stalled);
        let done = coming.await;
        self.count_as(before);
        done
    }

    /// Returns how it was counted before.
    fn count_as(&mut self, counted: Counted) -> Counted {
        let bundles = &self.data.0.shared.bundles;
        bundles.of(self.counted).fetch_sub(1, Ordering::Relaxed);
        bundles.of(counted).fetch_add(1, Ordering::Relaxed);
        std::mem::replace(&mut self.counted, counted)
    }

    fn take(&mut self, item: BundleItem) {
        let Some(claimed) = self.files.get_mut(item.index).and_then(Option::take) else {
            return;
        };
        let BundledFile { file, flight } = &claimed;
        if item.bytes.len() as u64 != file.size || file.check(item.hash).is_err() {
            self.data.give_back(claimed);
            return;
        }
        let block = Block {
            bytes: item.bytes,
            hash: item.hash,
            path: file.path.clone(),
        };
        if self.data.complete(flight, block) && self.own {
            self.arrived.push(claimed.file);
            if self.arrived.len() >= REPORT_FILES {
                self.report();
            }
        }
    }

    fn report(&mut self) {
        if !self.arrived.is_empty() {
            if let Some(arrivals) = self.data.0.shared.bundles.arrivals.get() {
                arrivals.arrived(&self.arrived);
            }
            self.arrived.clear();
        }
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        self.report();
        for claimed in std::mem::take(&mut self.files).into_iter().flatten() {
            self.data.give_back(claimed);
        }
        let in_progress = self.data.0.shared.bundles.of(self.counted);
        in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Data {
    /// Called when a bundle ends without this file. If a reader waits for it, it is requested separately.
    fn give_back(&self, claimed: BundledFile) {
        let BundledFile { file, flight } = claimed;
        if !flight.leave_bundle() {
            return;
        }
        // Two references: the list's and this one. Under the list's lock no reader can get another.
        let unwanted = |_: &_, listed: &Arc<Flight>| {
            Arc::ptr_eq(listed, &flight) && Arc::strong_count(listed) == 2
        };
        let removed = self.flights().remove_if(&file.key(0), unwanted).is_some();
        // A clear may have removed it from the list. Then only a reader's reference keeps it wanted.
        if !removed && Arc::strong_count(&flight) > 1 {
            self.launch(&file, FetchKind::Run, &[flight]);
        }
    }
}

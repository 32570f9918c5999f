//! Bundles: the small files of a directory that a reader will want, brought by one request.
//!
//! When: at the second file that is read of a directory whose small files are few, at the first one if
//! its reader has just gone through the directory before it to its end; in a large directory after a run of
//! files in order, a window that grows with the run. Who goes through one directory after the other
//! has the next one listed and brought too.
//!
//! Where it stops: what was brought and is not known to be of use may not be more than
//! [`CREDIT_BYTES`] and a fifth of what was. A program that picks files of large directories pays that
//! credit once, and gets nothing unasked from then on, until what it reads has been brought after all.
//!
//! Who reads many files of a large directory in no order has all of it brought (`scattered`).
//!
//! While a bundle is in progress its files have flights, so that readers join it; a file that a reader
//! waits for and that is far behind in the bundle is requested separately (`urgent`). A bundle is not
//! cancelled while it may still bring files, because the files that storage reads for it would be read
//! again. A bundle that has brought nothing for [`PATIENCE`] does not prevent others from starting. When a
//! bundle ends, a reader that waits for a file that it did not bring gets its own request.

use super::blocks::Haste;
use super::directory::Directory;
use super::file::FileRef;
use super::flight::Flight;
use super::touched::Whole;
use super::{Block, ReadPath, scattered};
use bytes::Bytes;
use copperfs_overlay::{
    BUNDLE_FILE_BYTES_MAX, BUNDLE_FILES_MAX, BundleFile, BundleItem, BundleRequest, BundleStream,
    FileKind, ItemPath,
};
use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::timeout;

/// Bytes that may be brought before any of them was of use.
const CREDIT_BYTES: u64 = 8 << 20;
/// Of what was of use, the share that may be wasted: one in so many bytes.
const WASTE_SHARE: u64 = 5;
/// A directory whose small files are no more than this is brought whole.
const WHOLE_FILES: usize = 256;
const WHOLE_BYTES: u64 = 4 << 20;
/// Entries of a directory that are looked at for that.
const WHOLE_ENTRIES: usize = 512;
/// The read of a directory at which it is brought.
const WHOLE_AT: u32 = 2;
/// Bytes and name bytes of one request.
const REQUEST_BYTES: u64 = 16 << 20;
const REQUEST_NAME_BYTES: usize = 128 << 10;
/// Bundles that this node has decided on and that are under way; more are not begun.
const UNDER_WAY_MAX: usize = 8;
/// Bundles for children that are under way; the files of more are asked for one by one, as the child
/// takes them.
const FOR_CHILDREN_MAX: usize = 64;
/// Directories that are listed and brought ahead of one who goes from directory to directory.
const DIRECTORIES_AHEAD: usize = 2;
/// How long a bundle may bring nothing before another may start in its place.
const PATIENCE: Duration = Duration::from_secs(1);
/// The maximum number of bundles that have brought nothing for [`PATIENCE`]; beyond it none is started.
/// They end when storage, or the node above, gives up the hanging files.
const STALLED_MAX: usize = 64;
/// Files that are reported as arrived together, if they arrive together.
const REPORT_FILES: usize = 32;

/// Who wants to know what bundles bring: the front, which knows the kernel.
pub trait Arrivals: Send + Sync + 'static {
    /// These files of `directory` are about to arrive.
    fn expected(&self, directory: &ItemPath, files: &[FileRef]);

    /// These are here, and nobody was waiting for them.
    fn arrived(&self, files: &[FileRef]);
}

/// What this node's own bundles have done. Those that children asked for are counted by the children.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BundleStats {
    /// Requests sent.
    pub requests: u64,
    /// Files asked for in them.
    pub files: u64,
    /// Bytes of files brought that were asked for afterwards; of files stored into the page cache, as
    /// many as the one of each group that is left out stands for.
    pub useful_bytes: u64,
    /// Bytes of files brought that were not, so far.
    pub wasted_bytes: u64,
}

/// The node's account of its bundles. Relaxed: for people and for guesses.
#[derive(Default)]
pub(super) struct Account {
    requests: AtomicU64,
    files: AtomicU64,
    brought_bytes: AtomicU64,
    useful_bytes: AtomicU64,
    /// What was brought to readers in no order has an account of its own.
    pub(super) scattered: scattered::Account,
    pub(super) under_way: AtomicUsize,
    for_children: AtomicUsize,
    pub(super) stalled: AtomicUsize,
    /// The directory that a reader has just gone through to its end: it may carry on in the next one.
    /// Guards itself; held for a copy of a path.
    walked_out: Mutex<Option<ItemPath>>,
    arrivals: OnceLock<Arc<dyn Arrivals>>,
}

impl Account {
    pub(super) fn stats(&self) -> BundleStats {
        let useful = self.useful_bytes.load(Ordering::Relaxed);
        BundleStats {
            requests: self.requests.load(Ordering::Relaxed),
            files: self.files.load(Ordering::Relaxed),
            useful_bytes: useful,
            wasted_bytes: self
                .brought_bytes
                .load(Ordering::Relaxed)
                .saturating_sub(useful),
        }
    }

    /// How many bundles of one kind are under way.
    fn count_of(&self, own: bool) -> &AtomicUsize {
        if own {
            &self.under_way
        } else {
            &self.for_children
        }
    }

    fn pays(&self) -> bool {
        let BundleStats {
            useful_bytes,
            wasted_bytes,
            ..
        } = self.stats();
        let wasted_bytes = wasted_bytes.saturating_sub(self.scattered.unproven_bytes());
        wasted_bytes <= CREDIT_BYTES + useful_bytes / WASTE_SHARE && self.has_room()
    }

    /// Whether another bundle may be begun.
    pub(super) fn has_room(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) < UNDER_WAY_MAX && !self.is_stuck()
    }

    fn is_stuck(&self) -> bool {
        self.stalled.load(Ordering::Relaxed) >= STALLED_MAX
    }
}

/// A file of a directory that might be brought.
pub(super) type Candidate = (usize, FileRef);

impl ReadPath {
    /// Tells `arrivals` of what bundles bring, from now on.
    pub fn connect(&self, arrivals: Arc<dyn Arrivals>) {
        if self.0.bundles.arrivals.set(arrivals).is_err() {
            tracing::warn!("the read path was connected twice");
        }
    }

    /// A reader begins with `file`: brings what it will want next.
    pub(super) fn reading(&self, file: &FileRef) {
        let inner = &self.0;
        if !inner.options.bundles {
            return;
        }
        let Some((parent, name)) = file.path.split() else {
            return;
        };
        let Some(directory) = self.peek_directory(&parent) else {
            return;
        };
        let Some(position) = directory.position(name) else {
            return;
        };
        let count = directory.entries.len();
        let Some(first) = directory.touched.read(position, count) else {
            return;
        };
        let account = &inner.bundles;
        let size_of = |&at: &usize| {
            self.small_file(&parent, &directory, at)
                .map(|file| file.size)
        };
        let useful = first.useful.iter().filter_map(size_of).sum();
        account.useful_bytes.fetch_add(useful, Ordering::Relaxed);
        if directory.touched.is_scattered() {
            account.scattered.useful(useful);
        }

        let carried_on = self.carries_on(&parent);
        let step = directory.reading(position, carried_on);
        if step.ended {
            *account.walked_out.lock() = Some(parent.clone());
        }
        let large = count > WHOLE_ENTRIES || directory.touched.whole() == Whole::TooLarge;
        if large && !directory.is_walked() {
            self.bring_scattered(&parent, &directory, position, first.reads);
        }
        if !account.pays() {
            return;
        }
        if first.reads >= WHOLE_AT || step.begun {
            self.bring_whole(&parent, &directory, position);
        }
        if directory.touched.whole() == Whole::TooLarge && !step.ahead.is_empty() {
            let ahead = std::iter::once(position).chain(step.ahead);
            let ahead = self.candidates(&parent, &directory, ahead);
            self.bring_own(&parent, &directory, ahead);
        }
        if step.begun {
            self.bring_next_directory(parent, DIRECTORIES_AHEAD);
        }
    }

    /// Brings the small files of a directory that has few of them, from `position` on; once.
    fn bring_whole(&self, path: &ItemPath, directory: &Directory, position: usize) {
        let touched = &directory.touched;
        if touched.whole() != Whole::Unknown || directory.entries.is_empty() {
            return;
        }
        if directory.entries.len() > WHOLE_ENTRIES {
            return touched.set_whole(false);
        }
        let files = self.candidates(path, directory, directory.rest_from(position));
        let bytes: u64 = files.iter().map(|(_, file)| file.size).sum();
        let small = files.len() <= WHOLE_FILES && bytes <= WHOLE_BYTES;
        touched.set_whole(small);
        if small {
            self.bring_own(path, directory, files);
        }
    }

    /// Those of `positions` that are small files, neither brought nor read before; the file that is
    /// being read counts as one of them.
    fn candidates(
        &self,
        path: &ItemPath,
        directory: &Directory,
        positions: impl IntoIterator<Item = usize>,
    ) -> Vec<Candidate> {
        let positions = positions.into_iter().enumerate();
        positions
            .filter(|&(nth, at)| nth == 0 || !directory.touched.is_known(at))
            .filter_map(|(_, at)| Some((at, self.small_file(path, directory, at)?)))
            .collect()
    }

    pub(super) fn small_file(
        &self,
        path: &ItemPath,
        directory: &Directory,
        at: usize,
    ) -> Option<FileRef> {
        let entry = directory.entries.get(at)?;
        if entry.kind != FileKind::File {
            return None;
        }
        let attributes = self.peek_attributes(path, entry)?;
        let small = (1..=BUNDLE_FILE_BYTES_MAX).contains(&attributes.size);
        let bypassed = self
            .0
            .options
            .bypass_above
            .is_some_and(|bound| attributes.size > bound);
        (small && !bypassed).then_some(())?;
        let path = path.join(&entry.name).ok()?;
        Some(FileRef::of(path, &attributes))
    }

    /// Brings files that this node has decided on; gives how many bytes nobody has asked for.
    pub(super) fn bring_own(
        &self,
        path: &ItemPath,
        directory: &Directory,
        files: Vec<Candidate>,
    ) -> u64 {
        let account = &self.0.bundles;
        let mut claimed = Vec::with_capacity(files.len());
        let mut positions = Vec::with_capacity(files.len());
        let mut bytes = 0;
        for (position, file) in files {
            if let Some(flight) = self.claim(&file, 0) {
                // What is being read would have been asked for anyway.
                if !directory.touched.is_read(position) {
                    positions.push(position);
                    bytes += file.size;
                }
                claimed.push((file, flight));
            }
        }
        if claimed.is_empty() {
            return 0;
        }
        directory.touched.bring(&positions, directory.entries.len());
        account.brought_bytes.fetch_add(bytes, Ordering::Relaxed);
        let files = claimed.len() as u64;
        account.files.fetch_add(files, Ordering::Relaxed);
        if let Some(arrivals) = account.arrivals.get()
            && !positions.is_empty()
        {
            let files: Vec<_> = claimed.iter().map(|(file, _)| file.clone()).collect();
            arrivals.expected(path, &files);
        }
        let requests = self.bring_claimed(path, claimed, true);
        account.requests.fetch_add(requests, Ordering::Relaxed);
        bytes
    }

    /// Brings those of `names` in `directory` that are small files and neither here nor on their way,
    /// whatever their readers do: for those who know from elsewhere what will be read. Gives how many
    /// were asked for.
    ///
    /// # Errors
    /// As [`ReadPath::directory`].
    pub async fn bring(
        &self,
        directory: &ItemPath,
        names: &[Bytes],
    ) -> Result<usize, copperfs_overlay::Failure> {
        let listing = self.directory(directory).await?;
        let mut claimed = Vec::new();
        for name in names {
            let file = listing
                .position(name)
                .and_then(|at| self.small_file(directory, &listing, at));
            claimed.extend(file.and_then(|file| Some((self.claim(&file, 0)?, file))));
        }
        let claimed: Vec<_> = claimed
            .into_iter()
            .map(|(flight, file)| (file, flight))
            .collect();
        let count = claimed.len();
        self.bring_claimed(directory, claimed, true);
        Ok(count)
    }

    /// Sends the requests for files whose flights are claimed; gives how many.
    fn bring_claimed(
        &self,
        directory: &ItemPath,
        claimed: Vec<(FileRef, Arc<Flight>)>,
        own: bool,
    ) -> u64 {
        let bytes_max = REQUEST_BYTES.min(self.0.data.capacity_bytes() / 4);
        let mut requests = 0;
        let (mut run, mut bytes, mut names) = (Vec::new(), 0, 0);
        for (file, flight) in claimed {
            let full = run.len() == BUNDLE_FILES_MAX
                || bytes + file.size > bytes_max
                || names + ItemPath::NAME_BYTES_MAX > REQUEST_NAME_BYTES;
            if full && !run.is_empty() {
                requests += self.send(directory, std::mem::take(&mut run), own);
                (bytes, names) = (0, 0);
            }
            flight.give_to_bundle();
            bytes += file.size;
            names += file.path.as_bytes().len() - directory.as_bytes().len();
            run.push(Some((file, flight)));
        }
        if !run.is_empty() {
            requests += self.send(directory, run, own);
        }
        requests
    }

    fn send(&self, directory: &ItemPath, files: Vec<Option<Waiting>>, own: bool) -> u64 {
        self.0.bundles.count_of(own).fetch_add(1, Ordering::Relaxed);
        let bring = Bring {
            path: self.clone(),
            directory: directory.clone(),
            files,
            own,
            stalled: false,
            arrived: Vec::new(),
        };
        drop(self.0.runtime.spawn(bring.run()));
        1
    }

    /// One goes from directory to directory and has begun with `path`: the `count` next ones are
    /// listed and brought.
    fn bring_next_directory(&self, path: ItemPath, count: usize) {
        let this = self.clone();
        let bringing = async move {
            let mut path = path;
            for _ in 0..count {
                let Some(next) = this.next_directory(&path) else {
                    return;
                };
                path = next;
                let Ok(directory) = this.directory(&path).await else {
                    return;
                };
                if !this.0.bundles.pays() {
                    return;
                }
                this.bring_whole(&path, &directory, directory.first());
                if directory.touched.whole() != Whole::Brought {
                    return;
                }
            }
        };
        drop(self.0.runtime.spawn(bringing));
    }

    /// Whether a reader has just gone to the end of the directory before `path`.
    fn carries_on(&self, path: &ItemPath) -> bool {
        let walked_out = self.0.bundles.walked_out.lock().clone();
        walked_out.is_some_and(|before| self.next_directory(&before).as_ref() == Some(path))
    }

    fn next_directory(&self, path: &ItemPath) -> Option<ItemPath> {
        let (parent, name) = path.split()?;
        let siblings = self.peek_directory(&parent)?;
        parent.join(&siblings.directory_behind(name)?.name).ok()
    }

    /// Whether the bytes of `file` are to be stored into the page cache, as they would be now.
    pub fn may_push(&self, file: &FileRef) -> bool {
        let place = file.path.split().and_then(|(parent, name)| {
            let directory = self.peek_directory(&parent)?;
            Some((directory.position(name)?, directory))
        });
        place.is_none_or(|(at, directory)| directory.touched.push(at, directory.entries.len()))
    }

    /// Answers a child's bundle: one file at a time is looked for, so that a slow child pins no more;
    /// what is not here is asked for at once.
    pub(super) fn give_bundle(&self, request: BundleRequest) -> BundleStream {
        let BundleRequest { directory, files } = request;
        let file_of = |(index, file): (usize, BundleFile)| {
            let path = directory.join(&file.name).ok()?;
            let file = FileRef::asked(path, file.version, file.size, file.content);
            Some((index, file))
        };
        let files: Vec<_> = files.into_iter().enumerate().filter_map(file_of).collect();
        let account = &self.0.bundles;
        let under_way = account.for_children.load(Ordering::Relaxed);
        if under_way < FOR_CHILDREN_MAX && !account.is_stuck() {
            let missing = files.iter();
            let claim = |(_, file): &(_, FileRef)| Some((file.clone(), self.claim(file, 0)?));
            let claimed: Vec<_> = missing.filter_map(claim).collect();
            self.bring_claimed(&directory, claimed, false);
        }
        let this = self.clone();
        stream::iter(files)
            .then(move |(index, file)| {
                let this = this.clone();
                async move {
                    let wanted = || [0..1, 0..0];
                    let block = this.block(&file, 0, wanted, Haste::InTurn).await.ok()?;
                    let Block { bytes, hash, .. } = block;
                    Some(Ok(BundleItem { index, bytes, hash }))
                }
            })
            .filter_map(std::future::ready)
            .boxed()
    }
}

/// A file of a bundle and the flight of its only block.
type Waiting = (FileRef, Arc<Flight>);

/// One upstream request for a bundle, and the flights it fills.
struct Bring {
    path: ReadPath,
    directory: ItemPath,
    /// `None`: done with.
    files: Vec<Option<Waiting>>,
    /// Decided on here, not by a child.
    own: bool,
    /// It counts as stalled, and not as one of the running bundles.
    stalled: bool,
    /// Here, and to be reported.
    arrived: Vec<FileRef>,
}

impl Bring {
    async fn run(mut self) {
        let request = BundleRequest {
            directory: self.directory.clone(),
            files: self.files.iter().flatten().map(wanted).collect(),
        };
        let inner = Arc::clone(&self.path.0);
        // One file at a time is assembled, and then cached.
        let sizes = self.files.iter().flatten().map(|(file, _)| file.size);
        let _charge = inner.room.fetch(sizes.max().unwrap_or(0)).await;
        let opening = inner.source.bundle(request);
        match self.patiently(opening).await {
            Ok(stream) => self.fill(stream).await,
            Err(failure) => {
                tracing::debug!(directory = %self.directory, %failure, "no bundle");
            }
        }
        // The rest is given back as this is dropped.
    }

    async fn fill(&mut self, mut stream: BundleStream) {
        loop {
            let next = match stream.next().now_or_never() {
                Some(ready) => ready,
                None => {
                    self.report();
                    self.patiently(stream.next()).await
                }
            };
            match next {
                Some(Ok(item)) => self.land(item),
                Some(Err(failure)) => {
                    tracing::debug!(directory = %self.directory, %failure, "a bundle broke off");
                    return;
                }
                None => return,
            }
        }
    }

    /// Waits for `coming`. If that takes too long, the bundle counts as stalled meanwhile.
    async fn patiently<T>(&mut self, coming: impl Future<Output = T>) -> T {
        let mut coming = std::pin::pin!(coming);
        if let Ok(come) = timeout(PATIENCE, &mut coming).await {
            return come;
        }
        tracing::debug!(directory = %self.directory, "a bundle brings nothing");
        self.set_stalled(true);
        let come = coming.await;
        self.set_stalled(false);
        come
    }

    fn set_stalled(&mut self, stalled: bool) {
        if self.stalled != stalled {
            let account = &self.path.0.bundles;
            let under_way = account.count_of(self.own);
            let (from, to) = match stalled {
                true => (under_way, &account.stalled),
                false => (&account.stalled, under_way),
            };
            from.fetch_sub(1, Ordering::Relaxed);
            to.fetch_add(1, Ordering::Relaxed);
            self.stalled = stalled;
        }
    }

    fn land(&mut self, item: BundleItem) {
        let Some((file, flight)) = self.files.get_mut(item.index).and_then(Option::take) else {
            return;
        };
        if item.bytes.len() as u64 != file.size || file.check(item.hash).is_err() {
            self.path.give_back(&file, flight);
            return;
        }
        if !flight.land() {
            return;
        }
        let inner = &self.path.0;
        let block = Block {
            bytes: item.bytes,
            hash: item.hash,
            path: file.path.clone(),
        };
        let key = file.key(0);
        inner.land(key, &flight, &block, file.size);
        // The map's share is gone: whoever else holds one waits.
        let wanted = Arc::strong_count(&flight) > 1;
        flight.finish(Ok(block));
        if self.own && !wanted {
            self.arrived.push(file);
            if self.arrived.len() >= REPORT_FILES {
                self.report();
            }
        }
    }

    fn report(&mut self) {
        if !self.arrived.is_empty() {
            if let Some(arrivals) = self.path.0.bundles.arrivals.get() {
                arrivals.arrived(&self.arrived);
            }
            self.arrived.clear();
        }
    }
}

impl Drop for Bring {
    fn drop(&mut self) {
        self.report();
        for (file, flight) in std::mem::take(&mut self.files).into_iter().flatten() {
            self.path.give_back(&file, flight);
        }
        self.set_stalled(false);
        let count = self.path.0.bundles.count_of(self.own);
        count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ReadPath {
    /// A bundle ended without `file`: if somebody waits for it, it is asked for by itself.
    fn give_back(&self, file: &FileRef, flight: Arc<Flight>) {
        if !flight.leave_bundle() {
            return;
        }
        let unwanted = |_: &_, kept: &Arc<Flight>| {
            // The map's share and the bundle's own: nobody else can get one now.
            Arc::ptr_eq(kept, &flight) && Arc::strong_count(kept) == 2
        };
        if self
            .0
            .block_flights
            .remove_if(&file.key(0), unwanted)
            .is_none()
            // A clear may have removed it from the list.
            && Arc::strong_count(&flight) > 1
        {
            self.launch(file, 0, &mut vec![flight]);
        }
    }
}

fn wanted((file, _): &Waiting) -> BundleFile {
    let name = file
        .path
        .split()
        .map(|(_, name)| Bytes::copy_from_slice(name));
    BundleFile {
        name: name.unwrap_or_default(),
        version: file.version,
        size: file.size,
        content: file.content,
    }
}

//! Images over directories of the software mount, which give programs nearly the speed of a local disk.
//!
//! The kernel reads names and attributes from an image (EROFS) that is made of an index, and bytes from a data file on a
//! FUSE filesystem for this purpose ([`connections`]), whose reads take the ordinary way ([`data`]). The daemon does not
//! mount images. The *attendant* does ([`crate::attendant`]), a process that may: it asks which images are wanted, reads
//! each as a tree of names, writes it, mounts it over its directory of the software mount, and takes it away when it is no
//! longer wanted. Then the mount below it serves the directory, as it does while there is no image. So there is never a
//! gap.
//!
//! An image shows one state of the index. `clear` has the attendant take the image away before it answers, and another
//! one is made after it. Open files and mappings keep the image that they have, and the kernel its data file, so at most
//! two images of a directory are held.

mod attendant;
mod backend;
mod build;
mod connections;
mod data;
mod files;
mod kept;
mod order;
mod spent;

use super::front::{Front, Images, Promises};
use super::indexed::Indexes;
use super::mounts;
use super::parts::Parts;
use crate::config::{FrontChoice, Settings};
use crate::control::{Attendance, CoverState, NodeImages, WantedImages};
use crate::image::extents::Damaged;
use crate::image::files::ImageFile;
use crate::index::FileLocation;
use crate::pressure::trim;
use attendant::Attendant;
use copperfs_fuse::{Ino, Notifier, Quarantine};
use copperfs_overlay::{Attributes, ItemPath};
use data::DataFile;
use files::{Files, Number};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// How long the attendant waits for an answer if nothing changes.
const POLL_TIMEOUT: Duration = Duration::from_secs(20);

/// How long the attendant may take to take an image away.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long images may take at the start, in addition to the timeout of requests: a million names take seconds.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a recording is looked at.
const RECORDING_INTERVAL: Duration = Duration::from_millis(250);

/// The images of a directory that the kernel may hold.
const HELD_MAX: usize = 2;

/// The reason after an image was unmounted by hand.
const UNMOUNTED: &str = "its image was unmounted; `copperfs clear` makes another one";

/// The reason until the first image is there.
const BEGINNING: &str = "its image is not ready yet";

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(super) struct Natives(Arc<Inner>);

struct Inner {
    covers: Vec<Cover>,
    choice: FrontChoice,
    files: Files,
    /// The number of the latest image.
    latest: AtomicU32,
    made_of: MadeOf,
    /// The user that may open the files of images.
    owner: u32,
    /// Counts changes of the wanted and of the mounted images.
    changes: watch::Sender<u64>,
    /// The daemon ends: no image is wanted, and the attendant is to end.
    is_ending: AtomicBool,
    /// The mount was there before this daemon.
    is_successor: AtomicBool,
    /// An attendant has asked for images.
    is_attended: AtomicBool,
    /// Something is recorded: the daemon must see every access, so no image is wanted.
    is_paused: AtomicBool,
    /// Notifies the kernel over each connection.
    notifiers: Mutex<Vec<Notifier>>,
    quarantine: OnceLock<Arc<dyn Quarantine>>,
    attendant: OnceLock<Attendant>,
}

/// What images are made of.
struct MadeOf {
    indexes: Indexes,
    parts: Parts,
    promises: Promises,
    root: Attributes,
    /// The profile in whose order the contents lie.
    profile: Option<FileLocation>,
    /// Where the images' files are kept for a successor of the daemon.
    kept: Option<PathBuf>,
}

/// A directory of the namespace that images show.
struct Cover {
    path: ItemPath,
    /// Why it can never have an image.
    impossible: Option<&'static str>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The image that is to be mounted.
    wanted: Option<Number>,
    /// The one that the attendant has mounted.
    mounted: Option<Number>,
    /// The images that may be held, the latest last.
    held: Vec<Number>,
    /// Why FUSE serves the directory.
    why_not: Option<String>,
    /// Makes the next image.
    building: Option<AbortHandle>,
}

impl State {
    fn is_settled(&self) -> bool {
        match self.wanted {
            Some(number) => self.mounted == Some(number),
            None => self.why_not.is_some(),
        }
    }
}

/// Why the directory `path` can have no image.
fn impossible(settings: &Settings, path: &ItemPath) -> Option<&'static str> {
    let mut indexes = settings.indexes.iter();
    if !indexes.any(|index| path.is_within(&index.prefix)) {
        return Some("it has no index: name one with --index (copperfs index build makes it)");
    }
    if settings.lease.is_some() {
        return Some("its files may change (--freshness)");
    }
    if path.is_root() && !settings.allow_other {
        return Some(
            "all users could enter an image of the whole mount: give --allow-other, or --native PATH",
        );
    }
    None
}

impl Natives {
    /// Those that `settings` ask for; `None` if FUSE serves everything. `root`: the attributes of the root of the
    /// namespace.
    pub(super) fn new(
        settings: &Settings,
        (indexes, parts): (Indexes, Parts),
        promises: Promises,
        root: Attributes,
    ) -> Option<Self> {
        if settings.images.front == FrontChoice::Fuse {
            return None;
        }
        let cover = |path: &ItemPath| {
            let impossible = impossible(settings, path);
            Cover {
                path: path.clone(),
                impossible,
                state: Mutex::new(State {
                    why_not: impossible.map(str::to_owned),
                    ..State::default()
                }),
            }
        };
        Some(Self(Arc::new(Inner {
            covers: settings.images.directories.iter().map(cover).collect(),
            choice: settings.images.front,
            files: Files::default(),
            latest: AtomicU32::new(0),
            made_of: MadeOf {
                indexes,
                parts,
                promises,
                root,
                profile: settings.images.profile.clone(),
                kept: settings.takeover.then(|| settings.runtime_dir.clone()),
            },
            owner: rustix::process::geteuid().as_raw(),
            changes: watch::Sender::new(0),
            is_ending: AtomicBool::new(false),
            is_successor: AtomicBool::new(false),
            is_attended: AtomicBool::new(false),
            is_paused: AtomicBool::new(false),
            notifiers: Mutex::default(),
            quarantine: OnceLock::new(),
            attendant: OnceLock::new(),
        })))
    }

    /// Takes over the images of an earlier daemon, which are mounted if its mounts are. Called before the mount answers.
    /// `quarantine` decides about requests for their files that may have killed it.
    pub(super) fn inherit(&self, has_mounts: bool, quarantine: Option<Arc<dyn Quarantine>>) {
        if let Some(quarantine) = quarantine {
            drop(self.0.quarantine.set(quarantine));
        }
        let Some(dir) = &self.0.made_of.kept else {
            return;
        };
        if !has_mounts {
            kept::remove_all(dir);
            return;
        }
        self.0.is_successor.store(true, Ordering::Relaxed);
        for (number, path, extents) in kept::read_all(dir) {
            self.0.latest.fetch_max(number, Ordering::Relaxed);
            let cover = self.0.covers.iter().find(|cover| cover.path == path);
            let (Some(cover), Ok(data)) = (cover, self.data_file(&path, extents)) else {
                kept::remove(dir, number);
                continue;
            };
            self.0.files.add(number, None, data);
            let mut state = cover.state.lock();
            if let Some(before) = state.wanted.replace(number) {
                self.0.files.retire(before);
            }
            state.held.push(number);
        }
    }

    fn data_file(&self, path: &ItemPath, extents: Vec<u8>) -> Result<DataFile, Damaged> {
        let MadeOf {
            parts,
            promises,
            root,
            ..
        } = &self.0.made_of;
        let front = Front::new(parts.clone(), *promises, root.clone(), None, None);
        DataFile::new(extents, path.clone(), front)
    }

    /// Begins: the mount answers. Makes images, and starts the attendant if this process may mount. Returns when each
    /// directory has an image or a reason against it.
    ///
    /// # Errors
    /// `--front erofs` is set, and a directory has no image, for this reason.
    pub(super) async fn start(&self, settings: &Settings) -> Result<(), String> {
        let mut covers = self.0.covers.iter();
        if covers.any(|cover| cover.impossible.is_none()) {
            self.serve(settings)
                .map_err(|error| format!("no attendant can come: {error}"))?;
        }
        if self.0.is_successor.load(Ordering::Relaxed) {
            // Its mounts are in use, and the attendant of its predecessor may be there, or not.
            return Ok(());
        }
        let limit = settings.request_timeout + START_TIMEOUT;
        let settled = |state: &State| state.is_settled();
        drop(tokio::time::timeout(limit, self.until_all(settled)).await);
        for cover in &self.0.covers {
            let state = cover.state.lock();
            let reason = state.why_not.clone();
            let reason = reason.unwrap_or_else(|| "the attendant does not answer".into());
            match state.mounted {
                Some(_) => tracing::info!(path = %cover.path, "the kernel has an image"),
                None if self.0.choice == FrontChoice::EroFs => {
                    return Err(format!("{}: {reason}", cover.path));
                }
                None => tracing::info!(path = %cover.path, %reason, "FUSE serves the directory"),
            }
        }
        Ok(())
    }

    /// Serves attendants, makes the first images, and starts the attendant if this process may mount.
    fn serve(&self, settings: &Settings) -> std::io::Result<()> {
        self.listen(settings)?;
        drop(tokio::spawn(spent::drop_spent_pages(self.clone())));
        let socket = settings.control_socket.clone();
        match Attendant::start(settings.mountpoint.clone(), socket) {
            Some(attendant) => {
                drop(self.0.attendant.set(attendant));
                self.begin();
            }
            // Another process may still come, which mounts.
            None => self.refuse_all(
                "mounting an image needs root (CAP_SYS_ADMIN): run `copperfs attend MOUNT` as root",
            ),
        }
        Ok(())
    }

    /// From now on attendants can pass connections.
    fn listen(&self, settings: &Settings) -> std::io::Result<()> {
        let listener = connections::listen(&settings.runtime_dir)?;
        let mut options = mounts::image_options(settings);
        options.quarantine = self.0.quarantine.get().cloned();
        let registry = self.0.made_of.parts.cluster.registry();
        options.counters.declare(registry, "images");
        drop(tokio::spawn(connections::accept(
            self.clone(),
            listener,
            options,
        )));
        Ok(())
    }

    /// Makes the first image of each directory that has none.
    fn begin(&self) {
        for cover in 0..self.0.covers.len() {
            let is_new = {
                let state = self.0.covers[cover].state.lock();
                state.wanted.is_none() && state.building.is_none()
            };
            if is_new {
                self.make_again(cover);
            }
        }
    }

    fn refuse_all(&self, reason: &str) {
        for cover in &self.0.covers {
            let mut state = cover.state.lock();
            state.why_not.get_or_insert_with(|| reason.to_owned());
        }
    }

    /// Waits until `condition` is true for all directories.
    async fn until_all(&self, condition: impl Fn(&State) -> bool) {
        let mut changes = self.0.changes.subscribe();
        let is_true = || {
            let mut covers = self.0.covers.iter();
            covers.all(|cover| condition(&cover.state.lock()))
        };
        while !is_true() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn changed(&self) {
        self.0.changes.send_modify(|count| *count += 1);
    }

    /// Makes another image of a directory in the background, in place of one that is being made.
    fn make_again(&self, cover: usize) {
        let (this, at) = (self.clone(), &self.0.covers[cover]);
        let is_paused = self.0.is_paused.load(Ordering::Relaxed);
        if at.impossible.is_some() || is_paused || self.is_ending() {
            return;
        }
        let mut state = at.state.lock();
        state.why_not = None;
        let building = tokio::spawn(async move { this.build(cover).await });
        if let Some(before) = state.building.replace(building.abort_handle()) {
            before.abort();
        }
    }

    async fn build(&self, cover: usize) {
        let cover = &self.0.covers[cover];
        if let Err(reason) = self.room(cover).await {
            cover.state.lock().why_not = Some(reason);
            self.changed();
            return;
        }
        let made = self.make(&cover.path).await;
        let mut state = cover.state.lock();
        match made {
            Ok(number) => {
                state.wanted = Some(number);
                state.held.push(number);
                state.why_not = None;
            }
            Err(reason) => state.why_not = Some(reason),
        }
        drop(state);
        self.changed();
    }

    /// Waits until the kernel holds fewer images of a directory than it may.
    async fn room(&self, cover: &Cover) -> Result<(), String> {
        let mut changes = self.0.changes.subscribe();
        loop {
            {
                let mut state = cover.state.lock();
                state.held.retain(|number| self.0.files.contains(*number));
                if state.held.len() < HELD_MAX {
                    return Ok(());
                }
                let why = "programs still use two earlier images; another one is made when they have ended";
                state.why_not = Some(why.into());
            }
            self.changed();
            changes.changed().await.map_err(|_ending| BEGINNING)?;
        }
    }

    /// Makes an image, and returns its number.
    async fn make(&self, path: &ItemPath) -> Result<Number, String> {
        let MadeOf {
            indexes,
            parts,
            profile,
            kept,
            ..
        } = &self.0.made_of;
        let index = indexes.of(path);
        let index =
            index.ok_or("this node has no index of it: put the index where an origin serves it")?;
        let made = build::build(path, index, profile.as_ref(), &parts.read).await;
        let made = made.map_err(|error| error.to_string())?;
        // Images of several directories are made at the same time.
        let latest = &self.0.latest;
        let number = latest.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(dir) = kept
            && let Err(error) = kept::write(dir, number, path, &made.extents)
        {
            tracing::warn!(%error, "a successor of this daemon cannot read its images");
        }
        let data = self.data_file(path, made.extents);
        let data = data.map_err(|error| error.to_string())?;
        tracing::info!(%path, number, files = made.files, bytes = data.size(), "an image is made");
        self.0.files.add(number, Some(made.tree), data);
        Ok(number)
    }

    /// See [`Images::release`].
    async fn take_away(&self, path: &ItemPath) {
        for cover in self.touched(path) {
            let mut state = self.0.covers[cover].state.lock();
            if let Some(building) = state.building.take() {
                building.abort();
            }
            if let Some(wanted) = state.wanted.take() {
                state.why_not = Some(BEGINNING.into());
                self.retire(wanted);
            }
        }
        self.changed();
        let released = |state: &State| state.wanted.is_some() || state.mounted.is_none();
        if tokio::time::timeout(RELEASE_TIMEOUT, self.until_all(released))
            .await
            .is_err()
        {
            tracing::error!(%path, "an image stays, because the attendant does not answer: programs may see old files");
        }
    }

    fn touched(&self, path: &ItemPath) -> Vec<usize> {
        let covers = self.0.covers.iter().enumerate();
        let touches = |cover: &Cover| cover.path.is_within(path) || path.is_within(&cover.path);
        let touched = covers.filter(|(_, cover)| touches(cover));
        touched.map(|(number, _)| number).collect()
    }

    /// Image `number` is not wanted any more. The kernel forgets its names, so that it forgets the data file when no program
    /// uses it.
    fn retire(&self, number: Number) {
        if !self.0.files.retire(number) {
            self.gone(number);
        }
        let names = [ImageFile::Small, ImageFile::Large].map(|file| file.name(number));
        for notifier in self.notifiers() {
            let names = names.clone();
            drop(tokio::spawn(async move {
                for name in names {
                    notifier.invalidate_entry(Ino::ROOT, name.into()).await;
                }
            }));
        }
    }

    fn notifiers(&self) -> Vec<Notifier> {
        self.0.notifiers.lock().clone()
    }

    /// Nothing needs image `number` any more.
    fn gone(&self, number: Number) {
        if let Some(dir) = &self.0.made_of.kept {
            kept::remove(dir, number);
        }
        self.changed();
    }

    /// Has FUSE serve everything while something is recorded.
    async fn serve_by_fuse(&self, is_recording: impl Fn() -> bool + Send + 'static) {
        self.0.is_paused.store(true, Ordering::Relaxed);
        self.take_away(&ItemPath::root()).await;
        for cover in &self.0.covers {
            let mut state = cover.state.lock();
            state
                .why_not
                .get_or_insert_with(|| "something is recorded".into());
        }
        let this = self.clone();
        drop(tokio::spawn(async move {
            while is_recording() {
                tokio::time::sleep(RECORDING_INTERVAL).await;
            }
            this.0.is_paused.store(false, Ordering::Relaxed);
            Images::renew(&this, &ItemPath::root());
        }));
    }

    /// Notes which images the attendant has mounted. Waits until others are wanted, or for some seconds, and returns these.
    pub(super) async fn attend(&self, attendance: Attendance) -> WantedImages {
        let is_first = !self.0.is_attended.swap(true, Ordering::Relaxed);
        if is_first {
            self.begin();
        }
        let mut changes = self.0.changes.subscribe();
        let mut lost = Vec::new();
        for (at, cover) in self.0.covers.iter().enumerate() {
            let mut state = cover.state.lock();
            state.mounted = attendance.mounted.get(&cover.path.to_string()).copied();
            if let Some(number) = state.mounted {
                if self.0.files.mounted(number) {
                    // Making an image has taken a multiple of the memory that it keeps.
                    drop(tokio::task::spawn_blocking(trim));
                }
            } else if let Some(number) = state.wanted.filter(|it| self.0.files.was_mounted(*it)) {
                // Its tree is gone, so it cannot be mounted again.
                state.wanted = None;
                state.why_not = Some(UNMOUNTED.into());
                self.retire(number);
                lost.push(at);
            }
            let failure = attendance.failed.as_ref();
            if let Some(failure) = failure.filter(|failure| Some(failure.image) == state.wanted) {
                state.wanted = None;
                state.why_not = Some(failure.reason.clone());
                self.retire(failure.image);
            }
        }
        if attendance.begins || is_first {
            // Its predecessor has died, and it has taken away what that one had mounted; or that of this daemon has died
            // before the image was mounted.
            lost.into_iter().for_each(|cover| self.make_again(cover));
        }
        self.changed();
        let waiting = async {
            while !self.is_ending() && self.wanted() == attendance.mounted {
                if changes.changed().await.is_err() {
                    break;
                }
            }
        };
        drop(tokio::time::timeout(POLL_TIMEOUT, waiting).await);
        WantedImages {
            images: self.wanted(),
            ends: self.is_ending(),
        }
    }

    fn is_ending(&self) -> bool {
        self.0.is_ending.load(Ordering::Relaxed)
    }

    fn wanted(&self) -> BTreeMap<String, u32> {
        let covers = self.0.covers.iter();
        let wanted = covers.filter_map(|cover| {
            let number = cover.state.lock().wanted?;
            Some((cover.path.to_string(), number))
        });
        wanted.collect()
    }

    /// The state of each directory.
    pub(super) fn states(&self) -> NodeImages {
        let covers = self.0.covers.iter();
        let state = |cover: &Cover| {
            let state = cover.state.lock();
            CoverState {
                path: cover.path.to_string(),
                image: state.mounted,
                why_not: state.why_not.clone().filter(|_| state.mounted.is_none()),
                changed: self.changed_below(&cover.path),
            }
        };
        NodeImages {
            attended: self.0.is_attended.load(Ordering::Relaxed),
            images: covers.map(state).collect(),
        }
    }

    fn changed_below(&self, path: &ItemPath) -> Vec<String> {
        let index = self.0.made_of.indexes.of(path);
        let changed = index.map(|index| index.changed()).unwrap_or_default();
        let below = changed.iter().filter(|changed| changed.is_within(path));
        below.map(ToString::to_string).collect()
    }

    /// Takes all images away, at the end of the daemon.
    pub(super) async fn end(&self) {
        self.0.is_ending.store(true, Ordering::Relaxed);
        self.take_away(&ItemPath::root()).await;
        if let Some(attendant) = self.0.attendant.get() {
            attendant.end().await;
        }
        if let Some(dir) = &self.0.made_of.kept {
            kept::remove_all(dir);
        }
    }
}

impl Images for Natives {
    fn release(&self, path: &ItemPath) -> BoxFuture<'static, ()> {
        let (this, path) = (self.clone(), path.clone());
        async move { this.take_away(&path).await }.boxed()
    }

    fn renew(&self, path: &ItemPath) {
        for cover in self.touched(path) {
            self.make_again(cover);
        }
    }

    fn pause(&self, is_recording: Box<dyn Fn() -> bool + Send + Sync>) -> BoxFuture<'static, ()> {
        let this = self.clone();
        async move { this.serve_by_fuse(is_recording).await }.boxed()
    }
}

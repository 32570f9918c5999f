//! One inode as the table holds it: small, because there is one for each name that the kernel knows.
//!
//! Invariants: a slot never holds its whole path unless it is a directory's, which all names in it
//! share; all that is seldom there ([`Rare`]) lies behind one pointer; [`Slot::cost`] covers what the
//! slot takes, so that the sum of costs bounds the memory of the table.

use super::{Inode, may_become};
use crate::read::{Account, Edition, FileRef, Given, Meter, ReadAhead};
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, BLOCK_BYTES, ContentHash, FileKind, ItemPath, Timestamp, Version,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// What a slot takes beside its name and what is rare: itself, its places in the map and in the
/// queue, and what the allocator adds (see `a_name_costs_no_more_than_it_is_charged`).
const SLOT_BYTES: u64 = 344;
/// What is rare.
const RARE_BYTES: u64 = 160;
/// An inode that is kept whole, with the places of its readers.
const KEPT_BYTES: u64 = 768;
/// The allocator's share of a name.
const NAME_BYTES: u64 = 16;
/// A directory's place in the map of directories.
const DIRECTORY_BYTES: u64 = 64;

/// A file above this many bytes is read by several READs: what they share is kept.
const ONE_READ_BYTES: u64 = 128 << 10;

/// Where an inode lies.
enum Place {
    /// A directory: its path, shared with the names in it.
    Directory(ItemPath),
    /// Anything else: the directory's path and the name in it.
    Entry(ItemPath, Box<[u8]>),
}

/// What few inodes have.
#[derive(Default)]
struct Rare {
    device: u64,
    link_target: Option<Bytes>,
    content: Option<ContentHash>,
    /// Of a directory: which of its listings the kernel may have cached.
    listed: Option<Edition>,
    /// Of a file that is read by several READs: as they share it.
    kept: Option<Arc<Inode>>,
}

impl Rare {
    fn is_empty(&self) -> bool {
        self.device == 0
            && self.link_target.is_none()
            && self.content.is_none()
            && self.listed.is_none()
            && self.kept.is_none()
    }

    fn cost(&self) -> u64 {
        let target = self.link_target.as_ref().map_or(0, |target| target.len());
        let kept = if self.kept.is_some() { KEPT_BYTES } else { 0 };
        RARE_BYTES + target as u64 + kept
    }
}

/// See the module.
pub(super) struct Slot {
    number: u64,
    place: Place,
    version: Version,
    size: u64,
    blocks: u64,
    times: [Timestamp; 3],
    uid: u32,
    gid: u32,
    links: u32,
    block_size: u32,
    mode: u16,
    kind: FileKind,
    rare: Option<Box<Rare>>,
    /// Of a file that was read: what was given out of it. It counts its memory itself.
    given: OnceLock<Given>,
    /// Look-ups that the kernel has not forgotten yet.
    pub(super) references: u64,
    /// Tells this slot from an earlier one under the same number.
    pub(super) life: u32,
    /// Its bytes were pushed into the page cache since the kernel learned of it.
    pub(super) pushed: bool,
    /// A directory that was cleared: its attributes are to be asked for again.
    pub(super) outdated: bool,
    /// The kernel was told to drop it.
    pub(super) condemned: bool,
    /// It was asked for since it was looked at for pruning.
    touched: AtomicBool,
}

impl Slot {
    pub(super) fn new(number: u64, parent: &ItemPath, name: &[u8], attributes: Attributes) -> Self {
        let mut slot = Self {
            number,
            place: Place::of(parent, name, attributes.kind),
            version: attributes.version,
            size: 0,
            blocks: 0,
            times: [attributes.atime; 3],
            uid: 0,
            gid: 0,
            links: 0,
            block_size: 0,
            mode: 0,
            kind: attributes.kind,
            rare: None,
            given: OnceLock::new(),
            references: 1,
            life: 0,
            pushed: false,
            outdated: false,
            condemned: false,
            touched: AtomicBool::new(false),
        };
        slot.take(attributes);
        slot
    }

    fn take(&mut self, attributes: Attributes) {
        self.version = attributes.version;
        self.size = attributes.size;
        self.blocks = attributes.blocks;
        self.times = [attributes.atime, attributes.mtime, attributes.ctime];
        self.uid = attributes.uid;
        self.gid = attributes.gid;
        self.links = attributes.links;
        self.block_size = attributes.block_size;
        self.mode = attributes.mode;
        self.kind = attributes.kind;
        self.rare(|rare| {
            rare.device = attributes.device;
            rare.link_target = attributes.link_target;
            rare.content = attributes.content;
            // It has the attributes from before.
            rare.kept = None;
        });
    }

    /// Takes attributes that are newer, of the same version.
    pub(super) fn renew(&mut self, attributes: Attributes) {
        self.outdated = false;
        if self.attributes() != attributes {
            self.take(attributes);
        }
    }

    pub(super) fn attributes(&self) -> Attributes {
        let rare = self.rare.as_deref();
        Attributes {
            kind: self.kind,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            links: self.links,
            device: rare.map_or(0, |rare| rare.device),
            size: self.size,
            blocks: self.blocks,
            block_size: self.block_size,
            atime: self.times[0],
            mtime: self.times[1],
            ctime: self.times[2],
            version: self.version,
            link_target: rare.and_then(|rare| rare.link_target.clone()),
            content: rare.and_then(|rare| rare.content),
        }
    }

    /// The inode, for a question that ends with it.
    pub(super) fn inode(&self) -> Arc<Inode> {
        if let Some(kept) = self.rare.as_deref().and_then(|rare| rare.kept.as_ref()) {
            return Arc::clone(kept);
        }
        let attributes = self.attributes();
        Arc::new(Inode {
            number: self.number,
            file: FileRef::of(self.path(), &attributes),
            attributes,
            ahead: ReadAhead::default(),
            given: self.given.get().cloned().unwrap_or_else(Given::none),
        })
    }

    /// Whether what was given out can be noted from now on: of files only.
    pub(super) fn open_ledger(&self, meter: &Meter) {
        if self.kind == FileKind::File {
            let none_yet = Account::default();
            self.given
                .get_or_init(|| Given::of(none_yet, self.is_single(), meter));
        }
    }

    pub(super) fn has_ledger(&self, given: &Given) -> bool {
        self.given.get().is_some_and(|own| own.is(given))
    }

    fn is_single(&self) -> bool {
        self.size <= BLOCK_BYTES
    }

    /// Takes attributes of a version that has all that was given out.
    pub(super) fn move_on(&mut self, attributes: Attributes, account: Account, meter: &Meter) {
        self.given = OnceLock::from(Given::of(account, self.is_single(), meter));
        self.take(attributes);
    }

    /// Takes attributes of a version of which only the status is another, if nothing was given out of the
    /// old one; whether it does.
    pub(super) fn take_unread(&mut self, attributes: &Attributes, meter: &Meter) -> bool {
        let now = self.attributes();
        if !may_become(&now, attributes) {
            return false;
        }
        let Some(given) = self.given.get() else {
            self.take(attributes.clone());
            return true;
        };
        if !given.looks_unread() || given.is_dead() {
            return false;
        }
        // A reader that has bytes of the old version in hand finds its ledger frozen, and reads again.
        let account = given.freeze();
        let moves = account.is_empty();
        let attributes = if moves { attributes.clone() } else { now };
        self.move_on(attributes, account, meter);
        moves
    }

    /// The inode, for a READ: one for all READs of it, if there will be several.
    pub(super) fn inode_to_read(&mut self, meter: &Meter) -> Arc<Inode> {
        self.open_ledger(meter);
        let inode = self.inode();
        if self.size > ONE_READ_BYTES && self.kind == FileKind::File {
            self.rare(|rare| rare.kept = Some(Arc::clone(&inode)));
        }
        inode
    }

    /// Whether [`Slot::inode_to_read`] would change nothing.
    pub(super) fn is_ready_to_read(&self) -> bool {
        let kept = (self.rare.as_deref()).is_some_and(|rare| rare.kept.is_some());
        kept || self.size <= ONE_READ_BYTES || self.kind != FileKind::File
    }

    pub(super) fn version(&self) -> Version {
        self.version
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    pub(super) fn listed(&self) -> Option<Edition> {
        self.rare.as_deref()?.listed
    }

    pub(super) fn set_listed(&mut self, edition: Option<Edition>) {
        self.rare(|rare| rare.listed = edition);
    }

    /// Its path. Makes it, but for a directory's.
    pub(super) fn path(&self) -> ItemPath {
        match &self.place {
            Place::Directory(path) => path.clone(),
            // It was joined when the slot was made.
            Place::Entry(parent, name) => parent.join(name).unwrap_or_else(|_| parent.clone()),
        }
    }

    /// The directory that holds it, and its name there; `None` for the root.
    pub(super) fn entry(&self) -> Option<(ItemPath, Bytes)> {
        match &self.place {
            Place::Directory(path) => {
                let (parent, name) = path.split()?;
                Some((parent, Bytes::copy_from_slice(name)))
            }
            Place::Entry(parent, name) => Some((parent.clone(), Bytes::copy_from_slice(name))),
        }
    }

    /// Whether it is the inode of `name` in `parent` in state `version`.
    pub(super) fn is_of(&self, parent: &ItemPath, name: &[u8], version: Version) -> bool {
        self.version == version && self.is_at(parent, name)
    }

    /// Whether it is an inode of `name` in `parent`.
    pub(super) fn is_at(&self, parent: &ItemPath, name: &[u8]) -> bool {
        match &self.place {
            Place::Entry(own_parent, own_name) => **own_name == *name && own_parent == parent,
            Place::Directory(path) => match path.split() {
                Some((own_parent, own_name)) => own_name == name && own_parent == *parent,
                None => parent.is_root() && name.is_empty(),
            },
        }
    }

    /// Whether it is `top` or lies below it; `split` is [`ItemPath::split`] of `top`.
    pub(super) fn is_within(&self, top: &ItemPath, split: Option<&(ItemPath, &[u8])>) -> bool {
        match &self.place {
            Place::Directory(path) => path.is_within(top),
            Place::Entry(parent, name) => {
                parent.is_within(top)
                    || split.is_some_and(|(above, last)| parent == above && **name == **last)
            }
        }
    }

    /// Someone asks for it.
    pub(super) fn touch(&self) {
        self.touched.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked for since this was last called.
    pub(super) fn was_touched(&self) -> bool {
        self.touched.swap(false, Ordering::Relaxed)
    }

    /// The memory that it takes, in bytes; an upper estimate.
    pub(super) fn cost(&self) -> u64 {
        let place = match &self.place {
            Place::Directory(path) => DIRECTORY_BYTES + path.as_bytes().len() as u64,
            Place::Entry(_, name) => name.len() as u64,
        };
        let rare = self.rare.as_deref().map_or(0, Rare::cost);
        SLOT_BYTES + NAME_BYTES + place + rare
    }

    fn rare(&mut self, change: impl FnOnce(&mut Rare)) {
        let mut rare = self.rare.take().unwrap_or_default();
        change(&mut rare);
        self.rare = (!rare.is_empty()).then_some(rare);
    }
}

impl Place {
    fn of(parent: &ItemPath, name: &[u8], kind: FileKind) -> Self {
        if kind == FileKind::Directory {
            let path = if name.is_empty() {
                Ok(parent.clone())
            } else {
                parent.join(name)
            };
            if let Ok(path) = path {
                return Self::Directory(path);
            }
        }
        Self::Entry(parent.clone(), name.into())
    }
}

//! An inode as the table stores it. It is small, because there is one for each name that the kernel holds.
//!
//! Invariants: only a directory's slot has its whole path, which the names in it share. Fields that few inodes
//! need ([`Rare`]) are in a separate allocation. [`Slot::cost`] covers all memory of the slot, so that the sum of
//! costs bounds the memory of the table.

use super::{Inode, may_become};
use crate::read::{Edition, FileRef, Meter, ReadAhead, Returned, ReturnedEntry, ReturnedParts};
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, BLOCK_BYTES, ContentHash, FileKind, ItemPath, Standing, Timestamp, Version,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Memory of a slot without its name and rare fields: the slot, its entries in the map and in the queue,
/// and the allocator's overhead (see `a_name_costs_no_more_than_it_is_charged`).
const SLOT_BYTES: u64 = 344;
/// Memory of the rare fields.
const RARE_BYTES: u64 = 160;
/// Memory of an inode that several READs share, with the positions of its readers.
const KEPT_BYTES: u64 = 768;
/// The allocator's overhead for a name.
const NAME_BYTES: u64 = 16;
/// A directory's entry in the map of directories.
const DIRECTORY_BYTES: u64 = 64;

/// A larger file is read by several READs, so the state that they share is kept.
const ONE_READ_BYTES: u64 = 128 << 10;

/// The path of an inode.
enum SlotPath {
    /// The path of a directory, shared with the names in it.
    Directory(ItemPath),
    /// The path of any other inode's directory, and its name there.
    Entry(ItemPath, Box<[u8]>),
}

/// Where an inode is in the namespace.
pub(super) enum Place<'a> {
    /// A directory at this path.
    Directory(&'a ItemPath),
    /// Another inode: its directory, and its name there.
    In(&'a ItemPath, &'a [u8]),
}

/// Fields that few inodes have.
#[derive(Default)]
struct Rare {
    device: u64,
    link_target: Option<Bytes>,
    content: Option<ContentHash>,
    /// For a directory: the listing of it that the kernel may have cached.
    listed: Option<Edition>,
    /// For a file that is read by several READs: the inode that they share.
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

/// An inode in the table. See the module.
pub(super) struct Slot {
    pub(super) number: u64,
    path: SlotPath,
    pub(super) version: Version,
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
    /// For a file that was read: the record of returned bytes. It charges its memory itself.
    given: OnceLock<Returned>,
    /// References of the kernel: look-ups that it has not forgotten yet.
    pub(super) references: u64,
    /// Distinguishes this slot from an earlier one with the same number.
    pub(super) life: u32,
    /// Its bytes were pushed into the page cache since the kernel looked it up.
    pub(super) pushed: bool,
    /// For a directory that was cleared: its attributes have to be requested again.
    pub(super) outdated: bool,
    /// The kernel was requested to drop it.
    pub(super) condemned: bool,
    /// It was used since pruning last examined it.
    touched: AtomicBool,
}

impl Slot {
    /// The inode of `name` in `parent`, together the path `path`.
    pub(super) fn new(
        number: u64,
        path: &ItemPath,
        parent: &ItemPath,
        name: &[u8],
        attributes: Attributes,
    ) -> Self {
        let path = match attributes.kind {
            FileKind::Directory => SlotPath::Directory(path.clone()),
            _ => SlotPath::Entry(parent.clone(), name.into()),
        };
        let mut slot = Self {
            number,
            path,
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
            // The kept inode has the old attributes.
            rare.kept = None;
        });
    }

    /// Takes newer attributes of the same version.
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

    /// The inode, for a single request.
    pub(super) fn inode(&self) -> Arc<Inode> {
        if let Some(kept) = self.rare.as_deref().and_then(|rare| rare.kept.as_ref()) {
            return Arc::clone(kept);
        }
        let attributes = self.attributes();
        Arc::new(Inode {
            number: self.number,
            file: self.file(),
            attributes,
            ahead: ReadAhead::default(),
            given: self.given.get().cloned().unwrap_or_else(Returned::none),
        })
    }

    /// Starts the record of returned bytes, for files only.
    pub(super) fn open_ledger(&self, meter: &Meter) {
        if self.kind == FileKind::File {
            self.ledger(meter);
        }
    }

    /// Returns the record of returned bytes of a file. Starts it if there is none.
    pub(super) fn ledger(&self, meter: &Meter) -> &Returned {
        self.given
            .get_or_init(|| Returned::of(ReturnedParts::default(), self.is_single(), meter))
    }

    /// The file in its version, for a single request.
    pub(super) fn file(&self) -> FileRef {
        let content = self.rare.as_deref().and_then(|rare| rare.content);
        FileRef::new(self.path(), self.version, self.size, content)
    }

    pub(super) fn kind(&self) -> FileKind {
        self.kind
    }

    /// Whether bytes of it may have been returned.
    pub(super) fn was_read(&self) -> bool {
        self.given.get().is_some_and(|given| !given.looks_unread())
    }

    /// The short hash of its only block, if it was returned.
    pub(super) fn only_block(&self) -> Option<[u8; 16]> {
        self.given.get()?.only_block()
    }

    /// Returns what was returned of it.
    pub(super) fn returned(&self) -> Vec<ReturnedEntry> {
        self.given.get().map_or_else(Vec::new, Returned::entries)
    }

    /// Takes the version of an unsettled look at the file, under which the bytes of `account` were returned.
    pub(super) fn was_returned(&mut self, look: u64, account: ReturnedParts, meter: &Meter) {
        self.version = self.version.standing_as(Standing::Unsettled(look));
        self.given = OnceLock::from(Returned::of(account, self.is_single(), meter));
    }

    pub(super) fn has_ledger(&self, given: &Returned) -> bool {
        self.given.get().is_some_and(|own| own.is(given))
    }

    fn is_single(&self) -> bool {
        self.size <= BLOCK_BYTES
    }

    /// Takes the attributes of a version that contains all bytes that were returned.
    pub(super) fn move_on(
        &mut self,
        attributes: Attributes,
        account: ReturnedParts,
        meter: &Meter,
    ) {
        self.given = OnceLock::from(Returned::of(account, self.is_single(), meter));
        self.take(attributes);
    }

    /// Takes the attributes of a version that differs only in status, if no bytes of the old version were
    /// returned. Returns whether it did.
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
        // A reader that still holds bytes of the old version finds its ledger frozen, and reads again.
        let account = given.freeze();
        let moves = account.is_empty();
        let attributes = if moves { attributes.clone() } else { now };
        self.move_on(attributes, account, meter);
        moves
    }

    /// The inode, for a READ. If there will be several READs, they share it.
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

    pub(super) fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    pub(super) fn listed(&self) -> Option<Edition> {
        self.rare.as_deref()?.listed
    }

    pub(super) fn set_listed(&mut self, edition: Option<Edition>) {
        self.rare(|rare| rare.listed = edition);
    }

    /// Its path. Allocates memory, except for a directory.
    pub(super) fn path(&self) -> ItemPath {
        match &self.path {
            SlotPath::Directory(path) => path.clone(),
            // The slot was created from a path that this join produced, so it cannot fail.
            SlotPath::Entry(parent, name) => parent.join(name).unwrap_or_else(|_| parent.clone()),
        }
    }

    /// Where it is.
    pub(super) fn place(&self) -> Place<'_> {
        match &self.path {
            SlotPath::Directory(path) => Place::Directory(path),
            SlotPath::Entry(parent, name) => Place::In(parent, name),
        }
    }

    /// The parent directory and its name there. Returns `None` for the root.
    pub(super) fn entry(&self) -> Option<(ItemPath, Bytes)> {
        match &self.path {
            SlotPath::Directory(path) => {
                let (parent, name) = path.split()?;
                Some((parent, Bytes::copy_from_slice(name)))
            }
            SlotPath::Entry(parent, name) => Some((parent.clone(), Bytes::copy_from_slice(name))),
        }
    }

    /// Whether it is the inode of `name` in `parent` with version `version`.
    pub(super) fn is_of(&self, parent: &ItemPath, name: &[u8], version: Version) -> bool {
        self.version == version && self.is_at(parent, name)
    }

    /// Whether it is an inode of `name` in `parent`.
    pub(super) fn is_at(&self, parent: &ItemPath, name: &[u8]) -> bool {
        match &self.path {
            SlotPath::Entry(own_parent, own_name) => **own_name == *name && own_parent == parent,
            SlotPath::Directory(path) => match path.split() {
                Some((own_parent, own_name)) => own_name == name && own_parent == *parent,
                None => parent.is_root() && name.is_empty(),
            },
        }
    }

    /// Whether it is at `top` or below; `split` is the result of [`ItemPath::split`] for `top`.
    pub(super) fn is_within(&self, top: &ItemPath, split: Option<&(ItemPath, &[u8])>) -> bool {
        match &self.path {
            SlotPath::Directory(path) => path.is_within(top),
            SlotPath::Entry(parent, name) => {
                parent.is_within(top)
                    || split.is_some_and(|(above, last)| parent == above && **name == **last)
            }
        }
    }

    /// Marks it as used.
    pub(super) fn touch(&self) {
        self.touched.store(true, Ordering::Relaxed);
    }

    /// Whether it was used since the last call.
    pub(super) fn was_touched(&self) -> bool {
        self.touched.swap(false, Ordering::Relaxed)
    }

    /// The memory that it takes, in bytes; an upper estimate.
    pub(super) fn cost(&self) -> u64 {
        let path = match &self.path {
            SlotPath::Directory(path) => DIRECTORY_BYTES + path.as_bytes().len() as u64,
            SlotPath::Entry(_, name) => name.len() as u64,
        };
        let rare = self.rare.as_deref().map_or(0, Rare::cost);
        SLOT_BYTES + NAME_BYTES + path + rare
    }

    fn rare(&mut self, change: impl FnOnce(&mut Rare)) {
        let mut rare = self.rare.take().unwrap_or_default();
        change(&mut rare);
        self.rare = (!rare.is_empty()).then_some(rare);
    }
}

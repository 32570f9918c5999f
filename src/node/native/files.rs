//! The files from which images are written and read: of each image its tree, and twice its data file.

use super::data::DataFile;
use crate::image::files::{self, ImageFile};
use bytes::Bytes;
use copperfs_fuse::{Answer, Attr, FileKind, FsError, Ino, Lookup, Response};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How long the kernel may use what it knows of a file or of their directory, which never change.
pub(super) const TTL: Duration = Duration::from_secs(3600);

/// The number of an image of this mount. Later ones have larger numbers.
pub(super) type Number = u32;

fn ino(number: Number, which: ImageFile) -> Ino {
    Ino((u64::from(number) << 2) | which as u64)
}

/// One image.
struct Image {
    /// Names and attributes, until the image is mounted.
    tree: Option<Bytes>,
    data: Arc<DataFile>,
    /// Bytes of small files that the kernel has read from the data file since it was last told to drop them.
    unspent: u64,
    /// The kernel's references to the data file, as small and as large files are read; `None` if another daemon has counted
    /// them.
    references: [Option<u64>; 2],
    /// It is the latest one of its directory.
    is_current: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct Files {
    images: Mutex<BTreeMap<Number, Image>>,
    /// Bytes of data files were read.
    is_read: Notify,
}

impl Files {
    /// Adds image `number`, which is then the current one of its directory.
    pub(super) fn add(&self, number: Number, tree: Option<Bytes>, data: DataFile) {
        let image = Image {
            // Without the tree it is the image of an earlier daemon, which is mounted.
            references: [tree.is_some().then_some(0); 2],
            tree,
            data: Arc::new(data),
            unspent: 0,
            is_current: true,
        };
        self.images.lock().insert(number, image);
    }

    /// Image `number` is mounted, so its tree is not needed any more. Returns whether it was there.
    pub(super) fn mounted(&self, number: Number) -> bool {
        let mut images = self.images.lock();
        let image = images.get_mut(&number);
        image.is_some_and(|image| image.tree.take().is_some())
    }

    /// Whether image `number` was mounted once: its tree is gone.
    pub(super) fn was_mounted(&self, number: Number) -> bool {
        let images = self.images.lock();
        images
            .get(&number)
            .is_some_and(|image| image.tree.is_none())
    }

    /// Image `number` is not the current one any more. Returns whether the kernel still holds its data file.
    pub(super) fn retire(&self, number: Number) -> bool {
        let mut images = self.images.lock();
        let Some(image) = images.get_mut(&number) else {
            return false;
        };
        image.is_current = false;
        image.tree = None;
        let is_held = image.is_held();
        if !is_held {
            images.remove(&number);
        }
        is_held
    }

    /// Whether image `number` can still be read.
    pub(super) fn contains(&self, number: Number) -> bool {
        self.images.lock().contains_key(&number)
    }

    /// Looks up a name.
    pub(super) fn look_up(&self, name: &[u8], owner: u32) -> Lookup {
        // The kernel must ask again: an image with this number may come.
        let absent = Lookup::Absent {
            ttl: Duration::ZERO,
        };
        let Some((number, which)) = files::parse(name) else {
            return absent;
        };
        let mut images = self.images.lock();
        let image = images.get_mut(&number);
        let Some(image) = image.filter(|image| image.is_current) else {
            return absent;
        };
        if let Some(Some(references)) = image.references_to(which) {
            *references += 1;
        }
        attr(image, number, which, owner).map_or(absent, Lookup::Found)
    }

    /// The attributes of a file.
    pub(super) fn attr(&self, ino: Ino, owner: u32) -> Result<Attr, FsError> {
        let (number, which) = of(ino)?;
        let images = self.images.lock();
        let image = images.get(&number).ok_or(FsError::Stale)?;
        attr(image, number, which, owner).ok_or(FsError::Stale)
    }

    /// Bytes of a file.
    pub(super) fn read(&self, ino: Ino, offset: u64, size: u32) -> Response<Bytes> {
        let (number, which) = of(ino)?;
        let data = {
            let mut images = self.images.lock();
            let image = images.get_mut(&number).ok_or(FsError::Stale)?;
            if which == ImageFile::Tree {
                let tree = image.tree.as_ref().ok_or(FsError::Stale)?;
                let begin = usize::try_from(offset)
                    .unwrap_or(usize::MAX)
                    .min(tree.len());
                let end = begin.saturating_add(size as usize).min(tree.len());
                return Ok(Answer::Ready(tree.slice(begin..end)));
            }
            if which == ImageFile::Small {
                image.unspent += u64::from(size);
                self.is_read.notify_one();
            }
            Arc::clone(&image.data)
        };
        data.read(offset, size)
    }

    /// Waits until small files of a data file are read, or returns at once if one was since the last call.
    pub(super) async fn until_read(&self) {
        self.is_read.notified().await;
    }

    /// The bytes of small files that the kernel has read from each data file since it was last told to drop them.
    pub(super) fn read_bytes(&self) -> Vec<u64> {
        self.images
            .lock()
            .values()
            .map(|image| image.unspent)
            .collect()
    }

    /// The data files of which the kernel has read at least `bytes_min` since they were last returned.
    pub(super) fn take_spent(&self, bytes_min: u64) -> Vec<Ino> {
        let mut images = self.images.lock();
        let spent = images
            .iter_mut()
            .filter(|(_, image)| image.unspent >= bytes_min);
        let spent = spent.map(|(number, image)| {
            image.unspent = 0;
            ino(*number, ImageFile::Small)
        });
        spent.collect()
    }

    /// The kernel has dropped `count` references to a file. Returns the number of the image if nothing needs it any more.
    pub(super) fn forget(&self, ino: Ino, count: u64) -> Option<Number> {
        let (number, which) = of(ino).ok()?;
        let mut images = self.images.lock();
        let image = images.get_mut(&number)?;
        let references = image.references_to(which)?;
        // The kernel drops all at once, so those that an earlier daemon has counted are among them.
        *references = Some(references.map_or(0, |known| known.saturating_sub(count)));
        let is_gone = !image.is_held() && !image.is_current;
        if is_gone {
            images.remove(&number);
        }
        is_gone.then_some(number)
    }
}

impl Image {
    /// The kernel's references to the data file in this form; the outer `None` for the tree.
    fn references_to(&mut self, which: ImageFile) -> Option<&mut Option<u64>> {
        match which {
            ImageFile::Tree => None,
            ImageFile::Small => self.references.first_mut(),
            ImageFile::Large => self.references.last_mut(),
        }
    }

    fn is_held(&self) -> bool {
        self.references != [Some(0); 2]
    }
}

fn of(ino: Ino) -> Result<(Number, ImageFile), FsError> {
    let mut all = ImageFile::ALL.into_iter();
    let which = all.find(|which| *which as u64 == ino.0 & 3);
    let number = Number::try_from(ino.0 >> 2).ok();
    number.zip(which).ok_or(FsError::Stale)
}

/// Whether reads of a file are direct: the kernel copies the bytes once, and has no pages of the data file.
pub(super) fn is_direct(ino: Ino) -> bool {
    matches!(of(ino), Ok((_, ImageFile::Large)))
}

fn attr(image: &Image, number: Number, which: ImageFile, owner: u32) -> Option<Attr> {
    let size = match which {
        ImageFile::Tree => image.tree.as_ref()?.len() as u64,
        ImageFile::Small | ImageFile::Large => image.data.size(),
    };
    Some(Attr {
        ino: ino(number, which),
        kind: FileKind::File,
        mode: 0o400,
        uid: owner,
        links: 1,
        size,
        block_size: 4096,
        ttl: TTL,
        ..Attr::default()
    })
}

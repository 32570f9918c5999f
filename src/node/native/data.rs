//! The data file of an image: the contents of all its files, one behind the other.

use crate::image::ahead::Ahead;
use crate::image::extents::{Damaged, Extent, Extents, Piece, Step};
use crate::namespace::{Parent, ROOT};
use crate::node::front::Front;
use crate::num::to_usize;
use crate::read::FileRef;
use bytes::{Bytes, BytesMut};
use copperfs_fuse::{Answer, Backend, FsError, Ino, Response};
use copperfs_overlay::{Attributes, FileKind, ItemPath};
use dashmap::DashMap;
use futures_util::FutureExt;
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How long files wait for each other that the kernel reads at once. Then the answer is an error, and the kernel asks again
/// for the page that its reader needs. So a file that is there does not wait for a neighbour whose storage hangs.
const TOGETHER_TIMEOUT: Duration = Duration::from_secs(2);

/// See the module.
pub(super) struct DataFile {
    extents: Extents<Vec<u8>>,
    /// The top of the image in the namespace.
    prefix: ItemPath,
    /// Answers reads of the files. Its inodes are those of this image alone: no kernel knows them, and the ledgers of what
    /// was returned are theirs.
    front: Front,
    /// The number there of each file that was read.
    inodes: DashMap<usize, Ino>,
    /// Locked for a moment in each read.
    ahead: Mutex<Ahead>,
}

/// A part of an answer, in its place.
enum Part {
    Zeros(usize),
    Bytes(Answer<Bytes>),
}

impl DataFile {
    /// That of the image of the directory `prefix`, whose files are in the table `extents`.
    ///
    /// # Errors
    /// The table is damaged.
    pub(super) fn new(extents: Vec<u8>, prefix: ItemPath, front: Front) -> Result<Self, Damaged> {
        let extents = Extents::open(extents)?;
        Ok(Self {
            ahead: Mutex::new(Ahead::new(&extents)?),
            extents,
            prefix,
            front,
            inodes: DashMap::new(),
        })
    }

    /// Its size in bytes.
    pub(super) fn size(&self) -> u64 {
        self.extents.size()
    }

    /// Returns `size` bytes from `offset`; fewer only at the end. A failure of one file fails the whole answer: the kernel
    /// then asks again for the page that a program needs.
    pub(super) fn read(self: &Arc<Self>, offset: u64, size: u32) -> Response<Bytes> {
        let range = offset..offset.saturating_add(size.into());
        let pieces = self.extents.pieces(range.clone()).map_err(damaged)?;
        self.go_ahead(&pieces)?;
        if let [piece @ Piece::File { .. }] = pieces[..] {
            return self.bytes(piece);
        }
        let together = self.unread(&pieces)?;
        if together.is_empty() {
            return Ok(join(self.parts(pieces)?));
        }
        let this = Arc::clone(self);
        let all = async move {
            for (directory, names) in together {
                this.front.fetch_together(&directory, &names).await;
            }
            join(this.parts(pieces)?).resolve().await
        };
        Ok(Answer::Pending(in_time(all).boxed()))
    }

    /// Requests the parts of files that a reader of `pieces` wants next.
    fn go_ahead(&self, pieces: &[Piece]) -> Result<(), FsError> {
        let next = self.ahead.lock().on_read(pieces).to_vec();
        let mut parts: Vec<(usize, Range<u64>)> = Vec::new();
        for Step { file, part } in next {
            let part = u64::from(part);
            match parts.last_mut() {
                Some((last, parts)) if *last == file && parts.end == part => parts.end += 1,
                _ => parts.push((file, part..part + 1)),
            }
        }
        if !parts.is_empty() {
            let parts = parts.into_iter().map(|(file, parts)| {
                let extent = self.extents.file(file).map_err(damaged)?;
                let path = self.prefix.below(&extent.path);
                let path = path.map_err(|_too_long| FsError::NameTooLong)?;
                Ok((FileRef::of(path, &attributes(&extent)), parts))
            });
            let parts = parts.collect::<Result<_, FsError>>()?;
            self.front.fetch_ahead(parts);
        }
        Ok(())
    }

    /// The files of several pieces that were not read before, by their directories: they are requested together. None, if
    /// it is one file.
    fn unread(&self, pieces: &[Piece]) -> Result<BTreeMap<ItemPath, Vec<Bytes>>, FsError> {
        let mut together: BTreeMap<ItemPath, Vec<Bytes>> = BTreeMap::new();
        let unread = pieces.iter().filter_map(|piece| match piece {
            Piece::File { file, .. } if !self.inodes.contains_key(file) => Some(*file),
            _ => None,
        });
        let unread: Vec<usize> = unread.collect();
        if unread.len() > 1 {
            for file in unread {
                let (_, directory, name) = self.learn(file)?;
                together.entry(directory).or_default().push(name);
            }
        }
        Ok(together)
    }

    fn parts(&self, pieces: Vec<Piece>) -> Result<Vec<Part>, FsError> {
        let part = |piece| match piece {
            Piece::Zeros(len) => Ok(Part::Zeros(to_usize(len))),
            piece @ Piece::File { .. } => self.bytes(piece).map(Part::Bytes),
        };
        pieces.into_iter().map(part).collect()
    }

    /// Reads the file of a piece.
    fn bytes(&self, piece: Piece) -> Response<Bytes> {
        let Piece::File { file, offset, len } = piece else {
            return Ok(Answer::Ready(Bytes::new()));
        };
        let size = u32::try_from(len).unwrap_or(u32::MAX);
        if let Some(known) = self.inodes.get(&file) {
            return self.front.read(*known, 0, offset, size);
        }
        let (ino, directory, _) = self.learn(file)?;
        if self.front.knows_listing(&directory) {
            return self.front.read(ino, 0, offset, size);
        }
        // No look-up has listed the directory, and without its listing nothing of it is prefetched.
        let front = self.front.clone();
        Ok(Answer::Pending(Box::pin(async move {
            front.list_ahead(&directory).await;
            front.read(ino, 0, offset, size)?.resolve().await
        })))
    }

    /// Makes a file known to the front. Returns its number there, its directory and its name.
    fn learn(&self, file: usize) -> Result<(Ino, ItemPath, Bytes), FsError> {
        let extent = self.extents.file(file).map_err(damaged)?;
        let attributes = attributes(&extent);
        let path = self.prefix.below(&extent.path);
        let place = path.as_ref().ok().and_then(ItemPath::split);
        let (Ok(path), Some((directory, name))) = (&path, place) else {
            return Err(FsError::NameTooLong);
        };
        let parent = Parent {
            number: ROOT,
            path: &directory,
        };
        let number = self.front.inodes.learn(path, parent, name, attributes);
        let ino = Ino(number);
        // Another reader may have been faster; then the table has one reference more, which goes with it.
        let ino = *self.inodes.entry(file).or_insert(ino);
        let name = Bytes::copy_from_slice(name);
        Ok((ino, directory, name))
    }
}

fn damaged(error: Damaged) -> FsError {
    tracing::error!(%error, "an image cannot be read");
    FsError::Io
}

/// What the read path must know of a file.
fn attributes(extent: &Extent) -> Attributes {
    Attributes {
        kind: FileKind::File,
        mode: 0,
        uid: 0,
        gid: 0,
        links: 1,
        device: 0,
        size: extent.size,
        blocks: 0,
        block_size: 0,
        atime: extent.mtime,
        mtime: extent.mtime,
        ctime: extent.mtime,
        version: extent.state.version,
        link_target: None,
        content: extent.state.content,
    }
}

/// The bytes of all parts, one behind the other: at once, if all are ready.
fn join(parts: Vec<Part>) -> Answer<Bytes> {
    let waits =
        |part: &Part| matches!(part, Part::Bytes(Answer::Pending(_) | Answer::Unbounded(_)));
    if !parts.iter().any(waits) {
        let ready = parts.into_iter().map(|part| match part {
            Part::Bytes(Answer::Ready(bytes)) => (bytes, 0),
            Part::Bytes(_) => (Bytes::new(), 0),
            Part::Zeros(len) => (Bytes::new(), len),
        });
        return Answer::Ready(joined(ready));
    }
    let all = async move {
        let parts = parts.into_iter().map(async |part| match part {
            Part::Zeros(len) => Ok((Bytes::new(), len)),
            Part::Bytes(answer) => Ok::<_, FsError>((answer.resolve().await?, 0)),
        });
        Ok(joined(try_join_all(parts).await?))
    };
    Answer::Pending(in_time(all).boxed())
}

/// Returns what `all` does, or an error after [`TOGETHER_TIMEOUT`].
async fn in_time(all: impl Future<Output = Result<Bytes, FsError>>) -> Result<Bytes, FsError> {
    let outcome = tokio::time::timeout(TOGETHER_TIMEOUT, all).await;
    outcome.unwrap_or(Err(FsError::Io))
}

/// Bytes, each followed by that many zeros.
fn joined(parts: impl IntoIterator<Item = (Bytes, usize)>) -> Bytes {
    let parts: Vec<(Bytes, usize)> = parts.into_iter().collect();
    let len = parts.iter().map(|(bytes, zeros)| bytes.len() + zeros).sum();
    let mut all = BytesMut::with_capacity(len);
    for (bytes, zeros) in parts {
        all.extend_from_slice(&bytes);
        all.resize(all.len() + zeros, 0);
    }
    all.freeze()
}

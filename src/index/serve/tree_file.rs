//! An index that lies in the namespace: its attributes are asked for once, its bytes come through this
//! node's own read path, as those of any file.

use crate::index::IndexError;
use crate::index::read::{Bytestore, Index};
use crate::num::to_usize;
use crate::read::{FileRef, ReadAhead, ReadPath};
use bytes::{Bytes, BytesMut};
use copperfs_overlay::{Entry, Failure, FailureKind, FileKind, Files, ItemPath};
use futures_util::future::BoxFuture;
use std::sync::{Arc, OnceLock};

/// Most bytes of one read.
const READ_BYTES_MAX: usize = 1 << 20;

/// Where the index is, and how it is reached.
#[derive(Clone)]
pub struct TreeFile {
    path: ItemPath,
    /// What is asked for the file's attributes: not the read path, whose listings come from the index.
    source: Arc<dyn Files>,
    /// What is asked for its bytes; set when the node has one.
    read: Arc<OnceLock<ReadPath>>,
}

impl std::fmt::Debug for TreeFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TreeFile").field(&self.path).finish()
    }
}

impl TreeFile {
    /// The file at `path`, behind `source`, whose bytes `read` fetches.
    #[must_use]
    pub fn new(path: ItemPath, source: Arc<dyn Files>, read: Arc<OnceLock<ReadPath>>) -> Self {
        Self { path, source, read }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &ItemPath {
        &self.path
    }

    /// Opens it as an index, apart from any prefix.
    ///
    /// # Errors
    /// It cannot be read, or is not a whole index of this version.
    pub async fn index(&self) -> Result<Index, IndexError> {
        let (opened, _own) = self.open().await?;
        Index::open(Arc::new(opened)).await
    }

    /// Its bytes, and its entry in the directory that it lies in.
    pub(super) async fn open(&self) -> Result<(Opened, Entry), IndexError> {
        let failed = |failure| IndexError::Read {
            name: self.path.to_string(),
            failure,
        };
        let wrong = |kind, detail: &str| failed(Failure::new(kind, detail));
        let (parent, name) = self
            .path
            .split()
            .ok_or_else(|| wrong(FailureKind::IsADirectory, "the top is no file"))?;
        let name = Bytes::copy_from_slice(name);
        let answers = self.source.stat(parent, vec![name.clone()]).await;
        let found = answers.map_err(failed)?.value.into_iter().next();
        let found = found.unwrap_or_else(|| Err(Failure::not_found(&self.path)));
        let found = found.map_err(failed)?;
        if found.kind != FileKind::File {
            return Err(wrong(FailureKind::Unsupported, "it is no file"));
        }
        let read = self
            .read
            .get()
            .cloned()
            .ok_or_else(|| wrong(FailureKind::Unavailable, "the node has not started yet"))?;
        let opened = Opened {
            file: FileRef::of(self.path.clone(), &found),
            ahead: ReadAhead::default(),
            read,
        };
        let entry = Entry {
            name,
            kind: FileKind::File,
            attributes: Some(found),
        };
        Ok((opened, entry))
    }
}

/// The file in the state in which it was opened.
pub(super) struct Opened {
    file: FileRef,
    ahead: ReadAhead,
    read: ReadPath,
}

impl Bytestore for Opened {
    fn name(&self) -> String {
        self.file.path.to_string()
    }

    fn len(&self) -> u64 {
        self.file.size
    }

    fn read(&self, offset: u64, len: usize) -> BoxFuture<'_, Result<Bytes, IndexError>> {
        Box::pin(async move {
            let failed = |failure| IndexError::Read {
                name: self.name(),
                failure,
            };
            let mut bytes = BytesMut::with_capacity(len);
            while bytes.len() < len {
                let at = offset + bytes.len() as u64;
                let size = (len - bytes.len()).min(READ_BYTES_MAX);
                let size = u32::try_from(size).unwrap_or(u32::MAX);
                let piece = match self.read.data().try_read(&self.file, at, size) {
                    Some(piece) => piece,
                    None => {
                        let reading = self.read.read(&self.file, &self.ahead, at, size);
                        reading.await.map_err(failed)?
                    }
                };
                if piece.bytes.is_empty() {
                    let detail = format!("it ends before byte {at}");
                    return Err(failed(Failure::new(FailureKind::Io, detail)));
                }
                bytes.extend_from_slice(&piece.bytes);
            }
            bytes.truncate(to_usize(len as u64));
            Ok(bytes.freeze())
        })
    }
}

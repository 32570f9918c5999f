//! An index, or another file that a node needs itself, in the namespace: its attributes are requested once, its bytes are
//! read through this node's own read path, like those of any file.

use crate::index::IndexError;
use crate::index::read::{Bytestore, Index};
use crate::read::{FileRef, ReadAhead, ReadPath};
use bytes::{Bytes, BytesMut};
use copperfs_overlay::{Entry, Failure, FailureKind, FileKind, Files, ItemPath};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The maximum size of one read.
const READ_BYTES_MAX: usize = 1 << 20;

/// How often a file is opened again that was written a moment ago, and the pause before that. Other nodes read it too, and
/// the bytes of such a file are valid for one of them, until it has settled.
const TRIES_MAX: u32 = 8;
const PAUSE: Duration = Duration::from_millis(250);

/// Repeats `attempt`, which opens a file and reads it, while the file is too young for its bytes to be the same at each read.
///
/// # Errors
/// Those of `attempt`.
pub(super) async fn until_settled<'a, T>(
    attempt: impl Fn() -> BoxFuture<'a, Result<T, IndexError>>,
) -> Result<T, IndexError> {
    let mut tries = 0;
    loop {
        match attempt().await {
            Err(IndexError::Read { failure, .. })
                if failure.kind == FailureKind::Stale && tries < TRIES_MAX =>
            {
                tries += 1;
                tracing::debug!(%failure, "read again");
                tokio::time::sleep(PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

/// The path of a file, and the sources of its attributes and its bytes.
#[derive(Clone)]
pub struct TreeFile {
    pub(super) path: ItemPath,
    /// The source of its attributes. Not the read path, whose listings come from the index.
    source: Arc<dyn Files>,
    /// The source of its bytes. Set late, because the read path is built on top of the index.
    read: Arc<OnceLock<ReadPath>>,
}

impl TreeFile {
    /// The index at `path`, with attributes from `source` and bytes from `read`.
    #[must_use]
    pub fn new(path: ItemPath, source: Arc<dyn Files>, read: Arc<OnceLock<ReadPath>>) -> Self {
        Self { path, source, read }
    }

    /// Opens the index without a prefix.
    ///
    /// # Errors
    /// It cannot be read, or is not a complete index of this version.
    pub async fn index(&self) -> Result<Index, IndexError> {
        let (opened, _own) = self.open().await?;
        Index::open(Arc::new(opened)).await
    }

    /// All bytes of the file.
    ///
    /// # Errors
    /// It cannot be read, or has more than `bytes_max`.
    pub async fn whole(&self, bytes_max: u64) -> Result<Bytes, IndexError> {
        until_settled(|| self.whole_once(bytes_max).boxed()).await
    }

    async fn whole_once(&self, bytes_max: u64) -> Result<Bytes, IndexError> {
        let (opened, _own) = self.open().await?;
        let len = usize::try_from(opened.size().min(bytes_max.saturating_add(1)));
        match len {
            Ok(len) if len as u64 <= bytes_max => opened.read(0, len).await,
            _ => {
                let detail = format!("it has more than {bytes_max} bytes");
                Err(IndexError::Read {
                    name: self.path.to_string(),
                    failure: Failure::new(FailureKind::Unsupported, detail),
                })
            }
        }
    }

    /// The file, and its entry in its directory.
    pub(super) async fn open(&self) -> Result<(OpenTreeFile, Entry), IndexError> {
        let failed = |failure| IndexError::Read {
            name: self.path.to_string(),
            failure,
        };
        let wrong = |kind, detail: &str| failed(Failure::new(kind, detail));
        let top = || wrong(FailureKind::IsADirectory, "the top is no file");
        let (parent, name) = self.path.split().ok_or_else(top)?;
        let name = Bytes::copy_from_slice(name);
        let answer = self.source.stat_one(parent, name.clone(), None).await;
        let found = answer.map_err(failed)?.value;
        if found.kind != FileKind::File {
            return Err(wrong(FailureKind::Unsupported, "it is no file"));
        }
        let starting = || wrong(FailureKind::Unavailable, "the node has not started yet");
        let read = self.read.get().cloned().ok_or_else(starting)?;
        let opened = OpenTreeFile {
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

/// The file in the version in which it was opened.
pub(super) struct OpenTreeFile {
    file: FileRef,
    ahead: ReadAhead,
    read: ReadPath,
}

impl Bytestore for OpenTreeFile {
    fn name(&self) -> String {
        self.file.path.to_string()
    }

    fn size(&self) -> u64 {
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
            bytes.truncate(len);
            Ok(bytes.freeze())
        })
    }
}

//! Reads an index from any store of bytes, with a few decoded blocks in memory.

use super::IndexError;
use super::format::{
    BLOCK_PARTS, BlockLocation, Decoder, DirectoryRecord, EntryRange, FormatError, HEADER_BYTES,
    Header, IndexedEntry, PART_HASH_BYTES, Tail, parts, unpack,
};
use super::write::io_error;
use crate::num::to_usize;
use bytes::Bytes;
use copperfs_overlay::ItemPath;
use futures_util::future::BoxFuture;
use lru::LruCache;
use parking_lot::Mutex;
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The number of cached decoded blocks: less than 10 MiB.
const BLOCKS_KEPT: NonZeroUsize = NonZeroUsize::new(128).unwrap();

/// A store with the bytes of an index.
pub trait Bytestore: Send + Sync + 'static {
    /// Its name in messages.
    fn name(&self) -> String;

    /// Its length in bytes.
    fn size(&self) -> u64;

    /// Exactly `len` bytes from `offset`.
    ///
    /// # Errors
    /// They cannot be read.
    fn read(&self, offset: u64, len: usize) -> BoxFuture<'_, Result<Bytes, IndexError>>;
}

/// A file on this host.
pub struct LocalFile {
    file: Arc<File>,
    path: PathBuf,
    len: u64,
}

impl LocalFile {
    /// Opens it.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> Result<Self, IndexError> {
        let failed = io_error("open the index", path);
        let file = File::open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if !meta.is_file() {
            return Err(failed(std::io::Error::other("it is no file")));
        }
        Ok(Self {
            file: Arc::new(file),
            path: path.to_owned(),
            len: meta.len(),
        })
    }
}

impl Bytestore for LocalFile {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn size(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, len: usize) -> BoxFuture<'_, Result<Bytes, IndexError>> {
        let file = Arc::clone(&self.file);
        Box::pin(async move {
            let reading = tokio::task::spawn_blocking(move || {
                let mut bytes = vec![0; len];
                file.read_exact_at(&mut bytes, offset).map(|()| bytes)
            });
            let read = reading.await?;
            let bytes = read.map_err(io_error("read the index", &self.path))?;
            Ok(bytes.into())
        })
    }
}

/// An open index.
pub struct Index {
    store: Arc<dyn Bytestore>,
    /// Its header.
    pub header: Header,
    /// Its tail.
    pub tail: Tail,
    /// Decoded blocks by their position in the file. Locked for a look-up, never across an await.
    blocks: Mutex<LruCache<u64, Arc<Vec<u8>>>>,
}

impl Index {
    /// Opens the index in `store`: reads its header and its tail.
    ///
    /// # Errors
    /// It cannot be read, or is not a complete index of this version.
    pub async fn open(store: Arc<dyn Bytestore>) -> Result<Self, IndexError> {
        let wrong = |source| IndexError::Format {
            name: store.name(),
            source,
        };
        let len = store.size();
        let head = usize::try_from(len).unwrap_or(usize::MAX).min(HEADER_BYTES);
        let header = Header::decode(&store.read(0, head).await?, len).map_err(wrong)?;
        let stored = store
            .read(header.tail_offset, header.tail_stored as usize)
            .await?;
        let tail = Tail::decode(&stored, &header).map_err(wrong)?;
        Ok(Self {
            header,
            tail,
            blocks: Mutex::new(LruCache::new(BLOCKS_KEPT)),
            store,
        })
    }

    /// Its name in messages.
    #[must_use]
    pub fn name(&self) -> String {
        self.store.name()
    }

    /// The record of directory `path`, relative to its top.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub async fn directory(&self, path: &ItemPath) -> Result<Option<DirectoryRecord>, IndexError> {
        let blocks = &self.tail.directories;
        let behind = blocks.partition_point(|(first, _)| first <= path);
        let Some((_, block)) = behind.checked_sub(1).and_then(|at| blocks.get(at)) else {
            return Ok(None);
        };
        let raw = self.block(*block).await?;
        let mut records = Decoder::new(&raw);
        while let Some(record) = records.directory().map_err(|source| self.wrong(source))? {
            if record.path >= *path {
                return Ok((record.path == *path).then_some(record));
            }
        }
        Ok(None)
    }

    /// The records of block `number` of all directories, in the order of their paths; `None` behind the last block.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub async fn directories(
        &self,
        number: usize,
    ) -> Result<Option<Vec<DirectoryRecord>>, IndexError> {
        let Some((_, block)) = self.tail.directories.get(number) else {
            return Ok(None);
        };
        let raw = self.block(*block).await?;
        let mut records = Decoder::new(&raw);
        let mut all = Vec::new();
        while let Some(record) = records.directory().map_err(|source| self.wrong(source))? {
            all.push(record);
        }
        Ok(Some(all))
    }

    /// Entries of the directory at `place` in the order of their names, at most `limit` of them: those after the
    /// name `after`, or from the first one. Also returns whether more follow.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub async fn entries(
        &self,
        place: &EntryRange,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<(Vec<IndexedEntry>, bool), IndexError> {
        let mut entries = Vec::new();
        if place.entries == 0 {
            return Ok((entries, false));
        }
        let mut number = match after {
            Some(name) => self.block_with(place, name).await?,
            None => place.first_block,
        };
        while number <= place.last_block {
            let raw = self.entry_block(number).await?;
            let mut run = self.run(place, number, &raw)?;
            while !run.is_empty() {
                let found = run.entry().map_err(|source| self.wrong(source))?;
                if after.is_some_and(|after| found.entry.name[..] <= *after) {
                    continue;
                }
                if entries.len() >= limit {
                    return Ok((entries, true));
                }
                entries.push(found);
            }
            number += 1;
        }
        Ok((entries, false))
    }

    /// The hashes of the parts of file `name` of the directory at `place`: one for each 4 MiB, if the hash of its
    /// content is known and it is longer than that; otherwise none.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub async fn parts(
        &self,
        place: &EntryRange,
        name: &[u8],
    ) -> Result<Vec<[u8; PART_HASH_BYTES]>, IndexError> {
        let Some(found) = self.find(place, name).await? else {
            return Ok(Vec::new());
        };
        let mut hashes = Vec::new();
        let (mut number, mut left) = (found.first_part, parts(&found.entry));
        // The number of hashes is bounded by the blocks that there are, whatever the entry says.
        while left > 0 {
            let block = self.tail.parts.get(to_usize(number / BLOCK_PARTS));
            let raw = match block {
                Some(block) => self.block(*block).await?,
                None => return Err(self.wrong(FormatError::Damaged("a file's parts"))),
            };
            let (of_block, _) = raw.as_chunks::<PART_HASH_BYTES>();
            let of_file = of_block.iter().skip(to_usize(number % BLOCK_PARTS));
            let before = hashes.len();
            hashes.extend(of_file.take(to_usize(left)));
            let taken = (hashes.len() - before) as u64;
            if taken == 0 {
                return Err(self.wrong(FormatError::Damaged("a file's parts")));
            }
            number += taken;
            left -= taken;
        }
        Ok(hashes)
    }

    /// The entry `name` of the directory at `place`.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub async fn find(
        &self,
        place: &EntryRange,
        name: &[u8],
    ) -> Result<Option<IndexedEntry>, IndexError> {
        if place.entries == 0 {
            return Ok(None);
        }
        let number = self.block_with(place, name).await?;
        let raw = self.entry_block(number).await?;
        let mut run = self.run(place, number, &raw)?;
        while !run.is_empty() {
            let found = run.entry().map_err(|source| self.wrong(source))?;
            if found.entry.name[..] >= *name {
                return Ok((found.entry.name[..] == *name).then_some(found));
            }
        }
        Ok(None)
    }

    /// The last block of the directory at `place` whose first name is not after `name`.
    async fn block_with(&self, place: &EntryRange, name: &[u8]) -> Result<u32, IndexError> {
        let (mut low, mut high) = (place.first_block, place.last_block);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            let raw = self.entry_block(middle).await?;
            let first = self.run(place, middle, &raw)?.entry();
            let first = first.map_err(|source| self.wrong(source))?;
            if first.entry.name[..] <= *name {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        Ok(low)
    }

    /// The part of entry block `number` that belongs to the directory at `place`.
    fn run<'a>(
        &self,
        place: &EntryRange,
        number: u32,
        raw: &'a [u8],
    ) -> Result<Decoder<'a>, IndexError> {
        let (is_first, is_last) = (number == place.first_block, number == place.last_block);
        let start = if is_first { place.offset as usize } else { 0 };
        let end = if is_last {
            place.end as usize
        } else {
            raw.len()
        };
        raw.get(start..end)
            .map(Decoder::new)
            .ok_or_else(|| self.wrong(FormatError::Damaged("a directory's place")))
    }

    async fn entry_block(&self, number: u32) -> Result<Arc<Vec<u8>>, IndexError> {
        match self.tail.entries.get(number as usize) {
            Some(block) => self.block(*block).await,
            None => Err(self.wrong(FormatError::Damaged("a directory's place"))),
        }
    }

    async fn block(&self, block: BlockLocation) -> Result<Arc<Vec<u8>>, IndexError> {
        let known = self.blocks.lock().get(&block.offset).map(Arc::clone);
        if let Some(known) = known {
            return Ok(known);
        }
        // Not locked meanwhile: two readers may decode the same block, which costs only time.
        let stored = self.store.read(block.offset, block.stored as usize).await?;
        let raw = unpack(&stored, block.raw as usize, &block.sum);
        let raw = Arc::new(raw.map_err(|source| self.wrong(source))?);
        self.blocks.lock().put(block.offset, Arc::clone(&raw));
        Ok(raw)
    }

    fn wrong(&self, source: FormatError) -> IndexError {
        IndexError::Format {
            name: self.store.name(),
            source,
        }
    }
}

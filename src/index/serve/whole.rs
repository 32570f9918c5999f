//! A whole tree from its index, for what cannot ask for single names: an image.

use super::{IndexedPrefix, OpenIndex};
use crate::index::IndexError;
use crate::index::format::{DirectoryRecord, IndexedEntry};
use bytes::Bytes;
use copperfs_overlay::{Attributes, Entry, Failure, FileKind, ItemPath, XattrList};
use std::collections::HashSet;

/// The entries of a directory that are decoded at a time.
const PAGE_ENTRIES: usize = 1 << 14;

/// A directory, after the one that it is in.
#[derive(Clone, Debug)]
pub struct WholeDirectory {
    /// Its path in the namespace.
    pub path: ItemPath,
    /// Its attributes.
    pub attributes: Attributes,
    /// Its extended attributes, if the index has them.
    pub xattrs: Option<XattrList>,
    /// Its entries, but for directories.
    pub entries: Vec<WholeEntry>,
}

/// An entry of a [`WholeDirectory`].
#[derive(Clone, Debug)]
pub struct WholeEntry {
    /// Its name.
    pub name: Bytes,
    /// Its attributes.
    pub attributes: Attributes,
    /// Its extended attributes, if the index has them.
    pub xattrs: Option<XattrList>,
}

/// Why an index does not have a whole tree.
#[derive(Debug, thiserror::Error)]
pub enum WholeError {
    /// It cannot be read.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// It cannot be opened again.
    #[error("{0}")]
    Reopen(Failure),
    /// It is not in use yet.
    #[error("the index of {0} is not open")]
    NotOpen(ItemPath),
    /// The path is not in it, or is no directory.
    #[error("the index has no directory {0}")]
    NoDirectory(ItemPath),
    /// It does not list a directory.
    #[error("the index does not list {0}, which could not be read when it was made")]
    Unlisted(ItemPath),
    /// It does not have the attributes of a file.
    #[error("the index does not know the attributes of {0}")]
    NoAttributes(ItemPath),
    /// Another origin serves a part of the tree.
    #[error("another origin serves {0}")]
    Elsewhere(ItemPath),
}

impl IndexedPrefix {
    /// The directory that the index is of.
    #[must_use]
    pub fn prefix(&self) -> &ItemPath {
        &self.prefix
    }

    /// Whether the index is one of `path`.
    #[must_use]
    pub fn covers(&self, path: &ItemPath) -> bool {
        path.is_within(&self.prefix)
    }

    /// Calls `each` with all directories from `top` on, as the mount shows them: the ones above come before the ones below.
    ///
    /// # Errors
    /// See [`WholeError`], or that of `each`.
    pub async fn whole<E: From<WholeError>>(
        &self,
        top: &ItemPath,
        mut each: impl FnMut(WholeDirectory) -> Result<(), E>,
    ) -> Result<(), E> {
        let elsewhere = |prefix: &&ItemPath| **prefix != self.prefix && prefix.is_within(top);
        if let Some(prefix) = self.rules.prefixes().iter().find(elsewhere) {
            return Err(WholeError::Elsewhere(prefix.clone()).into());
        }
        let opened = self.current().await.map_err(WholeError::Reopen)?;
        let opened = opened.ok_or_else(|| WholeError::NotOpen(self.prefix.clone()))?;
        let below = top
            .strip_prefix(&self.prefix)
            .unwrap_or_else(ItemPath::root);
        let index = &opened.index;
        let blocks = &index.tail.directories;
        let first = blocks.partition_point(|(first, _)| *first <= below);
        let mut number = first.saturating_sub(1);
        // Directories that were named, and whose records have not come yet: those of entries come after them.
        let mut missing = HashSet::from([top.clone()]);
        // Records are in the order of their bytes, so those with the beginning of `below` are together. Some of them are
        // beside it: `sw-old` comes between `sw` and `sw/lib`.
        let is_behind =
            |path: &ItemPath| *path > below && !path.as_bytes().starts_with(below.as_bytes());
        while let Some(records) = index.directories(number).await.map_err(WholeError::from)? {
            if records
                .first()
                .is_some_and(|record| is_behind(&record.path))
            {
                break;
            }
            for record in records {
                if record.path.is_within(&below)
                    && let Some(path) = self.shown_path(&record.path)
                {
                    missing.remove(&path);
                    let whole = self.whole_directory(&opened, record, path, &mut missing);
                    each(whole.await?)?;
                }
            }
            number += 1;
        }
        match missing.into_iter().next() {
            None => Ok(()),
            Some(path) => Err(WholeError::NoDirectory(path).into()),
        }
    }

    /// The path in the namespace of the directory at `below` in the index, unless it is hidden.
    fn shown_path(&self, below: &ItemPath) -> Option<ItemPath> {
        let path = self.prefix.below(below).ok()?;
        (!self.rules.hides(&path)).then_some(path)
    }

    async fn whole_directory(
        &self,
        opened: &OpenIndex,
        record: DirectoryRecord,
        path: ItemPath,
        missing: &mut HashSet<ItemPath>,
    ) -> Result<WholeDirectory, WholeError> {
        let place = record.place.as_ref();
        let place = place.ok_or_else(|| WholeError::Unlisted(path.clone()))?;
        let mut entries = Vec::new();
        let mut after: Option<Bytes> = None;
        let mut more = true;
        while more {
            let page = opened.index.entries(place, after.as_deref(), PAGE_ENTRIES);
            let (page, goes_on) = page.await?;
            after = page.last().map(|last| last.entry.name.clone());
            more = goes_on;
            for IndexedEntry { entry, xattrs, .. } in page {
                let Some(shown) = self.shown(&path, entry) else {
                    continue;
                };
                match shown.kind {
                    // A longer path has no name that programs could use.
                    FileKind::Directory => missing.extend(path.join(&shown.name)),
                    _ => entries.push(whole_entry(&path, shown, xattrs)?),
                }
            }
        }
        if let Some(own) = opened.own_in(self, &path)
            && !entries.iter().any(|entry| entry.name == own.name)
        {
            entries.push(whole_entry(&path, own.clone(), None)?);
        }
        Ok(WholeDirectory {
            path,
            attributes: record.attributes,
            xattrs: record.xattrs,
            entries,
        })
    }
}

fn whole_entry(
    directory: &ItemPath,
    entry: Entry,
    xattrs: Option<XattrList>,
) -> Result<WholeEntry, WholeError> {
    let Entry {
        name, attributes, ..
    } = entry;
    let attributes = attributes.ok_or_else(|| {
        let path = directory.join(&name);
        WholeError::NoAttributes(path.unwrap_or_else(|_too_long| directory.clone()))
    })?;
    Ok(WholeEntry {
        name,
        attributes,
        xattrs,
    })
}

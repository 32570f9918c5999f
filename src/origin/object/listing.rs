//! Directories of an object store, made from the slashes in its keys.
//!
//! Rules
//! - A directory exists if there is any key below it. The top always exists.
//! - A key that is also a prefix (`a` and `a/b`) is shown as the directory; the object is hidden.
//! - A zero-length marker (`a/`) makes a directory and is not an entry.
//! - A key with a component that cannot be a name (empty as in `a//b`, `.`, `..`, a control character,
//!   longer than 255 bytes) is not shown, nor are the keys below it. [`super::listed_keys`] makes pages with
//!   such keys readable for the client.

use super::gate::Priority;
use super::{ListingMode, Shared};
use crate::origin::failure::Cause;
use bytes::Bytes;
use copperfs_overlay::{Cursor, Entry, Failure, FailureKind, FileKind, ItemPath, Listing};
use futures_util::StreamExt;
use object_store::ListResult;
use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

const ACTION: &str = "list";

/// Keys in one request, as every store allows.
const KEYS_MAX: usize = 1000;

/// Where a page begins. A store is never requested to continue after a key: Azure before version 2026-02-06
/// starts over instead.
enum Position {
    /// At a store's own token.
    Token(String),
    /// After this name, for a store without pages.
    After(String),
}

/// Entries by name. A directory replaces an object of the same name.
type Entries = BTreeMap<Bytes, Entry>;

/// A part of a directory.
struct Page {
    entries: Entries,
    next: Option<Position>,
    /// The store returned any key, even if none is shown.
    has_keys: bool,
}

impl Shared {
    /// One page of directory `dir`.
    pub(super) async fn list(
        self: Arc<Self>,
        dir: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> Result<Listing, Failure> {
        let fail = |kind, text| self.failure(ACTION, &dir, &Cause::new(kind, text));
        let is_first = cursor.is_none();
        let foreign = || fail(FailureKind::Stale, "a foreign cursor");
        let decode = |cursor| Position::decode(&cursor).ok_or_else(foreign);
        let position = cursor.map(decode).transpose()?;
        let key = self.key(&dir)?;
        let page = match &self.connection.client().listing {
            ListingMode::Pages(pages) => self.list_pages(&**pages, &key, position, limit).await,
            ListingMode::Whole => self.list_whole(&key, position, limit).await,
            ListingMode::Unsupported => {
                let text = "a plain HTTP server has no listing; names are looked up one by one";
                return Err(fail(FailureKind::PermissionDenied, text));
            }
        };
        let mut page = page.map_err(|error| self.failed(ACTION, &dir, &error))?;
        if is_first && !page.has_keys && !dir.is_root() {
            // There are no keys below `dir`: it is an object, or does not exist.
            return Err(match self.head(&key, false, None).await {
                Ok(_) => fail(FailureKind::NotADirectory, "an object, not a directory"),
                Err(error) => self.failed(ACTION, &dir, &error),
            });
        }
        // Only a later page can hide entries of this one.
        if page.next.is_some() {
            self.drop_shadowed(&dir, &mut page.entries).await?;
        }
        Ok(Listing {
            directory: self.directory_attributes(&key),
            entries: page.entries.into_values().collect(),
            next: page.next.map(|position| position.encode()),
        })
    }

    async fn list_pages(
        &self,
        pages: &dyn PaginatedListStore,
        key: &str,
        mut position: Option<Position>,
        limit: usize,
    ) -> object_store::Result<Page> {
        let mut entries = Entries::new();
        let mut has_keys = false;
        loop {
            let max_keys = KEYS_MAX.min(limit.saturating_sub(entries.len())).max(1);
            let requested = Instant::now();
            let page = self.page(pages, key, position, max_keys).await?;
            has_keys |= !is_empty(&page.result);
            self.add(key, &page.result, requested, &mut entries);
            position = page.page_token.map(Position::Token);
            if position.is_none() || entries.len() >= limit {
                return Ok(Page {
                    entries,
                    next: position,
                    has_keys,
                });
            }
        }
    }

    async fn page(
        &self,
        pages: &dyn PaginatedListStore,
        key: &str,
        position: Option<Position>,
        max_keys: usize,
    ) -> object_store::Result<PaginatedListResult> {
        let prefix = (!key.is_empty()).then(|| format!("{key}/"));
        let options = PaginatedListOptions {
            delimiter: Some(Cow::Borrowed("/")),
            max_keys: Some(max_keys),
            page_token: match position {
                Some(Position::Token(token)) => Some(token),
                Some(Position::After(_)) | None => None,
            },
            ..PaginatedListOptions::default()
        };
        let _permit = self.connection.gate.enter(Priority::Demand).await;
        let client = self.connection.client();
        let send = || pages.list_paginated(prefix.as_deref(), options.clone());
        client.with_others_if_refused(send).await
    }

    /// For stores without pages: lists the whole directory, and returns a part of it.
    async fn list_whole(
        &self,
        key: &str,
        position: Option<Position>,
        limit: usize,
    ) -> object_store::Result<Page> {
        let prefix = object_store::path::Path::parse(key)?;
        let prefix = (!key.is_empty()).then_some(&prefix);
        let permit = self.connection.gate.enter(Priority::Demand).await;
        let requested = Instant::now();
        let result = self
            .connection
            .client()
            .store
            .list_with_delimiter(prefix)
            .await?;
        drop(permit);
        let mut entries = Entries::new();
        self.add(key, &result, requested, &mut entries);
        if let Some(Position::After(name)) = position {
            entries = entries.split_off(name.as_bytes());
            entries.remove(name.as_bytes());
        }
        let mut next = None;
        if let Some(beyond) = entries.keys().nth(limit).cloned() {
            entries.split_off(&beyond);
            let last = entries.keys().next_back();
            let last = last.and_then(|last| String::from_utf8(last.to_vec()).ok());
            next = last.map(Position::After);
        }
        Ok(Page {
            entries,
            next,
            has_keys: !is_empty(&result),
        })
    }

    fn add(&self, key: &str, result: &ListResult, requested: Instant, entries: &mut Entries) {
        for meta in &result.objects {
            if let Some(name) = name_below(key, meta.location.as_ref()) {
                let attributes = self.file_attributes(meta, requested);
                entries.entry(name.clone()).or_insert_with(|| Entry {
                    name,
                    kind: FileKind::File,
                    attributes: Some(attributes),
                });
            }
        }
        for prefix in &result.common_prefixes {
            if let Some(name) = name_below(key, prefix.as_ref()) {
                let attributes = self.directory_attributes(prefix.as_ref());
                let entry = Entry {
                    name: name.clone(),
                    kind: FileKind::Directory,
                    attributes: Some(attributes),
                };
                entries.insert(name, entry);
            }
        }
    }

    /// Drops objects whose directory of the same name is on a later page. Names that begin with `a` and
    /// continue with a byte below `/` are sorted between `a` and `a/`.
    async fn drop_shadowed(&self, dir: &ItemPath, entries: &mut Entries) -> Result<(), Failure> {
        let Some(last) = entries.keys().next_back().cloned() else {
            return Ok(());
        };
        let suspects: Vec<Bytes> = entries
            .values()
            .filter(|entry| entry.kind == FileKind::File)
            .map(|entry| entry.name.clone())
            .filter(|name| last == *name || last.get(name.len()).is_some_and(|&b| b < b'/'))
            .filter(|name| last.starts_with(name))
            .collect();
        for name in suspects {
            let Ok(path) = dir.join(&name) else { continue };
            let is_directory = self.has_directory(&self.key(&path)?).await;
            if is_directory.map_err(|error| self.failed(ACTION, dir, &error))? {
                entries.remove(&name);
            }
        }
        Ok(())
    }

    /// Whether there is any key below `key/`, or if the store has no listing, whether it answers for `key/`.
    pub(super) async fn has_directory(&self, key: &str) -> object_store::Result<bool> {
        let client = self.connection.client();
        match &client.listing {
            ListingMode::Pages(pages) => {
                let page = self.page(&**pages, key, None, 1).await?;
                Ok(!is_empty(&page.result))
            }
            ListingMode::Whole => {
                let prefix = object_store::path::Path::parse(key)?;
                let mut below = client.store.list(Some(&prefix));
                below.next().await.transpose().map(|first| first.is_some())
            }
            ListingMode::Unsupported => self.head(key, true, None).await.map(|_| true),
        }
    }
}

fn is_empty(result: &ListResult) -> bool {
    result.objects.is_empty() && result.common_prefixes.is_empty()
}

/// The name of `location` directly below `key`. Returns `None` for the marker of `key` itself, and if it
/// cannot be a name.
fn name_below(key: &str, location: &str) -> Option<Bytes> {
    let name = if key.is_empty() {
        location
    } else {
        location.strip_prefix(key)?.strip_prefix('/')?
    };
    ItemPath::root().join(name.as_bytes()).ok()?;
    Some(Bytes::copy_from_slice(name.as_bytes()))
}

impl Position {
    /// `t` and the store's token, or `a` and a name.
    fn encode(&self) -> Cursor {
        let (tag, text) = match self {
            Self::Token(token) => (b't', token),
            Self::After(name) => (b'a', name),
        };
        Cursor([&[tag], text.as_bytes()].concat().into())
    }

    fn decode(cursor: &Cursor) -> Option<Self> {
        let (tag, text) = cursor.0.split_first()?;
        let text = std::str::from_utf8(text).ok()?.to_owned();
        match tag {
            b't' => Some(Self::Token(text)),
            b'a' => Some(Self::After(text)),
            _ => None,
        }
    }
}

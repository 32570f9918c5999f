//! Directories of an object store: what lies between one `/` and the next.
//!
//! Rules
//! - A directory exists if any key lies below it. The top always exists.
//! - A key that is also a prefix (`a` and `a/b`) is shown as the directory; the object is hidden.
//! - A zero-length marker (`a/`) makes a directory and is not an entry.
//! - A key with a component that cannot be a name (empty as in `a//b`, `.`, `..`, a control character,
//!   longer than 255 bytes) is not shown, and what lies below it neither; [`super::listed_keys`] has the
//!   client understand pages that hold such keys.

use super::Inner;
use super::gate::Turn;
use bytes::Bytes;
use copperfs_overlay::{Cursor, Entry, Failure, FailureKind, FileKind, ItemPath, Listing};
use futures_util::StreamExt;
use object_store::ListResult;
use object_store::list::{PaginatedListOptions, PaginatedListResult};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Instant;

const ACTION: &str = "list";

/// What every store allows in one request.
const KEYS_MAX: usize = 1000;

/// Where to go on: with a store's own token, or behind a name where a store has no pages. Going on
/// behind a key is left to no store: Azure before version 2026-02-06 begins anew when asked to.
#[derive(Clone, Debug, Default)]
struct Position {
    token: Option<String>,
    after: Option<String>,
}

/// Entries by name, directories over objects.
type Entries = BTreeMap<Bytes, Entry>;

impl Inner {
    /// One page of directory `dir`.
    pub(super) async fn list(
        &self,
        dir: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> Result<Listing, Failure> {
        if self.names.probed {
            return Err(self.refused(&dir));
        }
        let key = self.key(&dir)?;
        let first = cursor.is_none();
        let position = match cursor {
            None => Position::default(),
            Some(cursor) => Position::decode(&cursor)
                .ok_or_else(|| self.fault(FailureKind::Stale, ACTION, &dir, "a foreign cursor"))?,
        };
        let (mut entries, next, seen) = if self.names.pages.is_some() {
            self.list_pages(&dir, &key, position, limit).await?
        } else {
            self.list_whole(&dir, &key, position, limit).await?
        };
        if first && !seen && !dir.is_root() {
            return Err(self.not_a_directory(&dir, &key).await);
        }
        if next.is_some() {
            self.drop_shadowed(&dir, &mut entries).await?;
        }
        Ok(Listing {
            directory: self.directory_attributes(&key),
            entries: entries.into_values().collect(),
            next: next.map(|position| position.encode()),
        })
    }

    async fn list_pages(
        &self,
        dir: &ItemPath,
        key: &str,
        mut position: Position,
        limit: usize,
    ) -> Result<(Entries, Option<Position>, bool), Failure> {
        let mut entries = Entries::new();
        let mut seen = false;
        loop {
            let wanted = KEYS_MAX.min(limit.saturating_sub(entries.len())).max(1);
            let asked = Instant::now();
            let page = self
                .page(key, &position, wanted)
                .await
                .map_err(|failure| self.failure(ACTION, dir, &failure))?;
            seen |= !page.result.objects.is_empty() || !page.result.common_prefixes.is_empty();
            self.add(key, &page.result, asked, &mut entries);
            let Some(token) = page.page_token else {
                return Ok((entries, None, seen));
            };
            position.token = Some(token);
            if entries.len() >= limit {
                return Ok((entries, Some(position), seen));
            }
        }
    }

    async fn page(
        &self,
        key: &str,
        position: &Position,
        max_keys: usize,
    ) -> object_store::Result<PaginatedListResult> {
        let prefix = as_prefix(key);
        let options = PaginatedListOptions {
            delimiter: Some(Cow::Borrowed("/")),
            max_keys: Some(max_keys),
            page_token: position.token.clone(),
            ..PaginatedListOptions::default()
        };
        let _permit = self.gate.enter(Turn::Demand).await;
        match &self.names.pages {
            Some(pages) => pages.list_paginated(prefix.as_deref(), options).await,
            None => Ok(PaginatedListResult {
                result: self.whole(key).await?,
                page_token: None,
            }),
        }
    }

    /// Goes with its caller's permit.
    async fn whole(&self, key: &str) -> object_store::Result<ListResult> {
        let prefix = object_store::path::Path::parse(key)?;
        let prefix = (!key.is_empty()).then_some(&prefix);
        self.names.store.list_with_delimiter(prefix).await
    }

    /// For stores that cannot page: everything, cut here.
    async fn list_whole(
        &self,
        dir: &ItemPath,
        key: &str,
        position: Position,
        limit: usize,
    ) -> Result<(Entries, Option<Position>, bool), Failure> {
        let permit = self.gate.enter(Turn::Demand).await;
        let asked = Instant::now();
        let result = self.whole(key).await;
        drop(permit);
        let result = result.map_err(|failure| self.failure(ACTION, dir, &failure))?;
        let seen = !result.objects.is_empty() || !result.common_prefixes.is_empty();
        let mut entries = Entries::new();
        self.add(key, &result, asked, &mut entries);
        if let Some(after) = position.after {
            entries = entries.split_off(after.as_bytes());
            entries.remove(after.as_bytes());
        }
        let mut next = None;
        if let Some((beyond, last)) = entries
            .keys()
            .nth(limit)
            .cloned()
            .zip(entries.keys().nth(limit.saturating_sub(1)).cloned())
        {
            entries.split_off(&beyond);
            next = Some(Position {
                token: None,
                after: String::from_utf8(last.to_vec()).ok(),
            });
        }
        Ok((entries, next, seen))
    }

    fn add(&self, key: &str, result: &ListResult, asked: Instant, entries: &mut Entries) {
        for meta in &result.objects {
            if let Some(name) = name_below(key, meta.location.as_ref()) {
                let attributes = self.file_attributes(meta, asked);
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

    /// Drops objects whose directory of the same name comes on a later page: between `a` and `a/` sort
    /// the names that begin with `a` and go on with a byte below `/`.
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
            let key = self.key(&path)?;
            if self
                .has_keys_below(&key)
                .await
                .map_err(|failure| self.failure(ACTION, dir, &failure))?
            {
                entries.remove(&name);
            }
        }
        Ok(())
    }

    /// Whether any key lies below `key/`.
    pub(super) async fn has_keys_below(&self, key: &str) -> object_store::Result<bool> {
        if self.names.pages.is_some() {
            self.page(key, &Position::default(), 1).await.map(|page| {
                !page.result.objects.is_empty() || !page.result.common_prefixes.is_empty()
            })
        } else {
            let prefix = object_store::path::Path::parse(key)?;
            let mut below = self.names.store.list(Some(&prefix));
            below.next().await.transpose().map(|first| first.is_some())
        }
    }

    /// Nothing lies below `dir`: it is an object, or nothing.
    async fn not_a_directory(&self, dir: &ItemPath, key: &str) -> Failure {
        match self.head(key, false).await {
            Ok(_) => self.fault(
                FailureKind::NotADirectory,
                ACTION,
                dir,
                "an object, not a directory",
            ),
            Err(failure) => self.failure(ACTION, dir, &failure),
        }
    }

    fn refused(&self, dir: &ItemPath) -> Failure {
        let cause = "a plain HTTP server has no listing; names are looked up one by one";
        self.fault(FailureKind::PermissionDenied, ACTION, dir, cause)
    }
}

fn as_prefix(key: &str) -> Option<String> {
    (!key.is_empty()).then(|| format!("{key}/"))
}

/// The name of `location` directly below `key`; `None` for the marker of `key` itself and for what
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
    /// `t` and the store's token, or `a` and the name to go on behind.
    fn encode(&self) -> Cursor {
        let (tag, text) = match (&self.token, &self.after) {
            (Some(token), _) => (b't', token.as_str()),
            (None, after) => (b'a', after.as_deref().unwrap_or_default()),
        };
        let mut bytes = Vec::with_capacity(1 + text.len());
        bytes.push(tag);
        bytes.extend_from_slice(text.as_bytes());
        Cursor(bytes.into())
    }

    fn decode(cursor: &Cursor) -> Option<Self> {
        let (tag, text) = cursor.0.split_first()?;
        let text = Some(std::str::from_utf8(text).ok()?.to_owned());
        match tag {
            b't' => Some(Self {
                token: text,
                after: None,
            }),
            b'a' => Some(Self {
                token: None,
                after: text,
            }),
            _ => None,
        }
    }
}

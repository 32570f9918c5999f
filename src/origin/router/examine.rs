//! Examines every origin for `copperfs doctor`: whether it answers, lists and reads, and how reliable its
//! versions are. Sends a few requests to each and keeps nothing.

use super::{Mount, Origins};
use crate::origin::failure::split_hint;
use crate::origin::object::VersionSource;
use copperfs_overlay::{Entry, FailureKind, FileKind, ItemPath, Listing};
use serde::Serialize;
use std::time::Instant;

/// Examined entries of a directory.
const ENTRIES_MAX: usize = 1000;
/// The maximum number of directories on the way to a file to read.
const DEPTH_MAX: usize = 8;

/// The result of one check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Outcome {
    /// As expected.
    #[serde(rename = "ok")]
    Good,
    /// Works, with a cost or a risk.
    #[serde(rename = "warn")]
    Poor,
    /// Cannot be served.
    #[serde(rename = "fail")]
    Bad,
}

/// One check and its result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// `origin reach`, `origin list`, `origin read`, `origin versions` or `origin readers`; or the checked part of this
    /// machine.
    #[serde(rename = "name")]
    pub what: &'static str,
    /// The result.
    #[serde(rename = "verdict")]
    pub outcome: Outcome,
    /// A description that names the origin.
    pub found: String,
    /// The remedy; empty if there is none, or if `found` includes it.
    pub fix: String,
}

impl Finding {
    fn new(what: &'static str, outcome: Outcome, found: impl Into<String>, fix: &str) -> Self {
        Self {
            what,
            outcome,
            found: found.into(),
            fix: fix.to_owned(),
        }
    }

    fn failed(what: &'static str, detail: &str) -> Self {
        let (found, hint) = split_hint(detail);
        let fix = hint.unwrap_or("look at the storage itself, as the daemon's user");
        Self::new(what, Outcome::Bad, found, fix)
    }
}

impl Origins {
    /// Examines one origin after another. An origin that fails a check gets no further ones.
    pub async fn examine(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for mount in &self.shared.mounts {
            if let Err(last) = mount.examine(&mut findings).await {
                findings.push(last);
            }
        }
        findings
    }
}

const LIST: &str = "origin list";

impl Mount {
    /// Adds to `findings`, and fails with the finding that ends the examination early.
    async fn examine(&self, findings: &mut Vec<Finding>) -> Result<(), Finding> {
        const REACH: &str = "origin reach";
        if let Some(store) = &self.store {
            let begin = Instant::now();
            let reached = store.check().await;
            reached.map_err(|error| Finding::failed(REACH, &error.to_string()))?;
            let found = format!("{} answers in {}", self.uri, milliseconds(begin));
            findings.push(Finding::new(REACH, Outcome::Good, found, ""));
        }
        match self.examine_listing(findings).await? {
            Some((file, size)) => self.examine_file(&file, size, findings).await,
            None => Ok(()),
        }
    }

    /// Lists directories from the top down until one has a file that is not empty. Returns that file and its
    /// size.
    async fn examine_listing(
        &self,
        findings: &mut Vec<Finding>,
    ) -> Result<Option<(ItemPath, u64)>, Finding> {
        let mut dir = ItemPath::root();
        for depth in 0..DEPTH_MAX {
            let begin = Instant::now();
            let listing = self.origin.list(dir.clone(), None, ENTRIES_MAX).await;
            let listing = listing.map_err(|failure| match failure.kind {
                FailureKind::PermissionDenied if self.store.is_some() => {
                    let found = format!("{} lists nothing", self.uri);
                    let fix = "files are found by name only: ls, find and Python's import see none; serve trees \
                               from an object store, or over a web server as an archive";
                    Finding::new(LIST, Outcome::Poor, found, fix)
                }
                _ => Finding::failed(LIST, &failure.detail),
            })?;
            if depth == 0 {
                findings.push(self.listed(&listing, begin));
            }
            let file = listing.entries.iter().find_map(|entry| {
                let size = entry.attributes.as_ref()?.size;
                (entry.kind == FileKind::File && size > 0).then_some((entry, size))
            });
            if let Some((entry, size)) = file {
                return Ok(dir.join(&entry.name).ok().map(|file| (file, size)));
            }
            let is_directory = |entry: &&Entry| entry.kind == FileKind::Directory;
            let below = listing.entries.iter().find(is_directory);
            let Some(Ok(below)) = below.map(|below| dir.join(&below.name)) else {
                break;
            };
            dir = below;
        }
        Ok(None)
    }

    fn listed(&self, listing: &Listing, begin: Instant) -> Finding {
        let (uri, entries) = (&self.uri, listing.entries.len());
        if entries == 0 {
            let fix = "check the path or prefix in the URI";
            return Finding::new(LIST, Outcome::Poor, format!("{uri} is empty"), fix);
        }
        let and_more = listing.next.as_ref().map_or("", |_| " and more");
        let time = milliseconds(begin);
        let found = format!("{uri} has {entries} entries{and_more}, listed in {time}");
        Finding::new(LIST, Outcome::Good, found, "")
    }

    async fn examine_file(
        &self,
        file: &ItemPath,
        size: u64,
        findings: &mut Vec<Finding>,
    ) -> Result<(), Finding> {
        const READ: &str = "origin read";
        let Some(store) = &self.store else {
            return Ok(());
        };
        let begin = Instant::now();
        let examined = store.examine(file).await;
        let (source, has_ranges) =
            examined.map_err(|failure| Finding::failed(READ, &failure.detail))?;
        findings.push(if has_ranges {
            let time = milliseconds(begin);
            let found = format!("first byte of {file} ({size} bytes) in {time}");
            Finding::new(READ, Outcome::Good, found, "")
        } else {
            let found = format!("{} gives whole files only", self.uri);
            let fix = "each part of a large file costs the file up to there; serve large files from a \
                       server with ranges";
            Finding::new(READ, Outcome::Poor, found, fix)
        });
        let (outcome, found, fix) = match source {
            VersionSource::StrongTag => (Outcome::Good, "strong ETags", ""),
            VersionSource::WeakTag => (
                Outcome::Poor,
                "weak ETags",
                "changes that the server calls equal are not seen; each read is checked again at its end",
            ),
            VersionSource::TimeAndSize => (
                Outcome::Poor,
                "no ETags",
                "a version is the second of the last change and the size: do not change files in place; \
                 each read is checked again at its end",
            ),
        };
        findings.push(Finding::new("origin versions", outcome, found, fix));
        Ok(())
    }
}

fn milliseconds(begin: Instant) -> String {
    format!("{} ms", begin.elapsed().as_millis())
}

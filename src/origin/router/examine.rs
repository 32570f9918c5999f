//! A look at every origin for `copperfs doctor`: whether it answers, lists, reads, and what its versions
//! are worth. A handful of requests for each; nothing is kept.

use super::{Mount, Origins};
use crate::origin::object::VersionSource;
use copperfs_overlay::{Entry, Failure, FailureKind, FileKind, ItemPath};
use std::time::{Duration, Instant};

/// Entries of a directory that are looked at.
const ENTRIES_MAX: usize = 1000;
/// Directories on the way to a file to read.
const DEPTH_MAX: usize = 8;

/// How a look came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// As it should be.
    Good,
    /// Works, with a cost or a risk.
    Poor,
    /// Cannot be served.
    Bad,
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// `origin reach`, `origin list`, `origin read` or `origin versions`.
    pub what: &'static str,
    /// How it came out.
    pub outcome: Outcome,
    /// What was found; it names the origin.
    pub found: String,
    /// What to try; empty where the finding is good, or says it itself.
    pub fix: String,
}

impl Finding {
    fn new(what: &'static str, outcome: Outcome, found: String, fix: &str) -> Self {
        let fix = fix.to_owned();
        Self {
            what,
            outcome,
            found,
            fix,
        }
    }

    fn failed(what: &'static str, failure: &Failure) -> Self {
        // The detail ends with what to try, where that is known.
        let (found, fix) = match failure.detail.split_once("; ") {
            Some((found, fix)) => (found, fix),
            None => (
                failure.detail.as_str(),
                "look at the storage itself, as the daemon's user",
            ),
        };
        Self::new(what, Outcome::Bad, found.to_owned(), fix)
    }
}

impl Origins {
    /// Looks at every origin in turn, and no further at one that fails.
    pub async fn examine(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for mount in &self.shared.mounts {
            mount.examine(&mut findings).await;
        }
        findings
    }
}

impl Mount {
    async fn examine(&self, findings: &mut Vec<Finding>) {
        const REACH: &str = "origin reach";
        let begin = Instant::now();
        if let Some(store) = &self.store {
            if let Err(error) = store.check().await {
                let failure = Failure::new(FailureKind::Unavailable, error.to_string());
                findings.push(Finding::failed(REACH, &failure));
                return;
            }
            let found = format!("{} answers in {}", self.uri, milliseconds(begin));
            findings.push(Finding::new(REACH, Outcome::Good, found, ""));
        }
        if let Some((file, size)) = self.examine_listing(findings).await {
            self.examine_file(&file, size, findings).await;
        }
    }

    /// Lists the top, and goes down until there is a file with a byte in it.
    async fn examine_listing(&self, findings: &mut Vec<Finding>) -> Option<(ItemPath, u64)> {
        const LIST: &str = "origin list";
        let mut dir = ItemPath::root();
        for depth in 0..DEPTH_MAX {
            let begin = Instant::now();
            let listing = match self.origin.list(dir.clone(), None, ENTRIES_MAX).await {
                Ok(listing) => listing,
                Err(failure)
                    if self.store.is_some() && failure.kind == FailureKind::PermissionDenied =>
                {
                    let found = format!("{} lists nothing", self.uri);
                    let fix = "files are found by name only: ls, find and Python's import see none; serve trees \
                               from an object store, or over a web server as an archive";
                    findings.push(Finding::new(LIST, Outcome::Poor, found, fix));
                    return None;
                }
                Err(failure) => {
                    findings.push(Finding::failed(LIST, &failure));
                    return None;
                }
            };
            if depth == 0 {
                findings.push(self.listed(listing.entries.len(), listing.next.is_some(), begin));
            }
            let file = listing.entries.iter().find_map(|entry| {
                let size = entry.attributes.as_ref()?.size;
                (entry.kind == FileKind::File && size > 0).then_some((entry, size))
            });
            let below = |entry: &Entry| dir.join(&entry.name).ok();
            if let Some((entry, size)) = file {
                return Some((below(entry)?, size));
            }
            let is_directory = |entry: &&Entry| entry.kind == FileKind::Directory;
            dir = below(listing.entries.iter().find(is_directory)?)?;
        }
        None
    }

    fn listed(&self, entries: usize, more: bool, begin: Instant) -> Finding {
        const LIST: &str = "origin list";
        if entries == 0 {
            let found = format!("{} is empty", self.uri);
            return Finding::new(
                LIST,
                Outcome::Poor,
                found,
                "check the path or prefix in the URI",
            );
        }
        let and_more = if more { " and more" } else { "" };
        let time = milliseconds(begin);
        let found = format!(
            "{} has {entries} entries{and_more}, listed in {time}",
            self.uri
        );
        Finding::new(LIST, Outcome::Good, found, "")
    }

    async fn examine_file(&self, file: &ItemPath, size: u64, findings: &mut Vec<Finding>) {
        const READ: &str = "origin read";
        let Some(store) = &self.store else { return };
        let begin = Instant::now();
        let traits = match store.traits(file).await {
            Ok(traits) => traits,
            Err(failure) => {
                findings.push(Finding::failed(READ, &failure));
                return;
            }
        };
        let time = milliseconds(begin);
        findings.push(if traits.ranges {
            let found = format!("first byte of {file} ({size} bytes) in {time}");
            Finding::new(READ, Outcome::Good, found, "")
        } else {
            let found = format!("{} gives whole files only", self.uri);
            let fix = "each part of a large file costs the file up to there; serve large files from a \
                       server with ranges";
            Finding::new(READ, Outcome::Poor, found, fix)
        });
        const VERSIONS: &str = "origin versions";
        findings.push(match traits.version {
            VersionSource::StrongTag => {
                Finding::new(VERSIONS, Outcome::Good, "strong ETags".to_owned(), "")
            }
            VersionSource::WeakTag => Finding::new(
                VERSIONS,
                Outcome::Poor,
                "weak ETags".to_owned(),
                "changes that the server calls equal are not seen; each read is checked again at its end",
            ),
            VersionSource::TimeAndSize => Finding::new(
                VERSIONS,
                Outcome::Poor,
                "no ETags".to_owned(),
                "a version is the second of the last change and the size: do not change files in place; \
                 each read is checked again at its end",
            ),
        });
    }
}

fn milliseconds(begin: Instant) -> String {
    let time: Duration = begin.elapsed();
    format!("{} ms", time.as_millis())
}

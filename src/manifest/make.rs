//! Makes a manifest: finds the files, reads those whose hashes are not known, and writes the result.

use super::format::{Entry, Header};
use super::hash::{Progress, Reader};
use super::journal::{Journal, UnreadJournal};
use super::list;
use super::names::Names;
use super::plan::{OrderError, Plan};
use super::write::ManifestWriter;
use super::{ManifestError, io_error};
use copperfs_overlay::{ContentHash, Failure, Files, ItemPath};
use futures_util::StreamExt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Files that cannot be read, after which the rest is not tried: they probably have a common cause.
const FAILURES_MAX: usize = 10;
/// A file of the plan that is not in the manifest yet.
const UNNUMBERED: u32 = u32::MAX;

/// The entries of a manifest, and their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Selection {
    /// Every file, by path.
    ByPath,
    /// Every file, in the order of this list.
    Order(PathBuf),
    /// The entries of this list, in its order.
    Entries(PathBuf),
}

/// The manifest to make.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MakeOptions {
    /// The file of the manifest.
    pub target: PathBuf,
    /// The dataset's URI, without credentials.
    pub uri: String,
    /// The entries.
    pub selection: Selection,
    /// Files, or bundles of small files, that are read at the same time.
    pub concurrency: usize,
}

/// Makes the manifest of `options`, with the files that `names` tells of and the bytes of `files`. `now` returns seconds
/// since 1970. Dropping the future interrupts the work: a later call goes on with the journal.
///
/// # Errors
/// See [`ManifestError`]. An existing manifest at the target stays as it is.
pub async fn make(
    options: &MakeOptions,
    names: &Names,
    files: Arc<dyn Files>,
    now: impl FnOnce() -> i64,
    progress: &Arc<Progress>,
) -> Result<Header, ManifestError> {
    let MakeOptions {
        target,
        uri,
        selection,
        concurrency,
    } = options;
    // Everything that can be checked without storage, before hours of reading.
    if target.is_dir() {
        let cause = io::Error::from(io::ErrorKind::IsADirectory);
        return Err(io_error("write", target)(cause));
    }
    let journal = UnreadJournal::open(target, uri)?;
    let plan = planned(selection, names, &progress.files).await?;
    if plan.entries().is_empty() {
        return Err(ManifestError::Empty { uri: uri.clone() });
    }
    let too_large = |source| ManifestError::TooLarge {
        uri: uri.clone(),
        source,
    };
    plan.counts().check().map_err(too_large)?;
    let mut making = Making::begin(plan, journal, progress)?;
    let reader = Reader::new(files, Arc::clone(progress));
    let failures = making.read(&reader, *concurrency, progress).await?;
    if !failures.is_empty() {
        return Err(ManifestError::Unreadable {
            failures,
            indexed: matches!(names, Names::Index { .. }),
        });
    }
    let header = tokio::task::block_in_place(|| making.write(target, uri, now))?;
    // The journal is removed only after the manifest is complete on disk.
    making.journal.remove();
    Ok(header)
}

async fn planned(
    selection: &Selection,
    names: &Names,
    found: &AtomicU64,
) -> Result<Plan, ManifestError> {
    match selection {
        Selection::ByPath => Ok(Plan::by_path(names.all(found).await?)),
        Selection::Order(path) => {
            // The list is read first, because a mistake in it is found in no time.
            let order = list::order(path)?;
            let plan = Plan::ordered(names.all(found).await?, &order);
            plan.map_err(|error| match error {
                OrderError::Line(line) => line.in_list(path),
                OrderError::Missing { count, first } => ManifestError::Missing {
                    list: path.clone(),
                    count,
                    first,
                },
            })
        }
        Selection::Entries(path) => {
            let ranges = list::ranges(path)?;
            let files = names.at(&ranges.paths).await?;
            found.store(files.len() as u64, Ordering::Relaxed);
            Plan::ranges(files, ranges).map_err(|error| error.in_list(path))
        }
    }
}

/// Where the hash of an entry is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HashPlace {
    Unknown,
    /// In the plan: it comes from an index.
    Plan,
    /// At this position in the journal.
    Journal(u64),
}

/// A manifest in the making.
struct Making {
    plan: Plan,
    journal: Journal,
    /// The place of each entry's hash.
    places: Vec<HashPlace>,
}

impl Making {
    /// Finds the hashes that are known already.
    fn begin(
        plan: Plan,
        journal: UnreadJournal,
        progress: &Progress,
    ) -> Result<Self, ManifestError> {
        let of_index = |number| match plan.content(number) {
            Some(_) => HashPlace::Plan,
            None => HashPlace::Unknown,
        };
        let mut places: Vec<HashPlace> = (0..plan.entries().len()).map(of_index).collect();
        let journal = journal.replay(|known| {
            let Some(number) = plan.file_at(known.path) else {
                return;
            };
            let file = &plan.files()[number as usize];
            // Another version has other bytes.
            if (file.version, file.size) != (known.version, known.size) {
                return;
            }
            let entry = plan.entry_at(number, known.offset);
            if let Some(entry) = entry.filter(|entry| plan.entries()[*entry].length == known.length)
                && places[entry] == HashPlace::Unknown
            {
                places[entry] = HashPlace::Journal(known.position);
            }
        })?;
        let (mut known, mut reused) = (0, 0);
        for (entry, place) in plan.entries().iter().zip(&places) {
            if *place != HashPlace::Unknown {
                known += 1;
                reused += entry.length;
            }
        }
        let entries = plan.entries().len() as u64;
        progress.entries.store(entries, Ordering::Relaxed);
        progress.bytes.store(plan.bytes(), Ordering::Relaxed);
        progress.known.store(known, Ordering::Relaxed);
        progress.reused.store(reused, Ordering::Relaxed);
        Ok(Self {
            plan,
            journal,
            places,
        })
    }

    /// Reads and hashes the entries whose hashes are unknown. Returns the files that could not be read.
    async fn read(
        &mut self,
        reader: &Reader,
        concurrency: usize,
        progress: &Progress,
    ) -> Result<Vec<(ItemPath, Failure)>, ManifestError> {
        let Self {
            plan,
            journal,
            places,
        } = self;
        let unknown = |place: &HashPlace| *place == HashPlace::Unknown;
        let unread: Vec<bool> = places.iter().map(unknown).collect();
        let mut failures = Vec::new();
        let mut outcomes = reader.hashes(plan, |entry| !unread[entry as usize], concurrency);
        while let Some(outcome) = outcomes.next().await {
            let outcome = outcome?;
            let file = &plan.files()[outcome.file as usize];
            let hashed = match outcome.hashed {
                Ok(hashed) => hashed,
                Err(failure) => {
                    failures.push((file.path.clone(), failure));
                    if failures.len() >= FAILURES_MAX {
                        break;
                    }
                    continue;
                }
            };
            let positions = journal.append(file, &hashed)?;
            for (entry, position) in hashed.iter().zip(positions) {
                if let Some(number) = plan.entry_at(outcome.file, entry.offset) {
                    places[number] = HashPlace::Journal(position);
                }
            }
            let count = hashed.len() as u64;
            progress.known.fetch_add(count, Ordering::Relaxed);
        }
        Ok(failures)
    }

    /// Writes the manifest. All hashes are known.
    fn write(
        &self,
        target: &Path,
        uri: &str,
        now: impl FnOnce() -> i64,
    ) -> Result<Header, ManifestError> {
        let plan = &self.plan;
        let mut writer = ManifestWriter::create(target, uri, &plan.counts())?;
        // The files of a manifest are in the order of their first entries.
        let mut numbers = vec![UNNUMBERED; plan.files().len()];
        for (number, entry) in plan.entries().iter().enumerate() {
            let file = &plan.files()[entry.file as usize];
            let in_manifest = &mut numbers[entry.file as usize];
            if *in_manifest == UNNUMBERED {
                *in_manifest = writer.file(file.path.as_bytes(), file.size, &file.version);
            }
            let (hash, parts) = self.hash(number, entry.length)?;
            let entry = Entry {
                hash,
                file: *in_manifest,
                offset: entry.offset,
                length: entry.length,
            };
            writer.entry(&entry, &parts)?;
        }
        writer.finish(now())
    }

    /// The hash of entry `number`, which is `length` bytes long, and those of its parts.
    fn hash(
        &self,
        number: usize,
        length: u64,
    ) -> Result<(ContentHash, Vec<[u8; 32]>), ManifestError> {
        let of_plan = || {
            let known = self.plan.content(number);
            known.map(|(hash, parts)| (hash, parts.to_vec()))
        };
        let known = match self.places[number] {
            HashPlace::Plan => of_plan(),
            HashPlace::Journal(position) => Some(self.journal.read(position, length)?),
            HashPlace::Unknown => None,
        };
        known.ok_or(ManifestError::NoHash { number })
    }
}

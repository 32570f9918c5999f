//! Decides on the entries of a manifest: which bytes of which files, in which order. Pure.

use super::format::{Counts, parts_of};
use super::items::{DatasetFile, PlannedEntry};
use super::list::{ListError, ListFault, Ranges};
use copperfs_overlay::{ContentHash, ItemPath};

/// The files and entries of a manifest. No two entries share a byte or a place.
#[derive(PartialEq, Eq, Debug)]
pub struct Plan {
    files: Vec<DatasetFile>,
    entries: Vec<PlannedEntry>,
    /// The numbers of the entries by file and offset.
    by_place: Vec<u32>,
}

/// Why an order does not fit the files.
#[derive(Debug, PartialEq, Eq)]
pub enum OrderError {
    /// A line is wrong.
    Line(ListError),
    /// Files are not in the order.
    Missing {
        /// Their number.
        count: usize,
        /// The first of them by path.
        first: ItemPath,
    },
}

impl Plan {
    /// Every file is one entry, in the order of their paths' bytes.
    #[must_use]
    pub fn by_path(mut files: Vec<DatasetFile>) -> Self {
        files.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        files.dedup_by(|a, b| a.path == b.path);
        let entries = (0..).zip(&files).map(whole).collect();
        Self::of(files, entries)
    }

    /// Every file is one entry, in this `order`, which names each file once.
    ///
    /// # Errors
    /// A path in the order is unknown or there twice, or files are missing.
    pub fn ordered(files: Vec<DatasetFile>, order: &[ItemPath]) -> Result<Self, OrderError> {
        let mut plan = Self::by_path(files);
        // The first line of each file, from 1.
        let mut lines = vec![0_u64; plan.files.len()];
        plan.entries.clear();
        for (number, path) in order.iter().enumerate() {
            let fault = |fault| Err(OrderError::Line(ListError::of_entry(number, fault)));
            let Some(file) = plan.file_at(path.as_bytes()) else {
                return fault(ListFault::Unknown(path.clone()));
            };
            let line = &mut lines[file as usize];
            if *line > 0 {
                let (path, first) = (path.clone(), *line);
                return fault(ListFault::Twice { path, first });
            }
            *line = number as u64 + 1;
            plan.entries.push(whole((file, &plan.files[file as usize])));
        }
        let missing = lines.iter().filter(|line| **line == 0).count();
        if let Some(first) = lines.iter().position(|line| *line == 0) {
            let first = plan.files[first].path.clone();
            return Err(OrderError::Missing {
                count: missing,
                first,
            });
        }
        Ok(Self::of(plan.files, plan.entries))
    }

    /// The entries of a list, in its order. `files` has a file for each path of the list, or `None` if there is no such
    /// file.
    ///
    /// # Errors
    /// A file does not exist; an entry reaches beyond the end of its file, is empty, or overlaps another one.
    pub fn ranges(files: Vec<Option<DatasetFile>>, ranges: Ranges) -> Result<Self, ListError> {
        for (number, entry) in ranges.entries.iter().enumerate() {
            let file = entry.file as usize;
            let path = ranges.paths[file].clone();
            let end = entry.offset.checked_add(entry.length);
            let fault = match &files[file] {
                None => ListFault::Unknown(path),
                Some(file) if end.is_none_or(|end| end > file.size) => ListFault::BeyondEnd {
                    path,
                    size: file.size,
                },
                Some(file) if entry.length == 0 && file.size > 0 => ListFault::NoBytes(path),
                Some(_) => continue,
            };
            return Err(ListError::of_entry(number, fault));
        }
        let plan = Self::of(files.into_iter().flatten().collect(), ranges.entries);
        for pair in plan.by_place.windows(2) {
            let [before, after] = [pair[0], pair[1]].map(|number| plan.entries[number as usize]);
            let overlaps =
                after.offset < before.offset + before.length || after.offset == before.offset;
            if before.file == after.file && overlaps {
                // Reported at the later line.
                let (line, other) = (pair[0].max(pair[1]), pair[0].min(pair[1]));
                let path = plan.files[after.file as usize].path.clone();
                let other = u64::from(other) + 1;
                let fault = ListFault::Overlap { path, other };
                return Err(ListError::of_entry(line as usize, fault));
            }
        }
        // In the order of paths, by which files are found.
        Ok(plan.sorted())
    }

    fn of(files: Vec<DatasetFile>, entries: Vec<PlannedEntry>) -> Self {
        let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        let mut by_place: Vec<u32> = (0..count).collect();
        by_place.sort_unstable_by_key(|number| {
            let entry = &entries[*number as usize];
            (entry.file, entry.offset, *number)
        });
        Self {
            files,
            entries,
            by_place,
        }
    }

    /// The same plan with the files in the order of their paths.
    fn sorted(self) -> Self {
        let mut order: Vec<usize> = (0..self.files.len()).collect();
        order.sort_unstable_by_key(|file| &self.files[*file].path);
        let mut numbers = vec![0; self.files.len()];
        for (number, file) in (0..).zip(&order) {
            numbers[*file] = number;
        }
        let files = order.iter().map(|file| self.files[*file].clone()).collect();
        let entries = self.entries.into_iter().map(|entry| PlannedEntry {
            file: numbers[entry.file as usize],
            ..entry
        });
        Self::of(files, entries.collect())
    }

    /// The files, in the order of their paths.
    #[must_use]
    pub fn files(&self) -> &[DatasetFile] {
        &self.files
    }

    /// The entries, in dataset order.
    #[must_use]
    pub fn entries(&self) -> &[PlannedEntry] {
        &self.entries
    }

    /// The files that have entries, each with the numbers of its entries in the order of their offsets.
    pub fn places(&self) -> impl Iterator<Item = (u32, &[u32])> {
        let file = |number: &u32| self.entries[*number as usize].file;
        let groups = self.by_place.chunk_by(move |a, b| file(a) == file(b));
        groups.map(move |group| (file(&group[0]), group))
    }

    /// The index of the file at `path`.
    #[must_use]
    pub fn file_at(&self, path: &[u8]) -> Option<u32> {
        let found = (self.files).binary_search_by(|file| file.path.as_bytes().cmp(path));
        found.ok().and_then(|at| u32::try_from(at).ok())
    }

    /// The number of the entry that begins at `offset` of `file`.
    #[must_use]
    pub fn entry_at(&self, file: u32, offset: u64) -> Option<usize> {
        let place = |number: &u32| {
            let entry = &self.entries[*number as usize];
            (entry.file, entry.offset)
        };
        let found = self.by_place.binary_search_by_key(&(file, offset), place);
        found.ok().map(|at| self.by_place[at] as usize)
    }

    /// The hash of entry `number` and those of its parts, if an index has them.
    #[must_use]
    pub fn content(&self, number: usize) -> Option<(ContentHash, &[[u8; 32]])> {
        let entry = self.entries.get(number)?;
        let file = self.files.get(entry.file as usize)?;
        let is_whole = entry.offset == 0 && entry.length == file.size;
        let has_parts = file.parts.len() as u64 == parts_of(entry.length);
        let content = file.content.filter(|_| is_whole && has_parts)?;
        Some((content, &file.parts))
    }

    /// The counts of the manifest.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts {
            entries: self.entries.len() as u64,
            ..Counts::default()
        };
        for entry in &self.entries {
            let parts = parts_of(entry.length);
            counts.long += u64::from(parts > 0);
            counts.parts = counts.parts.saturating_add(parts);
        }
        for (file, _) in self.places() {
            counts.files += 1;
            counts.path_bytes += self.files[file as usize].path.as_bytes().len() as u64;
        }
        counts
    }

    /// The sum of the entries' lengths.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let lengths = self.entries.iter().map(|entry| entry.length);
        lengths.fold(0, u64::saturating_add)
    }
}

fn whole((file, found): (u32, &DatasetFile)) -> PlannedEntry {
    PlannedEntry {
        file,
        offset: 0,
        length: found.size,
    }
}

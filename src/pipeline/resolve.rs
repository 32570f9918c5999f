//! From the paths of a submission to the items that its tasks read.
//!
//! A whole file is all of its items, a range each item that it touches, and a directory all files in it and below. Files
//! that do not exist are left out: an engine may name files that it writes itself later.

use super::line::{Input, InputPart, LineError, Submission, Tasks};
use crate::dataset::Catalog;
use crate::dataset::files::{NAMES_AT_A_TIME, list};
use crate::model::slots::{STRIPE_BYTES, items_of, key_of, key_of_content, stripe_len};
use bytes::Bytes;
use copperfs_overlay::{Failure, FailureKind, FileKind, Files, ItemPath, StatAnswers};
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Requests for attributes at a time.
const REQUESTS_AT_A_TIME: usize = 16;
/// The items of files with up to this many items are remembered, so that they are found once for all tasks.
const REMEMBERED_ITEMS: u64 = 64;

/// Where the files of a submission lie.
pub(super) struct Place {
    /// The dataset's name.
    pub(super) name: String,
    /// The root of the dataset in the namespace.
    pub(super) root: ItemPath,
    /// The entries of its manifest, if it has one.
    pub(super) catalog: Option<Arc<Catalog>>,
    /// Answers for files.
    pub(super) files: Arc<dyn Files>,
    /// The maximum number of references.
    pub(super) references_max: usize,
}

/// The items of a submission.
#[derive(Debug)]
pub(super) struct Resolved {
    /// Each task with the keys of its different items.
    pub(super) tasks: Tasks<u64>,
    /// The items, each with its length in bytes.
    pub(super) items: HashMap<u64, u32>,
    /// The files that exist, relative to the dataset, each with its size in bytes.
    pub(super) files: Vec<(Box<str>, u64)>,
    /// The paths that do not.
    pub(super) unknown: Vec<Box<str>>,
}

/// A file of the dataset.
#[derive(Clone, Debug)]
struct File {
    /// In the namespace.
    path: ItemPath,
    /// In bytes.
    size: u64,
}

/// What a path of a submission is.
#[derive(Clone, Debug)]
enum Found {
    Nothing,
    File(File),
    /// All files in the directory and below.
    Directory(Vec<File>),
}

/// Finds the items of a submission.
///
/// # Errors
/// A path outside of the dataset, a range beyond its file, too many references, or storage that does not answer.
pub(super) async fn resolve(place: &Place, submission: Submission) -> Result<Resolved, LineError> {
    let Submission { files, tasks, .. } = submission;
    let paths: Vec<ItemPath> = files
        .iter()
        .map(|file| place.path_of(file))
        .collect::<Result<_, _>>()?;
    let mut is_directory = vec![false; paths.len()];
    for input in tasks.inputs() {
        is_directory[input.file as usize] |= input.part == InputPart::Recursive;
    }
    let mut found = vec![Found::Nothing; paths.len()];
    // An engine may name a file in place of a directory.
    place.find_files(&paths, &mut found).await?;
    let mut left = place.references_max;
    for (at, path) in paths.iter().enumerate().filter(|(at, _)| is_directory[*at]) {
        if matches!(found[at], Found::Nothing) {
            found[at] = place.find_below(path, &mut left).await?;
        }
    }
    let mut resolving = Resolving {
        place,
        found: &found,
        items: HashMap::new(),
        remembered: vec![None; found.len()],
        left: place.references_max,
    };
    let tasks = resolving.tasks(&files, &tasks)?;
    let items = resolving.items;
    let mut known = Vec::new();
    let mut unknown = Vec::new();
    for (name, found) in files.into_iter().zip(found) {
        match found {
            Found::Nothing => unknown.push(name),
            Found::File(file) => known.push((place.relative(&file.path), file.size)),
            Found::Directory(files) => {
                let files = files.into_iter();
                known.extend(files.map(|file| (place.relative(&file.path), file.size)));
            }
        }
    }
    Ok(Resolved {
        tasks,
        items,
        files: known,
        unknown,
    })
}

impl Place {
    /// Returns the path in the namespace.
    fn path_of(&self, file: &str) -> Result<ItemPath, LineError> {
        let outside = || {
            let error = format!("{file:?} lies outside of dataset {}", self.name);
            let advice = format!(
                "Write paths relative to {}, the root of the dataset",
                self.root
            );
            LineError::new(error, advice)
        };
        let (top, names) = match file.starts_with('/') {
            true => (ItemPath::root(), file),
            false => (self.root.clone(), file),
        };
        let names = names
            .split('/')
            .filter(|name| !name.is_empty() && *name != ".");
        let path = names
            .into_iter()
            .try_fold(top, |path, name| path.join(name.as_bytes()));
        let path = path.map_err(|_invalid| outside())?;
        match path.is_within(&self.root) {
            true => Ok(path),
            false => Err(outside()),
        }
    }

    fn relative(&self, path: &ItemPath) -> Box<str> {
        let below = path.as_bytes().get(self.root.as_bytes().len()..);
        let below = below.unwrap_or_default();
        let below = below.strip_prefix(b"/").unwrap_or(below);
        String::from_utf8_lossy(below).into()
    }

    /// Finds the files among `paths`.
    async fn find_files(&self, paths: &[ItemPath], found: &mut [Found]) -> Result<(), LineError> {
        let mut by_parent: BTreeMap<ItemPath, Vec<(Bytes, usize)>> = BTreeMap::new();
        for (at, path) in paths.iter().enumerate() {
            if let Some(catalog) = &self.catalog {
                let size = size_in(catalog, self.relative(path).as_bytes());
                let file = |size| File {
                    path: path.clone(),
                    size,
                };
                found[at] = size.map_or(Found::Nothing, |size| Found::File(file(size)));
            } else if let Some((parent, name)) = path.split() {
                let named = (Bytes::copy_from_slice(name), at);
                by_parent.entry(parent).or_default().push(named);
            }
        }
        let mut requests: Vec<(ItemPath, Vec<(Bytes, usize)>)> = Vec::new();
        for (parent, names) in by_parent {
            let parts = names.chunks(NAMES_AT_A_TIME);
            requests.extend(parts.map(|names| (parent.clone(), names.to_vec())));
        }
        let mut running = FuturesUnordered::new();
        loop {
            while running.len() < REQUESTS_AT_A_TIME
                && let Some((parent, names)) = requests.pop()
            {
                running.push(look_up(Arc::clone(&self.files), parent, names));
            }
            let Some((names, answers)) = running.next().await else {
                return Ok(());
            };
            let answers = match answers {
                Ok(answers) => answers,
                Err(failure) if is_absent(&failure) => continue,
                Err(failure) => return Err(unavailable(&failure)),
            };
            for ((_, at), answer) in names.iter().zip(answers) {
                found[*at] = match answer {
                    Ok(known) if known.kind == FileKind::File => Found::File(File {
                        path: paths[*at].clone(),
                        size: known.size,
                    }),
                    // A directory that is not said to be one, a link, a special file.
                    Ok(_) => Found::Nothing,
                    Err(failure) if is_absent(&failure) => Found::Nothing,
                    Err(failure) => return Err(unavailable(&failure)),
                };
            }
        }
    }

    /// Finds all files of a directory and below. Takes their number and that of directories from `left`, because a
    /// directory may be named in many ways.
    async fn find_below(&self, path: &ItemPath, left: &mut usize) -> Result<Found, LineError> {
        let mut take = |count: usize| {
            *left = left.checked_sub(count).ok_or_else(|| self.too_many())?;
            Ok::<_, LineError>(())
        };
        let mut files = Vec::new();
        if let Some(catalog) = &self.catalog {
            let manifest = catalog.manifest();
            for number in 0..u32::try_from(manifest.files()).unwrap_or(u32::MAX) {
                let named = manifest.path(number).and_then(|name| self.join(name));
                let named = named.filter(|named| named.is_within(path));
                if let Some((path, size)) = named.zip(manifest.size(number)) {
                    files.push(File { path, size });
                }
            }
            take(1 + files.len())?;
            return Ok(Found::Directory(files));
        }
        let mut waiting = vec![path.clone()];
        while let Some(directory) = waiting.pop() {
            let listed = match list(&*self.files, &directory).await {
                Ok(listed) => listed,
                Err(failure) if is_absent(&failure) => continue,
                Err(failure) => return Err(unavailable(&failure)),
            };
            take(1 + listed.files.len())?;
            let found = listed.files.into_iter();
            files.extend(found.map(|(path, size)| File { path, size }));
            waiting.extend(listed.directories);
        }
        Ok(match files.is_empty() {
            true => Found::Nothing,
            false => Found::Directory(files),
        })
    }

    fn join(&self, name: &[u8]) -> Option<ItemPath> {
        let mut names = name.split(|byte| *byte == b'/');
        names
            .try_fold(self.root.clone(), |path, name| path.join(name))
            .ok()
    }

    fn too_many(&self) -> LineError {
        let error = format!(
            "the submission has more than {} references",
            self.references_max
        );
        let advice = "Submit it as several jobs, or raise --max-refs-per-tenant";
        LineError::new(error, advice)
    }

    /// Returns the items that bytes of a file touch, each with its key and length.
    fn items(&self, file: &File, offset: u64, len: u64) -> Vec<(u64, u32)> {
        let end = offset.saturating_add(len).min(file.size);
        let narrow = |len: u64| u32::try_from(len).unwrap_or(u32::MAX);
        let mut items = Vec::new();
        let mut at = offset;
        while at < end {
            let piece = self.catalog.as_ref().and_then(|catalog| {
                let name = self.relative(&file.path);
                catalog.piece_at(name.as_bytes(), file.size, at)
            });
            match piece {
                Some(piece) => {
                    // Bytes between the entries are not kept.
                    let key = piece.content.as_ref().map(key_of_content);
                    items.extend(key.map(|key| (key, narrow(piece.extent.len))));
                    at = piece.extent.end().max(at + 1);
                }
                None => {
                    let stripe = at / STRIPE_BYTES;
                    let len = stripe_len(file.size, stripe);
                    items.push((key_of(&file.path, stripe), narrow(len)));
                    at = (stripe + 1) * STRIPE_BYTES;
                }
            }
        }
        items
    }
}

/// The items of a whole file, each with its key and length.
type FileItems = Arc<[(u64, u32)]>;

/// Items of tasks, as they are found.
struct Resolving<'a> {
    place: &'a Place,
    found: &'a [Found],
    items: HashMap<u64, u32>,
    /// The items of whole files.
    remembered: Vec<Option<FileItems>>,
    /// The number of references that may still come.
    left: usize,
}

impl Resolving<'_> {
    fn tasks(&mut self, names: &[Box<str>], tasks: &Tasks<Input>) -> Result<Tasks<u64>, LineError> {
        let mut resolved = Tasks::default();
        let mut keys = Vec::new();
        for (id, inputs) in tasks.iter() {
            for input in inputs {
                self.input(id, names, *input, &mut keys)?;
            }
            keys.sort_unstable();
            keys.dedup();
            keys.drain(..).for_each(|key| resolved.add_input(key));
            resolved.end_task(id.into());
        }
        Ok(resolved)
    }

    fn input(
        &mut self,
        task: &str,
        names: &[Box<str>],
        input: Input,
        keys: &mut Vec<u64>,
    ) -> Result<(), LineError> {
        let at = input.file as usize;
        let found = self.found;
        match (&found[at], input.part) {
            // Another task may name the same path as a directory.
            (Found::Nothing, _)
            | (Found::Directory(_), InputPart::Whole | InputPart::Range { .. }) => Ok(()),
            (Found::File(file), InputPart::Range { offset, len }) => {
                if offset.checked_add(len).is_none_or(|end| end > file.size) {
                    let name = &names[at];
                    let error = format!(
                        "task {task:?} reads {len} bytes from {offset} on of {name:?}, which has {} bytes",
                        file.size
                    );
                    let advice =
                        "If the file has changed, copperfs clear lets its new size be seen";
                    return Err(LineError::new(error, advice));
                }
                self.check(len)?;
                let items = self.place.items(file, offset, len);
                self.add(&items, keys)
            }
            (Found::File(file), _) => {
                let items = match &self.remembered[at] {
                    Some(items) => Arc::clone(items),
                    None => {
                        self.check(file.size)?;
                        let items: FileItems = self.place.items(file, 0, file.size).into();
                        if items_of(file.size) <= REMEMBERED_ITEMS {
                            self.remembered[at] = Some(Arc::clone(&items));
                        }
                        items
                    }
                };
                self.add(&items, keys)
            }
            (Found::Directory(files), _) => {
                for file in files {
                    self.check(file.size)?;
                    let items = self.place.items(file, 0, file.size);
                    self.add(&items, keys)?;
                }
                Ok(())
            }
        }
    }

    /// Checks that this number of bytes of a file does not have more items than may still come, before these are in memory: a
    /// file with holes may be larger than all storage.
    fn check(&self, len: u64) -> Result<(), LineError> {
        match len / STRIPE_BYTES > self.left as u64 {
            true => Err(self.place.too_many()),
            false => Ok(()),
        }
    }

    fn add(&mut self, items: &[(u64, u32)], keys: &mut Vec<u64>) -> Result<(), LineError> {
        // An empty file counts too, because it takes time.
        let left = self.left.checked_sub(items.len().max(1));
        self.left = left.ok_or_else(|| self.place.too_many())?;
        for (key, len) in items {
            self.items.insert(*key, *len);
            keys.push(*key);
        }
        Ok(())
    }
}

/// Asks for the attributes of `names` in the directory `parent`.
async fn look_up(
    files: Arc<dyn Files>,
    parent: ItemPath,
    names: Vec<(Bytes, usize)>,
) -> (Vec<(Bytes, usize)>, Result<StatAnswers, Failure>) {
    let wanted = names.iter().map(|(name, _)| name.clone()).collect();
    let answers = files.stat_names(parent, wanted).await;
    (names, answers.map(|answers| answers.value))
}

/// Returns the size of a file that the manifest names.
fn size_in(catalog: &Catalog, name: &[u8]) -> Option<u64> {
    let manifest = catalog.manifest();
    manifest.size(manifest.file_at(name)?)
}

fn is_absent(failure: &Failure) -> bool {
    use FailureKind::{NotADirectory, NotFound};
    matches!(failure.kind, NotFound | NotADirectory)
}

fn unavailable(failure: &Failure) -> LineError {
    let error = format!("the sizes of its files cannot be looked up: {failure}");
    LineError::new(error, "Submit the job again when storage answers")
}

#[cfg(test)]
mod tests;

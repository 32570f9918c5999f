//! The inputs of a submission, with a position for each file.

use super::{Span, TO_END};
use crate::pipeline::message::{Input, PathInput, Submission};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::HashMap;

/// The order of the files that a job names first, which is the order of their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileOrder {
    /// As the submission lists them: for engines that list the files of each run alike.
    #[default]
    Listed,
    /// By path, with numbers in paths by their value (`part-9` before `part-10`): for engines that list files by
    /// their sizes, which differ from run to run.
    Path,
}

/// A file of a submission: a path, and whether it stands for all files below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FileKey<'a> {
    pub(super) path: &'a str,
    pub(super) recursive: bool,
}

/// An input: the position of its file in [`JobInputs::files`], and its range (`None`: the whole file).
pub(super) type PlacedInput = (usize, Option<Span>);

/// The inputs of a submission.
#[derive(Debug)]
pub(super) struct JobInputs<'a> {
    /// The different files, in order.
    pub(super) files: Vec<FileKey<'a>>,
    /// The different inputs of each task, sorted.
    pub(super) tasks: Vec<Vec<PlacedInput>>,
}

impl<'a> JobInputs<'a> {
    /// The inputs of `submission`. An index beyond its files is left out: such a submission is refused.
    pub(super) fn of(submission: &'a Submission, order: FileOrder) -> Self {
        let mut files = Files::default();
        // All listed files come before those that are named by tasks, so that the list alone sets the order.
        let is_used = used(submission);
        for (path, is_used) in submission.files.iter().zip(&is_used) {
            if *is_used {
                files.position(FileKey {
                    path,
                    recursive: false,
                });
            }
        }
        let mut tasks: Vec<Vec<PlacedInput>> = Vec::with_capacity(submission.tasks.len());
        for task in &submission.tasks {
            let mut inputs = Vec::with_capacity(task.inputs.len() + task.paths.len());
            for input in &task.inputs {
                let (index, span) = match *input {
                    Input::Whole(index) => (index, None),
                    Input::Range(index, off, len) => (index, Some(Span(off, len))),
                };
                let Some(path) = submission.files.get(index) else {
                    continue;
                };
                let recursive = false;
                inputs.push((files.position(FileKey { path, recursive }), span));
            }
            for input in &task.paths {
                let (path, recursive) = (input.path.as_str(), input.recursive);
                inputs.push((files.position(FileKey { path, recursive }), span(input)));
            }
            tasks.push(inputs);
        }
        let mut placed = Self {
            files: files.list,
            tasks,
        };
        if order == FileOrder::Path {
            placed.sort_files();
        }
        for task in &mut placed.tasks {
            task.sort_unstable();
            task.dedup();
        }
        placed
    }

    fn sort_files(&mut self) {
        let mut sorted: Vec<usize> = (0..self.files.len()).collect();
        sorted.sort_by(|a, b| {
            let (a, b) = (&self.files[*a], &self.files[*b]);
            natural(a.path, b.path).then(a.recursive.cmp(&b.recursive))
        });
        let mut position = vec![0; sorted.len()];
        for (at, file) in sorted.iter().enumerate() {
            position[*file] = at;
        }
        self.files = sorted.iter().map(|file| self.files[*file]).collect();
        for (file, _) in self.tasks.iter_mut().flatten() {
            *file = position[*file];
        }
    }

    /// For each file the number of inputs that are in it, and its different ranges, sorted.
    pub(super) fn by_file(&self) -> Vec<(usize, Vec<Span>)> {
        let inputs = self.tasks.iter().flatten().copied();
        by_file(self.files.len(), inputs)
    }
}

/// The files of a job and their positions.
#[derive(Default)]
struct Files<'a> {
    list: Vec<FileKey<'a>>,
    positions: HashMap<FileKey<'a>, usize>,
}

impl<'a> Files<'a> {
    fn position(&mut self, file: FileKey<'a>) -> usize {
        *self.positions.entry(file).or_insert_with(|| {
            self.list.push(file);
            self.list.len() - 1
        })
    }
}

/// For each of `files` files the number of `inputs` that are in it, and its different ranges, sorted.
pub(super) fn by_file<S: Ord>(
    files: usize,
    inputs: impl Iterator<Item = (usize, Option<S>)>,
) -> Vec<(usize, Vec<S>)> {
    let mut found: Vec<(usize, Vec<S>)> = (0..files).map(|_| (0, Vec::new())).collect();
    for (file, span) in inputs {
        found[file].0 += 1;
        found[file].1.extend(span);
    }
    for (_, spans) in &mut found {
        spans.sort_unstable();
        spans.dedup();
    }
    found
}

/// Which of its files a submission uses.
fn used(submission: &Submission) -> Vec<bool> {
    let mut used = vec![false; submission.files.len()];
    for input in submission.tasks.iter().flat_map(|task| &task.inputs) {
        let (Input::Whole(index) | Input::Range(index, ..)) = *input;
        if let Some(used) = used.get_mut(index) {
            *used = true;
        }
    }
    used
}

fn span(input: &PathInput) -> Option<Span> {
    match (input.off, input.len) {
        _ if input.recursive => None,
        (None | Some(0), None) => None,
        (off, len) => Some(Span(off.unwrap_or(0), len.unwrap_or(TO_END))),
    }
}

/// The part of a job's id that the next run repeats. Engines put the ids of their application or run first, which are
/// others in each run.
pub(super) fn stable_name(job: &str) -> &str {
    job.rsplit_once('/').map_or(job, |(_run, name)| name)
}

/// Compares paths with runs of digits by their value.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a.as_bytes(), b.as_bytes());
    loop {
        let order = match (digits(left), digits(right)) {
            (0, _) | (_, 0) => match (left.split_first(), right.split_first()) {
                (Some((a, left_rest)), Some((b, right_rest))) if a == b => {
                    (left, right) = (left_rest, right_rest);
                    continue;
                }
                (a, b) => return a.cmp(&b),
            },
            (n, m) => {
                let (x, y) = (value(&left[..n]), value(&right[..m]));
                (left, right) = (&left[n..], &right[m..]);
                x.len().cmp(&y.len()).then(x.cmp(y))
            }
        };
        // Equal numbers may have different zeros in front: then the rest decides, and at last the whole.
        if order != Ordering::Equal {
            return order;
        }
        if left.is_empty() && right.is_empty() {
            return a.cmp(b);
        }
    }
}

fn digits(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// A number without zeros in front.
fn value(digits: &[u8]) -> &[u8] {
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    &digits[zeros..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_paths_are_in_the_order_of_their_values() {
        let mut paths = [
            "day=10/p-0",
            "day=9/p-10",
            "day=9/p-9",
            "day=9",
            "day=009/p-9",
            "a",
            "",
        ];
        paths.sort_by(|a, b| natural(a, b));
        assert_eq!(
            paths,
            [
                "",
                "a",
                "day=9",
                "day=009/p-9",
                "day=9/p-9",
                "day=9/p-10",
                "day=10/p-0"
            ]
        );
        assert_eq!(natural("p-01", "p-1"), Ordering::Less);
        assert_eq!(natural("p-1", "p-1"), Ordering::Equal);
    }

    #[test]
    fn the_id_of_the_application_is_not_part_of_a_name() {
        assert_eq!(stable_name("app-20261124-0001/sql-0"), "sql-0");
        assert_eq!(stable_name("daily/20261124T224207Z-aa355545/0"), "0");
        assert_eq!(stable_name("sql-0"), "sql-0");
    }
}

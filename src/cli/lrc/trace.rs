//! `copperfs lrc trace`: makes a trace for `lrc replay` from the log of a run.

use crate::cli::say;
use crate::pipeline::trace::RunEvents;
use anyhow::Context;
use clap::Args;
use copperfs_policy::amounts::ByteSize;
use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The maximum length of a log: it is in memory while it is read.
const LOG_BYTES_MAX: u64 = 1 << 30;
/// Files below directories that are inputs as a whole. More are a mistake in the log or in the directory.
const FILES_MAX: usize = 10_000_000;

/// Flags of `lrc trace`.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// The file of `lrc run --log`
    #[arg(value_name = "LOG")]
    log: PathBuf,
    /// The dataset's root, where the files of the run still are: for their sizes
    #[arg(long, value_name = "DIR")]
    sizes: PathBuf,
    /// The cache of the trace
    #[arg(long, value_name = "SIZE")]
    cache: ByteSize,
    /// The part of the cache, in per cent, that undeclared blocks keep, as in homes
    #[arg(long, value_name = "PERCENT", default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=100))]
    floor: u64,
    /// Leave out the jobs that a profile let expect: for the policy lrc-offline, which knows all jobs
    #[arg(long)]
    without_expected: bool,
}

/// Prints the trace.
///
/// # Errors
/// The log cannot be read, or the sizes of its files cannot.
pub(super) fn trace(args: &TraceArgs) -> anyhow::Result<()> {
    let shown = args.log.display();
    let mut log = Vec::new();
    let read = fs::File::open(&args.log)
        .and_then(|file| file.take(LOG_BYTES_MAX + 1).read_to_end(&mut log));
    read.with_context(|| format!("cannot read {shown}"))?;
    anyhow::ensure!(
        log.len() as u64 <= LOG_BYTES_MAX,
        "{shown} is larger than 1 GiB. Cut its end off"
    );
    let lines = log
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let events = RunEvents::read(lines, !args.without_expected);
    let events = events.with_context(|| shown.to_string())?;
    let mut sizes = BTreeMap::new();
    for (path, recursive) in events.paths() {
        measure(&args.sizes, path, recursive, &mut sizes)?;
    }
    let ByteSize(cache) = args.cache;
    // Divided first, so that no size overflows.
    let floor = cache / 100 * args.floor;
    say(serde_json::to_string(&events.trace(&sizes, cache, floor))?);
    Ok(())
}

/// Adds the size of the file `path`, or with `recursive` those of all files below it. A path that is not there has no
/// size.
fn measure(
    root: &Path,
    path: &str,
    recursive: bool,
    sizes: &mut BTreeMap<String, u64>,
) -> anyhow::Result<()> {
    let mut ahead = vec![path.trim_end_matches('/').to_owned()];
    while let Some(path) = ahead.pop() {
        let full = root.join(&path);
        let cannot = || format!("cannot read the size of {}", full.display());
        let found = match fs::metadata(&full) {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                continue;
            }
            found => found.with_context(cannot)?,
        };
        if found.is_file() {
            sizes.insert(path, found.len());
        } else if recursive && found.is_dir() {
            for entry in fs::read_dir(&full).with_context(cannot)? {
                // A name that is not UTF-8 cannot be in a line of JSON.
                if let Ok(name) = entry.with_context(cannot)?.file_name().into_string() {
                    ahead.push(if path.is_empty() {
                        name
                    } else {
                        format!("{path}/{name}")
                    });
                }
            }
        }
        anyhow::ensure!(
            sizes.len() <= FILES_MAX,
            "more than {FILES_MAX} files below {}",
            root.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_measured_where_they_are() {
        let dir = tempfile::tempdir().unwrap();
        for (name, size) in [("a", 3), ("d/e/f", 5), ("d/g", 7), ("other", 9)] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![0; size]).unwrap();
        }
        let mut sizes = BTreeMap::new();
        for (path, recursive) in [
            ("a", false),
            ("d", true),
            ("d", false),
            ("gone", true),
            ("a/x", false),
        ] {
            measure(dir.path(), path, recursive, &mut sizes).unwrap();
        }
        let wanted = [("a", 3), ("d/e/f", 5), ("d/g", 7)];
        assert_eq!(
            sizes,
            wanted.map(|(path, size)| (path.to_owned(), size)).into()
        );
    }
}

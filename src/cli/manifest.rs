//! `copperfs dataset manifest`: reads a dataset once, and writes the hashes of its entries.

use super::index::{follow, open, origin, own_names};
use super::{Interrupted, say};
use crate::config::Machine;
use crate::index::walk::{WalkOptions, Walker};
use crate::index::{Index, LocalFile};
use crate::manifest::format::Header;
use crate::manifest::hash::Progress;
use crate::manifest::make::{MakeOptions, Selection, make};
use crate::manifest::names::{Names, root_in};
use crate::origin::{Origins, redacted};
use clap::Args;
use copperfs_overlay::ItemPath;
use copperfs_policy::amounts::{ByteRate, ByteSize};
use indicatif::ProgressBar;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Flags of `dataset manifest`.
#[derive(Debug, Args)]
pub struct ManifestArgs {
    /// The dataset: a directory, or a URI such as s3://bucket/prefix
    #[arg(value_name = "PATH|URI")]
    place: String,
    /// Where the manifest goes; it replaces a file of this name when it is complete
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Take names, sizes and hashes from this index of the dataset, or of a tree around it; storage
    /// is not listed, and only what the index has no hash of is read
    #[arg(long, value_name = "FILE")]
    index: Option<PathBuf>,
    /// The dataset's order: a list of all its files, one path a line, relative to the dataset
    /// [default: by path]
    #[arg(long, value_name = "LIST", conflicts_with = "entries")]
    order: Option<PathBuf>,
    /// The dataset's entries in their order: a list of ranges in files, such as the samples in
    /// shards, each line a PATH, an OFFSET and a LENGTH with tabs between them
    #[arg(long, value_name = "LIST")]
    entries: Option<PathBuf>,
    /// Requests to the storage at a time
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
    /// Take the options of the origin with this URI, credentials say, from this configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ManifestArgs {
    fn selection(&self, here: &Path) -> Selection {
        match (&self.order, &self.entries) {
            (Some(list), _) => Selection::Order(here.join(list)),
            (None, Some(list)) => Selection::Entries(here.join(list)),
            (None, None) => Selection::ByPath,
        }
    }
}

/// Makes a manifest.
///
/// # Errors
/// It cannot be made; [`Interrupted`].
pub(super) fn manifest(args: &ManifestArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .max_blocking_threads(usize::from(args.concurrency) + 4)
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(run(args));
    // System calls may still hang in storage, so their threads are not joined.
    runtime.shutdown_background();
    outcome
}

async fn run(args: &ManifestArgs) -> anyhow::Result<()> {
    let started = Instant::now();
    let machine = Machine::inspect();
    let spec = origin(&args.place, args.config.as_deref(), &machine)?;
    let options = MakeOptions {
        target: machine.working_dir.join(&args.output),
        uri: redacted(&spec.uri),
        selection: args.selection(&machine.working_dir),
        concurrency: usize::from(args.concurrency),
    };
    let origins = open(&spec, options.concurrency, &machine)?;
    let origins = Arc::new(origins);
    let own = own_files(args, &spec.uri, &machine.working_dir);
    let names = names(args, &options, &origins, own).await?;
    let progress = Arc::new(Progress::default());
    // Hidden unless standard error is a terminal.
    let bar = match args.json {
        true => ProgressBar::hidden(),
        false => ProgressBar::new_spinner(),
    };
    let made = tokio::select! {
        made = make(&options, &names, origins, seconds_now, &progress) => Some(made),
        // Never completes; it only updates the bar while the manifest is made.
        () = follow(&bar, |elapsed| shown(&progress, elapsed)) => None,
        _ = tokio::signal::ctrl_c() => None,
    };
    bar.finish_and_clear();
    let kept = "stopped; what is done is kept: the same command goes on with it";
    let header = made.ok_or(Interrupted(kept))??;
    let read = progress.read.load(Ordering::Relaxed);
    done(args, &options.target, &header, read, started.elapsed());
    Ok(())
}

/// The files beside a dataset that are not entries of it, if they are within it: the manifest itself, the index and
/// the list.
fn own_files(args: &ManifestArgs, uri: &str, here: &Path) -> Vec<ItemPath> {
    let mut own = own_names(uri, &here.join(&args.output));
    for file in [&args.index, &args.order].into_iter().flatten() {
        // They have no temporary files now.
        own.extend(own_names(uri, &here.join(file)).into_iter().next());
    }
    own
}

async fn names(
    args: &ManifestArgs,
    options: &MakeOptions,
    origins: &Arc<Origins>,
    own: Vec<ItemPath>,
) -> anyhow::Result<Names> {
    if let Some(file) = &args.index {
        let index = Index::open(Arc::new(LocalFile::open(file)?)).await?;
        let root = root_in(&index, &options.uri)?;
        let index = Box::new(index);
        return Ok(Names::Index { index, root, own });
    }
    origins.check().await?;
    let options = WalkOptions {
        concurrency: options.concurrency,
        hash: false,
    };
    let files = Arc::clone(origins);
    Ok(Names::Storage(Walker::new(
        files,
        options,
        Arc::default(),
        own,
    )))
}

fn seconds_now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}

fn done(args: &ManifestArgs, target: &Path, header: &Header, read: u64, elapsed: Duration) {
    let identity = blake3::Hash::from_bytes(header.identity).to_hex();
    let counts = header.counts;
    if args.json {
        say(json!({
            "entries": counts.entries,
            "files": counts.files,
            "bytes": header.entry_bytes,
            "read_bytes": read,
            "identity": identity.as_str(),
            "manifest_bytes": header.file_bytes,
            "elapsed_ms": u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
        }));
        return;
    }
    say(format_args!(
        "{}: {} entries of {} in {} files, of which {} were read, in {:.1} s\nidentity {identity}",
        target.display(),
        counts.entries,
        ByteSize(header.entry_bytes),
        counts.files,
        ByteSize(read),
        elapsed.as_secs_f64(),
    ));
}

fn shown(progress: &Progress, elapsed: Duration) -> String {
    let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let entries = now(&progress.entries);
    if entries == 0 {
        return format!("{} files found", now(&progress.files));
    }
    let read = now(&progress.read);
    let rate = ByteRate(read / elapsed.as_secs().max(1));
    let left = now(&progress.bytes).saturating_sub(now(&progress.reused));
    let (known, read, left) = (now(&progress.known), ByteSize(read), ByteSize(left));
    format!("{known} of {entries} entries, {read} of {left} read ({rate})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_from_the_listing_to_the_last_entry() {
        let progress = Progress::default();
        progress.files.store(12, Ordering::Relaxed);
        let seconds = Duration::from_secs(2);
        assert_eq!(shown(&progress, seconds), "12 files found");
        for (count, value) in [
            (&progress.entries, 12),
            (&progress.known, 3),
            (&progress.bytes, 40 << 20),
            (&progress.reused, 8 << 20),
            (&progress.read, 2 << 20),
        ] {
            count.store(value, Ordering::Relaxed);
        }
        assert_eq!(
            shown(&progress, seconds),
            "3 of 12 entries, 2.00 MiB of 32.0 MiB read (1.00 MiB/s)"
        );
    }
}

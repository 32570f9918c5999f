//! `copperfs index`: walks a tree once and writes its index, or shows the contents of an index.

use super::{INTERRUPTED, fail, say};
use crate::config::layer::{Layer, split_prefix};
use crate::config::{Machine, gather, origins};
use crate::index::partial::Partial;
use crate::index::walk::{LeftOut, Progress, WalkOptions, Walker, write_index};
use crate::index::write::Existing;
use crate::index::{Index, LocalFile, Totals};
use crate::origin::{OriginError, OriginOptions, OriginSpec, Origins, SymlinkPolicy, redacted};
use anyhow::{Context, bail, ensure};
use clap::Args;
use copperfs_overlay::ItemPath;
use copperfs_policy::amounts::{ByteRate, ByteSize};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Flags of `index`.
#[derive(Debug, Args)]
pub struct IndexArgs {
    /// The tree: what --origin of a mount takes, file:///path, s3://bucket/prefix and so on
    #[arg(required_unless_present = "show")]
    uri: Option<String>,
    /// Where the index goes
    #[arg(short, long, value_name = "FILE", required_unless_present = "show")]
    output: Option<PathBuf>,
    /// Read every file, and keep the hash of its content
    #[arg(long)]
    hash: bool,
    /// Replace the file, if there is one; it stays as it is until the new index is complete
    #[arg(long)]
    force: bool,
    /// Go on with an index that was not finished
    #[arg(long)]
    resume: bool,
    /// Finish although directories cannot be listed; they are asked for at their origin later
    #[arg(long)]
    skip_unreadable: bool,
    /// Requests to the storage at a time
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
    /// Take the options of the origin with this URI, credentials say, from this configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Show what an index tells of, and do nothing else
    #[arg(long, value_name = "FILE", conflicts_with_all = ["uri", "output", "hash", "force", "resume", "skip_unreadable", "config"])]
    show: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The maximum number of failed directories that are listed.
const FAILURES_SHOWN: usize = 10;
/// How long storage may take for one answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Makes an index, or shows one.
///
/// # Errors
/// The index cannot be made or read.
pub fn index(args: &IndexArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .max_blocking_threads(usize::from(args.concurrency) + 4)
        .enable_all()
        .build()?;
    let outcome = match (&args.show, &args.uri, &args.output) {
        (Some(file), ..) => runtime.block_on(show(file, args.json)),
        (None, Some(uri), Some(output)) => runtime.block_on(make(args, uri, output)),
        _ => bail!("name a tree and -o FILE, or --show FILE"),
    };
    // System calls may still hang in storage, so their threads are not joined.
    runtime.shutdown_background();
    outcome
}

/// The origin of the tree at `uri`, a URI or a directory, with the options that the file `config` has for it.
pub(super) fn origin(
    uri: &str,
    config: Option<&Path>,
    machine: &Machine,
) -> anyhow::Result<OriginSpec> {
    let uri = if uri.contains("://") {
        uri.to_owned()
    } else {
        let path = std::fs::canonicalize(machine.working_dir.join(uri));
        let path = path.with_context(|| format!("cannot open {uri}"))?;
        format!("file://{}", path.display())
    };
    let layer = match config {
        Some(path) => gather(Layer::default(), Some(path), machine)?,
        None => Layer::default(),
    };
    let mut origins = layer.values("origin").iter();
    let own = origins.rfind(|origin| uri.starts_with(&origins::split(&origin.text).1));
    Ok(OriginSpec {
        prefix: ItemPath::root(),
        options: own.map(|origin| origin.options.clone()).unwrap_or_default(),
        uri,
    })
}

async fn make(args: &IndexArgs, uri: &str, output: &Path) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let machine = Machine::inspect();
    let output = machine.working_dir.join(output);
    let spec = origin(uri, args.config.as_deref(), &machine)?;
    // The URI without credentials.
    let uri = redacted(&spec.uri);
    let concurrency = usize::from(args.concurrency);
    let (existing, resumption) = match args.force {
        true => (Existing::Replace, "--resume --force"),
        false => (Existing::Keep, "--resume"),
    };
    // Checked before the walk of the storage, which may take hours.
    existing.check(&output)?;
    let origins = open(&spec, concurrency, &machine)?;
    origins.check().await?;
    let mut log = Partial::open(&output, &uri, args.hash, args.resume)?;
    let progress = Arc::new(Progress::default());
    let options = WalkOptions {
        concurrency,
        hash: args.hash,
    };
    let (origins, own) = (Arc::new(origins), own_names(&spec.uri, &output));
    let walker = Walker::new(origins, options, Arc::clone(&progress), own);
    // Hidden unless standard error is a terminal.
    let bar = match args.json {
        true => ProgressBar::hidden(),
        false => ProgressBar::new_spinner(),
    };
    let failures = tokio::select! {
        failures = walker.walk(&uri, &mut log) => Some(failures?),
        // Never completes; it only updates the bar while the walk runs.
        () = follow(&bar, |elapsed| shown(&progress, elapsed)) => None,
        _ = tokio::signal::ctrl_c() => None,
    };
    bar.finish_and_clear();
    let Some(failures) = failures else {
        fail(format_args!(
            "stopped; the finished part is kept: go on with {resumption}"
        ));
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let count = report(&failures);
    ensure!(
        count == 0 || args.skip_unreadable,
        "{count} directories cannot be listed, so there is no new index yet: try them again with \
         {resumption}, or leave them to their origin with {resumption} --skip-unreadable"
    );
    let made_at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let made_at = i64::try_from(made_at.as_secs())?;
    let totals = tokio::task::block_in_place(|| {
        write_index(&log, &output, &uri, args.hash, made_at, existing)
    })?;
    // The partial state is removed only after the index is complete on disk.
    log.remove();
    done(args, &output, &totals, started.elapsed())?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the origin of a tree that is walked, with this number of concurrent requests.
pub(super) fn open(
    spec: &OriginSpec,
    concurrency: usize,
    machine: &Machine,
) -> Result<Origins, OriginError> {
    let options = OriginOptions {
        symlinks: SymlinkPolicy::Keep,
        listing_attributes_max: usize::MAX,
        listing_attributes_timeout: REQUEST_TIMEOUT,
        hang_timeout: REQUEST_TIMEOUT,
        posix_concurrency: concurrency,
        object_concurrency: concurrency,
        env: machine.origin_environment(),
        ..OriginOptions::default()
    };
    Origins::open(std::slice::from_ref(spec), &options)
}

fn done(args: &IndexArgs, output: &Path, totals: &Totals, elapsed: Duration) -> anyhow::Result<()> {
    let bytes = std::fs::metadata(output)?.len();
    if args.json {
        let mut value = totals_json(totals, bytes)?;
        value["elapsed_ms"] = u64::try_from(elapsed.as_millis())?.into();
        say(value);
        return Ok(());
    }
    say(format_args!(
        "{}: {} files of {} in {} directories, {} for each entry, in {:.1} s",
        output.display(),
        totals.files,
        ByteSize(totals.bytes),
        totals.directories,
        ByteSize(bytes / totals.entries().max(1)),
        elapsed.as_secs_f64(),
    ));
    Ok(())
}

/// The paths of `output` and its temporary files, if they are within the tree at `uri`. The walk skips them.
pub(super) fn own_names(uri: &str, output: &Path) -> Vec<ItemPath> {
    let Some(root) = uri.strip_prefix("file://") else {
        return Vec::new();
    };
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let parent = real(output.parent().unwrap_or(Path::new("/")));
    let below = parent.strip_prefix(real(Path::new(root)));
    let below = below.map(|below| ItemPath::parse(below.as_os_str().as_bytes()));
    let Ok(Ok(parent)) = below else {
        return Vec::new();
    };
    let name = output.file_name().unwrap_or_default().as_bytes();
    let names = ["", ".partial", ".new"].map(|end| [name, end.as_bytes()].concat());
    names.iter().flat_map(|name| parent.join(name)).collect()
}

/// Prints the first failures. Returns the number of all.
fn report(failures: &[LeftOut]) -> usize {
    for LeftOut { path, failure } in failures.iter().take(FAILURES_SHOWN) {
        fail(format_args!("{path}: {failure}"));
    }
    if let Some(more) = failures
        .get(FAILURES_SHOWN..)
        .filter(|more| !more.is_empty())
    {
        fail(format_args!("and {} more", more.len()));
    }
    failures.len()
}

fn totals_json(totals: &Totals, index_bytes: u64) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(totals)?;
    value["entries"] = totals.entries().into();
    value["index_bytes"] = index_bytes.into();
    Ok(value)
}

async fn show(file: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let (_, path) = split_prefix(file.to_str().unwrap_or_default());
    let path = if file.exists() { file } else { Path::new(path) };
    let index = Index::open(Arc::new(LocalFile::open(path)?)).await?;
    let (header, uri) = (&index.header, index.tail.uri.clone());
    let totals = header.totals;
    if json {
        let mut value = totals_json(&totals, header.file_bytes)?;
        value["uri"] = uri.into();
        value["hashed"] = header.hashed.into();
        value["made_at"] = header.made_at.into();
        say(value);
        return Ok(ExitCode::SUCCESS);
    }
    let hashed = if header.hashed { "yes" } else { "no" };
    say(format_args!("of           {uri}"));
    say(format_args!("directories  {}", totals.directories));
    say(format_args!("files        {}", totals.files));
    say(format_args!("others       {}", totals.others));
    say(format_args!("size         {}", ByteSize(totals.bytes)));
    say(format_args!("unlisted     {}", totals.unlisted));
    say(format_args!("contents     {hashed}"));
    say(format_args!("index        {}", ByteSize(header.file_bytes)));
    Ok(ExitCode::SUCCESS)
}

/// Shows on `bar` what `shown` says of the progress after this time. Never returns.
pub(super) async fn follow(bar: &ProgressBar, shown: impl Fn(Duration) -> String) {
    if bar.is_hidden() {
        return std::future::pending().await;
    }
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}, {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    let started = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_millis(250));
    loop {
        tick.tick().await;
        bar.set_message(shown(started.elapsed()));
    }
}

fn shown(progress: &Progress, elapsed: Duration) -> String {
    let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (directories, entries) = (now(&progress.directories), now(&progress.entries));
    let seconds = elapsed.as_secs().max(1);
    let rate = entries / seconds;
    let mut text = format!("{directories} directories, {entries} entries, {rate}/s");
    let hashed = now(&progress.hashed);
    if hashed > 0 {
        let (read, rate) = (ByteSize(hashed), ByteRate(hashed / seconds));
        text.push_str(&format!(", {read} read ({rate})"));
    }
    let failed = now(&progress.failed);
    if failed > 0 {
        text.push_str(&format!(", {failed} failed"));
    }
    text
}

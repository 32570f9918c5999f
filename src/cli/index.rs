//! `copperfs index`: walks a tree once and writes its index, walks it again, or shows the contents of an index.

use super::{INTERRUPTED, counted, fail, grouped, say};
use crate::config::layer::Layer;
use crate::config::{Machine, gather, origins};
use crate::index::partial::Partial;
use crate::index::walk::{LeftOut, Progress, WalkOptions, Walker, write_index};
use crate::index::write::Existing;
use crate::index::{Index, LocalFile, Totals};
use crate::origin::{OriginError, OriginOptions, OriginSpec, Origins, SymlinkPolicy, redacted};
use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
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

/// What is done with indexes.
#[derive(Debug, Subcommand)]
pub enum IndexCommand {
    /// Walk a tree once, and write the index of its files
    #[command(after_help = "Examples:\n  \
            copperfs index build s3://bucket/train -o train.index --hash\n  \
            copperfs index build /lus/data -o /lus/data/.index --resume")]
    Build(BuildArgs),
    /// Walk the tree of an index again, and replace the index
    #[command(after_help = "Example:\n  \
            copperfs index update train.index\n\n\
            The index stays as it is until the new one is complete. If it has hashes, every file is read again.")]
    Update(UpdateArgs),
    /// Show the contents of an index
    Show(ShowArgs),
}

/// Flags of `index build`.
#[derive(Debug, Args)]
pub struct BuildArgs {
    /// The tree: file:///path, s3://bucket/prefix and so on, as for --origin of a mount
    uri: String,
    /// The file of the index
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Read every file, and keep the hash of its content
    #[arg(long)]
    hash: bool,
    /// Replace the file, if there is one; it stays as it is until the new index is complete
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    walk: WalkArgs,
}

/// Flags of `index update`.
#[derive(Debug, Args)]
pub struct UpdateArgs {
    /// The index
    file: PathBuf,
    #[command(flatten)]
    walk: WalkArgs,
}

/// Flags of every walk.
#[derive(Debug, Args)]
pub struct WalkArgs {
    /// Go on with an index that was not finished
    #[arg(long)]
    resume: bool,
    /// Finish although directories cannot be listed; they are requested from their origin later
    #[arg(long)]
    skip_unreadable: bool,
    /// Requests to the storage at a time
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
    /// Take the options of the origin with this URI, such as its region, from this configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Flags of `index show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The index
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A walk that makes an index.
#[derive(Debug)]
struct Work<'a> {
    uri: &'a str,
    output: &'a Path,
    hash: bool,
    existing: Existing,
    /// The words that go on with it.
    resumption: &'static str,
    walk: &'a WalkArgs,
}

/// The maximum number of failed directories that are listed.
const FAILURES_SHOWN: usize = 10;
/// How long storage may take for one answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Makes an index, or shows one.
///
/// # Errors
/// The index cannot be made or read.
pub fn index(command: &IndexCommand) -> anyhow::Result<ExitCode> {
    let concurrency = match command {
        IndexCommand::Build(args) => args.walk.concurrency,
        IndexCommand::Update(args) => args.walk.concurrency,
        IndexCommand::Show(_) => 1,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .max_blocking_threads(usize::from(concurrency) + 4)
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(async {
        match command {
            IndexCommand::Build(args) => build(args).await,
            IndexCommand::Update(args) => update(args).await,
            IndexCommand::Show(args) => show(args).await,
        }
    });
    // System calls may still hang in storage, so their threads are not joined.
    runtime.shutdown_background();
    outcome
}

async fn build(args: &BuildArgs) -> anyhow::Result<ExitCode> {
    let (existing, resumption) = match args.force {
        true => (Existing::Replace, "--resume --force"),
        false => (Existing::Keep, "--resume"),
    };
    let work = Work {
        uri: &args.uri,
        output: &args.output,
        hash: args.hash,
        existing,
        resumption,
        walk: &args.walk,
    };
    work.run().await
}

async fn update(args: &UpdateArgs) -> anyhow::Result<ExitCode> {
    let (uri, hash) = {
        let index = read(&args.file).await?;
        (index.tail.uri.clone(), index.header.hashed)
    };
    let work = Work {
        uri: &uri,
        output: &args.file,
        hash,
        existing: Existing::Replace,
        resumption: "--resume",
        walk: &args.walk,
    };
    work.run().await
}

async fn read(file: &Path) -> anyhow::Result<Index> {
    Ok(Index::open(Arc::new(LocalFile::open(file)?)).await?)
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

impl Work<'_> {
    async fn run(&self) -> anyhow::Result<ExitCode> {
        let started = Instant::now();
        let machine = Machine::inspect();
        let (walk, resumption) = (self.walk, self.resumption);
        let output = machine.working_dir.join(self.output);
        let spec = origin(self.uri, walk.config.as_deref(), &machine)?;
        // The URI without credentials.
        let uri = redacted(&spec.uri);
        let concurrency = usize::from(walk.concurrency);
        // Checked before the walk of the storage, which may take hours.
        self.existing.check(&output)?;
        let origins = open(&spec, concurrency, &machine)?;
        origins.check().await?;
        let mut log = Partial::open(&output, &uri, self.hash, walk.resume)?;
        let progress = Arc::new(Progress::default());
        let options = WalkOptions {
            concurrency,
            hash: self.hash,
        };
        let (origins, own) = (Arc::new(origins), own_names(&spec.uri, &output));
        let walker = Walker::new(origins, options, Arc::clone(&progress), own);
        // Hidden unless standard error is a terminal.
        let bar = match walk.json {
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
            count == 0 || walk.skip_unreadable,
            "{} cannot be listed, so there is no new index yet: try again with {resumption}, or leave \
             them to their origin with {resumption} --skip-unreadable",
            counted(count, "directory", "directories")
        );
        let made_at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let made_at = i64::try_from(made_at.as_secs())?;
        let totals = tokio::task::block_in_place(|| {
            write_index(&log, &output, &uri, self.hash, made_at, self.existing)
        })?;
        // The partial state is removed only after the index is complete on disk.
        log.remove();
        done(walk.json, &output, &totals, started.elapsed())?;
        Ok(ExitCode::SUCCESS)
    }
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

fn done(json: bool, output: &Path, totals: &Totals, elapsed: Duration) -> anyhow::Result<()> {
    let bytes = std::fs::metadata(output)?.len();
    if json {
        let mut value = totals_json(totals, bytes)?;
        value["elapsed_ms"] = u64::try_from(elapsed.as_millis())?.into();
        say(value);
        return Ok(());
    }
    if totals.files == 0 {
        fail("warning: there are no files; check the path or prefix");
    }
    say(format_args!(
        "{}: {}, {} in total, in {}; {} in the index; took {:.1} s",
        output.display(),
        counted(totals.files, "file", "files"),
        ByteSize(totals.bytes),
        counted(totals.directories, "directory", "directories"),
        ByteSize(bytes),
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

async fn show(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let index = read(&args.file).await?;
    let (header, uri) = (&index.header, index.tail.uri.clone());
    let totals = header.totals;
    if args.json {
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
    let per_second = |count: u64| {
        let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        count.saturating_mul(1000) / millis.max(1000)
    };
    let rate = grouped(per_second(entries));
    let mut text = format!(
        "{}, {}, {rate}/s",
        counted(directories, "directory", "directories"),
        counted(entries, "entry", "entries"),
    );
    let hashed = now(&progress.hashed);
    if hashed > 0 {
        let (read, rate) = (ByteSize(hashed), ByteRate(per_second(hashed)));
        text.push_str(&format!(", {read} read ({rate})"));
    }
    let failed = now(&progress.failed);
    if failed > 0 {
        text.push_str(&format!(", {failed} failed"));
    }
    text
}

//! `copperfs index`: walks a tree once and writes its index, or shows the contents of an index.

use super::{fail, say};
use crate::config::layer::{Layer, split_prefix};
use crate::config::{Machine, gather, origins};
use crate::index::partial::Partial;
use crate::index::walk::{LeftOut, Progress, WalkOptions, Walker, write_index};
use crate::index::write::Existing;
use crate::index::{Index, LocalFile, Totals};
use crate::origin::{OriginOptions, OriginSpec, Origins, SymlinkPolicy, redacted};
use anyhow::{Context, bail};
use clap::Args;
use copperfs_overlay::ItemPath;
use copperfs_policy::amounts::{ByteRate, ByteSize};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
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

/// The exit status of a program that was interrupted, as in a shell.
const INTERRUPTED: u8 = 130;
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
        (None, Some(uri), Some(output)) => {
            let job = Job::new(args, uri, output)?;
            runtime.block_on(job.run())
        }
        _ => bail!("name a tree and -o FILE, or --show FILE"),
    };
    // System calls may still hang in storage, so their threads are not joined.
    runtime.shutdown_background();
    outcome
}

struct Job<'a> {
    args: &'a IndexArgs,
    output: PathBuf,
    /// The URI without credentials.
    shown: String,
    spec: OriginSpec,
    environment: BTreeMap<String, String>,
    started: Instant,
}

impl<'a> Job<'a> {
    fn new(args: &'a IndexArgs, uri: &str, output: &Path) -> anyhow::Result<Self> {
        let machine = Machine::inspect();
        let output = machine.working_dir.join(output);
        let uri = if uri.contains("://") {
            uri.to_owned()
        } else {
            let path = std::fs::canonicalize(machine.working_dir.join(uri));
            let path = path.with_context(|| format!("cannot open {uri}"))?;
            format!("file://{}", path.display())
        };
        let layer = match &args.config {
            Some(path) => gather(Layer::default(), Some(path), &machine)?,
            None => Layer::default(),
        };
        let origins = layer.values("origin").iter();
        let mut options = origins
            .filter(|origin| uri.starts_with(&origins::split(&origin.text).1))
            .map(|origin| origin.options.clone());
        let spec = OriginSpec {
            prefix: ItemPath::root(),
            options: options.next_back().unwrap_or_default(),
            uri,
        };
        Ok(Self {
            args,
            output,
            shown: redacted(&spec.uri),
            spec,
            environment: machine.origin_environment(),
            started: Instant::now(),
        })
    }

    async fn run(&self) -> anyhow::Result<ExitCode> {
        let args = self.args;
        let concurrency = usize::from(args.concurrency);
        let existing = match args.force {
            true => Existing::Replace,
            false => Existing::Keep,
        };
        // Checked before the walk of the storage, which may take hours.
        existing.check(&self.output)?;
        let options = OriginOptions {
            symlinks: SymlinkPolicy::Keep,
            listing_attributes_max: usize::MAX,
            listing_attributes_timeout: REQUEST_TIMEOUT,
            hang_timeout: REQUEST_TIMEOUT,
            posix_concurrency: concurrency,
            object_concurrency: concurrency,
            env: self.environment.clone(),
            ..OriginOptions::default()
        };
        let origins = Origins::open(std::slice::from_ref(&self.spec), &options)?;
        origins.check().await?;
        let mut log = Partial::open(&self.output, &self.shown, args.hash, args.resume)?;
        let progress = Arc::new(Progress::default());
        let options = WalkOptions {
            concurrency,
            hash: args.hash,
        };
        let walker = Walker::new(
            Arc::new(origins),
            options,
            Arc::clone(&progress),
            self.own_names(),
        );
        let bar = Bar::show(args.json);
        let failures = tokio::select! {
            failures = walker.walk(&self.shown, &mut log) => failures?,
            // Never completes; it only updates the bar while the walk runs.
            () = bar.follow(&progress) => Vec::new(),
            _ = tokio::signal::ctrl_c() => {
                bar.end();
                fail(format_args!(
                    "stopped; the finished part is kept: go on with {}",
                    self.resumption()
                ));
                return Ok(ExitCode::from(INTERRUPTED));
            }
        };
        bar.end();
        report(&failures);
        if !failures.is_empty() && !args.skip_unreadable {
            bail!(
                "{} directories cannot be listed, so there is no new index yet: try them again with \
                 {1}, or leave them to their origin with {1} --skip-unreadable",
                failures.len(),
                self.resumption()
            );
        }
        let made_at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let made_at = i64::try_from(made_at.as_secs())?;
        let (output, uri, hashed) = (&self.output, &self.shown, args.hash);
        let totals = tokio::task::block_in_place(|| {
            write_index(&log, output, uri, hashed, made_at, existing)
        })?;
        // The partial state is removed only after the index is complete on disk.
        log.remove();
        self.done(&totals)?;
        Ok(ExitCode::SUCCESS)
    }

    /// The flags to continue this index.
    fn resumption(&self) -> &'static str {
        match self.args.force {
            true => "--resume --force",
            false => "--resume",
        }
    }

    /// The paths of the index and its temporary files, if they are within the tree. The walk skips them.
    fn own_names(&self) -> Vec<ItemPath> {
        let Some(root) = self.spec.uri.strip_prefix("file://") else {
            return Vec::new();
        };
        let parent = self.output.parent().unwrap_or(Path::new("/"));
        let parent = std::fs::canonicalize(parent).unwrap_or_else(|_| parent.to_owned());
        let root = std::fs::canonicalize(root).unwrap_or_else(|_| PathBuf::from(root));
        let Ok(below) = parent.strip_prefix(&root) else {
            return Vec::new();
        };
        let name = self.output.file_name().unwrap_or_default().as_bytes();
        let parent = ItemPath::parse(below.as_os_str().as_bytes());
        let names = ["", ".partial", ".new"].into_iter().filter_map(|suffix| {
            parent
                .as_ref()
                .ok()?
                .join(&[name, suffix.as_bytes()].concat())
                .ok()
        });
        names.collect()
    }

    fn done(&self, totals: &Totals) -> anyhow::Result<()> {
        let bytes = std::fs::metadata(&self.output)?.len();
        let elapsed = self.started.elapsed();
        if self.args.json {
            let mut value = totals_json(totals, bytes)?;
            value["elapsed_ms"] = u64::try_from(elapsed.as_millis())?.into();
            say(value);
            return Ok(());
        }
        say(format_args!(
            "{}: {} files of {} in {} directories, {} for each entry, in {:.1} s",
            self.output.display(),
            totals.files,
            ByteSize(totals.bytes),
            totals.directories,
            ByteSize(bytes / totals.entries().max(1)),
            elapsed.as_secs_f64(),
        ));
        Ok(())
    }
}

fn report(failures: &[LeftOut]) {
    for LeftOut { path, failure } in failures.iter().take(FAILURES_SHOWN) {
        fail(format_args!("{path}: {failure}"));
    }
    if let Some(more) = failures.len().checked_sub(FAILURES_SHOWN + 1) {
        fail(format_args!("and {} more", more + 1));
    }
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
    let totals = index.totals();
    if json {
        let mut value = totals_json(&totals, index.file_bytes())?;
        value["uri"] = index.uri().into();
        value["hashed"] = index.is_hashed().into();
        value["made_at"] = index.made_at().into();
        say(value);
        return Ok(ExitCode::SUCCESS);
    }
    let rows = [
        ("of", index.uri().to_owned()),
        ("directories", totals.directories.to_string()),
        ("files", totals.files.to_string()),
        ("others", totals.others.to_string()),
        ("size", ByteSize(totals.bytes).to_string()),
        ("unlisted", totals.unlisted.to_string()),
        (
            "contents",
            if index.is_hashed() { "yes" } else { "no" }.to_owned(),
        ),
        ("index", ByteSize(index.file_bytes()).to_string()),
    ];
    for (name, value) in rows {
        say(format_args!("{name:<12} {value}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The progress bar, if standard error is a terminal.
struct Bar(Option<ProgressBar>);

impl Bar {
    fn show(json: bool) -> Self {
        let bar = (!json && std::io::stderr().is_terminal()).then(ProgressBar::new_spinner);
        if let Some(bar) = &bar {
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}, {elapsed}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(250));
        }
        Self(bar)
    }

    /// Updates the bar. Never returns.
    async fn follow(&self, progress: &Progress) {
        let Some(bar) = &self.0 else {
            return std::future::pending().await;
        };
        let started = Instant::now();
        let mut tick = tokio::time::interval(Duration::from_millis(250));
        loop {
            tick.tick().await;
            let entries = progress.entries.load(Ordering::Relaxed);
            let seconds = started.elapsed().as_secs().max(1);
            let mut text = format!(
                "{} directories, {entries} entries, {}/s",
                progress.directories.load(Ordering::Relaxed),
                entries / seconds
            );
            let hashed = progress.hashed.load(Ordering::Relaxed);
            if hashed > 0 {
                let (read, rate) = (ByteSize(hashed), ByteRate(hashed / seconds));
                text.push_str(&format!(", {read} read ({rate})"));
            }
            let failed = progress.failed.load(Ordering::Relaxed);
            if failed > 0 {
                text.push_str(&format!(", {failed} failed"));
            }
            bar.set_message(text);
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

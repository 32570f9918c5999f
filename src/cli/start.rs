//! Starts a daemon in the background: both the starter's and the daemon's side.
//!
//! The starter runs this program again as `copperfs daemon MOUNTPOINT`, with the options as JSON on standard input (so that a list of any length fits, and nothing appears in the process table). The daemon
//! leaves the session. On standard output, which is a pipe, it writes either `ready` or the error. The starter
//! waits for that line.

use super::{fail, say, stay};
use crate::config::reload::Options;
use crate::config::{Machine, Settings};
use crate::daemon::{self, runtime_dir};
use crate::failpoint;
use crate::logging::{self, Log};
use crate::node::Reloadable;
use crate::notify::ServiceManager;
use crate::process::Process;
use crate::takeover::successor::Fit;
use crate::takeover::{Before, Estate, Legacy, READY};
use anyhow::{Context, bail, ensure};
use copperfs_policy::amounts::{ByteSize, Size};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long a daemon may take to start, in addition to the timeout of its requests.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum length of the daemon's message.
const MESSAGE_BYTES_MAX: u64 = 64 << 10;

/// Limits the allocator to two arenas. Memory that a thread frees is reused by threads of the same arena only,
/// and blocks are allocated on one thread and freed on another. Reading 3 GiB through a cache of 256 MiB took
/// 312 MiB with one arena per thread, and 220 MiB with two arenas, in the same time.
const ARENAS: (&str, &str) = ("MALLOC_ARENA_MAX", "2");

/// Starts a daemon with `options`, which `settings` come from, and waits until its mount answers. Returns the
/// daemon's process id, and the path of its log. `environment` is added to the daemon's.
///
/// # Errors
/// The daemon's error, or it ended without a message.
pub fn background(
    options: &Options,
    settings: &Settings,
    environment: &BTreeMap<String, String>,
) -> anyhow::Result<(u32, PathBuf)> {
    runtime_dir::prepare(&settings.runtime_dir)?;
    // The path is passed on: by the time the daemon starts, another directory may have become the first
    // choice.
    let mut options = options.clone();
    let runtime_dir = settings.runtime_dir.display().to_string();
    let source = options.layer.location("runtime_dir").source;
    (options.layer).set("runtime_dir", source, vec![runtime_dir]);
    let log = settings.log.file.clone();
    let complaints = match &log {
        Some(log) => runtime_dir::open_log(log)?.into(),
        // In the foreground.
        None => Stdio::inherit(),
    };
    // After a long log was renamed.
    let len = |log: &PathBuf| std::fs::metadata(log).map_or(0, |meta| meta.len());
    let begun = log.as_ref().map(len);
    let log = log.unwrap_or_else(|| "/dev/stderr".into());
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut child = Command::new(&program)
        .arg("daemon")
        .arg(&settings.mountpoint)
        .env(ARENAS.0, ARENAS.1)
        .envs(environment)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(complaints)
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let pid = child.id();
    let timeout = settings.request_timeout + START_TIMEOUT;
    let answer = converse(&mut child, &serde_json::to_vec(&options)?, timeout);
    if answer.as_ref().is_ok_and(|text| text == READY) {
        let logged = begun.map(|begin| logging::warnings_since(&log, begin));
        for warning in oversized(settings)
            .into_iter()
            .chain(logged.into_iter().flatten())
        {
            fail(format_args!("warning: {warning}"));
        }
        return Ok((pid, log));
    }
    let status = end(&mut child)?;
    let shown = log.display();
    let text =
        answer.with_context(|| format!("the daemon does not come up; its log is {shown}"))?;
    // Any other text is the daemon's error, which it writes before it ends.
    match text.trim() {
        "" => bail!("the daemon died without a word ({status}); its log is {shown}"),
        text => bail!("{text}"),
    }
}

/// Tells if the store on the disk is to be larger than its filesystem. It works, because the reserve stays free.
fn oversized(settings: &Settings) -> Option<String> {
    let disk = settings.disk.as_ref()?;
    let Size::Bytes(size) = disk.size else {
        return None;
    };
    let usage = rustix::fs::statvfs(&disk.directory).ok()?;
    let has = usage.f_blocks.saturating_mul(usage.f_frsize);
    (size > has).then(|| {
        let (size, has) = (ByteSize(size), ByteSize(has));
        let shown = disk.directory.display();
        format!("--disk: {size} is more than the filesystem of {shown} has, which is {has}")
    })
}

/// Sends the options to the daemon, and reads its message, up to `ready` or the end of its output.
fn converse(child: &mut Child, options: &[u8], timeout: Duration) -> anyhow::Result<String> {
    let mut input = child.stdin.take().context("no pipe to the daemon")?;
    match input.write_all(options) {
        // The daemon ended before it read its options. Its message or exit status is more useful.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        other => other.context("cannot hand the options to the daemon")?,
    }
    drop(input);
    let output = child.stdout.take().context("no pipe from the daemon")?;
    let limit = Timespec::try_from(timeout)?;
    let mut fds = [PollFd::new(&output, PollFlags::IN)];
    let ready = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&limit)))?;
    ensure!(ready > 0, "nothing heard from it within {timeout:?}");
    let mut text = String::new();
    let mut reader = BufReader::new(output.take(MESSAGE_BYTES_MAX));
    while text != READY && reader.read_line(&mut text)? > 0 {}
    Ok(text)
}

fn end(child: &mut Child) -> io::Result<std::process::ExitStatus> {
    if let Some(status) = child.try_wait()? {
        return Ok(status);
    }
    // The daemon gets a moment to clean up.
    if let Some(process) = Process::open(child.id())?
        && !process.wait(Duration::from_secs(2))?
    {
        process.end(Duration::from_secs(5))?;
    }
    child.wait()
}

/// What a successor is told of the daemon before.
#[derive(Debug, clap::Args)]
pub struct BeforeArgs {
    /// When earlier daemons have died
    #[arg(long, value_delimiter = ',')]
    died: Vec<u64>,
    /// Why another program did not take over
    #[arg(long)]
    refused: Option<String>,
    /// Only say whether this program could take over
    #[arg(long)]
    check: bool,
}

/// The daemon's side: reads options from standard input, and writes its message to standard output.
///
/// # Errors
/// The daemon failed, which is already reported on standard output.
pub fn daemon(mountpoint: &Path, legacy: usize, before: BeforeArgs) -> anyhow::Result<()> {
    // A successor is started from `/proc/self/exe`, and the kernel would call it `exe`.
    let _shown_otherwise = rustix::thread::set_name(c"copperfs");
    // Fails only for a process group leader, which a started daemon is not.
    let _already_leader = rustix::process::setsid();
    let outcome = become_daemon(mountpoint, legacy, before);
    if let Err(error) = &outcome {
        let why = super::explained(error);
        tracing::error!("{why}");
        // After `ready` the pipe is /dev/null.
        let _starter_gone = write!(io::stdout(), "{why}").and_then(|()| io::stdout().flush());
    }
    outcome
}

fn become_daemon(mountpoint: &Path, legacy: usize, before: BeforeArgs) -> anyhow::Result<()> {
    let legacy = match legacy {
        0 => None,
        count => Some(Legacy::receive(io::stdin(), count).context("nothing was passed on")?),
    };
    let mut bytes = Vec::new();
    match &legacy {
        None => drop(io::stdin().read_to_end(&mut bytes)?),
        Some(legacy) => bytes = legacy.read_options()?,
    }
    let options: Options = serde_json::from_slice(&bytes).context("no options from the starter")?;
    let machine = Machine::inspect();
    let settings = options.settings(&machine)?;
    let started_for = mountpoint.display();
    ensure!(
        settings.mountpoint == mountpoint,
        "started for {started_for}"
    );
    if before.check {
        if let Some(legacy) = &legacy {
            legacy.check()?;
        }
        say(serde_json::to_string(&Fit::own())?);
        return Ok(());
    }
    failpoint::arm(
        machine
            .variables
            .get(failpoint::VARIABLE)
            .map(String::as_str),
    );
    failpoint::hit("takeover.begun");
    std::env::set_current_dir("/")?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    // Standard error is the log already.
    let log = Log::of_background(&settings.log.level, settings.log.file.clone())?;
    let begin = match legacy {
        Some(legacy) => {
            // The predecessor's log, which it has passed on, may have been renamed since.
            if let Err(error) = log.reopen() {
                tracing::warn!(%error, "the log stays where the daemon before has written");
            }
            let BeforeArgs { died, refused, .. } = before;
            // A thread of it may still write the journal.
            daemon::await_death(&settings.runtime_dir);
            let estate = Estate::inherit(legacy, Before { died, refused })?;
            daemon::Begin::Takeover(Box::new(estate))
        }
        None => daemon::Begin::New,
    };
    daemon::run(settings, Reloadable { options, log }, begin, || {
        if let Err(error) = let_go() {
            tracing::warn!(%error, "the starter may wait for this daemon");
        }
    })?;
    Ok(())
}

/// Writes `ready` and closes the pipe.
fn let_go() -> io::Result<()> {
    let mut output = io::stdout();
    failpoint::hit("takeover.unready");
    output.write_all(READY.as_bytes())?;
    output.flush()?;
    // The pipe must close, because the starter's caller may wait for its end.
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(null.as_fd())?;
    rustix::stdio::dup2_stdout(null.as_fd())?;
    failpoint::hit("takeover.ready");
    Ok(())
}

/// Stays in the foreground while the mount lives, and tells `manager` when it is mounted and when it ends.
///
/// # Errors
/// The daemon does not come up, or has died.
pub fn foreground(
    options: Options,
    settings: Settings,
    manager: ServiceManager,
) -> anyhow::Result<()> {
    let mount = settings.mountpoint.display().to_string();
    let ends = manager.clone();
    let ending = move || told(ends.stopping("ending"));
    let mounted = move || {
        say(format_args!("{mount} is mounted; Ctrl-C ends it"));
        told(manager.ready(&format!("{mount} is mounted")));
    };
    let file = settings.log.file.clone();
    if !settings.takeover {
        let log = Log::of_foreground(&settings.log.level, file).context("no log")?;
        let reloadable = Reloadable { options, log };
        let ended = daemon::run(settings, reloadable, daemon::Begin::New, mounted);
        ending();
        return Ok(ended?);
    }
    let start = move || {
        background(&options, &settings, &BTreeMap::new())?;
        mounted();
        Ok(Some(settings.runtime_dir))
    };
    let ended = stay::with_daemon(start, &ending);
    ending();
    let log = file.unwrap_or_else(|| "/dev/stderr".into());
    ensure!(
        ended?,
        "the daemon has died, and no other one follows; its log is {}",
        log.display()
    );
    Ok(())
}

/// The mount works without its service manager, which then waits for a message until its own timeout.
fn told(outcome: io::Result<()>) {
    if let Err(error) = outcome {
        fail(format_args!(
            "warning: cannot tell the service manager: {error}"
        ));
    }
}

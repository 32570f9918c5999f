//! `copperfs record`: records the accesses of a program to a mount, and writes a profile.

use super::child::{Signals, exit_code};
use super::daemon::{client_of, run};
use super::mounted::{MountArg, MountFlag};
use super::{fail, say};
use crate::control::client::AnswerLines;
use crate::profile::{Profile, parse_line};
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Flags of `record`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct RecordArgs {
    #[command(subcommand)]
    step: Option<Step>,
    #[command(flatten)]
    mount: MountFlag,
    /// The profile to write
    #[arg(short, long, value_name = "FILE", required = true)]
    output: Option<PathBuf>,
    /// The program to run, and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// The halves of a recording.
#[derive(Debug, Subcommand)]
enum Step {
    /// Begin to record everything that is touched on the mount
    Start(MountArg),
    /// End the recording and write the profile
    Stop(StopArgs),
}

/// Flags of `record stop`.
#[derive(Debug, Args)]
struct StopArgs {
    #[command(flatten)]
    mount: MountArg,
    /// The profile to write
    #[arg(short, long, value_name = "FILE", required_unless_present = "discard")]
    output: Option<PathBuf>,
    /// Discard the recording
    #[arg(long, conflicts_with = "output")]
    discard: bool,
}

/// Records.
///
/// # Errors
/// It is no copperfs mount, something is recorded there already, or the file cannot be written. The
/// recorded program's own failure is its exit status, passed on.
pub fn record(args: RecordArgs) -> anyhow::Result<ExitCode> {
    let path = "/v1/recording";
    match (args.step, args.output) {
        (Some(Step::Start(mount)), _) => {
            let mountpoint = mount.find()?;
            let client = client_of(&mountpoint)?;
            run(async { Ok(client.ask("POST", path, None).await?) })?;
            say(format_args!(
                "recording {}, until `copperfs record stop {0} -o FILE`, or --discard",
                mountpoint.display()
            ));
        }
        (Some(Step::Stop(args)), _) => {
            let output = args.output;
            output.as_deref().map(check_writable).transpose()?;
            let client = client_of(&args.mount.find()?)?;
            run(async {
                if let Some(output) = output {
                    let (mut answer, request) = client.converse("DELETE", path).await?;
                    drop(request);
                    return receive(&mut answer, &output).await;
                }
                let path = format!("{path}?discard=true");
                let answer = client.ask("DELETE", &path, None).await?;
                let count = answer["discarded"].as_u64().context("not an answer")?;
                say(format_args!("{count} recorded accesses forgotten"));
                Ok(())
            })?;
        }
        (None, Some(output)) => {
            // Checked before the program runs, because the recording would be lost.
            check_writable(&output)?;
            let client = args.mount.client()?;
            return run(async {
                let signals = Signals::new()?;
                // The recording is bound to this connection: it ends when this process ends for any reason.
                let (mut answer, mut request) = client.converse("POST", "/v1/record").await?;
                answer.value().await?;
                let status = signals.watch(&args.command, &[]).await?;
                request.send(&serde_json::json!({ "enough": true })).await?;
                request.flush().await?;
                receive(&mut answer, &output).await?;
                Ok(exit_code(status))
            });
        }
        _ => bail!("give -o FILE and -- CMD"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Receives the recording from the daemon, and writes the profile.
async fn receive(answer: &mut AnswerLines, target: &Path) -> anyhow::Result<()> {
    let head = answer.value().await?;
    let count = head["accesses"].as_u64().context("not an answer")?;
    let full = head["full"].as_bool() == Some(true);
    let mut profile = Profile::default();
    let mut lines = 0;
    while profile.accesses.len() as u64 != count {
        lines += 1;
        let line = answer.line().await?;
        profile.accesses.extend(parse_line(&line, lines)?);
    }
    if full {
        fail("warning: the recording was full before its end; what came later is missing");
    }
    Draft::new(target)?.finish(&profile, full)?;
    // Standard output belongs to the recorded program.
    fail(format_args!(
        "{} accesses recorded in {}",
        profile.accesses.len(),
        target.display()
    ));
    Ok(())
}

/// A temporary file beside the profile that is renamed to it. The drop removes it.
#[derive(Debug)]
struct Draft<'a> {
    file: File,
    draft: PathBuf,
    target: &'a Path,
}

/// Checks that the profile can be written. Leaves no file behind, because the recorded program may run for
/// days, and this process may be killed meanwhile.
fn check_writable(target: &Path) -> anyhow::Result<()> {
    Draft::new(target).map(drop)
}

impl<'a> Draft<'a> {
    fn new(target: &'a Path) -> anyhow::Result<Self> {
        let cannot = || format!("cannot write the profile {}", target.display());
        let name = target.file_name().with_context(cannot)?;
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}", std::process::id()));
        let draft = target.with_file_name(hidden);
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(true).open(&draft);
        Ok(Self {
            file: file.with_context(cannot)?,
            draft,
            target,
        })
    }

    fn finish(self, profile: &Profile, full: bool) -> anyhow::Result<()> {
        let cannot = || format!("cannot write the profile {}", self.target.display());
        let written = profile.write(full, BufWriter::new(&self.file));
        written.with_context(cannot)?;
        self.file.sync_all().with_context(cannot)?;
        std::fs::rename(&self.draft, self.target).with_context(cannot)
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        // Absent if it has been renamed to the profile.
        let _gone = std::fs::remove_file(&self.draft);
    }
}

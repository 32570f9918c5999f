//! `job run` with a registry in memory.

use super::*;
use crate::testing::SOON;
use crate::waiting::until;
use anyhow::bail;
use clap::Parser;
use parking_lot::Mutex;
use std::path::Path;

#[derive(Debug, Parser)]
struct Line {
    #[command(subcommand)]
    command: JobCommand,
}

fn parsed(line: &str) -> Result<RunArgs, String> {
    let words = std::iter::once("job").chain(line.split(' '));
    let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    match line.command {
        JobCommand::Run(args) => Ok(args),
        other => Err(format!("{other:?}")),
    }
}

/// Held by those who run programs: signals to this process reach all of them.
pub(in crate::cli) static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Keeps what it is told.
#[derive(Debug, Default)]
struct Kept {
    added: Mutex<Vec<JobSpec>>,
    ended: Mutex<Vec<String>>,
    refuses: bool,
    silent_at_end: bool,
    /// How often it was asked about a job that has ended.
    asked: Mutex<u32>,
}

impl JobRegistry for Kept {
    async fn add(&self, job: &JobSpec) -> anyhow::Result<()> {
        if self.refuses {
            bail!("there is no dataset {:?}", job.dataset);
        }
        self.added.lock().push(job.clone());
        Ok(())
    }

    async fn end(&self, name: &str) -> anyhow::Result<()> {
        self.ended.lock().push(name.to_owned());
        if self.silent_at_end {
            bail!("nobody answers");
        }
        Ok(())
    }

    async fn ended(&self, name: &str) -> anyhow::Result<Option<Value>> {
        *self.asked.lock() += 1;
        // The nodes report a little later.
        let complete = *self.asked.lock() > 2;
        Ok(Some(json!({ "id": name, "complete": complete })))
    }
}

fn of_shell(script: &str) -> RunArgs {
    let mut args =
        parsed("run --dataset d --ideal-rate 114MB/s --gpus 2 --name x -- sh -c").unwrap();
    args.command.push(script.into());
    args
}

fn shown(code: ExitCode) -> String {
    format!("{code:?}")
}

fn written(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn bad_input_is_refused_with_a_hint() {
    for (line, wanted) in [
        ("run -- true", "--dataset"),
        ("run --dataset d", "CMD"),
        (
            "run --dataset d --ideal-rate 0MB/s -- true",
            "nothing comes through",
        ),
        ("run --dataset d --ideal-rate 114 -- true", "it has no unit"),
        (
            "run --dataset d --ideal-rate 114/s -- true",
            "it has no unit",
        ),
        (
            "run --dataset d --ideal-rate 114MB -- true",
            "does not say per second",
        ),
        (
            "run --dataset d --ideal-rate=-1MB/s -- true",
            "no number in front",
        ),
        ("run --dataset d --epochs 0 -- true", "0 is not in 1.."),
        ("run --dataset d --name ä -- true", "cannot name a job"),
        ("run --dataset d --gpus x -- true", "invalid digit"),
    ] {
        let error = parsed(line).unwrap_err();
        assert!(error.contains(wanted), "{line}: {error}");
    }
}

#[tokio::test]
async fn a_job_lasts_as_long_as_its_program_whose_status_it_gives() {
    let _turn = TURN.lock().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("environment");
    let script = format!(
        "echo $COPPERFS_JOB $COPPERFS_DATASET > {}; exit 7",
        file.display()
    );
    let registry = Kept::default();
    let code = run(&of_shell(&script), &registry).await.unwrap();
    assert_eq!(shown(code), shown(ExitCode::from(7)));
    assert_eq!(written(&file), "x d\n");
    let added = registry.added.lock();
    assert_eq!((added[0].name.as_str(), added[0].gpus), ("run:x", 2));
    assert_eq!(added[0].ideal_rate, Some(114_000_000));
    assert_eq!(*registry.ended.lock(), ["run:x"]);
    assert_eq!(*registry.asked.lock(), 3, "it waits for the last reports");
}

#[tokio::test]
async fn a_job_may_run_without_a_word() {
    let _turn = TURN.lock().await;
    let registry = Kept::default();
    let mut args = of_shell("exit 0");
    args.quiet = true;
    run(&args, &registry).await.unwrap();
    assert_eq!(*registry.asked.lock(), 0);
}

#[tokio::test]
async fn a_program_that_a_signal_ends_gives_its_number() {
    let _turn = TURN.lock().await;
    let registry = Kept::default();
    let code = run(&of_shell("kill -9 $$"), &registry).await.unwrap();
    assert_eq!(shown(code), shown(ExitCode::from(137)));
    assert_eq!(registry.ended.lock().len(), 1);
}

#[tokio::test]
async fn signals_are_the_programs() {
    let _turn = TURN.lock().await;
    let directory = tempfile::tempdir().unwrap();
    let ready = directory.path().join("ready");
    // Ends by itself if no signal comes.
    let script = format!(
        "trap 'exit 9' USR1; touch {}; for i in $(seq 600); do sleep 0.1; done",
        ready.display()
    );
    let (args, registry) = (of_shell(&script), Kept::default());
    let signal = async {
        until(SOON, "the program runs", || ready.exists()).await;
        let this = rustix::process::getpid();
        rustix::process::kill_process(this, rustix::process::Signal::USR1).unwrap();
    };
    let (code, ()) = tokio::join!(run(&args, &registry), signal);
    assert_eq!(shown(code.unwrap()), shown(ExitCode::from(9)));
    assert_eq!(*registry.ended.lock(), ["run:x"]);
}

#[tokio::test]
async fn a_program_that_is_not_there_leaves_no_job() {
    let _turn = TURN.lock().await;
    let mut args = of_shell("");
    args.command = vec!["/nonexistent/program".into()];
    let registry = Kept::default();
    let error = run(&args, &registry).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("cannot run /nonexistent/program")
    );
    assert_eq!(*registry.ended.lock(), ["run:x"]);
}

#[tokio::test]
async fn a_job_that_is_refused_runs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ran");
    let registry = Kept {
        refuses: true,
        ..Kept::default()
    };
    let args = of_shell(&format!("touch {}", file.display()));
    let error = run(&args, &registry).await.unwrap_err();
    assert!(error.to_string().contains("no dataset"));
    assert!(!file.exists());
    assert!(registry.ended.lock().is_empty());
}

#[tokio::test]
async fn an_end_that_cannot_be_told_leaves_the_status() {
    let _turn = TURN.lock().await;
    let registry = Kept {
        silent_at_end: true,
        ..Kept::default()
    };
    let code = run(&of_shell("exit 3"), &registry).await.unwrap();
    assert_eq!(shown(code), shown(ExitCode::from(3)));
}

#[test]
fn runs_without_a_name_have_different_ones() {
    assert_ne!(generated("d"), generated("d"));
    assert!(own_name(&generated("imagenet")).is_ok());
}

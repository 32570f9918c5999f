//! A real Slurm cluster made by `scripts/slurm-hosts.sh`, taken away with its guard, also if the test is killed.

use super::command::{self, Finished, run_within};
use super::fixture::packages;
use super::{Scratch, eventually, sh};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a cluster may take to come up, and a job to come to its end: after the crash of a node Slurm
/// waits more than a minute for its part of a step.
const LIMIT: Duration = Duration::from_secs(150);

/// Hosts h1 to hN with slurmd and munged, slurmctld on h1, copperfs in Prolog and Epilog. Jobs run as
/// `nobody`, and find the generated packages in `$COPPER_MNT`.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    /// Where jobs may write.
    pub out: PathBuf,
    /// What is served, readable by everybody.
    pub origin: PathBuf,
    prefix: String,
    scratch: Scratch,
    /// Hosts of two clusters have the same names, and so the same control groups.
    _alone: fs::File,
}

impl Cluster {
    /// Starts `count` nodes.
    #[track_caller]
    pub fn up(count: usize) -> Self {
        let lock = Path::new("/run/lock/copperfs-test-slurm");
        let alone = fs::File::create(lock).unwrap();
        alone.lock().unwrap();
        let scratch = Scratch::new();
        let origin = scratch.dir("origin");
        // The build directory may be closed to others than its owner.
        sh(
            "cp -a \"$1\"/. \"$2\" && chmod -R a+rX \"$2\"",
            &[&packages().path, &origin],
        );
        let out = scratch.dir("out");
        fs::set_permissions(&out, fs::Permissions::from_mode(0o777)).unwrap();
        let cluster = Self {
            dir: scratch.path().join("cluster"),
            out,
            origin,
            prefix: format!("cs{}n", std::process::id()),
            scratch,
            _alone: alone,
        };
        crate::cleanup::at_exit(&cluster.script(&["down"]));
        let origin = format!("/=file://{}", cluster.origin.display());
        let mut up = cluster.script(&["up", &count.to_string()]);
        up.arg(env!("CARGO_BIN_EXE_copperfs")).arg(origin);
        let finished = run_within(&mut up, LIMIT);
        assert!(finished.status.success(), "no cluster: {finished:?}");
        cluster
    }

    fn script(&self, arguments: &[&str]) -> Command {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/slurm-hosts.sh");
        let mut command = Command::new(path);
        command
            .args(arguments)
            .env("SLURM_HOSTS_DIR", &self.dir)
            .env("HOSTS_PREFIX", &self.prefix)
            .current_dir("/");
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("COPPERFS_") || name.starts_with("PYTHON") {
                command.env_remove(&*name);
            }
        }
        command
    }

    /// A command of `slurm-hosts.sh`.
    #[track_caller]
    pub fn control(&self, arguments: &[&str]) -> String {
        command::check(&mut self.script(arguments))
    }

    /// A shell script on h1 as the user of the jobs; the program under test is in its path.
    pub fn user(&self, script: &str) -> Finished {
        let path = format!(
            "PATH={}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            self.dir.join("bin").display()
        );
        let home = format!("HOME={}", self.out.display());
        let mut run = self.script(&["user", "env", &path, &home, "USER=nobody"]);
        run.args(["bash", "-c", script]).current_dir(&self.out);
        run_within(&mut run, LIMIT)
    }

    /// A shell script on host `number` as root.
    #[track_caller]
    pub fn root(&self, number: usize, script: &str) -> String {
        self.control(&["exec", &number.to_string(), "bash", "-c", script])
    }

    /// Submits a job with `flags` of sbatch: its id. Its output is `out` with its id in [`Self::out`].
    #[track_caller]
    pub fn submit(&self, flags: &str, script: &str) -> String {
        let file = self
            .scratch
            .file("job.sh", format!("#!/bin/bash\n{script}\n"));
        let submit = format!(
            "sbatch --parsable --no-requeue {flags} -o {}/out.%j {}",
            self.out.display(),
            file.display()
        );
        let finished = self.user(&submit);
        assert!(finished.status.success(), "{finished:?}");
        finished.text().trim().to_owned()
    }

    /// What a job has printed.
    pub fn output(&self, job: &str) -> String {
        fs::read_to_string(self.out.join(format!("out.{job}"))).unwrap_or_default()
    }

    /// Waits until the job has printed `text`.
    #[track_caller]
    pub fn printed(&self, job: &str, text: &str) {
        let what = std::fmt::from_fn(|f| {
            let output = self.output(job);
            write!(f, "{text} is printed, and not: {output}")
        });
        eventually(LIMIT, what, || self.output(job).contains(text));
    }

    /// Waits until no job is there and nothing is left of any; how long that took.
    #[track_caller]
    pub fn settled(&self) -> Duration {
        let start = Instant::now();
        eventually(LIMIT, "no job in the queue", || {
            self.user("squeue -h").text().trim().is_empty()
        });
        let left = || self.control(&["left"]);
        let what = std::fmt::from_fn(|f| {
            let (left, logs) = (left(), self.logs());
            write!(f, "nothing is left of any job, and not: {left}{logs}")
        });
        eventually(LIMIT, what, || left().is_empty());
        start.elapsed()
    }

    /// Waits until `count` nodes are idle.
    #[track_caller]
    pub fn idle(&self, count: usize) {
        eventually(LIMIT, format!("{count} nodes idle"), || {
            self.user("sinfo -h -t idle -o %D").text().trim() == count.to_string()
        });
    }

    fn logs(&self) -> String {
        let look = "tail -n 8 \"$1\"/log/* || true";
        sh(look, &[&self.dir])
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let logs = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.logs()));
            eprintln!("{}", logs.unwrap_or_default());
        }
        let down = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            run_within(&mut self.script(&["down"]), LIMIT)
        }));
        if !down.is_ok_and(|finished| finished.status.success()) {
            eprintln!("the cluster {} is left behind", self.prefix);
        }
        // What launches of the jobs' user have left for their logs.
        let logs = Path::new("/tmp/copperfs-65534");
        drop(fs::remove_dir_all(logs));
    }
}

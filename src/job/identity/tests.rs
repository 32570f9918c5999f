//! Tests with a made-up `/proc`, and with the machine's.

use super::*;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

/// A `/proc` in a directory that goes when this does.
struct MadeUp {
    directory: tempfile::TempDir,
}

impl MadeUp {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn readers(&self) -> Readers {
        Readers::new(Proc::at(self.directory.path()))
    }

    fn path(&self, pid: u32) -> PathBuf {
        self.directory.path().join(pid.to_string())
    }

    /// A process, or a thread of `process`.
    fn thread(&self, tid: u32, process: u32, parent: u32, started: u64) {
        let path = self.path(tid);
        fs::create_dir_all(&path).unwrap();
        let zeros = "0 ".repeat(17);
        let stat = format!("{tid} (python) S {parent} {zeros}{started} 0 0\n");
        fs::write(path.join("stat"), stat).unwrap();
        let status = format!("Name:\tpython\nTgid:\t{process}\nPid:\t{tid}\n");
        fs::write(path.join("status"), status).unwrap();
        self.user(tid, USER);
        fs::write(path.join("cgroup"), "0::/user.slice\n").unwrap();
    }

    /// Sets the real user of a process; its program may run with root's rights.
    fn user(&self, pid: u32, user: u32) {
        let path = self.path(pid).join("status");
        let status = fs::read_to_string(&path).unwrap();
        let (status, _) = status.split_once("Uid:").unwrap_or((&status, ""));
        fs::write(&path, format!("{status}Uid:\t{user}\t0\t0\t0\n")).unwrap();
    }

    fn process(&self, pid: u32, parent: u32, environment: &str) {
        self.thread(pid, pid, parent, u64::from(pid) * 10);
        self.environment(pid, environment);
    }

    fn environment(&self, pid: u32, environment: &str) {
        let environment = environment.replace(' ', "\0");
        fs::write(self.path(pid).join("environ"), environment).unwrap();
    }

    fn cgroup(&self, pid: u32, cgroup: &str) {
        fs::write(self.path(pid).join("cgroup"), cgroup).unwrap();
    }
}

const USER: u32 = 1000;
const OTHER: u32 = 1001;

fn named(readers: &Readers, pid: u32, now: Instant) -> Option<String> {
    let reader = readers.reader(pid, now)?;
    reader.job.as_ref().map(ToString::to_string)
}

#[test]
fn a_thread_belongs_to_its_process_and_its_job() {
    let proc = MadeUp::new();
    proc.process(1, 0, "");
    proc.process(50, 1, "SLURM_JOB_ID=7");
    proc.process(60, 50, "SLURM_JOB_ID=7 RANK=0");
    proc.thread(61, 60, 50, 612);
    let readers = proc.readers();
    let now = Instant::now();
    let reader = readers.reader(61, now).unwrap();
    assert_eq!(reader.job.as_ref().unwrap().as_str(), "slurm:7");
    assert_eq!((reader.process.pid, reader.process.started), (60, 600));
    // The job's script, which lives longer than its loaders.
    assert_eq!(reader.anchor.pid, 50);
    assert_eq!(readers.reader(0, now), None, "outside of the namespace");
    assert_eq!(readers.reader(999, now), None, "nobody");
}

#[test]
fn a_process_without_a_name_belongs_to_its_ancestors_job() {
    let proc = MadeUp::new();
    proc.process(1, 0, "");
    proc.process(10, 1, "COPPERFS_JOB=mine");
    proc.process(11, 10, "");
    proc.process(12, 11, "HOME=/");
    proc.process(20, 1, "");
    let readers = proc.readers();
    let now = Instant::now();
    assert_eq!(named(&readers, 12, now).as_deref(), Some("run:mine"));
    assert_eq!(readers.reader(12, now).unwrap().anchor.pid, 10);
    assert_eq!(named(&readers, 20, now), None);
    assert_eq!(readers.reader(20, now).unwrap().anchor.pid, 20);
}

#[test]
fn a_job_within_a_job_ends_at_its_own_border() {
    let proc = MadeUp::new();
    proc.process(10, 1, "SLURM_JOB_ID=7");
    proc.process(11, 10, "SLURM_JOB_ID=7 COPPERFS_JOB=a");
    proc.process(12, 11, "SLURM_JOB_ID=7 COPPERFS_JOB=a");
    let readers = proc.readers();
    let reader = readers.reader(12, Instant::now()).unwrap();
    assert_eq!(reader.job.as_ref().unwrap().as_str(), "run:a");
    assert_eq!(reader.anchor.pid, 11);
}

#[test]
fn an_environment_that_cannot_be_read_leaves_the_cgroup() {
    let proc = MadeUp::new();
    proc.process(10, 1, "");
    fs::remove_file(proc.path(10).join("environ")).unwrap();
    proc.cgroup(
        10,
        "0::/system.slice/slurmstepd.scope/job_9/step_0/user/task_0\n",
    );
    let now = Instant::now();
    assert_eq!(named(&proc.readers(), 10, now).as_deref(), Some("slurm:9"));
    fs::remove_file(proc.path(10).join("cgroup")).unwrap();
    assert_eq!(named(&proc.readers(), 10, now), None);
}

#[test]
fn a_variable_beyond_the_bound_is_not_seen() {
    let proc = MadeUp::new();
    let long = "x".repeat(300 << 10);
    proc.process(10, 1, &format!("A={long} SLURM_JOB_ID=7"));
    proc.process(11, 1, &format!("SLURM_JOB_ID=7 A={long}"));
    let (readers, now) = (proc.readers(), Instant::now());
    assert_eq!(named(&readers, 10, now), None);
    assert_eq!(named(&readers, 11, now).as_deref(), Some("slurm:7"));
}

#[test]
fn a_reused_number_is_another_process() {
    let proc = MadeUp::new();
    proc.process(10, 1, "SLURM_JOB_ID=7");
    let (readers, start) = (proc.readers(), Instant::now());
    assert_eq!(named(&readers, 10, start).as_deref(), Some("slurm:7"));
    proc.thread(10, 10, 1, 12345);
    proc.environment(10, "SLURM_JOB_ID=8");
    // Nothing is read for a second. After that the start time differs.
    let soon = start + TRUSTED / 2;
    assert_eq!(named(&readers, 10, soon).as_deref(), Some("slurm:7"));
    let later = start + TRUSTED * 2;
    assert_eq!(named(&readers, 10, later).as_deref(), Some("slurm:8"));
}

#[test]
fn a_name_set_by_exec_is_found() {
    let proc = MadeUp::new();
    proc.process(10, 1, "");
    let (readers, start) = (proc.readers(), Instant::now());
    assert_eq!(named(&readers, 10, start), None);
    proc.environment(10, "TORCHELASTIC_RUN_ID=r");
    assert_eq!(named(&readers, 10, start + TRUSTED * 2), None);
    let later = start + FRESH * 2;
    assert_eq!(named(&readers, 10, later).as_deref(), Some("torchrun:r"));
}

#[test]
fn a_loop_of_parents_ends() {
    let proc = MadeUp::new();
    proc.process(10, 11, "");
    proc.process(11, 10, "");
    assert_eq!(named(&proc.readers(), 10, Instant::now()), None);
}

#[test]
fn no_more_than_the_bound_is_remembered() {
    let proc = MadeUp::new();
    let max = NonZeroUsize::new(8).unwrap();
    let readers = Readers::remembering(Proc::at(proc.directory.path()), max);
    let now = Instant::now();
    for pid in 1..20 {
        proc.process(pid, 0, "SLURM_JOB_ID=7");
        assert_eq!(named(&readers, pid, now).as_deref(), Some("slurm:7"));
    }
    assert_eq!(named(&readers, 1, now).as_deref(), Some("slurm:7"));
    assert_eq!(readers.threads.lock().len(), 8);
    assert_eq!(readers.own.lock().len(), 8);
}

/// A process that names another user's job cannot spend that job's tokens, and keeps its own job.
#[test]
fn a_name_is_believed_only_for_the_jobs_owner() {
    let proc = MadeUp::new();
    proc.process(10, 1, "COPPERFS_JOB=train SLURM_JOB_ID=7");
    proc.process(20, 1, "COPPERFS_JOB=train SLURM_JOB_ID=7");
    proc.process(30, 1, "COPPERFS_JOB=train");
    proc.user(20, OTHER);
    proc.user(30, OTHER);
    proc.cgroup(20, "0::/system.slice/slurmstepd.scope/job_9/step_0\n");
    let (readers, now) = (proc.readers(), Instant::now());
    let of = |pid| named(&readers, pid, now);
    assert_eq!(of(10).as_deref(), Some("run:train"), "seen first");
    assert_eq!(of(20).as_deref(), Some("slurm:9"), "its own, by its cgroup");
    assert_eq!(of(30), None);
}

/// The user that declared a job owns it, even if another user named it first. Root may name it,
/// too.
#[test]
fn a_declared_job_is_its_owners() {
    let proc = MadeUp::new();
    proc.process(10, 1, "COPPERFS_JOB=train");
    proc.process(20, 1, "COPPERFS_JOB=train");
    proc.process(30, 1, "COPPERFS_JOB=train");
    proc.user(20, OTHER);
    proc.user(30, 0);
    let (readers, now) = (proc.readers(), Instant::now());
    let of = |pid| named(&readers, pid, now);
    assert_eq!(of(20).as_deref(), Some("run:train"), "the first to name it");
    assert_eq!(of(10), None);
    let train: JobName = "run:train".parse().unwrap();
    readers.declare(HashMap::from([(train, USER)]));
    assert_eq!(of(10).as_deref(), Some("run:train"));
    assert_eq!(of(20), None);
    assert_eq!(of(30).as_deref(), Some("run:train"), "root");
}

/// If a job's owner starts a program as another user, the program belongs to the job.
#[test]
fn a_job_is_inherited_from_the_owners_process() {
    let proc = MadeUp::new();
    proc.process(10, 1, "COPPERFS_JOB=train");
    proc.process(11, 10, "COPPERFS_JOB=train");
    proc.process(12, 10, "COPPERFS_JOB=other");
    proc.process(20, 1, "COPPERFS_JOB=train");
    proc.user(11, OTHER);
    proc.user(12, OTHER);
    proc.user(20, OTHER);
    let (readers, now) = (proc.readers(), Instant::now());
    let names = ["run:train", "run:other"].map(|name| name.parse::<JobName>().unwrap());
    readers.declare(names.map(|name| (name, USER)).into());
    let of = |pid| named(&readers, pid, now);
    assert_eq!(of(11).as_deref(), Some("run:train"));
    assert_eq!(
        of(12).as_deref(),
        Some("run:train"),
        "names that it may not use are ignored"
    );
    assert_eq!(of(20), None);
}

/// The name of an undeclared job is free again after the job has ended.
#[test]
fn a_name_is_free_after_the_job() {
    let proc = MadeUp::new();
    proc.process(10, 1, "COPPERFS_JOB=train");
    proc.process(20, 1, "COPPERFS_JOB=train");
    proc.user(20, OTHER);
    let (readers, start) = (proc.readers(), Instant::now());
    assert!(named(&readers, 10, start).is_some());
    let later = start + crate::job::ENDED_AFTER * 2;
    assert_eq!(named(&readers, 20, later), None, "it runs");
    fs::remove_dir_all(proc.path(10)).unwrap();
    let still = later + FRESH * 2;
    assert_eq!(named(&readers, 20, still).as_deref(), Some("run:train"));
}

/// A forking process holds its memory map, so reading its environment waits. An open waits for at most the
/// limit, and the result is used later.
#[tokio::test]
async fn a_reader_whose_look_up_blocks_is_unattributed_until_it_ends() {
    let proc = MadeUp::new();
    proc.process(10, 1, "");
    proc.process(11, 1, "COPPERFS_JOB=b");
    let environ = proc.path(10).join("environ");
    fs::remove_file(&environ).unwrap();
    // Opening a FIFO waits for a writer.
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &environ,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let readers = Arc::new(proc.readers());
    let known = readers.cached(0, Instant::now());
    assert_eq!(known, CachedReader::Known(None), "never looked for");
    let unknown = |pid| readers.cached(pid, Instant::now()) == CachedReader::Unknown;
    assert!(unknown(10));
    let stalled = Arc::clone(&readers).find(10);
    let other = Arc::clone(&readers).find(11);
    let (stalled, other) = tokio::join!(stalled, other);
    assert_eq!(stalled, None);
    assert_eq!(other.unwrap().job.as_ref().unwrap().as_str(), "run:b");
    assert!(unknown(10), "still not known");
    fs::write(&environ, "COPPERFS_JOB=a\0").unwrap();
    fs::remove_file(&environ).unwrap();
    fs::write(&environ, "COPPERFS_JOB=a\0").unwrap();
    let looking = async {
        loop {
            if let Some(found) = Arc::clone(&readers).find(10).await {
                return found;
            }
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(30), looking).await;
    assert_eq!(found.unwrap().job.as_ref().unwrap().as_str(), "run:a");
}

/// A real child in the machine's `/proc`.
#[test]
fn a_child_is_recognised_while_it_runs() {
    let mut child = std::process::Command::new("cat")
        .env_clear()
        .env("COPPERFS_JOB", "of-a-test")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let readers = Readers::new(Proc::default());
    let reader = readers.reader(child.id(), Instant::now()).unwrap();
    assert_eq!(reader.job.as_ref().unwrap().as_str(), "run:of-a-test");
    assert_eq!(reader.anchor, reader.process);
    assert!(readers.proc.runs(reader.process));
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(!readers.proc.runs(reader.process));
}

/// `cargo test --release -- --ignored --nocapture cost_of_a_look`
#[test]
#[ignore = "a measurement"]
fn cost_of_a_look() {
    let start = Instant::now();
    let pid = std::process::id();
    const TIMES: u32 = 1000;
    for _ in 0..TIMES {
        let readers = Readers::new(Proc::default());
        readers.reader(pid, start).unwrap();
    }
    println!("unknown: {:?}", start.elapsed() / TIMES);
    let readers = Readers::new(Proc::default());
    readers.reader(pid, start).unwrap();
    let begun = Instant::now();
    for _ in 0..TIMES {
        if let Some(known) = readers.threads.lock().get_mut(&pid) {
            known.checked -= TRUSTED;
        }
        readers.reader(pid, start).unwrap();
    }
    println!("looked at again: {:?}", begun.elapsed() / TIMES);
    let begun = Instant::now();
    for _ in 0..1000 * TIMES {
        readers.reader(pid, start).unwrap();
    }
    println!("known: {:?}", begun.elapsed() / (1000 * TIMES));
}

#[test]
fn a_task_is_named_by_the_process_or_its_nearest_ancestor() {
    let proc = MadeUp::new();
    proc.process(1, 0, "");
    proc.process(10, 1, "COPPERFS_TASK=app-1/sql-0/scan1/0");
    proc.process(11, 10, "COPPERFS_JOB=etl");
    proc.process(12, 10, "COPPERFS_TASK=app-1/sql-0/scan1/1");
    proc.process(13, 1, "COPPERFS_TASK=");
    proc.process(14, 1, &format!("COPPERFS_TASK={}", "x".repeat(2000)));
    proc.process(15, 10, "COPPERFS_TASK=stolen");
    proc.user(15, OTHER);
    let readers = proc.readers();
    let task = |pid: u32| {
        let reader = readers.reader(pid, Instant::now()).unwrap();
        let task = reader.task.clone();
        task.map(|task| (task.user, task.name.to_string()))
    };
    let named = |user: u32, name: &str| Some((user, name.to_owned()));
    assert_eq!(task(10), named(USER, "app-1/sql-0/scan1/0"));
    assert_eq!(task(11), named(USER, "app-1/sql-0/scan1/0"));
    assert_eq!(task(12), named(USER, "app-1/sql-0/scan1/1"));
    assert_eq!(task(13), None);
    assert_eq!(task(14), None, "no engine has such a name");
    assert_eq!(
        task(15),
        named(OTHER, "stolen"),
        "the task of that user, not of the other one"
    );
    assert_eq!(task(1), None);
}

//! Nodes that die, are cut off and come back, while others read.

use crate::skip;
use crate::support::fixture::packages;
use crate::support::hosts::{Job, missing};
use crate::support::{eventually, python, sh};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Reads files in an order of its own until told to stop, and compares each with storage. Its pages
/// are dropped after each, so that every read asks the daemon. Says how many were right, wrong and
/// refused, and the longest wait in seconds.
const READER: &str = r#"
import hashlib, json, os, random, sys, time
mount, origin, seed, stop, cold = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]
files = sorted(os.path.relpath(os.path.join(d, f), origin) for d, _, fs in os.walk(origin) for f in fs)
random.Random(seed).shuffle(files)
right, wrong, refused, longest, first = 0, 0, [], 0.0, None
def over(): return os.path.exists(stop) and right + wrong + len(refused) > 5
while not over():
    for name in files:
        with open(os.path.join(origin, name), "rb") as f:
            truth = f.read()
        begun = time.monotonic()
        try:
            with open(os.path.join(mount, name), "rb") as f:
                got = f.read()
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if got == truth: right += 1
            else: wrong += 1
        except OSError as error:
            refused.append(f"{name}: {error}")
        longest = max(longest, time.monotonic() - begun)
        if over(): break
        time.sleep(0.002)
    if cold == "once": break
print(json.dumps({"right": right, "wrong": wrong, "refused": refused, "longest": longest}))
"#;

/// A reader on one host.
struct Reader {
    number: usize,
    child: Child,
}

impl Reader {
    fn start(job: &Job, number: usize, cold: &str) -> Self {
        let interpreter = python();
        let mut run = job
            .hosts
            .command(number, interpreter.get_program().to_str().unwrap());
        // Passed as an argument: a file would be rewritten by the next reader that starts while this one
        // reads it.
        run.arg("-c")
            .arg(READER)
            .arg(&job.point)
            .arg(&packages().path);
        run.arg(number.to_string())
            .arg(job.scratch.path().join("stop"))
            .arg(cold);
        run.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = run.spawn().unwrap();
        Self { number, child }
    }

    /// What it saw: files read, and the longest wait. No error and no wrong byte is forgiven.
    #[track_caller]
    fn finish(self) -> (u64, Duration) {
        let output = self.child.wait_with_output().unwrap();
        let number = self.number;
        assert!(output.status.success(), "h{number}: {output:?}");
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(said["wrong"], 0, "h{number}: {said}");
        assert_eq!(
            said["refused"].as_array().unwrap().len(),
            0,
            "h{number}: {said}"
        );
        let longest = Duration::from_secs_f64(said["longest"].as_f64().unwrap());
        (said["right"].as_u64().unwrap(), longest)
    }
}

/// Several hosts read while a fault happens: no reader sees an error or a wrong byte, or waits longer than detection and a
/// move take on a busy machine.
fn while_all_read(job: &Job, numbers: &[usize], happens: impl FnOnce()) {
    let readers: Vec<Reader> = numbers
        .iter()
        .map(|&number| Reader::start(job, number, "again"))
        .collect();
    // The readers are on hosts that are about to be cut off, and report at their end only.
    std::thread::sleep(Duration::from_millis(300));
    happens();
    // Time for the readers to meet the fault.
    std::thread::sleep(Duration::from_secs(3));
    job.scratch.file("stop", "");
    for reader in readers {
        let number = reader.number;
        // A reader that waits longer than the request timeout, 4 s, would have got an error.
        let (read, longest) = reader.finish();
        eprintln!("h{number} read {read} files, and waited {longest:?} at most");
    }
}

/// How long an idle cluster may take to see a node that came or went.
const SEEN: Duration = Duration::from_secs(10);

#[test]
fn an_inner_node_that_dies_costs_its_subtree_time_and_no_error() {
    if let Some(what) = missing() {
        skip!("{what} is missing");
    }
    let job = Job::new(7, &[]);
    job.mount_all(1..=7);
    // h2 is the parent of h4 and h5. The cable is pulled and everything on it killed.
    while_all_read(&job, &[1, 3, 4, 5, 6, 7], || {
        job.hosts.control(&["crash", "2"]);
    });
    let opens = job.stats(1).get("origin.opens");
    assert!(opens <= packages().modules, "once each at most: {opens}");

    job.hosts.control(&["boot", "2"]);
    job.mount(2);
    eventually(SEEN, "h4 asks its own parent again", || {
        let mut clear = job
            .hosts
            .copperfs(4, &["clear", "--everything", "--this-node"]);
        crate::support::run(clear.arg(&job.point));
        let read = job.run(4, "cat \"$1\"/package_00/*.py > /dev/null");
        assert!(read.status.success(), "{read:?}");
        job.stats(2).get("downstream.requests") > 0
    });
}

#[test]
fn a_dead_root_leaves_its_items_to_the_other() {
    if let Some(what) = missing() {
        skip!("{what} is missing");
    }
    let job = Job::new(6, &["--roots", "2"]);
    job.mount_all(1..=6);
    let opens = |number| job.stats(number).get("origin.opens");
    while_all_read(&job, &[2, 3, 4, 5, 6], || {
        job.hosts.control(&["crash", "1"]);
    });
    assert!(opens(4) > 0, "h4 is the other root");
    assert!(
        opens(4) <= packages().modules,
        "and reads each file once at most"
    );
}

#[test]
fn a_partition_that_mends_costs_time_and_no_error() {
    if let Some(what) = missing() {
        skip!("{what} is missing");
    }
    // Both halves hold a root: h1 and h4.
    let job = Job::new(6, &["--roots", "2"]);
    job.mount_all(1..=6);
    while_all_read(&job, &[1, 2, 3, 4, 5, 6], || {
        job.hosts.control(&["part", "1,2,3", "4,5,6"]);
        // Longer than a silence that counts as death.
        std::thread::sleep(Duration::from_secs(3));
        job.hosts.control(&["mend"]);
    });
    let opens: u64 = [1, 4]
        .map(|root| job.stats(root).get("origin.opens"))
        .iter()
        .sum();
    assert!(
        opens <= 2 * packages().modules,
        "once for each live root at most: {opens}"
    );
}

#[test]
fn a_node_joins_a_running_tree_and_leaves_it() {
    if let Some(what) = missing() {
        skip!("{what} is missing");
    }
    let job = Job::new(3, &["--join"]);
    job.mount_all(1..=3);
    job.mount(4);
    let sum = "cat \"$1\"/package_01/* | md5sum";
    assert_eq!(job.run(4, sum).text(), sh(sum, &[&packages().path]));
    let cluster = |number| {
        let mut ask = job.hosts.copperfs(number, &["stats", "--all", "--json"]);
        let said = crate::support::check(ask.arg(&job.point));
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        said["nodes"].as_array().unwrap().len()
    };
    assert_eq!(cluster(2), 4, "the guest is seen");
    let mut leave = job.hosts.copperfs(4, &["unmount"]);
    crate::support::check(leave.arg(&job.point));
    eventually(SEEN, "the guest is gone", || cluster(2) == 3);
}

#[test]
fn a_node_that_is_cut_off_waits_reads_storage_itself_or_says_so() {
    if let Some(what) = missing() {
        skip!("{what} is missing");
    }
    let one = "md5sum < \"$1/package_05/module_01.py\"";
    let native = sh(one, &[&packages().path]);
    for (orphan, served) in [("origin", true), ("error", false)] {
        // Without bundles, so that storage is asked for one file only.
        let job = Job::new(2, &["--orphan", orphan, "--bundles=false"]);
        job.mount_all(1..=2);
        assert!(
            job.run(2, "cat \"$1/package_05/module_00.py\"")
                .status
                .success()
        );
        job.hosts.control(&["link", "2", "down"]);
        let start = Instant::now();
        let read = job.run(2, one);
        if served {
            assert_eq!(read.text(), native);
            assert_eq!(job.stats(2).get("origin.opens"), 1);
        } else {
            assert!(read.refused().contains("Input/output error"), "{read:?}");
            // The read must not wait for the request timeout, which is 30 s.
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{:?}",
                start.elapsed()
            );
        }
    }
}

#[test]
fn roots_that_see_different_storage_refuse_to_start() {
    if let Some(what) = missing() {
        skip!("{what} is missing");
    }
    let job = Job::new(2, &["--roots", "h1,h2"]);
    job.mount(1);
    // On h2 a local file system hides the shared directory.
    let origin = packages().path.display().to_string();
    let hide = job.run(
        2,
        &format!("mount -t tmpfs none {origin} && touch {origin}/local"),
    );
    assert!(hide.status.success(), "{hide:?}");
    let refused = crate::support::run(&mut job.mount_command(2));
    assert!(
        refused.refused().contains("see different storage"),
        "{refused:?}"
    );
}

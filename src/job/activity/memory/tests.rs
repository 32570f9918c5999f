use super::*;
use crate::job::progress::{ItemOutcome, Progress};
use crate::job::{Process, Reader, Terms};
use crate::journal::{Journal, MemoryFile};
use crate::testing::Random;
use copperfs_policy::Mode;
use std::os::fd::OwnedFd;
use std::time::Duration;

const PART: u8 = 7;
/// Begins records of the test itself.
const MARK: u8 = 9;

/// A table that writes a journal, and takes over those of earlier ones.
struct Daemon {
    journal: Arc<Journal<MemoryFile>>,
    file: OwnedFd,
    jobs: Activities,
}

impl Daemon {
    fn start() -> Self {
        let file = MemoryFile::new().unwrap();
        let kept = rustix::io::dup(&file).unwrap();
        let clock = Clock::of_machine();
        let none = RememberedJobs::new(clock, Instant::now());
        Self::with(Journal::create(file).unwrap(), kept, none)
    }

    fn with(journal: Journal<MemoryFile>, file: OwnedFd, remembered: RememberedJobs) -> Self {
        let journal = Arc::new(journal);
        let jobs = Activities::default();
        jobs.outlive(&JournalPart::new(Arc::clone(&journal), PART), remembered);
        Self {
            journal,
            file,
            jobs,
        }
    }

    /// Passes each record in the journal to `pass`, and returns the journal.
    fn read(&self, mut pass: impl FnMut(&[u8])) -> Journal<MemoryFile> {
        let file = rustix::io::dup(&self.file).unwrap();
        Journal::adopt(MemoryFile::from(file), |record| pass(record)).unwrap()
    }

    /// The daemon is killed at `now`, and another one takes over.
    fn die(self, now: Instant) -> Self {
        let mut remembered = RememberedJobs::new(Clock::of_machine(), now);
        let journal = self.read(|record| remembered.take(&record[1..]));
        Self::with(journal, self.file, remembered)
    }

    fn job(&self, name: &str, now: Instant) -> Arc<JobActivity> {
        self.jobs.of(Some(&reader(name, 10)), "d", now)
    }
}

fn reader(job: &str, pid: u32) -> Reader {
    let started = pid.into();
    let process = Process { pid, started };
    Reader {
        process,
        anchor: process,
        job: Some(job.parse().unwrap()),
        task: None,
    }
}

fn terms(limit: Option<u64>, items: u64) -> Terms {
    Terms {
        limit,
        nodes: 1,
        items: Some(items),
        mode: Mode::Cached,
    }
}

fn outcome(random: &mut Random) -> ItemOutcome {
    let (bytes, cached) = (1000 + random.below(9000), random.below(2) == 0);
    ItemOutcome {
        bytes,
        cached,
        charged: if cached { 0 } else { bytes },
        admitted: !cached && random.below(2) == 0,
    }
}

/// Whatever is known of a job, but for times.
type Known = (Key, Progress, [u64; 2], Vec<Process>, String);

fn known(key: Key, measured: &Measured) -> Known {
    let bytes = [measured.probe_bytes, measured.own_bytes];
    let windows = format!("{:?}", measured.estimator.windows());
    let processes = measured.processes.clone();
    (key, measured.progress.clone(), bytes, processes, windows)
}

fn known_jobs(jobs: &Activities) -> Vec<Known> {
    let jobs = jobs.all();
    let all = jobs.iter().map(|one| {
        let key = (one.job.clone(), Arc::clone(&one.dataset));
        known(key, &one.measured.lock())
    });
    sorted(all.collect())
}

fn sorted(mut all: Vec<Known>) -> Vec<Known> {
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// A reader and one event of some job, or a snapshot. Calls `done` after each.
fn step(daemon: &Daemon, random: &mut Random, now: Instant, mut done: impl FnMut()) {
    let name = ["run:a", "run:b", "slurm:3"][usize::try_from(random.below(3)).unwrap()];
    let dataset = ["d", "e"][usize::try_from(random.below(2)).unwrap()];
    let pid = u32::try_from(random.below(5)).unwrap();
    let job = daemon.jobs.of(Some(&reader(name, pid)), dataset, now);
    done();
    match random.below(100) {
        0..3 => daemon.jobs.tell_all(),
        3..5 => {
            let items = [90, 100, 110][usize::try_from(random.below(3)).unwrap()];
            job.apply(terms(None, items));
        }
        5 => job.read_uncached(outcome(random), now),
        6 => job.read_by_itself(random.below(1000), now),
        7..10 => job.closed(random.below(100), 500, true, now),
        // Epochs in order, with some repeats.
        10..20 => job.read(random.below(100), outcome(random), now, now),
        _ => {
            let next = job.measured.lock().progress.total().items % 100;
            job.read(next, outcome(random), now, now);
        }
    }
    done();
}

/// A daemon that is killed between any two records leaves a state that it has had: the one before or after the event
/// that it was telling of.
#[test]
fn every_prefix_of_the_journal_is_a_state_that_was() {
    for seed in 0..20 {
        let (daemon, mut random) = (Daemon::start(), Random(seed));
        let mut now = Instant::now();
        let mut states = vec![known_jobs(&daemon.jobs)];
        for _ in 0..800 {
            now += Duration::from_millis(random.below(120));
            step(&daemon, &mut random, now, || {
                states.push(known_jobs(&daemon.jobs));
                daemon.journal.put(&[MARK], 0);
            });
        }
        daemon.journal.commit();
        let mut remembered = RememberedJobs::new(Clock::of_machine(), now);
        let mut at = 0;
        daemon.read(|record| {
            if record[0] == MARK {
                at += 1;
                let state = remembered_jobs(&remembered);
                assert!(state == states[at], "seed {seed}: after event {at}");
                return;
            }
            remembered.take(&record[1..]);
            let state = remembered_jobs(&remembered);
            // A new job is told of before its first process.
            let is_new = state.len() > states[at].len();
            // The end of a window is told of after the read that has ended it.
            let was = same_reads(&state, &states[at]) || same_reads(&state, &states[at + 1]);
            assert!(was || is_new, "seed {seed}: in event {at}");
        });
        assert_eq!(at, 1600);
        let many = states.last().unwrap().iter();
        let epochs: Vec<usize> = many.map(|one| one.1.ended.len()).collect();
        assert!(epochs.iter().any(|ended| *ended > 0), "{epochs:?}");
    }
}

fn same_reads(one: &[Known], other: &[Known]) -> bool {
    let reads = |jobs: &[Known]| -> Vec<Known> {
        let mut jobs = jobs.to_vec();
        jobs.iter_mut().for_each(|job| job.4.clear());
        jobs
    };
    reads(one) == reads(other)
}

fn remembered_jobs(remembered: &RememberedJobs) -> Vec<Known> {
    let jobs = remembered.jobs.values();
    sorted(
        jobs.map(|one| known(one.key.clone(), &one.measured))
            .collect(),
    )
}

/// A job that is followed by daemons in turn has the counts of one that had the same daemon all the time, also if
/// snapshots are taken.
#[test]
fn a_job_goes_on_in_its_epoch() {
    let (mut random, start) = (Random(1), Instant::now());
    let (mut daemon, alone) = (Daemon::start(), Daemon::start());
    let mut now = start;
    let [a, b] = [&daemon, &alone].map(|one| one.job("run:a", now));
    for job in [a, b] {
        job.apply(terms(None, 5000));
    }
    for read in 0..18_000_u64 {
        now += Duration::from_micros(random.below(2000));
        // Another order in each epoch.
        let item = ((read % 5000) * 1237 + read / 5000).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let outcome = outcome(&mut random);
        for daemon in [&daemon, &alone] {
            let job = daemon.job("run:a", now);
            job.read(item, outcome, now, now);
        }
        match random.below(1000) {
            0 => {
                daemon.jobs.commit();
                daemon = daemon.die(now);
            }
            1 => (daemon.journal)
                .snapshot(|| daemon.jobs.tell_all())
                .unwrap(),
            _ => {}
        }
    }
    let [after, same] = [&daemon, &alone].map(|one| known_jobs(&one.jobs).remove(0));
    assert!(after.1 == same.1 && after.3 == same.3);
    let proc = crate::job::Proc::at("/nowhere".as_ref());
    let [after, same] = [&daemon, &alone].map(|one| one.jobs.reports(&proc, now).remove(0));
    assert_eq!((after.epoch, &after.epochs), (3, &same.epochs));
    assert_eq!(after.total_bytes, same.total_bytes);
    // Times are told to a tenth of a second.
    let off = after.throughput.abs_diff(same.throughput);
    assert!(off < same.throughput / 20, "{after:?} {same:?}");
    // A death ends the window of the estimate that has begun.
    let [rate, other] = [after.ideal_rate.unwrap(), same.ideal_rate.unwrap()];
    assert!(rate.abs_diff(other) < other / 20 && after.confidence > 0.5);
}

/// The last reads before a death may be lost, and no others.
#[test]
fn reads_after_the_last_commit_are_lost() {
    let (daemon, now) = (Daemon::start(), Instant::now());
    let mut random = Random(2);
    let job = daemon.job("run:a", now);
    job.apply(terms(None, 100));
    for item in 0..30 {
        job.read(item, outcome(&mut random), now, now);
    }
    daemon.jobs.commit();
    let kept = known_jobs(&daemon.jobs);
    for item in 30..40 {
        job.read(item, outcome(&mut random), now, now);
    }
    let next = daemon.die(now);
    assert!(known_jobs(&next.jobs) == kept);
    assert_eq!(
        next.job("run:a", now).measured.lock().progress.epoch.items,
        30
    );
}

/// In any time, across daemons, no more passes than one bucket would let pass.
#[tokio::test(start_paused = true)]
async fn no_rate_is_exceeded_across_daemons() {
    const RATE: u64 = 1_000_000;
    const LARGEST: u64 = 300_000;
    let mut daemon = Daemon::start();
    let mut random = Random(3);
    let now = || tokio::time::Instant::now().into_std();
    let begun = now();
    // Idle at first, so that it begins with a full burst.
    let first = daemon.job("run:a", begun);
    first.apply(terms(Some(RATE), 100));
    tokio::time::advance(Duration::from_secs(10)).await;
    let (begun, mut passed, mut deaths) = (now(), 0, 0);
    while now() < begun + Duration::from_secs(120) {
        let job = daemon.job("run:a", now());
        assert_eq!(job.tokens.limit(), Some(RATE));
        let bytes = 1 + random.below(LARGEST);
        job.tokens.take(bytes).await.spent(bytes);
        passed += bytes;
        let seconds = (now() - begun).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let most = 512.0 * 1024.0 + RATE as f64 * seconds + LARGEST as f64;
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let sum = passed as f64;
        assert!(sum <= most, "{passed} bytes in {seconds} s");
        if random.below(8) == 0 {
            // The tokens of a job are the only record that this test commits.
            deaths += 1;
            daemon = die_now(daemon);
        }
    }
    // Each death costs no more than the largest take.
    assert!(deaths > 20, "{deaths}");
    assert!(passed > 120 * RATE - deaths * LARGEST, "{passed}");
    // A debt is the same afterwards.
    let job = daemon.job("run:a", now());
    job.read_by_itself(10 * RATE, now());
    tokio::time::advance(Duration::from_secs(4)).await;
    let daemon = die_now(daemon);
    let job = daemon.job("run:a", now());
    let begun = now();
    job.tokens.take(1).await.spent(1);
    let waited = (now() - begun).as_secs_f64();
    assert!((5.5..7.5).contains(&waited), "{waited}");
}

/// The next daemon, by the clock of the test.
fn die_now(daemon: Daemon) -> Daemon {
    let now = tokio::time::Instant::now().into_std();
    let mut remembered = RememberedJobs::new(daemon.clock(), now);
    let journal = daemon.read(|record| remembered.take(&record[1..]));
    let next = Daemon::with(journal, daemon.file, remembered);
    for job in next.jobs.all() {
        job.apply(terms(job.tokens.limit(), 100));
    }
    next
}

impl Daemon {
    fn clock(&self) -> Clock {
        self.jobs.table.lock().journal.as_ref().unwrap().1
    }
}

/// A job that is idle when its daemon dies does not seem to have ended.
#[test]
fn an_idle_job_has_its_processes() {
    let (daemon, start) = (Daemon::start(), Instant::now());
    let proc = crate::job::Proc::at("/proc".as_ref());
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let own = Process {
        pid: std::process::id(),
        started: crate::process::Stat::parse(&stat).unwrap().started,
    };
    let mut reader = reader("run:a", 10);
    reader.anchor = own;
    let job = daemon.jobs.of(Some(&reader), "d", start);
    job.read(1, outcome(&mut Random(4)), start, start);
    daemon.jobs.commit();
    let now = start + Duration::from_secs(100);
    let next = daemon.die(now);
    let report = next.jobs.reports(&proc, now).remove(0);
    assert!(!report.ended && report.items == 1, "{report:?}");
    // It was idle for all this time.
    let gone = crate::job::Proc::at("/nowhere".as_ref());
    assert!(next.jobs.reports(&gone, now).remove(0).ended);
}

/// Forgotten jobs stay forgotten, and what is no record changes nothing.
#[test]
fn forgotten_jobs_and_damaged_records_make_no_jobs() {
    let (daemon, now) = (Daemon::start(), Instant::now());
    let [first, second] = ["run:a", "run:b"].map(|name| daemon.job(name, now));
    first.forget();
    daemon.jobs.tell_all();
    for garbage in [&b"\x07"[..], b"\x07\xff\xff", &[7; 60], b"\x07\x00\x01"] {
        daemon.journal.put(garbage, 0);
    }
    second.read(3, outcome(&mut Random(5)), now, now);
    daemon.jobs.commit();
    let next = daemon.die(now);
    let jobs = next.jobs.all();
    assert_eq!(jobs.len(), 1);
    assert_eq!(jobs[0].job, second.job);
    // No number is used again.
    let third = next.job("run:c", now).journal.clone().unwrap().id;
    assert!(third > second.journal.clone().unwrap().id);
}

/// `cargo test --release -- --ignored --nocapture cost_of_a_journal`
#[test]
#[ignore = "a measurement"]
fn cost_of_a_journal() {
    const ITEMS: u64 = 1_000_000;
    let (journaled, start) = (Daemon::start(), Instant::now());
    for (what, jobs) in [
        ("without", &Activities::default()),
        ("with", &journaled.jobs),
    ] {
        let job = jobs.of(Some(&reader("run:a", 10)), "d", start);
        job.apply(terms(None, ITEMS));
        for epoch in 0..3 {
            let begun = Instant::now();
            for item in 0..ITEMS {
                let item = item.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let now = Instant::now();
                job.read(item, outcome(&mut Random(item)), now, now);
            }
            let each = begun.elapsed() / u32::try_from(ITEMS).unwrap();
            let bytes = journaled.journal.bytes();
            println!("{what} a journal, epoch {epoch}: {each:?} for each read, {bytes} bytes");
        }
    }
    let begun = Instant::now();
    journaled
        .journal
        .snapshot(|| journaled.jobs.tell_all())
        .unwrap();
    let bytes = journaled.journal.bytes();
    println!("a snapshot of {bytes} bytes took {:?}", begun.elapsed());
    let begun = Instant::now();
    drop(journaled.die(Instant::now()));
    println!("and was read in {:?}", begun.elapsed());
}

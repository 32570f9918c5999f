//! Activities and their reports.

use super::*;
use copperfs_policy::Mode;
use std::fs;
use std::time::Duration;

const MISS: ItemOutcome = ItemOutcome {
    bytes: 1000,
    cached: false,
    charged: 1000,
    admitted: true,
};
const HIT: ItemOutcome = ItemOutcome {
    bytes: 1000,
    cached: true,
    charged: 0,
    admitted: false,
};

/// A made-up `/proc` with processes that end on request.
struct Processes(tempfile::TempDir);

impl Processes {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn proc(&self) -> Proc {
        Proc::at(self.0.path())
    }

    fn start(&self, pid: u32) {
        let path = self.0.path().join(pid.to_string());
        fs::create_dir_all(&path).unwrap();
        let zeros = "0 ".repeat(17);
        fs::write(path.join("stat"), format!("{pid} (x) S 1 {zeros}{pid} 0\n")).unwrap();
    }

    fn end(&self, pid: u32) {
        fs::remove_dir_all(self.0.path().join(pid.to_string())).unwrap();
    }
}

fn reader(job: &str, pid: u32) -> Reader {
    let process = Process {
        pid,
        started: u64::from(pid),
    };
    Reader {
        process,
        anchor: process,
        job: Some(job.parse().unwrap()),
        task: None,
    }
}

fn terms(items: u64) -> Terms {
    Terms {
        limit: None,
        nodes: 1,
        items: Some(items),
        mode: Mode::Cached,
    }
}

/// A report of a job without processes.
fn report_of(activity: &JobActivity, now: Instant) -> JobReport {
    activity.report(&Proc::at("/nowhere".as_ref()), now)
}

#[test]
fn a_report_contains_reads_and_their_cost() {
    let (table, start) = (Activities::default(), Instant::now());
    let activity = table.of(Some(&reader("slurm:1", 10)), "d", start);
    activity.apply(terms(10));
    let at = |tenths| start + Duration::from_millis(tenths * 100);
    for item in 0..10 {
        activity.opened(at(item));
        let waits = activity.waits(10, at(item));
        activity.read(
            item,
            ItemOutcome {
                admitted: item < 4,
                ..MISS
            },
            at(item),
            at(item + 1),
        );
        drop(waits);
        activity.closed(item, 1000, false, at(item + 1));
    }
    let report = report_of(&activity, at(11));
    assert_eq!(
        (report.epoch, report.items, report.total_bytes),
        (1, 0, 10_000)
    );
    assert_eq!(report.charged_bytes, 10_000);
    assert_eq!(report.throughput, 9000, "of the full second: {report:?}");
    assert_eq!(report.epochs, [(0, 10_000, 0)]);
    let first = activity.measured.lock().progress.ended[0];
    assert_eq!((first.items, first.admitted_bytes), (10, 4000));
    // The second epoch: a page-cache hit, a hit, and a miss that another job has paid for.
    activity.closed(0, 1000, true, at(12));
    activity.read(1, HIT, at(12), at(12));
    activity.read(
        5,
        ItemOutcome {
            charged: 0,
            admitted: false,
            ..MISS
        },
        at(12),
        at(13),
    );
    let report = report_of(&activity, at(14));
    assert_eq!(report.charged_bytes, 10_000);
    assert_eq!(
        (report.items, report.bytes, report.hit_bytes),
        (3, 3000, 2000)
    );
    let epoch = activity.measured.lock().progress.epoch;
    assert_eq!(epoch.page_cache_items, 1);
    assert!(!report.irregular && !report.ended);
}

#[tokio::test(start_paused = true)]
async fn probes_and_own_reads_are_remote_io_and_count_in_no_epoch() {
    let start = Instant::now();
    let activity = Activities::default().of(None, "d", start);
    activity.apply(Terms {
        limit: Some(10 << 20),
        ..Terms::default()
    });
    activity.read_uncached(MISS, start);
    activity.read_by_itself(100 << 20, start);
    let report = report_of(&activity, start + Duration::from_secs(1));
    assert_eq!((report.probe_bytes, report.own_bytes), (1000, 100 << 20));
    assert_eq!((report.items, report.charged_bytes), (0, 0));
    assert_eq!(report.remote_io, (100 << 20) + 1000);
    // The debt is paid before the next read.
    assert!(activity.tokens.try_take(1).is_none());
}

#[test]
fn each_of_several_nodes_has_a_part_of_the_epoch() {
    let (table, start) = (Activities::default(), Instant::now());
    let activity = table.of(Some(&reader("run:a", 10)), "d", start);
    activity.apply(Terms {
        nodes: 4,
        ..terms(101)
    });
    for item in 0..26 {
        assert_eq!(report_of(&activity, start).epoch, 0);
        activity.read(item, HIT, start, start);
    }
    assert_eq!(report_of(&activity, start).epoch, 1);
}

#[test]
fn a_job_ends_when_its_processes_are_gone_and_it_reads_nothing() {
    let (table, start) = (Activities::default(), Instant::now());
    let processes = Processes::new();
    let proc = processes.proc();
    let at = |s| start + Duration::from_secs(s);
    for pid in [10, 11] {
        processes.start(pid);
        let _kept = table.of(Some(&reader("run:a", pid)), "d", start);
    }
    let activity = table.of(Some(&reader("run:a", 10)), "d", start);
    let report = |s| table.reports(&proc, at(s)).remove(0);
    let running = || activity.measured.lock().processes.len();
    assert!(!report(1).ended && running() == 2);
    processes.end(10);
    assert!(!report(100).ended && running() == 1);
    processes.end(11);
    assert!(report(100).ended, "idle for long");
    // A file that another process has inherited.
    activity.read(1, HIT, at(100), at(100));
    assert!(!report(120).ended);
    assert!(report(131).ended);
    let waits = activity.waits(12, at(131));
    assert!(!report(200).ended, "a thread waits");
    drop(waits);
    assert!(report(200).ended);
    let again = reader("run:a", 12);
    processes.start(12);
    assert!(Arc::ptr_eq(
        &activity,
        &table.of(Some(&again), "d", at(201))
    ));
    assert!(!report(300).ended);
}

#[test]
fn readers_of_no_job_are_counted_together() {
    let (table, now) = (Activities::default(), Instant::now());
    let mut stranger = reader("run:a", 10);
    stranger.job = None;
    let one = table.of(None, "d", now);
    let other = table.of(Some(&stranger), "d", now);
    assert!(Arc::ptr_eq(&one, &other) && one.job.is_none());
    assert!(!Arc::ptr_eq(&one, &table.of(None, "e", now)));
    let proc = Processes::new().proc();
    let names: Vec<_> = table
        .reports(&proc, now)
        .into_iter()
        .map(|r| r.dataset)
        .collect();
    assert_eq!(names, ["d", "e"]);
}

#[test]
fn the_table_is_bounded_and_forgets_the_idlest() {
    let (table, start) = (Activities::default(), Instant::now());
    let (first, second) = (reader("run:first", 1), reader("run:second", 2));
    let kept = table.of(Some(&first), "d", start);
    let _dropped = table.of(Some(&second), "only-its", start);
    for job in 0..ACTIVITIES_MAX as u64 - 1 {
        let when = start + Duration::from_millis(job + 1);
        let name = format!("run:{job}");
        let _one = table.of(Some(&reader(&name, 3)), "d", when);
        kept.opened(when);
    }
    assert_eq!(table.all().len(), ACTIVITIES_MAX);
    let known = |job: &Reader| table.all().iter().any(|one| one.job == job.job);
    assert!(known(&first) && !known(&second));
}

#[tokio::test]
async fn waiting_for_tokens_is_reported() {
    let table = Activities::default();
    let activity = table.of(Some(&reader("run:a", 10)), "d", Instant::now());
    let _before = report_of(&activity, Instant::now());
    let limit = Some(10_000);
    activity.apply(Terms {
        limit,
        ..Terms::default()
    });
    // The first take passes and is owed for a tenth of a second.
    activity.tokens.take(1000).await.spent(1000);
    activity.tokens.take(1000).await.spent(1000);
    let report = report_of(&activity, Instant::now());
    assert!(report.throttled > 0.5, "{report:?}");
    let later = report_of(&activity, Instant::now() + Duration::from_secs(1));
    assert!(later.throttled < 0.1);
}

/// `cargo test --release -- --ignored --nocapture cost_of_a_read`
#[test]
#[ignore = "a measurement"]
fn cost_of_a_read() {
    const ITEMS: u64 = 1_000_000;
    let (table, start) = (Activities::default(), Instant::now());
    let activity = table.of(Some(&reader("run:a", 10)), "d", start);
    activity.apply(terms(ITEMS));
    for epoch in 0..3 {
        let begun = Instant::now();
        for item in 0..ITEMS {
            let item = item.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let now = Instant::now();
            let waits = activity.waits(u32::try_from(item % 16).unwrap(), now);
            activity.read(item, HIT, now, now);
            drop(waits);
        }
        let each = begun.elapsed() / u32::try_from(ITEMS).unwrap();
        println!("epoch {epoch}: {each:?} for each read");
    }
}

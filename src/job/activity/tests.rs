//! What goes in and what is reported.

use super::*;
use crate::job::identity::Proc;
use std::fs;

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

/// Made-up processes that end when they are told.
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
    }
}

fn terms(items: u64) -> Terms {
    Terms {
        limit: RateLimit::Unlimited,
        nodes: 1,
        items: Some(items),
    }
}

fn close(left: f64, right: f64) -> bool {
    (left - right).abs() < 1e-6
}

#[test]
fn a_report_tells_what_was_read_and_what_it_cost() {
    let (table, start) = (Activities::new(), Instant::now());
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
    let report = activity.report(at(11));
    assert_eq!(
        (report.epoch, report.current.items, report.bytes),
        (1, 0, 10_000)
    );
    assert_eq!(
        (report.charged_bytes, report.charged_since),
        (10_000, 10_000)
    );
    assert!(
        close(report.throughput, 9000.0),
        "of the full second: {report:?}"
    );
    let first = activity.epochs()[0];
    assert_eq!(
        (first.items, first.admitted_bytes, first.hit_bytes),
        (10, 4000, 0)
    );
    // The second epoch: a page-cache hit, a hit, a miss that another has paid for.
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
    let report = activity.report(at(14));
    assert_eq!(report.charged_since, 0);
    assert_eq!((report.current.items, report.current.hit_bytes), (3, 2000));
    assert_eq!(
        (report.current.page_cache_items, report.current.miss_bytes()),
        (1, 1000)
    );
    assert!(!report.irregular && !report.ended);
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(
        serde_json::from_str::<ActivityReport>(&json).unwrap(),
        report
    );
}

#[test]
fn on_several_nodes_each_has_its_part() {
    let (table, start) = (Activities::new(), Instant::now());
    let activity = table.of(Some(&reader("run:a", 10)), "d", start);
    activity.apply(Terms {
        nodes: 4,
        ..terms(101)
    });
    for item in 0..26 {
        assert_eq!(activity.report(start).epoch, 0);
        activity.read(item, HIT, start, start);
    }
    assert_eq!(activity.report(start).epoch, 1);
}

#[test]
fn a_job_ends_when_its_processes_are_gone_and_nothing_is_read() {
    let (table, start) = (Activities::new(), Instant::now());
    let processes = Processes::new();
    let proc = processes.proc();
    let at = |s| start + Duration::from_secs(s);
    for pid in [10, 11] {
        processes.start(pid);
        let _kept = table.of(Some(&reader("run:a", pid)), "d", start);
    }
    let activity = table.of(Some(&reader("run:a", 10)), "d", start);
    let report = |s| table.reports(&proc, at(s)).remove(0);
    assert_eq!(report(1).processes, 2);
    processes.end(10);
    assert_eq!((report(100).processes, report(100).ended), (1, false));
    processes.end(11);
    assert!(report(100).ended, "idle for long");
    // A file that a process outside of it has inherited.
    activity.read(1, HIT, at(100), at(100));
    assert!(!report(120).ended);
    assert!(report(131).ended);
    let waits = activity.waits(12, at(131));
    assert!(!report(200).ended, "somebody waits");
    drop(waits);
    assert!(report(200).ended);
    let again = reader("run:a", 12);
    processes.start(12);
    assert!(Arc::ptr_eq(
        &activity,
        &table.of(Some(&again), "d", at(201))
    ));
    assert!(!report(300).ended);
    table.forget(again.job.as_ref().unwrap());
    assert!(table.all().is_empty());
}

#[test]
fn readers_of_no_job_are_counted_together() {
    let (table, now) = (Activities::new(), Instant::now());
    let mut stranger = reader("run:a", 10);
    stranger.job = None;
    let one = table.of(None, "d", now);
    let other = table.of(Some(&stranger), "d", now);
    assert!(Arc::ptr_eq(&one, &other) && one.job().is_none());
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
    let (table, start) = (Activities::new(), Instant::now());
    let (first, second) = (reader("run:first", 1), reader("run:second", 2));
    let kept = table.of(Some(&first), "d", start);
    let _dropped = table.of(Some(&second), "only-its", start);
    for job in 0..table::ACTIVITIES_MAX as u64 - 1 {
        let when = start + Duration::from_millis(job + 1);
        let name = format!("run:{job}");
        let _one = table.of(Some(&reader(&name, 3)), "d", when);
        kept.opened(when);
    }
    assert_eq!(table.all().len(), table::ACTIVITIES_MAX);
    assert!(table.of_job(second.job.as_ref().unwrap()).is_empty());
    assert_eq!(table.of_job(first.job.as_ref().unwrap()).len(), 1);
}

#[tokio::test]
async fn waiting_for_tokens_is_reported() {
    let table = Activities::new();
    let activity = table.of(Some(&reader("run:a", 10)), "d", Instant::now());
    let _before = activity.report(Instant::now());
    let limit = RateLimit::BytesPerSecond(10_000);
    activity.apply(Terms {
        limit,
        ..Terms::default()
    });
    // The first passes and is owed, for a tenth of a second.
    activity.tokens().take(1000).await.spent(1000);
    activity.tokens().take(1000).await.spent(1000);
    let report = activity.report(Instant::now());
    assert!(report.throttled > 0.5, "{report:?}");
    assert!(
        activity
            .report(Instant::now() + Duration::from_secs(1))
            .throttled
            < 0.1
    );
}

/// `cargo test --release -- --ignored --nocapture cost_of_a_read`
#[test]
#[ignore = "a measurement"]
fn cost_of_a_read() {
    const ITEMS: u64 = 1_000_000;
    let (table, start) = (Activities::new(), Instant::now());
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

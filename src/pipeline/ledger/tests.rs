use super::*;
use std::time::Duration;

const OWNER: OwnerId = OwnerId { rank: 0, boot: 1 };

fn key(job: &str) -> JobKey {
    JobKey {
        tenant: "1".into(),
        job: job.into(),
    }
}

fn job(name: &str, attempt: u64, consume: Consume, tasks: &[(&str, &[u64])]) -> ResolvedJob {
    let keys = tasks.iter().flat_map(|(_, items)| *items);
    ResolvedJob {
        key: key(name),
        attempt,
        record: JobRecord {
            app: "app".into(),
            user: 1000,
            consume,
            began: Duration::ZERO,
            expires: Duration::from_secs(100),
            references: 0,
            files: Arc::from([]),
        },
        items: keys.map(|key| (*key, 10)).collect(),
        tasks: {
            let mut listed = Tasks::default();
            for (task, items) in tasks {
                items.iter().for_each(|item| listed.add_input(*item));
                listed.end_task(Box::from(*task));
            }
            listed
        },
    }
}

fn ledger() -> Ledger {
    Ledger::new(OWNER, 5, "warehouse")
}

#[test]
fn the_report_counts_the_bytes_of_items_that_are_referred_to() {
    let mut ledger = ledger();
    let tasks: [(&str, &[u64]); 2] = [("a", &[1, 2]), ("b", &[2, 3])];
    let done = Consume::Done;
    assert_eq!(
        ledger.submit(job("j", 0, done, &tasks)),
        Ok(Submitted::Accepted)
    );
    let report = |ledger: &Ledger| {
        let report = ledger.report(5);
        (report.jobs, report.references, report.bytes)
    };
    assert_eq!(report(&ledger), (1, 4, 30));
    assert!(ledger.done(&key("j"), "a"));
    assert_eq!(report(&ledger), (1, 2, 20));
    // The same attempt again is ignored, and a later one replaces it.
    assert_eq!(
        ledger.submit(job("j", 0, done, &tasks)),
        Ok(Submitted::Ignored)
    );
    assert_eq!(report(&ledger), (1, 2, 20));
    assert_eq!(
        ledger.submit(job("j", 1, done, &tasks)),
        Ok(Submitted::Accepted)
    );
    assert_eq!(report(&ledger), (1, 4, 30));
    assert!(ledger.end(&key("j")) && !ledger.end(&key("j")));
    assert_eq!(report(&ledger), (0, 0, 0));
    assert_eq!(
        ledger.submit(job("j", 1, done, &tasks)),
        Ok(Submitted::Ignored),
        "also after its end"
    );
}

#[test]
fn a_read_releases_what_its_own_task_refers_to_if_the_job_says_so() {
    let mut ledger = ledger();
    // The names of jobs and tasks contain slashes.
    let tasks: [(&str, &[u64]); 2] = [("scan1/0", &[1, 2]), ("scan1/1", &[1])];
    ledger
        .submit(job("app-1/sql-0", 0, Consume::Read, &tasks))
        .unwrap();
    ledger
        .submit(job("app-1", 0, Consume::Done, &[("sql-0/scan1/0", &[1])]))
        .unwrap();
    let count = |ledger: &Ledger, key| ledger.table.count(&key);
    assert_eq!((count(&ledger, 1), count(&ledger, 2)), (3, 1));
    ledger.read(1000, "app-1/sql-0/scan1/0", &[1]);
    assert_eq!((count(&ledger, 1), count(&ledger, 2)), (2, 1));
    // Once, and not for another user, another task, or no task.
    ledger.read(1000, "app-1/sql-0/scan1/0", &[1, 9]);
    ledger.read(1001, "app-1/sql-0/scan1/1", &[1]);
    ledger.read(1000, "app-1/sql-0/scan1/2", &[1]);
    ledger.read(1000, "app-1/sql-0", &[1]);
    assert_eq!((count(&ledger, 1), count(&ledger, 2)), (2, 1));
    // A failed task reads again.
    assert!(ledger.fail(&key("app-1/sql-0"), "scan1/0"));
    assert_eq!((count(&ledger, 1), count(&ledger, 2)), (3, 1));
    assert!(ledger.done(&key("app-1/sql-0"), "scan1/0"));
    assert!(ledger.done(&key("app-1/sql-0"), "scan1/1"));
    assert!(ledger.done(&key("app-1"), "sql-0/scan1/0"));
    assert_eq!((count(&ledger, 1), count(&ledger, 2)), (0, 0));
    assert_eq!(ledger.report(5).bytes, 0);
}

#[test]
fn jobs_expire() {
    let mut ledger = ledger();
    ledger
        .submit(job("j", 0, Consume::Done, &[("a", &[1])]))
        .unwrap();
    assert!(ledger.expired(Duration::from_secs(99)).is_empty());
    assert_eq!(ledger.expired(Duration::from_secs(100)), [key("j")]);
}

#[test]
fn the_attempts_of_ended_jobs_are_remembered_up_to_a_bound() {
    let mut ledger = ledger();
    for number in 0..ENDED_MAX + 10 {
        let name = number.to_string();
        ledger
            .submit(job(&name, 0, Consume::Done, &[("a", &[1])]))
            .unwrap();
        ledger.end(&key(&name));
    }
    assert_eq!(ledger.ended.len(), ENDED_MAX);
    assert_eq!(ledger.table.jobs().count(), ENDED_MAX);
    assert_eq!(ledger.items.len(), 0);
    assert_eq!(ledger.tenants.len(), 0);
}

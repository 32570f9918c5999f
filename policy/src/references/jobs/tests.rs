use super::*;

type Table = JobTable<&'static str, &'static str, u32>;

/// Submits and returns the blocks that have changed.
fn submit(
    table: &mut Table,
    job: &'static str,
    attempt: u64,
    tasks: &[(&'static str, &[u32])],
) -> Vec<u32> {
    let mut changed = Vec::new();
    let tasks = tasks
        .iter()
        .map(|(task, inputs)| (*task, inputs.iter().copied()));
    table.submit(job, attempt, tasks, &mut changed).unwrap();
    changed.sort_unstable();
    changed
}

fn counts(table: &Table) -> Vec<(u32, u32)> {
    let mut counts: Vec<_> = table
        .counts()
        .map(|(block, count)| (*block, count))
        .collect();
    counts.sort_unstable();
    counts
}

/// For calls that need not say which blocks have changed.
fn unheard() -> Vec<u32> {
    Vec::new()
}

#[test]
fn a_task_holds_one_reference_to_each_different_input() {
    let mut table = Table::default();
    let changed = submit(
        &mut table,
        "j",
        0,
        &[("a", &[7, 5, 7, 7]), ("b", &[5]), ("c", &[])],
    );
    assert_eq!(changed, [5, 5, 7]);
    assert_eq!(counts(&table), [(5, 2), (7, 1)]);
    assert_eq!(table.references(), 3);
    assert_eq!(table.count(&6), 0);
}

#[test]
fn consuming_twice_releases_one_reference() {
    let mut table = Table::default();
    submit(&mut table, "j", 0, &[("a", &[1, 2]), ("b", &[1])]);
    let mut changed = Vec::new();
    assert!(table.consume(&"j", &"a", &1, &mut changed));
    assert!(!table.consume(&"j", &"a", &1, &mut changed));
    assert_eq!(changed, [1]);
    assert_eq!(counts(&table), [(1, 1), (2, 1)]);
}

#[test]
fn unknown_jobs_tasks_and_blocks_change_nothing() {
    let mut table = Table::default();
    submit(&mut table, "j", 0, &[("a", &[1])]);
    let mut changed = Vec::new();
    assert!(!table.consume(&"k", &"a", &1, &mut changed));
    assert!(!table.consume(&"j", &"b", &1, &mut changed));
    assert!(!table.consume(&"j", &"a", &2, &mut changed));
    assert!(!table.consume_oldest(&2, &mut changed));
    assert!(!table.done(&"k", &"a", &mut changed));
    assert!(!table.done(&"j", &"b", &mut changed));
    assert!(!table.fail(&"j", &"b", &mut changed));
    assert!(!table.end(&"k", &mut changed));
    assert!(!table.forget(&"k"));
    assert_eq!((changed, counts(&table)), (vec![], vec![(1, 1)]));
}

#[test]
fn a_failed_task_holds_its_references_again_unless_it_has_ended() {
    let mut table = Table::default();
    submit(&mut table, "j", 0, &[("a", &[1, 2])]);
    table.consume(&"j", &"a", &1, &mut unheard());
    let mut changed = Vec::new();
    assert!(table.fail(&"j", &"a", &mut changed));
    assert_eq!(changed, [1]);
    assert_eq!(counts(&table), [(1, 1), (2, 1)]);
    assert!(table.done(&"j", &"a", &mut unheard()));
    assert!(!table.fail(&"j", &"a", &mut unheard()));
    assert_eq!(counts(&table), []);
}

#[test]
fn a_higher_attempt_replaces_the_job_and_makes_it_the_youngest() {
    let mut table = Table::default();
    submit(&mut table, "j", 1, &[("a", &[1]), ("b", &[2])]);
    submit(&mut table, "k", 0, &[("c", &[1])]);
    table.done(&"j", &"a", &mut unheard());
    let ignored = table.submit("j", 0, [("a", [3])], &mut unheard());
    assert_eq!(ignored, Ok(Submitted::Ignored));
    assert!(submit(&mut table, "j", 1, &[("a", &[3])]).is_empty());
    assert_eq!(counts(&table), [(1, 1), (2, 1)]);
    assert_eq!(submit(&mut table, "j", 2, &[("a", &[1])]), [1, 2]);
    assert_eq!(counts(&table), [(1, 2)]);
    // The oldest job is "k" now.
    assert!(table.consume_oldest(&1, &mut unheard()));
    assert!(!table.consume(&"k", &"c", &1, &mut unheard()));
    assert!(table.consume(&"j", &"a", &1, &mut unheard()));
}

#[test]
fn the_oldest_reference_is_that_of_the_first_listed_task() {
    let mut table = Table::default();
    submit(&mut table, "j", 0, &[("z", &[1]), ("a", &[1])]);
    assert!(table.consume_oldest(&1, &mut unheard()));
    assert!(!table.consume(&"j", &"z", &1, &mut unheard()));
    // The first task holds its reference again, and is first again.
    table.fail(&"j", &"z", &mut unheard());
    assert!(table.consume_oldest(&1, &mut unheard()));
    assert!(table.consume(&"j", &"a", &1, &mut unheard()));
    assert!(!table.consume_oldest(&1, &mut unheard()));
}

#[test]
fn an_ended_job_holds_nothing_and_remembers_its_attempt() {
    let mut table = Table::default();
    submit(&mut table, "j", 3, &[("a", &[1, 2])]);
    let mut changed = Vec::new();
    assert!(table.end(&"j", &mut changed));
    assert_eq!((changed, counts(&table)), (vec![1, 2], vec![]));
    assert!(!table.end(&"j", &mut unheard()));
    assert!(!table.fail(&"j", &"a", &mut unheard()));
    assert!(submit(&mut table, "j", 3, &[("a", &[1])]).is_empty());
    assert!(table.forget(&"j"));
    assert_eq!(submit(&mut table, "j", 0, &[("a", &[1])]), [1]);
    assert!(!table.forget(&"j"), "a live job is not forgotten");
}

#[test]
fn a_task_listed_twice_is_refused_and_changes_nothing() {
    let mut table = Table::default();
    submit(&mut table, "j", 0, &[("a", &[1])]);
    let tasks = [("a", vec![2]), ("a", vec![3])];
    let mut changed = Vec::new();
    let refused = table.submit("j", 1, tasks, &mut changed).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "task \"a\" is listed twice. Give each task of a job a name of its own"
    );
    assert_eq!((changed, counts(&table)), (vec![], vec![(1, 1)]));
}

#[test]
fn the_status_of_a_job_counts_its_tasks_and_references() {
    let mut table = Table::default();
    submit(&mut table, "j", 4, &[("a", &[1, 2]), ("b", &[1])]);
    table.done(&"j", &"b", &mut unheard());
    let status = JobStatus {
        job: &"j",
        attempt: 4,
        is_live: true,
        tasks: 2,
        tasks_ended: 1,
        references: 3,
    };
    assert_eq!(table.jobs().collect::<Vec<_>>(), [status]);
    table.end(&"j", &mut unheard());
    let status = JobStatus {
        is_live: false,
        tasks: 0,
        tasks_ended: 0,
        references: 0,
        ..status
    };
    assert_eq!(table.jobs().collect::<Vec<_>>(), [status]);
}

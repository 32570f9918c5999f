//! A home that keeps items by the references of pipelines.

use super::*;
use crate::model::slots::key_of;
use crate::model::{CountBatch, OwnerId, PipelineReply};

const OWNER: OwnerId = OwnerId { rank: 3, boot: 1 };

fn by_count(count: u64, budget: u64) -> Decision {
    let mut decision = decision(count, &[0], &[("a", budget)]);
    decision.datasets[0].keep = Keep::References;
    decision
}

/// A storage of eight files of 10 KiB, and a home with room for four.
fn set_up() -> (Arc<Storage>, Home) {
    let names: Vec<String> = (0..8).map(|at| format!("data/a/{at}")).collect();
    let files: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 10 * KIB)).collect();
    let storage = Storage::of(&files);
    let home = alone(&storage, &by_count(1, 40 * KIB));
    (storage, home)
}

fn batch(owner: OwnerId, (from, to): (u64, u64), counts: &[(u8, u32)]) -> CountBatch {
    let key = |at: &u8| key_of(&path(&format!("data/a/{at}")), 0);
    CountBatch {
        dataset: DatasetDecision::id_of("a", &path("data/a")),
        owner,
        from,
        to,
        counts: counts.iter().map(|(at, count)| (key(at), *count)).collect(),
    }
}

/// Reads files, and returns whether each was a hit.
async fn hits(home: &Home, storage: &Storage, files: &[u8]) -> Vec<bool> {
    let mut hits = Vec::new();
    for at in files {
        let request = all_of(storage, &format!("data/a/{at}"), RICH);
        hits.push(give(home, storage, request).await.unwrap().cached);
    }
    hits
}

#[tokio::test]
async fn the_items_with_the_fewest_references_make_room() {
    let (storage, home) = set_up();
    let counts = [(0, 2), (1, 1), (2, 3), (3, 2), (4, 2), (5, 1)];
    let told = home.count(&batch(OWNER, (0, 1), &counts)).unwrap();
    assert_eq!(told, PipelineReply::State(1));
    assert_eq!(hits(&home, &storage, &[0, 1, 2, 3]).await, [false; 4]);
    // File 1 has one reference, and goes for file 4, which has two.
    assert_eq!(
        hits(&home, &storage, &[4, 0, 2, 3]).await,
        [false, true, true, true]
    );
    // File 5 would be the least itself, and file 6 has no reference at all.
    assert_eq!(
        hits(&home, &storage, &[5, 5, 6, 6, 4]).await,
        [false, false, false, false, true]
    );
    // The last task that reads file 2 has ended.
    home.count(&batch(OWNER, (1, 2), &[(2, 0)])).unwrap();
    assert_eq!(
        hits(&home, &storage, &[5, 5, 2]).await,
        [false, true, false]
    );
    let report = home.report()[0].by_count.unwrap();
    assert_eq!(
        (report.referenced, report.unreferenced, report.undeclared),
        (40 * KIB, 0, 0)
    );
    assert_eq!((report.hits, report.misses, report.evicted), (5, 11, 2));
}

/// An item that is evicted for a reader without tokens would be missing until the reader has some.
#[tokio::test]
async fn a_request_that_does_not_pay_evicts_nothing() {
    let (storage, home) = set_up();
    assert_eq!(hits(&home, &storage, &[0, 1, 2, 3]).await, [false; 4]);
    home.count(&batch(OWNER, (0, 1), &[(7, 1)])).unwrap();
    let unpaid = home.item(all_of(&storage, "data/a/7", 0)).await;
    assert_eq!(unpaid, Ok(ItemAnswer::Unpaid { cost: 10 * KIB }));
    assert_eq!(hits(&home, &storage, &[0, 1, 2, 3]).await, [true; 4]);
    assert_eq!(
        hits(&home, &storage, &[7, 7, 1, 2, 3, 0]).await,
        [false, true, true, true, true, false]
    );
}

#[tokio::test]
async fn a_flush_evicts_what_was_declared_and_is_done() {
    let (storage, home) = set_up();
    home.count(&batch(OWNER, (0, 1), &[(0, 1), (1, 1)]))
        .unwrap();
    assert_eq!(hits(&home, &storage, &[0, 1, 2]).await, [false; 3]);
    home.count(&batch(OWNER, (1, 2), &[(0, 0)])).unwrap();
    let dataset = DatasetDecision::id_of("a", &path("data/a"));
    let due = PipelineReply::Flushed {
        items: 1,
        bytes: 10 * KIB,
    };
    assert_eq!(home.flush(dataset), Ok(due));
    assert_eq!(hits(&home, &storage, &[1, 2, 0]).await, [true, true, false]);
    assert_eq!(home.flush(1).unwrap_err().kind, FailureKind::Unavailable);
}

/// Counts that were told before the rule was set count too, and those of several owners add up.
#[tokio::test]
async fn counts_of_owners_add_up_whatever_the_rule_was_when_they_came() {
    let (storage, home) = set_up();
    let mut uniform = by_count(2, 40 * KIB);
    uniform.datasets[0].keep = Keep::Uniform;
    home.apply(&uniform, 0, "nid0");
    let other = OwnerId { rank: 4, boot: 9 };
    home.count(&batch(
        OWNER,
        (0, 1),
        &[(0, 1), (1, 2), (2, 2), (3, 2), (4, 2)],
    ))
    .unwrap();
    home.count(&batch(other, (0, 5), &[(0, 2)])).unwrap();
    assert_eq!(hits(&home, &storage, &[0, 1, 2, 3, 4, 4]).await, [false; 6]);
    assert_eq!(home.report()[0].by_count, None);
    home.apply(&by_count(3, 40 * KIB), 0, "nid0");
    // Only file 0 has three references.
    home.count(&batch(OWNER, (1, 2), &[(4, 3)])).unwrap();
    assert_eq!(
        hits(&home, &storage, &[4, 4, 0, 1]).await,
        [false, true, true, false]
    );
}

#[tokio::test(start_paused = true)]
async fn the_counts_of_an_owner_that_is_silent_are_forgotten() {
    let (storage, home) = set_up();
    home.count(&batch(OWNER, (0, 1), &[(0, 1), (1, 1), (2, 1), (3, 1)]))
        .unwrap();
    assert_eq!(hits(&home, &storage, &[0, 1, 2, 3]).await, [false; 4]);
    for _ in 0..20 {
        tokio::time::advance(Duration::from_millis(500)).await;
        home.count(&batch(OWNER, (1, 1), &[])).unwrap();
        assert_eq!(home.report()[0].by_count.unwrap().referenced, 40 * KIB);
    }
    tokio::time::advance(Duration::from_secs(4)).await;
    let report = home.report()[0].by_count.unwrap();
    assert_eq!((report.referenced, report.unreferenced), (0, 40 * KIB));
    // It is back, and is asked for all.
    let told = home.count(&batch(OWNER, (1, 2), &[(0, 5)])).unwrap();
    assert_eq!(told, PipelineReply::State(0));
}

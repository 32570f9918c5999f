use super::*;
use Action::{Abandon, Dial, Release, Strand, Use};
use Event::{Accepted, Corrupt, Failed, Heard, Lost, Restarted, Silent, Tick};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A node with `ancestors` candidates that has used its listed parent since 1 ms.
fn with_parent(ancestors: usize) -> ParentSelector {
    let mut selector = ParentSelector::new(ancestors, FailoverTimes::default(), 7, ms(0));
    assert_eq!(selector.step(ms(0), Tick), [Dial(0)]);
    assert_eq!(selector.step(ms(1), Accepted(0)), [Use(0)]);
    assert_eq!(
        selector.wake(ms(1)),
        None,
        "no timer while the parent is healthy"
    );
    selector
}

#[test]
fn a_parent_that_starts_late_is_waited_for() {
    let mut selector = ParentSelector::new(3, FailoverTimes::default(), 7, ms(0));
    assert_eq!(selector.step(ms(0), Tick), [Dial(0)]);
    assert_eq!(selector.step(ms(900), Failed(0)), []);
    let again = selector.wake(ms(900)).unwrap();
    assert!(again < ms(1100));
    assert_eq!(selector.step(again, Tick), [Dial(0)]);
    assert_eq!(selector.step(ms(2000), Accepted(0)), [Use(0)]);
}

#[test]
fn a_parent_that_never_starts_is_skipped_after_the_grace() {
    let mut selector = ParentSelector::new(4, FailoverTimes::default(), 7, ms(0));
    assert_eq!(selector.step(ms(0), Tick), [Dial(0)]);
    let grace = selector.wake(ms(0)).unwrap();
    assert_eq!(grace, ms(5000));
    let mut dials = selector.step(grace, Tick);
    dials.sort_by_key(|action| format!("{action:?}"));
    assert_eq!(dials, [Dial(1), Dial(2), Dial(3)]);
    assert_eq!(selector.step(ms(5010), Accepted(3)), [Use(3)]);
    // A nearer candidate takes over; a farther one is released.
    assert_eq!(selector.step(ms(5011), Accepted(1)), [Use(1), Release(3)]);
    assert_eq!(selector.step(ms(5012), Accepted(2)), [Release(2)]);
    assert_eq!(selector.step(ms(6000), Accepted(0)), [Use(0), Release(1)]);
}

#[test]
fn the_grandparent_and_the_root_are_raced_until_the_parent_returns() {
    let mut selector = with_parent(4);
    assert_eq!(selector.step(ms(1000), Lost(0)), []);
    let mut dialed = Vec::new();
    let mut now = ms(1000);
    while let Some(wake) = selector.wake(now).filter(|wake| *wake <= ms(1100)) {
        now = wake;
        dialed.extend(selector.step(now, Tick));
    }
    assert!(
        dialed.contains(&Dial(1)) && dialed.contains(&Dial(3)),
        "{dialed:?}"
    );
    assert!(
        !dialed.contains(&Dial(2)),
        "the ancestors between them are dialed later"
    );
    assert_eq!(selector.step(ms(1101), Accepted(1))[..1], [Use(1)]);
    let home = selector.wake(ms(1101));
    assert!(dialed.contains(&Dial(0)) || home.is_some());
    assert_eq!(selector.step(ms(9000), Accepted(0)), [Use(0), Release(1)]);
}

#[test]
fn a_parent_that_has_restarted_keeps_its_children() {
    let mut selector = with_parent(4);
    assert_eq!(selector.step(ms(1000), Restarted(0)), [Dial(0)]);
    // It does not serve yet.
    assert_eq!(selector.step(ms(1010), Failed(0)), []);
    let again = selector.wake(ms(1010)).unwrap();
    assert!(again < ms(1110), "{again:?}");
    assert_eq!(selector.step(again, Tick), [Dial(0)]);
    assert!(!selector.is_stranded());
    assert_eq!(selector.step(ms(1200), Accepted(0)), [Use(0)]);
    assert_eq!(selector.wake(ms(1200)), None, "no other is dialed");
}

#[test]
fn a_parent_that_restarts_again_and_again_is_replaced() {
    let mut selector = with_parent(4);
    let mut dialed = selector.step(ms(1000), Restarted(0));
    let mut now = ms(1001);
    assert_eq!(selector.step(now, Failed(0)), []);
    while let Some(wake) = selector.wake(now).filter(|wake| *wake < ms(3000)) {
        now = wake;
        let dials = selector.step(now, Tick);
        assert!(dials.iter().all(|dial| *dial == Dial(0)), "{dials:?}");
        dialed.extend(dials);
        assert_eq!(selector.step(now, Failed(0)), []);
    }
    assert!(dialed.len() > 4, "{dialed:?}");
    let dials = selector.step(ms(3050), Tick);
    assert!(
        dials.contains(&Dial(1)) && dials.contains(&Dial(3)),
        "{dials:?}"
    );
    assert_eq!(selector.step(ms(3060), Accepted(1))[..1], [Use(1)]);
}

#[test]
fn a_silent_parent_is_replaced_unless_it_is_heard_first() {
    let mut selector = with_parent(3);
    let _dials = selector.step(ms(1000), Silent(0));
    let _dials = selector.step(ms(1100), Tick);
    // The parent sends something before another candidate answers: it is kept.
    assert_eq!(selector.step(ms(1110), Heard(0)), []);
    assert_eq!(selector.step(ms(1120), Accepted(1)), [Release(1)]);
    assert_eq!(selector.using(), Some(0));
    // The parent stays silent: the first candidate to answer is used, and the parent is abandoned.
    let _dials = selector.step(ms(2000), Silent(0));
    assert_eq!(
        selector.step(ms(2100), Accepted(2))[..2],
        [Use(2), Abandon(0)]
    );
}

#[test]
fn a_node_without_any_ancestor_is_stranded_and_keeps_dialing() {
    let mut selector = with_parent(2);
    let _dials = selector.step(ms(1000), Lost(0));
    let _dials = selector.step(ms(1100), Tick);
    assert_eq!(selector.step(ms(2000), Failed(1)), [Strand]);
    assert!(selector.is_stranded());
    let wake = selector.wake(ms(2000)).unwrap();
    assert!(!selector.step(wake, Tick).is_empty());
    assert!(selector.step(ms(9000), Accepted(1)).contains(&Use(1)));
    assert!(!selector.is_stranded());
}

#[test]
fn a_corrupt_peer_is_barred_and_after_three_blocks_for_good() {
    let mut selector = with_parent(2);
    assert_eq!(selector.step(ms(1000), Corrupt(0))[0], Abandon(0));
    let _dials = selector.step(ms(1100), Tick);
    assert!(selector.step(ms(1110), Accepted(1)).contains(&Use(1)));
    // Barred for a minute, then dialed again.
    assert_eq!(selector.step(ms(30_000), Tick), []);
    assert_eq!(selector.step(ms(61_100), Tick), [Dial(0)]);
    assert_eq!(selector.step(ms(61_101), Accepted(0)), [Use(0), Release(1)]);
    for now in [ms(70_000), ms(70_001)] {
        let _actions = selector.step(now, Corrupt(0));
    }
    let _dials = selector.step(ms(70_100), Tick);
    let _use = selector.step(ms(70_110), Accepted(1));
    assert_eq!(selector.wake(ms(70_110)), None, "barred for good");
}

#[test]
fn an_only_ancestor_may_send_two_corrupt_blocks() {
    let mut selector = with_parent(1);
    assert_eq!(selector.step(ms(1000), Corrupt(0)), []);
    assert_eq!(selector.step(ms(1001), Corrupt(0)), []);
    assert_eq!(selector.step(ms(1002), Corrupt(0)), [Abandon(0), Strand]);
}

#[test]
fn a_silent_parent_is_given_up_even_if_no_other_answers() {
    let mut selector = with_parent(2);
    let _dials = selector.step(ms(1000), Silent(0));
    assert_eq!(selector.step(ms(1050), Tick), [Dial(1)]);
    // It may only be slow, so it is kept for a while.
    assert_eq!(selector.using(), Some(0));
    assert_eq!(selector.step(ms(1900), Failed(1)), []);
    let actions = selector.step(ms(2000), Tick);
    assert!(
        actions.contains(&Abandon(0)) && actions.contains(&Strand),
        "{actions:?}"
    );
    assert_eq!(selector.using(), None);
    // It is dialed again with the others.
    let dialed = selector.step(ms(2200), Tick);
    assert!(dialed.contains(&Dial(0)), "{dialed:?}");
    assert!(selector.step(ms(2300), Accepted(0)).contains(&Use(0)));
}

#[test]
fn an_only_ancestor_that_is_heard_in_time_is_kept() {
    let mut selector = with_parent(1);
    assert_eq!(selector.step(ms(1000), Silent(0)), []);
    assert_eq!(selector.wake(ms(1000)), Some(ms(2000)));
    assert_eq!(selector.step(ms(1900), Heard(0)), []);
    assert_eq!(selector.wake(ms(1900)), None);
    assert_eq!(selector.step(ms(2500), Tick), []);
}

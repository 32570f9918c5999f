use super::*;
use Action::{Dial, Drop, Leave, Strand, Use};
use Event::{Failed, Heard, Lied, Lost, Silent, Tick, Welcomed};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A node below `ancestors`, hanging from its parent since 1 ms.
fn at_home(ancestors: usize) -> Ascent {
    let mut ascent = Ascent::new(ancestors, Patience::default(), 7, ms(0));
    assert_eq!(ascent.step(ms(0), Tick), [Dial(0)]);
    assert_eq!(ascent.step(ms(1), Welcomed(0)), [Use(0)]);
    assert_eq!(ascent.wake(ms(1)), None, "nothing to do while all is well");
    ascent
}

#[test]
fn a_parent_that_starts_late_is_waited_for() {
    let mut ascent = Ascent::new(3, Patience::default(), 7, ms(0));
    assert_eq!(ascent.step(ms(0), Tick), [Dial(0)]);
    assert_eq!(ascent.step(ms(900), Failed(0)), []);
    let again = ascent.wake(ms(900)).unwrap();
    assert!(again < ms(1100));
    assert_eq!(ascent.step(again, Tick), [Dial(0)]);
    assert_eq!(ascent.step(ms(2000), Welcomed(0)), [Use(0)]);
}

#[test]
fn a_parent_that_never_starts_is_passed_over_after_the_grace() {
    let mut ascent = Ascent::new(4, Patience::default(), 7, ms(0));
    assert_eq!(ascent.step(ms(0), Tick), [Dial(0)]);
    let grace = ascent.wake(ms(0)).unwrap();
    assert_eq!(grace, ms(5000));
    let mut dials = ascent.step(grace, Tick);
    dials.sort_by_key(|action| format!("{action:?}"));
    assert_eq!(dials, [Dial(1), Dial(2), Dial(3)]);
    assert_eq!(ascent.step(ms(5010), Welcomed(3)), [Use(3)]);
    // The nearer one takes over, the farther one is left in peace.
    assert_eq!(ascent.step(ms(5011), Welcomed(1)), [Use(1), Leave(3)]);
    assert_eq!(ascent.step(ms(5012), Welcomed(2)), [Leave(2)]);
    assert_eq!(ascent.step(ms(6000), Welcomed(0)), [Use(0), Leave(1)]);
}

#[test]
fn the_grandparent_and_the_root_are_raced_and_the_parent_is_come_home_to() {
    let mut ascent = at_home(4);
    assert_eq!(ascent.step(ms(1000), Lost(0)), []);
    let mut dialed = Vec::new();
    let mut now = ms(1000);
    while let Some(wake) = ascent.wake(now).filter(|wake| *wake <= ms(1100)) {
        now = wake;
        dialed.extend(ascent.step(now, Tick));
    }
    assert!(
        dialed.contains(&Dial(1)) && dialed.contains(&Dial(3)),
        "{dialed:?}"
    );
    assert!(!dialed.contains(&Dial(2)), "those between come later");
    assert_eq!(ascent.step(ms(1101), Welcomed(1))[..1], [Use(1)]);
    let home = ascent.wake(ms(1101));
    assert!(dialed.contains(&Dial(0)) || home.is_some());
    assert_eq!(ascent.step(ms(9000), Welcomed(0)), [Use(0), Leave(1)]);
}

#[test]
fn silence_makes_a_race_in_which_the_parent_may_run_too() {
    let mut ascent = at_home(3);
    let _dials = ascent.step(ms(1000), Silent(0));
    let _dials = ascent.step(ms(1100), Tick);
    // It speaks before anybody else has answered: nothing has happened.
    assert_eq!(ascent.step(ms(1110), Heard(0)), []);
    assert_eq!(ascent.step(ms(1120), Welcomed(1)), [Leave(1)]);
    assert_eq!(ascent.using(), Some(0));
    // It does not: whoever answers first is used, and what it was asked is asked again.
    let _dials = ascent.step(ms(2000), Silent(0));
    assert_eq!(ascent.step(ms(2100), Welcomed(2))[..2], [Use(2), Drop(0)]);
}

#[test]
fn one_whom_nobody_answers_is_stranded_and_goes_on_trying() {
    let mut ascent = at_home(2);
    let _dials = ascent.step(ms(1000), Lost(0));
    let _dials = ascent.step(ms(1100), Tick);
    assert_eq!(ascent.step(ms(2000), Failed(1)), [Strand]);
    assert!(ascent.is_stranded());
    let wake = ascent.wake(ms(2000)).unwrap();
    assert!(!ascent.step(wake, Tick).is_empty());
    assert!(ascent.step(ms(9000), Welcomed(1)).contains(&Use(1)));
    assert!(!ascent.is_stranded());
}

#[test]
fn a_liar_is_left_and_one_that_keeps_lying_never_asked_again() {
    let mut ascent = at_home(2);
    assert_eq!(ascent.step(ms(1000), Lied(0))[0], Drop(0));
    let _dials = ascent.step(ms(1100), Tick);
    assert!(ascent.step(ms(1110), Welcomed(1)).contains(&Use(1)));
    // Not dialed before its time is over, then tried again.
    assert_eq!(ascent.step(ms(30_000), Tick), []);
    assert_eq!(ascent.step(ms(61_100), Tick), [Dial(0)]);
    assert_eq!(ascent.step(ms(61_101), Welcomed(0)), [Use(0), Leave(1)]);
    for now in [ms(70_000), ms(70_001)] {
        let _actions = ascent.step(now, Lied(0));
    }
    let _dials = ascent.step(ms(70_100), Tick);
    let _use = ascent.step(ms(70_110), Welcomed(1));
    assert_eq!(ascent.wake(ms(70_110)), None, "never again");
}

#[test]
fn an_only_source_is_forgiven_twice() {
    let mut ascent = at_home(1);
    assert_eq!(ascent.step(ms(1000), Lied(0)), []);
    assert_eq!(ascent.step(ms(1001), Lied(0)), []);
    assert_eq!(ascent.step(ms(1002), Lied(0)), [Drop(0), Strand]);
}

#[test]
fn one_that_stays_silent_is_given_up_though_nobody_else_answers() {
    let mut ascent = at_home(2);
    let _dials = ascent.step(ms(1000), Silent(0));
    assert_eq!(ascent.step(ms(1050), Tick), [Dial(1)]);
    // It may only be slow, and is kept as long as there is hope.
    assert_eq!(ascent.using(), Some(0));
    assert_eq!(ascent.step(ms(1900), Failed(1)), []);
    let actions = ascent.step(ms(2000), Tick);
    assert!(
        actions.contains(&Drop(0)) && actions.contains(&Strand),
        "{actions:?}"
    );
    assert_eq!(ascent.using(), None);
    // And asked again with the others.
    let dialed = ascent.step(ms(2200), Tick);
    assert!(dialed.contains(&Dial(0)), "{dialed:?}");
    assert!(ascent.step(ms(2300), Welcomed(0)).contains(&Use(0)));
}

#[test]
fn an_only_ancestor_that_speaks_again_in_time_is_kept() {
    let mut ascent = at_home(1);
    assert_eq!(ascent.step(ms(1000), Silent(0)), []);
    assert_eq!(ascent.wake(ms(1000)), Some(ms(2000)));
    assert_eq!(ascent.step(ms(1900), Heard(0)), []);
    assert_eq!(ascent.wake(ms(1900)), None);
    assert_eq!(ascent.step(ms(2500), Tick), []);
}

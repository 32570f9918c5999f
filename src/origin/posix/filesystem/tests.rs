use super::*;

const URI: &str = "file:///data";

fn mount(id: u64) -> MountKey {
    MountKey {
        id: MountId::Unique(id),
        device: (7, 0),
    }
}

fn image(point: &str) -> MountFacts {
    MountFacts {
        identity: Some("uuid ab12".to_owned()),
        is_local: true,
        point: Some(point.into()),
    }
}

#[test]
fn a_local_filesystem_that_replaces_an_identical_one_is_distinct() {
    let mut table = Table::default();
    let first = table.add(URI, mount(1), &image("/data/img"));
    assert_eq!(first.standing, Standing::Lasting);
    assert_eq!(table.add(URI, mount(1), &image("/data/img")), first);
    let second = table.add(URI, mount(2), &image("/data/img"));
    let third = table.add(URI, mount(3), &image("/data/img"));
    assert!(second != first && third != first && third.seed != second.seed);
    assert_eq!(second.standing, Standing::Launch);
    // A reader that holds the first filesystem open still finds it unchanged.
    assert_eq!(table.add(URI, mount(1), &image("/data/img")), first);
    let elsewhere = table.add(URI, mount(4), &image("/data/other"));
    assert_eq!(elsewhere, first, "a bind mount of the same");
}

#[test]
fn a_servers_filesystem_is_the_same_when_it_is_mounted_again() {
    let mut table = Table::default();
    let nfs = MountFacts {
        is_local: false,
        ..image("/data/home")
    };
    let first = table.add(URI, mount(1), &nfs);
    assert_eq!(table.add(URI, mount(2), &nfs), first);
    let other = MountFacts {
        identity: Some("nfs 1:2".to_owned()),
        ..nfs
    };
    assert_ne!(table.add(URI, mount(3), &other).seed, first.seed);
}

#[test]
fn versions_without_identity_or_mount_point_are_valid_for_one_launch() {
    let mut table = Table::default();
    let nameless = MountFacts {
        identity: None,
        ..image("/data/img")
    };
    let first = table.add(URI, mount(1), &nameless);
    assert_eq!(first.standing, Standing::Launch);
    assert_ne!(table.add(URI, mount(2), &nameless), first);
    // Two hosts still agree.
    assert_eq!(Table::default().add(URI, mount(9), &nameless), first);
    let detached = MountFacts {
        point: None,
        ..image("")
    };
    let one = table.add(URI, mount(5), &detached);
    assert_eq!(one.standing, Standing::Launch);
    assert_ne!(table.add(URI, mount(6), &detached), one);
}

#[test]
fn the_path_to_a_filesystem_is_not_part_of_its_seed() {
    let seed = |uri| Table::default().add(uri, mount(1), &image("/x")).seed;
    assert_eq!(seed("file:///data"), seed("file:///data/part"));
}

#[test]
fn full_tables_never_repeat_a_generation() {
    let mut table = Table::default();
    let mut id = 0;
    let mut at = |table: &mut Table, point: &str| {
        id += 1;
        table.add(URI, mount(id), &image(point))
    };
    let first = at(&mut table, "/data/img");
    let second = at(&mut table, "/data/img");
    for number in 0..MOUNTS_MAX.max(POINTS_MAX) {
        at(&mut table, &format!("/data/{number}"));
    }
    assert!(table.mounts.len() <= MOUNTS_MAX && table.points.len() <= POINTS_MAX);
    let later = at(&mut table, "/data/img");
    assert!(later.seed != first.seed && later.seed != second.seed);
}

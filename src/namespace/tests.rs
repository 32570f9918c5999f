use super::*;
use crate::read::{Noted, Part, PartRange};
use crate::testing::{attributes, path};
use copperfs_overlay::{ContentHash, FileKind};

fn file(state: u8, size: u64) -> Attributes {
    attributes(FileKind::File, size, state)
}

fn table() -> InodeTable {
    InodeTable::new(directory(0, 0), u64::MAX / 2)
}

fn directory(state: u8, size: u64) -> Attributes {
    attributes(FileKind::Directory, size, state)
}

fn learn(table: &InodeTable, text: &str, attributes: Attributes) -> u64 {
    let path = path(text);
    let (parent, name) = path.split().unwrap();
    table.learn(&path, table.parent(&parent), name, attributes)
}

#[test]
fn a_version_is_an_inode() {
    let table = table();
    let old = learn(&table, "a/b", file(1, 5));
    let again = learn(&table, "a/b", file(1, 5));
    let new = learn(&table, "a/b", file(2, 5));
    let other = learn(&table, "a/c", file(1, 5));
    assert_eq!(old, again);
    assert_ne!(old, new);
    assert_ne!(old, other);
    assert_eq!(
        table.number_of(&path("a/b"), Version::from_data([1; 16])),
        old
    );
}

#[test]
fn an_inode_lives_until_the_last_reference_is_forgotten() {
    let table = table();
    let number = learn(&table, "f", file(1, 5));
    learn(&table, "f", file(1, 5));
    assert!(!table.forget(number, 1));
    assert!(table.get(number).is_some());
    assert!(table.forget(number, 1));
    assert!(table.get(number).is_none());
    assert!(!table.forget(ROOT, 1000));
    assert!(table.get(ROOT).is_some());
}

#[test]
fn forgetting_an_old_version_keeps_the_new_ones_number() {
    let table = table();
    let old = learn(&table, "f", directory(1, 5));
    let new = learn(&table, "f", directory(2, 5));
    table.forget(old, 1);
    assert_eq!(table.number_at(&path("f")), Some(new));
    table.forget(new, 1);
    assert_eq!(table.number_at(&path("f")), None);
}

#[test]
fn a_push_is_claimed_once_per_life() {
    let table = table();
    let number = learn(&table, "a", file(1, 60));
    assert!(table.claim_push(number));
    assert!(!table.claim_push(number));
    table.invalidated(number);
    assert!(table.claim_push(number));
    table.forget(number, 1);
    assert!(!table.claim_push(number), "unknown");
    learn(&table, "a", file(1, 60));
    assert!(table.claim_push(number));
}

#[test]
fn a_cleared_directory_takes_new_attributes_of_its_own_version_only() {
    let table = table();
    let number = learn(&table, "d", directory(1, 5));
    table.invalidated(number);
    assert!(table.is_outdated(number));
    let other = table.renew(number, directory(2, 6)).unwrap();
    assert_eq!(other.attributes.size, 5);
    let renewed = table.renew(number, directory(1, 6)).unwrap();
    assert_eq!(renewed.attributes.size, 6);
    assert!(!table.is_outdated(number));
}

#[test]
fn paths_below_are_matched_by_components() {
    let table = table();
    learn(&table, "mnt3/a", file(1, 5));
    learn(&table, "mnt3x", file(1, 5));
    assert_eq!(table.below(&path("mnt3")).len(), 1);
    assert_eq!(table.below(&ItemPath::root()).len(), 3);
}

/// Acts as the kernel: forgets all inodes that it is told to drop, except those in `used`.
fn obey(table: &InodeTable, used: &[u64]) {
    while table.is_pruning_due() {
        let condemned = table.condemned(512);
        if condemned.is_empty() {
            break;
        }
        for number in condemned {
            if !used.contains(&number) {
                table.forget(number, 1);
            }
        }
    }
}

#[test]
fn inodes_stay_within_their_bound_and_the_oldest_go() {
    let bytes_max = 256 << 10;
    let table = InodeTable::new(directory(0, 0), bytes_max);
    let used = learn(&table, "used", file(1, 5));
    let mut last = 0;
    for i in 0..20_000 {
        last = learn(&table, &format!("d/{i}"), file(1, 5));
        obey(&table, &[used]);
        assert!(table.stats().bytes <= bytes_max + 64 * 512, "{i}");
    }
    let stats = table.stats();
    assert!(!table.is_full());
    assert!(stats.pruned > 18_000 && stats.entries > 500, "{stats:?}");
    assert!(table.contains(used), "what the kernel uses stays");
    assert!(table.contains(last) && table.contains(ROOT));
    assert!(
        table.order.len() as u64 <= 2 * stats.entries + 2048,
        "places of those that went are given up"
    );
}

#[test]
fn a_smaller_bound_has_the_kernel_drop_inodes_at_once() {
    let table = table();
    let numbers: Vec<u64> = (0..2000)
        .map(|i| learn(&table, &format!("d/{i}"), file(1, 5)))
        .collect();
    assert!(!table.is_pruning_due());
    let before = table.stats();
    table.set_bytes_max(before.bytes / 4);
    assert!(table.is_pruning_due() && table.is_full());
    obey(&table, &numbers[..10]);
    let after = table.stats();
    assert!(after.bytes <= before.bytes / 4 + 64 * 512, "{after:?}");
    assert!(after.entries > 100, "not more than asked: {after:?}");
    assert!(numbers[..10].iter().all(|number| table.contains(*number)));
    table.set_bytes_max(before.bytes);
    for number in &numbers {
        assert_eq!(table.get(*number).is_some(), table.contains(*number));
    }
    assert!(!table.is_full());
}

#[test]
fn the_charge_goes_with_the_inode() {
    let table = table();
    let before = table.stats().bytes;
    let link = Attributes {
        kind: FileKind::Symlink,
        link_target: Some(Bytes::from_static(b"elsewhere")),
        ..file(1, 9)
    };
    let link = learn(&table, "d/link", link);
    let large = learn(&table, "d/large", file(1, 1 << 30));
    let sub = learn(&table, "d/sub", directory(1, 0));
    let learned = table.stats().bytes;
    let kept = table.get_to_read(large).unwrap();
    let again = table.get_to_read(large).unwrap();
    assert!(Arc::ptr_eq(&kept, &again), "all READs share one");
    assert!(table.stats().bytes > learned, "and it is charged");
    table.renew(large, file(1, 1 << 29));
    assert_eq!(table.get(large).unwrap().file.size, 1 << 29);
    table.invalidated(sub);
    for number in [link, large, sub] {
        table.forget(number, 1);
    }
    // A pending READ holds its ledger.
    drop((kept, again));
    assert_eq!(table.stats().bytes, before);
}

#[test]
fn one_that_was_asked_for_lately_goes_later() {
    let table = InodeTable::new(directory(0, 0), 1);
    let first = learn(&table, "a", file(1, 5));
    let second = learn(&table, "b", file(1, 5));
    for i in 0..DUE_MIN {
        learn(&table, &format!("c{i}"), file(1, 5));
    }
    assert!(table.get(first).is_some());
    let condemned = table.condemned(2);
    assert!(condemned.contains(&second) && !condemned.contains(&first));
}

#[test]
fn an_inode_has_its_learned_attributes() {
    let table = table();
    let device = Attributes {
        kind: FileKind::CharDevice,
        device: 0x0103,
        uid: 7,
        content: Some(ContentHash([9; 32])),
        ..file(3, 77)
    };
    let number = learn(&table, "dev/null", device.clone());
    let inode = table.get(number).unwrap();
    assert_eq!(inode.attributes, device);
    assert_eq!(inode.path(), &path("dev/null"));
    assert_eq!(inode.file.content, device.content);
    let sub = learn(&table, "d", directory(1, 4));
    assert_eq!(table.get(sub).unwrap().path(), &path("d"));
    assert_eq!(table.number_at(&path("d")), Some(sub));
    assert_eq!(
        table.entry(number),
        Some((path("dev"), Bytes::from_static(b"null")))
    );
    assert_eq!(table.entry(ROOT), None);
    assert_eq!(table.below(&path("dev/null")), [number]);
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

#[test]
fn a_name_costs_no_more_than_it_is_charged() {
    let before = resident();
    let table = table();
    // As in the front: names share the path of their directory's inode.
    let sub = learn(&table, "directory", directory(1, 0));
    let parent = table.get(sub).unwrap();
    for i in 0..200_000 {
        let name = format!("sample-{i:08}.jpg");
        let path = parent.path().join(name.as_bytes()).unwrap();
        table.learn(&path, (&*parent).into(), name.as_bytes(), file(1, 5));
    }
    let (grown, charged) = (resident() - before, table.stats().bytes);
    assert!(grown <= charged, "{grown} bytes for {charged}");
}

fn changed(data: u8, change: u8) -> Attributes {
    Attributes {
        version: Version::from_data([data; 16]).with_change([change; 8]),
        ..file(data, 5)
    }
}

fn part() -> Part {
    Part {
        range: PartRange::Block(0),
        hash: ContentHash([7; 32]),
    }
}

#[test]
fn a_status_change_of_an_unread_file_leaves_its_number() {
    let table = table();
    for opened in [false, true] {
        let name = if opened { "opened" } else { "known" };
        let number = learn(&table, name, changed(1, 1));
        let reading = opened.then(|| table.get_to_read(number).unwrap());
        assert_eq!(learn(&table, name, changed(1, 2)), number);
        let new = table.get_to_read(number).unwrap();
        assert_eq!(new.file.version, changed(1, 2).version);
        assert_eq!(table.number_of(&new.file.path, new.file.version), number);
        if let Some(old) = reading {
            let noted = old.given.note(&[part()]);
            assert_eq!(noted, Noted::Frozen, "bytes of the old version in hand");
        }
        assert_eq!(new.given.note(&[part()]), Noted::Yes);
        let other = learn(&table, name, changed(1, 3));
        assert_ne!(other, number, "given out and not compared");
        assert_eq!(table.number_of(&path(name), changed(1, 3).version), other);
        let replaced = learn(&table, name, changed(2, 3));
        assert!(replaced != other && replaced != number, "other data");
        assert!(table.forget(number, 2) && table.forget(other, 1) && table.forget(replaced, 1));
    }
}

#[test]
fn renewed_attributes_do_not_change_returned_inodes() {
    let table = table();
    let number = learn(&table, "f", changed(1, 1));
    let old = table.get_to_read(number).unwrap();
    assert_eq!(old.given.note(&[part()]), Noted::Yes);
    let touched = Attributes {
        links: 2,
        ..changed(1, 1)
    };
    let renewed = table.renew(number, touched).unwrap();
    assert_eq!(renewed.attributes.links, 2);
    assert!(renewed.given.is(&old.given));
    let stays = table.renew(number, changed(1, 2)).unwrap();
    assert_eq!(stays.file.version, old.file.version);
}

#[test]
fn a_compared_file_moves_on_with_its_returned_bytes() {
    let table = table();
    let number = learn(&table, "f", changed(1, 1));
    let old = table.get_to_read(number).unwrap();
    assert_eq!(old.given.note(&[part()]), Noted::Yes);
    let account = old.given.freeze();
    let new = table.move_on(&old, changed(1, 2), account.clone()).unwrap();
    assert_eq!(new.number, number);
    assert_eq!(new.given.freeze(), account);
    let again = table.move_on(&old, changed(1, 3), account).unwrap();
    assert_eq!(again.file.version, new.file.version, "not twice from one");
    assert_eq!(learn(&table, "f", changed(1, 2)), number);
}

#[test]
fn ledgers_count_against_the_bound_while_they_live() {
    let table = table();
    let number = learn(&table, "f", file(1, 1 << 30));
    let before = table.stats().bytes;
    let inode = table.get_to_read(number).unwrap();
    for index in 0..1000 {
        let range = PartRange::Block(index);
        assert_eq!(inode.given.note(&[Part { range, ..part() }]), Noted::Yes);
    }
    assert!(table.stats().bytes > before + 24_000);
    drop(inode);
    table.forget(number, 1);
    let root = table.stats().bytes;
    learn(&table, "f", file(1, 1 << 30));
    assert_eq!(table.stats().bytes, before);
    assert!(root < before);
}

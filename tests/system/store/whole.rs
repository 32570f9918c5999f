//! Passthrough opens over a store: the kernel reads the store's own file.

use super::{Place, SOON, bytes_of, kept};
use crate::skip;
use crate::support::fixture::{files_below, noise};
use crate::support::kernel::{forget_pages, has_no_passthrough, passed_through};
use crate::support::{Scratch, eventually, is_root};
use std::fs;
use std::os::unix::fs::FileExt;

const SIZE: usize = 5_000_000;

fn place() -> Place {
    let origin = Scratch::new();
    origin.file("file", noise(1, SIZE));
    for number in 0..16 {
        origin.file(&format!("others/f{number}"), noise(100 + number, 1_500_000));
    }
    Place::of(origin)
}

fn read_all(file: &fs::File) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// The kernel reads the store's own file. After a restart that file is checked before the kernel gets it again, so a file
/// that was changed meanwhile is never served.
#[test]
fn a_passed_through_file_is_the_stores_own_and_is_checked_after_a_restart() {
    if !is_root() {
        skip!("needs root");
    }
    if has_no_passthrough() {
        return;
    }
    let place = place();
    let content = noise(1, SIZE);
    let mount = place.mount(&["--open", "passthrough"]);
    let open = passed_through(&mount, "file");
    assert!(read_all(&open) == content);
    let wholes = files_below(&place.disk().join("whole"));
    assert_eq!(wholes.len(), 1);
    assert!(fs::read(&wholes[0]).unwrap() == content);
    assert!(
        files_below(&place.disk().join("content")).is_empty(),
        "its blocks lie in it"
    );

    // A changed byte in the store's file shows that the kernel reads that file.
    let flip = |at: u64| {
        let whole = fs::File::options().read(true).write(true).open(&wholes[0]);
        let whole = whole.unwrap();
        let mut byte = [0];
        whole.read_exact_at(&mut byte, at).unwrap();
        whole.write_all_at(&[byte[0] ^ 1], at).unwrap();
    };
    flip(4_000_000);
    assert_eq!(read_all(&open)[4_000_000], content[4_000_000] ^ 1);
    drop(open);
    mount.unmount();

    let again = place.mount(&["--open", "passthrough"]);
    for _ in 0..3 {
        assert!(fs::read(again.path("file")).unwrap() == content);
    }
    let open = passed_through(&again, "file");
    assert!(read_all(&open) == content);
    let stats = again.stats();
    assert!(stats.get("disk.damaged") >= 1);
    drop(open);
    again.unmount();

    // Undamaged it comes from the disk alone, and is passed through.
    let whole = place.mount(&["--open", "passthrough"]);
    let open = passed_through(&whole, "file");
    assert!(read_all(&open) == content);
    let stats = whole.stats();
    assert_eq!(stats.get("origin.read_bytes"), 0);
    assert_eq!(stats.get("disk.damaged"), 0);
}

/// A file that is evicted while it is open can still be read, and counts until it is closed.
#[test]
fn an_evicted_open_file_is_read_on_and_counted_until_it_is_closed() {
    if !is_root() {
        skip!("needs root");
    }
    if has_no_passthrough() {
        return;
    }
    let mut place = place();
    place.size = "16MiB";
    let content = noise(1, SIZE);
    let flags = ["--open", "passthrough", "--eviction", "lru"];
    let mount = place.mount(&flags);
    let open = passed_through(&mount, "file");
    for number in 0..16 {
        let bytes = fs::read(mount.path(format!("others/f{number}"))).unwrap();
        assert!(bytes == noise(100 + number, 1_500_000), "{number}");
    }
    let lies_there = || {
        files_below(&place.disk().join("whole"))
            .iter()
            .any(|file| fs::metadata(file).unwrap().len() == SIZE as u64)
    };
    eventually(SOON, "it is evicted", || !lies_there());
    kept(&mount);
    // Content files take whole disk blocks, which this allows for.
    let slack = 16 * 4096;
    let counted = mount.stats().get("disk.bytes");
    let there = bytes_of(&place.contents());
    assert!(
        counted >= there + SIZE as u64 && counted <= there + SIZE as u64 + slack,
        "{counted} are counted, {there} lie there"
    );
    assert!(counted <= (16 << 20), "{counted}: more than it may take");
    forget_pages(&open);
    assert!(read_all(&open) == content, "who has it open reads on");
    drop(open);
    eventually(SOON, "it does not count any more", || {
        mount.stats().get("disk.bytes") <= bytes_of(&place.contents()) + slack
    });
}

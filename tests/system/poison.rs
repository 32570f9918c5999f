//! A request that kills daemons is answered EIO, and the others are not.

use crate::silent_files::{BYTES, SilentFiles};
use crate::skip;
use crate::support::datasets::SOON;
use crate::support::takeover::Followed;
use crate::support::{Scratch, errno, eventually, is_root, within};
use rustix::io::Errno;
use std::fs;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

fn read(file: &Path) -> JoinHandle<std::io::Result<Vec<u8>>> {
    let file = file.to_owned();
    std::thread::spawn(move || fs::read(file))
}

/// Each of four daemons dies while it handles a READ, the last two while they try the READ by itself. The request fails;
/// others that two daemons had in hand when they died are answered.
#[test]
fn a_request_that_kills_four_daemons_fails_and_no_other() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let silent = SilentFiles::mount(&origin.dir("silent")).unwrap();
    // Storage does not answer while a request is to be in hand.
    let flags = ["--request-timeout", "5m"];
    let mut followed = Followed::start(origin.path(), &flags);
    let point = followed.point.clone();
    let in_hand = |followed: &Followed, count: u64| {
        eventually(SOON, "storage is asked", || {
            followed.mount.stats().get("origin.opens") == count
        });
    };
    let poison = point.join("silent/one/0001");
    let dying = read(&poison);
    in_hand(&followed, 1);
    followed.kill();
    in_hand(&followed, 2);
    followed.kill();
    let innocent = read(&point.join("silent/one/0002"));
    for trial in 1..=2 {
        let trials = || followed.log().matches("is tried by itself").count();
        eventually(SOON, "a trial", || trials() == trial);
        followed.kill();
    }
    let failed = within(Duration::from_secs(30), move || {
        errno(dying.join().unwrap())
    });
    assert_eq!(failed, Errno::IO, "{}", followed.log());
    let log = followed.log();
    assert!(
        log.contains("poison: ") && log.contains("silent/one/0001"),
        "{log}"
    );
    // Others that ask for it do not kill the daemon again.
    assert_eq!(errno(fs::read(&poison)), Errno::IO);
    let stats = followed.mount.stats();
    assert_eq!(stats.get("takeover.daemons_before"), 4);
    assert!(stats.get("takeover.poison_requests") >= 2, "{stats:?}");
    silent.answer();
    assert_eq!(innocent.join().unwrap().unwrap().len(), BYTES);
    let last = followed.last;
    assert_eq!(
        fs::read(point.join("silent/one/0003")).unwrap().len(),
        BYTES
    );
    assert_eq!(followed.last, last);
    followed.end();
}

//! `--memory` bounds the names that the kernel holds, too.

use crate::skip;
use crate::support::kernel::most_memory;
use crate::support::{Mount, Scratch, is_root, sh};
use rustix::process::Pid;
use std::fs;

const MIB: u64 = 1 << 20;

/// More names than there is room for: the kernel is told to drop old ones, and names in use stay.
#[test]
fn names_count_against_the_memory_and_old_ones_are_dropped() {
    if !is_root() {
        skip!("needs root");
    }
    const NAMES: u64 = 120_000;
    let origin = Scratch::new();
    origin.file("first/open", "still open");
    const MAKE: &str = "cd \"$1\"; for d in {0..59}; do mkdir d$d; done
        seq 0 119999 | awk '{print \"d\" $1 % 60 \"/file-of-some-length-\" $1}' | xargs touch";
    sh(MAKE, &[&origin.path()]);
    origin.settle();
    let mount = Mount::with(origin.path(), &["--memory", "16MiB", "--push=off"]);
    let open = fs::File::open(mount.path("first/open")).unwrap();
    let native = sh(
        "cd \"$1\"; find . -printf '%s\\n' | wc -l",
        &[&origin.path()],
    );
    // The working directory is in the mount, so it is in use and stays.
    let found = sh(
        "cd \"$1/first\"; find .. -printf '%s\\n' | wc -l; pwd -P > /dev/null",
        &[&mount.node.point],
    );
    assert_eq!(found, native);
    let stats = mount.stats();
    let (names, bytes) = (
        stats.get("inodes.software.entries"),
        stats.get("inodes.software.bytes"),
    );
    let pruned = stats.get("inodes.software.pruned");
    // A tenth of the memory, and an eighth of that.
    assert!(
        bytes <= 16 * MIB / 10 * 9 / 8,
        "{bytes} B for {names} names"
    );
    assert!(pruned >= NAMES * 9 / 10, "{pruned} of {NAMES} dropped");
    let pid = Pid::from_raw(i32::try_from(stats.get("pid")).unwrap()).unwrap();
    let most = most_memory(pid);
    assert!(most <= (16 + 32) * MIB, "{} MiB", most / MIB);
    assert_eq!(std::io::read_to_string(open).unwrap(), "still open");
    assert_eq!(
        fs::metadata(mount.path("d7/file-of-some-length-67"))
            .unwrap()
            .len(),
        0
    );
}

//! The data mount: the same files a second time, where every open is seen.

use crate::skip;
use crate::support::fixture::noise;
use crate::support::kernel::{KernelCache, kernel_is_before, mount_at};
use crate::support::mount::Node;
use crate::support::{
    Mount, Scratch, Tree, check, copperfs, errno, eventually, is_root, python, run, within,
};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A daemon with both mounts; the data mount goes with its guard, whatever became of the daemon.
struct Both {
    mount: Option<Mount>,
    data: PathBuf,
    scratch: Scratch,
}

impl Both {
    #[track_caller]
    fn of(origin: &Path, flags: &[&str]) -> Self {
        let scratch = Scratch::new();
        scratch.dir("mnt");
        let data = scratch.dir("data");
        let mut both = Self {
            mount: None,
            data,
            scratch,
        };
        both.mount(origin, flags);
        both
    }

    #[track_caller]
    fn mount(&mut self, origin: &Path, flags: &[&str]) {
        let served = format!("/=file://{}", origin.display());
        let mut command = copperfs(["mount", "--origin", &served, "--data-mount"]);
        command.arg(&self.data).args(flags);
        self.mount = None;
        self.mount = Some(Mount::at(&self.scratch.path().join("mnt"), &mut command));
    }

    fn node(&self) -> &Node {
        &self.mount.as_ref().unwrap().node
    }

    fn data(&self, inside: &str) -> PathBuf {
        self.data.join(inside)
    }

    fn software(&self, inside: &str) -> PathBuf {
        self.node().point.join(inside)
    }

    fn counted(&self, key: &str) -> u64 {
        self.node().stats().get(key)
    }

    #[track_caller]
    fn assert_nothing_left(&self) {
        assert!(!self.node().is_mounted(), "the software mount is there");
        assert!(mount_at(&self.data).is_none(), "the data mount is there");
        assert!(!self.node().is_alive(), "the daemon runs on");
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        drop(self.mount.take());
        if mount_at(&self.data).is_some() {
            eprintln!("the data mount was left behind");
            drop(Command::new("umount").arg("-l").arg(&self.data).status());
        }
    }
}

fn origin() -> Scratch {
    let origin = Scratch::new();
    for number in 0..20 {
        origin.file(&format!("set/f{number}"), noise(number, 20_000));
    }
    origin.file("large", noise(99, (3 << 20) + 5));
    origin.settle();
    origin
}

/// Both mounts show the same tree: names, bytes, inode numbers; read-only, and without push.
#[test]
fn both_mounts_show_the_same_files() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let both = Both::of(origin.path(), &[]);
    check(
        Command::new("diff")
            .arg("-r")
            .arg(both.software(""))
            .arg(&both.data),
    );
    check(
        Command::new("diff")
            .arg("-r")
            .arg(origin.path())
            .arg(&both.data),
    );
    let numbers = |path: PathBuf| fs::metadata(path).unwrap().ino();
    assert_eq!(
        numbers(both.software("set/f3")),
        numbers(both.data("set/f3"))
    );
    let (options, kind) = mount_at(&both.data).unwrap();
    assert_eq!(kind, "fuse.copperfs");
    for option in ["ro", "nosuid", "nodev"] {
        assert!(options.split(',').any(|word| word == option), "{options}");
    }
    assert_eq!(errno(File::create(both.data("new"))), Errno::ROFS);
    assert_eq!(both.counted("data_mount.mounted"), 1);
    assert_eq!(both.counted("data_mount.lost"), 0);
}

/// Opens of the data mount are seen and counted, those of the software mount are not; a second read is
/// answered by the page cache, and counted as such.
#[test]
fn opens_of_the_data_mount_are_counted() {
    if !is_root() {
        skip!("needs root");
    }
    let _cache = KernelCache::undisturbed();
    let origin = origin();
    let both = Both::of(origin.path(), &[]);
    fs::read(both.software("set/f1")).unwrap();
    for key in [
        "fuse.data.requests.open",
        "fuse.data.requests.release",
        "fuse.data.requests.read",
        "fuse.data.read_bytes",
    ] {
        assert_eq!(
            both.counted(key),
            0,
            "{key} after a read of the software mount"
        );
    }
    let before = both.node().stats();
    for _ in 0..3 {
        assert_eq!(fs::read(both.data("set/f1")).unwrap(), noise(1, 20_000));
    }
    eventually(Duration::from_secs(5), "the closes are seen", || {
        both.counted("fuse.data.requests.release") == 3
    });
    assert_eq!(both.counted("fuse.data.requests.open"), 3);
    assert_eq!(
        both.counted("data_mount.dataset_opens"),
        0,
        "there is no dataset"
    );
    assert_eq!(both.counted("fuse.data.read_bytes"), 20_000);
    assert_eq!(both.counted("data_mount.cached_opens"), 2);
    assert!(both.counted("fuse.data.messages") >= 7);
    let after = both.node().stats();
    for operation in ["lookup", "open", "read", "release"] {
        let key = format!("fuse.software.requests.{operation}");
        assert_eq!(after.since(&before, &key), 0, "{key} of the software mount");
    }
    assert_eq!(after.since(&before, "push.software.files"), 0);
}

/// With the page cache off every read reaches the daemon, and files can be mapped all the same.
#[test]
fn without_the_page_cache_every_read_reaches_the_daemon() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let both = Both::of(origin.path(), &["--page-cache=false"]);
    for turn in 1..=5 {
        assert_eq!(fs::read(both.data("set/f2")).unwrap(), noise(2, 20_000));
        assert_eq!(both.counted("fuse.data.read_bytes"), turn * 20_000);
    }
    eventually(Duration::from_secs(5), "the closes are seen", || {
        both.counted("fuse.data.requests.release") == 5
    });
    assert_eq!(both.counted("data_mount.cached_opens"), 0);
    let before = both.counted("fuse.data.requests.read");
    let file = File::open(both.data("large")).unwrap();
    let mut some = [0; 100];
    for _ in 0..10 {
        file.read_exact_at(&mut some, 1 << 20).unwrap();
        assert_eq!(some[..], noise(99, (3 << 20) + 5)[1 << 20..][..100]);
    }
    assert_eq!(both.counted("fuse.data.requests.read") - before, 10);
    let script = "import mmap, sys\n\
        whole = open(sys.argv[2], 'rb').read()\n\
        for kind in sys.argv[3:]:\n\
        \x20   flags = getattr(mmap, kind)\n\
        \x20   with open(sys.argv[1], 'rb') as f:\n\
        \x20       m = mmap.mmap(f.fileno(), 0, flags=flags, prot=mmap.PROT_READ)\n\
        \x20       assert m[:] == whole == f.read()\n";
    let at_origin = origin.path().join("large");
    let all = ["MAP_PRIVATE", "MAP_SHARED"];
    let old = kernel_is_before((6, 6), "maps no file shared that it reads directly");
    let kinds = if old { &all[..1] } else { &all[..] };
    check(
        python()
            .args(["-c", script])
            .arg(both.data("large"))
            .arg(at_origin)
            .args(kinds),
    );
    // The software mount keeps its page cache.
    let _cache = KernelCache::undisturbed();
    fs::read(both.software("set/f3")).unwrap();
    crate::support::stats::undisturbed(both.node(), || {
        fs::read(both.software("set/f3")).unwrap();
    });
}

/// A clear asked for on either mount reaches the kernel's caches of both, also over the cluster.
#[test]
fn clear_reaches_both_mounts() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let both = Both::of(origin.path(), &[]);
    let shown = |text: &str| {
        for path in [both.software("set/f0"), both.data("set/f0")] {
            assert_eq!(
                fs::read_to_string(&path).unwrap(),
                text,
                "{}",
                path.display()
            );
        }
    };
    let mut asks: Vec<(&str, Vec<&str>, &Path)> = Vec::new();
    for point in [both.node().point.as_path(), &both.data] {
        asks.push(("here", vec!["clear", "--everything", "--this-node"], point));
        asks.push(("everywhere", vec!["clear", "--everything"], point));
    }
    origin.file("set/f0", "before");
    origin.settle();
    check(copperfs(["clear", "--everything"]).arg(&both.data));
    shown("before");
    for (number, (which, command, point)) in asks.into_iter().enumerate() {
        let text = format!("text {number} {which}");
        origin.file("set/f0", &text);
        origin.file(&format!("set/new{number}"), "x");
        origin.settle();
        assert!(!both.data(&format!("set/new{number}")).exists());
        check(copperfs(command).arg(point));
        shown(&text);
        assert!(both.data(&format!("set/new{number}")).exists());
        assert!(both.software(&format!("set/new{number}")).exists());
    }
    let pid = |point: &Path| {
        let said = check(copperfs(["stats", "--json"]).arg(point));
        let stats: serde_json::Value = serde_json::from_str(&said).unwrap();
        stats["pid"].as_u64().unwrap()
    };
    assert_eq!(pid(&both.data), pid(&both.node().point));
}

/// `unmount` accepts either mount point, and removes both mounts. If one of them is in use, it needs
/// `--force`.
#[test]
fn unmount_of_either_takes_both_away() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let mut both = Both::of(origin.path(), &[]);
    check(copperfs(["unmount"]).arg(&both.data));
    both.assert_nothing_left();
    for used in [false, true] {
        both.mount(origin.path(), &[]);
        let held = used.then(|| File::open(both.data("set/f1")).unwrap());
        let point = both.node().point.clone();
        if used {
            let refused = run(copperfs(["unmount"]).arg(&point));
            assert!(refused.refused().contains("open file"), "{refused:?}");
            assert!(both.node().is_alive() && mount_at(&both.data).is_some());
        }
        check(copperfs(["unmount", "--force"]).arg(&point));
        both.assert_nothing_left();
        drop(held);
    }
    both.mount(origin.path(), &[]);
    check(Command::new("umount").arg(&both.node().point));
    eventually(Duration::from_secs(10), "the daemon ends", || {
        !both.node().is_alive()
    });
    both.assert_nothing_left();
}

/// A data mount that is taken away alone is told of; the software mount goes on.
#[test]
fn a_data_mount_taken_away_alone_is_told_of() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let both = Both::of(origin.path(), &[]);
    fs::read(both.data("set/f1")).unwrap();
    check(Command::new("umount").arg(&both.data));
    eventually(Duration::from_secs(10), "it is noticed", || {
        both.counted("data_mount.lost") == 1
    });
    assert_eq!(both.counted("data_mount.mounted"), 0);
    assert_eq!(fs::read(both.software("set/f5")).unwrap(), noise(5, 20_000));
    let said = check(copperfs(["status"]).arg(&both.node().point));
    assert!(said.contains("no data mount any more"), "{said}");
    assert!(both.node().log().contains("the data mount is gone"));
    check(copperfs(["unmount"]).arg(&both.node().point));
    both.assert_nothing_left();
}

/// What a killed daemon leaves is taken away by the next mount, or by `unmount`.
#[test]
fn both_mounts_of_a_killed_daemon_are_cleaned() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let mut both = Both::of(origin.path(), &[]);
    let kill = |both: &Both| {
        both.node().kill();
        eventually(Duration::from_secs(10), "it is dead", || {
            !both.node().is_alive()
        });
        let data = both.data.clone();
        let gone = within(Duration::from_secs(10), move || fs::read_dir(data));
        // Aborted: the request was in progress when the daemon's last thread ended.
        let said = errno(gone.map(drop));
        assert!(
            matches!(said, Errno::NOTCONN | Errno::CONNABORTED),
            "{said}"
        );
    };
    kill(&both);
    // Not through the guard, which would unmount first.
    let served = format!("/=file://{}", origin.path().display());
    let mut again = copperfs(["mount", "--origin", &served]);
    let again = Mount::at(&both.scratch.path().join("mnt"), &mut again);
    assert!(
        mount_at(&both.data).is_none(),
        "a mount without a data mount clears the old one away"
    );
    again.unmount();
    both.mount(origin.path(), &[]);
    kill(&both);
    check(copperfs(["unmount"]).arg(&both.node().point));
    both.assert_nothing_left();
}

/// An impossible data mount is refused with the reason, and no mount or process remains.
#[test]
fn data_mounts_that_cannot_be_are_refused() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let scratch = Scratch::new();
    let point = scratch.dir("mnt");
    scratch.file("full/file", "x");
    scratch.dir("empty");
    std::os::unix::fs::symlink(&point, scratch.path().join("link")).unwrap();
    let served = format!("/=file://{}", origin.path().display());
    for (place, why) in [
        ("mnt", "neither within the other"),
        ("mnt/data", "neither within the other"),
        ("link", "neither within the other"),
        (".", "neither within the other"),
        ("full", "is not empty"),
    ] {
        for foreground in [false, true] {
            let mut mount = copperfs(["mount", "--origin", &served, "--data-mount"]);
            mount.arg(scratch.path().join(place));
            if foreground {
                mount.arg("--foreground");
            }
            let refused = run(mount.arg(&point));
            assert!(refused.refused().contains(why), "{place}: {refused:?}");
            assert!(mount_at(&point).is_none(), "{place}: a mount stays behind");
        }
    }
}

/// The node serves neither of its own mounts.
#[test]
fn a_data_mount_is_not_served() {
    if !is_root() {
        skip!("needs root");
    }
    let scratch = Scratch::new();
    scratch.file("file", "content");
    let (point, data) = (scratch.dir("mnt"), scratch.dir("data"));
    let served = format!("/=file://{}", scratch.path().display());
    let mut mount = copperfs(["mount", "--origin", &served, "--data-mount"]);
    let mount = Mount::at(&point, mount.arg(&data));
    for top in [&point, &data] {
        assert_eq!(fs::read_to_string(top.join("file")).unwrap(), "content");
        for own in ["data/file", "mnt/file"] {
            assert!(!top.join(own).exists(), "{own} below {}", top.display());
        }
    }
    mount.unmount();
    assert!(mount_at(&data).is_none());
}

/// Every node of a launch has its own, and they go with the launch.
#[test]
fn a_launch_has_a_data_mount_a_node() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let base = Scratch::new();
    let data = base.path().join("data");
    let flags = ["--data-mount", data.to_str().unwrap()];
    let tree = Tree::launch(2, 1, origin.path(), &flags);
    for rank in 0..2 {
        let path = data.join(rank.to_string()).join("set/f4");
        assert_eq!(fs::read(path).unwrap(), noise(4, 20_000));
        assert_eq!(tree.nodes[rank].stats().get("fuse.data.requests.open"), 1);
    }
    let (_, total) = tree.nodes[1].cluster_stats();
    assert_eq!(total.get("data_mount.mounted"), 2);
    check(copperfs(["unmount", "--all"]).arg(tree.base()));
    for rank in 0..2 {
        assert!(mount_at(&data.join(rank.to_string())).is_none());
        assert!(!tree.nodes[rank].is_alive());
    }
}

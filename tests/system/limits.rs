//! Large things, deep things, and nodes that stop in the middle.

use crate::skip;
use crate::support::fixture::noise;
use crate::support::kernel::has_no_passthrough;
use crate::support::mount::Node;
use crate::support::{Mount, Scratch, Tree, check, eventually, is_root, sh, within};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// Offsets beyond 32 bits, in files that are almost all hole.
#[test]
fn files_of_many_gigabytes_read_at_any_offset() {
    if !is_root() {
        skip!("needs root");
    }
    const SIZE: u64 = 9 << 30;
    let origin = Scratch::new();
    let places = [
        0,
        (2 << 30) - 3,
        (4 << 30) - 5,
        (4 << 30) + (1 << 20),
        SIZE - 7,
    ];
    origin.hole("huge", SIZE, &places);
    origin.settle();
    let tree = Tree::launch(2, 1, origin.path(), &["--whole-file-max", "1MiB"]);
    for node in tree.nodes.iter().rev() {
        let mounted = fs::File::open(node.point.join("huge")).unwrap();
        Scratch::check_hole(&mounted, SIZE, &places);
    }
}

/// Deep directories work as deep as the origin's, up to the longest path that a request carries;
/// beyond it is an error, and the daemon lives.
#[test]
fn deep_directories() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    const MAKE: &str = "cd \"$1\"; name=$(printf 'd%.0s' {1..100})
        for level in {1..60}; do mkdir \"$name\"; cd \"$name\"; echo $level > file; done";
    sh(MAKE, &[&origin.path()]);
    let mount = Mount::of(origin.path());
    const WALK: &str = "cd \"$1\"; name=$(printf 'd%.0s' {1..100}); depth=0
        for level in {1..60}; do
            cd \"$name\" 2>/dev/null || break
            [ \"$(cat file)\" = $level ] || break
            depth=$level
        done; echo $depth";
    let native: u32 = sh(WALK, &[&origin.path()]).trim().parse().unwrap();
    assert_eq!(native, 60);
    let depth: u32 = sh(WALK, &[&mount.node.point]).trim().parse().unwrap();
    eprintln!("{depth} levels of 100 bytes");
    // A path of 4,000 bytes is the longest that programs can name at once.
    assert!(depth >= 39, "{depth} levels");
    assert!(mount.is_alive());
}

/// O_DIRECT, small and odd reads, and reads in any order give the same bytes.
#[test]
fn reads_of_any_shape() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let content = noise(4, (5 << 20) + 123);
    origin.file("file", &content);
    for (mode, whole) in [
        ("zero-message", "64MiB"),
        ("zero-message", "1MiB"),
        ("tracked", "64MiB"),
        ("passthrough", "1MiB"),
    ] {
        if mode == "passthrough" && has_no_passthrough() {
            continue;
        }
        let mount = Mount::with(origin.path(), &["--open", mode, "--whole-file-max", whole]);
        let path = mount.path("file");
        let direct = sh(
            "dd if=\"$1\" iflag=direct bs=256K status=none | md5sum",
            &[&path],
        );
        let native = sh("md5sum < \"$1\"", &[&origin.path().join("file")]);
        assert_eq!(direct, native, "{mode}");
        let file = fs::File::open(&path).unwrap();
        let mut place = 1_u64;
        for length in [1, 2, 511, 4096, 4097, 70_000, 1 << 20, 3 << 20] {
            for _ in 0..6 {
                place = place
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(99);
                let offset = (place >> 20) % (content.len() as u64 + 5000);
                let mut piece = vec![0; length];
                let mut filled = 0;
                while filled < length {
                    match file
                        .read_at(&mut piece[filled..], offset + filled as u64)
                        .unwrap()
                    {
                        0 => break,
                        count => filled += count,
                    }
                }
                let start = content.len().min(usize::try_from(offset).unwrap());
                let end = content.len().min(start + length);
                assert!(
                    piece[..filled] == content[start..end],
                    "{mode}, {whole}: {length} at {offset}"
                );
            }
        }
    }
}

/// A child that stops in the middle of a transfer delays no other reader, and when it continues it receives every
/// byte.
#[test]
fn a_child_that_stops_keeps_nobody_waiting() {
    if !is_root() {
        skip!("needs root");
    }
    const SIZE: usize = 150 << 20;
    let origin = Scratch::new();
    let content = noise(5, SIZE);
    origin.file("big", &content);
    origin.file("small", "small");
    origin.settle();
    let flags = ["--request-timeout", "60s", "--memory", "256MiB"];
    let tree = Tree::launch(3, 2, origin.path(), &flags);
    let slow = tree.path(1, "big");
    let slow = std::thread::spawn(move || fs::read(slow));
    let progress = |node: &Node| node.stats().get("cache.data.bytes");
    eventually(Duration::from_secs(20), "the transfer has begun", || {
        progress(tree.root()) > 1 << 20
    });
    tree.nodes[1].signal(Signal::STOP);
    let other = tree.path(2, "big");
    let start = Instant::now();
    let read = within(Duration::from_secs(60), move || fs::read(other)).unwrap();
    assert!(read == content, "the other child");
    assert_eq!(fs::read(tree.path(2, "small")).unwrap(), b"small");
    eprintln!("the other child had it after {:?}", start.elapsed());
    tree.nodes[1].signal(Signal::CONT);
    let read = within(Duration::from_secs(60), move || slow.join().unwrap()).unwrap();
    assert!(read == content, "the one that stopped");
}

/// When a child dies in the middle of a transfer, its parent keeps no descriptor for it, and no transfer that others wait
/// for.
#[test]
fn a_child_that_dies_in_the_middle_leaves_nothing_behind() {
    if !is_root() {
        skip!("needs root");
    }
    const SIZE: usize = 60 << 20;
    let origin = Scratch::new();
    let content = noise(6, SIZE);
    for number in 0..3 {
        origin.file(&format!("big{number}"), &content);
    }
    origin.settle();
    let tree = Tree::launch(2, 1, origin.path(), &["--request-timeout", "20s"]);
    let descriptors = |node: &Node| {
        fs::read_dir(format!("/proc/{}/fd", node.pid.as_raw_nonzero()))
            .unwrap()
            .count()
    };
    let before = descriptors(tree.root());
    let reader = tree.path(1, "big0");
    let reader = std::thread::spawn(move || fs::read(reader));
    eventually(Duration::from_secs(20), "the transfer has begun", || {
        tree.root().stats().get("cache.data.bytes") > 1 << 20
    });
    tree.leaf().kill();
    assert!(within(Duration::from_secs(10), move || reader.join().unwrap()).is_err());
    assert!(fs::read(tree.path(0, "big0")).unwrap() == content);
    assert!(fs::read(tree.path(0, "big1")).unwrap() == content);
    eventually(
        Duration::from_secs(10),
        "descriptors are given back",
        || descriptors(tree.root()) <= before + 1,
    );
}

/// Memory stays near its bound whatever is read.
#[test]
fn memory_stays_near_its_bound() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    for number in 0..40 {
        origin.file(&format!("f{number}"), noise(number, 8 << 20));
    }
    let mount = Mount::with(origin.path(), &["--memory", "64MiB"]);
    for _ in 0..2 {
        check(
            Command::new("sh")
                .args(["-c", "cat \"$1\"/* > /dev/null", "sh"])
                .arg(&mount.node.point),
        );
    }
    let stats = mount.stats();
    let (rss, cached) = (stats.get("resident_bytes"), stats.get("cache.data.bytes"));
    eprintln!(
        "{} MiB resident, {} MiB of data cached",
        rss >> 20,
        cached >> 20
    );
    assert!(cached <= 64 << 20);
    assert!(rss < (64 << 20) + (64 << 20), "{rss} bytes resident");
}

/// An overlay filesystem with a mount below it, as container engines make them.
#[test]
fn an_overlay_stands_on_a_mount() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("lower/file", "from the origin");
    origin.file("lower/dir/other", "other");
    let work = Scratch::new();
    let mount = Mount::of(origin.path());
    const OVERLAY: &str = "mount -t tmpfs none \"$2\"; mkdir \"$2\"/{upper,work,top}
        mount -t overlay none -o lowerdir=\"$1\",upperdir=\"$2/upper\",workdir=\"$2/work\" \"$2/top\"
        cd \"$2/top\"; cat file dir/other; echo changed > file; rm dir/other; cat file; ls dir | wc -l";
    let mut run = Command::new("unshare");
    run.args([
        "--mount",
        "--propagation",
        "private",
        "bash",
        "-euc",
        OVERLAY,
        "sh",
    ]);
    let said = check(run.arg(mount.path("lower")).arg(work.path()));
    assert_eq!(said, "from the originotherchanged\n0\n");
    assert_eq!(
        fs::read(mount.path("lower/file")).unwrap(),
        b"from the origin"
    );
}

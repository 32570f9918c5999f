//! Every kind of change at the origin, on a directory and on an S3 server: seen after `clear` where
//! that is the rule, after the lease where leases are, and never as a mixture. And what a lease costs.

use crate::object_store::{Server, rclone};
use crate::skip;
use crate::support::tree::Members;
use crate::support::{Mount, Scratch, Tree, errno, eventually, is_root, python};
use rustix::io::Errno;
use std::cell::RefCell;
use std::fmt::Debug;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const LEASE: &str = "ttl=1s";
/// A lease, the S3 server's own caching, and a busy machine. Without a lease it would be a day.
const SEEN_WITHIN: Duration = Duration::from_secs(20);

/// A mount and its origin.
struct Served {
    mount: Mount,
    /// The files of the origin.
    native: PathBuf,
    /// Where they are in the mount.
    below: &'static str,
    clears: bool,
    posix: bool,
}

impl Served {
    fn path(&self, name: &str) -> PathBuf {
        self.mount.path(self.below).join(name)
    }

    fn native(&self, name: &str) -> PathBuf {
        self.native.join(name)
    }

    /// Waits until all of `wanted` is seen.
    fn shows(&self, wanted: &dyn Fn(&Self) -> Result<(), String>) {
        let still = RefCell::new(String::new());
        let what = std::fmt::from_fn(|f| write!(f, "the change is seen: {}", still.borrow()));
        eventually(SEEN_WITHIN, what, || {
            if self.clears {
                self.mount.clear("/");
            }
            wanted(self).map_err(|now| still.replace(now)).is_ok()
        });
    }
}

fn put(path: &Path, content: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Size of the file that is replaced while it is read and mapped.
const LARGE: usize = 3 << 20;

/// Each name describes the change of its file.
fn fill(native: &Path, posix: bool) {
    for name in [
        "recreated",
        "renamed_over",
        "stays",
        "removed",
        "truncated",
        "appended",
    ] {
        put(&native.join("dir").join(name), "old content");
    }
    put(&native.join("dir/replacement"), "replacement");
    put(&native.join("dir/becomes_other/inside"), "inside");
    put(&native.join("dir/becomes_dir"), "a file");
    put(&native.join("dir/emptied/only"), "one");
    put(&native.join("large"), vec![b'o'; LARGE]);
    if posix {
        put(&native.join("dir/linked"), "linked");
        put(&native.join("dir/closed"), "closed");
        symlink("stays", native.join("dir/turns")).unwrap();
    }
}

fn change(served: &Served) {
    let at = |name: &str| served.native(&format!("dir/{name}"));
    fs::remove_file(at("recreated")).unwrap();
    put(&at("recreated"), "new content");
    fs::rename(at("replacement"), at("renamed_over")).unwrap();
    fs::remove_file(at("removed")).unwrap();
    put(&at("truncated"), "old");
    put(&at("appended"), "old content and more");
    put(&at("added"), "added");
    put(&at("added_dir/inside"), "inside");
    fs::remove_file(at("becomes_dir")).unwrap();
    put(&at("becomes_dir/inside"), "now inside");
    fs::remove_dir_all(at("becomes_other")).unwrap();
    fs::remove_file(at("emptied/only")).unwrap();
    put(&at("emptied/another"), "another");
    // In place: the inode stays, the version does not.
    put(&served.native("large"), vec![b'n'; LARGE]);
    if served.posix {
        symlink("stays", at("becomes_other")).unwrap();
        fs::hard_link(at("linked"), at("linked_too")).unwrap();
        fs::set_permissions(at("closed"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::remove_file(at("turns")).unwrap();
        symlink("added", at("turns")).unwrap();
    } else {
        put(&at("becomes_other"), "now an object");
    }
}

#[expect(clippy::needless_pass_by_value, reason = "they are made on the spot")]
fn same<T: PartialEq + Debug>(what: &str, seen: T, wanted: T) -> Result<(), String> {
    if seen == wanted {
        return Ok(());
    }
    Err(format!("{what}: {seen:?}, not {wanted:?}"))
}

fn reads(served: &Served, name: &str, wanted: &str) -> Result<(), String> {
    let path = served.path(&format!("dir/{name}"));
    same(
        name,
        fs::read_to_string(&path).ok().as_deref(),
        Some(wanted),
    )?;
    let len = fs::metadata(&path).map(|meta| meta.len()).ok();
    same(name, len, Some(wanted.len() as u64))
}

fn is_absent(served: &Served, name: &str) -> Result<(), String> {
    let found = fs::symlink_metadata(served.path(&format!("dir/{name}")));
    same(
        name,
        found.map(|_| ()).map_err(|error| error.kind()),
        Err(std::io::ErrorKind::NotFound),
    )
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Afterwards the kernel and the node have the state before the changes in their caches.
fn look_at_all(served: &Served) {
    assert_eq!(names(&served.path("dir")), names(&served.native("dir")));
    assert_eq!(names(&served.path("dir/emptied")), ["only"]);
    for name in ["added", "added_dir", "linked_too"] {
        is_absent(served, name).unwrap();
    }
    for name in [
        "recreated",
        "renamed_over",
        "removed",
        "truncated",
        "appended",
    ] {
        reads(served, name, "old content").unwrap();
    }
    reads(served, "becomes_dir", "a file").unwrap();
    reads(served, "becomes_other/inside", "inside").unwrap();
    if served.posix {
        assert_eq!(fs::metadata(served.path("dir/linked")).unwrap().nlink(), 1);
        assert_eq!(
            fs::metadata(served.path("dir/closed")).unwrap().mode() & 0o777,
            0o644
        );
        reads(served, "turns", "old content").unwrap();
    }
}

fn all_is_new(served: &Served) -> Result<(), String> {
    reads(served, "recreated", "new content")?;
    reads(served, "renamed_over", "replacement")?;
    is_absent(served, "replacement")?;
    is_absent(served, "removed")?;
    reads(served, "truncated", "old")?;
    reads(served, "appended", "old content and more")?;
    reads(served, "added", "added")?;
    reads(served, "added_dir/inside", "inside")?;
    reads(served, "becomes_dir/inside", "now inside")?;
    reads(served, "stays", "old content")?;
    let (dir, emptied) = (served.path("dir"), served.path("dir/emptied"));
    same("listing", names(&dir), names(&served.native("dir")))?;
    same("listing", names(&emptied), vec!["another".to_owned()])?;
    let large = fs::read(served.path("large"));
    let new = large.is_ok_and(|large| large == vec![b'n'; LARGE]);
    same("large", new, true)?;
    if served.posix {
        let target = fs::read_link(served.path("dir/becomes_other")).ok();
        same("becomes_other", target, Some("stays".into()))?;
        reads(served, "becomes_other", "old content")?;
        reads(served, "turns", "added")?;
        for name in ["linked", "linked_too"] {
            let links = fs::metadata(served.path(&format!("dir/{name}"))).map(|meta| meta.nlink());
            same(name, links.ok(), Some(2))?;
        }
        let mode = fs::metadata(served.path("dir/closed")).map(|meta| meta.mode() & 0o777);
        same("closed", mode.ok(), Some(0o600))
    } else {
        reads(served, "becomes_other", "now an object")
    }
}

/// Holds the large file open and mapped, half of it read, until it is told to read the rest. A byte
/// that is not of the old file is a mixture; an error is none.
const HOLDER: &str = "import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
size = os.fstat(fd).st_size
held = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
start = os.pread(fd, size // 2, 0) + held[:4096]
print('held', flush=True)
sys.stdin.readline()
seen = set(start)
try:
    for at in range(0, size, 1 << 16):
        seen |= set(os.pread(fd, 1 << 16, at))
except OSError as error:
    assert error.errno == 116, error
assert seen == {ord('o')}, seen
print('read', flush=True)
seen = set(held[at] for at in range(0, size, 4096))
assert seen == {ord('o')}, seen
print('mapped', flush=True)";

fn changes_are_seen(served: &Served) {
    // Twice: the second look is answered from the kernel's cache.
    look_at_all(served);
    look_at_all(served);
    let mut hold = python();
    hold.args(["-c", HOLDER]).arg(served.path("large"));
    hold.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = hold.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut line = || lines.next().map(Result::unwrap);
    assert_eq!(line().as_deref(), Some("held"));
    change(served);
    served.shows(&all_is_new);
    stdin.write_all(b"\n").unwrap();
    assert_eq!(line().as_deref(), Some("read"), "old bytes, or an error");
    // SIGBUS says that the old bytes are nowhere any more.
    let mapped = line();
    let status = child.wait().unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert!(mapped.is_some() || signal == Some(7), "{status}");
}

fn posix(flags: &[&str], clears: bool) {
    let origin = Scratch::new();
    fill(origin.path(), true);
    origin.settle();
    let mount = Mount::with(origin.path(), flags);
    changes_are_seen(&Served {
        mount,
        native: origin.path().to_owned(),
        below: ".",
        clears,
        posix: true,
    });
}

fn s3(program: PathBuf, flags: &[&str], clears: bool) {
    let server = Server::start(program);
    let native = server.bucket().join("set");
    fill(&native, false);
    crate::support::fixture::settle(&native);
    let scratch = Scratch::new();
    let mount = server.mount(&scratch, flags);
    changes_are_seen(&Served {
        mount,
        native,
        below: "data",
        clears,
        posix: false,
    });
}

#[test]
fn every_change_of_a_directory_is_seen_after_clear() {
    if !is_root() {
        skip!("needs root");
    }
    posix(&[], true);
}

#[test]
fn every_change_of_a_directory_is_seen_after_the_lease() {
    if !is_root() {
        skip!("needs root");
    }
    for open in ["zero-message", "tracked"] {
        posix(&["--freshness", LEASE, "--open", open], false);
    }
}

#[test]
fn every_change_of_a_bucket_is_seen_after_clear() {
    if !is_root() {
        skip!("needs root");
    }
    let Some(program) = rclone() else {
        skip!("no S3 server: run scripts/test-servers")
    };
    s3(program, &[], true);
}

#[test]
fn every_change_of_a_bucket_is_seen_after_the_lease() {
    if !is_root() {
        skip!("needs root");
    }
    let Some(program) = rclone() else {
        skip!("no S3 server: run scripts/test-servers")
    };
    s3(program, &["--freshness", LEASE], false);
}

/// On a chain of three nodes: an unchanged directory costs the leaf a message without entries. A change is seen there
/// without `clear`, also in the listing, which the kernel had cached.
#[test]
fn a_lease_is_renewed_down_the_tree_by_a_small_message() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    for number in 0..400 {
        origin.file(&format!("dir/file_{number:03}"), "x");
    }
    origin.settle();
    let flags = ["--freshness", "ttl=3s", "--push=false", "--bundles=false"];
    let tree = Tree::launch(3, 1, origin.path(), &flags);
    let dir = tree.path(2, "dir");
    let look = || assert_eq!(fs::read_dir(&dir).unwrap().count(), 400);
    let before = tree.leaf().stats();
    look();
    let listed = tree.leaf().stats();
    let whole = listed.since(&before, "upstream.received_bytes");
    assert!(whole > 4000, "{whole} bytes for a listing");

    // Over and over, for longer than a lease: each renewal costs a few hundred bytes.
    let begun = Instant::now();
    let mut looks = 0;
    while begun.elapsed() < Duration::from_secs(8) {
        look();
        assert!(fs::metadata(dir.join("file_007")).is_ok());
        looks += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
    let after = tree.leaf().stats();
    let asked = after.since(&listed, "upstream.requests");
    let received = after.since(&listed, "upstream.received_bytes");
    assert!(asked >= 2, "{asked} renewals in {looks} looks");
    assert!(asked <= looks / 4, "{asked} requests for {looks} looks");
    assert!(
        received < asked * 200,
        "{received} bytes for {asked} renewals"
    );

    fs::remove_file(origin.path().join("dir/file_000")).unwrap();
    origin.file("dir/new", "new");
    eventually(SEEN_WITHIN, "the listing is new", || {
        let seen = names(&dir);
        seen.len() == 400 && seen.contains(&"new".to_owned())
    });
    assert_eq!(fs::read(dir.join("new")).unwrap(), b"new");
    assert_eq!(errno(fs::metadata(dir.join("file_000"))), Errno::NOENT);
}

/// A directory that is read slowly while it changes, with leases shorter than that: every name that
/// was there all the time comes once.
#[test]
fn a_directory_that_changes_while_it_is_read_skips_nothing() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    for number in 0..3000 {
        origin.file(&format!("dir/file_{number:04}"), "");
    }
    let mount = Mount::with(origin.path(), &["--freshness", "ttl=200ms"]);
    let mut seen = Vec::new();
    for (at, entry) in fs::read_dir(mount.path("dir")).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        seen.push(name);
        if at % 300 == 0 {
            origin.file(&format!("dir/a_new_one_{at}"), "");
            // Longer than the lease.
            std::thread::sleep(Duration::from_millis(250));
            // Somebody else has the lease renewed.
            assert!(names(&mount.path("dir")).contains(&format!("a_new_one_{at}")));
        }
    }
    seen.retain(|name| name.starts_with("file_"));
    seen.sort();
    let all: Vec<String> = (0..3000)
        .map(|number| format!("file_{number:04}"))
        .collect();
    assert!(seen == all, "{} names", seen.len());
}

/// A leaf with a disk restarts: a large unchanged directory is not sent again, a changed one is seen as it is, and a torn
/// file costs no more than a missing one.
#[test]
fn a_restart_asks_about_listings_and_does_not_fetch_them() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    for number in 0..2000 {
        origin.file(&format!("dir/file_{number:04}"), "x");
    }
    origin.settle();
    let members = Members::new(2, origin.path());
    let _root = members.start(0, &[]);
    let disk = Scratch::new();
    let store = disk.path().join("store");
    let place = format!("{}:1GiB", store.display());
    let flags = ["--disk", &place, "--push=false", "--bundles=false"];
    let meta = || -> Vec<PathBuf> {
        let files = fs::read_dir(store.join("meta")).into_iter().flatten();
        files.map(|entry| entry.unwrap().path()).collect()
    };
    let launch = |count: usize| {
        let leaf = members.start(1, &flags);
        let before = leaf.stats();
        assert_eq!(names(&leaf.path("dir")).len(), count);
        let received = leaf.stats().since(&before, "upstream.received_bytes");
        // Written beside it, some time: the top and this directory.
        eventually(Duration::from_secs(10), "listings are kept", || {
            let files = meta();
            let finished = |path: &PathBuf| path.extension().is_none();
            files.len() >= 2 && files.iter().all(finished)
        });
        leaf.unmount();
        received
    };
    // With attributes some 80 KB; on a busy machine they may not come along, and names are 8 KB.
    let first = launch(2000);
    assert!(first > 5000, "{first}");
    let second = launch(2000);
    assert!(second < 1000, "{second} bytes at the second launch");

    origin.file("dir/new", "new");
    origin.settle();
    let mut clear = crate::support::copperfs(["clear", "--everything", "--this-node"]);
    crate::support::check(clear.arg(members.point(0)));
    let third = launch(2001);
    assert!(third > 5000, "{third} bytes for what has changed");

    for file in meta() {
        let bytes = fs::read(&file).unwrap();
        fs::write(&file, &bytes[..bytes.len() * 2 / 3]).unwrap();
    }
    let torn = launch(2001);
    assert!(torn > 5000, "{torn} bytes for what was torn");
    assert!(launch(2001) < 1000);
}

/// No lease is extended: when storage cannot be asked, metadata whose lease has ended is an error, not an old answer.
/// When storage is back, its state is seen.
#[test]
fn a_lease_that_cannot_be_renewed_is_over() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("dir/file", "content");
    origin.settle();
    let members = Members::new(2, origin.path());
    let flags = ["--freshness", LEASE, "--request-timeout", "2s"];
    let root = members.start(0, &flags);
    let leaf = members.start(1, &flags);
    let file = leaf.path("dir/file");
    assert_eq!(fs::read(&file).unwrap(), b"content");
    root.signal(rustix::process::Signal::STOP);
    eventually(SEEN_WITHIN, "the lease is over", || {
        fs::metadata(&file).is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::IO))
    });
    root.signal(rustix::process::Signal::CONT);
    eventually(SEEN_WITHIN, "it is renewed", || {
        fs::read(&file).is_ok_and(|content| content == b"content")
    });
}

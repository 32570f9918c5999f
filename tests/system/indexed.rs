//! Names from an index: made by `copperfs index`, served with `--index`.

use crate::object_store::{Server, rclone};
use crate::skip;
use crate::support::fixture::{checksums, noise};
use crate::support::{
    Background, Mount, Scratch, Tree, check, copperfs, errno, eventually, is_root, run,
};
use rustix::io::Errno;
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Makes an index of `uri` with these flags. Returns the output.
fn index(uri: &Path, file: &Path, flags: &[&str]) -> Value {
    let mut make = copperfs(["index", "build", "--json", "-o"]);
    make.arg(file).arg(uri).args(flags);
    serde_json::from_str(&check(&mut make)).unwrap()
}

/// The flag that serves the top of a mount from `file`, a file of this host.
fn local(file: &Path) -> String {
    format!("--index=file://{}", file.display())
}

/// Two hundred files, each under two paths, and one of several blocks.
fn twice(root: &Path) -> u64 {
    for side in ["here/a", "there/b"] {
        let directory = root.join(side);
        fs::create_dir_all(&directory).unwrap();
        for number in 0..200 {
            let content = noise(number, 100 + usize::try_from(number).unwrap() * 50);
            fs::write(directory.join(format!("{side:.1}{number}")), content).unwrap();
        }
        fs::write(directory.join("large"), noise(999, 3_500_000)).unwrap();
    }
    let small: u64 = (0..200).map(|number| 100 + number * 50).sum();
    small + 3_500_000
}

/// What people can see of a tree, but for when it was looked at.
fn looks(root: &Path) -> String {
    let script = "find . -printf '%p %y %s %m %U %G %T@ %C@ %l\\n' | sort";
    check(Command::new("bash").args(["-c", script]).current_dir(root))
}

/// The number of entries below `directory`, examined one by one. Not by `find`, which also asks for the filesystem.
fn walk(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).unwrap();
    let below = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.unwrap();
        match entry.metadata().unwrap().is_dir() {
            true => 1 + walk(&entry.path()),
            false => 1,
        }
    };
    entries.map(below).sum()
}

/// All names and attributes come from the index, storage is not listed and not asked for attributes,
/// and files of equal content are read from it once, whatever their paths.
#[test]
fn a_directory_is_served_without_listing_it() {
    if !is_root() {
        skip!("needs root");
    }
    let (origin, out) = (Scratch::new(), Scratch::new());
    let bytes = twice(origin.path());
    origin.dir("empty/deep/er");
    std::os::unix::fs::symlink("here/a/h1", origin.path().join("link")).unwrap();
    let file = out.path().join("index");
    let made = index(origin.path(), &file, &["--hash"]);
    assert_eq!((&made["files"], &made["others"]), (&402.into(), &1.into()));
    let mount = Mount::with(origin.path(), &[&local(&file), "--bundles=false"]);
    assert_eq!(looks(mount.path("").as_path()), looks(origin.path()));
    let stats = mount.stats();
    assert_eq!(
        (stats.get("origin.listings"), stats.get("origin.stats")),
        (0, 0)
    );
    assert_eq!(errno(fs::metadata(mount.path("here/none"))), Errno::NOENT);
    assert_eq!(errno(fs::metadata(mount.path("none/deeper"))), Errno::NOENT);
    let expected = checksums(origin.path());
    assert_eq!(checksums(&mount.path("")), expected);
    let stats = mount.stats();
    assert_eq!(stats.get("origin.read_bytes"), bytes);
    assert_eq!(
        (stats.get("origin.listings"), stats.get("origin.stats")),
        (0, 0)
    );
    let twins = ["here/a/h7", "there/b/t7"].map(|twin| fs::metadata(mount.path(twin)).unwrap());
    assert_ne!(twins[0].ino(), twins[1].ino());
}

/// The same with a bucket.
#[test]
fn a_bucket_is_served_without_listing_it() {
    if !is_root() {
        skip!("needs root");
    }
    let Some(program) = rclone() else {
        skip!("no S3 server: run scripts/test-servers")
    };
    let server = Server::start(program);
    let set = server.bucket().join("set");
    let bytes = twice(&set);
    let out = Scratch::new();
    let file = out.path().join("index");
    let mut make = copperfs([
        "index",
        "build",
        "s3://bucket/set",
        "--hash",
        "--json",
        "-o",
    ]);
    let made = check(server.let_in(make.arg(&file)));
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!(
        (&made["files"], &made["directories"]),
        (&402.into(), &5.into())
    );
    let flags = [&local(&file), "--bundles=false"];
    let mount = server.mount(&out, &flags);
    let count = check(Command::new("find").arg(mount.path("data")))
        .lines()
        .count();
    assert_eq!(count, 407);
    // The top of the mount is no directory of the store.
    assert!(mount.stats().get("origin.listings") <= 1);
    assert_eq!(checksums(&mount.path("data")), checksums(&set));
    let stats = mount.stats();
    assert_eq!(stats.get("origin.read_bytes"), bytes);
    assert_eq!(stats.get("origin.stats"), 0);
}

/// A walk that was killed goes on where it was, when it is told to.
#[test]
fn an_indexer_that_is_killed_goes_on() {
    let (origin, out) = (Scratch::new(), Scratch::new());
    for number in 0..3000 {
        origin.file(&format!("d{}/e{number}/f", number % 30), "content");
    }
    let (whole, file) = (out.path().join("whole"), out.path().join("index"));
    let expected = index(origin.path(), &whole, &[]);
    assert_eq!(expected["directories"], 3031);
    let mut make = copperfs(["index", "build", "--concurrency", "1", "-o"]);
    make.arg(&file).arg(origin.path()).stdout(Stdio::null());
    let mut child = Background::spawn(&mut make);
    let partial = PathBuf::from(format!("{}.partial", file.display()));
    eventually(Duration::from_secs(20), "it has begun", || {
        fs::metadata(&partial).is_ok_and(|meta| meta.len() > 4000)
    });
    child.signal(Signal::KILL);
    child.exit_within(Duration::from_secs(10)).unwrap();
    assert!(
        !file.exists() && partial.exists(),
        "it was not killed in time"
    );

    let again = |flags: &[&str]| {
        let mut make = copperfs(["index", "build", "--json", "-o"]);
        run(make.arg(&file).arg(origin.path()).args(flags))
    };
    let refused = again(&[]);
    assert!(refused.refused().contains("--resume"), "{refused:?}");
    let resumed: Value = serde_json::from_str(&again(&["--resume"]).text()).unwrap();
    for key in ["directories", "files", "others", "bytes", "entries"] {
        assert_eq!(resumed[key], expected[key], "{key}");
    }
    assert!(!partial.exists());
    let show = check(copperfs(["index", "show"]).arg(&file));
    assert!(show.contains("3031"), "{show}");
}

/// A finished index may have cost a read of all storage: only `--force` replaces it, and the old index
/// stays complete until the new one is.
#[test]
fn a_finished_index_is_replaced_only_by_force_and_in_one_step() {
    let (origin, out) = (Scratch::new(), Scratch::new());
    origin.file("dir/file", "content");
    let file = out.path().join("index");
    index(origin.path(), &file, &["--hash"]);
    let first = fs::read(&file).unwrap();
    let again = |tree: &Path, flags: &[&str]| {
        let mut make = copperfs(["index", "build", "--json", "-o"]);
        run(make.arg(&file).arg(tree).args(flags))
    };
    for flags in [&[][..], &["--hash"], &["--resume"]] {
        let finished = again(origin.path(), flags);
        let refused = finished.refused();
        assert!(refused.contains("--force"), "{flags:?}: {refused}");
        assert!(fs::read(&file).unwrap() == first, "{flags:?}");
    }
    let names = || fs::read_dir(out.path()).unwrap().count();
    assert_eq!(names(), 1, "nothing was begun");
    // A failed run replaces nothing.
    let missing = origin.path().join("none");
    again(&missing, &["--force"]).refused();
    assert!(fs::read(&file).unwrap() == first);
    origin.file("dir/second", "more content");
    let replaced: Value = serde_json::from_str(&again(origin.path(), &["--force"]).text()).unwrap();
    assert_eq!(replaced["files"], 2);
    assert!(fs::read(&file).unwrap() != first);
    assert_eq!(names(), 1);
}

/// A file that changed after it was indexed is an error, and the log names the remedy. A new index is used after the next
/// clear.
#[test]
fn a_file_that_changed_since_it_was_indexed_is_stale() {
    if !is_root() {
        skip!("needs root");
    }
    let (origin, out) = (Scratch::new(), Scratch::new());
    origin.file("dir/file", "old content");
    origin.file("dir/other", "other");
    let file = out.path().join("index");
    index(origin.path(), &file, &[]);
    let mount = Mount::with(origin.path(), &[&local(&file)]);
    fs::write(origin.path().join("dir/file"), "newer content").unwrap();
    let read = || fs::read(mount.path("dir/file"));
    assert_eq!(errno(read()), Errno::STALE);
    assert!(
        mount.log().contains("make the index again"),
        "{}",
        mount.log()
    );
    assert_eq!(fs::read(mount.path("dir/other")).unwrap(), b"other");
    index(origin.path(), &file, &["--force"]);
    assert_eq!(errno(read()), Errno::STALE, "not before a clear");
    mount.clear("/");
    eventually(Duration::from_secs(5), "the new file is seen", || {
        read().is_ok_and(|content| content == b"newer content")
    });
}

/// The index describes the file as it was, but storage denies that version, and the next one is young.
#[test]
fn an_open_file_goes_on_after_a_change_of_its_status() {
    if !is_root() {
        skip!("needs root");
    }
    let (origin, out) = (Scratch::new(), Scratch::new());
    let content = noise(6, 6 << 20);
    let file = origin.file("dir/lib.so", &content);
    origin.settle();
    let indexed = out.path().join("index");
    index(origin.path(), &indexed, &[]);
    let mount = Mount::with(origin.path(), &[&local(&indexed), "--whole-file-max=1MiB"]);
    let open = fs::File::open(mount.path("dir/lib.so")).unwrap();
    let mut begin = [0; 4096];
    open.read_exact_at(&mut begin, 0).unwrap();
    assert!(begin == content[..4096]);
    for mode in [0o600, 0o644] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let mut all = vec![0; content.len()];
        open.read_exact_at(&mut all, 0).unwrap();
        assert!(all == content, "{mode:o}");
    }
}

/// An index in the namespace is read by every node through the tree, which is then not asked for names.
#[test]
fn an_index_travels_the_tree() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    for number in 0..500 {
        origin.file(
            &format!("set/d{}/f{number}", number % 25),
            noise(number, 300),
        );
    }
    let file = origin.path().join("set/.index");
    index(&origin.path().join("set"), &file, &["--hash"]);
    origin.settle();
    let tree = Tree::launch(4, 1, origin.path(), &["--index", "/set=/set/.index"]);
    let set = tree.path(3, "set");
    // The way to the prefix is asked for.
    fs::metadata(&set).unwrap();
    let before = tree.stats();
    assert_eq!(walk(&set), 25 + 500 + 1);
    let after = tree.stats();
    for (after, before) in after.iter().zip(&before) {
        after.assert_nothing_upstream(before);
    }
    assert_eq!(
        fs::read(set.join(".index")).unwrap(),
        fs::read(&file).unwrap()
    );
    assert_eq!(checksums(&set), checksums(&origin.path().join("set")));
    let log = tree.leaf().log();
    assert!(log.contains("names come from an index"), "{log}");
}

/// An index that cannot be used is refused at once, with a remedy.
#[test]
fn an_index_that_is_none_is_refused() {
    if !is_root() {
        skip!("needs root");
    }
    let (origin, out) = (Scratch::new(), Scratch::new());
    origin.file("dir/file", "content");
    let foreign = out.file("foreign", "#!/bin/sh\n");
    let good = out.path().join("good");
    index(origin.path(), &good, &[]);
    let whole = fs::read(&good).unwrap();
    let torn = out.file("torn", &whole[..whole.len() - 1]);
    let mut newer = whole.clone();
    newer[8] = 9;
    let newer = out.file("newer", newer);
    let refused = |flag: &str| {
        let mut mount = copperfs(["mount", flag]);
        mount.arg(format!("--origin=/=file://{}", origin.path().display()));
        match Mount::try_at(&out.dir("mnt"), &mut mount) {
            Ok(_) => panic!("{flag} was taken"),
            Err(finished) => finished.refused().to_owned(),
        }
    };
    for (file, hint) in [
        (&foreign, "make one with copperfs index build"),
        (&torn, "Copy it again"),
        (&newer, "make it again"),
        (&out.path().join("none"), "No such file"),
    ] {
        let message = refused(&local(file));
        assert!(message.contains(hint), "{message}");
    }
    let message = refused("--index=/dir/none");
    assert!(message.contains("/dir/none"), "{message}");
}

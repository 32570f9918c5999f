//! Changes at the origin that change no byte: `ln`, `chmod`, `chown`, `cp -al`. Readers continue, whatever
//! the state of the file. A file that was rewritten with its old times is never mixed.

use crate::skip;
use crate::support::command::{Background, has_program};
use crate::support::datasets::{Nodes, datasets};
use crate::support::fixture::noise;
use crate::support::kernel::open_modes;
use crate::support::{Mount, Scratch, Tree, check, copperfs, eventually, is_root, python, sh};
use rustix::io::Errno;
use std::fs::{self, File, FileTimes};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

const MIB: usize = 1 << 20;

/// Shell commands that users run on a directory at the origin; none of them changes a byte.
const CHANGES: [&str; 4] = [
    "chmod -R a+rx,g-w \"$1\"",
    "chown -R 12:34 \"$1\"",
    "find \"$1\" -type f -exec sh -c 'ln \"$0\" \"$0.linked\"' {} \\;",
    "cp -al \"$1\" \"$1.copy\"",
];

fn change(how: &str, directory: &Path) {
    sh(how, &[&directory]);
}

/// Reads from `file`: its bytes, or `None` if it is stale.
#[track_caller]
fn bytes_or_stale(file: &File, offset: usize, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    match file.read_exact_at(&mut bytes, offset as u64) {
        Ok(()) => Some(bytes),
        Err(error) => {
            assert_eq!(Errno::from_io_error(&error), Some(Errno::STALE), "{error}");
            None
        }
    }
}

/// Files that the kernel knows and that were not read: they are read normally, under the same inode, with
/// their current attributes. One listing renews all of them.
#[test]
fn known_and_unread_files_are_read_after_a_status_change() {
    if !is_root() {
        skip!("needs root");
    }
    const FILES: u64 = 40;
    for how in CHANGES {
        let origin = Scratch::new();
        for number in 0..FILES {
            origin.file(&format!("env/f{number}"), noise(number, 30_000));
        }
        origin.settle();
        let mount = Mount::with(origin.path(), &["--push=false"]);
        let numbers = |number| {
            fs::metadata(mount.path(format!("env/f{number}")))
                .unwrap()
                .ino()
        };
        let before: Vec<u64> = (0..FILES).map(numbers).collect();
        change(how, &origin.path().join("env"));
        let asked = mount.stats();
        for number in 0..FILES {
            let name = format!("env/f{number}");
            let read = fs::read(mount.path(&name));
            assert!(read.unwrap() == noise(number, 30_000), "{how}: {name}");
        }
        let listed = mount.stats().since(&asked, "origin.listings");
        assert!(listed <= 3, "{how}: {listed} listings for {FILES} files");
        assert_eq!((0..FILES).map(numbers).collect::<Vec<_>>(), before, "{how}");
        let seen = |name: &str| {
            let now = fs::metadata(mount.path(name)).unwrap();
            let then = fs::metadata(origin.path().join(name)).unwrap();
            let all =
                |of: &fs::Metadata| (of.mode(), of.uid(), of.gid(), of.nlink(), of.ctime_nsec());
            all(&now) == all(&then)
        };
        eventually(
            Duration::from_secs(5),
            format!("{how}: new attributes"),
            || seen("env/f0") && seen("env/f39"),
        );
    }
}

/// Open files of which a head and scattered pages were read: the rest can be read, and the inode number
/// stays.
#[test]
fn half_read_files_are_read_on_after_a_status_change() {
    if !is_root() {
        skip!("needs root");
    }
    const SIZE: usize = 12 * MIB + 777;
    for &mode in open_modes() {
        let origin = Scratch::new();
        let content = noise(5, SIZE);
        origin.file("dir/file", &content);
        origin.settle();
        let flags = ["--whole-file-max", "1MiB", "--open", mode];
        let mount = Mount::with(origin.path(), &flags);
        let path = mount.path("dir/file");
        let number = fs::metadata(&path).unwrap().ino();
        let open = File::open(&path).unwrap();
        for how in CHANGES {
            let places = [(0, 100_000), (7 * MIB + 5000, 10), (9 * MIB - 10, 20)];
            for (offset, len) in places {
                let read = bytes_or_stale(&open, offset, len).unwrap();
                assert!(read == content[offset..offset + len], "{mode}: {how}");
            }
            change(how, &origin.path().join("dir"));
            let at = 2 * MIB + 100_000 * CHANGES.iter().position(|it| *it == how).unwrap();
            let read = bytes_or_stale(&open, at, 5000).expect(how);
            assert!(read == content[at..at + 5000], "{mode}: {how}");
        }
        let read = bytes_or_stale(&open, 0, SIZE).expect("all of it");
        assert!(read == content, "{mode}");
        assert_eq!(open.metadata().unwrap().ino(), number);
    }
}

const MAPS: &str = r"
import mmap, sys
file = open(sys.argv[1], 'rb')
size = int(sys.argv[2])
mapping = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
mapping.madvise(mmap.MADV_RANDOM)
first = mapping[:4096]
print('mapped', flush=True)
sys.stdin.readline()
content = open(sys.argv[3], 'rb').read()
assert mapping[:4096] == first
print('same' if mapping[:] == content else 'other', flush=True)
";

/// A process touches pages of its mapping that were not read before the change: it continues.
#[test]
fn untouched_pages_of_a_mapping_come_after_a_status_change() {
    if !is_root() {
        skip!("needs root");
    }
    const SIZE: usize = 6 * MIB + 5;
    let origin = Scratch::new();
    let file = origin.file("dir/lib.so", noise(6, SIZE));
    origin.settle();
    let mount = Mount::with(origin.path(), &["--whole-file-max", "1MiB"]);
    let mut program = python();
    program.args(["-c", MAPS]).arg(mount.path("dir/lib.so"));
    program.arg(SIZE.to_string()).arg(&file);
    let mut child = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "mapped");
    change(CHANGES[0], &origin.path().join("dir"));
    writeln!(child.stdin.as_mut().unwrap(), "go on").unwrap();
    let word = said.next();
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(word.unwrap().unwrap(), "same");
}

/// Through the tree, with one root and with two, one of which serves the names and the other the bytes.
#[test]
fn readers_below_other_nodes_go_on_after_a_status_change() {
    if !is_root() {
        skip!("needs root");
    }
    const SIZE: usize = 9 * MIB;
    for roots in ["1", "2"] {
        let origin = Scratch::new();
        for number in 0..6 {
            origin.file(&format!("d{number}/file"), noise(number, SIZE));
        }
        origin.settle();
        let flags = ["--roots", roots, "--whole-file-max", "1MiB"];
        let tree = Tree::launch(3, 1, origin.path(), &flags);
        let open = |rank: usize, number: u64| {
            File::open(tree.path(rank, format!("d{number}/file"))).unwrap()
        };
        let files: Vec<(u64, File)> = (0..6)
            .flat_map(|number| (0..3).map(move |rank| (number, rank)))
            .map(|(number, rank)| (number, open(rank, number)))
            .collect();
        for (number, file) in &files {
            let read = bytes_or_stale(file, 0, 5000).unwrap();
            assert!(read == noise(*number, SIZE)[..5000]);
        }
        change(CHANGES[0], origin.path());
        for (number, file) in &files {
            let content = noise(*number, SIZE);
            let read = bytes_or_stale(file, 4 * MIB, 5 * MIB).expect("it goes on");
            assert!(read == content[4 * MIB..], "{roots} roots");
        }
    }
}

/// A training job continues to read: files that it has read before, a large half-read file, and pages of it
/// in no order.
#[test]
fn a_job_reads_on_after_a_status_change_of_its_dataset() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 30, 20_000), ("large", 2, 9_500_000)]);
    let nodes = Nodes::with_page_cache(2, origin.path(), &[]);
    for name in ["set", "large"] {
        nodes.add(name, &["--budget", "2MB", "--origin-readers", "homes"]);
    }
    let content = |name: &str| fs::read(origin.path().join(name)).unwrap();
    let truth = content("large/d0/f0");
    for rank in 0..2 {
        let known: Vec<File> = (0..30)
            .map(|number| File::open(nodes.path(rank, &format!("set/d0/f{number}"))).unwrap())
            .collect();
        let half = File::open(nodes.path(rank, "large/d0/f0")).unwrap();
        for (at, len) in [(0, 100_000), (6_000_000, 50), (5_000_000, 70)] {
            let read = bytes_or_stale(&half, at, len).unwrap();
            assert!(read == truth[at..at + len]);
        }
        change(CHANGES[0], &origin.path().join("set"));
        change(CHANGES[0], &origin.path().join("large"));
        // Changes the state again for the next rank.
        change("chmod -R u+x \"$1\"", origin.path());
        for (number, file) in known.iter().enumerate() {
            let read = bytes_or_stale(file, 0, 20_000).expect("a known file");
            assert!(read == content(&format!("set/d0/f{number}")));
        }
        let read = bytes_or_stale(&half, 0, 9_500_000).expect("a half-read file");
        assert!(read == truth);
        change("chmod -R u-x,u+X \"$1\"", origin.path());
    }
}

/// An index has the attributes from before the change: its files can still be read.
#[test]
fn indexed_files_are_read_after_a_status_change() {
    if !is_root() {
        skip!("needs root");
    }
    let (origin, scratch) = (Scratch::new(), Scratch::new());
    for number in 0..5 {
        origin.file(&format!("dir/f{number}"), noise(number, 50_000));
    }
    origin.settle();
    let index = scratch.path().join("tree.index");
    let uri = format!("file://{}", origin.path().display());
    check(copperfs(["index", "build", &uri, "-o"]).arg(&index));
    change(CHANGES[0], origin.path());
    let flag = format!("file://{}", index.display());
    let mount = Mount::with(origin.path(), &["--index", &flag]);
    for number in 0..5 {
        let read = fs::read(mount.path(format!("dir/f{number}"))).unwrap();
        assert!(read == noise(number, 50_000), "f{number}");
    }
}

/// Rewrites `file` in place and restores its modification time.
fn rewrite(file: &Path, content: &[u8]) {
    let modified = fs::metadata(file).unwrap().modified().unwrap();
    let open = File::options().write(true).open(file).unwrap();
    open.write_all_at(content, 0).unwrap();
    open.set_times(FileTimes::new().set_modified(modified))
        .unwrap();
}

/// The same by `rsync`, if it is installed.
fn rsync(file: &Path, content: &[u8]) {
    let scratch = Scratch::new();
    let source = scratch.file("source", content);
    let modified = fs::metadata(file).unwrap().modified().unwrap();
    File::options()
        .write(true)
        .open(&source)
        .unwrap()
        .set_times(FileTimes::new().set_modified(modified))
        .unwrap();
    let mut rsync = std::process::Command::new("rsync");
    rsync.args(["--inplace", "--checksum", "--times", "--no-whole-file"]);
    check(rsync.arg(source).arg(file));
}

/// A file that was rewritten in place under its old modification time: a reader that has bytes of the old
/// content gets none of the new content, and a reader that has none gets only the new content.
#[test]
fn a_file_rewritten_under_its_old_times_is_never_mixed() {
    if !is_root() {
        skip!("needs root");
    }
    const SIZE: usize = 6 * MIB;
    type Rewrite = fn(&Path, &[u8]);
    let mut ways: Vec<(&str, Rewrite)> = vec![("in place", rewrite)];
    if has_program("rsync") {
        ways.push(("rsync --inplace --checksum", rsync));
    }
    for (what, way) in ways {
        // With scattered reads (a large file), with whole blocks, and with a file of one block.
        for (size, flags) in [
            (SIZE, &["--whole-file-max", "1MiB"][..]),
            (SIZE, &["--whole-file-max", "1MiB", "--memory", "64MiB"]),
            (700_000, &["--memory", "64MiB"]),
        ] {
            let origin = Scratch::new();
            let (old, new) = (noise(1, size), noise(2, size));
            let file = origin.file("dir/file", &old);
            origin.file("dir/unread", &old);
            origin.settle();
            let mount = Mount::with(origin.path(), &[flags, &["--push=false"]].concat());
            let open = File::open(mount.path("dir/file")).unwrap();
            let known = File::open(mount.path("dir/unread")).unwrap();
            assert_eq!(known.metadata().unwrap().len(), size as u64);
            let mut seen = vec![None; size];
            let note = |seen: &mut Vec<Option<u8>>, at: usize, bytes: &[u8]| {
                for (place, byte) in seen[at..].iter_mut().zip(bytes) {
                    *place = Some(*byte);
                }
            };
            let places = [(0, 4096), (size / 2, 200)];
            for (at, len) in places {
                let read = bytes_or_stale(&open, at, len).unwrap();
                note(&mut seen, at, &read);
            }
            way(&file, &new);
            way(&origin.path().join("dir/unread"), &new);
            for at in (0..size).step_by(60_000) {
                let len = 4096.min(size - at);
                if let Some(read) = bytes_or_stale(&open, at, len) {
                    note(&mut seen, at, &read);
                }
            }
            let mut bytes = seen.iter().zip(&old);
            let mixed = bytes.position(|(seen, old)| seen.is_some_and(|seen| seen != *old));
            assert_eq!(mixed, None, "{what}, {flags:?}: a byte of the new file");
            let read = bytes_or_stale(&known, 0, size).expect("nothing was given out");
            assert!(read == new, "{what}, {flags:?}");
            mount.clear("/");
            let now = fs::read(mount.path("dir/file")).unwrap();
            assert!(now == new, "{what}, {flags:?}: after clear");
        }
    }
}

/// A program is stripped in place and keeps its modification time, as packagers do: a reader that has bytes
/// of it gets no byte of the stripped program, and a new reader gets only the stripped program.
#[test]
fn a_stripped_program_is_never_mixed() {
    if !is_root() {
        skip!("needs root");
    }
    if !has_program("strip") || !has_program("cc") {
        skip!("needs cc and strip");
    }
    let origin = Scratch::new();
    let program = origin.dir("bin").join("program");
    let source = origin.file("program.c", "int main(void) { return 0; }");
    let linked = origin.path().join("bin/linked");
    let mut compile = std::process::Command::new("cc");
    check(compile.args(["-g3", "-o"]).arg(&program).arg(source));
    // A second name makes strip write to the file itself rather than rename another one over it.
    fs::hard_link(&program, &linked).unwrap();
    origin.settle();
    let old = fs::read(&program).unwrap();
    let mount = Mount::with(origin.path(), &["--push=false"]);
    let open = File::open(mount.path("bin/program")).unwrap();
    assert!(bytes_or_stale(&open, 0, 4096).unwrap() == old[..4096]);
    let inode = fs::metadata(&program).unwrap().ino();
    check(std::process::Command::new("strip").arg("-p").arg(&program));
    let new = fs::read(&program).unwrap();
    assert_eq!(fs::metadata(&program).unwrap().ino(), inode, "in place");
    assert!(new.len() < old.len());
    for at in (0..old.len()).step_by(4096) {
        let len = 4096.min(old.len() - at);
        if let Some(read) = bytes_or_stale(&open, at, len) {
            assert!(
                read == old[at..at + len],
                "at {at}: bytes of the stripped one"
            );
        }
    }
    mount.clear("/");
    assert!(fs::read(mount.path("bin/program")).unwrap() == new);
}

/// If only an unread part was rewritten, the bytes before and after form one file: the new one.
#[test]
fn a_file_rewritten_where_nothing_was_read_is_the_new_one() {
    if !is_root() {
        skip!("needs root");
    }
    const SIZE: usize = 6 * MIB;
    let origin = Scratch::new();
    let old = noise(1, SIZE);
    let mut new = old.clone();
    new[5 * MIB..5 * MIB + 100].fill(7);
    let file = origin.file("dir/file", &old);
    origin.settle();
    let mount = Mount::with(origin.path(), &["--whole-file-max", "1MiB"]);
    let open = File::open(mount.path("dir/file")).unwrap();
    assert!(bytes_or_stale(&open, 0, 4096).unwrap() == old[..4096]);
    rewrite(&file, &new);
    let read = bytes_or_stale(&open, 0, SIZE).expect("it goes on");
    assert!(read == new);
}

/// Many readers of one half-read file at the moment of the change: all continue, and there is one
/// comparison.
#[test]
fn readers_of_one_file_go_on_together() {
    if !is_root() {
        skip!("needs root");
    }
    const SIZE: usize = 16 * MIB;
    let origin = Scratch::new();
    let content = noise(8, SIZE);
    origin.file("dir/file", &content);
    origin.settle();
    let mount = Mount::with(origin.path(), &["--whole-file-max", "1MiB"]);
    let open = File::open(mount.path("dir/file")).unwrap();
    let head = bytes_or_stale(&open, 0, 4 * MIB).unwrap();
    assert!(head == content[..4 * MIB]);
    let before = mount.stats();
    change(CHANGES[0], &origin.path().join("dir"));
    std::thread::scope(|scope| {
        for reader in 0..12 {
            let (open, content) = (&open, &content);
            scope.spawn(move || {
                let at = 9 * MIB + reader * 500_000;
                let read = bytes_or_stale(open, at, 4096).expect("it goes on");
                assert!(read == content[at..at + 4096]);
            });
        }
    });
    let read = mount.stats().since(&before, "origin.read_bytes");
    assert!(
        read < 13 * MIB as u64,
        "{read} bytes: compared more than once"
    );
}

/// After a restart with a store: its bytes of the file belong to another version, and are not used.
#[test]
fn a_store_of_an_earlier_launch_is_not_used_after_a_status_change() {
    if !is_root() {
        skip!("needs root");
    }
    let (origin, scratch) = (Scratch::new(), Scratch::new());
    let content = noise(3, 2 * MIB);
    let file = origin.file("dir/file", &content);
    origin.settle();
    let disk = format!("{}:64MiB", scratch.dir("disk").display());
    let flags = ["--disk", &disk];
    let mount = Mount::with(origin.path(), &flags);
    assert!(fs::read(mount.path("dir/file")).unwrap() == content);
    mount.unmount();
    let new = noise(4, 2 * MIB);
    rewrite(&file, &new);
    let mount = Mount::with(origin.path(), &flags);
    assert!(fs::read(mount.path("dir/file")).unwrap() == new);
}

/// Programs that run from the mount continue while their environment is hard-linked elsewhere, as `conda`
/// does.
#[test]
fn a_program_imports_on_while_its_environment_is_linked() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    for number in 0..60 {
        let text = format!("VALUE = {number}\n{}", "# filler\n".repeat(500));
        origin.file(&format!("env/mod{number}.py"), text);
    }
    origin.settle();
    let mount = Mount::of(origin.path());
    let mut program = python();
    program.env("PYTHONPATH", mount.path("env"));
    let script = "import importlib, os, sys, time\n\
                  names = os.listdir(sys.path[1])\n\
                  [os.stat(os.path.join(sys.path[1], name)) for name in names]\n\
                  print('known', flush=True)\n\
                  sys.stdin.readline()\n\
                  print(sum(importlib.import_module(f'mod{n}').VALUE for n in range(60)), flush=True)\n";
    let mut child = program
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "known");
    let copying = Background::spawn(
        std::process::Command::new("cp")
            .arg("-al")
            .arg(origin.path().join("env"))
            .arg(origin.path().join("clone")),
    );
    writeln!(child.stdin.as_mut().unwrap(), "go on").unwrap();
    assert_eq!(
        said.next().unwrap().unwrap(),
        (0..60).sum::<u32>().to_string()
    );
    assert!(child.wait().unwrap().success());
    drop(copying);
}

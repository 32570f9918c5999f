//! Programs that know nothing of copperfs see the same as on the origin.

use crate::skip;
use crate::support::command::{check, has_program, run_within, sh};
use crate::support::fixture::{checksums, noise, packages, real_packages, settle};
use crate::support::kernel::open_modes;
use crate::support::{Background, Mount, Scratch, is_root, python};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A tree with files of many sizes, programs, links and nested directories.
fn mixed_tree() -> Scratch {
    let scratch = Scratch::new();
    for (seed, size) in [
        0_usize,
        1,
        4095,
        4096,
        4097,
        20_000,
        131_072,
        1 << 20,
        3_333_333,
    ]
    .iter()
    .enumerate()
    {
        scratch.file(&format!("sizes/{size}"), noise(seed as u64, *size));
    }
    for number in 0..200 {
        scratch.file(
            &format!("many/d{}/f{number}", number % 7),
            noise(number, 500),
        );
    }
    let script = scratch.file(
        "bin/hello.sh",
        "#!/bin/bash\necho hello \"$@\" from $(basename \"$0\")\n",
    );
    std::fs::set_permissions(script, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::copy("/bin/ls", scratch.path().join("bin/ls")).unwrap();
    symlink("../sizes/4096", scratch.path().join("many/link")).unwrap();
    symlink("sizes", scratch.path().join("dirlink")).unwrap();
    scratch
}

#[test]
fn find_ls_tar_and_rsync_see_no_difference() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = mixed_tree();
    let mount = Mount::of(origin.path());
    let both = |script: &str| {
        let on = |path: &Path| sh(&format!("cd \"$1\"; {script}"), &[&path]);
        let (native, mounted) = (on(origin.path()), on(&mount.node.point));
        assert!(!native.is_empty());
        assert_same(script, &native, &mounted);
    };
    both("find . -printf '%P %y %s %m %U %G %n %T@ %l\\n' | sort");
    both("ls -lRn --time-style=full-iso");
    both("tar --sort=name -cf - . | sha256sum");
    both("du -a --apparent-size | sort");
    both("cat many/link dirlink/20000 | md5sum");
    if has_program("rsync") {
        let differences = sh(
            "rsync -naic \"$1/\" \"$2/\"",
            &[&origin.path(), &mount.node.point],
        );
        assert_eq!(differences, "");
    } else {
        crate::skipping::skipped("rsync is not installed");
    }
}

fn assert_same(what: &str, native: &str, mounted: &str) {
    for (left, right) in native.lines().zip(mounted.lines()) {
        assert_eq!(left, right, "{what}");
    }
    assert_eq!(native.lines().count(), mounted.lines().count(), "{what}");
}

#[test]
fn checksums_are_the_origins_in_every_open_mode() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = mixed_tree();
    // Younger files may be read twice.
    origin.settle();
    let expected = checksums(origin.path());
    for mode in open_modes() {
        let mount = Mount::with(origin.path(), &["--open", mode]);
        for round in ["first", "second"] {
            assert_same(
                &format!("{mode}, {round}"),
                &expected,
                &checksums(&mount.node.point),
            );
        }
        assert_eq!(
            mount.stats().get("origin.opens"),
            210,
            "{mode}: every file that has bytes, once"
        );
    }
}

#[test]
fn programs_run_from_the_mount_in_every_open_mode() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = mixed_tree();
    for mode in open_modes() {
        let mount = Mount::with(origin.path(), &["--open", mode]);
        for _ in 0..2 {
            let said = check(Command::new(mount.path("bin/hello.sh")).arg("you"));
            assert_eq!(said, "hello you from hello.sh\n", "{mode}");
            let said = check(Command::new(mount.path("bin/ls")).arg(mount.path("bin")));
            assert_eq!(said, "hello.sh\nls\n", "{mode}");
        }
    }
}

#[test]
fn a_program_links_against_a_library_in_the_mount() {
    if !is_root() {
        skip!("needs root");
    }
    if !has_program("cc") {
        skip!("there is no C compiler");
    }
    let origin = Scratch::new();
    let source = origin.file("src/answer.c", "int answer(void) { return 42; }\n");
    let library = origin.dir("lib").join("libanswer.so");
    check(
        Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&library, &source]),
    );
    let build = Scratch::new();
    let main = build.file(
        "main.c",
        "int answer(void); int main(void) { return answer(); }\n",
    );
    let program = build.path().join("main");
    for mode in open_modes() {
        let mount = Mount::with(origin.path(), &["--open", mode]);
        let libraries = mount.path("lib");
        check(
            Command::new("cc")
                .arg("-o")
                .args([&program, &main])
                .arg("-L")
                .arg(&libraries)
                .arg("-lanswer"),
        );
        for _ in 0..2 {
            let mut run = Command::new(&program);
            let finished = crate::support::run(run.env("LD_LIBRARY_PATH", &libraries));
            assert_eq!(
                finished.status.code(),
                Some(42),
                "{mode}: {}",
                finished.stderr
            );
        }
    }
}

#[test]
fn git_finds_a_repository_clean() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("repo/src/main.c", "int main(void) { return 0; }\n");
    origin.file("repo/README", "a repository\n");
    symlink("src/main.c", origin.path().join("repo/link")).unwrap();
    let setup = "cd \"$1\"; export GIT_CONFIG_GLOBAL=/dev/null
        git init -q -b main .; git config user.name t; git config user.email t@example.invalid
        git add -A; git commit -qm one; echo more >> README; git commit -qam two; git gc -q";
    let repo = origin.path().join("repo");
    sh(setup, &[&repo]);
    let mount = Mount::of(origin.path());
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.env("GIT_CONFIG_GLOBAL", "/dev/null")
            .arg("-C")
            .arg(mount.path("repo"));
        check(git.args(arguments))
    };
    assert_eq!(git(&["status", "--porcelain"]), "");
    assert_eq!(git(&["log", "--format=%s"]), "two\none\n");
    assert_eq!(git(&["show", "HEAD:README"]), "a repository\nmore\n");
    git(&["fsck", "--strict"]);
    std::fs::write(repo.join("README"), "changed\n").unwrap();
    mount.clear("/repo");
    assert_eq!(git(&["status", "--porcelain"]), " M README\n");
}

#[test]
fn sqlite_reads_a_database() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let make = "import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute('create table t(a integer, b text)')
db.executemany('insert into t values(?, ?)', [(i, 'x' * (i % 300)) for i in range(20000)])
db.commit()";
    check(
        python()
            .args(["-c", make])
            .arg(origin.path().join("data.db")),
    );
    let mount = Mount::of(origin.path());
    let ask = "import sqlite3, sys
db = sqlite3.connect('file:' + sys.argv[1] + '?mode=ro', uri=True)
print(*db.execute('select count(*), sum(a) from t').fetchone())
print(*db.execute('pragma integrity_check').fetchone())
try: db.execute('insert into t values(1, 2)')
except sqlite3.OperationalError as e: print('refused')";
    let said = check(python().args(["-c", ask]).arg(mount.path("data.db")));
    assert_eq!(said, "20000 199990000\nok\nrefused\n");
    if has_program("sqlite3") {
        let query = "select sum(length(b)) from t";
        let said = check(
            Command::new("sqlite3")
                .arg("-readonly")
                .arg(mount.path("data.db"))
                .arg(query),
        );
        assert_eq!(
            said.trim().parse::<u64>().unwrap(),
            (0..20_000_u64).map(|i| i % 300).sum::<u64>()
        );
    }
}

#[test]
fn memory_maps_and_locks_work_as_on_a_disk() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let content = noise(1, 5 << 20);
    let file = origin.file("data", &content);
    let script = "import fcntl, hashlib, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
shared = mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
private = mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
print(hashlib.sha256(shared).hexdigest())
private[0:4] = b'mine'
assert private[0:4] == b'mine' and shared[0:4] != b'mine'
print(hashlib.sha256(private[4:]).hexdigest() == hashlib.sha256(shared[4:]).hexdigest())
for lock in fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN: fcntl.flock(fd, lock)
fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
out = os.memfd_create('out')
print(os.sendfile(out, fd, 0, 1 << 20), os.lseek(fd, 0, os.SEEK_DATA), os.lseek(fd, 0, os.SEEK_HOLE))";
    let digest = sh("sha256sum < \"$1\" | cut -d ' ' -f 1", &[&file]);
    let expected = format!("{digest}True\n{} 0 {}\n", 1 << 20, content.len());
    settle(origin.path());
    for mode in open_modes() {
        let mount = Mount::with(origin.path(), &["--open", mode]);
        for _ in 0..3 {
            let said = check(python().args(["-c", script]).arg(mount.path("data")));
            assert_eq!(said, expected, "{mode}");
        }
    }
}

#[test]
fn sixty_four_processes_read_a_tree_at_once_and_storage_sees_it_once() {
    if !is_root() {
        skip!("needs root");
    }
    let files = packages();
    let dir = files.path.join("package_03");
    let native = sh("cat \"$1\"/* | md5sum", &[&dir]);
    let mount = Mount::of(&files.path);
    let out = Scratch::new();
    let mut readers: Vec<Background> = (0..64)
        .map(|number| {
            let file = std::fs::File::create(out.path().join(number.to_string())).unwrap();
            let mut reader = Command::new("sh");
            reader
                .args(["-c", "cat \"$1\"/* | md5sum", "sh"])
                .arg(mount.path("package_03"));
            Background::spawn(reader.stdin(Stdio::null()).stdout(file))
        })
        .collect();
    for reader in &mut readers {
        assert!(
            reader
                .exit_within(Duration::from_secs(60))
                .expect("an end")
                .success()
        );
    }
    for number in 0..64 {
        assert_eq!(
            std::fs::read_to_string(out.path().join(number.to_string())).unwrap(),
            native
        );
    }
    assert_eq!(mount.stats().get("origin.opens"), 50);
}

/// Imports of real packages run from the mount.
#[test]
fn python_imports_numpy_pandas_and_sympy() {
    if !is_root() {
        skip!("needs root");
    }
    let top = match real_packages() {
        Ok(top) => top,
        Err(reason) => skip!("{reason}"),
    };
    let mount = Mount::of(top);
    let script = "import sys, numpy, pandas, sympy
assert all(m.__file__.startswith(sys.argv[1]) for m in (numpy, pandas, sympy))
print(numpy.linalg.det(numpy.eye(3)))
print(pandas.DataFrame({'a': [1, 2, 3]}).a.sum())
x = sympy.Symbol('x'); print(sympy.integrate(2 * x, x))";
    for _ in 0..2 {
        let mut run = python();
        run.args(["-S", "-c", script])
            .arg(&mount.node.point)
            .env("PYTHONPATH", &mount.node.point);
        assert_eq!(check(&mut run), "1.0\n6\nx**2\n");
    }
}

/// Debian's PyTorch, libraries included, from a mount that serves `/usr`.
#[test]
fn python_imports_debians_torch() {
    if !is_root() {
        skip!("needs root");
    }
    if !Path::new("/usr/lib/python3/dist-packages/torch").is_dir() {
        skip!("Debian's python3-torch is not installed");
    }
    let mount = Mount::serving(&["--origin", "/usr=file:///usr"]);
    let script = "import sys; sys.path[:0] = [sys.argv[1] + '/usr/lib/python3/dist-packages']
import torch
assert torch.__file__.startswith(sys.argv[1])
print(torch.ones(3, 4).sum().item())
maps = open('/proc/self/maps').read()
assert any(sys.argv[1] in line and 'libtorch' in line for line in maps.splitlines()), maps";
    let mut run = Command::new("/usr/bin/python3");
    run.args(["-S", "-c", script]).arg(&mount.node.point);
    run.env("LD_LIBRARY_PATH", mount.path("usr/lib/x86_64-linux-gnu"));
    run.env("PYTHONDONTWRITEBYTECODE", "1")
        .env_remove("PYTHONPATH");
    let finished = run_within(&mut run, Duration::from_secs(180));
    assert!(finished.status.success(), "{}", finished.stderr);
    assert_eq!(finished.text(), "12.0\n");
}

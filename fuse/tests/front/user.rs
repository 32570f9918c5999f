//! Mounts of an ordinary user, through fusermount3. Each test runs this binary again as that user.

use crate::fixture::{Fixture, HUNG, SOON, run, runtime};
use crate::memory::Memory;
use crate::skipping::{has_program, is_root, skipped};
use crate::waiting::eventually;
use copperfs_fuse::ioctl::client::{self, ClientError};
use copperfs_fuse::{Ino, MountError, MountOptions, MountState, Op, detach, mount_state};
use std::process::Command;
use std::time::Instant;

/// Runs `"$@"` as `nobody`, in a mount namespace where users may open `/dev/fuse`, as udev permits on most
/// machines (some test machines do not). `COPPERFS_TEST_ROOTS` is an empty directory that root owns.
const AS_NOBODY: &str = r#"
set -e
mknod "$1/fuse" c 10 229
chmod 666 "$1/fuse"
mount --bind "$1/fuse" /dev/fuse
mkdir "$1/roots"
chmod 755 "$1"
export COPPERFS_TEST_ROOTS="$1/roots"
shift
exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
"#;

/// Runs an ignored test of this binary as `nobody`.
fn as_user(test: &str) {
    let tools = ["fusermount3", "setpriv", "unshare", "mknod"];
    if !is_root() || !tools.into_iter().all(has_program) {
        return skipped(&format!("needs root, to become a user, and {tools:?}"));
    }
    let directory = crate::cleanup::directory();
    let output = run(Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            AS_NOBODY,
            "sh",
        ])
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .current_dir("/tmp"));
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{error}");
    assert!(said.contains("1 passed"), "{said}\n{error}");
}

#[test]
fn mounts_reads_and_unmounts() {
    as_user("user::inner_mounts_reads_and_unmounts");
}

#[test]
#[ignore = "run by user::mounts_reads_and_unmounts"]
fn inner_mounts_reads_and_unmounts() {
    let fixture = Fixture::new(|memory| {
        memory.file(Ino::ROOT, "f", "content");
        memory.state().hanging_names.insert("hangs".into());
    });
    let root = fixture.root().to_owned();
    assert_eq!(std::fs::read(fixture.path("f")).unwrap(), b"content");
    assert_eq!(mount_state(&root).unwrap(), MountState::Live);
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = text
        .lines()
        .find(|line| line.contains(root.to_str().unwrap()))
        .unwrap();
    assert!(line.contains(" ro,nosuid,nodev,"), "{line}");
    assert!(line.contains(" fuse.copperfs copperfs ro,"), "{line}");
    // The push and the ioctl need no privilege.
    std::fs::read_dir(&root).unwrap().count();
    eventually(SOON, "pushed", || {
        fixture.mount.counters().push_pending.get() == 0
    });
    assert!(
        client::node_stats(&root)
            .unwrap()
            .contains("coalesced 4711\n")
    );
    client::clear(&root, b"f", false).unwrap();
    // With a file in use the unmount is lazy, and the daemon's side ends all the same.
    let file = std::fs::File::open(fixture.path("f")).unwrap();
    let start = Instant::now();
    let Fixture { mount, .. } = fixture;
    mount.unmount().unwrap();
    assert!(start.elapsed() < HUNG);
    assert_eq!(mount_state(&root).unwrap(), MountState::NotMounted);
    drop(file);
}

#[test]
fn stale_mounts_are_found_and_detached() {
    as_user("user::inner_stale_mounts_are_found_and_detached");
}

#[test]
#[ignore = "run by user::stale_mounts_are_found_and_detached"]
fn inner_stale_mounts_are_found_and_detached() {
    let directory = crate::cleanup::directory();
    crate::life::make_stale(directory.path());
    assert_eq!(mount_state(directory.path()).unwrap(), MountState::Stale);
    detach(directory.path()).unwrap();
    assert_eq!(
        mount_state(directory.path()).unwrap(),
        MountState::NotMounted
    );
}

#[test]
fn allow_other_needs_permission() {
    if std::fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|text| text.lines().any(|line| line.trim() == "user_allow_other"))
    {
        return skipped("user_allow_other is set here");
    }
    as_user("user::inner_allow_other_needs_permission");
}

#[test]
#[ignore = "run by user::allow_other_needs_permission"]
fn inner_allow_other_needs_permission() {
    let directory = crate::cleanup::directory();
    let mut options = MountOptions::new(directory.path());
    options.allow_other = true;
    let error = copperfs_fuse::mount(Memory::new(), options, runtime().handle()).unwrap_err();
    assert!(matches!(error, MountError::AllowOtherRefused), "{error:?}");
    assert!(error.to_string().contains("user_allow_other"), "{error}");
}

#[test]
fn passthrough_needs_privilege() {
    as_user("passthrough::inner_passthrough_needs_privilege");
}

#[test]
fn a_foreign_mount_point_is_refused_with_the_helpers_message() {
    as_user("user::inner_a_foreign_mount_point_is_refused");
}

#[test]
#[ignore = "run by user::a_foreign_mount_point_is_refused_with_the_helpers_message"]
fn inner_a_foreign_mount_point_is_refused() {
    #[expect(
        clippy::disallowed_methods,
        reason = "the script that runs this test passes a directory"
    )]
    let path = std::env::var_os("COPPERFS_TEST_ROOTS").unwrap();
    let options = MountOptions::new(path);
    let error = copperfs_fuse::mount(Memory::new(), options, runtime().handle()).unwrap_err();
    let MountError::Fusermount { message, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(message.contains("no write access"), "{message}");
}

/// On a mount that root makes for all users, a user may read the counters but not clear the cache.
#[test]
fn clear_is_for_the_owner_and_root() {
    if !is_root() {
        return skipped("needs root");
    }
    let fixture = Fixture::with(
        |options| options.allow_other = true,
        |memory| {
            memory.file(Ino::ROOT, "f", "content");
        },
    );
    let said = run(Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args([python_for_all(), "-c"])
        .arg(format!(
            "import fcntl, os, errno\n\
             fd = os.open({:?}, os.O_RDONLY)\n\
             assert fcntl.ioctl(fd, {}, bytearray({})) == 0\n\
             try: fcntl.ioctl(fd, {}, bytearray({}))\n\
             except OSError as e: print(errno.errorcode[e.errno])\n",
            fixture.root(),
            copperfs_fuse::ioctl::NODE_STATS,
            copperfs_fuse::ioctl::STATS_BYTES,
            copperfs_fuse::ioctl::CLEAR,
            copperfs_fuse::ioctl::CLEAR_BYTES,
        )));
    let error = String::from_utf8_lossy(&said.stderr);
    assert_eq!(String::from_utf8_lossy(&said.stdout), "EPERM\n", "{error}");
    assert!(fixture.memory.state().cleared.is_empty());
    client::clear(fixture.root(), b"", true).unwrap();
    assert_eq!(fixture.memory.state().cleared.len(), 1);
    assert!(fixture.requests(Op::Ioctl) >= 3);
    assert!(matches!(
        client::node_stats(std::path::Path::new("/proc")),
        Err(ClientError::NotCopperfs { .. })
    ));
}

/// `user::rw- user:1000:r-- group::--- mask::r-- other::---`: the mode shows the mask as the group's
/// permission (0640), and only the ACL shows that the group has none.
fn acl() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 6, u32::MAX),
        (0x02, 4, 1000),
        (0x04, 0, u32::MAX),
        (0x10, 4, u32::MAX),
        (0x20, 0, u32::MAX),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn the_mask_of_an_acl_grants_the_group_nothing() {
    if !is_root() {
        return skipped("needs root");
    }
    for posix_acl in [false, true] {
        let fixture = Fixture::with(
            |options| {
                options.allow_other = true;
                options.posix_acl = posix_acl;
            },
            |memory| {
                let ino = memory.file(Ino::ROOT, "f", "content");
                memory.change(ino, |node| {
                    node.attr.mode = 0o640;
                    node.attr.gid = 65534;
                    node.xattrs = vec![("system.posix_acl_access".into(), acl().into())];
                });
            },
        );
        let reads_as = |user: &str| {
            let output = run(Command::new("setpriv")
                .args(["--reuid", user, "--regid", user, "--clear-groups", "cat"])
                .arg(fixture.path("f")));
            output.status.success()
        };
        assert_eq!(reads_as("65534"), !posix_acl, "a member of the group");
        assert_eq!(reads_as("1000"), posix_acl, "the user that the ACL names");
        assert!(!reads_as("1001"));
    }
}

/// A Python that other users may run. The first one in PATH may be in a home directory.
fn python_for_all() -> &'static str {
    ["/usr/bin/python3", "/usr/local/bin/python3"]
        .into_iter()
        .find(|path| std::path::Path::new(path).exists())
        .unwrap_or("python3")
}

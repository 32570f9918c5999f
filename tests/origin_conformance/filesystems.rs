//! A file's version includes the identity of its filesystem, as the filesystem reports it.

use crate::fixtures::path;
use crate::skipping::{has_program, is_root, skipped};
use crate::waiting::until;
use bytes::Bytes;
use copperfs::origin::{Origin, OriginOptions, PosixOrigin};
use copperfs_overlay::{Attributes, Standing};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn sh(script: &str, arguments: &[&Path]) {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script, "sh"]);
    let done = command.args(arguments).output().expect("bash");
    assert!(done.status.success(), "{script}: {done:?}");
}

fn has_programs(names: &[&str]) -> bool {
    let all = is_root() && names.iter().all(|name| has_program(name));
    if !all {
        skipped(&format!("needs root and {names:?}"));
    }
    all
}

/// A mount, until the guard is dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

fn mount(image: &Path, point: &Path) -> Mounted {
    std::fs::create_dir_all(point).expect("a mount point");
    sh("mount -o loop \"$1\" \"$2\"", &[image, point]);
    Mounted(point.to_owned())
}

/// Attributes of `name`, from a new origin at `root`, as in a new launch.
async fn attributes(root: &Path, name: &str) -> Attributes {
    let origin = PosixOrigin::open(root, &OriginOptions::default()).expect("an origin");
    let parent = path(name.rsplit_once('/').map_or("", |(parent, _)| parent));
    let last = name.rsplit('/').next().unwrap_or(name).to_owned();
    let mut answers = origin
        .stat(parent, vec![Bytes::from(last)])
        .await
        .expect("an answer");
    answers.remove(0).expect("attributes")
}

/// XFS puts a device number into `f_fsid`, and reports a UUID on request. An image is the same through any
/// loop device, and another image is different even on the same device.
#[tokio::test]
async fn xfs_is_known_by_its_uuid_and_not_by_its_device() {
    if !has_programs(&["mkfs.xfs", "xfs_admin", "losetup"]) {
        return;
    }
    let dir = crate::cleanup::directory();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let point = dir.path().join("origin");
    sh("truncate -s 320M \"$1\" && mkfs.xfs -q \"$1\"", &[&one]);
    let mounted = mount(&one, &point);
    std::fs::write(point.join("file"), "bytes").expect("a file");
    drop(mounted);
    // Wait until the image is written back.
    let image = one.display().to_string();
    until(Duration::from_secs(10), "its loop device is free", || {
        let users = Command::new("losetup").args(["-j", &image]).output();
        users.expect("losetup").stdout.is_empty()
    })
    .await;
    sh(
        "cp \"$1\" \"$2\" && xfs_admin -U generate \"$2\"",
        &[&one, &two],
    );

    let mounted = mount(&one, &point);
    let first = attributes(&point, "file").await;
    drop(mounted);
    let mounted = mount(&two, &point);
    let second = attributes(&point, "file").await;
    drop(mounted);
    // Another image takes the loop device, so this one gets another number.
    let other = mount(&two, &dir.path().join("elsewhere"));
    let mounted = mount(&one, &point);
    let again = attributes(&point, "file").await;
    assert!(first.version.is_state_of(&again.version));
    assert_eq!(
        (first.size, first.mtime, first.ctime),
        (second.size, second.mtime, second.ctime)
    );
    assert!(!first.version.has_data_of(&second.version));
    drop((mounted, other));
}

/// The subvolumes of a btrfs have the same inode numbers, below one mount.
#[tokio::test]
async fn subvolumes_are_filesystems_of_their_own() {
    if !has_programs(&["mkfs.btrfs", "btrfs"]) {
        return;
    }
    let dir = crate::cleanup::directory();
    let (image, point) = (dir.path().join("image"), dir.path().join("origin"));
    sh("truncate -s 160M \"$1\" && mkfs.btrfs -q \"$1\"", &[&image]);
    let mounted = mount(&image, &point);
    sh(
        "cd \"$1\"; btrfs -q subvolume create a; echo bytes > a/file; touch -d @1704164645 a/file
         btrfs -q subvolume snapshot a b
         [ $(stat -c '%i %s %Y %Z' a/file) = $(stat -c '%i %s %Y %Z' b/file) ] 2>/dev/null ||
           [ \"$(stat -c '%i %s %Y %Z' a/file)\" = \"$(stat -c '%i %s %Y %Z' b/file)\" ]",
        &[&point],
    );
    let origin = PosixOrigin::open(&point, &OriginOptions::default()).expect("an origin");
    let mut both = Vec::new();
    for name in ["a", "b"] {
        let mut answers = origin
            .stat(path(name), vec![Bytes::from("file")])
            .await
            .expect("an answer");
        both.push(answers.remove(0).expect("attributes").version);
    }
    assert!(!both[0].has_data_of(&both[1]));
    // A subvolume that is mounted separately has the same identity.
    let alone = dir.path().join("alone");
    std::fs::create_dir(&alone).expect("a mount point");
    let a = point.join("a");
    sh("mount --bind \"$1\" \"$2\"", &[&a, &alone]);
    let bound = Mounted(alone.clone());
    let through = PosixOrigin::open(&point, &OriginOptions::default()).expect("an origin");
    let mut answers = through
        .stat(path("a"), vec![Bytes::from("file")])
        .await
        .expect("an answer");
    let through = answers.remove(0).expect("attributes").version;
    assert!(through.is_state_of(&both[0]));
    drop((bound, mounted));
}

/// Without times that changes move, versions are not trusted after the launch, even if the image has a
/// UUID.
#[tokio::test]
async fn files_without_a_time_have_versions_for_one_launch() {
    if !has_programs(&["mkfs.ext4", "debugfs"]) {
        return;
    }
    let dir = crate::cleanup::directory();
    let (image, tree) = (dir.path().join("image"), dir.path().join("tree"));
    std::fs::create_dir(&tree).expect("a directory");
    for name in ["with", "without"] {
        std::fs::write(tree.join(name), "bytes").expect("a file");
    }
    sh(
        "truncate -s 8M \"$1\"; mkfs.ext4 -q -F -O ^metadata_csum -d \"$2\" \"$1\"
         for field in 'with mtime 20240102030405' 'with ctime 20240102030405' \\
             'without mtime 20240102030405' 'without ctime 19700101000000'; do
           echo set_inode_field /$field
         done | debugfs -w \"$1\" >/dev/null 2>&1",
        &[&image, &tree],
    );
    let point = dir.path().join("origin");
    let mounted = mount(&image, &point);
    let standing = |attributes: Attributes| attributes.version.standing();
    let with = standing(attributes(&point, "with").await);
    let without = standing(attributes(&point, "without").await);
    drop(mounted);
    assert_eq!((with, without), (Standing::Lasting, Standing::Launch));
}

//! Filesystem images that differ in their bytes but not in the output of `stat`.

use super::command::{check, has_program, sh};
use super::{Scratch, is_root};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The minimum length of a run of the file's bytes in an image: shorter runs belong to the filesystem.
const BLOCK_BYTES_MIN: usize = 512;
/// Bytes of `file` in an image.
pub const BYTES: usize = 64 << 10;

/// The reason why this machine cannot make images, if there is one.
pub fn missing() -> Option<&'static str> {
    if !is_root() {
        return Some("root's rights");
    }
    ["mkfs.ext4", "tune2fs", "mksquashfs", "mount"]
        .into_iter()
        .find(|name| !has_program(name))
}

/// A kind of image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Has a UUID.
    Ext4,
    /// Has no UUID.
    Squashfs,
}

/// Makes an image `name` of `kind` with a file `dir/file` that consists of `fill` bytes. Two such images
/// have equal inode numbers, sizes, times and, if they have one, UUIDs.
#[track_caller]
pub fn image(scratch: &Scratch, kind: Kind, name: &str, fill: u8) -> PathBuf {
    let image = scratch.path().join(name);
    let tree = scratch.dir(&format!("{name}.tree"));
    scratch.file(&format!("{name}.tree/dir/file"), vec![b'A'; BYTES]);
    let script = match kind {
        Kind::Ext4 => {
            "truncate -s 8M \"$1\"
             mkfs.ext4 -q -F -O ^metadata_csum,^has_journal \\
               -U 7c1f0e52-3a44-4f5e-9d0b-0d7a5e1c2b3a \\
               -E hash_seed=7c1f0e52-3a44-4f5e-9d0b-0d7a5e1c2b3a -d \"$2\" \"$1\"
             for of in / /dir /dir/file; do
               for field in atime mtime ctime crtime; do
                 echo set_inode_field $of $field 20240102030405
                 echo set_inode_field $of ${field}_extra 0
               done
             done | debugfs -w \"$1\" >/dev/null 2>&1"
        }
        Kind::Squashfs => {
            "mksquashfs \"$2\" \"$1\" -noappend -quiet -no-progress -noD -noF -noI \\
               -all-time 1704164645 -mkfs-time 1704164645"
        }
    };
    sh(script, &[&image, &tree]);
    // Changes only the file's bytes, without the filesystem.
    let mut all = fs::read(&image).unwrap();
    let mut filled = 0;
    // The bytes may be in several runs of whole blocks.
    for run in all.chunk_by_mut(|one, next| (*one == b'A') == (*next == b'A')) {
        if run[0] == b'A' && run.len() >= BLOCK_BYTES_MIN {
            run.fill(fill);
            filled += run.len();
        }
    }
    assert_eq!(
        filled, BYTES,
        "the file's bytes lie in the image as they are"
    );
    fs::write(&image, all).unwrap();
    image
}

/// Gives the image another UUID; the output of `stat` stays the same.
#[track_caller]
pub fn renamed(image: &Path) {
    let uuid = "11111111-2222-4333-8444-555555555555";
    check(Command::new("tune2fs").args(["-f", "-U", uuid]).arg(image));
}

/// A mounted image, until the guard is dropped.
#[derive(Debug)]
pub struct Mounted(PathBuf);

impl Mounted {
    #[track_caller]
    pub fn at(point: &Path, image: &Path) -> Self {
        check(
            Command::new("mount")
                .args(["-o", "loop,ro"])
                .args([image, point]),
        );
        Self(point.to_owned())
    }

    /// Detaches it even if files are open, and mounts another image there.
    #[track_caller]
    pub fn replace(self, image: &Path) -> Self {
        let point = self.0.clone();
        drop(self);
        Self::at(&point, image)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

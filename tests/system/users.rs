//! Permissions on a mount that several users share.

use crate::skip;
use crate::support::command::{as_user, has_program, run};
use crate::support::fixture::{NOBODY, files_with_rights};
use crate::support::{Mount, Scratch, check, is_root, program_for_all};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

fn reads(user: u32, group: u32, path: &Path) -> Result<String, String> {
    let finished = run(as_user(user, group, "cat").arg(path));
    if finished.status.success() {
        Ok(finished.text())
    } else {
        Err(finished.stderr)
    }
}

#[track_caller]
fn denied(user: u32, group: u32, path: &Path) {
    let outcome = reads(user, group, path);
    assert!(
        matches!(&outcome, Err(why) if why.contains("Permission denied")),
        "{outcome:?}"
    );
}

/// The kernel checks the origin's modes for every user, as on the origin.
#[test]
fn the_origins_modes_hold_for_other_users() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    files_with_rights(&origin);
    let mount = Mount::with(origin.path(), &["--allow-other"]);
    for warm in [false, true] {
        let may = |name: &str| reads(NOBODY, NOBODY, &mount.path(name));
        assert_eq!(may("all").as_deref(), Ok("all"), "warm: {warm}");
        assert_eq!(may("group").as_deref(), Ok("group"));
        assert_eq!(may("owner").as_deref(), Ok("owner"));
        assert_eq!(may("search/inside").as_deref(), Ok("search/inside"));
        for name in ["root_only", "not_the_owner", "closed/inside"] {
            denied(NOBODY, NOBODY, &mount.path(name));
        }
        denied(NOBODY, 0, &mount.path("not_the_owner"));
        let list = run(as_user(NOBODY, NOBODY, "ls").arg(mount.path("search")));
        assert!(list.refused().contains("Permission denied"), "{list:?}");
        assert_eq!(
            fs::read_to_string(mount.path("root_only")).unwrap(),
            "root_only"
        );
    }
}

/// Without `--allow-other` the mount is its owner's alone.
#[test]
fn a_mount_is_its_owners_alone_unless_told() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("all", "all");
    let mount = Mount::of(origin.path());
    denied(NOBODY, NOBODY, &mount.path("all"));
    assert_eq!(fs::read_to_string(mount.path("all")).unwrap(), "all");
}

/// An ACL's mask shows as the mode's group bits. A kernel that saw the mode alone would grant the owning group the rights
/// of a named user.
#[test]
fn a_mask_is_not_a_groups_right() {
    if !is_root() {
        skip!("needs root");
    }
    if !has_program("setfacl") {
        skip!("setfacl is not installed");
    }
    const NAMED: u32 = 64_001;
    const GROUP: u32 = 64_002;
    const MEMBER: u32 = 64_003;
    let origin = Scratch::new();
    let file = origin.file("file", "for one user");
    chown(&file, Some(0), Some(GROUP)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let set = run(Command::new("setfacl")
        .args(["-n", "-m", &format!("u:{NAMED}:r--,m::r--")])
        .arg(&file));
    if !set.status.success() {
        skip!("the temporary directory has no ACLs: {}", set.stderr);
    }
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o640
    );
    // What the origin's own kernel says.
    assert!(reads(NAMED, NAMED, &file).is_ok());
    denied(MEMBER, GROUP, &file);
    let mount = Mount::with(origin.path(), &["--allow-other"]);
    let mounted = mount.path("file");
    for _ in 0..2 {
        assert_eq!(reads(NAMED, NAMED, &mounted).as_deref(), Ok("for one user"));
        denied(MEMBER, GROUP, &mounted);
        denied(NOBODY, NOBODY, &mounted);
    }
    let acl = |path: &Path| check(Command::new("getfacl").args(["-nEc"]).arg(path));
    assert_eq!(acl(&mounted), acl(&file));
}

/// `clear` is the owner's and root's.
#[test]
fn clear_is_refused_to_other_users() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("all", "all");
    let programs = Scratch::new();
    let program = program_for_all(&programs);
    let mount = Mount::with(origin.path(), &["--allow-other"]);
    assert_eq!(
        reads(NOBODY, NOBODY, &mount.path("all")).as_deref(),
        Ok("all")
    );
    let cached = mount.stats().get("cache.data.entries");
    assert_eq!(cached, 1);
    let command = |verb: &str| {
        let mut command = as_user(NOBODY, NOBODY, program.to_str().unwrap());
        command
            .args(verb.split(' '))
            .arg(&mount.node.point)
            .env("COPPERFS_MEMORY", "64MiB");
        run(&mut command)
    };
    let refused = command("clear --everything");
    assert!(refused.refused().contains("owner"), "{refused:?}");
    assert_eq!(mount.stats().get("cache.data.entries"), 1);
    let stats = command("stats");
    assert!(stats.status.success(), "everybody may look: {stats:?}");
    mount.clear("/");
    assert_eq!(mount.stats().get("cache.data.entries"), 0);
}

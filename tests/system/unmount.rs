//! `copperfs unmount`: a mount in use stays, and a launch is unmounted as a whole or not at all.

use crate::skip;
use crate::support::command::{Background, Finished};
use crate::support::kernel::mount_at;
use crate::support::{Mount, Scratch, Tree, check, copperfs, eventually, is_root, run};
use copperfs_fuse::MountUse;
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn unmount(point: &Path) -> Finished {
    run(copperfs(["unmount"]).arg(point))
}

/// A directory with a file, and a program.
fn origin() -> Scratch {
    let origin = Scratch::new();
    origin.file("dir/file", vec![b'x'; 100_000]);
    let program = origin.path().join("sleep");
    fs::copy("/usr/bin/sleep", &program).unwrap();
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    let find = "ldconfig -p | awk '/libm.so.6/ { path = $NF } END { print path }'";
    let library = crate::support::sh(find, &[]);
    fs::copy(library.trim_end(), origin.path().join("library")).unwrap();
    origin.settle();
    origin
}

/// Starts a shell script that prints a line when it uses the mount, whose path is `$1`.
fn user(script: &str, point: &Path) -> Background {
    let mut command = Command::new("bash");
    command
        .args(["-c", script, "user"])
        .arg(point)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut user = Background::spawn(&mut command);
    let mut line = String::new();
    BufReader::new(user.stdout()).read_line(&mut line).unwrap();
    assert_eq!(line, "in\n", "{script}");
    user
}

/// A mount in use stays, whatever uses it, and each user is named with its process id. After they have
/// ended it is unmounted without force.
#[test]
fn a_mount_in_use_stays_and_its_users_are_named() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let mount = Mount::of(origin.path());
    let point = mount.node.point.clone();
    // The library is mapped, and its file is closed.
    const MAP: &str = "exec python3 -c \"import ctypes, sys
held = ctypes.CDLL(sys.argv[1] + '/library')
print('in', flush=True)
sys.stdin.read()\" \"$1\"";
    let scripts = [
        ("exec 9<\"$1/dir/file\"; echo in; read -r _", "open file"),
        ("cd \"$1/dir\"; echo in; read -r _", "working directory"),
        ("cd /; echo in; exec \"$1/sleep\" 60", "program"),
        (MAP, "mapping"),
    ];
    for (script, by) in scripts {
        let user = user(script, &point);
        // Wait until the shell has executed the program.
        if by == "program" {
            eventually(Duration::from_secs(5), "it runs", || {
                let exe = format!("/proc/{}/exe", user.pid().as_raw_nonzero());
                fs::read_link(exe).is_ok_and(|exe| exe.starts_with(&point))
            });
        }
        let refused = unmount(&point);
        let said = refused.refused();
        assert!(said.contains("is in use by") && said.contains(by), "{said}");
        let pid = user.pid().as_raw_nonzero().to_string();
        assert!(said.contains(&pid), "{pid}: {said}");
        assert!(mount.is_mounted() && mount.is_alive());
        drop(user);
        end_children_of(&point);
    }
    assert!(fs::read(mount.path("dir/file")).unwrap().len() == 100_000);
    check(copperfs(["unmount"]).arg(&point));
    assert!(!mount.is_mounted() && !mount.is_alive());
}

/// Ends remaining processes of a script that still use the mount.
fn end_children_of(point: &Path) {
    let users = || -> Vec<u32> {
        let devices = copperfs::daemon::busy::devices_at(point, None);
        let users = copperfs::daemon::busy::users(&devices, &[point.to_owned()]);
        let pid = |user: &copperfs::daemon::busy::User| match user {
            copperfs::daemon::busy::User::Process { pid, .. } => Some(*pid),
            copperfs::daemon::busy::User::Mount(_) => None,
        };
        users.iter().filter_map(pid).collect()
    };
    eventually(Duration::from_secs(5), "all are gone", || {
        for pid in users() {
            let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            let _gone = rustix::process::kill_process(pid, Signal::KILL);
        }
        users().is_empty()
    });
}

/// An open file can be read after a refused `unmount`, and fails after one with force.
#[test]
fn an_open_file_reads_on_after_a_refused_unmount() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let mount = Mount::of(origin.path());
    let mut open = File::open(mount.path("dir/file")).unwrap();
    let refused = unmount(&mount.node.point);
    let own = std::process::id().to_string();
    assert!(refused.refused().contains(&own), "{refused:?}");
    let mut bytes = Vec::new();
    open.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), 100_000);
    check(copperfs(["unmount", "--force"]).arg(&mount.node.point));
    assert!(!mount.is_mounted() && !mount.is_alive());
}

/// A process in its own mount namespace and pid namespace is a user too, and is named by its number here.
#[test]
fn a_user_in_another_namespace_is_named() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let mount = Mount::of(origin.path());
    let script = "exec unshare --mount --pid --fork --kill-child --propagation private \
        bash -c 'cd \"$1/dir\"; echo in; read -r _; :' inside \"$1\"";
    let inside = user(script, &mount.node.point);
    let refused = unmount(&mount.node.point);
    assert!(
        refused.refused().contains("(bash: working directory)"),
        "{refused:?}"
    );
    drop(inside);
    end_children_of(&mount.node.point);
    check(copperfs(["unmount"]).arg(&mount.node.point));
    assert!(!mount.is_alive());
}

/// A root that serves other nodes is unmounted only with force; a leaf and the last node are unmounted
/// normally.
#[test]
fn a_root_alone_is_refused_while_others_read_through_it() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let tree = Tree::launch(3, 1, origin.path(), &[]);
    let root = &tree.root().point;
    let refused = unmount(root);
    assert!(refused.refused().contains("2 other nodes"), "{refused:?}");
    assert!(tree.root().is_alive());
    check(copperfs(["unmount"]).arg(&tree.leaf().point));
    let refused = unmount(root);
    assert!(
        refused.refused().contains("another node reads"),
        "{refused:?}"
    );
    check(copperfs(["unmount", "--force"]).arg(root));
    assert!(!tree.root().is_alive() && tree.nodes[1].is_alive());
}

/// All nodes of a launch are asked before any is unmounted: if one is in use, all stay. Any of its mounts
/// identifies the launch.
#[test]
fn a_launch_goes_as_a_whole_or_not_at_all() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let tree = Tree::launch(3, 2, origin.path(), &[]);
    let stand = |up: bool| {
        let mut nodes = tree.nodes.iter();
        nodes.all(|node| node.is_alive() == up && node.is_mounted() == up)
    };
    // The last node would be unmounted first, and the first one is in use.
    let open = File::open(tree.path(0, "dir/file")).unwrap();
    for named in [&tree.base(), &tree.nodes[1].point] {
        let refused = run(copperfs(["unmount", "--all"]).arg(named));
        let said = refused.refused();
        assert!(said.contains("1 of 3 nodes are in use"), "{said}");
        assert!(
            said.contains(&tree.root().point.display().to_string()),
            "{said}"
        );
        assert!(
            said.contains(&format!("{} (", std::process::id())),
            "{said}"
        );
        assert!(stand(true), "none has gone");
    }
    drop(open);
    let said = check(copperfs(["unmount", "--all"]).arg(&tree.nodes[1].point));
    assert_eq!(said.lines().count(), 3, "{said}");
    assert!(stand(false));
}

/// A launch in use is unmounted with force, and its data mount identifies it too.
#[test]
fn a_launch_in_use_goes_with_force() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let data = Scratch::new();
    let base = data.path().join("data").display().to_string();
    let tree = Tree::launch(2, 1, origin.path(), &["--data-mount", &base]);
    let second = Path::new(&base).join("1");
    let open = File::open(second.join("dir/file")).unwrap();
    let refused = run(copperfs(["unmount", "--all"]).arg(&second));
    assert!(
        refused.refused().contains("1 of 2 nodes are in use"),
        "{refused:?}"
    );
    check(copperfs(["unmount", "--all", "--force"]).arg(&second));
    assert!(
        tree.nodes
            .iter()
            .all(|node| !node.is_alive() && !node.is_mounted())
    );
    assert!(mount_at(&second).is_none());
    drop(open);
}

/// Without a mount point, the default is the mount that a variable names, or the only mount of this user.
#[test]
fn a_variable_names_the_mount() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let mount = Mount::of(origin.path());
    let mut unmount = copperfs(["umount"]);
    check(unmount.env("COPPERFS_MOUNTPOINT", &mount.node.point));
    assert!(!mount.is_mounted() && !mount.is_alive());
}

/// Asking whether a mount is in use unmounts nothing, however often it is asked (the kernel's way to ask is
/// the first half of an unmount), and the answer is correct.
#[test]
fn asking_whether_a_mount_is_in_use_leaves_it_there() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let mount = Mount::of(origin.path());
    let point = &mount.node.point;
    for _ in 0..5 {
        assert_eq!(copperfs_fuse::mount_use(point).unwrap(), MountUse::Idle);
        check(copperfs(["unmount", "--check"]).arg(point));
        assert!(mount.is_mounted());
    }
    let open = File::open(mount.path("dir/file")).unwrap();
    assert_eq!(copperfs_fuse::mount_use(point).unwrap(), MountUse::Busy);
    let refused = run(copperfs(["unmount", "--check"]).arg(point));
    assert!(refused.refused().contains("open file"), "{refused:?}");
    drop(open);
    assert_eq!(copperfs_fuse::mount_use(point).unwrap(), MountUse::Idle);
    assert_eq!(fs::read(mount.path("dir/file")).unwrap().len(), 100_000);
}

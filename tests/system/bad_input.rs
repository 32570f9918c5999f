//! A mount that fails states the reason and a remedy, and leaves no mount, process or file.

use crate::skip;
use crate::support::kernel::mount_at;
use crate::support::mount::forget_runtime_dir;
use crate::support::tree::{Members, write_secret};
use crate::support::{Finished, Mount, Scratch, copperfs, is_root};
use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, Instant};

/// The message of a mount that is refused, after a look that nothing is left.
#[track_caller]
fn refused(point: &Path, command: &mut std::process::Command) -> String {
    match Mount::try_at(point, command) {
        Ok(mount) => panic!("it mounted: {mount:?}"),
        Err(finished) => {
            nothing_left(point, &finished);
            finished.refused().to_owned()
        }
    }
}

#[track_caller]
fn nothing_left(point: &Path, finished: &Finished) {
    assert!(
        mount_at(point).is_none(),
        "a mount stays behind: {finished:?}"
    );
    assert_eq!(finished.text(), "", "standard output is for success");
}

#[track_caller]
fn says(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
}

#[test]
fn origins_that_cannot_be_served() {
    if !is_root() {
        skip!("needs root");
    }
    let scratch = Scratch::new();
    let point = scratch.dir("mnt");
    scratch.file("file", "not a directory");
    let missing = format!("/=file://{}/nowhere", scratch.path().display());
    says(
        &refused(&point, &mut copperfs(["mount", "--origin", &missing])),
        &["nowhere"],
    );
    let file = format!("/=file://{}/file", scratch.path().display());
    says(
        &refused(&point, &mut copperfs(["mount", "--origin", &file])),
        &["directory"],
    );
    // Root names its origins.
    says(&refused(&point, &mut copperfs(["mount"])), &["--origin"]);
}

#[test]
fn mount_points_that_are_not_fit() {
    if !is_root() {
        skip!("needs root");
    }
    let scratch = Scratch::new();
    let origin = format!("/=file://{}", scratch.dir("origin").display());
    let file = scratch.file("file", "");
    scratch.file("full/file", "");
    let mount = || copperfs(["mount", "--origin", &origin]);
    says(&refused(&file, &mut mount()), &["not a directory"]);
    says(
        &refused(&scratch.path().join("full"), &mut mount()),
        &["not empty"],
    );
    let point = scratch.dir("mnt");
    let first = Mount::at(&point, &mut mount());
    let again = Mount::try_at(&point, &mut mount()).expect_err("a second mount");
    says(again.refused(), &["already", "copperfs unmount"]);
    assert!(
        first.is_alive() && fs::read_dir(&point).unwrap().count() == 0,
        "the first lives on"
    );
}

#[test]
fn options_that_make_no_sense() {
    let scratch = Scratch::new();
    let point = scratch.dir("mnt");
    let origin = format!("/=file://{}", scratch.dir("origin").display());
    let refuse = |flags: &[&str], words: &[&str]| {
        let mut command = copperfs(["mount", "--origin", &origin]);
        says(&refused(&point, command.args(flags)), words);
    };
    refuse(&["--memory", "10 bananas"], &["bananas", "--memory"]);
    refuse(&["--arity", "0"], &["--arity"]);
    refuse(&["--request-timeout", "soon"], &["soon"]);
    refuse(&["--open", "sometimes"], &["sometimes"]);
    let config = scratch.file("config.toml", "memroy = \"1GiB\"\n");
    refuse(
        &["--config", config.to_str().unwrap()],
        &["memroy", "memory"],
    );
}

/// Wrong secret: the child receives no byte, and gives up long before its timeout with the cause.
#[test]
fn a_wrong_secret_is_refused() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("file", "content");
    let members = Members::new(2, origin.path());
    let root = members.start(0, &["--request-timeout", "3s"]);
    let other = Scratch::new();
    let wrong = other.path().join("secret");
    write_secret(&wrong);
    let start = Instant::now();
    let flags = [
        "--request-timeout",
        "60s",
        "--secret-file",
        wrong.to_str().unwrap(),
    ];
    let message = refused(&members.point(1), &mut members.command(1, &flags));
    says(
        &message,
        &["is not accepted", "do not have the same job secret"],
    );
    // It waits 5 s for a node of an earlier job to end, and not for the answer to a request.
    assert!(
        start.elapsed() < Duration::from_secs(40),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(root.stats().get("downstream.sent_bytes"), 0);
    let child = members.start(1, &["--request-timeout", "3s"]);
    assert_eq!(
        fs::read(child.path("file")).unwrap(),
        b"content",
        "the right one still comes in"
    );
}

#[test]
fn secrets_that_are_no_secret() {
    if !is_root() {
        skip!("needs root");
    }
    use std::os::unix::fs::PermissionsExt;
    let origin = Scratch::new();
    let members = Members::new(2, origin.path());
    let mut none = copperfs(["mount", "--hosts", &members.hosts, "--rank", "0"]);
    none.arg("--origin")
        .arg(format!("/=file://{}", origin.path().display()));
    says(&refused(&members.point(0), &mut none), &["secret"]);
    let exposed = origin.file("exposed", "0".repeat(64));
    fs::set_permissions(&exposed, fs::Permissions::from_mode(0o644)).unwrap();
    let flags = ["--secret-file", exposed.to_str().unwrap()];
    says(
        &refused(&members.point(0), &mut members.command(0, &flags)),
        &["0644", "chmod 600"],
    );
    let short = origin.file("short", "abc\n");
    fs::set_permissions(&short, fs::Permissions::from_mode(0o600)).unwrap();
    let flags = ["--secret-file", short.to_str().unwrap()];
    says(
        &refused(&members.point(0), &mut members.command(0, &flags)),
        &["secret"],
    );
}

#[test]
fn a_port_that_is_taken() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let members = Members::new(2, origin.path());
    let address = members.hosts.split(',').next().unwrap();
    let _taken = UdpSocket::bind(address).unwrap();
    let port = address.rsplit(':').next().unwrap();
    says(
        &refused(&members.point(0), &mut members.command(0, &[])),
        &[port, "in use"],
    );
}

#[test]
fn host_lists_that_are_wrong() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let point = origin.dir("mnt");
    let served = format!("/=file://{}", origin.dir("origin").display());
    let secret = origin.path().join("secret");
    write_secret(&secret);
    let refuse = |hosts: &str, flags: &[&str], words: &[&str]| {
        let mut command = copperfs(["mount", "--origin", &served, "--hosts", hosts]);
        says(
            &refused(
                &point,
                command.arg("--secret-file").arg(&secret).args(flags),
            ),
            words,
        );
    };
    refuse(
        "other1.invalid,other2.invalid",
        &[],
        &["not in the host list", "--rank"],
    );
    refuse(
        "a.invalid,b.invalid,a.invalid",
        &["--rank", "0"],
        &["more than once", "a.invalid"],
    );
    refuse("a.invalid,b.invalid", &["--rank", "7"], &["rank 7"]);
    refuse("/no/such/file", &[], &["/no/such/file"]);
    refuse(",", &[], &["names no host"]);
    let empty = origin.file("empty", "# nobody\n");
    refuse(empty.to_str().unwrap(), &[], &["names no host"]);
}

/// A list with one entry is a mount of one node.
#[test]
fn a_host_list_with_one_entry_is_enough() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("file", "content");
    let members = Members::new(1, origin.path());
    let mount = members.start(0, &[]);
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"content");
}

/// Missing parent: the child says so within its time limit, and leaves no mount, process or file.
#[test]
fn a_parent_that_is_not_there() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let members = Members::new(2, origin.path());
    let start = Instant::now();
    let message = refused(
        &members.point(1),
        &mut members.command(1, &["--request-timeout", "2s"]),
    );
    says(&message, &[members.hosts.split(',').next().unwrap()]);
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?}",
        start.elapsed()
    );
}

/// A launch of which one node cannot come up takes the others down again.
#[test]
fn a_launch_is_all_or_nothing() {
    if !is_root() {
        skip!("needs root");
    }
    let scratch = Scratch::new();
    let base = scratch.dir("mnt");
    scratch.file("mnt/2/in the way", "");
    let served = format!("/=file://{}", scratch.dir("origin").display());
    let mut launch = copperfs(["launch", "--hosts", "local:4", "--origin", &served]);
    let finished = crate::support::run(launch.arg(&base));
    says(finished.refused(), &["not empty"]);
    for rank in 0..4 {
        let point = base.join(rank.to_string());
        assert!(mount_at(&point).is_none(), "node {rank} is left");
        forget_runtime_dir(&point, None);
    }
}

/// A machine, or a container, without the FUSE device.
#[test]
fn a_machine_without_fuse() {
    if !is_root() {
        skip!("needs root");
    }
    let scratch = Scratch::new();
    let point = scratch.dir("mnt");
    let plain = copperfs(["mount"]);
    let mut hidden = std::process::Command::new("unshare");
    let script = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec \"$@\"";
    hidden.args([
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        script,
        "sh",
    ]);
    hidden.arg(plain.get_program()).args(plain.get_args());
    hidden
        .arg("--origin")
        .arg(format!("/=file://{}", scratch.dir("origin").display()));
    says(&refused(&point, &mut hidden), &["/dev/fuse"]);
}

/// Whatever a stranger sends to a node's port, it serves on.
#[test]
fn garbage_from_the_network_is_no_harm() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("file", "content");
    let members = Members::new(2, origin.path());
    let root = members.start(0, &[]);
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger
        .connect(members.hosts.split(',').next().unwrap())
        .unwrap();
    for number in 0..2_000_u64 {
        let length = usize::try_from(number * 37 % 1400).unwrap();
        let mut packet = crate::support::fixture::noise(number, length);
        // Some look like the beginning of a QUIC connection, version and all.
        if number % 3 == 0 && length > 8 {
            packet[0] |= 0xc0;
            packet[1..5].copy_from_slice(&[0, 0, 0, 1]);
        }
        let _refused = stranger.send(&packet);
    }
    let child = members.start(1, &[]);
    assert_eq!(fs::read(child.path("file")).unwrap(), b"content");
    assert!(root.is_alive());
}

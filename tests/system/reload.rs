//! Options that change while the mount lasts, and those that cannot.

use crate::object_store::{Server, rclone};
use crate::skip;
use crate::support::command::{as_user, run};
use crate::support::datasets::SOON;
use crate::support::fixture::noise;
use crate::support::mount::Node;
use crate::support::tree::Members;
use crate::support::{
    Mount, Scratch, check, copperfs, errno, eventually, is_root, program_for_all,
};
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

fn reloading(node: &Node, flags: &[&str]) -> Command {
    let mut command = copperfs(["reload"]);
    command.arg(&node.point).args(flags);
    command
}

/// What a reload prints.
#[track_caller]
fn reload(node: &Node, flags: &[&str]) -> String {
    check(&mut reloading(node, flags))
}

/// The message of a reload that is refused.
#[track_caller]
fn refused(node: &Node, flags: &[&str]) -> String {
    let finished = run(&mut reloading(node, flags));
    assert_eq!(finished.text(), "", "standard output is for success");
    finished.refused().to_owned()
}

#[test]
fn the_log_becomes_louder_and_moves() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("a", "a");
    let mount = Mount::of(origin.path());
    assert!(!mount.log().contains("DEBUG"));
    assert_eq!(
        reload(&mount, &["--log-level", "debug", "--dry-run"]),
        "log_level: info -> debug\nnothing has changed yet: without --dry-run it would\n"
    );
    assert_eq!(
        reload(&mount, &["--log-level", "debug"]),
        "log_level: info -> debug\n"
    );
    assert!(mount.log().contains("reloaded: log_level: info -> debug"));
    // A reload without a change says so at this level only.
    let debug = || mount.log().matches("DEBUG copperfs::node::reload").count();
    let before = debug();
    reload(&mount, &["--log-level", "debug"]);
    assert_eq!(debug(), before + 1);
    reload(&mount, &["--log-level", "error"]);
    reload(&mount, &["--ttl", "1h"]);
    assert!(debug() == before + 1 && !mount.log().contains("reloaded: ttl"));
    let elsewhere = origin.path().join("other.log");
    let flag = elsewhere.display().to_string();
    reload(&mount, &["--log-file", &flag, "--log-level", "info"]);
    assert!(
        fs::read_to_string(&elsewhere)
            .unwrap()
            .contains("reloaded: log_file: ")
    );
    // As logrotate does.
    let aside = origin.path().join("other.log.1");
    fs::rename(&elsewhere, &aside).unwrap();
    mount.signal(Signal::USR1);
    eventually(SOON, "the log is opened again", || elsewhere.exists());
    reload(&mount, &["--log-level", "warn,copperfs=info"]);
    let text = fs::read_to_string(&elsewhere).unwrap();
    assert!(text.contains("reloaded: log_level"), "{text}");
    assert!(
        !fs::read_to_string(&aside)
            .unwrap()
            .contains("warn,copperfs=info")
    );
}

#[test]
fn a_refused_reload_changes_nothing_and_names_every_key() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let mount = Mount::of(origin.path());
    let message = refused(
        &mount,
        &["--arity", "8", "--log-level", "debug", "--open", "tracked"],
    );
    for words in [
        "nothing has changed: arity is 4, and --arity asks for 8; \
         open is zero-message, and --open asks for tracked",
        "unmount and mount with it",
    ] {
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(
        reload(&mount, &["--log-level", "info"]),
        "nothing has changed\n"
    );
    let message = refused(&mount, &["--ttl", "forever"]);
    assert!(message.contains("--ttl: "), "{message}");
    let message = refused(&mount, &["--log-file", "/nowhere/log", "--ttl", "1h"]);
    assert!(message.contains("/nowhere/log"), "{message}");
    assert_eq!(reload(&mount, &["--ttl", "1d"]), "nothing has changed\n");
    let config = origin.file("job.toml", "log_levle = \"debug\"\n");
    let message = refused(&mount, &["--config", &config.display().to_string()]);
    assert!(
        message.contains("job.toml:1: ") && message.contains("log_level?"),
        "{message}"
    );
    let finished = run(copperfs(["reload"]).arg(origin.path()));
    assert!(
        finished.refused().contains("is not a copperfs mount"),
        "{finished:?}"
    );
}

/// The file of the mount is read again; a key that it no longer sets returns to its default, and flags override it.
#[test]
fn the_file_is_read_again() {
    if !is_root() {
        skip!("needs root");
    }
    let scratch = Scratch::new();
    let origin = scratch.dir("origin");
    let point = scratch.dir("mnt");
    let text = |more: &str| {
        let (origin, point) = (origin.display(), point.display());
        // The mount point is spelt as users do.
        format!("mountpoint = \"{point}/../mnt\"\n{more}[[origin]]\nuri = \"file://{origin}\"\n")
    };
    let config = scratch.file("job.toml", text("ttl = \"1h\"\nlog_level = \"warn\"\n"));
    let mut mount = copperfs(["mount", "--log-level", "info", "--config"]);
    let mount = Mount::at(&point, mount.arg(&config));
    assert_eq!(reload(&mount, &[]), "nothing has changed\n");
    scratch.file(
        "job.toml",
        text("negative_ttl = \"2h\"\nlog_level = \"debug\"\n"),
    );
    assert_eq!(
        reload(&mount, &[]),
        "ttl: 1h -> 1d\nnegative_ttl: 1d -> 2h\n"
    );
    scratch.file("job.toml", text("negative_ttl = \"2h\"\narity = 8\n"));
    let message = refused(&mount, &[]);
    assert!(
        message.contains("job.toml:3: arity asks for 8"),
        "{message}"
    );
    let without = Mount::of(&origin);
    let said = reload(&without, &[]);
    assert!(
        said.contains("no configuration file to read again"),
        "{said}"
    );
}

/// The caches shrink at once, and grow again.
#[test]
fn the_memory_changes() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    for number in 0..60 {
        origin.file(&format!("f{number}"), noise(number, 1 << 20));
    }
    let mount = Mount::with(origin.path(), &["--memory", "128MiB"]);
    let read = || {
        for number in 0..60 {
            assert!(fs::read(mount.path(format!("f{number}"))).unwrap() == noise(number, 1 << 20));
        }
    };
    let held = || mount.stats().get("cache.data.bytes");
    read();
    assert!(held() >= 60 << 20, "{}", held());
    let mut open = File::open(mount.path("f1")).unwrap();
    assert_eq!(
        reload(&mount, &["--memory", "32MiB"]),
        "memory: 128MiB -> 32MiB\n"
    );
    assert!(held() <= 32 << 20, "{}", held());
    let mut bytes = Vec::new();
    open.read_to_end(&mut bytes).unwrap();
    assert!(bytes == noise(1, 1 << 20));
    reload(&mount, &["--memory", "128MiB"]);
    mount.clear("/");
    read();
    assert!(held() >= 60 << 20, "{}", held());
    let message = refused(&mount, &["--memory", "1MiB"]);
    assert!(
        message.contains("--memory: ") && message.contains("at least"),
        "{message}"
    );
}

#[test]
fn the_store_grows_and_shrinks() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    for number in 0..40 {
        origin.file(&format!("f{number}"), noise(number, 1 << 20));
    }
    let disk = Scratch::new();
    let place = |size: &str| format!("{}/store:{size}", disk.path().display());
    let mount = Mount::with(
        origin.path(),
        &["--disk", &place("64MiB"), "--memory", "64MiB"],
    );
    for number in 0..40 {
        fs::read(mount.path(format!("f{number}"))).unwrap();
    }
    let held = || mount.stats().get("disk.bytes");
    eventually(SOON, "all files are on the disk", || held() >= 40 << 20);
    reload(&mount, &["--disk", &place("16MiB")]);
    assert!(held() <= 16 << 20, "{}", held());
    assert_eq!(mount.stats().get("disk.capacity_bytes"), 16 << 20);
    let on_disk: u64 = walk(disk.path()).iter().sum();
    assert!(on_disk < 20 << 20, "{on_disk}");
    for number in 0..40 {
        assert!(fs::read(mount.path(format!("f{number}"))).unwrap() == noise(number, 1 << 20));
    }
    reload(&mount, &["--disk", &place("64MiB"), "--disk-reserve", "1%"]);
    mount.clear("/");
    for number in 0..40 {
        fs::read(mount.path(format!("f{number}"))).unwrap();
    }
    eventually(SOON, "all files are on the disk", || held() >= 40 << 20);
    let message = refused(&mount, &["--disk", "/elsewhere:1GiB"]);
    assert!(
        message.contains("its size, but not its directory"),
        "{message}"
    );
}

/// The sizes of all files below `dir`.
fn walk(dir: &Path) -> Vec<u64> {
    let entries = fs::read_dir(dir).unwrap().flatten();
    let sizes = entries.flat_map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => walk(&entry.path()),
        Ok(meta) => vec![meta.len()],
        Err(_) => Vec::new(),
    });
    sizes.collect()
}

/// Rates, the policy and the limit of references reach the allocator at once.
#[test]
fn rates_and_the_policy_change() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("set/a", noise(1, 10_000));
    let dataset = "a=/set";
    let mount = Mount::with(
        origin.path(),
        &[
            "--dataset",
            dataset,
            "--remote-io",
            "200MiB/s",
            "--gpus",
            "4",
        ],
    );
    let ask = |words: &[&str]| {
        let mut command = copperfs(words);
        check(command.arg("--mount").arg(&mount.point))
    };
    let shown = || ask(&["allocation"]);
    eventually(SOON, "there is a decision", || {
        shown().contains("policy greedy")
    });
    assert!(shown().contains("remote IO 200 MiB/s"), "{}", shown());
    let said = reload(
        &mount,
        &[
            "--remote-io",
            "50MiB/s",
            "--policy",
            "max-min",
            "--gpus",
            "1",
        ],
    );
    assert_eq!(
        said,
        "remote_io: 200MiB/s -> 50MiB/s\npolicy: greedy -> max-min\ngpus: 4 -> 1\n"
    );
    let text = shown();
    let mut job = copperfs([
        "job",
        "add",
        "j",
        "--dataset",
        "a",
        "--gpus",
        "2",
        "--mount",
    ]);
    let finished = run(job.arg(&mount.point));
    assert!(finished.refused().contains("GPU"), "{finished:?}");
    assert!(
        text.contains("policy max-min") && text.contains("remote IO 50.0 MiB/s"),
        "{text}"
    );
}

/// Any node changes what is divided, wherever the allocator runs.
#[test]
fn rates_change_from_a_node_without_the_allocator() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("set/a", noise(1, 10_000));
    let members = Members::new(2, origin.path());
    let flags = ["--dataset", "a=/set", "--remote-io", "200MiB/s"];
    let (root, leaf) = (members.start(0, &flags), members.start(1, &flags));
    let shown = || {
        let mut command = copperfs(["allocation", "--mount"]);
        check(command.arg(&root.point))
    };
    let said = reload(&leaf, &["--remote-io", "50MiB/s"]);
    assert_eq!(said, "remote_io: 200MiB/s -> 50MiB/s\n");
    assert!(shown().contains("remote IO 50.0 MiB/s"), "{}", shown());
}

/// Options of the read path and of the promises to the kernel count for what comes after.
#[test]
fn reads_and_promises_follow() {
    if !is_root() {
        skip!("needs root");
    }
    const BYTES: usize = 8 << 20;
    let origin = Scratch::new();
    for name in ["a", "b"] {
        origin.file(name, noise(1, BYTES));
    }
    let mount = Mount::with(origin.path(), &[]);
    let read = || mount.stats().get("origin.read_bytes");
    let first_byte = |name: &str| File::open(mount.path(name)).unwrap().read_exact(&mut [0]);
    first_byte("a").unwrap();
    eventually(SOON, "the file is read whole", || read() == BYTES as u64);
    let looked = || mount.stats().get("fuse.software.requests.lookup");
    let look_twice = |name: &str| {
        let before = looked();
        for _ in 0..2 {
            assert_eq!(errno(fs::metadata(mount.path(name))), Errno::NOENT);
        }
        looked() - before
    };
    assert_eq!(look_twice("none"), 1);
    reload(
        &mount,
        &[
            "--whole-file-max",
            "64KiB",
            "--negative-ttl",
            "0s",
            "--ttl",
            "0s",
        ],
    );
    first_byte("b").unwrap();
    assert!(read() < 2 * BYTES as u64, "{}", read());
    assert_eq!(look_twice("nothing"), 2);
}

/// The homes of datasets have a part of the disk.
#[test]
fn the_store_beside_a_data_mount_keeps_its_size() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let scratch = Scratch::new();
    let data = scratch.dir("data").display().to_string();
    let place = |size: &str| format!("{}/store:{size}", scratch.path().display());
    let mount = Mount::with(
        origin.path(),
        &["--data-mount", &data, "--disk", &place("64MiB")],
    );
    let message = refused(&mount, &["--disk", &place("32MiB")]);
    assert!(message.contains("without a data mount"), "{message}");
    assert_eq!(
        reload(&mount, &["--memory", "64MiB"]),
        "memory: 512MiB -> 64MiB\n"
    );
}

#[test]
fn two_reloads_at_once_are_both_applied() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let mount = Mount::of(origin.path());
    let flags = [
        ["--ttl", "1h"],
        ["--negative-ttl", "2h"],
        ["--log-level", "warn"],
        ["--push-file-max", "1MiB"],
    ];
    std::thread::scope(|scope| {
        for flags in &flags {
            let mount = &mount;
            scope.spawn(move || reload(mount, flags));
        }
    });
    assert_eq!(reload(&mount, &flags.concat()), "nothing has changed\n");
}

#[test]
fn another_user_is_refused() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    fs::set_permissions(origin.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mount = Mount::with(origin.path(), &["--allow-other"]);
    let program = program_for_all(&origin);
    let mut stranger = as_user(65_534, 65_534, program.to_str().unwrap());
    let finished = run(stranger.args(reloading(&mount, &["--log-level", "trace"]).get_args()));
    let message = finished.refused();
    assert!(
        message.contains("only the owner of the mount and root"),
        "{message}"
    );
    assert_eq!(
        reload(&mount, &["--log-level", "info"]),
        "nothing has changed\n"
    );
}

/// The server's keys change: reads fail, and go on after a reload with the new ones. Files that are open go on.
#[test]
fn credentials_are_rotated() {
    if !is_root() {
        skip!("needs root");
    }
    let Some(program) = rclone() else {
        skip!("no S3 server: run scripts/test-servers")
    };
    let mut server = Server::start(program);
    let file = |name: &str, number| {
        let path = server.bucket().join("set").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, noise(number, 3 << 20)).unwrap();
    };
    for number in 0..6 {
        file(&format!("f{number}"), number);
    }
    let scratch = Scratch::new();
    let text = |server: &Server| {
        format!(
            "[[origin]]\nprefix = \"/data\"\nuri = \"s3://bucket/set\"\n{}",
            server.options()
        )
    };
    let config = scratch.file("job.toml", text(&server));
    fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
    let mut mount = copperfs(["mount", "--request-timeout", "20s", "--config"]);
    let mount = Mount::at(&scratch.dir("mnt"), mount.arg(&config));
    let read = |number: u64| fs::read(mount.path(format!("data/f{number}")));
    assert!(read(0).unwrap() == noise(0, 3 << 20));
    let mut open = File::open(mount.path("data/f1")).unwrap();
    let mut head = vec![0; 100];
    open.read_exact(&mut head).unwrap();
    server.change_keys(("other-key".to_owned(), "other-secret".to_owned()));
    assert_eq!(errno(read(2).map(drop)), Errno::ACCESS);
    // The old ones are still in the file.
    let message = refused(&mount, &[]);
    assert!(
        message.contains("credentials and options before stay"),
        "{message}"
    );
    scratch.file("job.toml", text(&server));
    let said = reload(&mount, &[]);
    assert!(said.starts_with("origin: (changed)\n"), "{said}");
    assert!(
        said.contains("s3://bucket/set: its credentials were read again"),
        "{said}"
    );
    assert!(read(2).unwrap() == noise(2, 3 << 20));
    let mut rest = Vec::new();
    open.read_to_end(&mut rest).unwrap();
    assert!([head, rest].concat() == noise(1, 3 << 20));
    let (said, log) = (said, mount.log());
    for text in [said, log] {
        assert!(
            !text.contains("other-secret") && !text.contains("test-secret"),
            "{text}"
        );
    }
}

/// Credentials of the environment, and a mount that is taken over afterwards.
#[test]
fn a_successor_begins_with_the_reloaded_options() {
    if !is_root() {
        skip!("needs root");
    }
    let Some(program) = rclone() else {
        skip!("no S3 server: run scripts/test-servers")
    };
    let mut server = Server::start(program);
    fs::create_dir_all(server.bucket().join("set")).unwrap();
    for number in 0..3 {
        fs::write(
            server.bucket().join(format!("set/f{number}")),
            noise(number, 9_000),
        )
        .unwrap();
    }
    let scratch = Scratch::new();
    let mount = server.mount(&scratch, &["--takeover", "--request-timeout", "20s"]);
    let read = |number: u64| fs::read(mount.path(format!("data/f{number}")));
    assert!(read(0).unwrap() == noise(0, 9_000));
    server.change_keys(("other-key".to_owned(), "other-secret".to_owned()));
    let said = check(server.let_in(&mut reloading(&mount, &[])));
    assert!(
        said.contains("AWS_ACCESS_KEY_ID: (changed)\nAWS_SECRET_ACCESS_KEY: (changed)\n"),
        "{said}"
    );
    reload(&mount, &["--ttl", "1h", "--log-level", "debug"]);
    kill_process(mount.pid, Signal::KILL).unwrap();
    let answers = || mount.log().matches("the mount answers").count();
    eventually(SOON, "another daemon answers", || answers() == 2);
    assert!(read(1).unwrap() == noise(1, 9_000));
    let same = ["--ttl", "1h", "--log-level", "debug"];
    assert_eq!(reload(&mount, &same), "nothing has changed\n");
    check(copperfs(["unmount", "--force"]).arg(&mount.point));
}

/// A service for the credentials of containers, which gives `keys` to clients with `token` until `expiration`.
#[derive(Clone, Default)]
struct Given {
    token: String,
    keys: (String, String),
    expiration: &'static str,
}

/// Serves on loopback until the process ends. Returns its address.
fn credential_service(given: &Arc<Mutex<Given>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, given) = (listener.local_addr().unwrap(), Arc::clone(given));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap() > 0 {}
            let Given {
                token,
                keys: (key, secret),
                expiration,
            } = given.lock().unwrap().clone();
            let is_known = head
                .lines()
                .any(|line| line.ends_with(&format!(": {token}")));
            let (status, body) = match is_known {
                true => (
                    "200 OK",
                    format!(
                        r#"{{"AccessKeyId": "{key}", "SecretAccessKey": "{secret}", "Token": "t",
                            "Expiration": "{expiration}"}}"#
                    ),
                ),
                false => ("401 Unauthorized", "{}".to_owned()),
            };
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
                 connection: close\r\n\r\n{body}",
                body.len()
            );
            // The client may have gone.
            drop(reader.get_mut().write_all(answer.as_bytes()));
        }
    });
    address
}

/// The file with a token is read at each request for credentials: when they expire, and at a reload.
#[test]
fn a_rotated_token_file_is_read_again() {
    if !is_root() {
        skip!("needs root");
    }
    let Some(program) = rclone() else {
        skip!("no S3 server: run scripts/test-servers")
    };
    let keys = |name: &str| (format!("{name}-key"), format!("{name}-secret"));
    let mut server = Server::with_keys(program, keys("first"));
    fs::create_dir_all(server.bucket().join("set")).unwrap();
    for number in 0..3 {
        let path = server.bucket().join(format!("set/f{number}"));
        fs::write(path, noise(number, 9_000)).unwrap();
    }
    let scratch = Scratch::new();
    let given = Arc::new(Mutex::new(Given::default()));
    let rotate = |server: &mut Server, name: &str, expiration| {
        server.change_keys(keys(name));
        let token = format!("token-{name}");
        scratch.file("token", &token);
        let keys = keys(name);
        *given.lock().unwrap() = Given {
            token,
            keys,
            expiration,
        };
    };
    rotate(&mut server, "first", "2001-01-01T00:00:00Z");
    let mut mount = copperfs(["mount", "--origin", "/data=s3://bucket/set"]);
    server.let_in(&mut mount);
    // Each file is requested when it is read, and not before.
    mount.args(["--request-timeout", "20s", "--bundles=off"]);
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
        mount.env_remove(name);
    }
    let address = credential_service(&given);
    mount.env(
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        format!("http://{address}/"),
    );
    let token = scratch.path().join("token");
    mount.env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &token);
    let mount = Mount::at(&scratch.dir("mnt"), &mut mount);
    let read = |number: u64| fs::read(mount.path(format!("data/f{number}")));
    assert!(read(0).unwrap() == noise(0, 9_000));
    // The credentials have expired, so the client asks for others by itself.
    rotate(&mut server, "second", "2999-01-01T00:00:00Z");
    assert!(read(1).unwrap() == noise(1, 9_000));
    // These last, and the server no longer takes them.
    rotate(&mut server, "third", "2999-01-01T00:00:00Z");
    assert_eq!(errno(read(2).map(drop)), Errno::ACCESS);
    let said = reload(&mount, &[]);
    assert!(said.contains("its credentials were read again"), "{said}");
    assert!(read(2).unwrap() == noise(2, 9_000));
}

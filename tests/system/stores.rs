//! Azure, Google Cloud Storage and web servers as the origin, through real mounts. S3 has
//! `object_store`.

use crate::skip;
use crate::support::command::as_user;
use crate::support::fixture::{checksums, noise};
use crate::support::stores::{Protocol, Store, programs};
use crate::support::{Mount, Scratch, check, copperfs, errno, eventually, is_root, python, run};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

/// Longer than a stripe, and no multiple of anything.
const LARGE: usize = (9 << 20) + 4321;

fn tree(store: &Store) {
    let numbered: Vec<(String, Vec<u8>)> = (0..24_u64)
        .map(|number| {
            let name = format!("dir{}/f {number} ü%+", number % 3);
            (name, noise(number, usize::try_from(number * 997).unwrap()))
        })
        .collect();
    let large = noise(99, LARGE);
    let mut files: Vec<(&str, &[u8])> = vec![
        ("large", &large),
        ("pkg/__init__.py", b"from .part import VALUE\n"),
        ("pkg/part.py", b"VALUE = 42\n"),
        ("run.py", b"print('from the store')\n"),
    ];
    files.extend(
        numbered
            .iter()
            .map(|(name, content)| (name.as_str(), content.as_slice())),
    );
    store.put(&files);
}

/// Every byte of a tree, ranges of a large file in any order, and Python.
#[track_caller]
fn reads_as_a_directory(protocol: Protocol) {
    if !is_root() {
        skip!("needs root");
    }
    if programs().is_none() {
        skip!("no servers: run scripts/test-servers")
    }
    let lists = matches!(protocol, Protocol::Azure | Protocol::Google);
    let store = Store::start(protocol);
    tree(&store);
    let scratch = Scratch::new();
    let mount = Mount::at(&scratch.dir("mnt"), &mut store.mount("box", Store::KEY));
    // From the end to the beginning, before the file is read in order.
    let (large, file) = (
        noise(99, LARGE),
        fs::File::open(mount.path("data/large")).unwrap(),
    );
    for (offset, length) in [
        (LARGE - 1, 1),
        (LARGE - 5000, 5000),
        (4 << 20, 9),
        (4093, 8),
        (0, 4096),
    ] {
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset as u64).unwrap();
        assert!(bytes == large[offset..offset + length], "at {offset}");
    }
    assert_eq!(file.read_at(&mut [0; 8], LARGE as u64).unwrap(), 0);
    if lists {
        assert_eq!(checksums(&mount.path("data")), checksums(&store.files()));
    } else {
        for number in 0..24_u64 {
            let name = format!("data/dir{}/f {number} ü%+", number % 3);
            let expected = noise(number, usize::try_from(number * 997).unwrap());
            assert!(fs::read(mount.path(&name)).unwrap() == expected, "{name}");
        }
        assert!(fs::read(mount.path("data/large")).unwrap() == large);
        let entries = fs::read_dir(mount.path("data/dir0")).unwrap();
        let listing: io::Result<Vec<_>> = entries.collect();
        assert_eq!(errno(listing), Errno::ACCESS);
    }
    let opens = mount.stats().get("origin.opens");
    assert!(fs::read(mount.path("data/large")).unwrap() == large);
    assert_eq!(mount.stats().get("origin.opens"), opens, "it is here");
    assert_eq!(errno(fs::metadata(mount.path("data/none"))), Errno::NOENT);
    assert_eq!(errno(fs::metadata(mount.path("data/none/x"))), Errno::NOENT);
    let said = check(python().arg(mount.path("data/run.py")));
    assert_eq!(said, "from the store\n");
    if lists {
        let import = ["-c", "import pkg; print(pkg.VALUE)"];
        let said = check(python().args(import).env("PYTHONPATH", mount.path("data")));
        assert_eq!(said, "42\n");
    }
    assert!(!mount.log().contains(Store::KEY), "{}", mount.log());
}

#[test]
fn azure_reads_as_a_directory() {
    reads_as_a_directory(Protocol::Azure);
}

#[test]
fn the_client_of_google_reads_a_directory() {
    reads_as_a_directory(Protocol::Google);
}

#[test]
fn a_web_server_reads_as_a_directory() {
    reads_as_a_directory(Protocol::Web);
}

#[test]
fn a_web_server_without_ranges_reads_as_a_directory() {
    reads_as_a_directory(Protocol::WebWithoutRanges);
}

/// A file that was read stays until `clear`. A file that was not read, and is another object now, is `ESTALE` once, and the
/// new object when it is opened again.
#[test]
fn changed_objects() {
    if !is_root() {
        skip!("needs root");
    }
    if programs().is_none() {
        skip!("no servers: run scripts/test-servers")
    }
    for protocol in [
        Protocol::Azure,
        Protocol::Google,
        Protocol::Web,
        Protocol::WebWithoutRanges,
    ] {
        let store = Store::start(protocol);
        let old = [("dir/read", &b"old"[..]), ("dir/seen", b"old")];
        store.put(&old);
        store.settle();
        let scratch = Scratch::new();
        // Without bundles and push: a listed file is not cached.
        let mut command = store.mount("box", Store::KEY);
        command.args(["--bundles=off", "--push=off"]);
        let mount = Mount::at(&scratch.dir("mnt"), &mut command);
        let (read, seen) = (mount.path("data/dir/read"), mount.path("data/dir/seen"));
        assert_eq!(fs::read(&read).unwrap(), b"old", "{protocol:?}");
        assert_eq!(fs::metadata(&seen).unwrap().len(), 3);
        store.put(&[("dir/read", b"new one"), ("dir/seen", b"new one")]);
        assert_eq!(fs::read(&read).unwrap(), b"old", "{protocol:?}");
        let is_stale = |error: &io::Error| Errno::from_io_error(error) == Some(Errno::STALE);
        assert!(
            fs::read(&seen).is_err_and(|error| is_stale(&error)),
            "{protocol:?}"
        );
        eventually(Duration::from_secs(10), "the new one is read", || {
            fs::read(&seen).is_ok_and(|content| content == b"new one")
        });
        mount.clear("data/dir");
        assert_eq!(fs::read(&read).unwrap(), b"new one", "{protocol:?}");
        fs::metadata(mount.path("data/dir/none")).unwrap_err();
    }
}

/// A store that refuses does so at mount time, in words that name it and no secret.
#[test]
fn stores_that_refuse() {
    if !is_root() {
        skip!("needs root");
    }
    if programs().is_none() {
        skip!("no servers: run scripts/test-servers")
    }
    let scratch = Scratch::new();
    let point = scratch.dir("mnt");
    let refused = |store: &Store, container: &str, key: &str, words: &str| {
        let uri = store.uri(container);
        let Err(finished) = Mount::try_at(&point, &mut store.mount(container, key)) else {
            panic!("{uri} is mounted");
        };
        let message = finished.refused();
        assert!(
            message.contains(&uri) && message.contains(words),
            "{message}"
        );
        for secret in [Store::KEY, Store::WRONG_KEY] {
            assert!(!message.contains(secret), "{message}");
        }
        assert_eq!(message.lines().count(), 1, "{message}");
    };
    let azure = Store::start(Protocol::Azure);
    refused(
        &azure,
        "box",
        Store::WRONG_KEY,
        "the key is not the account's",
    );
    refused(
        &azure,
        "no-such-box",
        Store::KEY,
        "there is no such container",
    );
    let google = Store::start(Protocol::Google);
    refused(&google, "no-such-box", "", "there is no such bucket");
    let web = Store::start(Protocol::Web);
    drop(Mount::at(&scratch.dir("web"), &mut web.mount("box", "")));
}

/// Stores have no owners. The options of two origins give the same bucket to two users, and the kernel keeps them apart.
#[test]
fn owner_and_mode_of_an_origin_keep_other_users_out() {
    const USERS: [u32; 2] = [1234, 5678];
    if !is_root() {
        skip!("needs root");
    }
    if programs().is_none() {
        skip!("no servers: run scripts/test-servers")
    }
    let store = Store::start(Protocol::Azure);
    store.put(&[("pkg/f", b"content")]);
    let scratch = Scratch::new();
    let origin = |user: u32| {
        format!(
            "[[origin]]\nprefix = \"/of{user}\"\nuri = \"{}\"\n\
             [origin.options]\nowner = \"{user}:{user}\"\nmode = \"0400\"\n",
            store.uri("box")
        )
    };
    let config = scratch.file("copperfs.toml", USERS.map(origin).concat());
    let mut mount = copperfs(["mount", "--allow-other", "--config"]);
    mount.arg(&config);
    store.tell(Store::KEY, &mut mount);
    let mount = Mount::at(&scratch.dir("mnt"), &mut mount);
    for user in USERS {
        for owner in USERS {
            let path = mount.path(format!("of{owner}/pkg/f"));
            let read = run(as_user(user, user, "cat").arg(&path));
            match user == owner {
                true => assert_eq!(read.text(), "content"),
                false => assert!(read.refused().contains("Permission denied"), "{read:?}"),
            }
        }
    }
    let about = fs::metadata(mount.path("of1234/pkg/f")).unwrap();
    assert_eq!((about.mode() & 0o777, about.uid()), (0o400, 1234));
    let about = fs::metadata(mount.path("of1234/pkg")).unwrap();
    assert_eq!((about.mode() & 0o777, about.uid()), (0o500, 1234));
}

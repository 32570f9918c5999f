//! Two accounts at object stores have the same content: items are known by their hashes, whichever account they come from.

use super::SOON;
use crate::object_store::{Server, rclone};
use crate::skip;
use crate::support::datasets::{Nodes, epoch};
use crate::support::fixture::noise;
use crate::support::{Scratch, check, copperfs, eventually, is_root};
use std::fs;
use std::os::unix::fs::PermissionsExt;

const FILES: u64 = 20;
const FILE_BYTES: u64 = 10_000;

/// The content is fetched once and kept once, with the credentials of the account that was asked first. Without that
/// account, the other one gives it with its own.
#[test]
fn one_content_in_two_accounts_is_fetched_and_kept_once() {
    if !is_root() {
        skip!("needs root");
    }
    let Some(program) = rclone() else {
        skip!("no S3 server: run scripts/test-servers")
    };
    let accounts = ["one", "two"];
    let servers = accounts.map(|name| {
        let keys = (format!("{name}-key"), format!("{name}-secret"));
        Server::with_keys(program.clone(), keys)
    });
    let scratch = Scratch::new();
    for (server, name) in servers.iter().zip(accounts) {
        let set = server.bucket().join("set");
        fs::create_dir_all(&set).unwrap();
        for number in 0..FILES {
            let bytes = noise(number, FILE_BYTES.try_into().unwrap());
            fs::write(set.join(format!("{name}-{number:02}")), bytes).unwrap();
        }
    }
    scratch.settle();
    for (server, name) in servers.iter().zip(accounts) {
        let mut make = copperfs(["dataset", "manifest", "s3://bucket/set", "-o"]);
        make.arg(scratch.dir("manifests").join(name));
        check(server.let_in(&mut make));
    }
    scratch.settle();
    let mut config = format!(
        "[[origin]]\nprefix = \"/manifests\"\nuri = \"file://{}\"\n",
        scratch.path().join("manifests").display()
    );
    for (server, name) in servers.iter().zip(accounts) {
        config += &format!("[[origin]]\nprefix = \"/{name}\"\nuri = \"s3://bucket/set\"\n");
        config += &server.options();
    }
    let config = scratch.file("config.toml", config);
    fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
    let nodes = Nodes::with_config(3, &config);
    for name in accounts {
        let manifest = format!("/manifests/{name}");
        nodes.add(
            name,
            &["--manifest", &manifest, "--origin-readers", "homes"],
        );
    }
    let [one, two] = servers.each_ref().map(|server| server.bucket().join("set"));
    let total = FILES * FILE_BYTES;
    let before = nodes.total("datasets.origin_bytes");
    let fetched = || nodes.total("datasets.origin_bytes") - before;
    epoch(&nodes.path(1, "one"), &one, 1);
    assert_eq!(fetched(), total);
    epoch(&nodes.path(2, "two"), &two, 2);
    assert_eq!(fetched(), total, "the second account's items are there");
    assert_eq!(nodes.cached(), total);
    // One account is gone, and so is the cache.
    let [first, second] = servers;
    drop(first);
    nodes.ask(&["clear", "--everything"]);
    eventually(SOON, "nothing is cached", || nodes.cached() == 0);
    epoch(&nodes.path(0, "two"), &two, 3);
    assert_eq!(fetched(), 2 * total);
    assert_eq!(nodes.cached(), total);
    drop(second);
}

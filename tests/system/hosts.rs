//! Several hosts, each with its own network, mounts, processes and name: what one machine's loopback
//! cannot show.

use crate::skip;
use crate::support::command::{Finished, has_program};
use crate::support::fixture::{packages, packages_total};
use crate::support::hosts::Hosts;
use crate::support::tree::write_secret;
use crate::support::{Scratch, Stats, copperfs, is_root, python, sh};
use std::path::PathBuf;
use std::time::{Duration, Instant};

fn missing() -> Option<&'static str> {
    if !is_root() {
        return Some("needs root");
    }
    ["ip", "nft", "nsenter", "unshare"]
        .into_iter()
        .find(|name| !has_program(name))
}

/// A tree over four hosts, of which h1 is the root and h4 a child of h2, and the mount on each.
struct Job {
    hosts: Hosts,
    point: PathBuf,
    list: PathBuf,
    secret: PathBuf,
    _scratch: Scratch,
}

impl Job {
    fn new() -> Self {
        let scratch = Scratch::new();
        let secret = scratch.path().join("secret");
        write_secret(&secret);
        let list = scratch.file("hosts", "# in the order of the tree\nh1\nh2\nh3\nh4\n");
        Self {
            hosts: Hosts::up(4),
            point: scratch.dir("mnt"),
            list,
            secret,
            _scratch: scratch,
        }
    }

    /// Mounts on host `number`, which finds its rank by its name; gives the daemon's id there.
    #[track_caller]
    fn mount(&self, number: usize) -> String {
        let origin = format!("/=file://{}", packages().path.display());
        let mut mount = self
            .hosts
            .copperfs(number, &["mount", "--arity", "2", "--origin", &origin]);
        mount
            .arg("--hosts")
            .arg(&self.list)
            .arg("--secret-file")
            .arg(&self.secret);
        mount.args(["--request-timeout", "4s"]).arg(&self.point);
        let said = crate::support::check(&mut mount);
        let pid = said
            .split_once("(pid ")
            .and_then(|(_, rest)| rest.split_once(','));
        pid.unwrap_or_else(|| panic!("{said}")).0.to_owned()
    }

    fn run(&self, number: usize, script: &str) -> Finished {
        let mut run = self.hosts.command(number, "bash");
        run.args(["-c", script, "sh"]).arg(&self.point);
        crate::support::run(&mut run)
    }

    #[track_caller]
    fn stats(&self, number: usize) -> Stats {
        let mut ask = self.hosts.copperfs(number, &["stats", "--json"]);
        Stats(serde_json::from_str(&crate::support::check(ask.arg(&self.point))).unwrap())
    }
}

/// Four hosts import a tree at once, and sum it up, over the wire; the root reads each file once.
#[test]
fn four_hosts_import_a_tree_over_the_network() {
    if let Some(what) = missing() {
        skip!("{what} is missing");
    }
    let job = Job::new();
    (1..=4).for_each(|number| drop(job.mount(number)));
    let interpreter = python();
    let import = format!(
        "PYTHONPATH=\"$1\" PYTHONDONTWRITEBYTECODE=1 {} -S -s -c \
         'import everything; print(everything.TOTAL)'",
        interpreter.get_program().to_str().unwrap()
    );
    std::thread::scope(|scope| {
        for number in 1..=4 {
            let (job, import) = (&job, &import);
            drop(scope.spawn(move || {
                let finished = job.run(number, import);
                assert_eq!(finished.text().trim_end(), packages_total(), "{finished:?}");
            }));
        }
    });
    let sum = "cd \"$1\"; find . -type f -print0 | sort -z | xargs -0 cat | sha256sum";
    let native = sh(sum, &[&packages().path]);
    for number in 1..=4 {
        assert_eq!(job.run(number, sum).text(), native, "h{number}");
    }
    let root = job.stats(1);
    assert_eq!(root.get("origin.opens"), packages().modules);
    assert_eq!(root.get("origin.bytes_read"), packages().bytes);
    assert_eq!(root.0["node"], "h1");
    for number in 2..=4 {
        let stats = job.stats(number);
        assert_eq!(stats.0["node"].as_str().unwrap(), format!("h{number}"));
        assert_eq!(stats.get("origin.opens"), 0);
        assert_eq!(stats.get("verify.failures"), 0);
    }
    assert_eq!(job.stats(4).0["parent"], 1, "h4 is a child of h2");
}

/// An inner node's daemon is killed: its child gets EIO within the bound and goes on serving what it
/// has, the others notice nothing; when the daemon is started again, its child reads on.
#[test]
fn a_killed_daemon_costs_its_children_only() {
    if let Some(what) = missing() {
        skip!("{what} is missing");
    }
    let job = Job::new();
    let daemons: Vec<String> = (1..=4).map(|number| job.mount(number)).collect();
    let cat = |number: usize, package: usize| {
        job.run(
            number,
            &format!("cat \"$1\"/package_{package:02}/* | md5sum; exit ${{PIPESTATUS[0]}}"),
        )
    };
    let native = |package: usize| {
        sh(
            &format!("cat \"$1\"/package_{package:02}/* | md5sum"),
            &[&packages().path],
        )
    };
    assert_eq!(cat(4, 0).text(), native(0));

    assert!(
        job.run(2, &format!("kill -9 {}", daemons[1]))
            .status
            .success()
    );
    let start = Instant::now();
    let failed = job.run(4, "cat \"$1\"/package_01/module_00.py");
    assert!(
        failed.refused().contains("Input/output error"),
        "{failed:?}"
    );
    assert!(
        start.elapsed() < Duration::from_secs(15),
        "EIO after {:?}",
        start.elapsed()
    );
    assert_eq!(cat(4, 0).text(), native(0), "what h4 has, it serves");
    assert_eq!(cat(3, 1).text(), native(1), "h3 has another parent");
    assert_eq!(cat(1, 2).text(), native(2));

    job.mount(2);
    assert_eq!(cat(2, 3).text(), native(3), "the killed one is back");
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let again = cat(4, 1);
        if again.status.success() {
            assert_eq!(again.text(), native(1));
            break;
        }
        assert!(
            Instant::now() < deadline,
            "h4 does not find its parent again: {again:?}"
        );
    }
}

/// A pulled cable is EIO within the bound, and over when it is plugged in again.
#[test]
fn a_pulled_cable_is_an_error_until_it_is_plugged_in() {
    if let Some(what) = missing() {
        skip!("{what} is missing");
    }
    let job = Job::new();
    (1..=4).for_each(|number| drop(job.mount(number)));
    let native = sh(
        "md5sum < \"$1/package_05/module_01.py\"",
        &[&packages().path],
    );
    let read = "md5sum < \"$1/package_05/module_01.py\"";
    assert!(
        job.run(4, "cat \"$1/package_05/module_00.py\"")
            .status
            .success()
    );
    job.hosts.control(&["link", "4", "down"]);
    let start = Instant::now();
    assert!(
        job.run(4, "cat \"$1/package_05/module_01.py\"")
            .refused()
            .contains("Input/output error")
    );
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "EIO after {:?}",
        start.elapsed()
    );
    assert!(
        job.run(4, "cat \"$1/package_05/module_00.py\"")
            .status
            .success(),
        "a hit"
    );
    job.hosts.control(&["link", "4", "up"]);
    let deadline = Instant::now() + Duration::from_secs(40);
    while job.run(4, read).text() != native {
        assert!(Instant::now() < deadline, "the parent is not found again");
    }
}

/// `copperfs launch` on other hosts, through whatever command reaches them.
#[test]
fn launch_starts_and_unmount_ends_nodes_on_other_hosts() {
    if let Some(what) = missing() {
        skip!("{what} is missing");
    }
    let scratch = Scratch::new();
    let hosts = Hosts::up(4);
    let reach = hosts.reach_script(&scratch);
    let point = scratch.dir("mnt");
    let origin = format!("/=file://{}", packages().path.display());
    // The launcher is none of the hosts, as a login node is.
    let mut launch = copperfs(["launch", "--hosts", "h1,h2,h3,h4", "--json"]);
    launch
        .args(["--arity", "2", "--origin", &origin, "--ssh"])
        .arg(&reach)
        .arg(&point);
    let summary: serde_json::Value =
        serde_json::from_str(&crate::support::check(&mut launch)).unwrap();
    assert_eq!(summary["nodes"].as_array().unwrap().len(), 4);
    let sum = "cat \"$1\"/package_09/* | md5sum";
    let native = sh(sum, &[&packages().path]);
    for number in 1..=4 {
        let mut run = hosts.command(number, "bash");
        let finished = crate::support::run(run.args(["-c", sum, "sh"]).arg(&point));
        assert_eq!(finished.text(), native, "{finished:?}");
    }
    crate::support::check(copperfs(["unmount", "--all"]).arg(&point));
    for number in 1..=4 {
        // Nobody reaps on such a host: what has ended is still shown.
        let mut look = hosts.command(number, "sh");
        look.args([
            "-c",
            "grep -c fuse.copperfs /proc/self/mountinfo; ps -eo stat,comm | grep copperfs | grep -vc ^Z || true",
        ]);
        assert_eq!(crate::support::run(&mut look).text(), "0\n0\n", "h{number}");
    }
}

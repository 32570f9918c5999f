//! Several hosts, each with its own network, mounts, processes and name, for behaviour that does not show on one
//! machine's loopback.

use crate::skip;
use crate::support::command::Background;
use crate::support::fixture::{packages, packages_total};
use crate::support::hosts::{Hosts, Job, missing};
use crate::support::{Scratch, copperfs, eventually, python, sh};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Four hosts import a tree at once, and sum it up, over the wire; the root reads each file once.
#[test]
fn four_hosts_import_a_tree_over_the_network() {
    if let Some(what) = missing() {
        skip!("{what} is missing");
    }
    let job = Job::new(4, &[]);
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
    assert_eq!(root.get("origin.read_bytes"), packages().bytes);
    assert_eq!(root.0["node"], "h1");
    for number in 2..=4 {
        let stats = job.stats(number);
        assert_eq!(stats.0["node"].as_str().unwrap(), format!("h{number}"));
        assert_eq!(stats.get("origin.opens"), 0);
        assert_eq!(stats.get("verify.failures"), 0);
    }
    assert_eq!(job.stats(4).0["parent"], 1, "h4 is a child of h2");
}

/// A pulled cable is EIO within the bound, and over when it is plugged in again.
#[test]
fn a_pulled_cable_is_an_error_until_it_is_plugged_in() {
    if let Some(what) = missing() {
        skip!("{what} is missing");
    }
    let job = Job::new(4, &[]);
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
    eventually(Duration::from_secs(10), "the parent is found again", || {
        job.run(4, read).text() == native
    });
}

/// `copperfs launch` on other hosts, through whatever command reaches them.
#[test]
fn launch_starts_and_unmount_ends_nodes_on_other_hosts() {
    if let Some(what) = missing() {
        skip!("{what} is missing");
    }
    let scratch = Scratch::new();
    let point = scratch.dir("mnt");
    let hosts = Hosts::up(4, &point);
    let reach = hosts.reach_script(&scratch);
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
    // If one host is in use, all stay mounted.
    let mut hold = hosts.command(2, "bash");
    hold.args(["-c", "cd \"$1\"; echo in; read -r _", "hold"])
        .arg(&point);
    let mut holder = Background::spawn(hold.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut said = String::new();
    BufReader::new(holder.stdout())
        .read_line(&mut said)
        .unwrap();
    assert_eq!(said, "in\n");
    let refused = crate::support::run(copperfs(["unmount", "--all"]).arg(&point));
    let said = refused.refused();
    assert!(
        said.contains("h2: ") && said.contains("bash: working directory"),
        "{said}"
    );
    assert!(said.contains("1 of 4 nodes are in use"), "{said}");
    for number in 1..=4 {
        let mut look = hosts.command(number, "bash");
        look.args(["-c", "cat \"$1\"/package_09/* | md5sum", "sh"])
            .arg(&point);
        assert_eq!(
            crate::support::run(&mut look).text(),
            native,
            "h{number} has gone"
        );
    }
    drop(holder);
    let ended = || {
        let mut unmount = copperfs(["unmount", "--all"]);
        crate::support::run(unmount.arg(&point)).status.success()
    };
    eventually(Duration::from_secs(20), "all nodes are idle", ended);
    for number in 1..=4 {
        // No process reaps on such a host, so ended processes are still shown.
        const LEFT: &str = "grep -c \"$1\" /proc/self/mountinfo
            ps -eo stat,comm | grep copperfs | grep -vc ^Z || true";
        let mut look = hosts.command(number, "sh");
        look.args(["-c", LEFT, "sh"]).arg(&point);
        assert_eq!(crate::support::run(&mut look).text(), "0\n0\n", "h{number}");
    }
}

/// Two racks of two hosts: each has a root, which reads storage for its own rack.
#[test]
fn each_rack_is_an_instance_of_its_own() {
    if let Some(what) = missing() {
        skip!("{what} is missing");
    }
    let scratch = Scratch::new();
    let topology = scratch.file("topology", "left h1,h3\nright h2,h4\n");
    let point = scratch.dir("mnt");
    let hosts = Hosts::up(4, &point);
    let reach = hosts.reach_script(&scratch);
    let origin = format!("/=file://{}", packages().path.display());
    let mut launch = copperfs(["launch", "--hosts", "h1,h2,h3,h4", "--json"]);
    launch
        .args(["--instance-per", "rack", "--origin", &origin])
        .arg("--topology")
        .arg(&topology)
        .arg("--ssh")
        .arg(&reach)
        .arg(&point);
    let summary: serde_json::Value =
        serde_json::from_str(&crate::support::check(&mut launch)).unwrap();
    assert_eq!(summary["instances"], 2);
    let place = |node: &serde_json::Value| {
        let text = |key: &str| node[key].as_str().unwrap().to_owned();
        (text("node"), text("rack"), node["rank"].as_u64().unwrap())
    };
    let places: Vec<_> = summary["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(place)
        .collect();
    let expected = [
        ("h1", "left", 0),
        ("h3", "left", 1),
        ("h2", "right", 0),
        ("h4", "right", 1),
    ];
    let expected = expected.map(|(node, rack, rank)| (node.to_owned(), rack.to_owned(), rank));
    assert_eq!(places, expected);
    // Each instance reads storage once, through its own root.
    let sum = "cat \"$1\"/package_09/* | md5sum";
    let native = sh(sum, &[&packages().path]);
    for number in 1..=4 {
        let mut run = hosts.command(number, "bash");
        let finished = crate::support::run(run.args(["-c", sum, "sh"]).arg(&point));
        assert_eq!(finished.text(), native, "{finished:?}");
    }
    let stats = |number| {
        let mut ask = hosts.copperfs(number, &["stats", "--json"]);
        let text = crate::support::check(ask.arg(&point));
        crate::support::Stats(serde_json::from_str(&text).unwrap())
    };
    let opens = [1, 2, 3, 4].map(|number| stats(number).get("origin.opens"));
    assert!(opens[0] > 0 && opens[0] == opens[1], "{opens:?}");
    assert_eq!(&opens[2..], [0, 0]);
    assert_eq!(stats(4).0["parent"], 0, "h2, which is rank 0 of its rack");
    crate::support::check(copperfs(["unmount", "--all"]).arg(&point));
    // A host in no rack has no instance.
    std::fs::write(&topology, "left h1,h3\nright h2\n").unwrap();
    let refused = crate::support::run(&mut launch);
    let said = refused.refused();
    assert!(said.contains("h4 is in no line of it"), "{said}");
}

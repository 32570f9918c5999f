//! `copperfs doctor --hosts`: examines all hosts of a list at the same time, by ssh.

use super::DoctorArgs;
use super::probe::{Probed, Task};
use crate::cli::launch::remote;
use crate::cli::record::{Kind, Record};
use crate::cli::{Table, explained, or_dash, say};
use crate::config::{Layer, Machine, Source, gather, hosts};
use crate::num::as_f64;
use anyhow::{Context, ensure};
use serde::Serialize;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::time::SystemTime;

/// More hosts than can exchange datagrams at the same time, because each has an ssh of its own.
const HOSTS_MAX: usize = 256;
/// How long the hosts answer each other: longer than their ssh connections differ.
const SECONDS: u64 = 10;
/// Children of a node in the tree whose edges are tried.
const ARITY: usize = 4;
/// A clock may differ so much, the time of an ssh included.
const CLOCK_SECONDS_MAX: f64 = 5.0;

/// What is known of one host.
#[derive(Debug, Serialize)]
struct Examined {
    host: String,
    version: Option<String>,
    /// How far its clock is ahead of this machine's.
    clock_ahead_s: Option<f64>,
    /// Its troubles; empty if a launch can work on it.
    troubles: Vec<String>,
}

/// Prints the findings of each host. Returns whether a launch can work on all of them.
///
/// # Errors
/// The list cannot be read, or has too many hosts.
pub(super) fn look(given: &str, args: &DoctorArgs, machine: &Machine) -> anyhow::Result<bool> {
    let mut layer = Layer::default();
    layer.set("hosts", Source::Flag, vec![given.to_owned()]);
    let layer = gather(layer, None, machine)?.absolute(&machine.working_dir);
    let location = layer.location("hosts");
    let given = layer.text("hosts").unwrap_or(given);
    let (ssh, program) = args.reach.find()?;
    let nodes = remote::nodes(given, "/".as_ref(), machine, &location)?;
    ensure!(
        nodes.len() <= HOSTS_MAX,
        "{} hosts are more than are examined at once, which is {HOSTS_MAX}: name some of them",
        nodes.len()
    );
    let record = Record {
        id: String::new(),
        kind: Kind::Remote,
        mountpoint: PathBuf::from("/"),
        nodes,
        ssh,
        starter: Vec::new(),
        program,
        made: Vec::new(),
    };
    // The hasher is seeded with random bits.
    let word = format!("{:016x}", RandomState::new().build_hasher().finish());
    let all = std::thread::scope(|scope| {
        let begin = |rank: usize| {
            let (record, word) = (&record, &word);
            scope.spawn(move || examine(record, rank, word))
        };
        let asked: Vec<_> = (0..record.nodes.len()).map(begin).collect();
        let told = asked.into_iter().map(|one| one.join());
        told.map(|one| one.ok().context("an examination has failed"))
            .collect::<anyhow::Result<Vec<Examined>>>()
    })?;
    let all = with_versions(all);
    if args.json {
        say(serde_json::to_string_pretty(&all)?);
    } else {
        say(table(&all).trim_end());
    }
    Ok(all.iter().all(|one| one.troubles.is_empty()))
}

/// Examines the host of rank `rank`. It exchanges datagrams with its parent in the tree; the root with its first child.
fn examine(record: &Record, rank: usize, word: &str) -> Examined {
    let node = &record.nodes[rank];
    let neighbour = match rank {
        0 => record.nodes.get(1),
        _ => record.nodes.get((rank - 1) / ARITY),
    };
    let task = Task {
        port: port_of(&node.address),
        word: word.to_owned(),
        peers: neighbour
            .map(|node| node.address.clone())
            .into_iter()
            .collect(),
        seconds: SECONDS,
    };
    let host = node.host.clone();
    match ask(record, &host, &task) {
        Ok((probed, now_ms)) => judged(host, &probed, now_ms),
        Err(error) => Examined {
            host,
            version: None,
            clock_ahead_s: None,
            troubles: vec![explained(&error)],
        },
    }
}

/// The port of an address.
fn port_of(address: &str) -> u16 {
    let port = address
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse().ok());
    port.unwrap_or(hosts::DEFAULT_PORT)
}

/// Returns the answer of `host`, and the time here when it came, in milliseconds of Unix time.
fn ask(record: &Record, host: &str, task: &Task) -> anyhow::Result<(Probed, f64)> {
    let output = remote::run(record, host, &["probe"], &serde_json::to_vec(task)?)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let probed = serde_json::from_slice(&output).context("its answer is not understood")?;
    Ok((probed, now.as_secs_f64() * 1000.0))
}

fn judged(host: String, probed: &Probed, now_ms: f64) -> Examined {
    let ahead = (as_f64(probed.unix_ms) - now_ms) / 1000.0;
    let mut troubles = probed.failed.clone();
    if let Some(why) = &probed.port_trouble {
        troubles.push(format!("UDP port: {why}"));
    }
    for peer in &probed.peers {
        match &peer.address {
            Err(why) => troubles.push(format!("cannot look up {}: {why}", peer.name)),
            Ok(address) if !peer.answered && probed.port_trouble.is_none() => {
                troubles.push(format!(
                    "no UDP datagrams to and from {} ({address}): open the port in firewalls",
                    peer.name
                ));
            }
            Ok(_) => {}
        }
    }
    if ahead.abs() > CLOCK_SECONDS_MAX {
        troubles.push(format!("its clock differs by {ahead:.0} s"));
    }
    Examined {
        host,
        version: Some(probed.version.clone()),
        clock_ahead_s: Some(ahead),
        troubles,
    }
}

/// Adds troubles for hosts whose program is of another version than most.
fn with_versions(mut all: Vec<Examined>) -> Vec<Examined> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for version in all.iter().filter_map(|one| one.version.clone()) {
        *counts.entry(version).or_default() += 1;
    }
    let usual = counts.into_iter().max_by_key(|(_, count)| *count);
    let Some((usual, _)) = usual else {
        return all;
    };
    for one in &mut all {
        if let Some(version) = one.version.as_ref().filter(|version| **version != usual) {
            one.troubles.push(format!(
                "version {version}, where most have {usual}: all nodes of a job need the same"
            ));
        }
    }
    all
}

fn table(all: &[Examined]) -> String {
    let well = all.iter().filter(|one| one.troubles.is_empty()).count();
    let mut text = Table::of(all)
        .column("host", |one| one.host.clone())
        .column("version", |one| or_dash(one.version.as_ref()))
        .column("clock", |one| {
            or_dash(one.clock_ahead_s.map(|ahead| format!("{ahead:+.1} s")))
        })
        .column("", |one| match one.troubles.first() {
            None => "ok".to_owned(),
            Some(first) => format!("FAIL: {first}"),
        })
        .text();
    for one in all.iter().filter(|one| one.troubles.len() > 1) {
        for trouble in &one.troubles[1..] {
            text.push_str(&format!("{}: {trouble}\n", one.host));
        }
    }
    text.push_str(&format!("\n{well} of {} hosts are well\n", all.len()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::probe::Peer;

    fn probed() -> Probed {
        Probed {
            version: "0.1.0".into(),
            unix_ms: 1_000_000,
            port_trouble: None,
            peers: vec![Peer {
                name: "h0:7470".into(),
                address: Ok("10.0.0.1:7470".parse().unwrap()),
                answered: true,
            }],
            failed: Vec::new(),
        }
    }

    #[test]
    fn each_trouble_of_a_host_is_named() {
        let fine = judged("h1".into(), &probed(), 1_000_200.0);
        assert_eq!(fine.troubles, [""; 0]);
        let mut wrong = probed();
        wrong.peers[0].answered = false;
        let wrong = judged("h1".into(), &wrong, 1_060_000.0);
        assert_eq!(
            wrong.troubles,
            [
                "no UDP datagrams to and from h0:7470 (10.0.0.1:7470): open the port in firewalls",
                "its clock differs by -60 s"
            ]
        );
        let mut taken = probed();
        taken.port_trouble = Some("Address already in use".into());
        taken.peers[0].answered = false;
        let taken = judged("h1".into(), &taken, 1_000_000.0);
        assert_eq!(taken.troubles, ["UDP port: Address already in use"]);
    }

    #[test]
    fn another_version_than_most_have_is_a_trouble() {
        let of = |version: &str| Examined {
            host: version.into(),
            version: Some(version.into()),
            clock_ahead_s: None,
            troubles: Vec::new(),
        };
        let all = with_versions(vec![of("2"), of("1"), of("2")]);
        let troubled: Vec<usize> = all.iter().map(|one| one.troubles.len()).collect();
        assert_eq!(troubled, [0, 1, 0]);
        let shown = table(&all);
        assert!(
            shown.contains("FAIL: version 1, where most have 2"),
            "{shown}"
        );
        assert!(shown.ends_with("2 of 3 hosts are well\n"), "{shown}");
    }

    #[test]
    fn the_port_is_that_of_the_list() {
        assert_eq!(port_of("h1:7000"), 7000);
        assert_eq!(port_of("[fe80::1]:7470"), 7470);
    }
}

//! `copperfs probe`, the other side of `copperfs doctor --hosts`: looks at one host, and exchanges datagrams with others.
//!
//! All hosts probe at the same time. Each one sends to the nodes that would be its neighbours in the tree, and answers what
//! it receives. An answer shows that datagrams pass in both directions.

use super::{Facts, judge};
use crate::cli::say;
use crate::config::Machine;
use crate::origin::Outcome;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant, SystemTime};

/// The interval between two questions to a host that has not answered.
const INTERVAL: Duration = Duration::from_millis(200);
/// The beginning of every datagram; the words of the examination follow, then `?` or `!`.
const MARK: &[u8] = b"copperfs probe ";

/// The task of one host.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    /// The UDP port to use.
    pub(super) port: u16,
    /// A word that only the hosts of this examination know: they answer no other datagrams.
    pub(super) word: String,
    /// The neighbours: names with ports.
    pub(super) peers: Vec<String>,
    /// How long to answer others.
    pub(super) seconds: u64,
}

/// What one host has found.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Probed {
    /// The version of the program there.
    pub(super) version: String,
    /// The clock there at the end, in milliseconds of Unix time.
    pub(super) unix_ms: u64,
    /// Why the port cannot be used.
    pub(super) port_trouble: Option<String>,
    /// The neighbours, in the order of the task.
    pub(super) peers: Vec<Peer>,
    /// The checks of the machine that failed: names and remedies.
    pub(super) failed: Vec<String>,
}

/// A neighbour.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Peer {
    /// Its name.
    pub(super) name: String,
    /// Its address, or why there is none.
    pub(super) address: Result<SocketAddr, String>,
    /// Whether it has answered.
    pub(super) answered: bool,
}

/// Probes as standard input says, and writes the result to standard output.
///
/// # Errors
/// Standard input holds no task.
pub fn probe() -> anyhow::Result<()> {
    let task: Task = serde_json::from_reader(io::stdin().lock()).context("no task")?;
    let resolved = |name: &String| {
        let mut addresses = name.to_socket_addrs().map_err(|error| error.to_string())?;
        let first = addresses.find(SocketAddr::is_ipv4);
        first.ok_or_else(|| "it has no IPv4 address".to_owned())
    };
    let peers = task.peers.iter().map(|name| Peer {
        name: name.clone(),
        address: resolved(name),
        answered: false,
    });
    let mut peers: Vec<Peer> = peers.collect();
    let exchanged = exchange(&task, &mut peers);
    let checks = judge(&Facts::gather(&Machine::inspect()));
    let failed = checks
        .iter()
        .filter(|check| check.outcome == Outcome::Bad)
        .map(|check| format!("{}: {}; {}", check.what, check.found, check.fix));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    say(serde_json::to_string(&Probed {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        port_trouble: exchanged.err().map(|error| error.to_string()),
        peers,
        failed: failed.collect(),
        unix_ms: u64::try_from(now.as_millis())?,
    })?);
    Ok(())
}

/// Asks the neighbours, and answers all hosts of the examination, until the time is over.
fn exchange(task: &Task, peers: &mut [Peer]) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, task.port))?;
    socket.set_read_timeout(Some(INTERVAL))?;
    let datagram = |end: u8| [MARK, task.word.as_bytes(), &[end]].concat();
    let (question, answer) = (datagram(b'?'), datagram(b'!'));
    let end = Instant::now() + Duration::from_secs(task.seconds);
    let mut ask = Instant::now();
    let mut bytes = [0; 256];
    while Instant::now() < end {
        if Instant::now() >= ask {
            for peer in peers.iter().filter(|peer| !peer.answered) {
                if let Ok(address) = peer.address {
                    // A host that is not there yet may make the kernel report an error.
                    let _later = socket.send_to(&question, address);
                }
            }
            ask = Instant::now() + INTERVAL;
        }
        match socket.recv_from(&mut bytes) {
            Ok((len, from)) if bytes[..len] == question[..] => {
                let _later = socket.send_to(&answer, from);
            }
            Ok((len, from)) if bytes[..len] == answer[..] => {
                let known = peers.iter_mut().filter(|peer| peer.address == Ok(from));
                known.for_each(|peer| peer.answered = true);
            }
            Ok(_) => {}
            Err(error) if is_passing(error.kind()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The time is over, or an earlier datagram was refused.
fn is_passing(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock
            | ErrorKind::TimedOut
            | ErrorKind::Interrupted
            | ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free_port() -> u16 {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.local_addr().unwrap().port()
    }

    fn peer(port: u16) -> Peer {
        Peer {
            name: format!("127.0.0.1:{port}"),
            address: Ok((Ipv4Addr::LOCALHOST, port).into()),
            answered: false,
        }
    }

    fn task(port: u16, word: &str) -> Task {
        Task {
            port,
            word: word.into(),
            peers: Vec::new(),
            seconds: 2,
        }
    }

    #[test]
    fn hosts_of_one_examination_answer_each_other() {
        let (one, other, stranger) = (free_port(), free_port(), free_port());
        let mut of_one = [peer(other), peer(stranger)];
        let mut of_other = [peer(one)];
        std::thread::scope(|scope| {
            scope.spawn(|| exchange(&task(one, "w"), &mut of_one).unwrap());
            scope.spawn(|| exchange(&task(other, "w"), &mut of_other).unwrap());
            scope.spawn(|| exchange(&task(stranger, "x"), &mut []).unwrap());
        });
        assert!(of_other[0].answered);
        assert!(of_one[0].answered && !of_one[1].answered);
    }

    #[test]
    fn a_port_that_is_taken_is_told() {
        let taken = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = exchange(&task(port, "w"), &mut []).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    }
}

//! Several nodes on this machine: one address and port each, on loopback.

use super::{Kind, Node};
use anyhow::{Context, bail};
use std::net::UdpSocket;
use std::path::Path;

/// More local nodes than this are a mistake.
const NODES_MAX: usize = 256;

/// Nodes `base/0` to `base/N-1`, and the addresses they listen on.
///
/// # Errors
/// `count` is no number of nodes; no free ports.
pub(super) fn nodes(count: &str, base: &Path) -> anyhow::Result<(Kind, Vec<Node>, Vec<String>)> {
    let count = match count.parse::<usize>() {
        Ok(count) if (1..=NODES_MAX).contains(&count) => count,
        _ => bail!(
            "--hosts local:{count}: write a number of nodes from 1 to {NODES_MAX}, as in local:4"
        ),
    };
    let listen = free_ports(count)?;
    let nodes = listen
        .iter()
        .enumerate()
        .map(|(rank, address)| Node {
            name: address.clone(),
            host: "localhost".into(),
            mountpoint: base.join(rank.to_string()),
        })
        .collect();
    Ok((Kind::Local, nodes, listen))
}

/// Addresses that were free a moment ago: all held until the last is found, so they are distinct.
fn free_ports(count: usize) -> anyhow::Result<Vec<String>> {
    let sockets: Vec<UdpSocket> = (0..count)
        .map(|_| UdpSocket::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()
        .context("no free UDP port on loopback")?;
    sockets
        .iter()
        .map(|socket| Ok(socket.local_addr()?.to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_nodes_have_places_of_their_own() {
        let (kind, nodes, listen) = nodes("4", Path::new("/m")).unwrap();
        assert_eq!(kind, Kind::Local);
        assert_eq!(nodes[3].mountpoint, Path::new("/m/3"));
        let distinct: std::collections::BTreeSet<&String> = listen.iter().collect();
        assert_eq!(distinct.len(), 4);
    }

    #[test]
    fn a_wrong_number_of_nodes() {
        for count in ["0", "", "many", "257", "-1"] {
            let error = nodes(count, Path::new("/m")).unwrap_err().to_string();
            assert!(error.contains("as in local:4"), "{error}");
        }
    }
}

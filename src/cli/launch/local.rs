//! Several nodes on this machine: one address and port each, on loopback.

use super::Node;
use anyhow::{Context, bail};
use copperfs_overlay::loopback::Port;
use std::path::Path;

/// More local nodes than this are a mistake.
const NODES_MAX: usize = 256;

/// Nodes `base/0` to `base/N-1`, and the ports they listen on. A node has the name of its mount point below the
/// parent of `base`.
///
/// # Errors
/// `count` is no number of nodes; no free ports.
pub(super) fn nodes(count: &str, base: &Path) -> anyhow::Result<(Vec<Node>, Vec<Port>)> {
    let count = match count.parse::<usize>() {
        Ok(count) if (1..=NODES_MAX).contains(&count) => count,
        _ => bail!(
            "--hosts local:{count}: write a number of nodes from 1 to {NODES_MAX}, as in local:4"
        ),
    };
    let ports = (0..count)
        .map(|_| Port::udp())
        .collect::<Result<Vec<_>, _>>()
        .context("no free UDP port on loopback")?;
    let base_name = plain_name(base);
    let nodes = ports
        .iter()
        .enumerate()
        .map(|(rank, port)| Node {
            name: format!("{base_name}/{rank}"),
            address: port.address().to_string(),
            host: "localhost".into(),
            mountpoint: base.join(rank.to_string()),
            rack: None,
        })
        .collect();
    Ok((nodes, ports))
}

/// The last component of the path, as far as it can be a part of a node's name.
fn plain_name(path: &Path) -> String {
    const CHARS_MAX: usize = 64;
    let last = path.file_name().unwrap_or_default().to_string_lossy();
    let plain = |c: char| match c.is_ascii_alphanumeric() || "-._".contains(c) {
        true => c,
        false => '_',
    };
    last.chars().take(CHARS_MAX).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_nodes_have_distinct_mount_points_and_ports() {
        let (nodes, ports) = nodes("4", Path::new("/tmp/my m,1")).unwrap();
        assert_eq!(nodes[3].mountpoint, Path::new("/tmp/my m,1/3"));
        assert_eq!(nodes[3].name, "my_m_1/3");
        assert_eq!(nodes[3].address, ports[3].address().to_string());
    }

    #[test]
    fn a_wrong_number_of_nodes_is_refused() {
        for count in ["0", "", "many", "257", "-1"] {
            let error = nodes(count, Path::new("/m")).unwrap_err().to_string();
            assert!(error.contains("as in local:4"), "{error}");
        }
    }
}

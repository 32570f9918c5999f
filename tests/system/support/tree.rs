//! Several nodes on this machine: started by `copperfs launch`, or one by one.

use super::command;
use super::leash::Leash;
use super::mount::{Node, copperfs};
use super::{Mount, Scratch, Stats};
use copperfs_overlay::loopback::Port;
use rustix::process::Pid;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Nodes of `copperfs launch --hosts local:N`, all taken away when the guard goes.
#[derive(Debug)]
pub struct Tree {
    pub nodes: Vec<Node>,
    _leash: Leash,
    scratch: Scratch,
}

impl Tree {
    /// Serves directory `origin` on `count` nodes, each with up to `arity` children.
    #[track_caller]
    pub fn launch(count: usize, arity: usize, origin: &Path, flags: &[&str]) -> Self {
        let origin = format!("/=file://{}", origin.display());
        Self::launch_with(count, arity, &[&["--origin", &origin], flags].concat())
    }

    /// The same, with origins that `flags` name.
    #[track_caller]
    pub fn launch_with(count: usize, arity: usize, flags: &[&str]) -> Self {
        let scratch = Scratch::new();
        let base = scratch.path().join("mnt");
        let (hosts, arity) = (format!("local:{count}"), arity.to_string());
        let mut launch = copperfs(["launch", "--json", "--hosts", &hosts, "--arity", &arity]);
        launch.args(flags).arg(&base);
        let summary: Value = serde_json::from_str(&command::check(&mut launch)).unwrap();
        let node = |node: &Value| Node {
            point: node["mountpoint"].as_str().unwrap().into(),
            pid: Pid::from_raw(node["pid"].as_i64().unwrap().try_into().unwrap()).unwrap(),
            log: node["log"].as_str().unwrap().into(),
        };
        let nodes: Vec<Node> = summary["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(node)
            .collect();
        assert_eq!(nodes.len(), count);
        let leash = Leash::tie(nodes.iter().map(|node| node.pid).collect());
        Self {
            nodes,
            _leash: leash,
            scratch,
        }
    }

    /// The mount point that was given to `launch`.
    pub fn base(&self) -> PathBuf {
        self.scratch.path().join("mnt")
    }

    /// The node that reads storage.
    pub fn root(&self) -> &Node {
        &self.nodes[0]
    }

    /// The last node.
    pub fn leaf(&self) -> &Node {
        self.nodes.last().unwrap()
    }

    /// A path in the mount of node `rank`.
    pub fn path(&self, rank: usize, inside: impl AsRef<Path>) -> PathBuf {
        self.nodes[rank].point.join(inside)
    }

    /// Every node's counters, asked of each node itself.
    #[track_caller]
    pub fn stats(&self) -> Vec<Stats> {
        self.nodes.iter().map(Node::stats).collect()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // Stopped daemons would delay the others. After that only the record of the launch remains.
        for node in &self.nodes {
            if node.is_alive() {
                let _gone = rustix::process::kill_process(node.pid, rustix::process::Signal::CONT);
            }
        }
        if self
            .nodes
            .iter()
            .any(|node| node.is_mounted() || node.is_alive())
        {
            let mut unmount = copperfs(["unmount", "--all", "--force"]);
            drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(
                || command::run(unmount.arg(self.base())),
            )));
        }
        self.nodes.iter().rev().for_each(Node::take_away);
    }
}

/// What nodes that are started one by one share: a host list, a secret, an origin.
#[derive(Debug)]
pub struct Members {
    pub hosts: String,
    pub secret: PathBuf,
    origin: String,
    arity: usize,
    scratch: Scratch,
    _ports: Vec<Port>,
}

impl Members {
    /// `count` nodes in a chain, on loopback ports.
    pub fn new(count: usize, origin: &Path) -> Self {
        Self::with_arity(count, 1, origin)
    }

    /// As [`Members::new`], each with up to `arity` children.
    pub fn with_arity(count: usize, arity: usize, origin: &Path) -> Self {
        let scratch = Scratch::new();
        let ports: Vec<Port> = (0..count).map(|_| Port::udp().unwrap()).collect();
        let hosts: Vec<String> = ports
            .iter()
            .map(|port| port.address().to_string())
            .collect();
        let secret = scratch.path().join("secret");
        write_secret(&secret);
        let origin = format!("/=file://{}", origin.display());
        Self {
            hosts: hosts.join(","),
            secret,
            origin,
            arity,
            scratch,
            _ports: ports,
        }
    }

    /// A new mount point for node `rank`.
    pub fn point(&self, rank: usize) -> PathBuf {
        self.scratch.dir(&format!("node{rank}"))
    }

    /// `copperfs mount` for node `rank`, without the mount point.
    pub fn command(&self, rank: usize, flags: &[&str]) -> std::process::Command {
        let arity = self.arity.to_string();
        let mut command = copperfs(["mount", "--hosts", &self.hosts, "--arity", &arity]);
        command
            .args(["--rank", &rank.to_string(), "--origin", &self.origin])
            .args(flags);
        if !flags.contains(&"--secret-file") {
            command.arg("--secret-file").arg(&self.secret);
        }
        command
    }

    /// Starts node `rank`.
    #[track_caller]
    pub fn start(&self, rank: usize, flags: &[&str]) -> Mount {
        Mount::at(&self.point(rank), &mut self.command(rank, flags))
    }
}

/// A job secret, made as anybody could.
pub fn write_secret(path: &Path) {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut random = [0; 32];
    std::io::Read::read_exact(
        &mut std::fs::File::open("/dev/urandom").unwrap(),
        &mut random,
    )
    .unwrap();
    let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut options = std::fs::File::options();
    let mut file = options
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .unwrap();
    writeln!(file, "{text}").unwrap();
}

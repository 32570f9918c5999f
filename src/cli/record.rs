//! The record of a launch, from which `unmount --all` learns its nodes.

use crate::config::Machine;
use crate::config::resolve::instance_name;
use crate::daemon::runtime_dir;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// How the nodes are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// They run on this machine.
    Local,
    /// By ssh, one by one.
    Remote,
    /// By one command for all.
    Together,
}

/// A launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Distinguishes this launch from others at the same mount point.
    pub id: String,
    /// How the nodes are reached.
    pub kind: Kind,
    /// The mount point of the launch.
    pub mountpoint: PathBuf,
    /// The nodes, in the order of the tree. Nodes of an instance are next to each other.
    pub nodes: Vec<Node>,
    /// The command that reaches a host.
    pub ssh: Vec<String>,
    /// The command that runs a program on all hosts.
    #[serde(default)]
    pub starter: Vec<String>,
    /// This program's path on the nodes.
    pub program: String,
    /// Directories on this machine that the launch has made, each after the one above it.
    #[serde(default)]
    pub made: Vec<PathBuf>,
}

/// One node of a launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The node's name in the host list.
    pub name: String,
    /// The `host:port` on which it listens for other nodes.
    pub address: String,
    /// The host to connect to.
    pub host: String,
    /// Its mount point.
    pub mountpoint: PathBuf,
    /// Its rack, if each rack is an instance of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
}

impl Record {
    /// The nodes of each instance, as ranges of `nodes`. There is one instance, unless each rack is one.
    pub fn instances(&self) -> Vec<Range<usize>> {
        let mut begin = 0;
        let chunks = self.nodes.chunk_by(|a, b| a.rack == b.rack);
        let ranges = chunks.map(|nodes| {
            let range = begin..begin + nodes.len();
            begin = range.end;
            range
        });
        ranges.collect()
    }

    /// Whether a node of this machine is mounted at `mountpoint`.
    pub fn is_node_here(&self, mountpoint: &Path) -> bool {
        let mut nodes = self.nodes.iter();
        self.kind == Kind::Local && nodes.any(|node| node.mountpoint == mountpoint)
    }

    /// Notes which mount points of this machine are to be made, and whether `data_mount`, the directory of the data
    /// mounts, is one of them.
    pub fn note_missing(&mut self, data_mount: Option<&Path>) {
        if self.kind != Kind::Local {
            return;
        }
        let mounts = self.nodes.iter().map(|node| node.mountpoint.as_path());
        // Relative is only the empty path, which stands for none.
        for mount in mounts.chain(data_mount).filter(|mount| mount.is_absolute()) {
            let missing = mount.ancestors().take_while(|dir| !dir.exists());
            let mut missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
            missing.reverse();
            missing.retain(|dir| !self.made.contains(dir));
            self.made.append(&mut missing);
        }
    }

    /// Removes the directories that the launch has made, unless something else is in them.
    pub fn remove_made(&self) {
        for dir in self.made.iter().rev() {
            let _in_use = std::fs::remove_dir(dir);
        }
    }

    /// Directories that may hold records: the one for new records, and those of commands with another
    /// environment.
    fn dirs(machine: &Machine) -> Vec<PathBuf> {
        let bases = machine.runtime_bases.iter();
        bases.map(|base| base.join("launches")).collect()
    }

    fn file_name(mountpoint: &Path, machine: &Machine) -> String {
        instance_name(mountpoint, machine.host_name()) + ".json"
    }

    /// Writes the record.
    ///
    /// # Errors
    /// The runtime directory cannot be used.
    pub fn save(&self, machine: &Machine) -> anyhow::Result<()> {
        let dir = machine.runtime_base().join("launches");
        runtime_dir::prepare(&dir)?;
        let name = Self::file_name(&self.mountpoint, machine);
        runtime_dir::write_private(&dir, &name, &serde_json::to_vec_pretty(self)?)?;
        Ok(())
    }

    /// The record of the launch at `mountpoint`, if there is one.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn load(mountpoint: &Path, machine: &Machine) -> anyhow::Result<Option<Self>> {
        let name = Self::file_name(mountpoint, machine);
        let mut files = Self::dirs(machine).into_iter().map(|dir| dir.join(&name));
        let file = files.find(|file| file.exists());
        file.map(|file| Self::read(&file)).transpose()
    }

    /// The record of the launch that has a node at `mountpoint`, or whose id is `id`.
    pub fn of_node(mountpoint: &Path, id: Option<&str>, machine: &Machine) -> Option<Self> {
        let dirs = Self::dirs(machine);
        let mut files = runtime_dir::all(&dirs);
        files.find_map(|file| {
            // Unreadable records are skipped, so that they affect no other launch.
            let is_record = file.extension().is_some_and(|end| end == "json");
            let record = is_record.then(|| Self::read(&file))?.ok()?;
            // A data mount is not in the record, so its launch is found by id.
            let here = |node: &Node| node.mountpoint == mountpoint;
            let found = id == Some(record.id.as_str()) || record.nodes.iter().any(here);
            found.then_some(record)
        })
    }

    fn read(file: &Path) -> anyhow::Result<Self> {
        // The record names commands that ssh runs, so another user must not have written it.
        runtime_dir::check(file.parent().unwrap_or(file))?;
        let shown = file.display();
        let bytes = std::fs::read(file).with_context(|| format!("cannot read {shown}"))?;
        serde_json::from_slice(&bytes)
            .with_context(|| format!("{shown} is no record of a launch; remove it"))
    }

    /// Removes the record.
    pub fn remove(&self, machine: &Machine) {
        let name = Self::file_name(&self.mountpoint, machine);
        for dir in Self::dirs(machine) {
            let _absent = std::fs::remove_file(dir.join(&name));
        }
    }
}

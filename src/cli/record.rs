//! The record of a launch, from which `unmount --all` learns its nodes.

use crate::config::Machine;
use crate::config::resolve::instance_name;
use crate::daemon::runtime_dir;
use anyhow::Context;
use serde::{Deserialize, Serialize};
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
    /// The nodes in the order of the tree.
    pub nodes: Vec<Node>,
    /// The command that reaches a host.
    pub ssh: Vec<String>,
    /// The command that runs a program on all hosts.
    #[serde(default)]
    pub starter: Vec<String>,
    /// This program's path on the nodes.
    pub program: String,
}

/// One node of a launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The node's name in the host list.
    pub name: String,
    /// The host to connect to.
    pub host: String,
    /// Its mount point.
    pub mountpoint: PathBuf,
}

impl Record {
    fn dir(machine: &Machine) -> PathBuf {
        machine.runtime_base().join("launches")
    }

    /// Directories that may hold records: the one for new records, and those of commands with another
    /// environment.
    fn dirs(machine: &Machine) -> impl Iterator<Item = PathBuf> {
        let bases = machine.runtime_bases.iter();
        bases.map(|base| base.join("launches"))
    }

    fn file_name(mountpoint: &Path, machine: &Machine) -> String {
        instance_name(mountpoint, machine.host_name()) + ".json"
    }

    /// Writes the record.
    ///
    /// # Errors
    /// The runtime directory cannot be used.
    pub fn save(&self, machine: &Machine) -> anyhow::Result<()> {
        let dir = Self::dir(machine);
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
        let mut dirs = Self::dirs(machine);
        let Some(dir) = dirs.find(|dir| dir.join(&name).exists()) else {
            return Ok(None);
        };
        Self::read(&dir, &name).map(Some)
    }

    /// The record of the launch that has a node at `mountpoint`, or whose id is `id`.
    ///
    /// # Errors
    /// A record cannot be read.
    pub fn of_node(
        mountpoint: &Path,
        id: Option<&str>,
        machine: &Machine,
    ) -> anyhow::Result<Option<Self>> {
        for dir in Self::dirs(machine) {
            for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let Some(name) = name.to_str().filter(|name| name.ends_with(".json")) else {
                    continue;
                };
                // Unreadable records are skipped, so that they affect no other launch.
                let Ok(record) = Self::read(&dir, name) else {
                    continue;
                };
                // A data mount is not in the record, so its launch is found by id.
                let here = |node: &Node| node.mountpoint == mountpoint;
                if id == Some(record.id.as_str()) || record.nodes.iter().any(here) {
                    return Ok(Some(record));
                }
            }
        }
        Ok(None)
    }

    fn read(dir: &Path, name: &str) -> anyhow::Result<Self> {
        // The record names commands that ssh runs, so another user must not have written it.
        runtime_dir::check(dir)?;
        let path = dir.join(name);
        let bytes =
            std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&bytes)
            .with_context(|| format!("{} is no record of a launch; remove it", path.display()))
    }

    /// Removes the record.
    pub fn remove(&self, machine: &Machine) {
        let name = Self::file_name(&self.mountpoint, machine);
        for dir in Self::dirs(machine) {
            let _absent = std::fs::remove_file(dir.join(&name));
        }
    }
}

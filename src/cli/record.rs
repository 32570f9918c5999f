//! What a launch leaves behind for `unmount --all`: which nodes, where.

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
    /// Tells this launch from others at the same place.
    pub id: String,
    /// How the nodes are reached.
    pub kind: Kind,
    /// The mount point that was asked for.
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
    /// As in the host list.
    pub name: String,
    /// The host to reach it on.
    pub host: String,
    /// Its mount point.
    pub mountpoint: PathBuf,
}

impl Record {
    fn dir(machine: &Machine) -> PathBuf {
        machine.runtime_base(machine.uid).join("launches")
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
        let dir = Self::dir(machine);
        let path = dir.join(Self::file_name(mountpoint, machine));
        if !path.exists() {
            return Ok(None);
        }
        // What is run by ssh is read from it: nobody else may have written it.
        runtime_dir::check(&dir)?;
        let bytes =
            std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let record = serde_json::from_slice(&bytes)
            .with_context(|| format!("{} is no record of a launch; remove it", path.display()))?;
        Ok(Some(record))
    }

    /// Removes the record.
    pub fn remove(&self, machine: &Machine) {
        let path = Self::dir(machine).join(Self::file_name(&self.mountpoint, machine));
        let _absent = std::fs::remove_file(path);
    }
}

//! One node of a launch, on its own host: its input and its output.

use super::super::{say, start};
use crate::config::{Layer, Machine, Settings, Source, file, resolve};
use crate::daemon::{free_killed, make_way, mountpoint, runtime_dir};
use crate::process::leave_no_core;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The input of one node, which is sent over a pipe.
#[derive(Serialize, Deserialize)]
pub struct Bundle {
    /// The id of the launch.
    pub launch: String,
    /// The node's options, as the text of a configuration file.
    pub options: String,
    /// The content of the secret file.
    pub secret: String,
    /// Variables for object stores, if the origins need them.
    pub environment: BTreeMap<String, String>,
}

impl Bundle {
    /// Reads a bundle. Does not read to the end of `input`, which Open MPI never closes on the host of its
    /// mpirun.
    ///
    /// # Errors
    /// The input is not a bundle.
    pub fn read(input: impl std::io::Read) -> anyhow::Result<Self> {
        let mut values = serde_json::Deserializer::from_reader(input).into_iter();
        values
            .next()
            .context("nothing on standard input")
            .and_then(|value| Ok(value?))
            .context("start-node is what a launch runs; it was not given a bundle")
    }
}

/// The output of a node that has started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answer {
    /// The node's rank.
    pub rank: usize,
    /// The process id of its daemon.
    pub pid: u32,
    /// The path of its log on its host.
    pub log: PathBuf,
}

/// Creates the directory that option `key` names, and sets the option to its canonical path.
fn prepare_mount(layer: &mut Layer, key: &'static str, default: &str) -> anyhow::Result<PathBuf> {
    let mount = PathBuf::from(layer.text(key).unwrap_or(default));
    if !mount.as_os_str().is_empty() && mountpoint::kind_at(&mount).is_none() {
        std::fs::create_dir_all(&mount)
            .with_context(|| format!("cannot make the mount point {}", mount.display()))?;
    }
    let mount = mountpoint::canonical(&mount);
    layer.set(key, Source::Flag, vec![mount.display().to_string()]);
    Ok(mount)
}

/// Starts a node on this machine.
///
/// # Errors
/// The node cannot start.
pub fn start_here(bundle: &Bundle, machine: &Machine) -> anyhow::Result<Answer> {
    let mut layer = file::parse(&bundle.options, Path::new("the launch's options"))?;
    let mount = prepare_mount(&mut layer, "mountpoint", "/")?;
    if layer
        .text("data_mount")
        .is_some_and(|path| !path.is_empty())
    {
        prepare_mount(&mut layer, "data_mount", "")?;
    }
    let dir = machine
        .runtime_base()
        .join(resolve::instance_name(&mount, machine.host_name()));
    runtime_dir::prepare(&dir)?;
    free_killed(&dir, &mount);
    if let Some(holder) = runtime_dir::holder(&dir) {
        bail!(
            "a copperfs is already mounted at {} ({holder}); copperfs unmount takes it away",
            mount.display()
        );
    }
    let secret = runtime_dir::write_private(&dir, "secret", bundle.secret.as_bytes())?;
    runtime_dir::write_private(&dir, runtime_dir::LAUNCH_FILE, bundle.launch.as_bytes())?;
    layer.set(
        "secret_file",
        Source::Flag,
        vec![secret.display().to_string()],
    );
    let settings: Settings = resolve(&layer, machine)?;
    make_way(&settings)?;
    let started = start::background(&layer, &settings, &bundle.environment)?;
    Ok(Answer {
        rank: settings.rank().unwrap_or_default(),
        pid: started.pid,
        log: started.log,
    })
}

/// `copperfs start-node`, the other side of a remote launch: a bundle on standard input, an answer on
/// standard output.
///
/// # Errors
/// As [`start_here`].
pub fn start_node() -> anyhow::Result<()> {
    leave_no_core();
    let bundle = Bundle::read(std::io::stdin().lock())?;
    let answer = start_here(&bundle, &Machine::inspect())?;
    say(serde_json::to_string(&answer)?);
    Ok(())
}

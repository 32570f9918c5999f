//! One node of a launch, on its own host: its input and its output.

use super::super::made::MadeDirectories;
use super::super::{say, start};
use crate::config::reload::Options;
use crate::config::resolve::instance_name;
use crate::config::{Machine, Source, file, resolve};
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
    /// The node's rank in its instance.
    pub rank: usize,
    /// The node's rack, if each rack is an instance of its own.
    pub rack: Option<String>,
    /// The process id of its daemon.
    pub pid: u32,
    /// The path of its log on its host.
    pub log: PathBuf,
}

/// Starts a node on this machine. Returns also its runtime directory.
///
/// # Errors
/// The node cannot start.
pub fn start_here(bundle: &Bundle, machine: &Machine) -> anyhow::Result<(Answer, PathBuf)> {
    // For the user they are those of the command `launch`.
    let mut layer = file::parse(&bundle.options, Path::new("the launch's options"))?.as_flags();
    for key in ["mountpoint", "data_mount"] {
        let Some(path) = layer.text(key).filter(|path| !path.is_empty()) else {
            continue;
        };
        let path = mountpoint::canonical(Path::new(path)).display().to_string();
        layer.set(key, Source::Flag, vec![path]);
    }
    let mount = PathBuf::from(layer.text("mountpoint").unwrap_or("/"));
    let name = instance_name(&mount, machine.host_name());
    let dir = machine.runtime_base().join(name);
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
    let secret = secret.display().to_string();
    layer.set("secret_file", Source::Flag, vec![secret]);
    let settings = resolve(&layer, machine)?;
    let made = MadeDirectories::make(&settings, machine)?;
    make_way(&settings)?;
    let (pid, log) = start::background(&Options::new(layer, None), &settings, &bundle.environment)?;
    made.keep();
    let rank = settings.rank().unwrap_or_default();
    let answer = Answer {
        rank,
        rack: settings.rack,
        pid,
        log,
    };
    Ok((answer, settings.runtime_dir))
}

/// `copperfs start-node`, the other side of a remote launch: a bundle on standard input, an answer on
/// standard output.
///
/// # Errors
/// As [`start_here`].
pub fn start_node() -> anyhow::Result<()> {
    leave_no_core();
    let bundle = Bundle::read(std::io::stdin().lock())?;
    let (answer, _) = start_here(&bundle, &Machine::inspect())?;
    say(serde_json::to_string(&answer)?);
    Ok(())
}

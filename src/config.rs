//! Configuration: from flags, environment and file to [`Settings`].
//!
//! The only module that reads the environment. Flags go before `COPPERFS_*` variables, those before
//! the file, and the file before the defaults in [`keys`]. What each source says is kept as text
//! ([`layer`]) until all are laid on one another; [`mod@resolve`] then checks every value once and names
//! the place it was written at.

pub mod assigned;
pub mod datasets;
mod disk;
pub mod file;
pub mod hosts;
pub mod indexes;
pub mod keys;
pub mod layer;
pub mod machine;
pub mod network;
pub mod origins;
mod reader;
pub mod resolve;
mod runtime_base;
pub mod secret_file;
mod settings;
pub mod topology;

pub use layer::{Layer, Place, Source};
pub use machine::Machine;
pub use resolve::resolve;
pub use settings::{
    CacheSettings, Crossings, DatasetSpec, DiskSettings, EvictionPolicy, Freshness, IndexFile,
    IndexSpec, LogSettings, Member, NetworkPrefix, NodeIdentity, OpenMode, OriginSpec, Orphan,
    PushSettings, ReaddirPlus, Settings, SymlinkPolicy, Toggle,
};

use std::path::{Path, PathBuf};

/// A configuration that cannot be used: what is wrong, where, and what to write instead.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A value makes no sense.
    #[error("{place}: {why}")]
    Value {
        /// Where it was given.
        place: Place,
        /// What is wrong and what is right.
        why: String,
    },
    /// A line of the configuration file.
    #[error("{}:{line}: {message}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
    /// A file that was named cannot be read.
    #[error("cannot read the {what} {}: {source}", path.display())]
    Unreadable {
        /// What it would be.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Root must say what is served.
    #[error(
        "no --origin given: as root copperfs does not serve the whole file system unasked, since \
         whoever can use the mount would read with root's rights. Name what to serve, as in \
         --origin /lus=file:///lus"
    )]
    NoOrigin,
    /// Nodes that talk to each other need a secret.
    #[error(
        "nodes that talk to each other need a job secret: give --secret-file FILE (the same on all \
         nodes, mode 0600), or let copperfs launch make one"
    )]
    NoSecret,
    /// The secret file is not fit for use.
    #[error("the secret file {}: {why}", path.display())]
    SecretFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// Lays `flags` over the environment over the file that `config` or `COPPERFS_CONFIG` names.
///
/// # Errors
/// The file cannot be read or understood.
pub fn gather(
    flags: Layer,
    config: Option<&Path>,
    machine: &Machine,
) -> Result<Layer, ConfigError> {
    let variable = machine
        .variables
        .get("COPPERFS_CONFIG")
        .filter(|path| !path.is_empty());
    let path = config.or_else(|| variable.map(Path::new));
    let file = match path {
        Some(path) => file::read(&machine.working_dir.join(path))?,
        None => Layer::default(),
    };
    let layer = flags
        .over(Layer::from_environment(&machine.variables))
        .over(file);
    Ok(layer.absolute(&machine.working_dir))
}

/// The options as a fresh installation has them: the text of `config/full.toml`.
#[must_use]
pub fn documented_defaults() -> String {
    let mut text = String::from(
        "# Every option of copperfs, each at its default. Generated from src/config/keys.rs: change\n\
         # it there. A flag is the key with - for _, a variable COPPERFS_ and the key in capitals;\n\
         # flags go before variables, variables before this file. Keys without a default stand as\n\
         # comments with their form.\n",
    );
    let mut group = None;
    for key in keys::KEYS {
        if group != Some(key.group) {
            group = Some(key.group);
            text.push_str(&format!("\n# ---- {} ----\n", key.group.heading()));
        }
        text.push('\n');
        for line in wrapped(key.help, 96) {
            text.push_str(&format!("# {line}\n"));
        }
        text.push_str(&default_line(key));
    }
    text.push_str(
        "\n# An origin with options of its own (credentials: keep this file at mode 0600) is a table, \
         at\n# the end of the file:\n# [[origin]]\n# prefix = \"/data\"\n# uri = \
         \"s3://bucket/prefix\"\n# [origin.options]\n# aws_endpoint = \"https://s3.example.org\"\n\
         # aws_access_key_id = \"...\"\n# aws_secret_access_key = \"...\"\n",
    );
    text.push_str(
        "\n# So is a dataset with more than a place:\n# [[dataset]]\n# name = \"imagenet\"\n# path = \
         \"/data/imagenet\"   # or uri = \"s3://bucket/prefix/imagenet\"\n# index = \
         \"/data/imagenet/.index\"\n# budget = \"120GB\"\n# origin_readers = \"roots\"         # or homes\n",
    );
    text
}

fn default_line(key: &keys::Key) -> String {
    let name = key.name;
    let bare = key.default.parse::<u64>().is_ok() || key.default.parse::<bool>().is_ok();
    match (key.form, key.default) {
        (keys::Form::Many, _) => format!("# {name} = [\"{}\"]\n", key.value),
        (_, "") if key.value == "N" => format!("# {name} = 0\n"),
        (_, "") => format!("# {name} = \"{}\"\n", key.value),
        (_, default) if bare => format!("{name} = {default}\n"),
        (_, default) => format!("{name} = \"{default}\"\n"),
    }
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

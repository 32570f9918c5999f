//! Configuration: from flags, environment and file to [`Settings`].
//!
//! This is the only module that reads the environment. Flags override `COPPERFS_*` variables, which override
//! the file, which overrides the defaults in [`keys`]. The values of each source stay text ([`layer`]) until
//! the sources are merged. [`mod@resolve`] then checks every value once, and its errors name the place where
//! the value is set.

pub mod datasets;
mod disk;
mod error;
pub mod file;
pub mod hosts;
pub mod images;
mod indexes;
pub mod keys;
pub mod layer;
pub mod machine;
pub mod network;
pub mod origins;
mod reader;
pub mod reload;
pub mod resolve;
mod runtime_base;
pub mod secret_file;
mod settings;
pub mod topology;

pub use error::{ConfigError, ValueError};
pub use layer::{Layer, Location, Source};
pub use machine::Machine;
pub use resolve::resolve;
pub use settings::{
    CacheSettings, Crossings, DatasetSpec, DiskSettings, EvictionPolicy, FileLocation, FrontChoice,
    IndexSpec, LogSettings, Member, NetworkPrefix, NodeIdentity, OpenMode, OriginSpec, Orphan,
    PushSettings, ReaddirPlus, Settings, SymlinkPolicy, ThreadSettings,
};

use keys::Reload;
use std::path::{Path, PathBuf};

/// Merges `flags`, the environment, and the file that `config` or `COPPERFS_CONFIG` names, in this order of
/// precedence.
///
/// # Errors
/// The file cannot be read or parsed.
pub fn gather(
    flags: Layer,
    config: Option<&Path>,
    machine: &Machine,
) -> Result<Layer, ConfigError> {
    let file = match config_file(config, machine) {
        Some(path) => file::read(&path)?,
        None => Layer::default(),
    };
    let layer = flags
        .over(Layer::from_environment(&machine.variables))
        .over(file);
    Ok(layer.absolute(&machine.working_dir))
}

/// The absolute path of the file that `config` or `COPPERFS_CONFIG` names.
#[must_use]
pub fn config_file(config: Option<&Path>, machine: &Machine) -> Option<PathBuf> {
    let variable = machine.variable("COPPERFS_CONFIG").map(Path::new);
    let path = config.or(variable)?;
    Some(layer::without_dots(&machine.working_dir.join(path)))
}

/// All options with their defaults: the text of `config/full.toml`.
#[must_use]
pub fn documented_defaults() -> String {
    let mut text = String::from(
        "# Every option of copperfs, each at its default. Generated from src/config/keys.rs: change\n\
         # it there. A flag is the key with - for _, a variable COPPERFS_ and the key in capitals;\n\
         # flags go before variables, variables before this file. Keys without a default stand as\n\
         # comments with their form.\n",
    );
    let mut heading = "";
    for key in keys::KEYS.iter() {
        if heading != key.heading {
            heading = key.heading;
            text += &format!("\n# ---- {heading} ----\n");
        }
        text.push('\n');
        let help = format!("{}{}", key.help, reload_note(key));
        for line in wrapped(&help, 96).lines() {
            text.push_str(&format!("# {line}\n"));
        }
        text.push_str(&default_line(key));
    }
    text.push_str(
        "\n# An origin with options of its own (credentials: keep this file at mode 0600) is a table, \
         at\n# the end of the file:\n# [[origin]]\n# prefix = \"/data\"\n# uri = \
         \"s3://bucket/prefix\"\n# [origin.options]\n# aws_endpoint = \"https://s3.example.org\"\n\
         # aws_access_key_id = \"...\"\n# aws_secret_access_key = \"...\"\n\n\
         # So is a dataset with more than a place:\n# [[dataset]]\n# name = \"imagenet\"\n# path = \
         \"/data/imagenet\"   # or uri = \"s3://bucket/prefix/imagenet\"\n# index = \
         \"/data/imagenet/.index\"\n# budget = \"120GB\"\n# origin_readers = \"roots\"         # or homes\n# \
keep = \"auto\"                    # or uniform, none\n",
    );
    text
}

/// Whether a reload changes `key`, as a sentence after its help text.
fn reload_note(key: &keys::Key) -> String {
    match key.reload {
        Reload::Live => " copperfs reload can change it.".to_owned(),
        Reload::Partly(part) => format!(" copperfs reload can change {part}."),
        Reload::Remount => String::new(),
    }
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

/// `text` in lines of at most `width` characters, broken at blanks.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 {
            let fits = column + 1 + length <= width;
            lines.push(if fits { ' ' } else { '\n' });
            column = if fits { column + 1 } else { 0 };
        }
        lines.push_str(word);
        column += length;
    }
    lines
}

//! The flags of `mount` and `launch`, derived from the table of options.

use crate::config::keys::{Form, KEYS, Key, Reload, find};
use crate::config::{ConfigError, Layer, Machine, Source, config_file, gather};
use crate::daemon::mountpoint::canonical;
use clap::builder::{BoolishValueParser, PossibleValuesParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use std::path::PathBuf;

/// The flags of `copperfs mount`.
pub type MountFlags = Flags<false>;

/// The flags of `copperfs launch`: those of `mount`, except those that a launch sets for each node.
pub type LaunchFlags = Flags<true>;

/// The flags of a command that starts one node, or with `LAUNCH` several.
#[derive(Debug, Clone, Default)]
pub struct Flags<const LAUNCH: bool> {
    config: Option<PathBuf>,
    layer: Layer,
}

/// Options that a launch sets for each node.
const OF_A_NODE: [&str; 5] = ["rank", "listen", "secret_file", "foreground", "runtime_dir"];

/// The maximum number of sources and the mount point together.
const PLACES_MAX: usize = 65;

/// Options that `-h` shows; `--help` shows all.
const COMMON: [&str; 12] = [
    "mountpoint",
    "origin",
    "hosts",
    "memory",
    "disk",
    "freshness",
    "index",
    "data_mount",
    "remote_io",
    "secret_file",
    "allow_other",
    "foreground",
];

impl<const LAUNCH: bool> Flags<LAUNCH> {
    /// The path of the configuration file, if there is one.
    #[must_use]
    pub fn config(&self, machine: &Machine) -> Option<PathBuf> {
        config_file(self.config.as_deref(), machine)
    }

    /// Merges these flags with the environment and the configuration file, and makes paths absolute.
    ///
    /// # Errors
    /// The file cannot be read or parsed.
    pub fn gather(self, machine: &Machine) -> Result<Layer, ConfigError> {
        let mut layer = gather(self.layer, self.config.as_deref(), machine)?;
        // The mount point has a default, the data mount has none.
        let default = machine.default_mountpoint().display().to_string();
        for (key, default) in [("mountpoint", default.as_str()), ("data_mount", "")] {
            let path = layer.text(key).unwrap_or(default);
            if key == "mountpoint" || !path.is_empty() {
                let path = canonical(&machine.working_dir.join(path));
                let source = layer.location(key).source;
                layer.set(key, source, vec![path.display().to_string()]);
            }
        }
        for key in OF_A_NODE.iter().filter(|_| LAUNCH) {
            layer.remove(key);
        }
        Ok(layer)
    }
}

/// The flags of `copperfs reload`: those of `mount`. Help texts show only those that can change.
#[derive(Debug, Clone, Default)]
pub struct ReloadFlags(MountFlags);

impl ReloadFlags {
    /// The mount point that the flags name, and the options, with absolute paths.
    #[must_use]
    pub fn named(&self, machine: &Machine) -> (Option<PathBuf>, Layer) {
        let mut layer = self.0.layer.clone().absolute(&machine.working_dir);
        let canonical = |path: &str| canonical(&machine.working_dir.join(path));
        let data_mount = layer.text("data_mount").filter(|path| !path.is_empty());
        if let Some(path) = data_mount.map(canonical) {
            layer.set("data_mount", Source::Flag, vec![path.display().to_string()]);
        }
        let mount = layer.text("mountpoint").map(canonical);
        layer.remove("mountpoint");
        (mount, layer)
    }

    /// The path of the configuration file that the flags or the environment name.
    #[must_use]
    pub fn config(&self, machine: &Machine) -> Option<PathBuf> {
        self.0.config(machine)
    }

    /// Whether the flags name a configuration file.
    #[must_use]
    pub fn names_config(&self) -> bool {
        self.0.config.is_some()
    }
}

impl FromArgMatches for ReloadFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        MountFlags::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl Args for ReloadFlags {
    fn augment_args(command: Command) -> Command {
        MountFlags::augment_args(command).mut_args(|arg| match find(arg.get_id().as_str()) {
            Some(key) if key.form == Form::Positional => {
                let arg = arg.num_args(0..=1).value_name("MOUNT");
                let help = "The mount, or the directory of a launch";
                helped(arg, help, " [default: COPPERFS_MOUNTPOINT, the mount of the working directory, or the only mount of this user]")
            }
            Some(key) if key.reload == Reload::Remount => arg.hide(true),
            _ => arg,
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Divides the words `[SOURCE...] MOUNT` into the origins that they name, and the mount point. A source without a prefix
/// is all that is mounted.
///
/// # Errors
/// The last word is a source.
fn divide_places(mut places: Vec<String>) -> Result<(Vec<String>, Option<String>), clap::Error> {
    let mount = places.pop();
    if let Some(source) = mount.as_deref().filter(|mount| mount.contains("://")) {
        return Err(clap::Error::raw(
            clap::error::ErrorKind::MissingRequiredArgument,
            format!(
                "{source} is a source: name the mount point after it, as in {source} /tmp/data\n"
            ),
        ));
    }
    let origins = places.into_iter().map(|source| {
        let has_prefix = source.starts_with('/') && source.contains('=');
        if has_prefix {
            source
        } else {
            format!("/={source}")
        }
    });
    Ok((origins.collect(), mount))
}

/// The argument that turns a switch off. It is the same option.
fn off(key: &Key) -> Arg {
    Arg::new(format!("no_{}", key.name))
        .long(format!("no-{}", key.flag()))
        .action(ArgAction::SetTrue)
        .overrides_with(key.name)
        .hide(true)
}

impl<const LAUNCH: bool> FromArgMatches for Flags<LAUNCH> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        if let Some(config) = matches.get_one::<PathBuf>("config") {
            self.config = Some(config.clone());
        }
        let mut sources = Vec::new();
        for key in KEYS.iter() {
            // An error means that the command has no such flag.
            let values = match key.form {
                Form::Switch => {
                    let on = matches.try_get_one::<bool>(key.name).ok().flatten();
                    let off = format!("no_{}", key.name);
                    let off = matches.try_get_one::<bool>(&off).ok().flatten() == Some(&true);
                    on.copied()
                        .or(off.then_some(false))
                        .map(|on| vec![on.to_string()])
                }
                _ => {
                    let values = matches.try_get_many::<String>(key.name).ok().flatten();
                    values.map(|values| values.cloned().collect())
                }
            };
            match values {
                Some(places) if key.form == Form::Positional => {
                    let (origins, mount) = divide_places(places)?;
                    sources = origins;
                    self.layer
                        .set(key.name, Source::Flag, mount.into_iter().collect());
                }
                Some(values) => self.layer.set(key.name, Source::Flag, values),
                None => {}
            }
        }
        if !sources.is_empty() {
            let named = matches.get_many::<String>("origin").into_iter().flatten();
            sources.extend(named.cloned());
            self.layer.set("origin", Source::Flag, sources);
        }
        Ok(())
    }
}

impl<const LAUNCH: bool> Args for Flags<LAUNCH> {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("Read options from this TOML file")
            .long_help(
                "Read options from this TOML file. Flags and COPPERFS_* variables override it. \
                 Its keys are the flags, with _ for -.",
            );
        let keys = KEYS
            .iter()
            .filter(|key| !LAUNCH || !OF_A_NODE.contains(&key.name));
        let args = keys.map(|key| match key.name {
            "hosts" if LAUNCH => helped(
                arg(key),
                "The nodes, in the order of the tree. local:N starts N nodes on this machine, at \
                 MOUNT/0 to MOUNT/N-1. slurm, pbs: the hosts of this job; mpi: those that an \
                 mpirun starts its tasks on. Otherwise a file with one host per line, or h1,h2,... or \
                 nid[001-128,200]. Reached by --starter, or one by one by --ssh.",
                "",
            ),
            "mountpoint" if LAUNCH => helped(
                arg(key),
                "Where each host mounts, or for local:N the directory that gets the mount points 0 to \
                 N-1. Made where it is missing.",
                " [default: /copper_mnt, or /tmp/copperfs-UID/mnt]",
            ),
            _ => arg(key),
        });
        let switches = KEYS.iter().filter(|key| key.form == Form::Switch);
        let switches = switches.filter(|key| !LAUNCH || !OF_A_NODE.contains(&key.name));
        command.arg(config).args(args).args(switches.map(off))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Gives `arg` the help text `help`, of which `-h` shows the first sentence, and its default.
fn helped(arg: Arg, help: &str, default: &str) -> Arg {
    let first = help.split_once(". ").map_or(help, |(first, _)| first);
    let first = first.trim_end_matches('.');
    arg.help(format!("{first}{default}"))
        .long_help(format!("{help}{default}"))
}

fn arg(key: &'static Key) -> Arg {
    let default = match key.default {
        "" => String::new(),
        _ if key.form == Form::Positional => {
            " [default: /copper_mnt, or /tmp/copperfs-UID/mnt]".into()
        }
        default => format!(" [default: {default}]"),
    };
    let arg = Arg::new(key.name).value_name(key.value);
    let arg = helped(arg, key.help, &default).hide_short_help(!COMMON.contains(&key.name));
    if key.form == Form::Positional {
        return arg.num_args(0..=PLACES_MAX);
    }
    let mut arg = arg.long(key.flag());
    if !COMMON.contains(&key.name) {
        arg = arg.help_heading(key.heading);
    }
    match key.form {
        Form::Switch => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .overrides_with(format!("no_{}", key.name))
            .value_parser(BoolishValueParser::new())
            .hide_possible_values(true),
        Form::Many => arg.action(ArgAction::Append),
        _ if !key.choices.is_empty() => arg
            .value_parser(PossibleValuesParser::new(key.choices))
            .hide_possible_values(true)
            .value_name(key.choices.join("|")),
        _ => arg,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        MountFlags::augment_args(Command::new("mount"))
    }

    #[test]
    fn every_flag_has_a_key_and_every_key_a_flag() {
        let command = command();
        let flags: Vec<&str> = command
            .get_arguments()
            .map(|arg| arg.get_id().as_str())
            .collect();
        for flag in &flags {
            // --config names the file itself, and --no-push is --push=false.
            let name = flag.strip_prefix("no_").unwrap_or(flag);
            assert!(
                *flag == "config" || find(name).is_some(),
                "{flag} has no key"
            );
        }
        for key in KEYS.iter() {
            assert!(flags.contains(&key.name), "{} has no flag", key.name);
        }
    }

    #[test]
    fn flags_become_a_layer() {
        let matches = command().get_matches_from([
            "mount",
            "/mnt",
            "--origin",
            "/a=/x",
            "--origin=/b=/y",
            "--push=off",
            "--allow-other",
            "--open",
            "tracked",
        ]);
        let flags = MountFlags::from_arg_matches(&matches).unwrap();
        assert_eq!(flags.layer.values("origin").len(), 2);
        assert_eq!(flags.layer.text("push"), Some("false"));
        assert_eq!(flags.layer.text("allow_other"), Some("true"));
        assert_eq!(flags.layer.text("mountpoint"), Some("/mnt"));
    }

    #[test]
    fn a_switch_is_turned_off_by_its_name_with_no() {
        for (words, wanted) in [
            ("--no-push", "false"),
            ("--push=no", "false"),
            ("--push", "true"),
            ("--no-push --push", "true"),
            ("--push --no-push", "false"),
        ] {
            let words = ["mount", "/mnt"].into_iter().chain(words.split(' '));
            let matches = command().get_matches_from(words.clone());
            let flags = MountFlags::from_arg_matches(&matches).unwrap();
            assert_eq!(flags.layer.text("push"), Some(wanted), "{words:?}");
        }
    }

    #[test]
    fn a_source_is_no_mount_point() {
        let matches = command().get_matches_from(["mount", "s3://b/p"]);
        let error = MountFlags::from_arg_matches(&matches).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("s3://b/p is a source"), "{text}");
    }

    #[test]
    fn sources_before_the_mount_point_are_origins() {
        for (words, origins, mount) in [
            ("/mnt", &[][..], "/mnt"),
            ("s3://b/p /mnt", &["/=s3://b/p"], "/mnt"),
            ("s3://b/x=1 /mnt", &["/=s3://b/x=1"], "/mnt"),
            (
                "/data=s3://b/p /lus=/lus /mnt",
                &["/data=s3://b/p", "/lus=/lus"],
                "/mnt",
            ),
            ("/usr /mnt --origin /b=/y", &["/=/usr", "/b=/y"], "/mnt"),
        ] {
            let words = ["mount"].into_iter().chain(words.split(' '));
            let matches = command().get_matches_from(words);
            let flags = MountFlags::from_arg_matches(&matches).unwrap();
            let found = flags.layer.values("origin").iter();
            let found: Vec<&str> = found.map(|origin| origin.text.as_str()).collect();
            assert_eq!(found, origins);
            assert_eq!(flags.layer.text("mountpoint"), Some(mount));
        }
    }

    #[test]
    fn a_launch_has_no_flags_of_a_single_node() {
        let command = LaunchFlags::augment_args(Command::new("launch"));
        assert!(
            command
                .get_arguments()
                .all(|arg| !OF_A_NODE.contains(&arg.get_id().as_str()))
        );
    }
}

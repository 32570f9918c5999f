//! `copperfs config`: checks a configuration file, and shows the options of a mount.

use super::daemon::{list, text};
use super::mounted::MountArg;
use super::{Table, print, say};
use crate::config::reload::Options;
use crate::config::{Layer, Machine, gather};
use crate::daemon::mountpoint::canonical;
use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::path::PathBuf;

/// What is done with options.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check that a mount could begin with this file: keys, values, origins, members
    Check(CheckArgs),
    /// Show the options of a mount, and where each is set
    Show(ShowArgs),
}

/// Flags of `config check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The configuration file
    file: PathBuf,
}

/// Flags of `config show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    mount: MountArg,
    /// Only options that do not have their defaults
    #[arg(long)]
    changed: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Checks or shows.
///
/// # Errors
/// The file cannot be used, or the daemon cannot be reached.
pub fn config(command: &ConfigCommand) -> anyhow::Result<()> {
    match command {
        ConfigCommand::Check(args) => check(args),
        ConfigCommand::Show(args) => show(args),
    }
}

fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let machine = Machine::inspect();
    let file = canonical(&machine.working_dir.join(&args.file));
    let layer = gather(Layer::default(), Some(&file), &machine)?;
    let options = Options::new(layer, Some(file.clone()));
    options.settings(&machine)?;
    let shown = options.shown().into_iter();
    let of_file = file.display().to_string();
    let count = shown
        .filter(|option| {
            option
                .source
                .as_ref()
                .is_some_and(|it| it.starts_with(&of_file))
        })
        .count();
    say(format_args!("{of_file}: {count} options, all valid"));
    Ok(())
}

fn show(args: &ShowArgs) -> anyhow::Result<()> {
    let mount = args.mount.find()?;
    let options = super::options::options(&mount);
    let mut options = options.with_context(|| {
        let shown = mount.display();
        format!("only the owner of the mount at {shown} and root may see its options")
    })?;
    if args.changed {
        let all = list(&options, "options").iter();
        let changed: Vec<&Value> = all.filter(|option| !option["source"].is_null()).collect();
        options = json!({ "options": changed });
    }
    print(args.json, &options, |options| {
        Table::of(list(options, "options"))
            .column("option", |option| text(option, "key"))
            .column("value", |option| text(option, "value"))
            .column("set by", |option| {
                option["source"].as_str().unwrap_or("default").to_owned()
            })
            .text()
    })
}

//! `copperfs reload`: changes options of a mount that stays.

use super::daemon::{run, sockets_of};
use super::flags::ReloadFlags;
use super::mounted::{Found, point_of_file};
use super::{fail, say};
use crate::config::reload::Request;
use crate::config::resolve::exposed_credentials;
use crate::config::{Layer, Machine, file};
use crate::control::client::ControlClient;
use clap::Args;
use copperfs_fuse::Sockets;
use serde::Deserialize;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Flags of `reload`.
#[derive(Debug, Args)]
pub struct ReloadArgs {
    /// Only tell what would change
    #[arg(long)]
    dry_run: bool,
    /// The options
    #[command(flatten)]
    flags: ReloadFlags,
}

/// The daemon's answer.
#[derive(Debug, Deserialize)]
struct Reloaded {
    changed: Vec<Changed>,
    renewed: Vec<String>,
    config: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Changed {
    key: String,
    from: String,
    to: String,
}

/// Reloads.
///
/// # Errors
/// The options are invalid, or the daemon refuses one of them: nothing has changed.
pub fn reload(args: &ReloadArgs) -> anyhow::Result<()> {
    let machine = Machine::inspect();
    let (mut mount, named) = args.flags.named(&machine);
    let config = args.flags.config(&machine);
    if let (None, Some(path), true) = (&mount, &config, args.flags.names_config()) {
        mount = point_of_file(path, &machine)?;
    }
    let mount = Found::of(mount.as_deref(), &machine)?.mount()?;
    let sockets = sockets_of(&mount)?;
    let mut request = Request {
        dry_run: args.dry_run,
        ..Request::default()
    };
    // Flags alone change what they name, and nothing that happens to be in this shell.
    let everything = named.is_empty() || args.flags.names_config();
    request.options = named;
    if everything {
        let mut variables = Layer::from_environment(&machine.variables);
        variables.remove("mountpoint");
        request.options = request
            .options
            .over(variables.absolute(&machine.working_dir));
        request.again = true;
        if let Some(path) = config {
            let layer = file::read(&path)?.absolute(&machine.working_dir);
            if let Some(path) = exposed_credentials(&layer) {
                let path = path.display();
                fail(format_args!(
                    "warning: {path} holds credentials and others may read it; chmod 600 it"
                ));
            }
            request.config = Some((path, layer));
        }
        request.environment = machine.storage_environment();
        if !request.environment.is_empty() && !is_own(&sockets) {
            request.environment.clear();
            fail("the variables for object stores are not given to another user's daemon");
        }
    }
    let body = serde_json::to_value(&request)?;
    let client = ControlClient::new(sockets);
    let asking = async move { Ok(client.ask("POST", "/v1/reload", Some(&body)).await?) };
    let answer = run(asking)?;
    tell(&serde_json::from_value(answer)?, args.dry_run, everything);
    Ok(())
}

/// Whether the daemon is this user's.
fn is_own(sockets: &Sockets) -> bool {
    let owner = std::fs::metadata(&sockets.owner).map(|socket| socket.uid());
    owner.is_ok_and(|owner| owner == rustix::process::geteuid().as_raw())
}

fn tell(reloaded: &Reloaded, dry_run: bool, everything: bool) {
    for Changed { key, from, to } in &reloaded.changed {
        match from == to {
            true => say(format_args!("{key}: (changed)")),
            false => say(format_args!("{key}: {from} -> {to}")),
        }
    }
    for store in &reloaded.renewed {
        say(format_args!("{store}: its credentials were read again"));
    }
    match (reloaded.changed.is_empty(), dry_run) {
        (true, _) => say("nothing has changed"),
        (false, true) => say("nothing has changed yet: without --dry-run it would"),
        (false, false) => {}
    }
    if everything && reloaded.config.is_none() {
        say(
            "this mount has no configuration file to read again: name options, as in --log-level debug, or a file \
             with --config",
        );
    }
}

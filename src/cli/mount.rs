//! `copperfs mount`.

use super::flags::MountFlags;
use super::made::MadeDirectories;
use super::{fail, say, start};
use crate::config::reload::Options;
use crate::config::resolve::exposed_credentials;
use crate::config::{Layer, Machine};
use crate::daemon::make_way;
use crate::notify::{self, ServiceManager};
use std::collections::BTreeMap;
use std::ffi::OsStr;

/// Warns of variables that look like options and are none: a misspelt one would have no effect.
pub(super) fn warn_of_variables(machine: &Machine) {
    for (name, near) in Layer::unknown_variables(&machine.variables) {
        let near = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
        fail(format_args!(
            "warning: {name} is no option, and has no effect{near}"
        ));
    }
}

/// The service manager that runs this program, as `Type=notify` of a systemd unit asks for.
fn service_manager(machine: &Machine) -> ServiceManager {
    let address = machine.variable(notify::VARIABLE).map(OsStr::new);
    ServiceManager::at(address).unwrap_or_else(|error| {
        fail(format_args!(
            "warning: {} has no address of a service manager: {error}",
            notify::VARIABLE
        ));
        ServiceManager::default()
    })
}

/// Mounts, in the foreground or by a daemon.
///
/// # Errors
/// The settings are invalid, or the mount failed.
pub fn mount(flags: MountFlags) -> anyhow::Result<()> {
    let machine = Machine::inspect();
    warn_of_variables(&machine);
    let config = flags.config(&machine);
    let options = Options::new(flags.gather(&machine)?, config);
    let settings = options.settings(&machine)?;
    if let Some(path) = exposed_credentials(&options.layer) {
        fail(format_args!(
            "warning: {} holds credentials and others may read it; chmod 600 it",
            path.display()
        ));
    }
    let made = MadeDirectories::make(&settings, &machine)?;
    if settings.foreground {
        // They are removed at its end.
        return start::foreground(options, settings, service_manager(&machine));
    }
    // Checked before a daemon is started, so that common mistakes are reported at once.
    make_way(&settings)?;
    let (pid, log) = start::background(&options, &settings, &BTreeMap::new())?;
    made.keep();
    let (mount, log) = (settings.mountpoint.display(), log.display());
    say(format_args!("{mount} is mounted (pid {pid}, log {log})"));
    Ok(())
}

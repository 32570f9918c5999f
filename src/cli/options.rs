//! The options of a daemon, as it tells them, and its log.

use super::daemon::{client_of, list, run};
use super::teardown::{ASK_TIMEOUT, runtime_dir_of};
use crate::config::Machine;
use crate::daemon::mountpoint::within;
use crate::daemon::runtime_dir::{self, LOG_FILE};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The options of the daemon at `mount`, if it tells them within a short time.
pub(super) fn options(mount: &Path) -> Option<Value> {
    let mount = mount.to_owned();
    within(ASK_TIMEOUT, move || {
        let client = client_of(&mount)?;
        run(async move { Ok(client.ask("GET", "/v1/options", None).await?) })
    })
    .ok()?
    .ok()
}

/// The value of the option `key`.
pub(super) fn value<'a>(options: &'a Value, key: &str) -> Option<&'a str> {
    let mut options = list(options, "options").iter();
    options.find(|option| option["key"] == key)?["value"].as_str()
}

/// The log of the daemon that serves `mount`, or has served it last: as named in its `options`, or as noted at its start.
pub(super) fn log_of(mount: &Path, options: Option<&Value>, machine: &Machine) -> Option<PathBuf> {
    let told = options.and_then(|options| value(options, "log_file"));
    let noted = || runtime_dir::noted(&runtime_dir_of(mount, machine, || None)?, LOG_FILE);
    told.map(PathBuf::from).or_else(noted)
}

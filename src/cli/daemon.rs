//! Sending commands to the daemon of a mount.

use crate::config::Machine;
use crate::config::keys::find;
use crate::control::client::{ClientError, ControlClient};
use crate::daemon::mountpoint::{canonical, within};
use anyhow::Context;
use clap::Args;
use copperfs_fuse::ioctl::client;
use copperfs_policy::amounts::Bytes;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a daemon may take to say where its sockets are.
const FIND_TIMEOUT: Duration = Duration::from_secs(10);

/// Which daemon is asked.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Mounted {
    /// The mount point of the node to ask; any one of the cluster will do [default: /copper_mnt, or
    /// COPPERFS_MOUNTPOINT]
    #[arg(short, long, value_name = "DIR")]
    mountpoint: Option<PathBuf>,
}

impl Mounted {
    fn mountpoint(&self) -> PathBuf {
        let machine = Machine::inspect();
        let variable = machine.variables.get("COPPERFS_MOUNTPOINT");
        let default = find("mountpoint").map(|key| key.default);
        let named = self.mountpoint.clone();
        let named = named.or_else(|| variable.filter(|path| !path.is_empty()).map(PathBuf::from));
        let path = named.unwrap_or_else(|| default.unwrap_or_default().into());
        canonical(&machine.working_dir.join(path))
    }

    /// That daemon.
    ///
    /// # Errors
    /// There is no copperfs mount, or its daemon does not answer.
    pub(super) fn client(&self) -> anyhow::Result<ControlClient> {
        let mountpoint = self.mountpoint();
        client_of(&mountpoint).with_context(|| {
            let shown = mountpoint.display();
            format!("no copperfs is mounted at {shown}: name its mount point with --mountpoint")
        })
    }

    /// Asks it.
    ///
    /// # Errors
    /// As [`Mounted::client`]; what the daemon refuses.
    pub(super) fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let client = self.client()?;
        run(async move { Ok(client.ask(method, path, body).await?) })
    }
}

/// The daemon of the mount at `mountpoint`.
///
/// # Errors
/// It is no copperfs mount, or its daemon does not answer.
pub(super) fn client_of(mountpoint: &Path) -> anyhow::Result<ControlClient> {
    let asked = mountpoint.to_owned();
    let found = within(FIND_TIMEOUT, move || client::sockets(&asked));
    let shown = || format!("the daemon of {} does not answer", mountpoint.display());
    Ok(ControlClient::new(found.with_context(shown)??))
}

/// Runs `work` to its end on this thread.
///
/// # Errors
/// Those of `work`.
pub(super) fn run<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

/// Whether that is all that went wrong: there is none of this name.
pub(super) fn is_missing(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused { status: 404, .. })
}

/// A number of `value`, if it has it.
pub(super) fn number(value: &Value, key: &str) -> Option<u64> {
    value[key].as_u64()
}

/// A text of `value`; a dash where there is none.
pub(super) fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or("-").to_owned()
}

/// Bytes of `value`; a dash where they are not known.
pub(super) fn bytes(value: &Value, key: &str) -> String {
    number(value, key).map_or("-".into(), |bytes| Bytes(bytes).to_string())
}

/// Bytes per second of `value`; `none` where there are none.
pub(super) fn rate(value: &Value, key: &str, none: &str) -> String {
    number(value, key).map_or(none.into(), |rate| format!("{}/s", Bytes(rate)))
}

/// A part of one of `value`, in per cent.
pub(super) fn percent(value: &Value, key: &str) -> String {
    value[key]
        .as_f64()
        .map_or("-".into(), |part| format!("{:.1} %", part * 100.0))
}

/// Seconds of `value`, as people read them.
pub(super) fn span(value: &Value, key: &str) -> String {
    let Some(seconds) = number(value, key) else {
        return "-".into();
    };
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// The elements of a list in `value`.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

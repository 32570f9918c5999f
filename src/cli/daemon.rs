//! Sends commands to the daemon of a mount, and formats the values of its answers.

use super::or_dash;
use crate::control::client::ControlClient;
use crate::daemon::mountpoint::within;
use anyhow::Context;
use copperfs_fuse::Sockets;
use copperfs_fuse::ioctl::client;
use copperfs_policy::amounts::{ByteRate, ByteSize};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// How long a daemon may take to return the addresses of its sockets.
const FIND_TIMEOUT: Duration = Duration::from_secs(10);

/// The daemon of the mount at `mountpoint`.
///
/// # Errors
/// It is no copperfs mount, or its daemon does not answer.
pub(super) fn client_of(mountpoint: &Path) -> anyhow::Result<ControlClient> {
    Ok(ControlClient::new(sockets_of(mountpoint)?))
}

/// The sockets of the daemon of the mount at `mountpoint`.
///
/// # Errors
/// As [`client_of`].
pub(super) fn sockets_of(mountpoint: &Path) -> anyhow::Result<Sockets> {
    Ok(ask_daemon(mountpoint, FIND_TIMEOUT, client::sockets)??)
}

/// Runs `ask` for the mount at `mountpoint`, for at most `timeout`. It runs on a thread of its own, because
/// it may hang in the kernel.
///
/// # Errors
/// The daemon does not answer in time.
pub(super) fn ask_daemon<T: Send + 'static>(
    mountpoint: &Path,
    timeout: Duration,
    ask: impl FnOnce(&Path) -> T + Send + 'static,
) -> anyhow::Result<T> {
    let asked = mountpoint.to_owned();
    within(timeout, move || ask(&asked))
        .with_context(|| format!("the daemon of {} does not answer", mountpoint.display()))
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

/// The number at `key`, if there is one.
pub(super) fn number(value: &Value, key: &str) -> Option<u64> {
    value[key].as_u64()
}

/// The text at `key`, or a dash.
pub(super) fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or("-").to_owned()
}

/// The bytes at `key`, or a dash.
pub(super) fn bytes(value: &Value, key: &str) -> String {
    or_dash(number(value, key).map(ByteSize))
}

/// The bytes per second at `key`, or `none`.
pub(super) fn rate(value: &Value, key: &str, none: &str) -> String {
    number(value, key).map_or(none.into(), |rate| ByteRate(rate).to_string())
}

/// The ratio at `key` in per cent, or a dash.
pub(super) fn percent(value: &Value, key: &str) -> String {
    or_dash(value[key].as_f64().map(super::percent))
}

/// The seconds at `key`, with larger units for longer times, or a dash.
pub(super) fn span(value: &Value, key: &str) -> String {
    number(value, key).map_or("-".into(), span_of)
}

/// Seconds, with larger units for longer times.
pub(super) fn span_of(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// The elements of the list at `key`.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

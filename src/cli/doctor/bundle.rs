//! `copperfs doctor --bundle`: a file with what a report of a problem needs.
//!
//! Daemons are asked by their control sockets, so a mount that hangs does not stop this. What a daemon does not tell is
//! replaced by the reason.

use crate::cli::daemon::run;
use crate::config::Machine;
use crate::control::client::ControlClient;
use crate::daemon::runtime_dir::{self, LOG_FILE, MOUNT_FILE};
use crate::origin::Finding;
use anyhow::{Context, bail, ensure};
use copperfs_fuse::Sockets;
use serde_json::{Value, json};
use std::fs::{self, DirBuilder, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// How long a daemon may take for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The last bytes of a log.
const LOG_BYTES_MAX: u64 = 8 << 20;
/// The answers of a daemon, by the names of their files.
const ANSWERS: [(&str, &str); 4] = [
    ("stats.json", "/v1/stats"),
    ("options.json", "/v1/options"),
    ("daemon.json", "/v1/daemon"),
    ("allocation.json", "/v1/allocation"),
];
/// Parts of the names of variables whose values are secrets.
const SECRET_NAMES: [&str; 5] = ["SECRET", "KEY", "TOKEN", "PASSWORD", "CREDENTIAL"];
/// Shorter values are words that may stand anywhere.
const SECRET_BYTES_MIN: usize = 8;
const REDACTED: &str = "(secret)";

/// A directory of this user alone, which is removed in the end.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _stays_if_it_fails = fs::remove_dir_all(&self.0);
    }
}

/// Writes the bundle to `file`, which must not exist. Returns the number of mounts in it.
///
/// # Errors
/// It cannot be written, or `tar` cannot be run.
pub(super) fn collect(file: &Path, checks: &[Finding], machine: &Machine) -> anyhow::Result<usize> {
    let shown = file.display();
    ensure!(!file.exists(), "{shown} exists already: name another file");
    let base = machine.runtime_base();
    runtime_dir::prepare(&base)?;
    let scratch = Scratch(base.join(format!("bundle.{}", std::process::id())));
    let dir = scratch.0.join("copperfs-report");
    let made = DirBuilder::new().mode(0o700).recursive(true).create(&dir);
    made.with_context(|| format!("cannot make {}", dir.display()))?;
    let secrets = Secrets::of(machine);
    let write = |path: PathBuf, text: &str| {
        let written = fs::write(&path, secrets.redacted(text));
        written.with_context(|| format!("cannot write {}", path.display()))
    };
    write(dir.join("about.json"), &about(machine).to_string())?;
    let checks = serde_json::to_string_pretty(checks)?;
    write(dir.join("doctor.json"), &checks)?;
    let mut count = 0;
    for of_mount in runtime_dir::all(&machine.runtime_bases) {
        // Other directories are those of launches, and this one.
        if runtime_dir::check(&of_mount).is_err() || !of_mount.join("pid").exists() {
            continue;
        }
        let own = dir.join(of_mount.file_name().unwrap_or_default());
        fs::create_dir(&own).with_context(|| format!("cannot make {}", own.display()))?;
        for (name, text) in about_mount(&of_mount) {
            write(own.join(name), &text)?;
        }
        count += 1;
    }
    pack(&scratch.0, file)?;
    Ok(count)
}

/// The program and the machine.
fn about(machine: &Machine) -> Value {
    let uname = rustix::system::uname();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "kernel": uname.release().to_string_lossy(),
        "architecture": uname.machine().to_string_lossy(),
        "host": machine.host_name(),
        "processors": machine.processors,
        "memory_bytes": machine.memory_bytes,
        "unix_seconds": now.unwrap_or_default().as_secs(),
    })
}

/// Files about the mount with the runtime directory `dir`: names and contents.
fn about_mount(dir: &Path) -> Vec<(&'static str, String)> {
    let mut files = Vec::new();
    if let Some(mount) = runtime_dir::noted(dir, MOUNT_FILE) {
        files.push(("mount", mount.display().to_string()));
    }
    let log = runtime_dir::noted(dir, LOG_FILE).unwrap_or_else(|| dir.join("log"));
    let text = tail(&log).unwrap_or_else(|error| format!("{}: {error}", log.display()));
    files.push(("log", text));
    if runtime_dir::holder(dir).is_none() {
        return files;
    }
    let client = ControlClient::new(Sockets {
        owner: dir.join("control.sock"),
        users: String::new(),
    });
    for (name, path) in ANSWERS {
        let answer = run(async {
            let asked = tokio::time::timeout(ANSWER_TIMEOUT, client.ask("GET", path, None));
            Ok(asked.await.context("no answer in time")??)
        });
        let text = match answer {
            Ok(answer) => format!("{answer:#}"),
            Err(error) => json!({ "error": format!("{error:#}") }).to_string(),
        };
        files.push((name, text));
    }
    files
}

/// The end of the log at `path`.
fn tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(LOG_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn pack(dir: &Path, file: &Path) -> anyhow::Result<()> {
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(dir).arg("-czf").arg(file);
    let output = tar.arg("copperfs-report").output();
    let output = output.context("cannot run tar")?;
    if !output.status.success() {
        bail!(
            "cannot write {}: {}",
            file.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// The secrets of this user's environment, which may stand in logs of other programs' messages.
struct Secrets(Vec<String>);

impl Secrets {
    fn of(machine: &Machine) -> Self {
        let is_secret = |name: &str| SECRET_NAMES.iter().any(|part| name.contains(part));
        let variables = machine.variables.iter();
        let secret = variables.filter(|(name, value)| {
            is_secret(&name.to_ascii_uppercase()) && value.len() >= SECRET_BYTES_MIN
        });
        // A path is no secret, and helps.
        let secret = secret.filter(|(_, value)| !value.starts_with('/'));
        Self(secret.map(|(_, value)| value.clone()).collect())
    }

    fn redacted(&self, text: &str) -> String {
        let all = self.0.iter();
        all.fold(text.to_owned(), |text, secret| {
            text.replace(secret, REDACTED)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_the_environment_are_left_out() {
        let variables = [
            ("AWS_SECRET_ACCESS_KEY", "abcdefgh12345678"),
            ("AZURE_STORAGE_ACCOUNT_KEY", "short"),
            ("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/key.json"),
            ("HOME", "/home/me"),
        ];
        let machine = Machine {
            variables: variables
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..Machine::default()
        };
        let secrets = Secrets::of(&machine);
        let text = "GET ?sig=abcdefgh12345678 /home/me/key.json short";
        assert_eq!(
            secrets.redacted(text),
            "GET ?sig=(secret) /home/me/key.json short"
        );
    }

    #[test]
    fn the_end_of_a_long_log_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        fs::write(&log, "a".repeat(20) + "end").unwrap();
        assert!(tail(&log).unwrap().ends_with("aend"));
        assert!(tail(&dir.path().join("none")).is_err());
    }
}

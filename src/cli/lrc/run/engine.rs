//! Sets an engine up: finds it, checks its version, and makes its adapter known to it by variables.
//!
//! The adapters' sources are part of this program. Those in Python are written into the run's private directory, the
//! one for Spark is a jar.

mod python;
mod spark;

use crate::config::Machine;
use crate::pipeline::profile::FileOrder;
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The engine of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Engine {
    /// Apache Spark 4, driver on this host
    Spark,
    /// Snakemake 9
    Snakemake,
    /// dask.distributed, 2025.4 or later
    Dask,
    /// Another one: the command finds the socket in its variables, and writes lines to it itself
    None,
}

/// Flags that help to find the engine and its adapter.
#[derive(Debug, Default, Args)]
pub(super) struct EngineSetup {
    /// The Python that has the engine [default: that of CMD, else python3]
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// The adapter for Spark [default: beside this program, or COPPERFS_SPARK_JAR, or built with javac]
    #[arg(long, value_name = "FILE")]
    jar: Option<PathBuf>,
}

/// How the command is started.
#[derive(Debug)]
pub(super) struct Setup {
    /// Variables to be set.
    pub(super) variables: Vec<(String, String)>,
    /// How the adapter orders the files of a job.
    pub(super) order: FileOrder,
}

/// Prepares the engine for `command`, with files in the private directory `dir`.
///
/// # Errors
/// The engine is not there, or its version is not supported; its adapter cannot be made.
pub(super) fn set_up(
    engine: Engine,
    flags: &EngineSetup,
    command: &[OsString],
    dir: &Path,
    machine: &Machine,
) -> anyhow::Result<Setup> {
    let variables = match engine {
        Engine::Spark => spark::set_up(flags, command, dir, machine)?,
        Engine::Snakemake => {
            python::check(flags, command, machine, "snakemake", "9", |version| {
                version.first() == Some(&9)
            })?;
            python::write(dir, machine, &python::SNAKEMAKE)?
        }
        Engine::Dask => {
            let is_supported = |version: &[u32]| version >= &[2025, 4][..];
            python::check(
                flags,
                command,
                machine,
                "distributed",
                "2025.4 or later",
                is_supported,
            )?;
            let mut variables = python::write(dir, machine, &python::DASK)?;
            variables.push(python::preload(machine)?);
            variables
        }
        Engine::None => Vec::new(),
    };
    // Engines list files by size, or by keys that are hashes of names. Other commands know their order best.
    let order = match engine {
        Engine::None => FileOrder::Listed,
        _ => FileOrder::Path,
    };
    Ok(Setup { variables, order })
}

/// The file that the word `program` of a command line starts, as a shell finds it.
fn program(program: &OsStr, machine: &Machine) -> Option<PathBuf> {
    let path = Path::new(program);
    let is_file = |path: &PathBuf| path.is_file();
    if path.components().count() > 1 || program.as_encoded_bytes().contains(&b'/') {
        return Some(machine.working_dir.join(path)).filter(is_file);
    }
    let dirs = machine.variable("PATH").unwrap_or("/usr/bin:/bin");
    std::env::split_paths(dirs)
        .map(|dir| machine.working_dir.join(dir).join(path))
        .find(is_file)
}

/// The standard output of a short command.
///
/// # Errors
/// It cannot be started, or it fails.
fn output(program: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let shown = program.display();
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("cannot run {shown}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        let last = why
            .trim()
            .lines()
            .next_back()
            .unwrap_or_default()
            .to_owned();
        bail!("{shown} failed ({}): {last}", output.status);
    }
    let text = String::from_utf8(output.stdout);
    Ok(text
        .with_context(|| format!("the output of {shown} is not UTF-8"))?
        .trim()
        .to_owned())
}

/// The numbers of a version, as far as it has numbers: `2025.4.1` is 2025, 4, 1.
fn numbers(version: &str) -> Vec<u32> {
    let parts = version.split('.').map(|part| {
        let digits = part
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(part.len());
        part[..digits].parse().ok()
    });
    parts.map_while(|part| part).collect()
}

/// A path as the value of a variable.
///
/// # Errors
/// It is not UTF-8.
fn utf8(path: &Path) -> anyhow::Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))
}

#[cfg(test)]
mod tests;

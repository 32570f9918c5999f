//! Engines in Python: Snakemake and Dask.

use super::{EngineSetup, numbers, output, program, utf8};
use crate::config::Machine;
use anyhow::{Context, bail, ensure};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// A source: its path below a directory of `PYTHONPATH`, and its text.
type Source = (&'static str, &'static str);

/// The part that all adapters use.
const COMMON: Source = (
    "copperfs_lrc.py",
    include_str!("../../../../../adapters/python/copperfs_lrc.py"),
);

/// Snakemake imports packages of this name by itself.
pub(super) const SNAKEMAKE: [Source; 2] = [
    COMMON,
    (
        "snakemake_logger_plugin_copperfs/__init__.py",
        include_str!("../../../../../adapters/python/snakemake_logger_plugin_copperfs/__init__.py"),
    ),
];

/// A plugin of Dask's scheduler.
pub(super) const DASK: [Source; 3] = [
    COMMON,
    (
        "copperfs_dask.py",
        include_str!("../../../../../adapters/python/copperfs_dask.py"),
    ),
    (
        "copperfs_dask_reads.py",
        include_str!("../../../../../adapters/python/copperfs_dask_reads.py"),
    ),
];

/// Names the modules that a scheduler of Dask loads.
const PRELOAD: &str = "DASK_DISTRIBUTED__SCHEDULER__PRELOAD";

/// Bytes of the first line of a script, as in the kernel.
const SHEBANG_BYTES_MAX: u64 = 256;

/// Checks that the Python of `command` has `package` in a version that `is_supported`.
///
/// # Errors
/// It has not, or there is no Python.
pub(super) fn check(
    flags: &EngineSetup,
    command: &[OsString],
    machine: &Machine,
    package: &str,
    wanted: &str,
    is_supported: impl Fn(&[u32]) -> bool,
) -> anyhow::Result<()> {
    let python = interpreter(flags, command, machine)?;
    let shown = python.display();
    let script = format!("import importlib.metadata as m; print(m.version({package:?}))");
    let version = output(&python, &["-c", &script]).with_context(|| {
        format!(
            "the engine is not there: {shown} has no {package}. Install {package} {wanted}, or name the Python that has \
             it with --python"
        )
    })?;
    ensure!(
        is_supported(&numbers(&version)),
        "{package} {version} of {shown} is not supported: install {package} {wanted}"
    );
    Ok(())
}

/// The Python that runs `command`: named, or the program itself, or that of the program's first line, or `python3`.
///
/// # Errors
/// There is none.
pub(super) fn interpreter(
    flags: &EngineSetup,
    command: &[OsString],
    machine: &Machine,
) -> anyhow::Result<PathBuf> {
    if let Some(python) = &flags.python {
        let found = program(python.as_os_str(), machine);
        return found
            .with_context(|| format!("--python {}: there is no such program", python.display()));
    }
    let first = command.first().and_then(|word| program(word, machine));
    if let Some(first) = first {
        if is_python(first.file_name()) {
            return Ok(first);
        }
        if let Some(python) = of_script(&first, machine) {
            return Ok(python);
        }
    }
    let usual = program(OsStr::new("python3"), machine);
    usual.context(
        "the engine is not there: there is no python3. Name the Python that has it with --python",
    )
}

fn is_python(name: Option<&OsStr>) -> bool {
    name.is_some_and(|name| name.as_encoded_bytes().starts_with(b"python"))
}

/// The Python in the first line of a script: `#!/usr/bin/python3`, or `#!/usr/bin/env python3`.
fn of_script(script: &Path, machine: &Machine) -> Option<PathBuf> {
    let mut line = String::new();
    let file = File::open(script).ok()?.take(SHEBANG_BYTES_MAX);
    BufReader::new(file).read_line(&mut line).ok()?;
    let mut words = line.strip_prefix("#!")?.split_whitespace();
    let python = words.find(|word| is_python(Path::new(word).file_name()))?;
    program(OsStr::new(python), machine)
}

/// Writes the sources of an adapter to `dir`, and returns the variable with which Python finds them first.
///
/// # Errors
/// They cannot be written.
pub(super) fn write(
    dir: &Path,
    machine: &Machine,
    sources: &[Source],
) -> anyhow::Result<Vec<(String, String)>> {
    let base = dir.join("python");
    for (name, text) in sources {
        let path = base.join(name);
        let write = || {
            std::fs::create_dir_all(path.parent().unwrap_or(&base))?;
            std::fs::write(&path, text)
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
    }
    let mut value = utf8(&base)?.to_owned();
    if let Some(before) = machine.variable("PYTHONPATH") {
        value.push(':');
        value.push_str(before);
    }
    Ok(vec![("PYTHONPATH".into(), value)])
}

/// The variable with the modules that Dask's scheduler loads: those that it has, and the adapter.
///
/// # Errors
/// Its value is of no form that could be extended.
pub(super) fn preload(machine: &Machine) -> anyhow::Result<(String, String)> {
    const OURS: &str = "copperfs_dask";
    let mut modules: Vec<String> = match machine.variable(PRELOAD) {
        None => Vec::new(),
        // Dask reads the value as a literal of Python, and as a text if it is none.
        Some(list) if list.trim_start().starts_with('[') => {
            let json = list.replace('\'', "\"");
            let Ok(modules) = serde_json::from_str(&json) else {
                bail!(
                    "{PRELOAD} is {list:?}, and {OURS} cannot be added: write a list such as [\"module\"]"
                )
            };
            modules
        }
        Some(one) => vec![one.trim_matches(['"', '\'']).to_owned()],
    };
    if !modules.iter().any(|module| module == OURS) {
        modules.push(OURS.to_owned());
    }
    Ok((PRELOAD.to_owned(), serde_json::to_string(&modules)?))
}

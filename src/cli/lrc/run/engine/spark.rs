//! Spark: a listener of the driver, in a jar on its class path.
//!
//! Spark reads its settings from a directory. The run makes one of its own, with the user's files and the listener
//! added. The jar is one that was built before, or it is built here from the source that is part of this program.

use super::python::interpreter;
use super::{EngineSetup, numbers, output, program, utf8};
use crate::config::Machine;
use anyhow::{Context, bail, ensure};
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

/// The source of the listener: the name of each file, and its text.
const SOURCES: &[(&str, &str)] = &[
    (
        "CachedBlocks.java",
        include_str!("../../../../../adapters/spark/src/copperfs/spark/CachedBlocks.java"),
    ),
    (
        "Dataset.java",
        include_str!("../../../../../adapters/spark/src/copperfs/spark/Dataset.java"),
    ),
    (
        "FileRange.java",
        include_str!("../../../../../adapters/spark/src/copperfs/spark/FileRange.java"),
    ),
    (
        "Json.java",
        include_str!("../../../../../adapters/spark/src/copperfs/spark/Json.java"),
    ),
    (
        "LrcListener.java",
        include_str!("../../../../../adapters/spark/src/copperfs/spark/LrcListener.java"),
    ),
    (
        "Owner.java",
        include_str!("../../../../../adapters/spark/src/copperfs/spark/Owner.java"),
    ),
    (
        "PlanScans.java",
        include_str!("../../../../../adapters/spark/src/copperfs/spark/PlanScans.java"),
    ),
    (
        "ReadTask.java",
        include_str!("../../../../../adapters/spark/src/copperfs/spark/ReadTask.java"),
    ),
    (
        "RunSocket.java",
        include_str!("../../../../../adapters/spark/src/copperfs/spark/RunSocket.java"),
    ),
    (
        "Scala.java",
        include_str!("../../../../../adapters/spark/src/copperfs/spark/Scala.java"),
    ),
    (
        "StageReads.java",
        include_str!("../../../../../adapters/spark/src/copperfs/spark/StageReads.java"),
    ),
    (
        "StageRun.java",
        include_str!("../../../../../adapters/spark/src/copperfs/spark/StageRun.java"),
    ),
    (
        "Submission.java",
        include_str!("../../../../../adapters/spark/src/copperfs/spark/Submission.java"),
    ),
    (
        "Tracker.java",
        include_str!("../../../../../adapters/spark/src/copperfs/spark/Tracker.java"),
    ),
];

const LISTENER: &str = "copperfs.spark.LrcListener";
const DEFAULTS: &str = "spark-defaults.conf";
const ENVIRONMENT: &str = "spark-env.sh";
/// The key of Spark's settings that names listeners.
const LISTENERS: &str = "spark.extraListeners";

/// Prepares Spark for `command`. Returns the variables to set.
///
/// # Errors
/// There is no Spark, or its version is not supported; there is no jar, and it cannot be built.
pub(super) fn set_up(
    flags: &EngineSetup,
    command: &[OsString],
    dir: &Path,
    machine: &Machine,
) -> anyhow::Result<Vec<(String, String)>> {
    let home = home(flags, command, machine).context(
        "the engine is not there: no Spark was found by SPARK_HOME, by CMD, or in its Python. Set SPARK_HOME, or name \
         the Python that has pyspark with --python",
    )?;
    let (version, is_supported) = version(&home.join("jars"))
        .map(|version| (version.clone(), numbers(&version).first() == Some(&4)))
        .unwrap_or_default();
    ensure!(
        is_supported,
        "Spark {version} in {} is not supported: use Spark 4",
        home.display()
    );
    let jar = jar(flags, &home, &version, machine)?;
    let user = match machine.variable("SPARK_CONF_DIR") {
        Some(conf) => machine.working_dir.join(conf),
        None => home.join("conf"),
    };
    let conf = dir.join("spark");
    configure(&conf, &user, &jar)
        .with_context(|| format!("cannot make Spark's settings in {}", conf.display()))?;
    // A file that is named with `--properties-file` replaces the run's, but not the properties of Java.
    let options = machine.variable("SPARK_SUBMIT_OPTS").unwrap_or_default();
    let options = format!("{options} -D{LISTENERS}={LISTENER}");
    Ok(vec![
        ("SPARK_SUBMIT_OPTS".into(), options.trim().to_owned()),
        ("SPARK_CONF_DIR".into(), utf8(&conf)?.into()),
        // Set where this is started by Spark itself. It would keep Spark from reading the environment again.
        ("SPARK_ENV_LOADED".into(), String::new()),
    ])
}

/// The directory of Spark: `SPARK_HOME`, or that of the command's program, or that of `pyspark`, or of `spark-submit`.
fn home(flags: &EngineSetup, command: &[OsString], machine: &Machine) -> Option<PathBuf> {
    if let Some(home) = machine.variable("SPARK_HOME") {
        return Some(machine.working_dir.join(home));
    }
    let above = |file: PathBuf| Some(file.canonicalize().ok()?.parent()?.parent()?.to_owned());
    let is_home = |home: &PathBuf| version(&home.join("jars")).is_some();
    let first = command.first().and_then(|word| program(word, machine));
    let own = first.and_then(above).filter(is_home);
    let pyspark = || {
        let python = interpreter(flags, command, machine).ok()?;
        let script = "import importlib.util as u; print(u.find_spec('pyspark').submodule_search_locations[0])";
        let home = output(&python, &["-c", script]).ok()?;
        Some(PathBuf::from(home)).filter(is_home)
    };
    let submit = || {
        program(OsStr::new("spark-submit"), machine)
            .and_then(above)
            .filter(is_home)
    };
    own.or_else(pyspark).or_else(submit)
}

/// The version of the Spark whose jars are in `jars`: `4.0.1` of `spark-core_2.13-4.0.1.jar`.
fn version(jars: &Path) -> Option<String> {
    let names = fs::read_dir(jars).ok()?.flatten();
    let mut names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names.find_map(|name| {
        let rest = name.strip_prefix("spark-core_")?.strip_suffix(".jar")?;
        Some(rest.split_once('-')?.1.to_owned())
    })
}

/// The jar of the listener: named, beside this program, named by a variable, or built.
fn jar(
    flags: &EngineSetup,
    home: &Path,
    version: &str,
    machine: &Machine,
) -> anyhow::Result<PathBuf> {
    let named = |path: &Path, by: &str| {
        let path = machine.working_dir.join(path);
        ensure!(
            path.is_file(),
            "{by} {}: there is no such file",
            path.display()
        );
        Ok(path)
    };
    if let Some(jar) = &flags.jar {
        return named(jar, "--jar");
    }
    let installed = std::env::current_exe().ok();
    let installed = installed.and_then(|program| Some(program.parent()?.parent()?.to_owned()));
    let installed = installed.map(|base| base.join("share/copperfs/copperfs-spark.jar"));
    if let Some(jar) = installed.filter(|jar| jar.is_file()) {
        return Ok(jar);
    }
    if let Some(jar) = machine.variable("COPPERFS_SPARK_JAR") {
        return named(Path::new(jar), "COPPERFS_SPARK_JAR");
    }
    let cache =
        cache(machine).context("no directory for the adapter: set HOME or XDG_CACHE_HOME")?;
    let target = cache.join(format!("spark-{version}-{}.jar", source_hash()));
    if !target.is_file() {
        build(home, &target, machine)?;
    }
    Ok(target)
}

/// The user's directory of files that can be made again.
fn cache(machine: &Machine) -> Option<PathBuf> {
    let own = machine.variable("XDG_CACHE_HOME").map(PathBuf::from);
    let own = own.filter(|path| path.is_absolute());
    let base = own.or_else(|| Some(Path::new(machine.variable("HOME")?).join(".cache")))?;
    Some(base.join("copperfs"))
}

/// Identifies the source, so that another version of this program builds a jar of its own.
fn source_hash() -> String {
    let mut hasher = blake3::Hasher::new();
    for (name, text) in SOURCES {
        for part in [name, text] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// Builds the jar at `target` from the source and the jars of Spark. Other runs may build the same at the same time.
fn build(home: &Path, target: &Path, machine: &Machine) -> anyhow::Result<()> {
    let tool = |name: &str| {
        let of_java = machine.variable("JAVA_HOME");
        let of_java = of_java.map(|home| Path::new(home).join("bin").join(name));
        let found = of_java.filter(|path| path.is_file());
        found.or_else(|| program(OsStr::new(name), machine)).with_context(|| {
            format!(
                "the adapter for Spark is not built, and there is no {name} to build it: install a JDK of version 17 or \
                 later, or name the jar with --jar"
            )
        })
    };
    let (javac, archiver) = (tool("javac")?, tool("jar")?);
    let cache = target.parent().context("the jar is in no directory")?;
    let work = cache.join(format!(".spark-{}", std::process::id()));
    for dir in [cache, &work] {
        let made = DirBuilder::new().mode(0o700).recursive(true).create(dir);
        made.with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let built = (|| {
        for (name, text) in SOURCES {
            fs::write(work.join(name), text)?;
        }
        let classes = work.join("classes");
        let path = format!("{}/*", utf8(&home.join("jars"))?);
        let sources: Vec<PathBuf> = SOURCES.iter().map(|(name, _)| work.join(name)).collect();
        let mut arguments = vec![
            "--release",
            "17",
            "-nowarn",
            "-proc:none",
            "-cp",
            &path,
            "-d",
            utf8(&classes)?,
        ];
        for source in &sources {
            arguments.push(utf8(source)?);
        }
        output(&javac, &arguments)?;
        let jar = work.join("built.jar");
        output(
            &archiver,
            &[
                "--create",
                "--file",
                utf8(&jar)?,
                "-C",
                utf8(&classes)?,
                ".",
            ],
        )?;
        Ok::<_, anyhow::Error>(fs::rename(&jar, target)?)
    })();
    let _stays_if_it_fails = fs::remove_dir_all(&work);
    built.context("cannot build the adapter for Spark: name a jar with --jar")
}

/// Makes the directory of settings `conf`: the files of the user's directory, and the listener in addition.
pub(super) fn configure(conf: &Path, user: &Path, jar: &Path) -> anyhow::Result<()> {
    fs::create_dir(conf)?;
    for entry in fs::read_dir(user).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name != DEFAULTS && name != ENVIRONMENT {
            symlink(entry.path(), conf.join(name))?;
        }
    }
    let defaults = match fs::read_to_string(user.join(DEFAULTS)) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        text => text.with_context(|| format!("{}", user.join(DEFAULTS).display()))?,
    };
    fs::write(conf.join(DEFAULTS), with_listener(&defaults))?;
    let own = user.join(ENVIRONMENT);
    let mut script = String::new();
    if own.is_file() {
        script.push_str(&format!(". {}\n", quoted(utf8(&own)?)));
        // The user's file may set it.
        script.push_str(&format!("SPARK_CONF_DIR={}\n", quoted(utf8(conf)?)));
    }
    let jar = utf8(jar)?;
    if jar.contains(':') {
        bail!("{jar}: a path with a colon cannot be on a class path");
    }
    script.push_str(&format!(
        "export SPARK_DIST_CLASSPATH=\"${{SPARK_DIST_CLASSPATH:+$SPARK_DIST_CLASSPATH:}}\"{}\n",
        quoted(jar)
    ));
    fs::write(conf.join(ENVIRONMENT), script)?;
    Ok(())
}

/// Spark's settings with the listener added to the user's own. Keys and values are divided by blanks, `=` or `:`, and
/// the last line of a key counts.
pub(super) fn with_listener(defaults: &str) -> String {
    let is_break = |c: char| c.is_whitespace() || c == '=' || c == ':';
    let own = defaults.lines().rev().find_map(|line| {
        let (key, value) = line.trim().split_once(is_break)?;
        (key == LISTENERS).then(|| value.trim_matches(is_break).to_owned())
    });
    let own = own.filter(|own| !own.is_empty());
    let all = own.map_or(LISTENER.to_owned(), |own| format!("{own},{LISTENER}"));
    format!("{defaults}\n{LISTENERS} {all}\n")
}

/// `text` as a word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The names of the sources that are part of this program.
#[cfg(test)]
pub(super) fn source_names() -> std::collections::BTreeSet<String> {
    SOURCES.iter().map(|(name, _)| (*name).to_owned()).collect()
}

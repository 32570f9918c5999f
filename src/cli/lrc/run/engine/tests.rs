use super::spark::{configure, source_names, with_listener};
use super::*;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// This machine, with other variables.
fn machine(variables: &[(&str, &str)]) -> Machine {
    let mut machine = Machine::inspect();
    for name in [
        "PYTHONPATH",
        "SPARK_HOME",
        "SPARK_CONF_DIR",
        "DASK_DISTRIBUTED__SCHEDULER__PRELOAD",
    ] {
        machine.variables.remove(name);
    }
    for (name, value) in variables {
        machine.variables.insert((*name).into(), (*value).into());
    }
    machine
}

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').map(OsString::from).collect()
}

fn executable(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Files below `dir` with an extension, relative to it.
fn files(dir: &Path, extension: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut ahead = vec![dir.to_owned()];
    while let Some(at) = ahead.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                ahead.push(path);
            } else if path.extension() == Some(OsStr::new(extension)) {
                found.insert(path.strip_prefix(dir).unwrap().display().to_string());
            }
        }
    }
    found
}

#[test]
fn all_sources_of_the_adapters_are_part_of_the_program() {
    let adapters = Path::new(env!("CARGO_MANIFEST_DIR")).join("adapters");
    let java = files(&adapters.join("spark/src/copperfs/spark"), "java");
    assert_eq!(source_names(), java);
    let python = python::SNAKEMAKE.iter().chain(&python::DASK);
    let python: BTreeSet<String> = python.map(|(name, _)| (*name).to_owned()).collect();
    let on_disk = files(&adapters.join("python"), "py");
    let adapter = |name: &&String| name.starts_with("copperfs_") || name.starts_with("snakemake_");
    assert_eq!(python, on_disk.iter().filter(adapter).cloned().collect());
}

#[test]
fn the_python_of_the_command_is_asked_for_its_version() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("venv/bin/python3.12");
    executable(&own, "#!/bin/sh\necho 9.27.1\n");
    let script = dir.path().join("venv/bin/snakemake");
    executable(&script, &format!("#!{}\nimport snakemake\n", own.display()));
    let by_env = dir.path().join("bin/tool");
    executable(&by_env, "#!/usr/bin/env python3.12\n");
    let path = format!("{}:/usr/bin:/bin", own.parent().unwrap().display());
    let machine = machine(&[("PATH", &path)]);
    let flags = EngineSetup::default();
    let found = |command: &str| python::interpreter(&flags, &words(command), &machine).unwrap();
    for command in [
        "snakemake --cores 8",
        &by_env.display().to_string(),
        "python3.12 x.py",
    ] {
        assert_eq!(found(command), own, "{command}");
    }
    let named = EngineSetup {
        python: Some("python3.12".into()),
        jar: None,
    };
    assert_eq!(
        python::interpreter(&named, &words("make all"), &machine).unwrap(),
        own
    );
    let absent = EngineSetup {
        python: Some("/nowhere/python".into()),
        jar: None,
    };
    let error = python::interpreter(&absent, &words("make"), &machine).unwrap_err();
    assert_eq!(
        error.to_string(),
        "--python /nowhere/python: there is no such program"
    );
}

#[test]
fn an_engine_that_is_absent_or_of_another_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("python3.12");
    let machine = machine(&[("PATH", &format!("{}:/usr/bin:/bin", dir.path().display()))]);
    let flags = EngineSetup::default();
    let command = words("python3.12 x.py");
    executable(&own, "#!/bin/sh\necho 9.27.1\n");
    let setup = set_up(Engine::Snakemake, &flags, &command, dir.path(), &machine).unwrap();
    assert_eq!(setup.order, FileOrder::Path);
    executable(&own, "#!/bin/sh\necho 8.30.0\n");
    let error = set_up(Engine::Snakemake, &flags, &command, dir.path(), &machine);
    assert_eq!(
        error.unwrap_err().to_string(),
        format!(
            "snakemake 8.30.0 of {} is not supported: install snakemake 9",
            own.display()
        )
    );
    executable(
        &own,
        "#!/bin/sh\necho 'Traceback' >&2; echo 'no package' >&2; exit 1\n",
    );
    let error = set_up(Engine::Dask, &flags, &command, dir.path(), &machine);
    let error = crate::cli::explained(&error.unwrap_err());
    assert!(
        error.starts_with(&format!(
            "the engine is not there: {} has no distributed. Install",
            own.display()
        )),
        "{error}"
    );
    assert!(
        error.ends_with("failed (exit status: 1): no package"),
        "{error}"
    );
}

#[test]
fn adapters_in_python_come_first_and_are_complete() {
    let dir = tempfile::tempdir().unwrap();
    let machine = machine(&[("PYTHONPATH", "/own/modules")]);
    let variables = python::write(dir.path(), &machine, &python::DASK).unwrap();
    let base = dir.path().join("python");
    let wanted = format!("{}:/own/modules", base.display());
    assert_eq!(variables, [("PYTHONPATH".to_owned(), wanted)]);
    // Python itself can read them.
    let script = "import ast, pathlib, sys\n\
                  for path in pathlib.Path(sys.argv[1]).rglob('*.py'): ast.parse(path.read_text())";
    python::write(dir.path(), &machine, &python::SNAKEMAKE).unwrap();
    let python = program(OsStr::new("python3"), &machine).unwrap();
    output(&python, &["-c", script, utf8(&base).unwrap()]).unwrap();
    assert_eq!(files(&base, "py").len(), 4);
}

#[test]
fn the_scheduler_of_dask_keeps_its_own_modules() {
    let preload = |value: &str| {
        let machine = machine(&[("DASK_DISTRIBUTED__SCHEDULER__PRELOAD", value)]);
        python::preload(&machine)
            .map(|(_, value)| value)
            .map_err(|error| error.to_string())
    };
    assert_eq!(preload("").unwrap(), r#"["copperfs_dask"]"#);
    assert_eq!(preload("mine").unwrap(), r#"["mine","copperfs_dask"]"#);
    assert_eq!(
        preload("['a', \"b\"]").unwrap(),
        r#"["a","b","copperfs_dask"]"#
    );
    assert_eq!(
        preload(r#"["copperfs_dask"]"#).unwrap(),
        r#"["copperfs_dask"]"#
    );
    assert!(preload("[1").unwrap_err().contains("cannot be added"));
}

#[test]
fn spark_gets_the_users_settings_and_the_listener() {
    assert_eq!(
        with_listener(""),
        "\nspark.extraListeners copperfs.spark.LrcListener\n"
    );
    for own in [
        "spark.extraListeners  a.B,c.D",
        "spark.extraListeners=a.B,c.D",
        "x y\n spark.extraListeners : a.B,c.D",
    ] {
        let all = with_listener(own);
        assert!(all.starts_with(own), "{all}");
        assert!(
            all.ends_with("\nspark.extraListeners a.B,c.D,copperfs.spark.LrcListener\n"),
            "{all}"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let (user, conf) = (dir.path().join("it's"), dir.path().join("conf"));
    fs::create_dir(&user).unwrap();
    for (name, text) in [
        ("spark-defaults.conf", "spark.master local[2]\n"),
        ("spark-env.sh", "SPARK_DIST_CLASSPATH=/hadoop\nOWN=1\n"),
        ("log4j2.properties", "x=y\n"),
    ] {
        fs::write(user.join(name), text).unwrap();
    }
    configure(&conf, &user, Path::new("/a b/x.jar")).unwrap();
    let defaults = fs::read_to_string(conf.join("spark-defaults.conf")).unwrap();
    assert!(
        defaults.starts_with("spark.master local[2]\n"),
        "{defaults}"
    );
    assert_eq!(
        fs::read_to_string(conf.join("log4j2.properties")).unwrap(),
        "x=y\n"
    );
    // As Spark's own scripts read it.
    let script = format!(
        ". {}; echo \"$SPARK_DIST_CLASSPATH $OWN\"",
        conf.join("spark-env.sh").display()
    );
    let shell = program(OsStr::new("sh"), &machine(&[])).unwrap();
    assert_eq!(
        output(&shell, &["-c", &script]).unwrap(),
        "/hadoop:/a b/x.jar 1"
    );
}

#[test]
fn a_spark_that_is_absent_or_of_another_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let jars = dir.path().join("spark/jars");
    fs::create_dir_all(&jars).unwrap();
    let home = dir.path().join("spark").display().to_string();
    let python = dir.path().join("bin/python3");
    executable(&python, "#!/bin/sh\nexit 1\n");
    let path = python.parent().unwrap().display().to_string();
    let refused = |variables: &[(&str, &str)], jar: Option<&str>| {
        let private = tempfile::tempdir().unwrap();
        let flags = EngineSetup {
            python: None,
            jar: jar.map(PathBuf::from),
        };
        let command = words("python3 x.py");
        let error = set_up(
            Engine::Spark,
            &flags,
            &command,
            private.path(),
            &machine(variables),
        );
        error.unwrap_err().to_string()
    };
    let error = refused(&[("PATH", &path)], None);
    assert!(
        error.starts_with("the engine is not there: no Spark was found"),
        "{error}"
    );
    fs::write(jars.join("spark-core_2.12-3.5.1.jar"), "").unwrap();
    let error = refused(&[("PATH", &path), ("SPARK_HOME", &home)], None);
    assert_eq!(
        error,
        format!("Spark 3.5.1 in {home} is not supported: use Spark 4")
    );
    fs::rename(
        jars.join("spark-core_2.12-3.5.1.jar"),
        jars.join("spark-core_2.13-4.0.0.jar"),
    )
    .unwrap();
    let error = refused(
        &[("PATH", &path), ("SPARK_HOME", &home)],
        Some("/nowhere/x.jar"),
    );
    assert_eq!(error, "--jar /nowhere/x.jar: there is no such file");
    // No javac on the path.
    let cache = dir.path().join("cache").display().to_string();
    let error = refused(
        &[
            ("PATH", &path),
            ("SPARK_HOME", &home),
            ("XDG_CACHE_HOME", &cache),
            ("JAVA_HOME", ""),
        ],
        None,
    );
    assert!(
        error.contains("there is no javac to build it: install a JDK"),
        "{error}"
    );
}

#[test]
fn versions_are_compared_by_their_numbers() {
    assert_eq!(numbers("2025.4.1"), [2025, 4, 1]);
    assert_eq!(numbers("9.27rc1.x"), [9, 27]);
    assert!(numbers("2025.12") >= vec![2025, 4] && numbers("2025.3.9") < vec![2025, 4]);
}

//! Messages of the program when it is used wrongly: each names the failure and a remedy.
//!
//! Runs the real binary; nothing is ever mounted here.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends with what it did not expect"
)]

#[path = "cli/lrc.rs"]
mod lrc;
#[path = "cli/manifest.rs"]
mod manifest;
#[path = "cli/plan.rs"]
mod plan;
#[path = "fixtures/skipping.rs"]
mod skipping;

use skipping::{is_root, skipped};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// The program with a clean environment and a runtime directory of its own.
fn copperfs(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_copperfs"))
        .args(args)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", dir)
        .env("XDG_RUNTIME_DIR", dir)
        .current_dir(dir)
        .output()
        .unwrap()
}

/// What it says when it fails, with status 1 and nothing on standard output.
#[track_caller]
fn refused(dir: &Path, args: &[&str]) -> String {
    let output = copperfs(dir, args);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
    assert_eq!(output.stdout, b"", "{args:?}");
    assert!(text.starts_with("copperfs: "), "{args:?}: {text}");
    text
}

struct Scene {
    dir: tempfile::TempDir,
    mount: String,
    origin: String,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let origin = dir.path().join("origin");
        let mount = dir.path().join("mnt");
        std::fs::create_dir(&origin).unwrap();
        std::fs::create_dir(&mount).unwrap();
        Self {
            origin: format!("/data={}", origin.display()),
            mount: mount.display().to_string(),
            dir,
        }
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    #[track_caller]
    fn mount_refused(&self, args: &[&str]) -> String {
        let common = ["mount", &self.mount, "--origin", &self.origin];
        refused(self.dir.path(), &[&common[..], args].concat())
    }
}

#[test]
fn a_wrong_unit_shows_the_right_ones() {
    let said = Scene::new().mount_refused(&["--memory", "10 bananas"]);
    assert!(
        said.contains("--memory: \"10 bananas\" is not a size"),
        "{said}"
    );
    assert!(said.contains("10GiB") && said.contains("5%"), "{said}");
}

#[test]
fn an_unknown_key_names_its_line_and_its_neighbour() {
    let scene = Scene::new();
    let config = scene.file("job.toml", "arity = 4\nmemroy = \"1GiB\"\n");
    let said = scene.mount_refused(&["--config", &config]);
    let wanted = "job.toml:2: unknown key \"memroy\"; did you mean memory?";
    assert!(said.contains(wanted), "{said}");
}

#[test]
fn a_missing_configuration_is_named() {
    let said = Scene::new().mount_refused(&["--config", "gone.toml"]);
    assert!(
        said.contains("cannot read the configuration file"),
        "{said}"
    );
    assert!(said.contains("gone.toml"), "{said}");
}

#[test]
fn a_flag_goes_before_the_file_and_its_error_says_so() {
    let scene = Scene::new();
    let config = scene.file("job.toml", "arity = 0\n");
    let said = scene.mount_refused(&["--config", &config]);
    assert!(said.contains("job.toml:1: arity: 0 is too small"), "{said}");
    let said = scene.mount_refused(&["--config", &config, "--arity", "none"]);
    assert!(
        said.contains("--arity: \"none\" is not a whole number"),
        "{said}"
    );
}

#[test]
fn a_host_that_is_not_in_the_list() {
    let scene = Scene::new();
    let hosts = scene.file("hosts", "# rack 1\nnid001\nnid002\n");
    let said = scene.mount_refused(&["--hosts", &hosts]);
    assert!(
        said.contains("is not in the host list: nid001, nid002"),
        "{said}"
    );
    assert!(said.contains("--rank N"), "{said}");
}

#[test]
fn hosts_twice_none_or_beyond() {
    let scene = Scene::new();
    let said = scene.mount_refused(&["--hosts", "nid001,nid002,nid001"]);
    assert!(said.contains("names nid001 more than once"), "{said}");
    let empty = scene.file("hosts", "# nobody\n");
    let said = scene.mount_refused(&["--hosts", &empty]);
    assert!(said.contains("names no host"), "{said}");
    let said = scene.mount_refused(&["--hosts", "a,b", "--rank", "2"]);
    assert!(said.contains("ranks 0 to 1"), "{said}");
}

#[test]
fn a_launcher_that_is_not_there() {
    let scene = Scene::new();
    let said = scene.mount_refused(&["--hosts", "slurm"]);
    assert!(
        said.contains("neither SLURM_JOB_NODELIST (in jobs)"),
        "{said}"
    );
    assert!(said.contains("--hosts nid[001-004]"), "{said}");
    let said = scene.mount_refused(&["--hosts", "pbs"]);
    assert!(said.contains("PBS_NODEFILE is not set"), "{said}");
    let said = scene.mount_refused(&["--hosts", "mpi"]);
    assert!(said.contains("copperfs launch --hosts mpi asks"), "{said}");
    let launch = |hosts: &str, starter: &str| {
        let args = ["launch", &scene.mount, "--origin", &scene.origin];
        let more = ["--hosts", hosts, "--starter", starter];
        refused(scene.dir.path(), &[&args[..], &more].concat())
    };
    let said = launch("slurm", "srun");
    assert!(said.contains("--hosts: slurm: neither"), "{said}");
    let said = launch("mpi", "/no/mpirun");
    assert!(said.contains("cannot run /no/mpirun"), "{said}");
    assert!(said.contains("--starter names another command"), "{said}");
    let said = launch("mpi", "true");
    assert!(said.contains("ran nothing that says its host"), "{said}");
    let said = launch("a,b", "false");
    assert!(
        said.contains("2 nodes said nothing before it ended"),
        "{said}"
    );
}

#[test]
fn host_lists_and_topologies_that_are_not_understood() {
    let scene = Scene::new();
    let said = scene.mount_refused(&["--hosts", "nid[001-"]);
    assert!(said.contains("a ] is missing"), "{said}");
    let said = scene.mount_refused(&["--hosts", "nid[1-9999999]"]);
    assert!(said.contains("more than 1048576 hosts"), "{said}");
    let topology = scene.file("topology", "SwitchName=s1 Nodes=a\nSwitchName=s2\n");
    let said = scene.mount_refused(&["--hosts", "a,b", "--rank", "0", "--topology", &topology]);
    assert!(said.contains("topology: line 2: s2 has neither"), "{said}");
    assert!(
        said.contains("or a rack and its hosts: r1 nid[001-016]"),
        "{said}"
    );
}

#[test]
fn job_secrets_from_the_key_of_a_site() {
    let scene = Scene::new();
    let path = |name: &str| scene.dir.path().join(name).display().to_string();
    let (key, one, two) = (path("key"), path("one"), path("two"));
    let made = |args: &[&str]| copperfs(scene.dir.path(), &[&["secret"][..], args].concat());
    assert!(made(&[&key]).status.success());
    for file in [&one, &two] {
        let output = made(&[file, "--site-key", &key, "--job", "77"]);
        assert!(output.status.success(), "{output:?}");
        assert!(output.stdout.is_empty() && output.stderr.is_empty());
    }
    let read = |file: &str| std::fs::read(file).unwrap();
    assert_eq!(read(&one), read(&two));
    assert_ne!(read(&one), read(&key));
    let mode = std::fs::metadata(&one).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);

    let said = |args: &[&str]| refused(scene.dir.path(), &[&["secret"][..], args].concat());
    assert!(said(&[&one]).contains("File exists"));
    let three = path("three");
    let short = scene.file("short", "too little");
    std::fs::set_permissions(&short, std::fs::Permissions::from_mode(0o600)).unwrap();
    let text = said(&[&three, "--site-key", &short, "--job", "77"]);
    assert!(
        text.contains("it should be 32 random bytes or more"),
        "{text}"
    );
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let text = said(&[&three, "--site-key", &key, "--job", "77"]);
    assert!(text.contains("others may read it (mode 0640)"), "{text}");
    assert!(!Path::new(&three).exists());
}

#[test]
fn a_mount_point_that_is_not_fit() {
    let scene = Scene::new();
    let mount = |path: &str| {
        let args = ["mount", path, "--origin", &scene.origin];
        refused(scene.dir.path(), &args)
    };
    let said = mount("/proc/copperfs");
    assert!(said.contains("cannot make the mount point"), "{said}");
    let file = scene.file("file", "");
    assert!(mount(&file).contains("is not a directory"));
    // The scene's own directory has things in it.
    let said = mount(&scene.dir.path().display().to_string());
    assert!(said.contains("is not empty"), "{said}");
    let said = mount("/proc");
    assert!(
        said.contains("a proc filesystem is mounted there"),
        "{said}"
    );
}

#[test]
fn root_names_its_origins() {
    if !is_root() {
        return skipped("needs root");
    }
    let scene = Scene::new();
    let said = refused(scene.dir.path(), &["mount", &scene.mount]);
    assert!(said.contains("no --origin given"), "{said}");
    assert!(said.contains("--origin /lus=file:///lus"), "{said}");
}

#[test]
fn origins_that_are_not_understood() {
    let scene = Scene::new();
    let said = scene.mount_refused(&["--origin", "/d=s4://bucket"]);
    assert!(said.contains("did you mean s3://?"), "{said}");
    let said = scene.mount_refused(&["--origin", "/d=https://me:word@host/"]);
    assert!(said.contains("show them to every user"), "{said}");
    let said = scene.mount_refused(&["--origin", "/data=/elsewhere"]);
    assert!(said.contains("two origins for /data"), "{said}");
}

#[test]
fn secrets_that_are_missing_or_shown() {
    let scene = Scene::new();
    let with = |more: &[&str]| {
        scene.mount_refused(&[&["--hosts", "a,b", "--rank", "1"][..], more].concat())
    };
    let said = with(&[]);
    assert!(said.contains("need a job secret"), "{said}");
    let said = with(&["--secret-file", "gone"]);
    assert!(said.contains("gone: there is no such file"), "{said}");
    let secret = scene.file("secret", "0123");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o644)).unwrap();
    let said = with(&["--secret-file", "secret"]);
    assert!(said.contains("others may read it (mode 0644)"), "{said}");
    assert!(said.contains("chmod 600"), "{said}");
}

#[test]
fn nothing_to_unmount_ask_or_clear() {
    let scene = Scene::new();
    let said = refused(scene.dir.path(), &["unmount", &scene.mount]);
    assert!(said.contains("is not a copperfs mount"), "{said}");
    let said = refused(scene.dir.path(), &["unmount", "--all", &scene.mount]);
    assert!(said.contains("is not a copperfs mount"), "{said}");
    let said = refused(scene.dir.path(), &["stats", &scene.mount]);
    assert!(said.contains("is not a copperfs mount"), "{said}");
    for flags in [&["clear"][..], &["clear", "--everything"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_copperfs"))
            .args(flags)
            .arg(&scene.mount)
            // The default could otherwise be the mount of another test.
            .env("COPPERFS_MOUNTPOINT", &scene.mount)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("is not a copperfs mount"), "{said}");
    }
}

#[test]
fn launches_that_cannot_be() {
    let scene = Scene::new();
    let launch = |args: &[&str]| {
        let common = ["launch", &scene.mount, "--origin", &scene.origin];
        refused(scene.dir.path(), &[&common[..], args].concat())
    };
    assert!(launch(&[]).contains("-n 4 starts four"));
    assert!(launch(&["--hosts", "local:none"]).contains("as in local:4"));
    assert!(launch(&["--hosts", "/no/hosts"]).contains("cannot read the host list"));
    let said = launch(&["--hosts", "h1,h2", "--ssh", "/no/such/ssh"]);
    assert!(said.contains("2 of 2 nodes did not come up"), "{said}");
    assert!(said.contains("h1, h2: cannot run /no/such/ssh"), "{said}");
}

#[test]
fn wrong_words_of_clap_end_with_2() {
    let scene = Scene::new();
    let output = copperfs(scene.dir.path(), &["mount", "--open", "sesame"]);
    assert_eq!(output.status.code(), Some(2));
    let output = copperfs(scene.dir.path(), &["mount", "--memroy", "1G"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("'--memory"), "{said}");
}

#[test]
fn misspelt_words_are_not_taken_in_silence() {
    let scene = Scene::new();
    let why = scene.mount_refused(&["--log-level", "loud"]);
    assert!(
        why.contains("\"loud\" is no level; write error, warn"),
        "{why}"
    );
    let why = scene.mount_refused(&["--hosts", "local:4"]);
    assert!(why.contains("only copperfs launch takes local:N"), "{why}");
    let output = Command::new(env!("CARGO_BIN_EXE_copperfs"))
        .args([
            "mount",
            "--origin",
            &scene.origin,
            "--log-level",
            "loud",
            &scene.mount,
        ])
        .env("COPPERFS_MEMROY", "1GB")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = "COPPERFS_MEMROY is no option, and has no effect; did you mean COPPERFS_MEMORY?";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn the_short_help_fits_on_a_page() {
    let dir = tempfile::tempdir().unwrap();
    for command in ["mount", "launch"] {
        let lines = |flag: &str| {
            let output = copperfs(dir.path(), &[command, flag]);
            assert!(output.status.success());
            String::from_utf8(output.stdout).unwrap().lines().count()
        };
        let (short, whole) = (lines("-h"), lines("--help"));
        assert!(short <= 30 && whole > 100, "{command}: {short}, {whole}");
    }
}

#[test]
fn shells_and_man_get_their_files() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = copperfs(dir.path(), &["completions", shell]);
        let script = String::from_utf8(script.stdout).unwrap();
        assert!(script.contains("data-mount") && script.contains("unmount"));
    }
    assert!(
        copperfs(dir.path(), &["man", "share/man1"])
            .status
            .success()
    );
    let page = std::fs::read_to_string(dir.path().join("share/man1/copperfs-mount.1")).unwrap();
    assert!(page.contains("copperfs"));
    let hidden = dir.path().join("share/man1/copperfs-daemon.1");
    assert!(!hidden.exists(), "no page of an internal command");
    std::fs::write(dir.path().join("file"), "").unwrap();
    let why = refused(dir.path(), &["man", "file/man1"]);
    assert!(
        why.contains("cannot write manual pages into file/man1"),
        "{why}"
    );
}

#[test]
fn doctor_speaks_json() {
    let scene = Scene::new();
    let output = copperfs(scene.dir.path(), &["doctor", "--json"]);
    let checks: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = checks.as_array().unwrap();
    assert!(checks.len() >= 8);
    let failed = checks.iter().any(|check| check["verdict"] == "fail");
    assert_eq!(output.status.code(), Some(i32::from(failed)));
    for check in checks {
        let fixed = check["verdict"] == "ok" || check["fix"] != "";
        assert!(fixed, "{check}");
    }
}

#[test]
fn doctor_looks_at_origins() {
    let scene = Scene::new();
    let full = scene.dir.path().join("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("file"), "x").unwrap();
    let look = |origin: &str| {
        let arguments = ["doctor", "--json", "--origin", origin];
        let output = copperfs(scene.dir.path(), &arguments);
        let checks: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let checks = checks.as_array().unwrap().clone();
        let of_origin = |check: &serde_json::Value| {
            let name = check["name"].as_str().unwrap_or_default();
            name.starts_with("origin ")
        };
        checks.into_iter().find(of_origin).unwrap()
    };
    let found = look(&format!("/d=file://{}", full.display()));
    assert_eq!(
        (&found["name"], &found["verdict"]),
        (&"origin list".into(), &"ok".into())
    );
    let found = look("/d=file:///no/such/directory");
    assert_eq!(found["verdict"], "fail", "{found}");
    assert_ne!(found["fix"], "", "{found}");
    let found = look("/d=http://no-such-host.invalid/base");
    assert_eq!(
        (&found["name"], &found["verdict"]),
        (&"origin reach".into(), &"fail".into())
    );
    assert!(found["fix"].as_str().unwrap().contains("DNS"), "{found}");
}

#[test]
fn a_simulation_gives_the_same_twice_and_draws_it() {
    let dir = tempfile::tempdir().unwrap();
    let profile = dir.path().join("p.jsonl");
    let line = r#"{"op":"read","path":"/a/b","size":70000,"offset":0,"len":1}"#;
    std::fs::write(
        &profile,
        format!("{{\"op\":\"list\",\"path\":\"/a\"}}\n{line}\n"),
    )
    .unwrap();
    let run = || {
        let shape = [
            "simulate",
            "tree",
            "--nodes",
            "100",
            "--json",
            "--profile",
            "p.jsonl",
        ];
        let output = copperfs(dir.path(), &[&shape[..], &["--plot", "cold.svg"]].concat());
        assert!(output.status.success(), "{output:?}");
        // Standard output is JSON alone.
        assert_eq!(String::from_utf8_lossy(&output.stderr), "wrote cold.svg\n");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let (first, second) = (run(), run());
    assert_eq!(first, second);
    assert_eq!(first["outcome"]["requests_per_node_max"], 2);
    assert_eq!(first["outcome"]["storage_reads"], 2);
    assert_eq!(first["scope"], "data movement only");
    let drawn = std::fs::read_to_string(dir.path().join("cold.svg")).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("Copper, import torch"));
    assert!(drawn.contains("(data movement only)"), "{drawn}");
}

#[test]
fn invalid_scenarios_are_explained() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("p"),
        "{\"op\":\"stat\",\"path\":\"/\"}\nnonsense\n",
    )
    .unwrap();
    let said = refused(dir.path(), &["simulate", "tree", "--profile", "p"]);
    assert!(said.contains("line 2 of the profile"), "{said}");
    let said = refused(
        dir.path(),
        &["simulate", "tree", "--roots", "9", "--nodes", "8"],
    );
    assert!(said.contains("no tree of 8 nodes"), "{said}");
    let said = refused(dir.path(), &["simulate", "tree", "--calibration", "none"]);
    assert!(said.contains("cannot read the calibration"), "{said}");
    let said = refused(dir.path(), &["bench", "tree", "--nodes", "1"]);
    assert!(said.contains("2 to 1024 nodes"), "{said}");
}

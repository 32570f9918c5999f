//! Daemons that die at seeded fail points, under readers of all kinds: see `src/failpoint.rs`.

use crate::skip;
use crate::support::command::{Background, python};
use crate::support::datasets::SOON;
use crate::support::kernel::has_no_passthrough;
use crate::support::takeover::Daemons;
use crate::support::{Mount, Scratch, check, copperfs, is_root};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Fail points of a daemon that serves.
const SERVING: [&str; 14] = [
    "journal.write.before",
    "journal.write.torn",
    "journal.write.after",
    "snapshot.begun",
    "snapshot.half",
    "snapshot.dumped",
    "snapshot.valid",
    "snapshot.released",
    "reload.unkept",
    "reload.kept",
    "reload.half",
    "reload.applied",
    "upgrade.checked",
    "upgrade.told",
];
/// Fail points of a daemon that takes over, in their order.
const TAKING_OVER: [&str; 11] = [
    "takeover.begun",
    "takeover.adopted",
    "takeover.numbered",
    "takeover.handshake",
    "takeover.attached",
    "takeover.untold",
    "takeover.told",
    "takeover.unserved",
    "takeover.served",
    "takeover.unready",
    "takeover.ready",
];
/// The number of mounts, unless the environment sets it: `KILLS_SEEDS=200` takes ten minutes.
const SEEDS: u64 = 14;
/// How long one mount may take to come to the end of its plan. Not every plan has an end that is reached.
const PLAN_TIMEOUT: Duration = Duration::from_secs(10);
/// A run that takes longer says why.
const LONG: Duration = Duration::from_secs(15);

/// How long it may take to the first death.
const SLOWLY: Duration = Duration::from_secs(60);

/// Numbers that follow from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn one_of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }
}

/// Where the first daemon dies, and its successors. Twenty seeds have every fail point.
fn plan(seed: u64) -> Vec<String> {
    let draw = &mut Draw(seed);
    let serving = |name: &str, draw: &mut Draw| {
        // The first visits are those of the start.
        let visit = match name.starts_with("journal") {
            true => 25 + draw.below(400),
            false => 1,
        };
        format!("{name}={visit}")
    };
    let at = |index: u64, all: &[&'static str]| all[usize::try_from(index).unwrap() % all.len()];
    let first = serving(at(seed, &SERVING), draw);
    let second = format!("{}={}", at(seed, &TAKING_OVER), 1);
    // A request that three daemons in a row had in hand is taken for their killer. So the third one answers many.
    let third = match draw.one_of(&SERVING[..8]) {
        name if name.starts_with("journal") => format!("{name}={}", 300 + draw.below(300)),
        name => format!("{name}=1"),
    };
    let fourth = match draw.below(3) {
        0 => format!("{}=1", draw.one_of(&TAKING_OVER)),
        1 => format!("{}={}", draw.one_of(&SERVING[..3]), 1 + draw.below(30)),
        _ => format!("any={}", 1 + draw.below(200)),
    };
    vec![first, second, third, fourth]
}

/// Whether all files are too young for their times to count, with this seed.
fn is_young(seed: u64) -> bool {
    seed % 2 == 1
}

/// Whether large files are read without the daemon, with this seed.
fn is_bypassed(seed: u64) -> bool {
    seed % 4 >= 2 && !has_no_passthrough()
}

/// The program that reads in all ways.
fn load(arguments: &[&Path]) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/killslib/load.py");
    let mut command = python();
    command.arg(script).args(arguments);
    command.env("COPPERFS_JOB", "train");
    command
}

/// A mount whose daemons follow a plan.
struct Planned {
    mount: Mount,
    daemons: Daemons,
    data: PathBuf,
    plan: PathBuf,
    origin: PathBuf,
    version: u32,
}

impl Planned {
    #[track_caller]
    fn start(seed: u64, origin: &Path, scratch: &Scratch) -> Self {
        let data = scratch.dir("data");
        let dataset = "[[dataset]]\nname = \"set\"\npath = \"/small\"\nbudget = \"2MB\"\n";
        let config = scratch.file("config.toml", dataset);
        let plan = scratch.file("plan", plan(seed).join("\n") + "\n");
        let point = scratch.dir("mnt");
        let mut command = copperfs(["mount", "--takeover", "--page-cache=false", "--origin"]);
        command.arg(format!("/=file://{}", origin.display()));
        command.arg("--data-mount").arg(&data);
        command.arg("--config").arg(config);
        if is_young(seed) {
            command.args(["--clock-skew", "1d"]);
        }
        if is_bypassed(seed) {
            command.args(["--open", "passthrough"]);
        }
        command.env("COPPERFS_FAILPOINTS", &plan);
        let mount = Mount::at(&point, &mut command);
        Self {
            daemons: Daemons::of(&mount),
            mount,
            data,
            plan,
            origin: origin.to_owned(),
            version: 0,
        }
    }

    /// Where daemons have died so far.
    fn died(&self) -> Vec<String> {
        let text = fs::read_to_string(self.plan.with_extension("died")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Changes a file, and clears. Afterwards the new bytes are read. Clears may fail when daemons die.
    #[track_caller]
    fn change(&mut self) {
        self.version += 1;
        let version = self.version.to_string();
        fs::write(self.origin.join("changing/c"), &version).unwrap();
        let everything = self.version.is_multiple_of(2);
        let what = if everything { "/" } else { "/changing" };
        if self.mount.clearing(what).output().unwrap().status.success() {
            let read = fs::read_to_string(self.mount.path("changing/c")).unwrap();
            assert_eq!(read, version, "an old file after a clear");
        }
    }

    /// Does what changes the journal and the options, until the daemons have died in all places of the plan, or for a
    /// time. The commands fail when the daemon dies.
    #[track_caller]
    fn work(&mut self, plan: &[String]) {
        let begun = Instant::now();
        loop {
            let (died, lasted) = (self.died().len(), begun.elapsed());
            // The first place is always reached; a slow machine takes longer.
            let timeout = if died == 0 { SLOWLY } else { PLAN_TIMEOUT };
            if died == plan.len() || lasted > timeout {
                return;
            }
            self.change();
            // Many names, which the next clear has the kernel forget.
            let names = fs::read_dir(self.mount.path("many")).unwrap();
            let names = names.map(|entry| entry.unwrap().metadata().unwrap());
            assert_eq!(names.count(), 3000);
            let level = ["info", "debug"][self.version as usize % 2];
            let mut reload = copperfs(["reload", "--log-level", level]);
            drop(reload.arg(&self.mount.point).output().unwrap());
            // Another upgrade would end a daemon in another way than planned.
            let left = fs::read_to_string(&self.plan).unwrap().lines().count();
            let current = &plan[plan.len() - 1 - left.min(plan.len() - 1)];
            if current.starts_with("upgrade") {
                let program = env!("CARGO_BIN_EXE_copperfs");
                let mut upgrade = copperfs(["upgrade", "--program", program]);
                drop(upgrade.arg(&self.mount.point).output().unwrap());
            }
        }
    }
}

/// Runs one plan. Returns where the daemons have died.
#[track_caller]
fn run(seed: u64, origin: &Path) -> Vec<String> {
    let begun = Instant::now();
    let scratch = Scratch::new();
    let mut planned = Planned::start(seed, origin, &scratch);
    let mount = planned.mount.point.clone();
    let data = Path::new("--data");
    let mut reading = load(&[&mount, origin, data, &planned.data]);
    if is_young(seed) {
        reading.arg("--young");
    }
    let mut reading = Background::spawn(reading.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let (input, mut output) = (reading.stdin(), BufReader::new(reading.stdout()));
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "reading\n", "seed {seed}");
    planned.work(&plan(seed));
    drop(input);
    let mut told = String::new();
    output.read_to_string(&mut told).unwrap();
    let ended = reading.exit_within(SOON).expect("the readers end");
    let died = planned.died();
    let log = planned.daemons.log();
    assert!(ended.success(), "seed {seed}: {ended}: {died:?}\n{log}");
    let told: Value = serde_json::from_str(&told).unwrap();
    let lasted = begun.elapsed();
    if lasted > LONG {
        eprintln!("seed {seed} took {lasted:?}: {died:?}\n{log}");
    }
    let right = told["errors"] == 0 && told["wrong"] == 0;
    assert!(right, "seed {seed}: {}: {died:?}\n{log}", told["kept"]);
    check(copperfs(["unmount", "--force"]).arg(&mount));
    planned.daemons.are_gone();
    died
}

/// Readers of all kinds, a job in the data mount, `clear`, `reload` and `upgrade` go on, wherever daemons and their
/// successors die: at each write of the journal, before it, after it and in the middle of it, in each part of a
/// snapshot, of a reload and of an upgrade, and in each phase of a take-over.
#[test]
fn nothing_fails_wherever_daemons_die() {
    if !is_root() {
        skip!("needs root");
    }
    let seeds = std::env::var("KILLS_SEEDS").ok();
    let seeds = seeds.map_or(SEEDS, |seeds| seeds.parse().unwrap());
    let first = std::env::var("KILLS_FIRST").ok();
    let first = first.map_or(0, |first| first.parse().unwrap());
    let origin = Scratch::new();
    check(&mut load(&[
        origin.path(),
        origin.path(),
        Path::new("--make"),
    ]));
    origin.settle();
    let mut deaths = 0;
    for seed in first..first + seeds {
        let begun = Instant::now();
        let died = run(seed, origin.path());
        eprintln!(
            "seed {seed}, {:.1} s: {died:?}",
            begun.elapsed().as_secs_f32()
        );
        assert!(
            !died.is_empty(),
            "seed {seed} has no death: {:?}",
            plan(seed)
        );
        deaths += died.len() as u64;
    }
    assert!(deaths > seeds, "{deaths} deaths of {seeds} plans");
}

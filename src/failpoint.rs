//! Fail points: named places at which a debug build of the daemon can be told to die by SIGKILL. Tests use them to kill
//! daemons between two instructions. In a release build nothing of them is left.
//!
//! A test writes a plan: one line for each daemon that follows, with a name and the number of the visit that is the last,
//! such as `journal.write.torn=17`, or `any=400` for the 400th visit of any fail point. Each daemon takes the first line
//! away when it begins, so that its successor has the next one. Without a line, daemons do not die here. A daemon that
//! dies here adds its line to a second file, the plan's name with `.died` at its end.

#[cfg(debug_assertions)]
pub use armed::{arm, die, hit, is_hit};

/// The variable of the environment with the path of the plan.
pub const VARIABLE: &str = "COPPERFS_FAILPOINTS";

/// Does nothing in a release build.
#[cfg(not(debug_assertions))]
pub fn arm(_plan: Option<&str>) {}

/// Does nothing in a release build.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn hit(_name: &str) {}

/// Returns `false` in a release build.
#[cfg(not(debug_assertions))]
#[inline(always)]
#[must_use]
pub fn is_hit(_name: &str) -> bool {
    false
}

/// Does nothing in a release build.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn die(_name: &str) {}

#[cfg(debug_assertions)]
mod armed {
    use std::fs::{File, read_to_string, write};
    use std::io::Write;
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Where this daemon dies.
    #[derive(Debug)]
    struct Plan {
        line: String,
        name: String,
        /// The visits that are left.
        left: AtomicU64,
        died: PathBuf,
    }

    static PLAN: OnceLock<Plan> = OnceLock::new();

    /// Takes this daemon's line from the plan at `path`, if there is a plan. Called once, when a daemon begins.
    pub fn arm(path: Option<&str>) {
        let Some(path) = path else {
            return;
        };
        let text = read_to_string(path).unwrap_or_default();
        let (line, rest) = text.split_once('\n').unwrap_or((&text, ""));
        let Some(plan) = Plan::parse(line, format!("{path}.died").into()) else {
            return;
        };
        match write(path, rest) {
            Ok(()) => {
                tracing::warn!(line, "this daemon dies at a fail point");
                let _armed_already = PLAN.set(plan);
            }
            Err(error) => tracing::warn!(%error, "the plan of fail points stays as it is"),
        }
    }

    impl Plan {
        fn parse(line: &str, died: PathBuf) -> Option<Self> {
            let (name, visits) = line.split_once('=')?;
            Some(Self {
                line: line.to_owned(),
                name: name.to_owned(),
                left: AtomicU64::new(visits.parse().ok()?),
                died,
            })
        }

        /// Counts a visit of the fail point `name`. Returns whether the process dies there.
        fn visit(&self, name: &str) -> bool {
            let is_this = self.name == name || self.name == "any";
            is_this && self.left.fetch_sub(1, Ordering::Relaxed) == 1
        }

        fn die(&self, name: &str) -> ! {
            // For the test, which cannot see where a plan with `any` has ended.
            let died = File::options().create(true).append(true).open(&self.died);
            let _unwritable = died.map(|mut file| writeln!(file, "{} at {name}", self.line));
            let own = rustix::process::getpid();
            let _impossible = rustix::process::kill_process(own, rustix::process::Signal::KILL);
            // The signal may be on its way.
            loop {
                std::thread::park();
            }
        }
    }

    /// Dies if the plan says so.
    pub fn hit(name: &str) {
        if is_hit(name) {
            die(name);
        }
    }

    /// Returns whether the plan says that the process dies here. The caller does a part of its work, and calls [`die`].
    #[must_use]
    pub fn is_hit(name: &str) -> bool {
        PLAN.get().is_some_and(|plan| plan.visit(name))
    }

    /// Dies.
    pub fn die(name: &str) {
        if let Some(plan) = PLAN.get() {
            plan.die(name);
        }
    }
}

//! Trees of files that are served.

use super::command;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

/// A directory that goes with its guard, and with it all that is mounted below it if the test is killed.
/// Everybody may look into it.
#[derive(Debug)]
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    #[track_caller]
    pub fn new() -> Self {
        let dir = crate::cleanup::directory();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A directory in it, made if need be.
    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// Writes a file in it, and the directories on the way.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// A sparse file with the few bytes that [`Scratch::check_hole`] checks.
    pub fn hole(&self, name: &str, size: u64, places: &[u64]) {
        let file = fs::File::create(self.path().join(name)).unwrap();
        file.set_len(size).unwrap();
        for place in places {
            file.write_at(&place.to_le_bytes()[..7], *place).unwrap();
        }
    }

    /// Fails unless `mounted` has the size and the bytes of the file of [`Scratch::hole`].
    #[track_caller]
    pub fn check_hole(mounted: &fs::File, size: u64, places: &[u64]) {
        assert_eq!(mounted.metadata().unwrap().len(), size);
        for place in places {
            let mut piece = [1; 7];
            mounted.read_exact_at(&mut piece, *place).unwrap();
            assert_eq!(piece, place.to_le_bytes()[..7], "at {place}");
        }
        assert_eq!(mounted.read_at(&mut [0; 8], size).unwrap(), 0);
    }

    /// Waits until all in it is old enough for its times to tell one version from the next. Younger files get
    /// one more look, and may get one more read, in the background: a test that counts messages would see it.
    pub fn settle(&self) {
        settle(self.path());
    }
}

/// See [`Scratch::settle`].
pub fn settle(path: &Path) {
    const OLD_ENOUGH: Duration = Duration::from_millis(2100);
    let newest = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(newest_change(path));
    if let Ok(age) = newest.elapsed() {
        std::thread::sleep(OLD_ENOUGH.saturating_sub(age));
    }
}

fn newest_change(path: &Path) -> f64 {
    use std::os::unix::fs::MetadataExt;
    let meta = fs::symlink_metadata(path).unwrap();
    #[expect(clippy::cast_precision_loss, reason = "microseconds are enough")]
    let mut newest = meta.ctime() as f64 + meta.ctime_nsec() as f64 / 1e9;
    if meta.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            newest = newest.max(newest_change(&entry.unwrap().path()));
        }
    }
    newest
}

/// Bytes that look random and differ from file to file.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A generated Python package tree, made once per checkout and old enough to be counted on.
#[derive(Debug)]
pub struct Packages {
    pub path: PathBuf,
    /// Modules in it, package initialisers included; none is empty.
    pub modules: u64,
    /// Bytes of all modules.
    pub bytes: u64,
    /// Directories, the top included.
    pub directories: u64,
}

/// How many packages there are, and how many modules in each besides `__init__.py`.
const PACKAGES: usize = 40;
const MODULES: usize = 49;

/// The generated tree. `import everything` imports all of it.
pub fn packages() -> &'static Packages {
    static TREE: OnceLock<Packages> = OnceLock::new();
    TREE.get_or_init(|| {
        let path = cached("generated-packages", generate_packages);
        let (mut modules, mut bytes) = (0, 0);
        for file in files_below(&path) {
            modules += 1;
            bytes += fs::metadata(file).unwrap().len();
        }
        assert_eq!(modules, (PACKAGES * (MODULES + 1) + 1) as u64);
        settle(&path);
        Packages {
            path,
            modules,
            bytes,
            directories: PACKAGES as u64 + 1,
        }
    })
}

fn generate_packages(top: &Path) -> Result<(), String> {
    let mut all = String::new();
    for package in 0..PACKAGES {
        let dir = top.join(format!("package_{package:02}"));
        fs::create_dir(&dir).unwrap();
        let mut init = String::new();
        for module in 0..MODULES {
            let filler = "# what real modules are full of\n".repeat((module * 7 + package) % 90);
            let text = format!("VALUE = {}\n{filler}", package * MODULES + module);
            fs::write(dir.join(format!("module_{module:02}.py")), text).unwrap();
            init += &format!("from . import module_{module:02}\n");
        }
        fs::write(dir.join("__init__.py"), init).unwrap();
        all += &format!("import package_{package:02}\n");
    }
    all += "import sys\nTOTAL = sum(getattr(m, 'VALUE', 0) for m in list(sys.modules.values()))\n";
    fs::write(top.join("everything.py"), all).unwrap();
    Ok(())
}

/// What the modules of [`packages`] add up to.
pub fn packages_total() -> String {
    let count = PACKAGES * MODULES;
    (count * (count - 1) / 2).to_string()
}

/// Packages that people use: those of the Python that runs the tests, or else installed once per
/// checkout.
///
/// # Errors
/// Why they are not there: this machine has no network, or no pip.
pub fn real_packages() -> Result<&'static Path, String> {
    const FIND: &str = "import os
import networkx, numpy, pandas, sympy
tops = {os.path.dirname(os.path.dirname(p.__file__)) for p in (networkx, numpy, pandas, sympy)}
assert len(tops) == 1
print(*tops)";
    static TREE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let tree = TREE.get_or_init(|| {
        let found = command::run(command::python().args(["-c", FIND]));
        let path = if found.status.success() {
            PathBuf::from(found.text().trim_end())
        } else {
            try_cached("python-packages", install_packages)?
        };
        settle(&path);
        Ok(path)
    });
    tree.as_deref().map_err(Clone::clone)
}

fn install_packages(dir: &Path) -> Result<(), String> {
    let mut pip = command::python();
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]);
    pip.args(["numpy", "pandas", "sympy", "networkx", "--target"]);
    let finished = command::run_within(pip.arg(dir), Duration::from_secs(400));
    if finished.status.success() {
        return Ok(());
    }
    Err(format!(
        "pip cannot install numpy and others: {}",
        finished.stderr
    ))
}

/// A directory below the build directory that is made once and kept.
pub fn cached(name: &str, make: impl FnOnce(&Path) -> Result<(), String>) -> PathBuf {
    try_cached(name, make).unwrap()
}

fn try_cached(
    name: &str,
    make: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let base = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = base.join(name);
    let lock = fs::File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(base.join(format!("{name}.lock")))
        .unwrap();
    lock.lock().unwrap();
    if !path.exists() {
        let fresh = base.join(format!("{name}.new"));
        drop(fs::remove_dir_all(&fresh));
        fs::create_dir_all(&fresh).unwrap();
        make(&fresh)?;
        fs::rename(&fresh, &path).unwrap();
    }
    Ok(path)
}

/// All regular files below `path`.
pub fn files_below(path: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files.extend(files_below(&entry.path()));
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    files
}

/// One line per file: its checksum and its name relative to `path`.
#[track_caller]
pub fn checksums(path: &Path) -> String {
    let script = "find . -type f -print0 | sort -z | xargs -0 -r sha256sum";
    command::check(
        Command::new("bash")
            .args(["-euo", "pipefail", "-c", script])
            .current_dir(path),
    )
}

/// A user and a group that own none but the files made for them.
pub const NOBODY: u32 = 65_534;

/// Files with their names as contents, that [`NOBODY`] may read (`all`, `group`, `owner`, `search/inside`) or may not
/// (`root_only`, `not_the_owner`, `closed/inside`).
pub fn files_with_rights(origin: &Scratch) {
    let allow = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    for (name, mode, owner) in [
        ("all", 0o644, (0, 0)),
        ("root_only", 0o600, (0, 0)),
        ("group", 0o640, (0, NOBODY)),
        ("owner", 0o400, (NOBODY, 0)),
        ("not_the_owner", 0o044, (NOBODY, 0)),
        ("closed/inside", 0o644, (0, 0)),
        ("search/inside", 0o644, (0, 0)),
    ] {
        let path = origin.file(name, name);
        chown(&path, Some(owner.0), Some(owner.1)).unwrap();
        allow(&path, mode);
    }
    allow(&origin.path().join("closed"), 0o700);
    allow(&origin.path().join("search"), 0o711);
}

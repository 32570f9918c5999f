//! The front of all mounts of a run. Tests run with FUSE, unless the environment says otherwise:
//!
//! - `COPPERFS_TEST_FRONT=erofs`: the kernel has an image of each mount of one directory ([`Mount::with`](super::Mount)),
//!   made of an index that is built before it. A test that asks for a front, an index or leases keeps what it asks for.
//! - `COPPERFS_TEST_FRONT=fuse`: the same with the index, but without the image, to tell one effect from the other.

use super::command;
use super::fixture::{Scratch, settle};
use super::mount::copperfs;
use std::path::Path;

/// Flags that decide about images themselves, or that cannot go with them.
const DECIDING: [&str; 6] = [
    "--front",
    "--index",
    "--freshness",
    "--native",
    "--open",
    "--origin",
];

/// What a mount of a directory gets besides the flags of its test.
#[derive(Debug)]
pub struct Front {
    pub flags: Vec<String>,
    /// Where the index is.
    _beside: Scratch,
}

impl Front {
    /// For a mount of `origin` with `flags`; `None` in an ordinary run.
    #[track_caller]
    pub fn of_run(origin: &Path, flags: &[&str]) -> Option<Self> {
        let front = std::env::var("COPPERFS_TEST_FRONT").ok()?;
        let decides = |flag: &&str| DECIDING.iter().any(|deciding| flag.starts_with(deciding));
        if flags.iter().any(decides) || !origin.is_dir() {
            return None;
        }
        settle(origin);
        let beside = Scratch::new();
        let index = beside.path().join("index");
        let mut build = copperfs(["index", "build", "-o"]);
        command::check(build.arg(&index).arg(origin));
        let mut all = vec![
            format!("--front={front}"),
            format!("--index=/=file://{}", index.display()),
        ];
        // An image of the whole mount lets all users in.
        if !flags.contains(&"--allow-other") {
            all.push("--allow-other".into());
        }
        Some(Self {
            flags: all,
            _beside: beside,
        })
    }
}

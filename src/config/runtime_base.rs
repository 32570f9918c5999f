//! Selects the directories that hold a user's runtime directories, such that no other user can take them
//! first.
//!
//! Every user may write to `/tmp`, so another user may have made `copperfs-UID` there. Such a directory is
//! never used. Instead a directory with an unpredictable name is made; commands find it again by its owner.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The maximum number of entries examined in the shared directory. If it holds more, later commands may not
/// find a directory that was made because the usual name was taken.
const ENTRIES_MAX: usize = 1_000_000;

/// The directories to consider.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places<'a> {
    /// `/run`: only root may write to it.
    pub(super) system: &'a Path,
    /// `XDG_RUNTIME_DIR`.
    pub(super) own: Option<&'a Path>,
    /// `/tmp`: every user may write to it, and remove their own files there.
    pub(super) shared: &'a Path,
}

/// The directories that may hold runtime directories of this process's user `uid`: the one for new ones
/// first, then those that earlier commands with another environment may have used.
pub(super) fn bases(uid: u32, places: Places<'_>) -> Vec<PathBuf> {
    let (system, shared) = (places.system, places.shared);
    let private = match uid {
        0 => Some(system),
        _ => places.own,
    };
    let private = private.map(|dir| dir.join("copperfs"));
    let login = system.join(format!("user/{uid}/copperfs"));
    let named = format!("copperfs-{uid}");
    let usual = shared.join(&named);
    let mut bases: Vec<PathBuf> = private.into_iter().chain([usual]).collect();
    bases.retain(|base| can_be_had(base, uid));
    let aside = format!("{named}.");
    let mut others: Vec<PathBuf> = fs::read_dir(shared)
        .into_iter()
        .flatten()
        .take(ENTRIES_MAX)
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .filter(|name| name.as_encoded_bytes().starts_with(aside.as_bytes()))
        .map(|name| shared.join(name))
        .filter(|dir| is_own(dir, uid))
        .collect();
    // A stable order, so that later commands choose the same directory.
    others.sort();
    bases.extend(others);
    if bases.is_empty() {
        let unguessable = RandomState::new().hash_one(std::process::id());
        bases.push(shared.join(format!("{aside}{unguessable:016x}")));
    }
    if is_own(&login, uid) && !bases.contains(&login) {
        bases.push(login);
    }
    bases
}

/// Whether `dir` is a directory of this user, or can be created.
fn can_be_had(dir: &Path, uid: u32) -> bool {
    use rustix::fs::{Access, access};
    match fs::symlink_metadata(dir) {
        Ok(_) => is_own(dir, uid),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => dir
            .parent()
            .is_some_and(|parent| access(parent, Access::WRITE_OK | Access::EXEC_OK).is_ok()),
        Err(_) => false,
    }
}

/// Whether `dir` is a directory (not a link) that this user owns. Its mode is not checked here: if it is
/// open to others, a later check tells the user to change it.
fn is_own(dir: &Path, uid: u32) -> bool {
    fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scene(tempfile::TempDir);

    impl Scene {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            for name in ["run", "tmp", "xdg"] {
                fs::create_dir(dir.path().join(name)).unwrap();
            }
            Self(dir)
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        /// The bases for an ordinary user who owns the directories.
        fn bases(&self, own: Option<&str>) -> Vec<PathBuf> {
            let (system, shared) = (self.path("run"), self.path("tmp"));
            let own = own.map(|own| self.path(own));
            let places = Places {
                system: &system,
                own: own.as_deref(),
                shared: &shared,
            };
            bases(uid(), places)
        }
    }

    fn uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn a_squatted_name_is_skipped_and_its_replacement_is_found_again() {
        let scene = Scene::new();
        let usual = scene.path("tmp").join(format!("copperfs-{}", uid()));
        // A link or a file in its place is treated like another user's directory.
        std::os::unix::fs::symlink(scene.path("xdg"), &usual).unwrap();
        fs::remove_dir(scene.path("run")).unwrap();
        let first = scene.bases(None);
        assert_eq!(first.len(), 1);
        let name = first[0].file_name().unwrap().to_str().unwrap().to_owned();
        assert!(name.starts_with(&format!("copperfs-{}.", uid())), "{name}");
        assert_ne!(first, scene.bases(None), "no name can be guessed");
        fs::create_dir(&first[0]).unwrap();
        assert_eq!(first, scene.bases(None));
    }

    #[test]
    fn directories_of_another_environment_are_included() {
        let scene = Scene::new();
        let usual = scene.path("tmp").join(format!("copperfs-{}", uid()));
        fs::remove_dir(scene.path("run")).unwrap();
        assert_eq!(scene.bases(None), std::slice::from_ref(&usual));
        if uid() != 0 {
            assert_eq!(
                scene.bases(Some("xdg")),
                [scene.path("xdg/copperfs"), usual.clone()]
            );
        }
        assert_eq!(
            scene.bases(Some("gone")),
            [usual],
            "a session that has ended"
        );
    }
}

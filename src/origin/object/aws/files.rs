//! Reads the files that Amazon's tools share: `~/.aws/config`, `~/.aws/credentials` and `~/.aws/sso/cache`.
//!
//! A daemon may run as root with the `HOME` of another user (`sudo -E`). That user's files could name any command, so
//! nothing below such a home is read. Files that variables name are read, but no command of another user's file is run.

use super::ini::{self, Section};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Larger files are not read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The files, as they were when they were read.
#[derive(Default)]
pub(super) struct Files {
    config: SharedFile,
    credentials: SharedFile,
    /// `~/.aws/sso/cache`.
    pub(super) sso_cache: Option<PathBuf>,
    /// Why the home directory is not used.
    without_home: Option<String>,
}

/// One of the two files. Empty if there is no such file.
#[derive(Default)]
struct SharedFile {
    /// `None`: it would lie in a home directory that is not used.
    path: Option<PathBuf>,
    sections: BTreeMap<String, Section>,
    exists: bool,
    /// Whether this process may run its commands.
    is_trusted: bool,
    /// Why it cannot be read.
    unreadable: Option<String>,
}

/// The properties of one profile in both files.
pub(super) struct Profile<'a> {
    pub(super) name: String,
    config: Option<&'a Section>,
    credentials: Option<&'a Section>,
    runs_commands: bool,
}

impl Files {
    /// Reads them, as `variables` and the user `uid` of this process choose them.
    pub(super) fn read(variables: &BTreeMap<String, String>, uid: u32) -> Self {
        let set = |name: &str| variables.get(name).filter(|value| !value.is_empty());
        let mut without_home = None;
        let home = match set("HOME").map(PathBuf::from) {
            Some(home) if is_of(&home, uid) => Some(home),
            Some(home) => {
                without_home = Some(format!("HOME={} is another user's", home.display()));
                None
            }
            None => {
                without_home = Some("HOME is not set".to_owned());
                None
            }
        };
        let file = |variable: &str, usual: &str| {
            let path = match (set(variable), &home) {
                (Some(path), Some(home)) => match path.strip_prefix("~/") {
                    Some(below) => Some(home.join(below)),
                    None => Some(PathBuf::from(path)),
                },
                (Some(path), None) => Some(PathBuf::from(path)),
                (None, home) => home.as_ref().map(|home| home.join(usual)),
            };
            SharedFile::read(path, uid)
        };
        Self {
            config: file("AWS_CONFIG_FILE", ".aws/config"),
            credentials: file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"),
            sso_cache: home.map(|home| home.join(".aws/sso/cache")),
            without_home,
        }
    }

    /// The profile `name`, if one of the files has it.
    pub(super) fn profile(&self, name: &str) -> Option<Profile<'_>> {
        let sections = &self.config.sections;
        let config = sections.get(&format!("profile {name}"));
        // Only this one may have a header without the word.
        let config = config.or_else(|| sections.get(name).filter(|_| name == "default"));
        let credentials = self.credentials.sections.get(name);
        let of_config = |key| config.is_some_and(|section| section.contains_key(key));
        let runs_commands = match of_config("credential_process") {
            true => self.config.is_trusted,
            false => self.credentials.is_trusted,
        };
        (config.is_some() || credentials.is_some()).then(|| Profile {
            name: name.to_owned(),
            config,
            credentials,
            runs_commands,
        })
    }

    /// The section `[kind name]` of the configuration file.
    pub(super) fn section(&self, kind: &str, name: &str) -> Option<&Section> {
        self.config.sections.get(&format!("{kind} {name}"))
    }

    /// The address of `service` (`s3`, `sts`) that the profile `name` sets.
    pub(super) fn endpoint(&self, name: &str, service: &str) -> Option<&str> {
        let profile = self.profile(name)?;
        let services = profile.in_config("services");
        let section = services.and_then(|services| self.section("services", services));
        let of_service = section.and_then(|of| value(of, &format!("{service}.endpoint_url")));
        of_service.or_else(|| value(profile.config?, "endpoint_url"))
    }

    /// The names of all profiles.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let config = self.config.sections.keys();
        let config = config.filter_map(|header| match header.as_str() {
            "default" => Some("default"),
            header => header.strip_prefix("profile "),
        });
        config.chain(self.credentials.sections.keys().map(String::as_str))
    }

    /// Where the profile `name` was looked for, and why it gives no credentials: for errors.
    pub(super) fn places(&self, name: &str) -> String {
        let (of_config, of_credentials) = match self.profile(name) {
            Some(profile) => (profile.config.is_some(), profile.credentials.is_some()),
            None => (false, false),
        };
        let files = [
            (&self.credentials, of_credentials),
            (&self.config, of_config),
        ];
        let places = files
            .iter()
            .filter_map(|(file, has)| file.place(name, *has));
        let mut places: Vec<String> = places.collect();
        if places.len() < files.len()
            && let Some(why) = &self.without_home
        {
            places.push(format!(
                "{why}, so ~/.aws/credentials and ~/.aws/config are not read"
            ));
        }
        places.join(", ")
    }
}

impl SharedFile {
    fn read(path: Option<PathBuf>, uid: u32) -> Self {
        let Some(file) = &path else {
            return Self::default();
        };
        let text = fs::metadata(file).and_then(|metadata| match metadata.len() {
            0..=FILE_BYTES_MAX => fs::read(file),
            _ => Err(ErrorKind::FileTooLarge.into()),
        });
        let (text, unreadable) = match text {
            Ok(text) => (Some(text), None),
            Err(error) if error.kind() == ErrorKind::NotFound => (None, None),
            Err(error) => (None, Some(error.to_string())),
        };
        let bytes = text.as_deref().unwrap_or_default();
        Self {
            sections: ini::parse(&String::from_utf8_lossy(bytes)),
            exists: text.is_some(),
            is_trusted: is_of(file, uid),
            unreadable,
            path,
        }
    }

    fn place(&self, name: &str, has_profile: bool) -> Option<String> {
        let path = self.path.as_ref()?.display();
        Some(match &self.unreadable {
            Some(why) => format!("{path} cannot be read ({why})"),
            None if has_profile => format!("the profile {name} of {path} has no credentials"),
            None if self.exists => format!("{path} has no profile {name}"),
            None => format!("{path} does not exist"),
        })
    }
}

impl Profile<'_> {
    /// A property. The file of credentials overrides the configuration file.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.in_credentials(key).or_else(|| self.in_config(key))
    }

    pub(super) fn in_credentials(&self, key: &str) -> Option<&str> {
        value(self.credentials?, key)
    }

    pub(super) fn in_config(&self, key: &str) -> Option<&str> {
        value(self.config?, key)
    }

    /// Whether its commands may be run: they are root's or this user's own.
    pub(super) fn runs_commands(&self) -> bool {
        self.runs_commands
    }
}

/// The value of `key`, if it is not empty.
pub(super) fn value<'a>(section: &'a Section, key: &str) -> Option<&'a str> {
    let value = section.get(key).map(String::as_str);
    value.filter(|value| !value.is_empty())
}

/// Whether `path` belongs to the user `uid` or to root. A path that does not exist counts as the user's own.
fn is_of(path: &Path, uid: u32) -> bool {
    fs::metadata(path).map_or(true, |metadata| [uid, 0].contains(&metadata.uid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(files: &[(&str, &str)]) -> (tempfile::TempDir, BTreeMap<String, String>) {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join(".aws")).unwrap();
        for (name, text) in files {
            fs::write(home.path().join(".aws").join(name), text).unwrap();
        }
        let variables = [("HOME".to_owned(), home.path().display().to_string())];
        (home, variables.into())
    }

    fn own() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn both_files_make_a_profile() {
        let (_home, mut variables) = home(&[
            (
                "config",
                "[default]\nregion=a\n[profile lab]\nregion=b\nk=1\n[lab2]\n",
            ),
            ("credentials", "[lab]\nk=2\n[only]\n"),
        ]);
        let files = Files::read(&variables, own());
        let lab = files.profile("lab").unwrap();
        assert_eq!((lab.get("region"), lab.get("k")), (Some("b"), Some("2")));
        assert_eq!(files.profile("default").unwrap().get("region"), Some("a"));
        assert!(files.profile("only").is_some() && files.profile("lab2").is_none());
        variables.insert("AWS_SHARED_CREDENTIALS_FILE".into(), "/no/such".into());
        let places = Files::read(&variables, own()).places("none");
        assert!(places.starts_with("/no/such does not exist, "), "{places}");
    }

    /// As for `sudo -E`: another user's home could have root run any command.
    #[test]
    fn another_users_home_is_not_followed() {
        let (home, mut variables) = home(&[("config", "[default]\ncredential_process=x\n")]);
        if own() != 0 {
            return;
        }
        let path = home.path().join(".aws/config");
        for path in [home.path(), &path] {
            std::os::unix::fs::chown(path, Some(65_534), None).unwrap();
        }
        let files = Files::read(&variables, 0);
        assert!(files.profile("default").is_none() && files.sso_cache.is_none());
        assert!(files.places("default").contains("is another user's"));
        variables.insert("AWS_CONFIG_FILE".into(), path.display().to_string());
        let files = Files::read(&variables, 0);
        assert!(!files.profile("default").unwrap().runs_commands());
        let files = Files::read(&variables, 65_534);
        assert!(files.profile("default").unwrap().runs_commands());
    }
}

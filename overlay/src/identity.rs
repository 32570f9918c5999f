//! A job's secret, and the certificates derived from it.
//!
//! A job has one secret of 32 random bytes, in a file that the launcher gives to every node. From it every node
//! derives the same certificate authority, and issues itself a leaf certificate at start. So mutual TLS needs no
//! certificate server, and no file but the secret. Only holders of the secret belong to the job. Nothing here is
//! ever logged.

mod cipher;
mod tls;

pub use cipher::Cipher;
pub use tls::{Identity, IdentityError};

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The secret of one job.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; Self::BYTES]);

/// Why a secret could not be made, written or read.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file could not be opened, read or written.
    #[error("cannot {action} the job secret {}: {source}", path.display())]
    Io {
        /// The attempt: read, create.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Other users may read or write the file.
    #[error(
        "the job secret {path} is open to other users (mode {mode:04o}): whoever reads it can read \
         everything that this job serves. Run `chmod 600 {path}`, or make a new secret if somebody \
         may have seen it",
        path = path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file belongs to another user.
    #[error(
        "the job secret {} belongs to user {owner}, not to the user of this process ({user}): start \
         copperfs as the user who launched the job",
        path.display()
    )]
    NotOwned {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// This process.
        user: u32,
    },
    /// The file holds something else.
    #[error(
        "{} is not a job secret: it holds {found}, where 64 hexadecimal digits and a newline are \
         due. Give the file that `copperfs launch` made",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// A description of its content, never the content itself.
        found: &'static str,
    },
    /// The system returned no random bytes.
    #[error("the system has no random bytes for a job secret: {0}")]
    Random(#[from] getrandom::Error),
}

impl Secret {
    const BYTES: usize = 32;

    /// A new secret from the system's random numbers.
    ///
    /// # Errors
    /// `Random`.
    pub fn generate() -> Result<Self, SecretError> {
        let mut bytes = [0; Self::BYTES];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// Makes a new secret and writes it to `path`, which must not exist, readable by its owner only.
    ///
    /// # Errors
    /// `Random`, `Io`.
    pub fn write_new(path: &Path) -> Result<Self, SecretError> {
        let secret = Self::generate()?;
        secret.write_for(path, None)?;
        Ok(secret)
    }

    /// Derives the secret of `job` of `user` from the site's key. Every node with the key derives the same secret.
    /// Other jobs, users or keys have other secrets, and no secret reveals anything about the key.
    #[must_use]
    pub fn of_job(site_key: &[u8], job: &str, user: u32) -> Self {
        const CONTEXT: &str = "copperfs 2026-11-21 secret of a job from the key of a site";
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        // Each part follows its length, so that different inputs have different encodings.
        for part in [site_key, &user.to_le_bytes(), job.as_bytes()] {
            let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
            hasher.update(&length.to_le_bytes()).update(part);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// Writes the secret to `path`, which must not exist, readable by its owner only. The file is given to the user
    /// and the group `owner` before it has any content.
    ///
    /// # Errors
    /// `Io`; the file is removed then.
    pub fn write_for(
        &self,
        path: &Path,
        owner: Option<(u32, Option<u32>)>,
    ) -> Result<(), SecretError> {
        let failed = |source| SecretError::Io {
            action: "create",
            path: path.into(),
            source,
        };
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        let mut write = || {
            if let Some((user, group)) = owner {
                std::os::unix::fs::fchown(&file, Some(user), group)?;
            }
            file.write_all(self.to_hex().as_bytes())?;
            file.sync_all()
        };
        write().map_err(|error| {
            // The first error is the one to report.
            let _removed = std::fs::remove_file(path);
            failed(error)
        })
    }

    /// Reads the secret at `path`.
    ///
    /// # Errors
    /// `Io`; `Exposed` and `NotOwned` if other users could have read or written it; `Malformed`.
    pub fn read_file(path: &Path) -> Result<Self, SecretError> {
        let failed = |source| SecretError::Io {
            action: "read",
            path: path.into(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let malformed = |found| SecretError::Malformed {
            path: path.into(),
            found,
        };
        if !metadata.is_file() {
            return Err(malformed("no regular file"));
        }
        if metadata.mode() & 0o077 != 0 {
            let (path, mode) = (path.into(), metadata.mode() & 0o7777);
            return Err(SecretError::Exposed { path, mode });
        }
        let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
        if user != 0 && owner != user {
            return Err(SecretError::NotOwned {
                path: path.into(),
                owner,
                user,
            });
        }
        // Longer than any secret, so that a longer file is recognised.
        let mut text = Vec::with_capacity(80);
        file.take(80).read_to_end(&mut text).map_err(failed)?;
        Self::from_hex(&text).map_err(malformed)
    }

    fn to_hex(&self) -> String {
        format!("{}\n", blake3::Hash::from_bytes(self.0).to_hex())
    }

    /// Parses the content of a file. The error describes another content.
    fn from_hex(text: &[u8]) -> Result<Self, &'static str> {
        let digits = text.strip_suffix(b"\n").unwrap_or(text);
        match digits.len() {
            0 => return Err("nothing"),
            len if len < 2 * Self::BYTES => return Err("fewer digits"),
            len if len > 2 * Self::BYTES => return Err("more than that"),
            _ => {}
        }
        // A secret has as many bytes as a hash of BLAKE3.
        let bytes = blake3::Hash::from_hex(digits).map_err(|_other| "other characters")?;
        Ok(Self(*bytes.as_bytes()))
    }

    /// Takes the secret out, and leaves zeros.
    pub(crate) fn take(&mut self) -> Self {
        Self(std::mem::take(&mut self.0))
    }

    /// Derives a key for one purpose: BLAKE3's key derivation with `context` over the secret and `salt`.
    pub(crate) fn derive(&self, context: &str, salt: &[u8]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key(context);
        hasher.update(&self.0).update(salt);
        *hasher.finalize().as_bytes()
    }
}

/// Reveals nothing about the secret.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// The beginning of the secret of job 77 of user 1000 from a key of 32 sevens.
    const KNOWN: &str = "2fe5813e7c1d3d6c";

    #[test]
    fn a_written_secret_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let secret = Secret::write_new(&path).unwrap();
        assert_eq!(Secret::read_file(&path).unwrap(), secret);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 65);
        assert!(matches!(
            Secret::write_new(&path),
            Err(SecretError::Io {
                action: "create",
                ..
            })
        ));
        assert_ne!(Secret::generate().unwrap(), secret);
    }

    #[test]
    fn the_secret_of_a_job_follows_from_the_key() {
        let key = [7; 32];
        let secret = Secret::of_job(&key, "77", 1000);
        assert_eq!(secret, Secret::of_job(&key, "77", 1000));
        let others = [
            Secret::of_job(&key, "78", 1000),
            Secret::of_job(&key, "77", 1001),
            Secret::of_job(&[8; 32], "77", 1000),
            Secret::of_job(&[7; 33], "7", 1000),
        ];
        assert!(others.iter().all(|other| *other != secret));
        // Later versions must derive the same: nodes of one job may be updated one by one.
        assert!(secret.to_hex().starts_with(KNOWN), "{}", secret.to_hex());
    }

    #[test]
    fn a_secret_that_cannot_be_given_to_its_owner_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let secret = Secret::generate().unwrap();
        let own = (rustix::process::geteuid().as_raw(), None);
        secret.write_for(&path, Some(own)).unwrap();
        assert_eq!(Secret::read_file(&path).unwrap(), secret);
        std::fs::remove_file(&path).unwrap();
        if own.0 != 0 {
            assert!(secret.write_for(&path, Some((0, None))).is_err());
            assert!(!path.exists());
        }
    }

    #[test]
    fn a_secret_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        Secret::write_new(&path).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o601] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = Secret::read_file(&path).unwrap_err();
            assert!(matches!(error, SecretError::Exposed { .. }), "{error}");
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
    }

    #[test]
    fn other_contents_are_refused_without_being_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let good = Secret::generate().unwrap().to_hex();
        let cases = [
            String::new(),
            good[..63].into(),
            format!("{good}\n"),
            good.replace('\n', "0"),
            "zz".repeat(32),
        ];
        for text in cases {
            std::fs::write(&path, &text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            let error = Secret::read_file(&path).unwrap_err();
            assert!(matches!(error, SecretError::Malformed { .. }), "{error}");
            assert!(text.is_empty() || !error.to_string().contains(text.trim()));
        }
        assert!(matches!(
            Secret::read_file(&dir.path().join("absent")),
            Err(SecretError::Io { action: "read", .. })
        ));
        assert!(Secret::read_file(dir.path()).is_err());
    }

    #[test]
    fn debug_shows_nothing() {
        let secret = Secret([0xab; 32]);
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        let identity = Identity::new(&secret).unwrap();
        assert!(!format!("{identity:?}").to_lowercase().contains("ab, ab"));
        assert!(format!("{identity:?}").len() < 60);
    }
}

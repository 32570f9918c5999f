//! `copperfs secret`: makes the secret of a job whose nodes are not started by a launch.
//!
//! In a Slurm Prolog every node starts on its own, and no pipe reaches all of them. So the nodes derive the same
//! secret from data that they share: a key that only root can read, the job's id, and its user.

use crate::config::secret_file::check_secret_file;
use anyhow::{Context, ensure};
use copperfs_overlay::Secret;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The valid lengths of a site's key: at least that of a secret, and bounded to reject other files.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 32..=65_536;

/// What `copperfs secret` was told.
#[derive(Debug, clap::Args)]
pub struct SecretArgs {
    /// The file to make; it must not exist. Mode 0600
    file: PathBuf,
    /// Derive the secret from this key, which is the same on all nodes and readable by its owner only
    #[arg(long, value_name = "FILE", requires = "job")]
    site_key: Option<PathBuf>,
    /// The job it is for, which no two jobs of a user share while they run
    #[arg(long, value_name = "ID", requires = "site_key")]
    job: Option<String>,
    /// Give the file to this user and group, by number [default: the user of this command]
    #[arg(long, value_name = "UID[:GID]", value_parser = owner)]
    owner: Option<Owner>,
}

/// A user and a group, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner {
    user: u32,
    group: Option<u32>,
}

fn owner(text: &str) -> Result<Owner, String> {
    let number = |text: &str| {
        let number = text.parse().ok().filter(|id| *id != u32::MAX);
        number.ok_or_else(|| format!("{text:?} is no number of a user or group; write 1000:1000"))
    };
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let user = number(user)?;
    let group = group.map(number).transpose()?;
    Ok(Owner { user, group })
}

/// Makes the file.
///
/// # Errors
/// The key cannot be used, the file is there already or cannot be written or given away.
pub fn secret(args: &SecretArgs) -> anyhow::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let user = args.owner.map_or(own, |owner| owner.user);
    let secret = match (&args.site_key, &args.job) {
        (Some(key), Some(job)) => {
            ensure!(
                !job.is_empty(),
                "--job is empty; in a Prolog it is \"$SLURM_JOB_ID\""
            );
            Secret::of_job(&site_key(key)?, job, user)
        }
        _ => Secret::generate()?,
    };
    let owner = args.owner.map(|owner| (owner.user, owner.group));
    secret.write_for(&args.file, owner)?;
    Ok(())
}

fn site_key(path: &Path) -> anyhow::Result<Vec<u8>> {
    // The owner need not be root, as with munge's key. Any user that can write the key is trusted with it.
    let uid = std::fs::metadata(path).map_or(0, |meta| meta.uid());
    check_secret_file(path, uid)?;
    let mut key = Vec::new();
    let most = u64::try_from(*KEY_BYTES.end())?;
    std::fs::File::open(path)
        .and_then(|file| file.take(most + 1).read_to_end(&mut key))
        .with_context(|| format!("cannot read the site key {}", path.display()))?;
    ensure!(
        KEY_BYTES.contains(&key.len()),
        "the site key {0} has {1} bytes; it should be {2} random bytes or more: copperfs secret {0} \
         makes one, to be copied to all nodes",
        path.display(),
        key.len(),
        KEY_BYTES.start()
    );
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_numbers() {
        let both = Owner {
            user: 1000,
            group: Some(100),
        };
        assert_eq!(owner("1000:100"), Ok(both));
        assert_eq!(owner("0").unwrap().group, None);
        for wrong in ["me", "1:", ":1", "-1", "4294967295", ""] {
            assert!(owner(wrong).is_err(), "{wrong}");
        }
    }
}

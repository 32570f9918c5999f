//! The store on a disk: `DIR:SIZE`.

use super::layer::Layer;
use super::settings::DiskSettings;
use super::{ConfigError, NodeIdentity, ValueError};
use copperfs_policy::amounts::{Size, whole_percent};
use std::path::PathBuf;

/// A store smaller than this holds too little to be worth its files.
const DISK_BYTES_MIN: u64 = 16 << 20;

/// Stands for the node's rank in the directory's path.
const RANK: &str = "{rank}";

/// The settings of the store, if there is one.
pub(super) fn resolve(
    layer: &Layer,
    identity: &NodeIdentity,
) -> Result<Option<DiskSettings>, ConfigError> {
    let reserve_percent = layer.parsed("disk_reserve", |text| whole_percent(text, 0..=90))?;
    layer.optional("disk", |text| parse(text, identity, reserve_percent))
}

fn parse(
    text: &str,
    identity: &NodeIdentity,
    reserve_percent: u8,
) -> Result<DiskSettings, ValueError> {
    let forms = "write DIR:SIZE, as in /nvme/copperfs:500GiB or /nvme/copperfs:80%";
    let (directory, size) = text
        .rsplit_once(':')
        .ok_or_else(|| format!("{text:?} has no size; {forms}"))?;
    if !directory.starts_with('/') {
        return Err(format!("{directory:?} is not an absolute path; {forms}").into());
    }
    let size = size.parse()?;
    if matches!(size, Size::Bytes(bytes) if bytes < DISK_BYTES_MIN) {
        return Err(format!("{text:?} is too small: at least 16MiB are needed").into());
    }
    let rank = match identity {
        NodeIdentity::Member(rank) => rank.to_string(),
        NodeIdentity::Guest(_) => "guest".to_owned(),
    };
    Ok(DiskSettings {
        directory: PathBuf::from(directory.replace(RANK, &rank)),
        size,
        reserve_percent,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_a_directory_and_a_size() {
        let identity = NodeIdentity::Member(3);
        for (text, directory, size) in [
            ("/nvme/c:10GiB", "/nvme/c", Size::Bytes(10 << 30)),
            ("/nvme/{rank}:x:80%", "/nvme/3:x", Size::Percent(80.0)),
        ] {
            let settings = parse(text, &identity, 5).unwrap();
            assert_eq!(settings.directory, PathBuf::from(directory));
            assert_eq!(settings.size, size);
        }
        for wrong in ["/nvme", "nvme:1GiB", "/nvme:1MiB", "/nvme:", "/nvme:fast"] {
            assert!(parse(wrong, &identity, 5).is_err(), "{wrong}");
        }
    }
}

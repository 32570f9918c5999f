//! The store on a disk: `DIR:SIZE`.

use super::reader::Reader;
use super::settings::DiskSettings;
use super::{ConfigError, NodeIdentity};
use copperfs_policy::amounts::{Size, parse_size, whole_percent};
use std::path::PathBuf;

/// A store smaller than this holds too little to be worth its files.
const DISK_BYTES_MIN: u64 = 16 << 20;

/// What stands for the node's place in the host list.
const RANK: &str = "{rank}";

/// The settings of the store, if there is one.
pub(super) fn resolve(
    reader: Reader<'_>,
    identity: &NodeIdentity,
) -> Result<Option<DiskSettings>, ConfigError> {
    let reserve_percent = reader.parsed("disk_reserve", |text| whole_percent(text, 0..=90))?;
    let place = reader.optional("disk", |text| place(text, identity))?;
    Ok(place.map(|(directory, size)| DiskSettings {
        directory,
        size,
        reserve_percent,
    }))
}

fn place(text: &str, identity: &NodeIdentity) -> Result<(PathBuf, Size), String> {
    let forms = "write DIR:SIZE, as in /nvme/copperfs:500GiB or /nvme/copperfs:80%";
    let (directory, size) = text
        .rsplit_once(':')
        .ok_or_else(|| format!("{text:?} has no size; {forms}"))?;
    if !directory.starts_with('/') {
        return Err(format!("{directory:?} is not an absolute path; {forms}"));
    }
    let size = parse_size(size).map_err(|error| error.to_string())?;
    if matches!(size, Size::Bytes(bytes) if bytes < DISK_BYTES_MIN) {
        return Err(format!("{text:?} is too small: at least 16MiB are needed"));
    }
    let rank = match identity {
        NodeIdentity::Member(rank) => rank.to_string(),
        NodeIdentity::Guest(_) => "guest".to_owned(),
    };
    Ok((PathBuf::from(directory.replace(RANK, &rank)), size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_directory_and_a_size() {
        let identity = NodeIdentity::Member(3);
        assert_eq!(
            place("/nvme/c:10GiB", &identity),
            Ok(("/nvme/c".into(), Size::Bytes(10 << 30)))
        );
        assert_eq!(
            place("/nvme/{rank}:x:80%", &identity),
            Ok(("/nvme/3:x".into(), Size::Percent(80.0)))
        );
        for wrong in ["/nvme", "nvme:1GiB", "/nvme:1MiB", "/nvme:", "/nvme:fast"] {
            assert!(place(wrong, &identity).is_err(), "{wrong}");
        }
    }
}

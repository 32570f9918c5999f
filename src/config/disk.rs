//! The store on a disk: `DIR:SIZE`.

use super::resolve::Reader;
use super::settings::DiskSettings;
use super::units::{Size, parse_size};
use super::{ConfigError, Seat};
use std::path::PathBuf;

/// A store smaller than this holds too little to be worth its files.
const DISK_BYTES_MIN: u64 = 16 << 20;

/// What stands for the node's place in the host list.
const RANK: &str = "{rank}";

/// The settings of the store, if there is one.
pub(super) fn resolve(
    reader: Reader<'_>,
    seat: &Seat,
) -> Result<Option<DiskSettings>, ConfigError> {
    let reserve_percent = reader.parsed("disk_reserve", reserve)?;
    let place = reader.optional("disk", |text| place(text, seat))?;
    Ok(place.map(|(directory, size)| DiskSettings {
        directory,
        size,
        reserve_percent,
    }))
}

fn place(text: &str, seat: &Seat) -> Result<(PathBuf, Size), String> {
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
    let rank = match seat {
        Seat::Member(rank) => rank.to_string(),
        Seat::Guest(_) => "guest".to_owned(),
    };
    Ok((PathBuf::from(directory.replace(RANK, &rank)), size))
}

fn reserve(text: &str) -> Result<u8, String> {
    match parse_size(text).map_err(|error| error.to_string())? {
        Size::Percent(percent) if percent <= 90.0 => Ok(whole_percent(percent)),
        _ => Err(format!("{text:?} is no share up to 90%; write 5%, say")),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and 90, as checked by the caller"
)]
fn whole_percent(percent: f64) -> u8 {
    percent.ceil() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_directory_and_a_size() {
        let seat = Seat::Member(3);
        assert_eq!(
            place("/nvme/c:10GiB", &seat),
            Ok(("/nvme/c".into(), Size::Bytes(10 << 30)))
        );
        assert_eq!(
            place("/nvme/{rank}:x:80%", &seat),
            Ok(("/nvme/3:x".into(), Size::Percent(80.0)))
        );
        for wrong in ["/nvme", "nvme:1GiB", "/nvme:1MiB", "/nvme:", "/nvme:fast"] {
            assert!(place(wrong, &seat).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_reserve_is_a_share() {
        assert_eq!(reserve("5%"), Ok(5));
        assert!(reserve("5GiB").is_err() && reserve("95%").is_err());
    }
}

//! Numbers, versions and byte strings in an index.

use super::FormatError::{self, Damaged};
use copperfs_overlay::{Standing, Version};

/// Seven bits per byte, lowest first. The highest bit marks that more bytes follow.
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

pub(super) fn take(rest: &mut &[u8]) -> Result<u64, FormatError> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let [byte] = take_array(rest)?;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            break;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Damaged("a number"))
}

pub(super) fn take_u32(rest: &mut &[u8]) -> Result<u32, FormatError> {
    u32::try_from(take(rest)?).map_err(|_large| Damaged("a number"))
}

/// Zigzag encoding: small numbers of either sign are short.
pub(super) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, ((value << 1) ^ (value >> 63)).cast_unsigned());
}

pub(super) fn take_signed(rest: &mut &[u8]) -> Result<i64, FormatError> {
    let value = take(rest)?;
    Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
}

/// A flag of [`put_version`]: the version is valid in one launch only.
const ONE_LAUNCH: u8 = 1;
/// A flag of [`put_version`]: the change part follows.
const HAS_CHANGE: u8 = 2;

/// Encodes a settled version.
pub(super) fn put_version(out: &mut Vec<u8>, version: &Version) {
    let has_change = *version.change() != [0; 8];
    let is_of_launch = !version.outlives_launch();
    out.push(u8::from(is_of_launch) * ONE_LAUNCH + u8::from(has_change) * HAS_CHANGE);
    out.extend_from_slice(version.data());
    if has_change {
        out.extend_from_slice(version.change());
    }
}

pub(super) fn take_version(rest: &mut &[u8]) -> Result<Version, FormatError> {
    let [flags] = take_array(rest)?;
    if flags & !(ONE_LAUNCH | HAS_CHANGE) != 0 {
        return Err(Damaged("a version"));
    }
    let mut version = Version::from_data(take_array(rest)?);
    if flags & HAS_CHANGE != 0 {
        version = version.with_change(take_array(rest)?);
    }
    Ok(match flags & ONE_LAUNCH {
        0 => version,
        _ => version.standing_as(Standing::Launch),
    })
}

pub(super) fn take_array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], FormatError> {
    let (array, tail) = rest.split_first_chunk().ok_or(Damaged("it ends early"))?;
    *rest = tail;
    Ok(*array)
}

pub(super) fn take_bytes<'a>(rest: &mut &'a [u8], len: u64) -> Result<&'a [u8], FormatError> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let (bytes, tail) = rest.split_at_checked(len).ok_or(Damaged("it ends early"))?;
    *rest = tail;
    Ok(bytes)
}

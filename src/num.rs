//! Conversions between number types that cannot fail on the platforms copperfs runs on.

pub use copperfs_overlay::mix64;

const _: () = assert!(usize::BITS == 64, "copperfs needs a 64-bit platform");

/// A length or index as `usize`.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    reason = "usize has 64 bits, as asserted above"
)]
pub fn to_usize(value: u64) -> usize {
    value as usize
}

/// An amount as a floating-point number; exact below 2^53.
#[must_use]
#[expect(
    clippy::cast_precision_loss,
    reason = "bytes and rates above 2^53 need no last digit"
)]
pub fn as_f64(value: u64) -> f64 {
    value as f64
}

/// An amount without its fraction; 0 for negative numbers and NaN.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion saturates"
)]
pub fn whole(value: f64) -> u64 {
    value as u64
}

/// The number in the first eight bytes of a hash, little-endian; 0 if it has fewer.
#[must_use]
pub fn first_u64(hash: &[u8]) -> u64 {
    hash.first_chunk().copied().map_or(0, u64::from_le_bytes)
}

/// The sum of amounts, or the largest amount if that is less.
#[must_use]
pub fn saturating_sum(amounts: impl Iterator<Item = u64>) -> u64 {
    amounts.fold(0, u64::saturating_add)
}

//! Conversions between number types that cannot fail on the platforms copperfs runs on.

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

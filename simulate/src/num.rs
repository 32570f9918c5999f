//! Conversions between counts and floating-point numbers.

/// Returns an amount as a floating-point number, exact below 2^53.
#[expect(clippy::cast_precision_loss, reason = "no model knows 15 digits")]
pub(crate) fn as_f64(value: u64) -> f64 {
    value as f64
}

/// Returns a number that is not negative without its fraction.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion saturates"
)]
pub(crate) fn whole(value: f64) -> u64 {
    value as u64
}

/// Returns a count or an index as a floating-point number.
pub(crate) fn index_f64(count: usize) -> f64 {
    as_f64(count as u64)
}

/// Returns the index or the count below or at `value`.
pub(crate) fn index(value: f64) -> usize {
    usize::try_from(whole(value)).unwrap_or(usize::MAX)
}

/// Returns a whole per cent of an amount, rounded down.
pub(crate) fn percent_of(amount: u64, percent: u64) -> u64 {
    let part = u128::from(amount) * u128::from(percent) / 100;
    u64::try_from(part).unwrap_or(u64::MAX)
}

//! Sizes, rates, durations, switches and CPU lists in the form that users write and read.
//!
//! Pure: parses a text into a value, or into an error that shows the valid forms.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// A text is not a value of the expected kind. Its `Display` shows valid forms.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AmountError(String);

/// An amount of memory: absolute, or a share of the machine's memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// Per cent of the machine's or the cgroup's memory.
    Percent(f64),
}

/// A number of bytes. Its `Display` has a 1024-based unit and about three significant digits: `1.50 GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ByteSize(pub u64);

/// Whole bytes per second. Its `Display` is that of [`ByteSize`] with `/s` after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ByteRate(pub u64);

const SIZE_FORMS: &str = "Write a number and a unit: 10GiB (1024-based), 10GB (1000-based), \
                          10G (short for 10GiB), 512MiB, 64K, or plain bytes";
const MEMORY_FORMS: &str = "Write a number and a unit: 10GiB (1024-based), 10GB (1000-based), \
                            10G (short for 10GiB), 512MiB, or a share of the machine's memory: 5%";
const DURATION_FORMS: &str =
    "Write a number and a unit: 500ms, 30s, 5m, 1h, 7d; a plain number is seconds";
const RATE_FORMS: &str = "Write a number and a unit: 200MB/s (1000-based), 200MiB/s (1024-based), or \
                          bits: 1.6Gbps, 1.6Gbit/s";
const CPU_FORMS: &str = "Write numbers and ranges: 0,2-3,8";

/// Parses a number with a unit of size, without the `%` form.
impl FromStr for ByteSize {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        measured(text, "a size", SIZE_FORMS, |number, unit| match unit {
            "%" => Err("a share makes no sense here".into()),
            _ => scaled(number, unit).map(Self),
        })
    }
}

/// Parses a rate as [`parse_rate`] does, and rounds it. The result is at least one byte per second.
impl FromStr for ByteRate {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        let rate = parse_rate(text)?.round();
        if rate < 1.0 {
            let reason = "nothing comes through";
            return Err(malformed(text, "a rate", reason, RATE_FORMS));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and the cast saturates"
        )]
        Ok(Self(rate as u64))
    }
}

/// From a number of bytes, or a text with a unit.
impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        deserialize_amount(from, "\"120GB\", \"1TiB\"", |Self(bytes)| bytes).map(Self)
    }
}

/// From a number of bytes per second, or a text with a unit.
impl<'de> Deserialize<'de> for ByteRate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        deserialize_amount(from, "\"200MB/s\", \"1.6Gbit/s\"", |Self(rate)| rate).map(Self)
    }
}

fn deserialize_amount<'de, D: Deserializer<'de>, T: FromStr<Err = AmountError>>(
    from: D,
    examples: &str,
    amount: fn(T) -> u64,
) -> Result<u64, D::Error> {
    let wrong = |reason: String| {
        D::Error::custom(format_args!(
            "{reason}. Write an amount with its unit, such as {examples}; a JSON number is in bytes"
        ))
    };
    match Value::deserialize(from)? {
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(bytes), _) => Ok(bytes),
            // Programs write large numbers as 1.3e12.
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "the range is checked"
            )]
            (None, Some(bytes)) if (0.0..1.8e19).contains(&bytes) => Ok(bytes as u64),
            _ => Err(wrong(format!("{number} is negative, or too much"))),
        },
        // In a text, a number without a unit is more often a mistake than a number of bytes.
        Value::String(text) if text.ends_with(|last: char| last.is_ascii_digit()) => {
            Err(wrong(format!("{text:?} has no unit")))
        }
        Value::String(text) => text.parse().map(amount).map_err(D::Error::custom),
        other => Err(wrong(format!("{other} is no amount"))),
    }
}

/// `percent` of `bytes`, computed in integers: shares of petabytes keep their last digit.
#[must_use]
pub fn share(bytes: u64, percent: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to 100 per cent in millionths fits, and the parser has checked the range"
    )]
    let millionths = (percent * 10_000.0).round() as u64;
    let bytes = u128::from(bytes) * u128::from(millionths) / 1_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Parses a size, or a share above 0 % and up to 100 %.
impl FromStr for Size {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        measured(text, "a size", MEMORY_FORMS, |number, unit| {
            if unit != "%" {
                return scaled(number, unit).map(Self::Bytes);
            }
            let percent = parse_f64(number)?;
            if percent > 0.0 && percent <= 100.0 {
                Ok(Self::Percent(percent))
            } else {
                Err("a share lies above 0 % and at most at 100 %".into())
            }
        })
    }
}

/// A share in whole per cent: `5%`, or `5`.
///
/// # Errors
/// Any other text, or a share outside of `range`.
pub fn whole_percent(text: &str, range: RangeInclusive<u8>) -> Result<u8, AmountError> {
    let number = text.trim().trim_end_matches('%').trim_end();
    let percent = number.parse().ok().filter(|share| range.contains(share));
    percent.ok_or_else(|| {
        let (min, max) = (range.start(), range.end());
        let message = format!("{text:?} is no share from {min}% to {max}% in whole per cent");
        AmountError(message)
    })
}

/// Bytes per second: `200MB/s`, `1GiB/s`, or bits: `1.6Gbps`, `1.6Gbit/s` (1000-based).
///
/// `Gb/s` and `GBps`, which some write for bits and some for bytes, are refused.
///
/// # Errors
/// Not a number, an unknown unit, no unit of time, or a rate outside of `f64`.
pub fn parse_rate(text: &str) -> Result<f64, AmountError> {
    measured(text, "a rate", RATE_FORMS, |number, unit| {
        let number = parse_f64(&number.replace('_', ""))?;
        match unit {
            "" => return Err("it has no unit, and it does not say per second".into()),
            "/s" => return Err("it has no unit".into()),
            _ => {}
        }
        let lower = unit.to_ascii_lowercase();
        let bits = lower
            .strip_suffix("bps")
            .or_else(|| lower.strip_suffix("bit/s"));
        let (amount, bits_per_byte) = match (bits, lower.strip_suffix("/s")) {
            (Some(prefix), _) => (format!("{prefix}b"), 8.0),
            (None, Some(amount)) => (amount.to_owned(), 1.0),
            (None, None) => return Err("it does not say per second".into()),
        };
        let ambiguous = unit.ends_with("b/s") && unit.starts_with(|c: char| c.is_ascii_uppercase());
        // A capital B is a byte, but `bps` is bits per second in any other spelling.
        if ambiguous || unit.ends_with("Bps") {
            return Err(format!("{unit:?} can mean bits or bytes"));
        }
        let unit_bytes = unit_bytes(&amount).ok_or_else(|| unknown(unit))?;
        #[expect(clippy::cast_precision_loss, reason = "powers of ten and two")]
        let rate = number * unit_bytes as f64 / bits_per_byte;
        let finite = Some(rate).filter(|rate| rate.is_finite());
        finite.ok_or_else(|| "that is too much for a number".into())
    })
}

/// The longest length of time that a user may set: a century. Sums and multiples of such times do not overflow.
pub const DURATION_MAX: Duration = Duration::from_secs(100 * 365 * 86400);

/// A length of time.
///
/// # Errors
/// Not a number, an unknown unit, or longer than [`DURATION_MAX`].
pub fn parse_duration(text: &str) -> Result<Duration, AmountError> {
    measured(text, "a duration", DURATION_FORMS, |number, unit| {
        let number = parse_f64(number)?;
        let seconds = match unit.to_ascii_lowercase().as_str() {
            "ms" => 1e-3,
            "" | "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            _ => return Err(unknown(unit)),
        };
        bounded_duration(number * seconds)
    })
}

/// A length of time given as a number of seconds.
///
/// # Errors
/// The number is negative or not a number, or the time is longer than [`DURATION_MAX`].
pub fn duration_of_seconds(seconds: f64) -> Result<Duration, AmountError> {
    let malformed =
        |reason: String| AmountError(format!("{seconds} is not a duration in seconds: {reason}"));
    bounded_duration(seconds).map_err(malformed)
}

fn bounded_duration(seconds: f64) -> Result<Duration, String> {
    if seconds.is_nan() || seconds < 0.0 {
        return Err("that is less than zero, or not a number".into());
    }
    let duration = Duration::try_from_secs_f64(seconds).ok();
    let duration = duration.filter(|duration| *duration <= DURATION_MAX);
    duration.ok_or_else(|| "that is longer than a century".into())
}

/// A list of CPU numbers such as `0,2-3`, ascending and without repetition.
///
/// # Errors
/// Anything else, and numbers above 4095.
pub fn parse_cpus(text: &str) -> Result<Vec<usize>, AmountError> {
    let error = |reason: String| malformed(text, "a list of CPUs", &reason, CPU_FORMS);
    let mut cpus = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |digits: &str| {
            let number = digits.trim().parse::<usize>();
            number.map_err(|e| error(format!("{part:?}: {e}")))
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(error(format!("{part:?} runs backwards")));
        }
        if last > 4095 {
            return Err(error(format!("no machine has a CPU {last}")));
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

/// A switch.
///
/// # Errors
/// Any word but the usual ones.
pub fn parse_bool(text: &str) -> Result<bool, AmountError> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(malformed(
            text,
            "yes or no",
            "it is neither",
            "Write true or false",
        )),
    }
}

/// Splits `"10 GiB"` into `"10"` and `"GiB"`, and parses them. `parse` returns why they are not `expected`.
fn measured<T>(
    text: &str,
    expected: &str,
    forms: &str,
    parse: impl FnOnce(&str, &str) -> Result<T, String>,
) -> Result<T, AmountError> {
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_');
    let (number, unit) = trimmed.split_at(end.unwrap_or(trimmed.len()));
    let parsed = if number.starts_with(|c: char| c.is_ascii_digit()) {
        parse(number, unit.trim())
    } else {
        Err("no number in front".to_owned())
    };
    parsed.map_err(|reason| malformed(text, expected, &reason, forms))
}

fn unknown(unit: &str) -> String {
    format!("the unit {unit:?} is not known")
}

fn malformed(text: &str, expected: &str, reason: &str, forms: &str) -> AmountError {
    AmountError(format!("{text:?} is not {expected}: {reason}. {forms}"))
}

fn parse_f64(number: &str) -> Result<f64, String> {
    number.parse().map_err(|e| format!("{number:?}: {e}"))
}

/// The number of bytes in a unit of size.
fn unit_bytes(unit: &str) -> Option<u64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "p" | "pib" => 1 << 50,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "pb" => 1_000_000_000_000_000,
        _ => return None,
    })
}

fn scaled(number: &str, unit: &str) -> Result<u64, String> {
    let unit_bytes = unit_bytes(unit).ok_or_else(|| unknown(unit))?;
    let digits = number.replace('_', "");
    let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    let whole: u64 = whole.parse().map_err(|e| format!("{number:?}: {e}"))?;
    let bytes = whole
        .checked_mul(unit_bytes)
        .ok_or("that is more than 2^64 bytes")?;
    if fraction.is_empty() {
        return Ok(bytes);
    }
    // Nine digits resolve every byte of a unit up to a GiB, and cannot overflow.
    let digits = &fraction[..fraction.len().min(9)];
    let parts: u128 = digits.parse().map_err(|e| format!("{number:?}: {e}"))?;
    let scale = digits.bytes().fold(1, |scale, _| scale * 10);
    let part_bytes = u64::try_from(parts * u128::from(unit_bytes) / scale).unwrap_or(0);
    Ok(bytes.saturating_add(part_bytes))
}

impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/s", ByteSize(self.0)))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let power = (self.0.max(1).ilog2() / 10).min(5);
        let divisor = 1_u64 << (10 * power);
        let unit = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][power as usize];
        let whole = self.0 / divisor;
        let hundredths = (u128::from(self.0 % divisor) * 100) / u128::from(divisor);
        let text = match whole {
            _ if power == 0 || whole >= 100 => format!("{whole} {unit}"),
            10.. => format!("{whole}.{} {unit}", hundredths / 10),
            _ => format!("{whole}.{hundredths:02} {unit}"),
        };
        f.pad(&text)
    }
}

/// Shows an amount of bytes as people write it: a whole number of a unit, 1000-based (`20 MB`) or 1024-based
/// (`300 KiB`), whichever gives the smaller number. For a rate, append `/s`.
#[derive(Debug, Clone, Copy)]
pub struct Whole(pub u64);

impl fmt::Display for Whole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 10] = [
            "PiB", "PB", "TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "kB",
        ];
        let units = UNITS
            .iter()
            .filter_map(|unit| Some((unit_bytes(unit)?, unit)));
        let whole = units.filter(|(unit, _)| self.0 > 0 && self.0.is_multiple_of(*unit));
        let (unit, name) = whole.max_by_key(|(unit, _)| *unit).unwrap_or((1, &"B"));
        f.pad(&format!("{} {name}", self.0 / unit))
    }
}

/// Shows an amount of bytes with a 1000-based unit and three significant digits: `1.30 TB`. For a rate,
/// append `/s`.
#[derive(Debug, Clone, Copy)]
pub struct Decimal(pub f64);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut amount = self.0;
        let mut unit = "B";
        for next in ["kB", "MB", "GB", "TB", "PB"] {
            // A larger amount would be shown as 1000.
            if amount.abs() < 999.5 {
                break;
            }
            amount /= 1000.0;
            unit = next;
        }
        let digits = match amount.abs() {
            _ if unit == "B" || amount == 0.0 => 0,
            ..9.995 => 2,
            ..99.95 => 1,
            _ => 0,
        };
        f.pad(&format!("{amount:.digits$} {unit}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_parsed() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("10GiB", 10 << 30),
            ("10 GiB", 10 << 30),
            ("10G", 10 << 30),
            ("10GB", 10_000_000_000),
            ("1.5M", 3 << 19),
            ("64k", 65536),
            ("1_000", 1000),
            ("2TiB", 2 << 40),
            ("1.5PB", 1_500_000_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        assert_eq!("5%".parse(), Ok(Size::Percent(5.0)));
        assert_eq!("2.5 %".parse(), Ok(Size::Percent(2.5)));
    }

    #[test]
    fn an_error_shows_valid_forms() {
        let message = Size::from_str("10 bananas").unwrap_err().to_string();
        assert_eq!(
            message,
            "\"10 bananas\" is not a size: the unit \"bananas\" is not known. Write a number and \
             a unit: 10GiB (1024-based), 10GB (1000-based), 10G (short for 10GiB), 512MiB, or a \
             share of the machine's memory: 5%"
        );
        for wrong in [
            "",
            "GiB",
            "-1",
            "1.2.3G",
            "0%",
            "101%",
            "99999999999999999999",
            "20000000T",
        ] {
            assert!(Size::from_str(wrong).is_err(), "{wrong:?}");
        }
        assert!(ByteSize::from_str("5%").is_err());
    }

    #[test]
    fn durations_cpus_and_switches_are_parsed() {
        assert_eq!(parse_duration("30"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("1.5 h"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("1d"), Ok(Duration::from_secs(86400)));
        assert!(parse_duration("5 parsecs").is_err());
        assert!(parse_duration("99999d").is_err());
        assert_eq!(parse_duration("36500d"), Ok(DURATION_MAX));
        assert_eq!(duration_of_seconds(0.5), Ok(Duration::from_millis(500)));
        let century = DURATION_MAX.as_secs_f64();
        assert_eq!(duration_of_seconds(century), Ok(DURATION_MAX));
        for (seconds, reason) in [
            (century + 1.0, "longer than a century"),
            (1e300, "longer than a century"),
            (f64::INFINITY, "longer than a century"),
            (-1.0, "less than zero"),
            (f64::NAN, "not a number"),
        ] {
            let error = duration_of_seconds(seconds).unwrap_err().to_string();
            assert!(error.contains(reason), "{seconds}: {error}");
        }
        assert_eq!(parse_cpus("3,0-1,1"), Ok(vec![0, 1, 3]));
        assert!(parse_cpus("").is_err());
        assert!(parse_cpus("3-1").is_err());
        assert!(parse_cpus("0-99999999").is_err());
        assert_eq!(parse_bool("Yes"), Ok(true));
        assert!(parse_bool("maybe").is_err());
    }

    #[test]
    fn whole_rates_need_a_unit_per_second() {
        assert_eq!("200MB/s".parse(), Ok(ByteRate(200_000_000)));
        assert_eq!("1.6Gbit/s".parse(), Ok(ByteRate(200_000_000)));
        assert_eq!(" 1 GiB/s".parse(), Ok(ByteRate(1 << 30)));
        for (wrong, hint) in [
            ("200", "no unit"),
            ("200MB", "per second"),
            ("200/s", "no unit"),
            ("-1MB/s", "no number"),
            ("0MB/s", "nothing comes through"),
            ("5%/s", "is not known"),
            ("1bananas/s", "or bits: 1.6Gbps"),
        ] {
            let error = ByteRate::from_str(wrong).unwrap_err().to_string();
            assert!(error.contains(hint), "{wrong}: {error}");
        }
    }

    #[test]
    fn bytes_are_shown_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.50 KiB"),
            (10 << 20, "10.0 MiB"),
            (u64::MAX, "16383 PiB"),
        ] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>10}", ByteSize(1 << 30)), "  1.00 GiB");
        assert_eq!(ByteRate(1536).to_string(), "1.50 KiB/s");
    }

    #[test]
    fn rates_are_parsed() {
        for (text, wanted) in [
            ("200MB/s", 200e6),
            ("1.6Gbps", 200e6),
            ("1.6 Gbit/s", 200e6),
            ("32gbps", 4e9),
            ("1 GiB/s", 1_073_741_824.0),
            ("0B/s", 0.0),
            ("8bps", 1.0),
            ("1_000 kB/s", 1e6),
            ("114mb/s", 114e6),
        ] {
            assert_eq!(parse_rate(text), Ok(wanted), "{text}");
        }
        assert_eq!(
            parse_rate("200MB").unwrap_err().to_string(),
            "\"200MB\" is not a rate: it does not say per second. Write a number and a unit: 200MB/s \
             (1000-based), 200MiB/s (1024-based), or bits: 1.6Gbps, 1.6Gbit/s"
        );
        let both = parse_rate("1.6Gb/s").unwrap_err().to_string();
        assert!(both.contains("\"Gb/s\" can mean bits or bytes"), "{both}");
        let both = parse_rate("200MBps").unwrap_err().to_string();
        assert!(both.contains("\"MBps\" can mean bits or bytes"), "{both}");
        for wrong in [
            "",
            "fast",
            "-1MB/s",
            "5%/s",
            "1GB/h",
            "NaN",
            "inf B/s",
            "1.2.3MB/s",
            "1bananaps",
            "12/s",
        ] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn amounts_are_shown_with_decimal_units() {
        for (amount, text) in [
            (0.0, "0 B"),
            (999.0, "999 B"),
            (52_615_384.6, "52.6 MB"),
            (1.3e12, "1.30 TB"),
            (999_600.0, "1.00 MB"),
            (9.996e9, "10.0 GB"),
            (2e18, "2000 PB"),
        ] {
            assert_eq!(Decimal(amount).to_string(), text);
        }
    }

    #[test]
    fn a_share_is_in_whole_per_cent() {
        assert_eq!(whole_percent("0%", 0..=90), Ok(0));
        assert_eq!(whole_percent(" 35 %", 1..=99), Ok(35));
        for wrong in ["5GiB", "91%", "-1%", "2.5%", "%", "256%"] {
            let error = whole_percent(wrong, 0..=90).unwrap_err().to_string();
            assert!(error.contains("from 0% to 90%"), "{error}");
        }
    }

    #[test]
    fn amounts_as_people_write_them() {
        for (amount, text) in [
            (20_000_000, "20 MB"),
            (300 << 10, "300 KiB"),
            (512_000_000, "512 MB"),
            (1 << 30, "1 GiB"),
            (1_024_000, "1000 KiB"),
            (1_234_567, "1234567 B"),
            (0, "0 B"),
        ] {
            assert_eq!(Whole(amount).to_string(), text);
            assert_eq!(text.replace(' ', "").parse(), Ok(ByteSize(amount)));
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in ".{0,20}") {
            let _rate = parse_rate(&text);
            let _sizes = (Size::from_str(&text), ByteSize::from_str(&text), parse_duration(&text));
            let _others = (parse_cpus(&text), parse_bool(&text));
        }

        #[test]
        fn plain_bytes_come_back(bytes: u64) {
            prop_assert_eq!(bytes.to_string().parse(), Ok(ByteSize(bytes)));
        }
    }
}

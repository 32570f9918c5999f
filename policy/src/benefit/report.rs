//! What a job reports about its mini-batches, and which reports are refused. Pure.

use super::super::choice::Choice;
use super::super::times::Mode;

/// The shortest time of a mini-batch that is believed, in seconds: less than it takes to start a
/// computation on a GPU.
const BATCH_S_MIN: f64 = 1e-5;
/// The longest time that one report may cover, in seconds: a day.
const REPORT_S_MAX: f64 = 86_400.0;
/// The maximum length of a job's name in bytes, because names are kept.
const NAME_BYTES_MAX: usize = 256;

/// Some mini-batches of a job, all in one mode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report<'a> {
    /// The job's name.
    pub job: &'a str,
    /// How the look-ups of these mini-batches were answered.
    pub mode: Mode,
    /// What the cache of the job's dataset holds, by the current decision.
    pub choice: Choice,
    /// The number of ranks of the job, each of which reports its own mini-batches. 0 stands for 1.
    pub ranks: u32,
    /// The number of mini-batches.
    pub batches: u64,
    /// The time that they took together, in seconds.
    pub seconds: f64,
    /// Their look-ups that hit.
    pub hits: u64,
    /// Their look-ups that missed.
    pub misses: u64,
}

/// Why a report is refused. Nothing of it is recorded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ReportError {
    /// The name is empty or too long.
    #[error("the job's name has {0} bytes: give one of 1 to {NAME_BYTES_MAX} bytes")]
    Name(usize),
    /// No mini-batches.
    #[error("the report covers no mini-batch: report after one or more of them")]
    NoBatches,
    /// The time is zero, negative, or not a finite number.
    #[error(
        "{0} s is not the time of mini-batches: measure a positive time with a clock that never \
         goes back"
    )]
    NotATime(f64),
    /// The mini-batches are impossibly fast.
    #[error(
        "{batches} mini-batches in {seconds} s is impossibly fast: no mini-batch takes less than \
         {BATCH_S_MIN} s. Report seconds, and measure until the mini-batch has been used"
    )]
    TooFast {
        /// The number of mini-batches.
        batches: u64,
        /// The time that they took together, in seconds.
        seconds: f64,
    },
    /// The report covers too long a time.
    #[error(
        "{0} s is longer than a day, {REPORT_S_MAX} s: report more often, and leave pauses out"
    )]
    TooLong(f64),
    /// No further job is watched.
    #[error(
        "{0} jobs are watched already, and no more are: this job's reads are cached without a measurement"
    )]
    TooManyJobs(usize),
}

impl Report<'_> {
    /// Checks the report.
    ///
    /// # Errors
    /// Describes the first number that cannot be true.
    pub fn check(&self) -> Result<(), ReportError> {
        check_name(self.job)?;
        let (batches, seconds) = (self.batches, self.seconds);
        if batches == 0 {
            return Err(ReportError::NoBatches);
        }
        if !seconds.is_finite() || seconds <= 0.0 {
            return Err(ReportError::NotATime(seconds));
        }
        if seconds > REPORT_S_MAX {
            return Err(ReportError::TooLong(seconds));
        }
        #[expect(
            clippy::cast_precision_loss,
            reason = "only numbers that are far too large are inexact"
        )]
        let batch_s = seconds / batches as f64;
        if batch_s < BATCH_S_MIN {
            return Err(ReportError::TooFast { batches, seconds });
        }
        Ok(())
    }
}

/// Checks the name of a job.
pub(super) fn check_name(job: &str) -> Result<(), ReportError> {
    match job.len() {
        1..=NAME_BYTES_MAX => Ok(()),
        length => Err(ReportError::Name(length)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(batches: u64, seconds: f64) -> Report<'static> {
        Report {
            job: "run:a",
            mode: Mode::Cached,
            choice: Choice::Whole,
            ranks: 1,
            batches,
            seconds,
            hits: 0,
            misses: 0,
        }
    }

    #[test]
    fn sound_reports_are_accepted() {
        for (batches, seconds) in [(1, 1e-5), (20, 3.1), (1, 86_400.0), (1_000_000, 1_000.0)] {
            assert_eq!(report(batches, seconds).check(), Ok(()));
        }
    }

    #[test]
    fn nonsense_is_refused_with_its_reason() {
        for (batches, seconds, message) in [
            (0, 3.1, "the report covers no mini-batch"),
            (20, 0.0, "0 s is not the time"),
            (20, -0.0, "-0 s is not the time"),
            (20, -3.1, "-3.1 s is not the time"),
            (20, f64::NAN, "NaN s is not the time"),
            (20, f64::INFINITY, "inf s is not the time"),
            (
                20,
                1e-9,
                "20 mini-batches in 0.000000001 s is impossibly fast",
            ),
            (u64::MAX, 86_400.0, "18446744073709551615 mini-batches in"),
            (1, 86_401.0, "86401 s is longer than a day"),
        ] {
            let error = report(batches, seconds).check().unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
        let nameless = Report {
            job: "",
            ..report(1, 1.0)
        };
        assert_eq!(nameless.check(), Err(ReportError::Name(0)));
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        let long = Report {
            job: &long,
            ..report(1, 1.0)
        };
        assert_eq!(long.check(), Err(ReportError::Name(NAME_BYTES_MAX + 1)));
    }
}

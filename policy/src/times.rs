//! How a job's look-ups are answered, and its measured times per mini-batch (Quiver, section 5.3).
//! Pure.

use super::choice::Choice;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The largest benefit that counts. Times with a larger ratio are nonsense, or the job reads nothing
/// without a cache; either way one job must not outweigh all others.
pub const BENEFIT_MAX: f64 = 1000.0;
/// A job that is at most this many times as fast with a cache gains nothing from it: the difference
/// is within the noise of measurements.
const NOISE: f64 = 1.05;
/// The hit ratio from which a time with a cache tells anything. A job bound by storage is 1.25 times
/// as fast with this ratio. With fewer hits, as when a cache begins to fill, it may be as slow as
/// without a cache although it will gain.
const TELLING_HITS: f64 = 0.2;
/// The hit ratio from which a time is that with the whole dataset.
const WHOLE_HITS: f64 = 0.95;

/// How the look-ups of a job are answered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// From the cache.
    #[default]
    Cached,
    /// As misses, and nothing is kept for the job: it runs as fast without a cache.
    Uncached,
    /// As misses for a number of mini-batches, in which its time without a cache is measured.
    Probe,
}

impl Mode {
    /// All modes, the default first.
    pub const ALL: [Self; 3] = [Self::Cached, Self::Uncached, Self::Probe];

    /// Returns the name in requests and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Uncached => "uncached",
            Self::Probe => "probe",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// There is no mode of this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a mode. The modes: cached (the default), uncached, probe")]
pub struct UnknownMode {
    name: String,
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Self, UnknownMode> {
        let mut all = Self::ALL.into_iter();
        all.find(|mode| mode.name() == name)
            .ok_or_else(|| UnknownMode { name: name.into() })
    }
}

/// The measured times of a job, in seconds per mini-batch: without a cache, and with each option of
/// its dataset that it has had. Options that it does not have now are remembered: otherwise a job
/// would lose its cache to an estimate, be measured without it, and get it back.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    /// The time in which all look-ups miss (`t_m`).
    pub uncached_s: f64,
    /// The time with the whole dataset in the cache (`t_h`).
    pub whole_s: Option<f64>,
    /// The time with two chunks in the cache.
    pub chunks_s: Option<f64>,
    /// The time with a part in the cache, as while a cache fills.
    pub part: Option<Part>,
}

/// A time with a part of the dataset in the cache.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// Seconds per mini-batch.
    pub cached_s: f64,
    /// The fraction of look-ups that hit, 0 to 1.
    pub hit_ratio: f64,
}

impl Times {
    /// Records a time with a cache. Returns false if nothing is learned from it, because few look-ups hit.
    pub(super) fn record(&mut self, choice: Choice, cached: Part) -> bool {
        let Part {
            cached_s,
            hit_ratio,
        } = cached;
        match choice {
            _ if hit_ratio < TELLING_HITS => return false,
            Choice::Whole if hit_ratio >= WHOLE_HITS => self.whole_s = Some(cached_s),
            Choice::Chunks => self.chunks_s = Some(cached_s),
            Choice::Whole | Choice::Uniform | Choice::None => self.part = Some(cached),
        }
        true
    }

    /// Returns whether all times are positive and finite, and the hit ratio is one.
    #[must_use]
    pub fn are_sound(&self) -> bool {
        let sound = |time: f64| time.is_finite() && time > 0.0;
        sound(self.uncached_s)
            && self.cached().all(sound)
            && self
                .part
                .is_none_or(|part| (0.0..=1.0).contains(&part.hit_ratio))
    }

    /// Returns the benefit of a time with a cache, `b = t_m / t_h`: from 1 (a cache slows no job down,
    /// so less is noise) to [`BENEFIT_MAX`].
    #[must_use]
    pub fn benefit(&self, cached_s: f64) -> f64 {
        (self.uncached_s / cached_s).clamp(1.0, BENEFIT_MAX)
    }

    /// Returns whether the job has been within 5 % of its time without a cache whenever its look-ups
    /// hit. It is not bound by storage, and caching is switched off for it. `false` if it has not been
    /// measured with a cache.
    #[must_use]
    pub fn show_no_gain(&self) -> bool {
        self.cached().next().is_some()
            && self
                .cached()
                .all(|cached_s| self.benefit(cached_s) <= NOISE)
    }

    /// Returns all times with a cache.
    pub(super) fn cached(&self) -> impl Iterator<Item = f64> {
        let part = self.part.map(|part| part.cached_s);
        [self.whole_s, self.chunks_s, part].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(uncached_s: f64, whole_s: f64) -> Times {
        Times {
            uncached_s,
            whole_s: Some(whole_s),
            ..Times::default()
        }
    }

    #[test]
    fn the_benefit_is_the_ratio_of_the_times() {
        assert_eq!(times(0.75, 1.0).benefit(0.25), 3.0);
        assert_eq!(times(0.9, 1.0).benefit(1.0), 1.0, "noise");
        assert_eq!(times(1e9, 1.0).benefit(1e-3), BENEFIT_MAX);
    }

    #[test]
    fn a_job_gains_nothing_within_five_per_cent() {
        assert!(times(1.04, 1.0).show_no_gain());
        assert!(!times(1.06, 1.0).show_no_gain());
        assert!(times(0.5, 1.0).show_no_gain());
        // One option without a gain is not enough.
        let chunks = Times {
            chunks_s: Some(1.5),
            ..times(1.5, 1.0)
        };
        assert!(!chunks.show_no_gain());
        let unknown = Times {
            whole_s: None,
            ..times(1.0, 1.0)
        };
        assert!(!unknown.show_no_gain());
    }

    #[test]
    fn a_time_counts_for_the_option_that_was_running() {
        let recorded = |choice, hit_ratio| {
            let mut found = Times {
                uncached_s: 1.0,
                ..Times::default()
            };
            let cached_s = 0.5;
            let cached = Part {
                cached_s,
                hit_ratio,
            };
            let learned = found.record(choice, cached);
            assert_eq!(learned, found.cached().next().is_some());
            (found.whole_s, found.chunks_s, found.part.is_some())
        };
        assert_eq!(recorded(Choice::Whole, 1.0), (Some(0.5), None, false));
        assert_eq!(recorded(Choice::Chunks, 0.75), (None, Some(0.5), false));
        assert_eq!(recorded(Choice::Uniform, 0.4), (None, None, true));
        // While the whole dataset is being cached, it is a part.
        assert_eq!(recorded(Choice::Whole, 0.6), (None, None, true));
        // A job that storage holds up is as slow as without a cache until its look-ups hit.
        for choice in [Choice::Whole, Choice::Chunks, Choice::Uniform, Choice::None] {
            assert_eq!(recorded(choice, 0.1), (None, None, false));
        }
    }

    #[test]
    fn times_that_are_not_sound() {
        assert!(times(1.0, 1.0).are_sound());
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(!times(wrong, 1.0).are_sound());
            assert!(!times(1.0, wrong).are_sound());
        }
        for wrong in [-0.1, 1.1, f64::NAN] {
            let part = Part {
                cached_s: 1.0,
                hit_ratio: wrong,
            };
            let part = Times {
                part: Some(part),
                ..times(1.0, 1.0)
            };
            assert!(!part.are_sound());
        }
    }

    #[test]
    fn names_of_modes() {
        for mode in Mode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
            assert_eq!(serde_json::json!(mode), mode.name());
        }
        let error = "off".parse::<Mode>().unwrap_err().to_string();
        assert!(error.starts_with("\"off\" is not a mode. The modes: "));
        for mode in Mode::ALL {
            assert!(error.contains(mode.name()), "{error}");
        }
    }
}

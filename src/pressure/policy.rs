//! Decides how much memory the caches may have. Pure: readings and the time are arguments.
//!
//! The kernel kills within milliseconds once a limit is reached and nothing can be reclaimed. So caches are given back
//! while there is a *margin* left, a tenth of the limit, and at least as much as brings the margin back. A look is due
//! before the margin can be used up ([`Policy::look_after`]). When there has been room for a while, the bound grows in small
//! steps, so that it settles where it fits.

use crate::cache::Fill;
use std::time::{Duration, Instant};

/// The margin is one part in this many of the limit …
const MARGIN_SHARE: u64 = 10;
/// … but at most what a busy machine can take between two looks …
const MARGIN_BYTES_MAX: u64 = 2 << 30;
/// … and at least what a few reads in progress take.
const MARGIN_BYTES_MIN: u64 = 16 << 20;

/// Caches keep one part in this many of the configured memory, so that a file that many read is still fetched once …
const FLOOR_SHARE: u64 = 8;
/// … or of the limit, if that is less …
const FLOOR_LIMIT_SHARE: u64 = 4;
/// … and at least as much as a node needs to work.
const FLOOR_BYTES_MIN: u64 = crate::config::resolve::MEMORY_BYTES_MIN;

/// How long there must be room before the bound grows.
const CALM: Duration = Duration::from_secs(10);
/// The time between two steps of growth …
const STEP_INTERVAL: Duration = Duration::from_secs(2);
/// … each of which is one part in this many of the configured memory. So it takes about a minute to have all of it back.
const STEP_SHARE: u64 = 32;

/// How fast memory is expected to be used up, in bytes per second. Faster use for a short time is what the margin is for.
const USE_RATE: u64 = 1 << 30;
/// The time between two looks, at least and at most.
const LOOK_MIN: Duration = Duration::from_millis(50);
const LOOK_MAX: Duration = Duration::from_secs(10);

/// A limit on memory, and what is used of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// In bytes.
    pub limit: u64,
    /// The bytes that the kernel could not reclaim.
    pub used: u64,
    /// Whether it is the whole machine, and not a cgroup.
    pub is_machine: bool,
}

impl Usage {
    /// The bytes that are left.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// The bytes that should be left.
    #[must_use]
    pub fn margin(&self) -> u64 {
        let margin = (self.limit / MARGIN_SHARE).clamp(MARGIN_BYTES_MIN, MARGIN_BYTES_MAX);
        margin.min(self.limit / 4)
    }
}

/// What is seen at one look.
#[derive(Clone, Debug)]
pub struct Look {
    /// The tightest limit, if there is any.
    pub usage: Option<Usage>,
    /// Processes that the kernel has killed in this cgroup so far.
    pub kills: u64,
    /// Whether the kernel says that tasks wait for memory.
    pub is_stalled: bool,
    /// The configured memory, in bytes.
    pub memory: u64,
    /// The caches, at the present bound.
    pub parts: Vec<Fill>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Policy {
    /// The bytes for all caches; `None`: those that are configured.
    bound: Option<u64>,
    kills: Option<u64>,
    /// Since when there has been room, or when the bound has grown since.
    calm: Option<Instant>,
}

impl Policy {
    /// The bytes that all caches together may have from now on; `None`: as many as are configured.
    pub fn decide(&mut self, now: Instant, look: &Look) -> Option<u64> {
        let killed = self.kills.replace(look.kills);
        let killed = killed.is_some_and(|before| look.kills > before);
        let Some(usage) = look.usage else {
            *self = Self {
                kills: self.kills,
                ..Self::default()
            };
            return None;
        };
        let (room, margin) = (usage.room(), usage.margin());
        // The configured memory may have changed.
        self.bound = self.bound.filter(|bound| *bound < look.memory);
        let enough = margin * 2;
        if killed || room < margin / 4 {
            self.calm = None;
            self.shrink(look, u64::MAX);
        } else if room < margin || (look.is_stalled && room < enough) {
            self.calm = None;
            self.shrink(look, margin + margin / 2 - room.min(margin));
        } else if room < enough {
            self.calm = None;
        } else if let Some(bound) = self.bound {
            let step = (look.memory / STEP_SHARE)
                .max(1)
                .min(room - margin - margin / 2);
            match self.calm {
                None => self.calm = Some(now + CALM - STEP_INTERVAL),
                Some(since) if now < since + STEP_INTERVAL => {}
                Some(_) => {
                    self.calm = Some(now);
                    self.bound = Some(bound + step).filter(|bound| *bound < look.memory);
                }
            }
        }
        self.bound
    }

    /// The time until the next look: sooner than half of the room can be used up, and soon enough for the next step of
    /// growth.
    #[must_use]
    pub fn look_after(&self, usage: Option<Usage>) -> Duration {
        let after = look_after(usage);
        match self.bound {
            Some(_) => after.min(STEP_INTERVAL),
            None => after,
        }
    }

    /// Lowers the bound so that caches give `bytes` back, or as many as they may.
    fn shrink(&mut self, look: &Look, bytes: u64) {
        let bound = self.bound.unwrap_or(look.memory);
        let limit = look.usage.map_or(u64::MAX, |usage| usage.limit);
        let floor = floor(look.memory, limit).min(bound);
        let held = |at: u64| -> u64 {
            let of = |part: &Fill| {
                let capacity =
                    u128::from(part.capacity) * u128::from(at) / u128::from(bound.max(1));
                u64::try_from(capacity).unwrap_or(u64::MAX).min(part.held)
            };
            look.parts.iter().map(of).sum()
        };
        let target = held(bound).saturating_sub(bytes);
        // The largest bound at which the caches hold no more than that.
        let (mut low, mut high) = (floor, bound);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            match held(middle) <= target {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        self.bound = Some(low).filter(|bound| *bound < look.memory);
    }
}

/// The bytes of the configured `memory` that are never given back under a limit of `limit` bytes, which may be far below
/// it.
#[must_use]
pub fn floor(memory: u64, limit: u64) -> u64 {
    let floor = (memory / FLOOR_SHARE).min(limit / FLOOR_LIMIT_SHARE);
    floor.max(FLOOR_BYTES_MIN).min(memory)
}

/// The time until the room can be half used up.
fn look_after(usage: Option<Usage>) -> Duration {
    let Some(usage) = usage else {
        return LOOK_MAX;
    };
    let spare = usage.room().saturating_sub(usage.margin());
    let half = Duration::from_millis(spare / 2 / (USE_RATE / 1000));
    half.clamp(LOOK_MIN, LOOK_MAX)
}

#[cfg(test)]
mod tests;

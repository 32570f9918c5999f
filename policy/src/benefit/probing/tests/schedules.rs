//! Jobs that come, train, hang and go, second by second.

use super::*;
use proptest::prelude::*;

/// How a job behaves.
#[derive(Debug, Clone)]
struct Behaviour {
    begins_s: u64,
    lasts_s: u64,
    /// Seconds per mini-batch without a cache, and with one.
    uncached_s: f64,
    cached_s: f64,
    /// It does not report while it is probed.
    hangs: bool,
}

/// A job that follows its modes, and reports every 20 mini-batches.
struct Running {
    name: String,
    behaviour: Behaviour,
    mode: Mode,
    /// Seconds of training since the last report.
    trained_s: f64,
    /// When its last complete probe ended.
    probed: Option<u64>,
    /// When it began to wait for the next one.
    waits_since: u64,
}

impl Running {
    fn runs(&self, now: u64) -> bool {
        let Behaviour {
            begins_s, lasts_s, ..
        } = self.behaviour;
        (begins_s..begins_s + lasts_s).contains(&now)
    }

    fn step(&mut self, probing: &mut Probing, now: u64) {
        let mode = probing.mode(&self.name);
        probing.watch(&self.name, at(now)).unwrap();
        if mode != self.mode {
            self.mode = mode;
            self.trained_s = 0.0;
        }
        if self.mode == Mode::Probe && self.behaviour.hangs {
            return;
        }
        let batch_s = if self.mode == Mode::Cached {
            self.behaviour.cached_s
        } else {
            self.behaviour.uncached_s
        };
        self.trained_s += 1.0;
        while self.trained_s >= 20.0 * batch_s {
            self.trained_s -= 20.0 * batch_s;
            let hits = if self.mode == Mode::Cached { 100 } else { 0 };
            let report = report(&self.name, self.mode, batch_s, hits);
            probing.record(&report, at(now)).unwrap();
            if self.mode == Mode::Probe && probing.mode(&self.name) != Mode::Probe {
                self.probed = Some(now);
                self.waits_since = now + PROBE_INTERVAL.as_secs();
                break;
            }
        }
    }
}

fn behaviours() -> impl Strategy<Value = Vec<Behaviour>> {
    let one = (
        0..3000_u64,
        prop_oneof![Just(100_000_u64), 10..3000_u64],
        0.02..2.5_f64,
        0.1..=1.0_f64,
        prop::bool::weighted(0.2),
    );
    let one = one.prop_map(|(begins_s, lasts_s, uncached_s, part, hangs)| Behaviour {
        begins_s,
        lasts_s,
        uncached_s,
        cached_s: uncached_s * part,
        hangs,
    });
    prop::collection::vec(one, 1..10)
}

fn running(behaviours: Vec<Behaviour>) -> Vec<Running> {
    let behaviours = behaviours.into_iter().enumerate();
    let running = behaviours.map(|(at, behaviour)| Running {
        name: format!("run:{at}"),
        mode: Mode::Cached,
        trained_s: 0.0,
        probed: None,
        waits_since: behaviour.begins_s,
        behaviour,
    });
    running.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// One probe at a time, each within its time, and every job that reports has its turn: it waits
    /// at most for one probe of each other job.
    #[test]
    fn probes_take_turns(behaviours in behaviours(), killed_s in 0..8000_u64) {
        let mut jobs = running(behaviours);
        let mut probing = Probing::default();
        let longest = PROBE_TIME_MAX.as_secs() + 1;
        let turn = longest * jobs.len() as u64;
        let mut began = (String::new(), 0);
        for now in 0..8000 {
            if now == killed_s {
                let state = probing.state();
                probing = Probing::default();
                probing.restore(state, at(now));
                // Waiting begins again, and so does a probe that was under way.
                began = (String::new(), now);
                for job in &mut jobs {
                    job.waits_since = job.waits_since.max(now + PROBE_INTERVAL.as_secs());
                }
            }
            for job in &mut jobs {
                if job.runs(now) {
                    job.step(&mut probing, now);
                } else if now == job.behaviour.begins_s + job.behaviour.lasts_s {
                    probing.ended(&job.name);
                }
            }
            probing.tick(at(now));
            let probed: Vec<&str> = jobs
                .iter()
                .map(|job| job.name.as_str())
                .filter(|name| probing.mode(name) == Mode::Probe)
                .collect();
            prop_assert!(probed.len() <= 1, "{probed:?}");
            let name = probed.first().copied().unwrap_or_default();
            if began.0 != name {
                began = (name.to_owned(), now);
            }
            prop_assert!(name.is_empty() || now - began.1 <= longest, "{name} since {}", began.1);
            for job in jobs.iter().filter(|job| job.runs(now) && !job.behaviour.hangs) {
                let waits = now.saturating_sub(job.waits_since);
                prop_assert!(waits <= turn, "{} waits {waits} s", job.name);
            }
        }
        // What was measured is what the jobs are like.
        for job in jobs.iter().filter(|job| !job.behaviour.hangs) {
            let Some(times) = probing.times(&job.name) else { continue };
            let near = |found: f64, wanted: f64| (found - wanted).abs() <= 1e-6 * wanted;
            prop_assert!(near(times.uncached_s, job.behaviour.uncached_s));
            prop_assert!(times.whole_s.is_none_or(|found| near(found, job.behaviour.cached_s)));
            prop_assert_eq!(
                probing.mode(&job.name) == Mode::Uncached,
                times.show_no_gain() && probing.probed() != Some(job.name.as_str())
            );
        }
    }

    #[test]
    fn no_report_breaks_an_invariant(
        reports in prop::collection::vec(
            (0..4_u8, 0..3_usize, any::<u64>(), any::<f64>(), any::<u64>(), any::<u64>(), 0..400_u64),
            0..200,
        ),
    ) {
        let mut probing = Probing::default();
        let mut now = at(0);
        for (job, mode, batches, seconds, hits, misses, later) in reports {
            now += at(later);
            let name = format!("run:{job}");
            let one = Report {
                job: &name,
                mode: Mode::ALL[mode],
                choice: Choice::Whole,
                ranks: job.into(),
                // Some are likely to be sound.
                batches: batches % 200,
                seconds: if later % 2 == 0 { seconds.abs() % 1000.0 } else { seconds },
                hits,
                misses,
            };
            let checked = one.check();
            prop_assert_eq!(probing.record(&one, now).err(), checked.err());
            probing.tick(now);
            for state in probing.state() {
                prop_assert!(state.times.is_none_or(|times| times.are_sound()), "{state:?}");
                prop_assert!(state.uncached_s.is_none_or(|time| time.is_finite() && time > 0.0));
            }
        }
    }
}

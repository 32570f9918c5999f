//! Memory pressure: gives caches back before the kernel kills a process, and lets them grow again later.
//!
//! [`policy`] decides, `reading` reads what the kernel shows, and `events` wakes [`watch`] before its timer does. The
//! caches are those of any [`Caches`].
//!
//! An idle daemon stays idle: while the caches hold no more than what they always keep, there is nothing to give back, and
//! no timer runs. Otherwise a look is due the sooner the less room there is, and every 10 s if there is plenty.
//!
//! Invariants: caches give back only what readers do not hold. They always keep [`policy::floor`].

mod events;
pub mod policy;
mod reading;
mod trim;

pub use trim::{keep_large_buffers_sparse, trim};

use crate::cache::Fill;
use copperfs_metrics::{Counter, Gauge, Kind, Registry, Unit};
use copperfs_policy::amounts::ByteSize;
use events::{Event, Events};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use policy::{Look, Policy, Usage, floor};
use reading::Reading;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Events of the kernel that come sooner after a look are one event.
const EVENTS_GAP: Duration = Duration::from_millis(200);

/// The time between two looks while caches grow, at most.
const GROWING_LOOK_MAX: Duration = Duration::from_secs(1);

/// The caches of a node.
pub trait Caches: Send + Sync {
    /// The configured memory for all of them, in bytes.
    fn memory(&self) -> u64;

    /// What they hold.
    fn parts(&self) -> Vec<Fill>;

    /// Limits all of them together to `bytes`; `None`: to what is configured. Returns when they have given back what is
    /// too much.
    fn limit(&self, bytes: Option<u64>) -> BoxFuture<'static, ()>;

    /// Waits until they may have grown.
    fn grown(&self) -> BoxFuture<'static, ()>;
}

/// An episode of memory pressure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// The configured memory, in bytes.
    pub memory: u64,
    /// The bytes of it that are given back.
    pub given_back: u64,
    /// When it began.
    pub since: Instant,
    /// The limit that was the tightest one at the last look, in bytes.
    pub limit: u64,
    /// Whether that is the machine's memory, and not the limit of a cgroup.
    pub is_machine: bool,
}

/// The state of memory pressure, for reports. Cheap to clone.
#[derive(Clone, Default)]
pub struct Pressure(Arc<State>);

#[derive(Default)]
struct State {
    shortage: Mutex<Option<Shortage>>,
    episodes: Counter,
    given_back: Counter,
    limit: Gauge,
}

impl Pressure {
    /// The present episode.
    #[must_use]
    pub fn shortage(&self) -> Option<Shortage> {
        *self.0.shortage.lock()
    }

    /// Declares the counters in `registry`.
    pub fn declare(&self, registry: &Registry) {
        let scope = registry.scope("memory");
        let help = "Times that memory was so short that caches were given back.";
        scope.counter("episodes", Unit::Count, help, &self.0.episodes);
        let help = "Bytes that caches have given back because memory was short.";
        scope.counter("given_back_bytes", Unit::Bytes, help, &self.0.given_back);
        let help = "The tightest limit on this node's memory: its cgroup's, that of one above, or the machine's memory.";
        scope.gauge("limit_bytes", Unit::Bytes, help, &self.0.limit);
        let this = self.clone();
        let help = "Bytes of the configured memory that caches may not use at the moment, because memory is short.";
        scope.computed(
            "withheld_bytes",
            Kind::Gauge,
            Unit::Bytes,
            help,
            move || this.shortage().map_or(0, |shortage| shortage.given_back),
        );
    }

    /// Records a decision. `held`: the bytes that the caches held before and after it.
    fn record(&self, usage: Option<Usage>, memory: u64, bound: Option<u64>, held: [u64; 2]) {
        self.0.given_back.add(held[0].saturating_sub(held[1]));
        let mut shortage = self.0.shortage.lock();
        let (Some(bound), Some(usage)) = (bound, usage) else {
            if shortage.take().is_some() {
                tracing::info!("memory pressure has ended: caches may use all of --memory again");
            }
            return;
        };
        let given_back = memory.saturating_sub(bound);
        let since = match &*shortage {
            Some(shortage) => shortage.since,
            None => {
                self.0.episodes.add(1);
                tracing::warn!(
                    used = %ByteSize(usage.used),
                    limit = %ByteSize(usage.limit),
                    of = if usage.is_machine { "the machine" } else { "the cgroup" },
                    caches = %ByteSize(bound),
                    "memory is short: caches give some back"
                );
                Instant::now()
            }
        };
        *shortage = Some(Shortage {
            memory,
            given_back,
            since,
            limit: usage.limit,
            is_machine: usage.is_machine,
        });
    }
}

/// Watches the memory until it is dropped, and has `caches` give some back in time.
pub async fn watch(caches: Arc<dyn Caches>, pressure: Pressure) {
    let root = Path::new("/");
    let mut events = Events::open(root);
    let mut policy = Policy::default();
    let (mut is_stalled, mut held) = (false, 0);
    loop {
        let Reading { usage, kills } = Reading::take(root);
        let (memory, parts) = (caches.memory(), caches.parts());
        let look = Look {
            usage,
            kills,
            is_stalled,
            memory,
            parts,
        };
        let before = sum(&look.parts);
        let bound = policy.decide(Instant::now(), &look);
        if bound != pressure.bound() {
            caches.limit(bound).await;
            // Freed memory counts against the limit until then.
            let trimmed = tokio::task::spawn_blocking(trim);
            drop(trimmed.await);
            pressure.record(usage, memory, bound, [before, sum(&caches.parts())]);
        }
        let limit = usage.map_or(u64::MAX, |usage| usage.limit);
        pressure.0.limit.set(limit);
        let is_idle = bound.is_none() && before <= floor(memory, limit) / 2;
        // A limit may be lowered, or this process moved, between two looks.
        let look_max = if is_idle || before > held {
            GROWING_LOOK_MAX
        } else {
            Duration::MAX
        };
        held = before;
        is_stalled = wait(&mut events, async {
            if is_idle {
                caches.grown().await;
            }
            tokio::time::sleep(policy.look_after(usage).min(look_max)).await;
        })
        .await;
    }
}

/// Waits until a look is `due`, or for an event. Returns whether tasks wait for memory.
async fn wait(events: &mut Events, due: impl Future<Output = ()>) -> bool {
    tokio::select! {
        event = events.next() => {
            tokio::time::sleep(EVENTS_GAP).await;
            event == Event::Stalled
        }
        () = due => false,
    }
}

fn sum(parts: &[Fill]) -> u64 {
    parts.iter().map(|part| part.held).sum()
}

impl Pressure {
    /// The bound in effect; `None`: the configured one.
    fn bound(&self) -> Option<u64> {
        let shortage = self.shortage();
        shortage.map(|shortage| shortage.memory - shortage.given_back)
    }
}

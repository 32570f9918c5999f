//! The rules of healing ([`ParentSelector`]) in simulated clusters, by seed: no sockets, no clock.
//!
//! The network is a model: which hosts are up, which ones hear each other, how long a handshake takes. The state
//! machines get the events that the driver (`upstream/parent_link.rs`) would notice on its connections, their
//! actions are carried out, and after each step the invariants are checked:
//! 1. a node uses, dials and leaves only ancestors, and each action is permitted in its state;
//! 2. no tree has a cycle of parents;
//! 3. a node that could have had a live parent for a while has one;
//! 4. a corrupt peer is not used while it is barred;
//! 5. once the network has healed, every node uses its listed parent within a bound;
//! 6. stalled CPUs make no node move.
//!
//! `COPPERFS_SEEDS=10000` runs more; `COPPERFS_SEED=7` only that one.

use copperfs_overlay::Forest;
use copperfs_overlay::parent_selector::{Action, Event, FailoverTimes, ParentSelector};
use std::ops::Range;
use std::panic::RefUnwindSafe;
use std::time::Duration;

const SEEDS: u64 = 500;
const PARTS: u64 = 4;
/// Simulated time of one step.
const STEP: Duration = Duration::from_millis(40);
const SILENCE: Duration = Duration::from_secs(1);
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long faults are injected.
const FAULTS_FOR: Duration = Duration::from_secs(25);
/// All busy nodes use their listed parents this long after the last fault.
const HEALED: Duration = Duration::from_secs(15);
/// A node that can have a live parent has one after this time: silence, a dial that began too early, the longest
/// pause, a dial, and jitter.
const STRANDED_MAX: Duration = Duration::from_millis(1250 + 2000 + 2000 + 500 + 250);

/// splitmix64.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end).unwrap()).unwrap()
    }

    pub(super) fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    pub(super) fn millis(&mut self, end: usize) -> Duration {
        Duration::from_millis(u64::try_from(self.below(end)).unwrap())
    }
}

/// A machine.
#[derive(Clone)]
struct Host {
    up: bool,
    boots: u32,
    busy: bool,
    corrupt: bool,
    /// The node does not run until then, because another process has its cores.
    stalled_until: Duration,
    /// Most children, unless they are listed ones.
    children_max: usize,
}

/// A dial in progress.
#[derive(Clone, Copy)]
struct Dial {
    began: Duration,
    takes: Duration,
}

/// One candidate, as its node sees it.
#[derive(Clone, Default)]
struct Candidate {
    dial: Option<Dial>,
    /// Boots of the other end when the connection was made.
    connected: Option<u32>,
    last_heard: Duration,
    silent: bool,
    corrupt_blocks: u32,
    barred_until: Duration,
    /// Since when this node could use it without a break.
    good_since: Option<Duration>,
}

/// One node in one tree.
struct Link {
    node: usize,
    tree: usize,
    above: Vec<usize>,
    selector: ParentSelector,
    candidates: Vec<Candidate>,
    /// When it last had a live parent, or began.
    well: Duration,
    had_parent: bool,
    moves: u32,
}

struct World {
    random: Random,
    now: Duration,
    forest: Forest,
    hosts: Vec<Host>,
    /// `deaf[a][b]`: packets of `a` do not reach `b`.
    deaf: Vec<Vec<bool>>,
    links: Vec<Link>,
    /// Number of children of each node.
    children: Vec<usize>,
    /// By tree and node: whether it has a parent, or is the root.
    attached: Vec<Vec<bool>>,
    times: FailoverTimes,
    /// The only faults are stalls that are shorter than the silence.
    only_stalls: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let len = 2 + random.below(20);
        let arity = 1 + random.below(4);
        let roots = 1 + random.below(4.min(len));
        let forest = Forest::new(len, arity, Forest::spread(len, roots)).unwrap();
        let hosts = (0..len)
            .map(|_| Host {
                up: true,
                boots: 0,
                busy: !random.chance(5),
                corrupt: false,
                stalled_until: Duration::ZERO,
                children_max: 2 + random.below(10),
            })
            .collect();
        let times = FailoverTimes {
            corrupt_bar: Duration::from_secs(4),
            ..FailoverTimes::default()
        };
        let only_stalls = random.chance(10);
        let mut world = Self {
            random,
            now: Duration::ZERO,
            deaf: vec![vec![false; len]; len],
            hosts,
            links: Vec::new(),
            children: vec![0; len],
            attached: vec![vec![true; len]; roots],
            forest,
            times,
            only_stalls,
        };
        for node in 0..len {
            for tree in 0..roots {
                if !world.forest.ancestors(tree, node).is_empty() {
                    let link = world.link(node, tree);
                    world.links.push(link);
                }
            }
        }
        world
    }

    fn link(&mut self, node: usize, tree: usize) -> Link {
        let above = self.forest.ancestors(tree, node);
        let seed = self.random.next();
        Link {
            node,
            tree,
            selector: ParentSelector::new(above.len(), self.times, seed, self.now),
            candidates: vec![Candidate::default(); above.len()],
            above,
            well: self.now,
            had_parent: false,
            moves: 0,
        }
    }

    /// Whether both ends are up, run, and hear each other.
    fn meet(&self, a: usize, b: usize) -> bool {
        let runs = |host: &Host| host.up && host.stalled_until <= self.now;
        let (up, down) = (self.deaf[a][b], self.deaf[b][a]);
        runs(&self.hosts[a]) && runs(&self.hosts[b]) && !up && !down
    }

    /// Whether `node` refuses `child` in `tree`, because it has too many children.
    fn is_full(&self, node: usize, child: usize, tree: usize) -> bool {
        if self.forest.parent(tree, child) == Some(node) || self.forest.is_root(node) {
            return false;
        }
        self.children[node] >= self.hosts[node].children_max
    }

    /// Whether `node` had a parent in `tree` when this step began, or is its root.
    fn is_attached(&self, node: usize, tree: usize) -> bool {
        self.attached[tree][node]
    }

    /// Counts the children of each node, and notes which nodes have parents.
    fn count_children(&mut self) {
        self.children.fill(0);
        for link in &self.links {
            self.attached[link.tree][link.node] = link.selector.using().is_some();
            if let Some(place) = link.selector.using() {
                self.children[link.above[place]] += 1;
            }
        }
    }

    /// Injects a fault, or ends some.
    fn inject_fault(&mut self) {
        let node = self.random.below(self.hosts.len());
        if self.only_stalls {
            let stall = self.random.millis(800);
            let host = &mut self.hosts[node];
            if host.stalled_until + 2 * STEP <= self.now {
                host.stalled_until = self.now + stall;
            }
            return;
        }
        match self.random.below(12) {
            0 | 1 => self.crash(node),
            2..=4 => self.boot(node),
            5 => {
                let other = self.random.below(self.hosts.len());
                self.deaf[node][other] = true;
            }
            6 => {
                // A switch fails: the hosts on each side hear only each other.
                let cut = self.random.below(self.hosts.len());
                for a in 0..self.hosts.len() {
                    for b in 0..self.hosts.len() {
                        self.deaf[a][b] |= (a < cut) != (b < cut);
                    }
                }
            }
            7 | 8 => self
                .deaf
                .iter_mut()
                .flatten()
                .for_each(|deaf| *deaf = false),
            9 => self.hosts[node].corrupt = true,
            10 => self.hosts[node].corrupt = false,
            _ => {
                let stall = self.random.millis(3000);
                self.hosts[node].stalled_until = self.now + stall;
            }
        }
    }

    fn crash(&mut self, node: usize) {
        self.hosts[node].up = false;
        for link in self.links.iter_mut().filter(|link| link.node == node) {
            link.candidates.fill(Candidate::default());
        }
    }

    fn boot(&mut self, node: usize) {
        if self.hosts[node].up {
            return;
        }
        self.hosts[node].up = true;
        self.hosts[node].boots += 1;
        for at in 0..self.links.len() {
            if self.links[at].node == node {
                let tree = self.links[at].tree;
                self.links[at] = self.link(node, tree);
            }
        }
    }

    fn heal(&mut self) {
        self.deaf
            .iter_mut()
            .flatten()
            .for_each(|deaf| *deaf = false);
        for node in 0..self.hosts.len() {
            self.boot(node);
            self.hosts[node].corrupt = false;
            self.hosts[node].stalled_until = Duration::ZERO;
            self.hosts[node].children_max = usize::MAX;
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        self.count_children();
        for at in 0..self.links.len() {
            let node = self.links[at].node;
            let host = &self.hosts[node];
            if !host.up {
                continue;
            }
            if host.stalled_until > self.now {
                self.sleep(at);
                continue;
            }
            for event in self.events(at) {
                self.handle(at, event);
            }
            self.check(at);
        }
        self.check_cycles();
    }

    /// Lets a stalled node sleep. Its own delays do not count against its peers, whose packets wait in the kernel.
    fn sleep(&mut self, at: usize) {
        for place in 0..self.links[at].above.len() {
            let above = self.links[at].above[place];
            let speaks = self.hosts[above].up && self.hosts[above].stalled_until <= self.now;
            let link = &mut self.links[at];
            let candidate = &mut link.candidates[place];
            let heard = speaks && !self.deaf[link.node][above] && !self.deaf[above][link.node];
            candidate.last_heard = if heard {
                self.now
            } else {
                candidate.last_heard + STEP
            };
        }
        self.links[at].well = self.now;
    }

    /// Returns the events that the driver of `links[at]` notices now.
    fn events(&mut self, at: usize) -> Vec<Event> {
        let (node, tree) = (self.links[at].node, self.links[at].tree);
        let busy = self.hosts[node].busy;
        let mut events = Vec::new();
        for place in 0..self.links[at].above.len() {
            let above = self.links[at].above[place];
            let meet = self.meet(node, above);
            let full = self.is_full(above, node, tree);
            let (boots, corrupt) = (self.hosts[above].boots, self.hosts[above].corrupt);
            let sends_corrupt = corrupt && busy && self.random.chance(8);
            let now = self.now;
            let used = self.links[at].selector.using();
            let using = used == Some(place);
            let attached = self.is_attached(above, tree);
            let candidate = &mut self.links[at].candidates[place];
            let good = meet && !full && attached && candidate.barred_until <= now;
            candidate.good_since = good.then(|| candidate.good_since.unwrap_or(now));
            if let Some(dial) = candidate.dial {
                let ready = now >= dial.began + dial.takes && meet;
                if ready || now >= dial.began + CONNECT_TIMEOUT {
                    candidate.dial = None;
                    if ready && !full && (attached || used.is_none()) {
                        candidate.connected = Some(boots);
                        (candidate.last_heard, candidate.silent) = (now, false);
                        events.push(Event::Accepted(place));
                    } else {
                        events.push(Event::Failed(place));
                    }
                }
            } else if let Some(then) = candidate.connected.filter(|_| using) {
                let quiet = now.saturating_sub(candidate.last_heard);
                if meet && boots != then {
                    events.push(Event::Restarted(place));
                } else if quiet >= IDLE_TIMEOUT {
                    events.push(Event::Lost(place));
                } else if meet {
                    candidate.last_heard = now;
                    if std::mem::take(&mut candidate.silent) {
                        events.push(Event::Heard(place));
                    }
                    if sends_corrupt {
                        events.push(Event::Corrupt(place));
                    }
                } else if busy && quiet >= SILENCE && !candidate.silent {
                    candidate.silent = true;
                    events.push(Event::Silent(place));
                }
            }
        }
        let due = self.links[at].selector.wake(self.now);
        if events.is_empty() && due.is_some_and(|due| due <= self.now) {
            events.push(Event::Tick);
        }
        events
    }

    fn handle(&mut self, at: usize, event: Event) {
        let now = self.now;
        let takes = 1 + self.random.below(60);
        let link = &mut self.links[at];
        // An event at a connection that an earlier event has ended is not noticed.
        if let Event::Corrupt(place)
        | Event::Silent(place)
        | Event::Heard(place)
        | Event::Restarted(place)
        | Event::Lost(place) = event
            && link.selector.using() != Some(place)
        {
            return;
        }
        if let Event::Lost(place) | Event::Restarted(place) = event {
            link.candidates[place].connected = None;
        }
        if let Event::Corrupt(place) = event {
            let others = link.above.len() > 1;
            let candidate = &mut link.candidates[place];
            candidate.corrupt_blocks += 1;
            if candidate.corrupt_blocks >= 3 {
                candidate.barred_until = Duration::MAX;
            } else if others {
                let bar = self.times.corrupt_bar * 2_u32.pow(candidate.corrupt_blocks - 1);
                candidate.barred_until = now + bar;
            }
        }
        let before = link.selector.using();
        let mut using = before.filter(|_| !matches!(event, Event::Lost(_) | Event::Restarted(_)));
        for action in link.selector.step(now, event) {
            match action {
                Action::Dial(place) => {
                    let candidate = &mut link.candidates[place];
                    assert!(candidate.dial.is_none(), "dialed twice");
                    assert!(using != Some(place), "dialed the one in use");
                    assert!(candidate.barred_until <= now, "dialed a barred candidate");
                    let takes = Duration::from_millis(u64::try_from(takes).unwrap());
                    candidate.dial = Some(Dial { began: now, takes });
                }
                Action::Use(place) => {
                    assert_eq!(
                        event,
                        Event::Accepted(place),
                        "used a candidate that was not accepted"
                    );
                    assert!(
                        link.candidates[place].barred_until <= now,
                        "used a barred candidate"
                    );
                    using = Some(place);
                    link.had_parent = true;
                    link.moves += u32::from(place > 0);
                }
                Action::Release(place) | Action::Abandon(place) => {
                    let candidate = &mut link.candidates[place];
                    assert!(
                        candidate.connected.is_some(),
                        "left an unconnected candidate"
                    );
                    candidate.connected = None;
                    using = using.filter(|&used| used != place);
                }
                Action::Strand => assert_eq!(using, None, "stranded with a parent"),
            }
        }
        assert_eq!(
            link.selector.using(),
            using,
            "after {event:?} from {before:?}"
        );
    }

    fn check(&mut self, at: usize) {
        let now = self.now;
        let link = &self.links[at];
        let node = link.node;
        let well = link.selector.using().is_some_and(|place| {
            let there = link.candidates[place].connected;
            let above = link.above[place];
            there == Some(self.hosts[above].boots) && self.meet(node, above)
        });
        if well {
            self.links[at].well = now;
            return;
        }
        // An idle node notices a dead parent only by the idle timeout.
        let long = STRANDED_MAX
            + if self.hosts[node].busy {
                Duration::ZERO
            } else {
                IDLE_TIMEOUT
            };
        // A node that has just begun waits for its listed parent first.
        let grace = match link.had_parent {
            true => Duration::ZERO,
            false => self.times.start_grace,
        };
        let good = |candidate: &Candidate| {
            let since = candidate.good_since?.max(link.well);
            (now.saturating_sub(since) > long + grace).then_some(since)
        };
        let found = link.candidates.iter().position(|c| good(c).is_some());
        assert_eq!(
            found, None,
            "node {node} in tree {} has no parent",
            link.tree
        );
    }

    fn check_cycles(&self) {
        let len = self.hosts.len();
        for tree in 0..self.forest.roots().len() {
            let mut upward = vec![None; len];
            for link in self.links.iter().filter(|link| link.tree == tree) {
                upward[link.node] = link.selector.using().map(|place| link.above[place]);
            }
            for node in 0..len {
                let path = std::iter::successors(Some(node), |&node| upward[node]);
                assert!(path.take(len + 1).count() <= len, "a cycle at {node}");
            }
        }
    }

    fn check_home(&self) {
        for link in &self.links {
            let place = link.selector.using();
            // The nearest candidate that is permitted and attached.
            let home = (0..link.above.len()).find(|&place| {
                link.candidates[place].barred_until <= self.now
                    && self.is_attached(link.above[place], link.tree)
            });
            // A detached parent may have been better than none.
            let before = place.is_some_and(|place| home.is_none_or(|home| place < home));
            let (node, tree) = (link.node, link.tree);
            assert!(
                place == home || before,
                "node {node} in tree {tree}: {place:?}, {home:?}"
            );
            if self.only_stalls {
                assert_eq!(link.moves, 0, "node {} moved", link.node);
            }
        }
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    let rate = 5 + world.random.below(60);
    while world.now < FAULTS_FOR {
        if world.random.chance(rate) {
            world.inject_fault();
        }
        world.step();
    }
    world.heal();
    // A bar that ends during the recovery delays it.
    let bars = world.links.iter().flat_map(|link| &link.candidates);
    let barred = bars
        .map(|c| c.barred_until)
        .filter(|at| *at < Duration::MAX);
    let calm = barred.max().unwrap_or_default().max(world.now);
    let idle = world.hosts.iter().any(|host| !host.busy);
    let end = calm + HEALED + if idle { IDLE_TIMEOUT } else { Duration::ZERO };
    while world.now < end {
        world.step();
    }
    world.check_home();
}

/// A number from the environment.
pub(super) fn number(name: &str) -> Option<u64> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the environment sets the number of seeds"
    )]
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap())
}

/// Runs these seeds, or only the one in the environment. Reports the seed that failed.
pub(super) fn seeds(all: Range<u64>, run: impl Fn(u64) + RefUnwindSafe) {
    let seeds = match number("COPPERFS_SEED") {
        Some(seed) => seed..seed + 1,
        None => all,
    };
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| run(seed));
        if let Err(panic) = outcome {
            eprintln!("seed {seed}: COPPERFS_SEED={seed} runs it again");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Several parts, so that each ends within its time limit on a busy machine.
macro_rules! part {
    ($name:ident, $part:literal) => {
        #[test]
        fn $name() {
            let count = number("COPPERFS_SEEDS").unwrap_or(SEEDS) / PARTS;
            seeds($part * count..($part + 1) * count, run);
        }
    };
}

part!(healing_invariants_hold_for_seeds_1, 0);
part!(healing_invariants_hold_for_seeds_2, 1);
part!(healing_invariants_hold_for_seeds_3, 2);
part!(healing_invariants_hold_for_seeds_4, 3);

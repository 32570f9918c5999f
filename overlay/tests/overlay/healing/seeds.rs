//! The rules of healing ([`Ascent`]) in simulated clusters, by the seed: no sockets, no clock.
//!
//! The network is a model: who is up, who hears whom, how long a handshake takes. What the driver
//! (`upstream/climb.rs`) would notice on its connections is told to the state machines, what they want
//! is done, and after each step the invariants are checked:
//! 1. a node uses, dials and leaves only ancestors, and only what it may (no action out of turn);
//! 2. who hangs from whom has no cycle in any tree;
//! 3. a node for which an ancestor has long been there hangs from a live one;
//! 4. one that has lied is not used before its time;
//! 5. once the network has healed, everybody is at home within a bound;
//! 6. CPUs that burn make nobody move.
//!
//! `COPPERFS_SEEDS=10000` runs more; `COPPERFS_SEED=7` only that one.

use copperfs_overlay::Forest;
use copperfs_overlay::ascent::{Action, Ascent, Event, Patience};
use std::ops::Range;
use std::panic::RefUnwindSafe;
use std::time::Duration;

const SEEDS: u64 = 500;
const PARTS: u64 = 4;
/// Time passes in steps of so much.
const STEP: Duration = Duration::from_millis(40);
const SILENCE: Duration = Duration::from_secs(1);
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// For so long things go wrong.
const TROUBLE: Duration = Duration::from_secs(25);
/// After this all busy nodes are at home, whatever was.
const MENDED: Duration = Duration::from_secs(15);
/// A node with a live ancestor hangs from a live one after this: silence, a dial that was begun too
/// early, the longest pause, a dial, and jitter.
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
    liar: bool,
    /// Does nothing until then: another process has its cores.
    stalled_until: Duration,
    /// Most children that are not its own.
    children_max: usize,
}

/// A dial in progress.
#[derive(Clone, Copy)]
struct Dial {
    began: Duration,
    takes: Duration,
}

/// What a node knows of one candidate.
#[derive(Clone, Default)]
struct Candidate {
    dial: Option<Dial>,
    /// Boots of the other end when the connection was made.
    connected: Option<u32>,
    last_heard: Duration,
    silent: bool,
    lies: u32,
    barred_until: Duration,
    /// Since when it is there for this node without a break.
    good_since: Option<Duration>,
}

/// One node in one tree.
struct Climb {
    node: usize,
    tree: usize,
    above: Vec<usize>,
    ascent: Ascent,
    candidates: Vec<Candidate>,
    /// When it last hung from somebody alive, or began.
    well: Duration,
    hung: bool,
    moves: u32,
}

struct World {
    random: Random,
    now: Duration,
    forest: Forest,
    hosts: Vec<Host>,
    /// `deaf[a][b]`: what `a` sends does not reach `b`.
    deaf: Vec<Vec<bool>>,
    climbs: Vec<Climb>,
    /// How many hang from each node.
    children: Vec<usize>,
    /// By tree and node: whether it hangs from somebody, or is the root.
    settled: Vec<Vec<bool>>,
    patience: Patience,
    only_burning: bool,
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
                liar: false,
                stalled_until: Duration::ZERO,
                children_max: 2 + random.below(10),
            })
            .collect();
        let patience = Patience {
            bar: Duration::from_secs(4),
            ..Patience::default()
        };
        let only_burning = random.chance(10);
        let mut world = Self {
            random,
            now: Duration::ZERO,
            deaf: vec![vec![false; len]; len],
            hosts,
            climbs: Vec::new(),
            children: vec![0; len],
            settled: vec![vec![true; len]; roots],
            forest,
            patience,
            only_burning,
        };
        for node in 0..len {
            for tree in 0..roots {
                if !world.forest.ancestors(tree, node).is_empty() {
                    let climb = world.climb(node, tree);
                    world.climbs.push(climb);
                }
            }
        }
        world
    }

    fn climb(&mut self, node: usize, tree: usize) -> Climb {
        let above = self.forest.ancestors(tree, node);
        let seed = self.random.next();
        Climb {
            node,
            tree,
            ascent: Ascent::new(above.len(), self.patience, seed, self.now),
            candidates: vec![Candidate::default(); above.len()],
            above,
            well: self.now,
            hung: false,
            moves: 0,
        }
    }

    /// Whether both ends are up, run, and hear each other.
    fn meet(&self, a: usize, b: usize) -> bool {
        let runs = |host: &Host| host.up && host.stalled_until <= self.now;
        let (up, down) = (self.deaf[a][b], self.deaf[b][a]);
        runs(&self.hosts[a]) && runs(&self.hosts[b]) && !up && !down
    }

    /// Whether `node` has no place for one more child in `tree`.
    fn is_full(&self, node: usize, child: usize, tree: usize) -> bool {
        if self.forest.parent(tree, child) == Some(node) || self.forest.is_root(node) {
            return false;
        }
        self.children[node] >= self.hosts[node].children_max
    }

    /// Whether `node` hung from somebody in `tree` when this step began, or is its root.
    fn is_settled(&self, node: usize, tree: usize) -> bool {
        self.settled[tree][node]
    }

    /// Takes stock: how many hang from each node, and which nodes hang from somebody.
    fn take_stock(&mut self) {
        self.children.fill(0);
        for climb in &self.climbs {
            self.settled[climb.tree][climb.node] = climb.ascent.using().is_some();
            if let Some(place) = climb.ascent.using() {
                self.children[climb.above[place]] += 1;
            }
        }
    }

    /// Something goes wrong, or right again.
    fn trouble(&mut self) {
        let node = self.random.below(self.hosts.len());
        if self.only_burning {
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
                // A switch fails: these hear only each other.
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
            9 => self.hosts[node].liar = true,
            10 => self.hosts[node].liar = false,
            _ => {
                let stall = self.random.millis(3000);
                self.hosts[node].stalled_until = self.now + stall;
            }
        }
    }

    fn crash(&mut self, node: usize) {
        self.hosts[node].up = false;
        for climb in self.climbs.iter_mut().filter(|climb| climb.node == node) {
            climb.candidates.fill(Candidate::default());
        }
    }

    fn boot(&mut self, node: usize) {
        if self.hosts[node].up {
            return;
        }
        self.hosts[node].up = true;
        self.hosts[node].boots += 1;
        for at in 0..self.climbs.len() {
            if self.climbs[at].node == node {
                let tree = self.climbs[at].tree;
                self.climbs[at] = self.climb(node, tree);
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
            self.hosts[node].liar = false;
            self.hosts[node].stalled_until = Duration::ZERO;
            self.hosts[node].children_max = usize::MAX;
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        self.take_stock();
        for at in 0..self.climbs.len() {
            let node = self.climbs[at].node;
            let host = &self.hosts[node];
            if !host.up {
                continue;
            }
            if host.stalled_until > self.now {
                self.sleep(at);
                continue;
            }
            for event in self.events(at) {
                self.tell(at, event);
            }
            self.check(at);
        }
        self.check_cycles();
    }

    /// Its own delays do not count against others, whose packets wait in the kernel.
    fn sleep(&mut self, at: usize) {
        for place in 0..self.climbs[at].above.len() {
            let above = self.climbs[at].above[place];
            let speaks = self.hosts[above].up && self.hosts[above].stalled_until <= self.now;
            let climb = &mut self.climbs[at];
            let candidate = &mut climb.candidates[place];
            let heard = speaks && !self.deaf[climb.node][above] && !self.deaf[above][climb.node];
            candidate.last_heard = if heard {
                self.now
            } else {
                candidate.last_heard + STEP
            };
        }
        self.climbs[at].well = self.now;
    }

    /// What the driver of `climbs[at]` notices now.
    fn events(&mut self, at: usize) -> Vec<Event> {
        let (node, tree) = (self.climbs[at].node, self.climbs[at].tree);
        let busy = self.hosts[node].busy;
        let mut events = Vec::new();
        for place in 0..self.climbs[at].above.len() {
            let above = self.climbs[at].above[place];
            let meet = self.meet(node, above);
            let full = self.is_full(above, node, tree);
            let (boots, liar) = (self.hosts[above].boots, self.hosts[above].liar);
            let lies = liar && busy && self.random.chance(8);
            let now = self.now;
            let used = self.climbs[at].ascent.using();
            let using = used == Some(place);
            let settled = self.is_settled(above, tree);
            let candidate = &mut self.climbs[at].candidates[place];
            let good = meet && !full && settled && candidate.barred_until <= now;
            candidate.good_since = good.then(|| candidate.good_since.unwrap_or(now));
            if let Some(dial) = candidate.dial {
                let ready = now >= dial.began + dial.takes && meet;
                if ready || now >= dial.began + CONNECT_TIMEOUT {
                    candidate.dial = None;
                    if ready && !full && (settled || used.is_none()) {
                        candidate.connected = Some(boots);
                        (candidate.last_heard, candidate.silent) = (now, false);
                        events.push(Event::Welcomed(place));
                    } else {
                        events.push(Event::Failed(place));
                    }
                }
            } else if let Some(then) = candidate.connected.filter(|_| using) {
                let quiet = now.saturating_sub(candidate.last_heard);
                if (meet && boots != then) || quiet >= IDLE_TIMEOUT {
                    events.push(Event::Lost(place));
                } else if meet {
                    candidate.last_heard = now;
                    if std::mem::take(&mut candidate.silent) {
                        events.push(Event::Heard(place));
                    }
                    if lies {
                        events.push(Event::Lied(place));
                    }
                } else if busy && quiet >= SILENCE && !candidate.silent {
                    candidate.silent = true;
                    events.push(Event::Silent(place));
                }
            }
        }
        let due = self.climbs[at].ascent.wake(self.now);
        if events.is_empty() && due.is_some_and(|due| due <= self.now) {
            events.push(Event::Tick);
        }
        events
    }

    fn tell(&mut self, at: usize, event: Event) {
        let now = self.now;
        let takes = 1 + self.random.below(60);
        let climb = &mut self.climbs[at];
        // An event of something that an earlier one has ended is not seen any more.
        if let Event::Lied(place) | Event::Silent(place) | Event::Heard(place) | Event::Lost(place) =
            event
            && climb.ascent.using() != Some(place)
        {
            return;
        }
        if let Event::Lost(place) = event {
            climb.candidates[place].connected = None;
        }
        if let Event::Lied(place) = event {
            let others = climb.above.len() > 1;
            let candidate = &mut climb.candidates[place];
            candidate.lies += 1;
            if candidate.lies >= 3 {
                candidate.barred_until = Duration::MAX;
            } else if others {
                let bar = self.patience.bar * 2_u32.pow(candidate.lies - 1);
                candidate.barred_until = now + bar;
            }
        }
        let before = climb.ascent.using();
        let mut using = before.filter(|_| !matches!(event, Event::Lost(_)));
        for action in climb.ascent.step(now, event) {
            match action {
                Action::Dial(place) => {
                    let candidate = &mut climb.candidates[place];
                    assert!(candidate.dial.is_none(), "dialed twice");
                    assert!(using != Some(place), "dialed the one in use");
                    assert!(candidate.barred_until <= now, "dialed one that has lied");
                    let takes = Duration::from_millis(u64::try_from(takes).unwrap());
                    candidate.dial = Some(Dial { began: now, takes });
                }
                Action::Use(place) => {
                    assert_eq!(event, Event::Welcomed(place), "used one that is not there");
                    assert!(climb.candidates[place].barred_until <= now, "used a liar");
                    using = Some(place);
                    climb.hung = true;
                    climb.moves += u32::from(place > 0);
                }
                Action::Leave(place) | Action::Drop(place) => {
                    let candidate = &mut climb.candidates[place];
                    assert!(candidate.connected.is_some(), "left one that is not there");
                    candidate.connected = None;
                    using = using.filter(|&used| used != place);
                }
                Action::Strand => assert_eq!(using, None, "stranded while hanging"),
            }
        }
        assert_eq!(
            climb.ascent.using(),
            using,
            "after {event:?} from {before:?}"
        );
    }

    fn check(&mut self, at: usize) {
        let now = self.now;
        let climb = &self.climbs[at];
        let node = climb.node;
        let well = climb.ascent.using().is_some_and(|place| {
            let there = climb.candidates[place].connected;
            let above = climb.above[place];
            there == Some(self.hosts[above].boots) && self.meet(node, above)
        });
        if well {
            self.climbs[at].well = now;
            return;
        }
        // One that is stalled for longer than the silence is as good as dead.
        let long = STRANDED_MAX
            + if self.hosts[node].busy {
                Duration::ZERO
            } else {
                IDLE_TIMEOUT
            };
        // A node that has just begun waits for its parent first.
        let grace = match climb.hung {
            true => Duration::ZERO,
            false => self.patience.grace,
        };
        let good = |candidate: &Candidate| {
            let since = candidate.good_since?.max(climb.well);
            (now.saturating_sub(since) > long + grace).then_some(since)
        };
        let found = climb.candidates.iter().position(|c| good(c).is_some());
        assert_eq!(
            found, None,
            "node {node} in tree {} hangs from nobody",
            climb.tree
        );
    }

    fn check_cycles(&self) {
        let len = self.hosts.len();
        for tree in 0..self.forest.roots().len() {
            let mut upward = vec![None; len];
            for climb in self.climbs.iter().filter(|climb| climb.tree == tree) {
                upward[climb.node] = climb.ascent.using().map(|place| climb.above[place]);
            }
            for node in 0..len {
                let path = std::iter::successors(Some(node), |&node| upward[node]);
                assert!(path.take(len + 1).count() <= len, "a cycle at {node}");
            }
        }
    }

    fn check_home(&self) {
        for climb in &self.climbs {
            let place = climb.ascent.using();
            // The nearest that may be used and is of use.
            let home = (0..climb.above.len()).find(|&place| {
                climb.candidates[place].barred_until <= self.now
                    && self.is_settled(climb.above[place], climb.tree)
            });
            // One that was of use to nobody may have been better than none.
            let before = place.is_some_and(|place| home.is_none_or(|home| place < home));
            let (node, tree) = (climb.node, climb.tree);
            assert!(
                place == home || before,
                "node {node} in tree {tree}: {place:?}, {home:?}"
            );
            if self.only_burning {
                assert_eq!(climb.moves, 0, "node {} moved", climb.node);
            }
        }
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    let rate = 5 + world.random.below(60);
    while world.now < TROUBLE {
        if world.random.chance(rate) {
            world.trouble();
        }
        world.step();
    }
    world.heal();
    // Bars that end while everybody is on the way home end it a little later.
    let bars = world.climbs.iter().flat_map(|climb| &climb.candidates);
    let barred = bars
        .map(|c| c.barred_until)
        .filter(|at| *at < Duration::MAX);
    let calm = barred.max().unwrap_or_default().max(world.now);
    let idle = world.hosts.iter().any(|host| !host.busy);
    let end = calm + MENDED + if idle { IDLE_TIMEOUT } else { Duration::ZERO };
    while world.now < end {
        world.step();
    }
    world.check_home();
}

/// A number from the environment.
pub(super) fn number(name: &str) -> Option<u64> {
    #[expect(
        clippy::disallowed_methods,
        reason = "how much a test does is asked of the environment"
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

/// Several parts, so that each ends in time on a busy machine.
macro_rules! part {
    ($name:ident, $part:literal) => {
        #[test]
        fn $name() {
            let count = number("COPPERFS_SEEDS").unwrap_or(SEEDS) / PARTS;
            seeds($part * count..($part + 1) * count, run);
        }
    };
}

part!(no_seed_breaks_a_rule_of_healing_1, 0);
part!(no_seed_breaks_a_rule_of_healing_2, 1);
part!(no_seed_breaks_a_rule_of_healing_3, 2);
part!(no_seed_breaks_a_rule_of_healing_4, 3);

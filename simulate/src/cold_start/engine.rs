//! The event loop: requests go up, and units come down.
//!
//! Each class of nodes is simulated by one of its nodes. A node requests a missing item from its
//! parent once, for its reader and all of its children. The parent's core is shared evenly among
//! requests, and its link among children. Units of an item are forwarded as they arrive. Events are
//! ordered by time, and events of the same time by the order in which they were scheduled, so a run
//! is reproducible.

use super::classes::{Classes, Edge};
use super::resource::{SharedResource, Time, time};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// The performance of a node and its links.
#[derive(Debug, Clone, Copy)]
pub(super) struct Machine {
    /// Payload bytes per second of a node's link, in each direction.
    pub(super) link: f64,
    /// The delay from one node to the next, one way.
    pub(super) hop: Time,
    /// A parent's core time for one request, in seconds.
    pub(super) request_cpu: f64,
    /// Bytes per second that a root reads from the origin.
    pub(super) origin_rate: f64,
    /// The delay before the first byte of an item arrives from the origin.
    pub(super) origin_latency: Time,
    /// Bytes in a forwarding unit.
    pub(super) unit: u64,
}

/// The behaviour of a node's reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Reader {
    /// When it begins.
    pub(super) start: Time,
    /// Its computation between two items.
    pub(super) think: Time,
    /// The maximum number of outstanding requests.
    pub(super) window: usize,
}

/// An item.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) bytes: u64,
    /// The tree that it comes down.
    pub(super) tree: usize,
}

/// The counts of one node of a class.
#[derive(Debug, Clone, Default)]
pub(super) struct ClassCounts {
    /// When its reader had everything.
    pub(super) end: Time,
    /// Requests to the parents.
    pub(super) asked: u64,
    /// Requests from children.
    pub(super) answered: u64,
    /// Payload bytes from the parents.
    pub(super) received: u64,
    /// Payload bytes to children.
    pub(super) sent: u64,
    /// Items and bytes from the origin.
    pub(super) origin_reads: u64,
    /// Bytes from the origin.
    pub(super) origin_bytes: u64,
}

/// The result of a run.
pub(super) struct Run {
    /// The counts of each class.
    pub(super) counts: Vec<ClassCounts>,
    pub(super) events: u64,
}

type Item = u32;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A reader may continue.
    Reader { class: usize },
    /// A request has reached the parent.
    Request { edge: usize, item: Item },
    /// A request was processed on the core of a class, unless the event is outdated.
    Core { class: usize, epoch: u64 },
    /// A unit was sent on the link of a class, unless the event is outdated.
    Link { class: usize, epoch: u64 },
    /// A unit has arrived.
    Unit { class: usize, item: Item },
}

struct Node {
    reader: Option<Reader>,
    core: Server<(usize, Item)>,
    link: Server<usize>,
    /// The time until which received units keep the downlink busy.
    downlink_free: Time,
    /// The time until which requests keep the origin busy.
    origin_free: Time,
    /// The number of units received of each item, or [`NOT_ASKED`].
    units: Vec<u32>,
    /// The edges to children that wait for the rest of an item.
    waiting: HashMap<Item, Vec<usize>>,
    /// The reader's next item, and the items that it waits for.
    next: Item,
    awaited: Vec<Item>,
    counts: ClassCounts,
}

/// A shared resource. `epoch` identifies the valid one of its scheduled events.
struct Server<J> {
    resource: SharedResource<J>,
    epoch: u64,
}

impl<J: Ord> Server<J> {
    fn new(rate: f64) -> Self {
        Self {
            resource: SharedResource::new(rate),
            epoch: 0,
        }
    }

    /// Invalidates the scheduled event. Returns the time and epoch of the next one, if any.
    fn reschedule(&mut self, now: Time) -> Option<(Time, u64)> {
        self.epoch += 1;
        let at = self.resource.next_end()?;
        Some((at.max(now), self.epoch))
    }
}

const NOT_ASKED: u32 = u32::MAX;

pub(super) struct Engine<'a> {
    machine: Machine,
    pieces: &'a [Piece],
    classes: &'a Classes,
    nodes: Vec<Node>,
    /// The units that wait on each edge, and whether one is being sent.
    queues: Vec<(VecDeque<(Item, u32)>, bool)>,
    /// By time, and then by the order in which they were scheduled, which is unique.
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    /// The number of events scheduled so far.
    made: u64,
    now: Time,
}

impl<'a> Engine<'a> {
    /// Creates an engine. `reader` returns the reader of a class, given its example node.
    pub(super) fn new(
        machine: Machine,
        pieces: &'a [Piece],
        classes: &'a Classes,
        reader: impl Fn(usize) -> Option<Reader>,
    ) -> Self {
        let nodes = classes
            .classes
            .iter()
            .map(|class| Node {
                reader: reader(class.example),
                // A core does one second of work per second.
                core: Server::new(1.0),
                link: Server::new(machine.link),
                downlink_free: 0,
                origin_free: 0,
                units: vec![NOT_ASKED; pieces.len()],
                waiting: HashMap::new(),
                next: 0,
                awaited: Vec::new(),
                counts: ClassCounts::default(),
            })
            .collect();
        Self {
            machine,
            pieces,
            classes,
            nodes,
            queues: vec![(VecDeque::new(), false); classes.edges.len()],
            events: BinaryHeap::new(),
            made: 0,
            now: 0,
        }
    }

    /// Runs until there are no more events.
    pub(super) fn run(mut self) -> Run {
        for class in 0..self.nodes.len() {
            // Only readers cause events. Other nodes wait for requests.
            if let Some(reader) = self.nodes[class].reader {
                self.at(reader.start, Event::Reader { class });
            }
        }
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            match event {
                Event::Reader { class } => self.read_on(class),
                Event::Request { edge, item } => self.requested(edge, item),
                Event::Core { class, epoch } if epoch == self.nodes[class].core.epoch => {
                    while let Some((edge, item)) =
                        self.nodes[class].core.resource.take_ended(self.now)
                    {
                        self.answer(edge, item);
                    }
                    self.reschedule_core(class);
                }
                Event::Link { class, epoch } if epoch == self.nodes[class].link.epoch => {
                    while let Some(edge) = self.nodes[class].link.resource.take_ended(self.now) {
                        self.delivered(edge);
                    }
                    self.reschedule_link(class);
                }
                // Outdated: the resource has been rescheduled since.
                Event::Core { .. } | Event::Link { .. } => {}
                Event::Unit { class, item } => self.arrived(class, item),
            }
        }
        let counts = self.nodes.into_iter().map(|node| node.counts);
        Run {
            counts: counts.collect(),
            events: self.made,
        }
    }

    fn at(&mut self, at: Time, event: Event) {
        self.events.push(Reverse((at, self.made, event)));
        self.made += 1;
    }

    fn piece(&self, item: Item) -> Piece {
        self.pieces[index(item)]
    }

    fn unit_count(&self, item: Item) -> u32 {
        let units = self.piece(item).bytes.div_ceil(self.machine.unit).max(1);
        u32::try_from(units).unwrap_or(NOT_ASKED - 1)
    }

    fn unit_bytes(&self, item: Item, unit: u32) -> u64 {
        let before = u64::from(unit) * self.machine.unit;
        (self.piece(item).bytes - before).min(self.machine.unit)
    }

    /// Lets a reader request as much as its window allows.
    fn read_on(&mut self, class: usize) {
        loop {
            let node = &self.nodes[class];
            let Some(reader) = node.reader else { return };
            let item = node.next;
            if index(item) == self.pieces.len() {
                if node.awaited.is_empty() {
                    self.nodes[class].counts.end = self.now;
                }
                return;
            }
            if node.awaited.len() >= reader.window {
                return;
            }
            self.nodes[class].next += 1;
            let have = self.nodes[class].units[index(item)];
            // The node has the item already, because a child requested it.
            if have == self.unit_count(item) {
                if reader.think > 0 {
                    return self.at(self.now + reader.think, Event::Reader { class });
                }
                continue;
            }
            self.nodes[class].awaited.push(item);
            if have == NOT_ASKED {
                self.ask(class, item);
            }
        }
    }

    /// Sends a request to the parent or the origin.
    fn ask(&mut self, class: usize, item: Item) {
        let piece = self.piece(item);
        // Marks the item as requested, so that later requests for it are coalesced.
        self.nodes[class].units[index(item)] = 0;
        if let Some(edge) = self.classes.classes[class].above[piece.tree] {
            self.nodes[class].counts.asked += 1;
            return self.at(self.now + self.machine.hop, Event::Request { edge, item });
        }
        let node = &mut self.nodes[class];
        node.counts.origin_reads += 1;
        node.counts.origin_bytes += piece.bytes;
        let mut at = self.now.max(node.origin_free) + self.machine.origin_latency;
        for unit in 0..self.unit_count(item) {
            at += time(bytes_f64(self.unit_bytes(item, unit)) / self.machine.origin_rate);
            self.at(at, Event::Unit { class, item });
        }
        self.nodes[class].origin_free = at;
    }

    fn requested(&mut self, edge: usize, item: Item) {
        let Edge { parent, width, .. } = self.classes.edges[edge];
        let node = &mut self.nodes[parent];
        node.counts.answered += u64::from(width);
        if self.machine.request_cpu == 0.0 {
            return self.answer(edge, item);
        }
        let order = self.made;
        let work = self.machine.request_cpu;
        let core = &mut node.core.resource;
        core.start(self.now, (edge, item), work, width, order);
        self.reschedule_core(parent);
    }

    /// Sends the received units of an item to a child, and the rest when they arrive.
    fn answer(&mut self, edge: usize, item: Item) {
        let parent = self.classes.edges[edge].parent;
        if self.nodes[parent].units[index(item)] == NOT_ASKED {
            self.ask(parent, item);
        }
        let have = self.nodes[parent].units[index(item)];
        // Units that have arrived are sent at once, before the item is complete.
        for unit in 0..have {
            self.send(edge, item, unit);
        }
        if have < self.unit_count(item) {
            let waiting = &mut self.nodes[parent].waiting;
            waiting.entry(item).or_default().push(edge);
        }
    }

    fn send(&mut self, edge: usize, item: Item, unit: u32) {
        let (queue, busy) = &mut self.queues[edge];
        queue.push_back((item, unit));
        if !*busy {
            *busy = true;
            self.occupy(edge);
        }
    }

    /// Starts to send the first unit of an edge's queue on the parent's link.
    fn occupy(&mut self, edge: usize) {
        let Some(&(item, unit)) = self.queues[edge].0.front() else {
            return;
        };
        let bytes = self.unit_bytes(item, unit);
        let Edge { parent, width, .. } = self.classes.edges[edge];
        let order = self.made;
        let node = &mut self.nodes[parent];
        let link = &mut node.link.resource;
        link.start(self.now, edge, bytes_f64(bytes), width, order);
        self.reschedule_link(parent);
    }

    /// Handles a unit that has left the parent's link.
    fn delivered(&mut self, edge: usize) {
        let (queue, busy) = &mut self.queues[edge];
        let Some((item, unit)) = queue.pop_front() else {
            return;
        };
        *busy = !queue.is_empty();
        let more = *busy;
        let bytes = self.unit_bytes(item, unit);
        let Edge {
            parent,
            child,
            width,
        } = self.classes.edges[edge];
        self.nodes[parent].counts.sent += bytes * u64::from(width);
        let receiver = &mut self.nodes[child];
        receiver.counts.received += bytes;
        // The unit is received while it is sent. Several parents at once share the downlink.
        let through = receiver.downlink_free + time(bytes_f64(bytes) / self.machine.link);
        receiver.downlink_free = through.max(self.now);
        let at = receiver.downlink_free + self.machine.hop;
        self.at(at, Event::Unit { class: child, item });
        if more {
            self.occupy(edge);
        }
    }

    fn arrived(&mut self, class: usize, item: Item) {
        let unit_count = self.unit_count(item);
        let node = &mut self.nodes[class];
        let unit = node.units[index(item)];
        node.units[index(item)] += 1;
        let complete = unit + 1 == unit_count;
        let waiting = if complete {
            node.waiting.remove(&item).unwrap_or_default()
        } else {
            node.waiting.get(&item).cloned().unwrap_or_default()
        };
        for edge in waiting {
            self.send(edge, item, unit);
        }
        let node = &mut self.nodes[class];
        if complete && let Some(found) = node.awaited.iter().position(|&held| held == item) {
            node.awaited.swap_remove(found);
            let think = node.reader.map_or(0, |reader| reader.think);
            self.at(self.now + think, Event::Reader { class });
        }
    }

    fn reschedule_core(&mut self, class: usize) {
        if let Some((at, epoch)) = self.nodes[class].core.reschedule(self.now) {
            self.at(at, Event::Core { class, epoch });
        }
    }

    fn reschedule_link(&mut self, class: usize) {
        if let Some((at, epoch)) = self.nodes[class].link.reschedule(self.now) {
            self.at(at, Event::Link { class, epoch });
        }
    }
}

fn index(item: Item) -> usize {
    usize::try_from(item).unwrap_or(usize::MAX)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "sizes of units are far below 2^53"
)]
fn bytes_f64(bytes: u64) -> f64 {
    bytes as f64
}

//! The event loop: requests go up, units come down.
//!
//! Every class of nodes is simulated by one of its nodes. A node asks its parent for what it does not
//! have, once, whoever wants it (its reader, or any of its children); the parent's core divides itself
//! among requests, its link among children; units of an item are passed on as they arrive. The order
//! of events is that of their times, and of their making where times are equal, so a run is the same
//! everywhere.

use super::classes::{Classes, Edge};
use super::shared::{Shared, Time, time};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// What a node and its links can do; seconds and bytes a second.
#[derive(Debug, Clone, Copy)]
pub(super) struct Machine {
    /// Payload bytes a second that a node's link carries, each way.
    pub(super) link: f64,
    /// From one node to the next, one way.
    pub(super) hop: Time,
    /// A parent's core time for one request.
    pub(super) request_cpu: f64,
    /// Bytes a second that a root reads from the origin.
    pub(super) origin_rate: f64,
    /// Before the first byte of an item comes from the origin.
    pub(super) origin_latency: Time,
    /// Bytes in a forwarding unit.
    pub(super) unit: u64,
}

/// What a node's reader does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader {
    /// When it begins.
    pub(super) start: Time,
    /// What it does itself between two items.
    pub(super) think: Time,
    /// Items that it has asked for and not yet received, at most.
    pub(super) window: usize,
}

/// An item as the engine sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) bytes: u64,
    /// Which tree it comes down.
    pub(super) tree: usize,
}

/// What one class saw.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
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
    /// Of these the bytes.
    pub(super) origin_bytes: u64,
}

type Item = u32;

#[derive(Debug, Clone, Copy)]
enum Event {
    /// A reader may go on.
    Reader { class: usize },
    /// A request has reached the parent.
    Request { edge: usize, item: Item },
    /// Something ended on the core of a class, unless it was rescheduled.
    Core { class: usize, epoch: u64 },
    /// Something ended on the link of a class, unless it was rescheduled.
    Link { class: usize, epoch: u64 },
    /// A unit has arrived.
    Unit { class: usize, item: Item },
}

struct Node {
    reader: Option<Reader>,
    core: Shared<(usize, Item)>,
    core_epoch: u64,
    link: Shared<usize>,
    link_epoch: u64,
    /// Until when what has arrived keeps the downlink busy.
    downlink_free: Time,
    /// Until when what was asked of the origin keeps it busy.
    origin_free: Time,
    /// Units received of each item; [`NOT_ASKED`].
    units: Vec<u32>,
    /// Children that wait for the rest of an item.
    waiting: HashMap<Item, Vec<usize>>,
    /// The reader's next item, those that it waits for.
    next: Item,
    awaited: Vec<Item>,
    seen: Seen,
}

const NOT_ASKED: u32 = u32::MAX;

pub(super) struct Engine<'a> {
    machine: Machine,
    pieces: &'a [Piece],
    classes: &'a Classes,
    nodes: Vec<Node>,
    /// Units that wait for their turn on an edge, and whether one is on its way.
    queues: Vec<(VecDeque<(Item, u32)>, bool)>,
    events: BinaryHeap<Reverse<Scheduled>>,
    made: u64,
    now: Time,
}

struct Scheduled {
    at: Time,
    order: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl<'a> Engine<'a> {
    /// `reader` gives the reader of the class with that example node, if it has one.
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
                core: Shared::new(1.0),
                core_epoch: 0,
                link: Shared::new(machine.link),
                link_epoch: 0,
                downlink_free: 0,
                origin_free: 0,
                units: vec![NOT_ASKED; pieces.len()],
                waiting: HashMap::new(),
                next: 0,
                awaited: Vec::new(),
                seen: Seen::default(),
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

    /// Runs until nothing is left to happen; what each class saw, and how many events it took.
    pub(super) fn run(mut self) -> (Vec<Seen>, u64) {
        for class in 0..self.nodes.len() {
            if let Some(reader) = self.nodes[class].reader {
                self.at(reader.start, Event::Reader { class });
            }
        }
        while let Some(Reverse(next)) = self.events.pop() {
            self.now = next.at;
            match next.event {
                Event::Reader { class } => self.read_on(class),
                Event::Request { edge, item } => self.requested(edge, item),
                Event::Core { class, epoch } if epoch == self.nodes[class].core_epoch => {
                    while let Some((edge, item)) = self.nodes[class].core.take_ended(self.now) {
                        self.answer(edge, item);
                    }
                    self.reschedule_core(class);
                }
                Event::Link { class, epoch } if epoch == self.nodes[class].link_epoch => {
                    while let Some(edge) = self.nodes[class].link.take_ended(self.now) {
                        self.delivered(edge);
                    }
                    self.reschedule_link(class);
                }
                Event::Core { .. } | Event::Link { .. } => {}
                Event::Unit { class, item } => self.arrived(class, item),
            }
        }
        let seen = self.nodes.into_iter().map(|node| node.seen).collect();
        (seen, self.made)
    }

    fn at(&mut self, at: Time, event: Event) {
        let order = self.made;
        self.made += 1;
        self.events.push(Reverse(Scheduled { at, order, event }));
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

    /// The reader asks for as much as its window allows.
    fn read_on(&mut self, class: usize) {
        loop {
            let node = &self.nodes[class];
            let Some(reader) = node.reader else { return };
            let item = node.next;
            if index(item) == self.pieces.len() {
                if node.awaited.is_empty() {
                    self.nodes[class].seen.end = self.now;
                }
                return;
            }
            if node.awaited.len() >= reader.window {
                return;
            }
            self.nodes[class].next += 1;
            let have = self.nodes[class].units[index(item)];
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

    /// One request upwards, or to the origin.
    fn ask(&mut self, class: usize, item: Item) {
        let piece = self.piece(item);
        self.nodes[class].units[index(item)] = 0;
        if let Some(edge) = self.classes.classes[class].above[piece.tree] {
            self.nodes[class].seen.asked += 1;
            return self.at(self.now + self.machine.hop, Event::Request { edge, item });
        }
        let node = &mut self.nodes[class];
        node.seen.origin_reads += 1;
        node.seen.origin_bytes += piece.bytes;
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
        node.seen.answered += u64::from(width);
        if self.machine.request_cpu == 0.0 {
            return self.answer(edge, item);
        }
        let order = self.made;
        node.core.start(
            self.now,
            (edge, item),
            self.machine.request_cpu,
            width,
            order,
        );
        self.reschedule_core(parent);
    }

    /// A parent gives its children what it has of an item, and the rest as it comes.
    fn answer(&mut self, edge: usize, item: Item) {
        let parent = self.classes.edges[edge].parent;
        if self.nodes[parent].units[index(item)] == NOT_ASKED {
            self.ask(parent, item);
        }
        let have = self.nodes[parent].units[index(item)];
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

    /// Starts the first unit of an edge's queue on the parent's link.
    fn occupy(&mut self, edge: usize) {
        let Some(&(item, unit)) = self.queues[edge].0.front() else {
            return;
        };
        let bytes = self.unit_bytes(item, unit);
        let Edge { parent, width, .. } = self.classes.edges[edge];
        let order = self.made;
        let node = &mut self.nodes[parent];
        node.link
            .start(self.now, edge, bytes_f64(bytes), width, order);
        self.reschedule_link(parent);
    }

    /// A unit has left the parent's link.
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
        self.nodes[parent].seen.sent += bytes * u64::from(width);
        let receiver = &mut self.nodes[child];
        receiver.seen.received += bytes;
        // The unit came in while it went out; several parents at once share the downlink.
        let through = receiver.downlink_free + time(bytes_f64(bytes) / self.machine.link);
        receiver.downlink_free = through.max(self.now);
        let at = receiver.downlink_free + self.machine.hop;
        self.at(at, Event::Unit { class: child, item });
        if more {
            self.occupy(edge);
        }
    }

    fn arrived(&mut self, class: usize, item: Item) {
        let node = &mut self.nodes[class];
        let unit = node.units[index(item)];
        node.units[index(item)] += 1;
        let complete = node.units[index(item)] == self.unit_count(item);
        let node = &mut self.nodes[class];
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
        let node = &mut self.nodes[class];
        node.core_epoch += 1;
        let epoch = node.core_epoch;
        if let Some(at) = node.core.next_end() {
            self.at(at.max(self.now), Event::Core { class, epoch });
        }
    }

    fn reschedule_link(&mut self, class: usize) {
        let node = &mut self.nodes[class];
        node.link_epoch += 1;
        let epoch = node.link_epoch;
        if let Some(at) = node.link.next_end() {
            self.at(at.max(self.now), Event::Link { class, epoch });
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

//! The event loop: requests go up, and units come down.
//!
//! Each class of nodes is simulated by one of its nodes. A node requests a missing item from its
//! parent once, for its reader and all of its children. The parent's core is shared evenly among
//! requests, and its link among children. Units of an item are forwarded as they arrive. Events are
//! ordered by time, and events of the same time by the order in which they were scheduled, so a run
//! is reproducible.

use super::Scenario;
use super::classes::{Class, Classes, Edge};
use super::resource::{SharedResource, Time, time};
use super::workload::Item;
use crate::num::as_f64;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

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
    /// Items and bytes from storage.
    pub(super) storage_reads: u64,
    /// Bytes from storage.
    pub(super) storage_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Server {
    /// Processes requests.
    Core,
    /// Sends units.
    Link,
}

/// Items are identified by their index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A reader may continue.
    Reader { class: usize },
    /// A request has reached the parent.
    Request { edge: usize, item: usize },
    /// A request was processed, or a unit was sent, by a server of a class, unless its epoch is
    /// outdated.
    Served(usize, Server, u64),
    /// A unit has arrived.
    Unit { class: usize, item: usize },
}

#[derive(Default)]
struct Node {
    /// When its reader begins, if it has one.
    reader: Option<Time>,
    /// The core and the link. A job is a request, or the first unit of an edge's queue.
    servers: [SharedResource<(usize, usize)>; 2],
    /// The time until which received units keep the downlink busy.
    downlink_free: Time,
    /// The time until which requests keep storage busy.
    storage_free: Time,
    /// The number of units received of each item, or [`NOT_ASKED`].
    units: Vec<u32>,
    /// The edges to children that wait for the rest of an item.
    waiting: HashMap<usize, Vec<usize>>,
    /// The reader's next item, and the items that it waits for.
    next: usize,
    awaited: Vec<usize>,
    counts: ClassCounts,
}

const NOT_ASKED: u32 = u32::MAX;

pub(super) struct Engine<'a> {
    scenario: &'a Scenario,
    items: &'a [Item],
    /// The tree that each item comes down.
    trees: &'a [usize],
    classes: &'a Classes,
    nodes: Vec<Node>,
    /// The units that wait on each edge. The first one is being sent.
    queues: Vec<VecDeque<(usize, u32)>>,
    /// By time, and then by the order in which they were scheduled, which is unique.
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    /// The number of events scheduled so far.
    made: u64,
    now: Time,
}

impl<'a> Engine<'a> {
    /// Creates an engine. `readers` are the starts of all nodes' readers.
    pub(super) fn new(
        scenario: &'a Scenario,
        items: &'a [Item],
        trees: &'a [usize],
        classes: &'a Classes,
        readers: &[Option<Time>],
    ) -> Self {
        let node = |class: &Class| Node {
            reader: readers[class.example],
            // A core does one second of work per second.
            servers: [1.0, scenario.link].map(SharedResource::new),
            units: vec![NOT_ASKED; items.len()],
            ..Node::default()
        };
        Self {
            scenario,
            items,
            trees,
            classes,
            nodes: classes.classes.iter().map(node).collect(),
            queues: vec![VecDeque::new(); classes.edges.len()],
            events: BinaryHeap::new(),
            made: 0,
            now: 0,
        }
    }

    /// Runs until there are no more events. Returns the counts of each class, and the number of
    /// events.
    pub(super) fn run(mut self) -> (Vec<ClassCounts>, u64) {
        for class in 0..self.nodes.len() {
            // Only readers cause events. Other nodes wait for requests.
            if let Some(start) = self.nodes[class].reader {
                self.at(start, Event::Reader { class });
            }
        }
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            match event {
                Event::Reader { class } => self.read_on(class),
                Event::Request { edge, item } => self.requested(edge, item),
                Event::Served(class, server, epoch) => {
                    // Otherwise outdated: the server has been rescheduled since.
                    if epoch == self.server(class, server).epoch {
                        while let Some((edge, item)) = self.server(class, server).take_ended(at) {
                            match server {
                                Server::Core => self.answer(edge, item),
                                Server::Link => self.delivered(edge),
                            }
                        }
                        self.reschedule(class, server);
                    }
                }
                Event::Unit { class, item } => self.arrived(class, item),
            }
        }
        let counts = self.nodes.into_iter().map(|node| node.counts);
        (counts.collect(), self.made)
    }

    fn server(&mut self, class: usize, server: Server) -> &mut SharedResource<(usize, usize)> {
        &mut self.nodes[class].servers[server as usize]
    }

    /// Starts a job of `work` for each of the `width` children on an edge.
    fn serve(&mut self, server: Server, edge: usize, item: usize, work: f64) {
        let Edge { parent, width, .. } = self.classes.edges[edge];
        let (now, order) = (self.now, self.made);
        self.server(parent, server)
            .start(now, (edge, item), work, width, order);
        self.reschedule(parent, server);
    }

    fn reschedule(&mut self, class: usize, server: Server) {
        let now = self.now;
        if let Some((at, epoch)) = self.server(class, server).reschedule(now) {
            self.at(at, Event::Served(class, server, epoch));
        }
    }

    fn at(&mut self, at: Time, event: Event) {
        self.events.push(Reverse((at, self.made, event)));
        self.made += 1;
    }

    fn unit_count(&self, item: usize) -> u32 {
        let units = self.items[item].bytes.div_ceil(self.scenario.unit).max(1);
        u32::try_from(units).unwrap_or(NOT_ASKED - 1)
    }

    fn unit_bytes(&self, item: usize, unit: u32) -> u64 {
        let before = u64::from(unit) * self.scenario.unit;
        (self.items[item].bytes - before).min(self.scenario.unit)
    }

    /// Lets a reader request as much as its window allows.
    fn read_on(&mut self, class: usize) {
        loop {
            let node = &mut self.nodes[class];
            let item = node.next;
            if item == self.items.len() {
                if node.awaited.is_empty() {
                    node.counts.end = self.now;
                }
                return;
            }
            if node.awaited.len() >= self.scenario.window {
                return;
            }
            node.next += 1;
            let have = node.units[item];
            // The node has the item already, because a child requested it.
            if have == self.unit_count(item) {
                let think = time(self.scenario.think);
                if think > 0 {
                    return self.at(self.now + think, Event::Reader { class });
                }
                continue;
            }
            self.nodes[class].awaited.push(item);
            if have == NOT_ASKED {
                self.ask(class, item);
            }
        }
    }

    /// Sends a request to the parent or storage.
    fn ask(&mut self, class: usize, item: usize) {
        let node = &mut self.nodes[class];
        // Marks the item as requested, so that later requests for it are coalesced.
        node.units[item] = 0;
        if let Some(edge) = self.classes.classes[class].above[self.trees[item]] {
            node.counts.asked += 1;
            let at = self.now + time(self.scenario.hop);
            return self.at(at, Event::Request { edge, item });
        }
        node.counts.storage_reads += 1;
        node.counts.storage_bytes += self.items[item].bytes;
        let mut at = self.now.max(node.storage_free) + time(self.scenario.storage_latency);
        for unit in 0..self.unit_count(item) {
            at += time(as_f64(self.unit_bytes(item, unit)) / self.scenario.storage);
            self.at(at, Event::Unit { class, item });
        }
        self.nodes[class].storage_free = at;
    }

    fn requested(&mut self, edge: usize, item: usize) {
        let Edge { parent, width, .. } = self.classes.edges[edge];
        self.nodes[parent].counts.answered += u64::from(width);
        if self.scenario.request_cpu == 0.0 {
            self.answer(edge, item);
        } else {
            self.serve(Server::Core, edge, item, self.scenario.request_cpu);
        }
    }

    /// Sends the received units of an item to a child, and the rest when they arrive.
    fn answer(&mut self, edge: usize, item: usize) {
        let parent = self.classes.edges[edge].parent;
        if self.nodes[parent].units[item] == NOT_ASKED {
            self.ask(parent, item);
        }
        let have = self.nodes[parent].units[item];
        // Units that have arrived are sent at once, before the item is complete.
        for unit in 0..have {
            self.send(edge, item, unit);
        }
        if have < self.unit_count(item) {
            let waiting = &mut self.nodes[parent].waiting;
            waiting.entry(item).or_default().push(edge);
        }
    }

    fn send(&mut self, edge: usize, item: usize, unit: u32) {
        self.queues[edge].push_back((item, unit));
        // Otherwise another unit is being sent.
        if self.queues[edge].len() == 1 {
            self.occupy(edge);
        }
    }

    /// Starts to send the first unit of an edge's queue on the parent's link.
    fn occupy(&mut self, edge: usize) {
        if let Some(&(item, unit)) = self.queues[edge].front() {
            let bytes = as_f64(self.unit_bytes(item, unit));
            self.serve(Server::Link, edge, item, bytes);
        }
    }

    /// Handles a unit that has left the parent's link.
    fn delivered(&mut self, edge: usize) {
        let Some((item, unit)) = self.queues[edge].pop_front() else {
            return;
        };
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
        let through = receiver.downlink_free + time(as_f64(bytes) / self.scenario.link);
        receiver.downlink_free = through.max(self.now);
        let at = receiver.downlink_free + time(self.scenario.hop);
        self.at(at, Event::Unit { class: child, item });
        self.occupy(edge);
    }

    fn arrived(&mut self, class: usize, item: usize) {
        let unit_count = self.unit_count(item);
        let node = &mut self.nodes[class];
        let unit = node.units[item];
        node.units[item] += 1;
        let complete = unit + 1 == unit_count;
        let waiting = if complete {
            node.waiting.remove(&item).unwrap_or_default()
        } else {
            node.waiting.get(&item).cloned().unwrap_or_default()
        };
        for edge in waiting {
            self.send(edge, item, unit);
        }
        let awaited = &mut self.nodes[class].awaited;
        if complete && let Some(found) = awaited.iter().position(|&held| held == item) {
            awaited.swap_remove(found);
            let at = self.now + time(self.scenario.think);
            self.at(at, Event::Reader { class });
        }
    }
}

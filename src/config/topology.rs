//! Parses the switches of hosts, and orders the host list so that few edges of the tree cross switches.
//!
//! Pure: takes a text and a list, and returns a permutation that is the same on every node. Only the switch
//! that a host is attached to matters: an edge either stays below that switch or crosses, whatever the higher
//! levels are.
//!
//! The shape of the tree depends only on its size, so the task is to assign hosts to positions. If the hosts of
//! a switch form one connected piece of the tree, the switch costs one crossing edge; each further piece costs
//! another. [`Topology::order`] cuts connected pieces off the tree, the largest switch first, each where the
//! smallest rest remains. It keeps the given order unless the result has fewer crossing edges. The result is
//! not always optimal.

mod carve;

use super::hosts::{HostsError, MEMBERS_MAX, fold, host_of, parse};
use super::settings::{Crossings, Member};
use copperfs_overlay::Tree;
use std::collections::{BTreeMap, HashMap};

/// Why a topology cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// A line has neither of the two forms.
    #[error(
        "line {line}: {why}. A line is SwitchName=s1 Nodes=nid[001-016] as in Slurm's topology.conf, \
         or a rack and its hosts: r1 nid[001-016]"
    )]
    Line {
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// A host is attached to two switches.
    #[error("{host} hangs on two switches, {first} and {second}; a host has one place")]
    TwoPlaces {
        /// The host.
        host: String,
        /// Its switch by an earlier line.
        first: String,
        /// Its switch by a later one.
        second: String,
    },
}

/// The switch of each host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    /// The names of the switches, by number.
    switches: Vec<String>,
    /// The number of each host's switch, by the host's name in lower case.
    switch_of: HashMap<String, usize>,
}

impl Topology {
    /// Reads Slurm's `topology.conf`, or lines of a rack and its hosts. `#` begins a comment, `\` at
    /// the end of a line continues it, hosts may be in Slurm's short form.
    ///
    /// # Errors
    /// A line has another form, or a host is attached to two switches.
    pub fn parse(text: &str) -> Result<Self, TopologyError> {
        let mut topology = Self::default();
        for (number, line) in logical_lines(text) {
            let wrong = |why: String| TopologyError::Line { line: number, why };
            let found = if line.contains('=') {
                slurm_line(&line).map_err(wrong)?
            } else {
                let rack = line.split_once(char::is_whitespace);
                Some(rack.ok_or_else(|| wrong(format!("{line} has no hosts")))?)
            };
            let Some((switch, hosts)) = found else {
                continue;
            };
            let hosts = hosts.split_whitespace().collect::<Vec<_>>().join(",");
            let members = parse(&hosts, 1).map_err(|error: HostsError| wrong(error.to_string()))?;
            topology.add(switch, &members, number)?;
        }
        Ok(topology)
    }

    fn add(&mut self, switch: &str, members: &[Member], line: usize) -> Result<(), TopologyError> {
        let known = self.switches.iter().position(|known| known == switch);
        let number = known.unwrap_or_else(|| {
            self.switches.push(switch.to_owned());
            self.switches.len() - 1
        });
        if self.switch_of.len() + members.len() > MEMBERS_MAX {
            let why = format!("with it there are more than {MEMBERS_MAX} hosts");
            return Err(TopologyError::Line { line, why });
        }
        for member in members {
            let host = host_of(member).to_ascii_lowercase();
            let before = self.switch_of.insert(host.clone(), number);
            if let Some(before) = before.filter(|before| *before != number) {
                return Err(TopologyError::TwoPlaces {
                    host,
                    first: self.switches[before].clone(),
                    second: switch.to_owned(),
                });
            }
        }
        Ok(())
    }

    /// The number of the switch of `member`, by its full name or its first label.
    fn switch_number(&self, member: &Member) -> Option<usize> {
        let host = host_of(member).to_ascii_lowercase();
        let label = host.split('.').next().unwrap_or_default();
        let mut names = [host.as_str(), label].into_iter();
        names.find_map(|name| self.switch_of.get(name).copied())
    }

    /// The name of the rack, or of the lowest switch, of `member`; `None` for a host without a line.
    #[must_use]
    pub fn rack(&self, member: &Member) -> Option<&str> {
        let number = self.switch_number(member)?;
        Some(&self.switches[number])
    }

    /// Orders `members` so that few edges of the `roots` trees of `arity` cross switches. Rank 0 does not
    /// change, and the result never has more crossing edges than the given order. Returns the given index of
    /// the member at each new rank.
    #[must_use]
    pub fn order(&self, members: &[Member], arity: usize, roots: usize) -> (Vec<usize>, Crossings) {
        order(&self.groups(members), arity, roots)
    }

    /// The members' switches as numbers that do not depend on the order of the list. A host without a line has
    /// a switch of its own.
    fn groups(&self, members: &[Member]) -> Vec<u64> {
        // Numbered by name, because every node must derive the same order whatever the order of its file is.
        let members = members.iter();
        let places = members.map(|member| match self.switch_number(member) {
            Some(number) => (false, self.switches[number].as_str()),
            None => (true, member.address.as_str()),
        });
        let places: Vec<(bool, &str)> = places.collect();
        let mut sorted = places.clone();
        sorted.sort_unstable();
        let numbers = places
            .iter()
            .map(|place| sorted.partition_point(|other| other < place) as u64);
        numbers.collect()
    }

    /// A topology with the switches of `members` only, for nodes that do not have the file.
    #[must_use]
    pub fn text_for(&self, members: &[Member]) -> String {
        let mut hosts: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for member in members {
            if let Some(place) = self.switch_number(member) {
                hosts.entry(place).or_default().push(host_of(member));
            }
        }
        let mut text = String::new();
        for (place, mut hosts) in hosts {
            hosts.sort_unstable();
            text += &format!("{} {}\n", self.switches[place], fold(hosts));
        }
        text
    }
}

/// The lines without comments, with continuations joined, and their line numbers.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        let begins = line.strip_suffix('\\').map(str::trim_end);
        let (line, goes_on) = (begins.unwrap_or(line), begins.is_some());
        match lines.last_mut() {
            Some((_, begun)) if open => {
                begun.push(' ');
                begun.push_str(line);
            }
            _ => lines.push((number, line.to_owned())),
        }
        open = goes_on;
    }
    lines.retain(|(_, line)| !line.is_empty());
    lines
}

/// The switch and the hosts of a line of `topology.conf`; `None` for a line that only connects switches.
fn slurm_line(line: &str) -> Result<Option<(&str, &str)>, String> {
    let (mut name, mut nodes, mut joins) = (None, None, false);
    for word in line.split_whitespace() {
        let (key, value) = word
            .split_once('=')
            .ok_or_else(|| format!("{word:?} has no ="))?;
        match key.to_ascii_lowercase().as_str() {
            "switchname" => name = Some(value),
            "nodes" => nodes = Some(value),
            "switches" => joins = true,
            "linkspeed" => {}
            _ => return Err(format!("unknown key {key}")),
        }
    }
    match (name, nodes) {
        (Some(name), Some(nodes)) => Ok(Some((name, nodes))),
        (Some(_), None) if joins => Ok(None),
        (None, _) => Err("SwitchName is missing".into()),
        (Some(name), None) => Err(format!("{name} has neither Nodes nor Switches")),
    }
}

/// See [`Topology::order`]; `groups` has the switch of each member.
fn order(groups: &[u64], arity: usize, roots: usize) -> (Vec<usize>, Crossings) {
    let given: Vec<usize> = (0..groups.len()).collect();
    let before = crossing(groups, &given, arity, roots);
    let mut best = (before, given);
    if let Some(tree) = Tree::new(groups.len(), arity) {
        for order in carve::candidates(groups, tree) {
            let count = crossing(groups, &order, arity, roots);
            if count < best.0 {
                best = (count, order);
            }
        }
    }
    let (used, order) = best;
    let crossings = Crossings {
        edges: groups.len().saturating_sub(1) * roots,
        given: before,
        used,
    };
    (order, crossings)
}

/// Edges of the `roots` trees that join different groups; tree k is the list rotated by k·N/r.
fn crossing(groups: &[u64], order: &[usize], arity: usize, roots: usize) -> usize {
    let len = order.len();
    let Some(tree) = Tree::new(len, arity) else {
        return 0;
    };
    let group = |position: usize, root: usize| groups[order[(position + root * len / roots) % len]];
    let crosses = |position: usize, root: usize| {
        tree.parent(position)
            .is_some_and(|parent| group(position, root) != group(parent, root))
    };
    (0..roots)
        .map(|root| (1..len).filter(|position| crosses(*position, root)).count())
        .sum()
}

#[cfg(test)]
mod tests;

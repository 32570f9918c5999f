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
    switch_of: HashMap<String, u32>,
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
            let (switch, hosts) = match line.split_once('=') {
                Some(_) => match slurm_line(&line).map_err(wrong)? {
                    Some(found) => found,
                    None => continue,
                },
                None => match line.split_once(char::is_whitespace) {
                    Some((rack, hosts)) => (rack.to_owned(), hosts.to_owned()),
                    None => return Err(wrong(format!("{line} has no hosts"))),
                },
            };
            let hosts = hosts.split_whitespace().collect::<Vec<_>>().join(",");
            let members = parse(&hosts, 1).map_err(|error: HostsError| wrong(error.to_string()))?;
            topology.add(&switch, &members, number)?;
        }
        Ok(topology)
    }

    fn add(&mut self, switch: &str, members: &[Member], line: usize) -> Result<(), TopologyError> {
        let known = self.switches.iter().position(|known| known == switch);
        let index = known.unwrap_or_else(|| {
            self.switches.push(switch.to_owned());
            self.switches.len() - 1
        });
        let too_many = |_| TopologyError::Line {
            line,
            why: "too many switches".into(),
        };
        let number = u32::try_from(index).map_err(too_many)?;
        if self.switch_of.len() + members.len() > MEMBERS_MAX {
            return Err(too_many_hosts(line));
        }
        for member in members {
            let host = host_of(member).to_ascii_lowercase();
            let before = self.switch_of.insert(host.clone(), number);
            if let Some(before) = before.filter(|before| *before != number) {
                return Err(TopologyError::TwoPlaces {
                    host,
                    first: self.switches[before as usize].clone(),
                    second: switch.to_owned(),
                });
            }
        }
        Ok(())
    }

    /// The number of the switch of `member`, by its full name or its first label.
    fn switch_number(&self, member: &Member) -> Option<u32> {
        let host = host_of(member).to_ascii_lowercase();
        let label = || host.split('.').next().unwrap_or_default();
        self.switch_of
            .get(host.as_str())
            .or_else(|| self.switch_of.get(label()))
            .copied()
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
        let mut by_name: Vec<(&str, usize)> = Vec::new();
        by_name.extend(
            self.switches
                .iter()
                .enumerate()
                .map(|(i, name)| (name.as_str(), i)),
        );
        by_name.sort_unstable();
        let mut number = vec![0; self.switches.len()];
        for (rank, (_, index)) in (0..).zip(by_name) {
            number[index] = rank;
        }
        let mut unknown: Vec<&str> = members
            .iter()
            .filter(|member| self.switch_number(member).is_none())
            .map(|member| member.address.as_str())
            .collect();
        unknown.sort_unstable();
        let alone = |member: &Member| unknown.partition_point(|a| *a < member.address.as_str());
        let group = |member: &Member| match self.switch_number(member) {
            Some(place) => number[place as usize],
            None => (self.switches.len() + alone(member)) as u64,
        };
        members.iter().map(group).collect()
    }

    /// A topology with the switches of `members` only, for nodes that do not have the file.
    #[must_use]
    pub fn text_for(&self, members: &[Member]) -> String {
        let mut hosts: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
        for member in members {
            if let Some(place) = self.switch_number(member) {
                hosts.entry(place).or_default().push(host_of(member));
            }
        }
        let mut text = String::new();
        for (place, mut hosts) in hosts {
            hosts.sort_unstable();
            let name = &self.switches[place as usize];
            text.push_str(&format!("{name} {}\n", fold(hosts)));
        }
        text
    }
}

fn too_many_hosts(line: usize) -> TopologyError {
    TopologyError::Line {
        line,
        why: format!("with it there are more than {MEMBERS_MAX} hosts"),
    }
}

/// The lines without comments, with continuations joined, and their line numbers.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        let (line, goes_on) = match line.strip_suffix('\\') {
            Some(line) => (line.trim_end(), true),
            None => (line, false),
        };
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
fn slurm_line(line: &str) -> Result<Option<(String, String)>, String> {
    let (mut name, mut nodes, mut joins) = (None, None, false);
    for word in line.split_whitespace() {
        let (key, value) = word
            .split_once('=')
            .ok_or_else(|| format!("{word:?} has no ="))?;
        match key.to_ascii_lowercase().as_str() {
            "switchname" => name = Some(value.to_owned()),
            "nodes" => nodes = Some(value.to_owned()),
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
    let edges = groups.len().saturating_sub(1) * roots;
    let (used, order) = best;
    let crossings = Crossings {
        edges,
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

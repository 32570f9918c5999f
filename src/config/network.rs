//! The member list, this node's rank in it, and the address on which this node listens.

use super::hosts::launcher::Launcher;
use super::hosts::{self, DEFAULT_PORT, HostsError};
use super::machine::Machine;
use super::reader::{Reader, number_at_least};
use super::secret_file::check_secret_file;
use super::settings::{Crossings, Member, NetworkPrefix, NodeIdentity};
use super::topology::Topology;
use super::{ConfigError, Location, ValueError};
use copperfs_overlay::{Forest, ROOTS_MAX};
use copperfs_policy::amounts::parse_bool;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// This node and the other members.
pub(super) struct Network {
    pub(super) peers: Peers,
    pub(super) roots: Vec<usize>,
    pub(super) listen: Option<SocketAddr>,
    pub(super) secret_file: Option<PathBuf>,
    pub(super) network: Option<NetworkPrefix>,
}

/// The member list, and this node's identity in it.
pub(super) struct Peers {
    pub(super) members: Vec<Member>,
    pub(super) identity: NodeIdentity,
    pub(super) crossings: Option<Crossings>,
}

impl Network {
    pub(super) fn resolve(reader: Reader<'_>, machine: &Machine) -> Result<Self, ConfigError> {
        let listen = reader.optional("listen", ListenAddress::from_str)?;
        let port = listen.and_then(|listen| listen.port);
        let default_port = port.filter(|port| *port > 0).unwrap_or(DEFAULT_PORT);
        let peers = Peers::resolve(reader, machine, default_port)?;
        let roots = roots(reader, &peers.members)?;
        let network = reader.text("interface").and_then(parse_network);
        let network = network
            .transpose()
            .map_err(|error| reader.wrong("interface", error))?;
        let secret_file = reader.path("secret_file")?;
        let alone = peers.members.len() == 1 && peers.identity == NodeIdentity::Member(0);
        let listens = !alone || listen.is_some();
        let mut socket = None;
        // A node that is alone does not listen, but its secret and interface are checked if they are set.
        if listens || secret_file.is_some() {
            let secret = secret_file.as_ref().ok_or(ConfigError::NoSecret)?;
            check_secret_file(secret, machine.uid)?;
            let address = listen.and_then(|listen| listen.address);
            let address = local_address(reader, machine, address)?;
            let own_port = match peers.identity {
                NodeIdentity::Member(rank) => hosts::port_of(&peers.members[rank]).parse().ok(),
                // No node connects to a guest.
                NodeIdentity::Guest(_) => Some(0),
            };
            let port = port.or(own_port).unwrap_or(DEFAULT_PORT);
            socket = listens.then(|| SocketAddr::new(address, port));
        }
        Ok(Self {
            peers,
            roots,
            listen: socket,
            secret_file,
            network,
        })
    }
}

impl Peers {
    fn resolve(
        reader: Reader<'_>,
        machine: &Machine,
        default_port: u16,
    ) -> Result<Self, ConfigError> {
        let given_rank = reader.optional("rank", number_at_least::<usize>(0))?;
        let suffix = reader.optional("host_suffix", hosts::check_suffix)?;
        let joins = reader.parsed("join", parse_bool)?;
        let Some(text) = reader.text("hosts") else {
            let members = vec![Member {
                name: machine.host_name().to_owned(),
                address: format!("{}:{default_port}", machine.host_name()),
            }];
            let rank = hosts::rank(&members, given_rank.or(Some(0)), &[])
                .map_err(|error| reader.wrong("rank", error))?;
            return Ok(Self {
                members,
                identity: NodeIdentity::Member(rank),
                crossings: None,
            });
        };
        let list = host_list(text, machine, reader.layer.location("hosts"))?;
        let members =
            hosts::parse(&list, default_port).map_err(|error| reader.wrong("hosts", error))?;
        let mut reached = members.clone();
        if let Some(suffix) = suffix {
            hosts::add_suffix(&mut reached, &suffix);
        }
        let identity = match own_rank(&members, &reached, given_rank, machine) {
            Ok(rank) => NodeIdentity::Member(rank),
            Err(HostsError::NotListed { .. }) if joins => {
                NodeIdentity::Guest(machine.host_name().to_owned())
            }
            Err(error) if given_rank.is_some() => return Err(reader.wrong("rank", error)),
            Err(error) => return Err(reader.wrong("hosts", error)),
        };
        let Some(text) = reader.text("topology") else {
            return Ok(Self {
                members: reached,
                identity,
                crossings: None,
            });
        };
        let arity = reader.optional("arity", number_at_least(1))?.unwrap_or(1);
        let topology = topology(text, reader.layer.location("topology"))?;
        // Roots that are named do not change the order; `roots` checks them later.
        let trees = reader.text("roots").and_then(|text| text.parse().ok());
        let trees = trees.unwrap_or(1).clamp(1, members.len().min(ROOTS_MAX));
        let (order, crossings) = topology.order(&members, arity, trees);
        // The rank so far is that in the given order.
        let identity = match identity {
            NodeIdentity::Member(rank) => {
                let rank = order.iter().position(|given| *given == rank);
                NodeIdentity::Member(rank.unwrap_or_default())
            }
            guest => guest,
        };
        Ok(Self {
            members: order.iter().map(|given| reached[*given].clone()).collect(),
            identity,
            crossings: Some(crossings),
        })
    }
}

/// The ranks of the roots: a number of them, spread evenly, or the named members.
fn roots(reader: Reader<'_>, members: &[Member]) -> Result<Vec<usize>, ConfigError> {
    let Some(text) = reader.text("roots") else {
        return Ok(vec![0]);
    };
    let max = members.len().min(ROOTS_MAX);
    if let Ok(count) = text.parse::<usize>() {
        if !(1..=max).contains(&count) {
            let why = format!("{count} roots among {} nodes; 1 to {max}", members.len());
            return Err(reader.wrong("roots", why));
        }
        return Ok(Forest::spread(members.len(), count));
    }
    let mut roots = Vec::new();
    for name in text
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
    {
        let rank = members.iter().position(|member| member.name == name);
        let Some(rank) = rank else {
            let why = format!("{name:?} is not in the host list; write names as they stand there");
            return Err(reader.wrong("roots", why));
        };
        if roots.contains(&rank) {
            return Err(reader.wrong("roots", format!("{name} is named twice")));
        }
        roots.push(rank);
    }
    if roots.is_empty() || roots.len() > max {
        let why = format!("{} roots; 1 to {max}", roots.len());
        return Err(reader.wrong("roots", why));
    }
    Ok(roots)
}

/// This machine's rank: by the names in the list, else by the names in `reached` on the fast network, else by
/// Slurm's name for this node. Slurm's name comes last, because an MPI launcher passes on the variable of the
/// node that it was started on.
fn own_rank(
    members: &[Member],
    reached: &[Member],
    given: Option<usize>,
    machine: &Machine,
) -> Result<usize, HostsError> {
    let not_listed = match hosts::rank(members, given, &machine.host_names) {
        Err(error @ HostsError::NotListed { .. }) => error,
        found => return found,
    };
    let slurm = machine.variables.get("SLURMD_NODENAME").cloned();
    hosts::rank(reached, None, &machine.host_names)
        .or_else(|_same| hosts::rank(members, None, slurm.as_slice()))
        .map_err(|_same| not_listed)
}

/// The address to listen on: `given`, else the address of the interface, else all.
fn local_address(
    reader: Reader<'_>,
    machine: &Machine,
    given: Option<IpAddr>,
) -> Result<IpAddr, ConfigError> {
    let Some(interface) = reader.text("interface") else {
        return Ok(given.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
    };
    if let Some(given) = given.filter(|address| !address.is_unspecified()) {
        let why = format!("--listen already says {given}; give one of the two");
        return Err(reader.wrong("interface", why));
    }
    let candidates: Vec<IpAddr> = match parse_network(interface) {
        Some(network) => {
            let network = network.map_err(|why| reader.wrong("interface", why))?;
            let addresses = machine.addresses.iter().map(|(_, address)| *address);
            addresses
                .filter(|address| network.holds(*address))
                .collect()
        }
        None => {
            let named = machine
                .addresses
                .iter()
                .filter(|(name, _)| name == interface);
            named.map(|(_, address)| *address).collect()
        }
    };
    // A link-local IPv6 address would need its zone, so it is the last choice.
    let preference = |address: &IpAddr| match address {
        IpAddr::V4(_) => 0,
        IpAddr::V6(v6) if !v6.is_unicast_link_local() => 1,
        IpAddr::V6(_) => 2,
    };
    candidates
        .into_iter()
        .min_by_key(preference)
        .ok_or_else(|| {
            let known: Vec<String> = machine
                .addresses
                .iter()
                .map(|(name, address)| format!("{name} {address}"))
                .collect();
            let why = format!(
                "no address of this host is on {interface:?}; it has {}",
                known.join(", ")
            );
            reader.wrong("interface", why)
        })
}

/// Parses a network such as `10.12.0.0/16`. Returns `None` for the name of an interface.
fn parse_network(text: &str) -> Option<Result<NetworkPrefix, ValueError>> {
    let (address, bits) = text.split_once('/')?;
    let address = address.parse::<IpAddr>().ok();
    let network = address.zip(bits.parse().ok()).and_then(|(address, bits)| {
        let width = if address.is_ipv4() { 32 } else { 128 };
        (bits <= width).then_some(NetworkPrefix { address, bits })
    });
    Some(
        network
            .ok_or_else(|| format!("{text:?} is not a network; write it as 10.12.0.0/16").into()),
    )
}

/// `ADDR:PORT`, `ADDR` or `:PORT`.
#[derive(Clone, Copy)]
struct ListenAddress {
    address: Option<IpAddr>,
    port: Option<u16>,
}

impl FromStr for ListenAddress {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (address, port) = if let Ok(address) = text.parse::<SocketAddr>() {
            (Some(address.ip()), Some(address.port()))
        } else if let Ok(address) = text.parse() {
            (Some(address), None)
        } else if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse().ok()) {
            (None, Some(port))
        } else {
            let forms = "write 0.0.0.0:7470, 10.1.2.3, [::]:7470 or :7470";
            return Err(format!("{text:?} is not an address; {forms}").into());
        };
        Ok(Self { address, port })
    }
}

/// The text of a host list: from the launcher or the file that `given` names, or `given` itself. `location`
/// is that of `given`, for errors. A text with a slash and without a comma names a file
/// ([`super::Layer::absolute`] makes it an absolute path).
///
/// # Errors
/// The file cannot be read, or this is no job of that launcher.
pub fn host_list(
    given: &str,
    machine: &Machine,
    location: Location,
) -> Result<String, ConfigError> {
    if let Some(launcher) = Launcher::named(given) {
        let hosts = launcher.hosts(machine);
        return hosts.map_err(|error| ConfigError::value(location, error));
    }
    if given.contains(',') || !given.contains('/') {
        return Ok(given.to_owned());
    }
    std::fs::read_to_string(given)
        .map_err(|source| ConfigError::unreadable("host list", given.as_ref(), source))
}

/// The topology in the file that `given` names. A `given` of several lines is a topology itself: a launch
/// sends it to nodes that do not have the file. `location` is that of `given`, for errors.
///
/// # Errors
/// The topology cannot be read or parsed.
pub fn topology(given: &str, location: Location) -> Result<Topology, ConfigError> {
    if given.contains('\n') {
        return Topology::parse(given).map_err(|error| ConfigError::value(location, error));
    }
    let text = std::fs::read_to_string(given)
        .map_err(|source| ConfigError::unreadable("topology file", given.as_ref(), source))?;
    Topology::parse(&text).map_err(|source| {
        let path = given.to_owned();
        ConfigError::value(location, ValueError::TopologyFile { path, source })
    })
}

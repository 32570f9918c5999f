//! The member list, this node's rank in it, and the address on which this node listens.

use super::error::InvalidPart;
use super::hosts::launcher::Launcher;
use super::hosts::{self, DEFAULT_PORT, HostsError};
use super::layer::Layer;
use super::machine::Machine;
use super::reader::number_at_least;
use super::secret_file::check_secret_file;
use super::settings::{Crossings, Member, NetworkPrefix, NodeIdentity};
use super::topology::Topology;
use super::{ConfigError, Location, ValueError};
use copperfs_overlay::{Forest, ROOTS_MAX};
use copperfs_policy::amounts::parse_bool;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// This node and the other members.
pub(super) struct Network {
    pub(super) members: Vec<Member>,
    /// This node's identity in the member list.
    pub(super) identity: NodeIdentity,
    pub(super) crossings: Option<Crossings>,
    /// The rack of the members, if each rack is an instance of its own.
    pub(super) rack: Option<String>,
    pub(super) roots: Vec<usize>,
    pub(super) listen: Option<SocketAddr>,
    pub(super) secret_file: Option<PathBuf>,
    pub(super) network: Option<NetworkPrefix>,
}

impl Network {
    pub(super) fn resolve(layer: &Layer, machine: &Machine) -> Result<Self, ConfigError> {
        let listen = layer.optional("listen", listen_address)?;
        let (address, port) = listen.unwrap_or_default();
        let default_port = port.filter(|port| *port > 0).unwrap_or(DEFAULT_PORT);
        let Peers {
            members,
            identity,
            crossings,
            rack,
            others,
        } = peers(layer, machine, default_port)?;
        let roots = roots(layer, &members, &others)?;
        let network = layer.value("interface").and_then(parse_network);
        let network = network
            .transpose()
            .map_err(|error| layer.wrong("interface", error))?;
        let secret_file = layer.path("secret_file")?;
        let alone = members.len() == 1 && identity == NodeIdentity::Member(0);
        let listens = !alone || listen.is_some();
        let mut socket = None;
        // A node that is alone does not listen, but its secret and interface are checked if they are set.
        if listens || secret_file.is_some() {
            let secret = secret_file.as_ref().ok_or(ConfigError::NoSecret)?;
            check_secret_file(secret, machine.uid)?;
            let address = local_address(layer, machine, address, network)?;
            let own_port = match identity {
                NodeIdentity::Member(rank) => hosts::port_of(&members[rank]).parse().ok(),
                // No node connects to a guest.
                NodeIdentity::Guest(_) => Some(0),
            };
            let port = port.or(own_port).unwrap_or(DEFAULT_PORT);
            socket = listens.then(|| SocketAddr::new(address, port));
        }
        Ok(Self {
            members,
            identity,
            crossings,
            rack,
            roots,
            listen: socket,
            secret_file,
            network,
        })
    }
}

/// The nodes of this instance.
struct Peers {
    /// In the order of the tree.
    members: Vec<Member>,
    identity: NodeIdentity,
    /// The crossing edges, if a topology has ordered the members.
    crossings: Option<Crossings>,
    /// The rack of the members, if each rack is an instance of its own.
    rack: Option<String>,
    /// The members of the host list that belong to other instances.
    others: Vec<Member>,
}

impl Peers {
    /// One instance of all `members`, which no topology has ordered.
    fn all(members: Vec<Member>, identity: NodeIdentity) -> Self {
        Self {
            members,
            identity,
            crossings: None,
            rack: None,
            others: Vec::new(),
        }
    }
}

/// The nodes of this node's instance, and its identity among them.
fn peers(layer: &Layer, machine: &Machine, default_port: u16) -> Result<Peers, ConfigError> {
    let per_rack = instance_per_rack(layer)?;
    let given_rank = layer.optional("rank", number_at_least::<usize>(0))?;
    let suffix = layer.optional("host_suffix", hosts::check_suffix)?;
    let joins = layer.parsed("join", parse_bool)?;
    let Some(text) = layer.value("hosts") else {
        let members = vec![Member {
            name: machine.host_name().to_owned(),
            address: format!("{}:{default_port}", machine.host_name()),
        }];
        let rank = hosts::rank(&members, given_rank.or(Some(0)), &[])
            .map_err(|error| layer.wrong("rank", error))?;
        return Ok(Peers::all(members, NodeIdentity::Member(rank)));
    };
    let list = host_list(text, machine, layer.location("hosts"))?;
    let members = hosts::parse(&list, default_port).map_err(|error| layer.wrong("hosts", error))?;
    let mut reached = members.clone();
    if let Some(suffix) = suffix {
        hosts::add_suffix(&mut reached, &suffix);
    }
    let identity = match own_rank(&members, &reached, given_rank, machine) {
        Ok(rank) => NodeIdentity::Member(rank),
        Err(HostsError::NotListed { .. }) if joins => {
            NodeIdentity::Guest(machine.host_name().to_owned())
        }
        Err(error) if given_rank.is_some() => return Err(layer.wrong("rank", error)),
        Err(error) => return Err(layer.wrong("hosts", error)),
    };
    let Some(text) = layer.value("topology") else {
        return Ok(Peers::all(reached, identity));
    };
    let topology = topology(text, layer.location("topology"))?;
    if per_rack {
        return in_rack(layer, &topology, (members, reached), identity);
    }
    let arity = layer.optional("arity", number_at_least(1))?.unwrap_or(1);
    // Roots that are named do not change the order; `roots` checks them later.
    let trees = layer.value("roots").and_then(|text| text.parse().ok());
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
    let ordered = order.iter().map(|given| reached[*given].clone());
    Ok(Peers {
        crossings: Some(crossings),
        ..Peers::all(ordered.collect(), identity)
    })
}

/// Whether each rack of the topology is an instance of its own.
///
/// # Errors
/// The value is unknown, or each rack is, and there is no topology.
pub fn instance_per_rack(layer: &Layer) -> Result<bool, ConfigError> {
    let per_rack = layer.parsed("instance_per", |text| match text {
        "cluster" => Ok(false),
        "rack" => Ok(true),
        _ => Err(format!("{text:?} is neither cluster nor rack")),
    })?;
    if !per_rack {
        return Ok(false);
    }
    if layer.value("topology").is_none() {
        let why = "rack needs a topology, which names the racks";
        return Err(layer.wrong("instance_per", why));
    }
    Ok(true)
}

/// The rack of `member`.
///
/// # Errors
/// The topology has no line for it.
pub fn rack_of<'a>(
    layer: &Layer,
    topology: &'a Topology,
    member: &Member,
) -> Result<&'a str, ConfigError> {
    topology.rack(member).ok_or_else(|| {
        let why = format!(
            "{} is in no line of it, and each rack is an instance of its own (instance_per): add a \
             line, or remove the host from the host list",
            member.name
        );
        layer.wrong("topology", why)
    })
}

/// The nodes of this node's rack. `members` has the whole host list twice: by the listed names, and by those
/// under which the nodes are reached. A guest belongs to the rack that the topology names for its host.
fn in_rack(
    layer: &Layer,
    topology: &Topology,
    (members, reached): (Vec<Member>, Vec<Member>),
    identity: NodeIdentity,
) -> Result<Peers, ConfigError> {
    let racks: Vec<&str> = members
        .iter()
        .map(|member| rack_of(layer, topology, member))
        .collect::<Result<_, _>>()?;
    let own = match &identity {
        NodeIdentity::Member(rank) => racks[*rank],
        NodeIdentity::Guest(name) => {
            let guest = Member {
                name: name.clone(),
                address: format!("{name}:{DEFAULT_PORT}"),
            };
            let rack = rack_of(layer, topology, &guest)?;
            if !racks.contains(&rack) {
                let why = format!("{name} is in rack {rack}, of which the host list has no node");
                return Err(layer.wrong("topology", why));
            }
            rack
        }
    };
    let identity = match identity {
        NodeIdentity::Member(rank) => {
            let before = racks[..rank].iter().filter(|rack| **rack == own);
            NodeIdentity::Member(before.count())
        }
        guest => guest,
    };
    let (members, others): (Vec<_>, Vec<_>) = reached
        .into_iter()
        .zip(&racks)
        .partition(|(_, rack)| **rack == own);
    let only = |pairs: Vec<(Member, _)>| pairs.into_iter().map(|(member, _)| member).collect();
    Ok(Peers {
        members: only(members),
        identity,
        crossings: None,
        rack: Some(own.to_owned()),
        others: only(others),
    })
}

/// The ranks of the roots: a number of them, spread evenly, or the named members. Names of `others`, which are in
/// other instances, are for those.
fn roots(layer: &Layer, members: &[Member], others: &[Member]) -> Result<Vec<usize>, ConfigError> {
    let Some(text) = layer.value("roots") else {
        return Ok(vec![0]);
    };
    let max = members.len().min(ROOTS_MAX);
    if let Ok(count) = text.parse::<usize>() {
        if !(1..=max).contains(&count) {
            let why = format!("{count} roots among {} nodes; 1 to {max}", members.len());
            return Err(layer.wrong("roots", why));
        }
        return Ok(Forest::spread(members.len(), count));
    }
    let mut roots = Vec::new();
    let names = text.split(',').map(str::trim);
    for name in names.filter(|name| !name.is_empty()) {
        let rank = members.iter().position(|member| member.name == name);
        let Some(rank) = rank else {
            if others.iter().any(|member| member.name == name) {
                continue;
            }
            let why = format!("{name:?} is not in the host list; write names as they stand there");
            return Err(layer.wrong("roots", why));
        };
        if roots.contains(&rank) {
            return Err(layer.wrong("roots", format!("{name} is named twice")));
        }
        roots.push(rank);
    }
    if roots.is_empty() && !others.is_empty() {
        let why = "it names no node of this node's rack, which is an instance of its own and needs a root";
        return Err(layer.wrong("roots", why));
    }
    if roots.is_empty() || roots.len() > max {
        let why = format!("{} roots; 1 to {max}", roots.len());
        return Err(layer.wrong("roots", why));
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

/// The address to listen on: `given`, else the address of the interface or `network`, else all.
fn local_address(
    layer: &Layer,
    machine: &Machine,
    given: Option<IpAddr>,
    network: Option<NetworkPrefix>,
) -> Result<IpAddr, ConfigError> {
    let Some(interface) = layer.value("interface") else {
        return Ok(given.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
    };
    if let Some(given) = given.filter(|address| !address.is_unspecified()) {
        let why = format!("--listen already says {given}; give one of the two");
        return Err(layer.wrong("interface", why));
    }
    let addresses = machine.addresses.iter();
    let candidates = addresses.filter(|(name, address)| match network {
        Some(network) => network.holds(*address),
        None => name == interface,
    });
    // A link-local IPv6 address would need its zone, so it is the last choice.
    let preference = |address: &IpAddr| match address {
        IpAddr::V4(_) => 0,
        IpAddr::V6(v6) if !v6.is_unicast_link_local() => 1,
        IpAddr::V6(_) => 2,
    };
    let candidates = candidates.map(|(_, address)| *address);
    candidates.min_by_key(preference).ok_or_else(|| {
        let known = machine.addresses.iter();
        let known = known.map(|(name, address)| format!("{name} {address}"));
        let known = known.collect::<Vec<_>>().join(", ");
        let why = format!("no address of this host is on {interface:?}; it has {known}");
        layer.wrong("interface", why)
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
    let why = || format!("{text:?} is not a network; write it as 10.12.0.0/16").into();
    Some(network.ok_or_else(why))
}

/// Parses `ADDR:PORT`, `ADDR` or `:PORT`.
fn listen_address(text: &str) -> Result<(Option<IpAddr>, Option<u16>), ValueError> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok((Some(address.ip()), Some(address.port())));
    }
    if let Ok(address) = text.parse() {
        return Ok((Some(address), None));
    }
    match text.strip_prefix(':').map(str::parse) {
        Some(Ok(port)) => Ok((None, Some(port))),
        _ => {
            let forms = "write 0.0.0.0:7470, 10.1.2.3, [::]:7470 or :7470";
            Err(format!("{text:?} is not an address; {forms}").into())
        }
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
    Topology::parse(&text).map_err(|error| {
        let (part, source) = (given.to_owned(), error.into());
        ConfigError::value(location, InvalidPart { part, source })
    })
}

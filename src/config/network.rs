//! Who the other nodes are, and where this one listens.

use super::ConfigError;
use super::hosts::launcher::Launcher;
use super::hosts::{self, DEFAULT_PORT, HostsError};
use super::machine::Machine;
use super::reader::{Reader, number_at_least};
use super::secret_file::check_secret_file;
use super::settings::{Crossings, Member, NetworkPrefix, NodeIdentity};
use super::topology::Topology;
use copperfs_overlay::{Forest, ROOTS_MAX};
use copperfs_policy::amounts::parse_bool;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// This node among the others.
pub(super) struct Network {
    pub(super) members: Vec<Member>,
    pub(super) identity: NodeIdentity,
    pub(super) roots: Vec<usize>,
    pub(super) listen: Option<SocketAddr>,
    pub(super) secret_file: Option<PathBuf>,
    pub(super) network: Option<NetworkPrefix>,
    pub(super) crossings: Option<Crossings>,
}

impl Network {
    pub(super) fn resolve(reader: Reader<'_>, machine: &Machine) -> Result<Self, ConfigError> {
        let listen = reader.optional("listen", parse_listen)?;
        let default_port = match listen {
            Some((_, Some(port))) if port > 0 => port,
            _ => DEFAULT_PORT,
        };
        let Place {
            members,
            identity,
            crossings,
        } = place(reader, machine, default_port)?;
        let roots = roots(reader, &members)?;
        let network = reader.text("interface").and_then(parse_network);
        let network = network
            .transpose()
            .map_err(|why| reader.wrong("interface", why))?;
        let secret_file = reader.path("secret_file")?;
        let alone = members.len() == 1 && identity == NodeIdentity::Member(0);
        if alone && listen.is_none() && secret_file.is_none() {
            return Ok(Self {
                members,
                identity,
                roots,
                listen: None,
                secret_file: None,
                network,
                crossings,
            });
        }
        let Some(secret) = &secret_file else {
            return Err(ConfigError::NoSecret);
        };
        check_secret_file(secret, machine.uid)?;
        let address = local_address(reader, machine, listen.and_then(|(address, _)| address))?;
        let own_port = match identity {
            NodeIdentity::Member(rank) => members[rank]
                .address
                .rsplit_once(':')
                .and_then(|(_, port)| port.parse().ok()),
            // Nobody connects to a guest.
            NodeIdentity::Guest(_) => Some(0),
        };
        let port = listen
            .and_then(|(_, port)| port)
            .or(own_port)
            .unwrap_or(DEFAULT_PORT);
        Ok(Self {
            members,
            identity,
            roots,
            listen: (!alone || listen.is_some()).then(|| SocketAddr::new(address, port)),
            secret_file,
            network,
            crossings,
        })
    }
}

/// The other nodes, and which one this is.
struct Place {
    members: Vec<Member>,
    identity: NodeIdentity,
    crossings: Option<Crossings>,
}

fn place(reader: Reader<'_>, machine: &Machine, default_port: u16) -> Result<Place, ConfigError> {
    let given_rank = reader.optional("rank", number_at_least::<usize>(0))?;
    let listed = reader.text("hosts").is_some();
    let members = match reader.text("hosts") {
        Some(text) => {
            let list = host_list(text, machine, |why| reader.wrong("hosts", why))?;
            hosts::parse(&list, default_port).map_err(|error| reader.wrong("hosts", error))?
        }
        None => vec![Member {
            name: machine.host_name().to_owned(),
            address: format!("{}:{default_port}", machine.host_name()),
        }],
    };
    let mut reached = members.clone();
    if let Some(suffix) = reader.optional("host_suffix", hosts::check_suffix)?
        && listed
    {
        hosts::add_suffix(&mut reached, &suffix);
    }
    let found = if listed {
        own_rank(&members, &reached, given_rank, machine)
    } else {
        hosts::rank(&members, given_rank.or(Some(0)), &[])
    };
    let joins = reader.parsed("join", parse_bool)?;
    let identity = match found {
        Ok(rank) => NodeIdentity::Member(rank),
        Err(HostsError::NotListed { .. }) if joins && listed => {
            NodeIdentity::Guest(machine.host_name().to_owned())
        }
        Err(error) => {
            let key = if given_rank.is_some() {
                "rank"
            } else {
                "hosts"
            };
            return Err(reader.wrong(key, error));
        }
    };
    let (members, identity, crossings) = match reader.text("topology") {
        Some(text) if listed => {
            let arity = reader.optional("arity", number_at_least(1))?.unwrap_or(1);
            let topology = topology(text, |why| reader.wrong("topology", why))?;
            let trees =
                reader.optional("roots", |text| Ok::<_, String>(text.parse().unwrap_or(1)))?;
            let trees = trees.unwrap_or(1).clamp(1, members.len().min(ROOTS_MAX));
            let (order, crossings) = topology.order(&members, arity, trees);
            let ordered = order.iter().map(|given| reached[*given].clone()).collect();
            let identity = match identity {
                NodeIdentity::Member(rank) => {
                    let rank = order.iter().position(|given| *given == rank);
                    NodeIdentity::Member(rank.unwrap_or_default())
                }
                guest => guest,
            };
            (ordered, identity, Some(crossings))
        }
        _ => (reached, identity, None),
    };
    Ok(Place {
        members,
        identity,
        crossings,
    })
}

/// The ranks of the roots: so many, spread evenly, or those named.
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

/// This machine's place in the list: by the names that stand there, by those that `reached` has on the
/// fast network, and only then by Slurm's name for this node: an MPI launcher hands on the variable of
/// the node it was started on.
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

/// The address to listen on: as given, else that of the interface, else all.
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
    let on_it: Vec<IpAddr> = match parse_network(interface) {
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
    // A link-local IPv6 address would need its zone: the last choice.
    let rank_of = |address: &IpAddr| match address {
        IpAddr::V4(_) => 0,
        IpAddr::V6(v6) if !v6.is_unicast_link_local() => 1,
        IpAddr::V6(_) => 2,
    };
    on_it.into_iter().min_by_key(rank_of).ok_or_else(|| {
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

/// `None`: not a CIDR, so the name of an interface.
fn parse_network(text: &str) -> Option<Result<NetworkPrefix, String>> {
    let (address, bits) = text.split_once('/')?;
    let network = (|| {
        let address: IpAddr = address.parse().ok()?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.parse().ok().filter(|bits| *bits <= width)?;
        Some(NetworkPrefix { address, bits })
    })();
    let form = || format!("{text:?} is not a network; write it as 10.12.0.0/16");
    Some(network.ok_or_else(form))
}

/// `ADDR:PORT`, `ADDR`, `:PORT`.
fn parse_listen(text: &str) -> Result<(Option<IpAddr>, Option<u16>), String> {
    if let Ok(address) = SocketAddr::from_str(text) {
        return Ok((Some(address.ip()), Some(address.port())));
    }
    if let Ok(address) = IpAddr::from_str(text) {
        return Ok((Some(address), None));
    }
    text.strip_prefix(':')
        .and_then(|port| port.parse().ok())
        .map(|port| (None, Some(port)))
        .ok_or_else(|| {
            format!("{text:?} is not an address; write 0.0.0.0:7470, 10.1.2.3, [::]:7470 or :7470")
        })
}

/// The text of a host list: what the launcher that `given` names says, or the file, or `given` itself.
/// What has a slash and no comma names a file ([`super::Layer::absolute`] has seen to it). `wrong` makes
/// the error of a launcher that is not there.
///
/// # Errors
/// The file cannot be read; this is no job of that launcher.
pub fn host_list(
    given: &str,
    machine: &Machine,
    wrong: impl FnOnce(String) -> ConfigError,
) -> Result<String, ConfigError> {
    if let Some(launcher) = Launcher::named(given) {
        return launcher
            .hosts(machine)
            .map_err(|error| wrong(error.to_string()));
    }
    if given.contains(',') || !given.contains('/') {
        return Ok(given.to_owned());
    }
    std::fs::read_to_string(given).map_err(|source| ConfigError::Unreadable {
        what: "host list",
        path: given.into(),
        source,
    })
}

/// The topology in the file that `given` names; a text of several lines is one itself, as a launch hands
/// it to nodes that do not have the file. `wrong` makes the error of one that makes no sense.
///
/// # Errors
/// It cannot be read or understood.
pub fn topology(
    given: &str,
    wrong: impl FnOnce(String) -> ConfigError,
) -> Result<Topology, ConfigError> {
    if given.contains('\n') {
        return Topology::parse(given).map_err(|error| wrong(error.to_string()));
    }
    let text = std::fs::read_to_string(given).map_err(|source| ConfigError::Unreadable {
        what: "topology file",
        path: given.into(),
        source,
    })?;
    Topology::parse(&text).map_err(|error| wrong(format!("{given}: {error}")))
}

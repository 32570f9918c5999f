//! The ordered list of nodes, and this machine's rank in it.
//!
//! Pure: takes the text of the list and this machine's names, and returns members and a rank. The order
//! determines the tree, so it is not changed here. [`launcher`] finds the text in a launcher's variables, and
//! [`super::topology`] reorders the list by switches.

mod hostlist;
pub mod launcher;

pub use hostlist::fold;

use super::settings::Member;
use std::collections::{HashMap, HashSet};

/// The UDP port of nodes that do not name one.
pub const DEFAULT_PORT: u16 = 7470;

/// The maximum number of nodes in a list.
pub const MEMBERS_MAX: usize = 1 << 20;

/// Why a host list cannot be used, or why this machine's rank is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostsError {
    /// No host at all.
    #[error("the host list names no host. Write one host per line, or h1,h2,...")]
    Empty,
    /// Some hosts occur more than once.
    #[error(
        "the host list names {names} more than once. Each node has one place in the tree: list each \
         host once (for a list with one line per core, as PBS writes it: sort -u)"
    )]
    Duplicates {
        /// Their names, separated by commas.
        names: String,
    },
    /// An entry that is not `host`, `host:port` or `name=host:port`.
    #[error("{entry:?} in the host list is not host, host:port or name=host:port: {why}")]
    Entry {
        /// The entry.
        entry: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The list is too long.
    #[error("with {entry:?} the host list names more than {MEMBERS_MAX} hosts, which are the most")]
    TooMany {
        /// The first entry beyond the limit.
        entry: String,
    },
    /// This machine is not in the list.
    #[error(
        "this host ({own}) is not in the host list: {listed}. Add it, start copperfs on one of \
         those, or say which entry this node is with --rank N"
    )]
    NotListed {
        /// The names this machine goes by.
        own: String,
        /// The beginning of the list.
        listed: String,
    },
    /// More than one entry could be this machine.
    #[error("this host ({own}) may be any of {entries} in the host list: say which with --rank N")]
    Ambiguous {
        /// The names this machine goes by.
        own: String,
        /// The entries that match.
        entries: String,
    },
    /// `--rank` outside of the list.
    #[error("rank {rank} is outside of the host list, which has ranks 0 to {last}")]
    Rank {
        /// As given.
        rank: usize,
        /// The last valid one.
        last: usize,
    },
}

/// Parses a list with one host per line; `#` begins a comment. Commas separate hosts too, and every
/// entry may be in Slurm's short form, `nid[001-128,200]`. `name=` before a host names its node.
///
/// # Errors
/// An entry that is no `[name=]host[:port]`, an empty list, duplicates, more than [`MEMBERS_MAX`].
pub fn parse(text: &str, default_port: u16) -> Result<Vec<Member>, HostsError> {
    let mut members: Vec<Member> = Vec::new();
    let mut names = Vec::new();
    let lines = text.lines();
    let lines = lines.map(|line| line.split('#').next().unwrap_or_default());
    for entry in lines.flat_map(hostlist::split) {
        let too_many = || HostsError::TooMany {
            entry: entry.to_owned(),
        };
        if entry.starts_with("local:") {
            return Err(HostsError::Entry {
                entry: entry.to_owned(),
                why: "only copperfs launch takes local:N, and starts N nodes on this machine",
            });
        }
        if is_bracketed_address(entry) {
            names.push(entry.to_owned());
        } else {
            let room = MEMBERS_MAX - members.len();
            hostlist::expand(entry, room, &mut names).map_err(|why| match why {
                hostlist::Malformed::TooMany => too_many(),
                hostlist::Malformed::Text(why) => HostsError::Entry {
                    entry: entry.to_owned(),
                    why,
                },
            })?;
        }
        for name in names.drain(..) {
            members.push(parse_entry(&name, default_port)?);
        }
        if members.len() > MEMBERS_MAX {
            return Err(too_many());
        }
    }
    if members.is_empty() {
        return Err(HostsError::Empty);
    }
    refuse_duplicates(&members)?;
    Ok(members)
}

/// Whether `entry` has an address such as `[fe80::1]:7470`, and is not a short form with brackets.
fn is_bracketed_address(entry: &str) -> bool {
    let (_, place) = entry.rsplit_once('=').unwrap_or(("", entry));
    place
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
        .map_or(place.starts_with('['), |(inside, _)| inside.contains(':'))
}

fn parse_entry(entry: &str, default_port: u16) -> Result<Member, HostsError> {
    let error = |why| HostsError::Entry {
        entry: entry.to_owned(),
        why,
    };
    let (name, place) = match entry.split_once('=') {
        Some((name, _)) if !is_name(name) => {
            return Err(error(
                "a name has letters, digits and -._/, and is no number",
            ));
        }
        Some((name, place)) => (name, place),
        None => (entry, entry),
    };
    let (host, port) = if let Some(rest) = place.strip_prefix('[') {
        let split = rest.split_once(']');
        let (address, rest) = split.ok_or_else(|| error("a ] is missing"))?;
        match (rest.strip_prefix(':'), rest) {
            (Some(port), _) => (address, Some(port)),
            (None, "") => (address, None),
            _ => return Err(error("only a :port may follow the ]")),
        }
    } else if place.matches(':').count() > 1 {
        (place, None)
    } else {
        let split = place.split_once(':');
        split.map_or((place, None), |(host, port)| (host, Some(port)))
    };
    let port = match port {
        None => default_port,
        Some(digits) => match digits.parse::<u16>() {
            Ok(port) if port > 0 => port,
            _ => return Err(error("the port is a number from 1 to 65535")),
        },
    };
    if host.is_empty() {
        return Err(error("the host is missing"));
    }
    if host.contains(|c: char| c.is_whitespace() || c.is_control() || "/=@".contains(c))
        || host.starts_with('-')
    {
        return Err(error("a host is a name or an address"));
    }
    Ok(Member {
        address: address(host, port),
        name: name.to_owned(),
    })
}

/// Whether `name` can stand before the `=` of an entry. A number would be taken for a rank.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._/".contains(c);
    name.chars().all(plain) && !name.starts_with('-') && !name.chars().all(|c| c.is_ascii_digit())
}

/// The entry of a host list that [`parse`] turns into `member`.
#[must_use]
pub fn entry(member: &Member) -> String {
    match parse_entry(&member.name, DEFAULT_PORT) {
        Ok(plain) if plain == *member => plain.name,
        _ => format!("{}={}", member.name, member.address),
    }
}

fn address(host: &str, port: impl std::fmt::Display) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// The distinct hosts of `text`, in the order of their first occurrence. PBS writes one line for every core.
#[must_use]
pub fn unique(text: &str) -> String {
    let mut seen = HashSet::new();
    let hosts = text.split_whitespace().filter(|host| seen.insert(*host));
    hosts.collect::<Vec<_>>().join("\n")
}

/// Changes the members' addresses to those of another network. A suffix such as `-hsn0` follows the first
/// label of a host name (`nid1.cluster` becomes `nid1-hsn0.cluster`), and one such as `.hsn` the whole name.
/// Numeric addresses and the members' names are not changed.
pub fn add_suffix(members: &mut [Member], suffix: &str) {
    for member in members {
        let host = host_of(member);
        if host.parse::<std::net::IpAddr>().is_ok() {
            continue;
        }
        let port = port_of(member);
        member.address = match host.split_once('.') {
            Some((label, domain)) if !suffix.starts_with('.') => {
                address(&format!("{label}{suffix}.{domain}"), port)
            }
            _ => address(&format!("{host}{suffix}"), port),
        };
    }
}

/// Checks a suffix of host names.
///
/// # Errors
/// The suffix cannot be part of a host name.
pub fn check_suffix(suffix: &str) -> Result<String, &'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let is_part = suffix.chars().all(plain) && suffix.chars().any(|c| c.is_ascii_alphanumeric());
    let suffix = is_part.then(|| suffix.to_owned());
    suffix.ok_or("a suffix is part of a host name, as in -hsn0 or .hsn.cluster")
}

fn refuse_duplicates(members: &[Member]) -> Result<(), HostsError> {
    let mut seen: HashMap<String, usize> = HashMap::with_capacity(members.len());
    let second = |member: &&Member| {
        let count = seen.entry(member.address.to_ascii_lowercase()).or_default();
        *count += 1;
        *count == 2
    };
    match sample(members.iter().filter(second)) {
        names if names.is_empty() => Ok(()),
        names => Err(HostsError::Duplicates { names }),
    }
}

/// The rank of this machine: `given`, or the entry with one of its names or addresses.
///
/// Full names are compared first. If none matches, a short name on either side matches the first label of the
/// other.
///
/// # Errors
/// A rank outside of the list; no entry or several that match.
pub fn rank(
    members: &[Member],
    given: Option<usize>,
    own_names: &[String],
) -> Result<usize, HostsError> {
    if let Some(rank) = given {
        let last = members.len().saturating_sub(1);
        let valid = (rank <= last).then_some(rank);
        return valid.ok_or(HostsError::Rank { rank, last });
    }
    let found = |same: fn(&str, &str) -> bool| -> Vec<usize> {
        let is_own = |rank: &usize| {
            let host = host_of(&members[*rank]);
            own_names.iter().any(|own| same(own, host))
        };
        (0..members.len()).filter(is_own).collect()
    };
    // Full names first: a short name could match hosts of several domains.
    let mut ranks = found(|own, host| own.eq_ignore_ascii_case(host));
    if ranks.is_empty() {
        ranks = found(same_short_name);
    }
    let own = own_names.join(", ");
    match ranks.as_slice() {
        [rank] => Ok(*rank),
        [] => Err(HostsError::NotListed {
            own,
            listed: sample(members),
        }),
        several => Err(HostsError::Ambiguous {
            own,
            entries: sample(several.iter().map(|rank| &members[*rank])),
        }),
    }
}

/// The port of a member's address, as text.
pub(super) fn port_of(member: &Member) -> &str {
    member.address.rsplit_once(':').map_or("", |(_, port)| port)
}

/// The host part of a member's address, without brackets.
#[must_use]
pub fn host_of(member: &Member) -> &str {
    let split = member.address.rsplit_once(':');
    let host = split.map_or(member.address.as_str(), |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Whether one name is the short form of the other: `nid1` and `nid1.cluster`, but not `nid1.a` and `nid1.b`,
/// and never two addresses.
fn same_short_name(own: &str, host: &str) -> bool {
    let is_address = |name: &str| name.parse::<std::net::IpAddr>().is_ok();
    if is_address(own) || is_address(host) {
        return false;
    }
    let label = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    (!own.contains('.') || !host.contains('.')) && label(own).eq_ignore_ascii_case(&label(host))
}

/// The names of the first members, and the number of the others.
fn sample<'a>(members: impl IntoIterator<Item = &'a Member>) -> String {
    const SHOWN: usize = 8;
    let mut names = members.into_iter().map(|member| member.name.as_str());
    let text = names.by_ref().take(SHOWN).collect::<Vec<_>>().join(", ");
    match names.count() {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(own: &[&str]) -> Vec<String> {
        own.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_file_with_comments_ports_and_addresses() {
        let members = parse(
            "# rack 1\nnid001\nnid002:9000 # slow\n\n10.0.0.3\n[fe80::1]:9001\nfe80::2\n",
            7470,
        )
        .unwrap();
        let addresses: Vec<&str> = members.iter().map(|m| m.address.as_str()).collect();
        assert_eq!(
            addresses,
            [
                "nid001:7470",
                "nid002:9000",
                "10.0.0.3:7470",
                "[fe80::1]:9001",
                "[fe80::2]:7470"
            ]
        );
        assert_eq!(host_of(&members[3]), "fe80::1");
        assert_eq!(rank(&members, None, &names(&["fe80::2"])), Ok(4));
    }

    #[test]
    fn nodes_with_names() {
        let text = "cm/0=127.0.0.1:9000,v6=[::1]:5,plain=n1,n2";
        let members = parse(text, DEFAULT_PORT).unwrap();
        let shown: Vec<String> = members.iter().map(ToString::to_string).collect();
        let due = [
            "cm/0 (127.0.0.1:9000)",
            "v6 ([::1]:5)",
            "plain (n1:7470)",
            "n2 (n2:7470)",
        ];
        assert_eq!(shown, due);
        let again: Vec<String> = members.iter().map(entry).collect();
        assert_eq!(parse(&again.join(","), DEFAULT_PORT).unwrap(), members);
        assert_eq!(again[3], "n2");
        for wrong in ["7=n1", "=n1", "a b=n1", "a=", "a=b=c"] {
            let error = parse(wrong, 1).unwrap_err().to_string();
            assert!(error.contains("name=host:port"), "{error}");
        }
    }

    #[test]
    fn wrong_lists_are_refused_by_name() {
        assert_eq!(parse("# nobody\n , \n", 1), Err(HostsError::Empty));
        let twice = parse("a,b,A,b,c,b", 1).unwrap_err();
        assert!(
            twice.to_string().contains("names A, b more than once"),
            "{twice}"
        );
        assert!(
            parse("a:1,a:2", 7).is_ok(),
            "one host may run several nodes"
        );
        for (list, hint) in [
            ("nid[001-004", "] is missing"),
            ("nid[4-1]", "lower number"),
            ("n[0-99999999]", "more than 1048576 hosts"),
            ("a:0", "1 to 65535"),
            ("a:x", "1 to 65535"),
            (":7470", "the host is missing"),
            ("[::1", "]"),
            ("a b", "a name or an address"),
            ("-oProxyCommand=x", "a name has letters"),
            ("x=-oProxyCommand", "a name or an address"),
        ] {
            let error = parse(list, 1).unwrap_err().to_string();
            assert!(error.contains(hint), "{list}: {error}");
        }
    }

    #[test]
    fn slurms_short_form_stands_anywhere() {
        let members = parse("login1,nid[001-003,7]:9000 # rack\n[fe80::1]:9\n", 7470).unwrap();
        let addresses: Vec<&str> = members.iter().map(|m| m.address.as_str()).collect();
        let wanted = "login1:7470 nid001:9000 nid002:9000 nid003:9000 nid7:9000 [fe80::1]:9";
        assert_eq!(addresses.join(" "), wanted);
        assert_eq!(members[1].name, "nid001:9000");
        let twice = parse("n[1-3],n2", 1).unwrap_err().to_string();
        assert!(twice.contains("names n2 more than once"), "{twice}");
    }

    #[test]
    fn a_node_file_with_a_line_per_core() {
        let text = unique("n2\nn2\nn1.cluster\n\nn2\nn1.cluster\n");
        assert_eq!(text, "n2\nn1.cluster");
    }

    #[test]
    fn a_suffix_names_another_network() {
        let mut members = parse("n1,n2.cluster:9,10.0.0.3,[fe80::1]:9", 7470).unwrap();
        let mut others = members.clone();
        add_suffix(&mut members, "-hsn0");
        let addresses = |members: &[Member]| -> Vec<String> {
            members.iter().map(|m| m.address.clone()).collect()
        };
        let wanted = [
            "n1-hsn0:7470",
            "n2-hsn0.cluster:9",
            "10.0.0.3:7470",
            "[fe80::1]:9",
        ];
        assert_eq!(addresses(&members), wanted);
        assert_eq!(members[0].name, "n1");
        add_suffix(&mut others, ".hsn");
        assert_eq!(addresses(&others)[..2], ["n1.hsn:7470", "n2.cluster.hsn:9"]);
        assert!(check_suffix("-hsn0").is_ok());
        for wrong in ["", "-", "a b", "x:1", "a/b"] {
            assert!(check_suffix(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_rank_by_number_by_short_and_by_full_name() {
        let members = parse("nid1.cluster,nid2,10.0.0.3", 1).unwrap();
        let by = |own: &[&str]| rank(&members, None, &names(own));
        assert_eq!(by(&["nid1"]), Ok(0));
        assert_eq!(by(&["NID1.cluster"]), Ok(0));
        assert_eq!(by(&["nid2.cluster"]), Ok(1));
        assert_eq!(by(&["login", "10.0.0.3"]), Ok(2));
        assert_eq!(rank(&members, Some(2), &[]), Ok(2));
        let error = rank(&members, Some(3), &[]).unwrap_err();
        assert!(error.to_string().contains("ranks 0 to 2"), "{error}");
    }

    #[test]
    fn the_error_of_an_unlisted_host_shows_the_list() {
        let list: Vec<String> = (1..=12).map(|i| format!("nid{i:03}")).collect();
        let members = parse(&list.join("\n"), 1).unwrap();
        let error = rank(&members, None, &names(&["login1"]))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("this host (login1) is not in the host list"),
            "{error}"
        );
        assert!(error.contains("nid008 and 4 more"), "{error}");
        assert!(error.contains("--rank"), "{error}");
        assert!(rank(&members, None, &names(&["nid1.b"])).is_err());
    }

    #[test]
    fn several_matches_need_a_rank() {
        let members = parse("n:1,n:2,m", 1).unwrap();
        let error = rank(&members, None, &names(&["n"])).unwrap_err();
        assert!(matches!(error, HostsError::Ambiguous { .. }), "{error}");
        let members = parse("n.a,n.b", 1).unwrap();
        assert_eq!(rank(&members, None, &names(&["n.b"])), Ok(1));
        assert!(rank(&members, None, &names(&["n"])).is_err());
    }
}

//! The identity of a process, independent of the pid namespace of the observer.

use super::Process;
use std::fmt::{self, Display};
use std::fs;

/// A process's identity, which a daemon writes to its pid file and other programs search for.
///
/// The start time is in clock ticks since the boot. It differs in a time namespace with an offset; there
/// the process is not found, and so is not signalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Inode of its pid namespace.
    pub namespace: u64,
    /// Its number in that namespace.
    pub pid: u32,
    /// When it started, in clock ticks after the boot.
    pub started: u64,
}

impl Identity {
    /// The identity of this process; `None` if `/proc` does not show it.
    #[must_use]
    pub fn own() -> Option<Self> {
        Self::of("self")
    }

    /// Parses its [`fmt::Display`] form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        Some(Self {
            pid: words.next()?.parse().ok()?,
            namespace: words.next()?.parse().ok()?,
            started: words.next()?.parse().ok()?,
        })
    }

    /// The identity of the process that `/proc` shows as `shown`.
    fn of(shown: impl Display + Copy) -> Option<Self> {
        Some(Self {
            namespace: namespace(shown)?,
            pid: *status(shown, "NSpid:")?.last()?,
            started: Stat::of(shown)?.started,
        })
    }
}

impl Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.pid, self.namespace, self.started)
    }
}

/// Finds the process that `identity` names, if it runs, belongs to user `owner`, and is visible from here:
/// it is in this process's pid namespace or in a nested one.
///
/// The check of the owner prevents a file written by another user from naming a process that is not that
/// user's.
#[must_use]
pub fn find(identity: &Identity, owner: u32) -> Option<Process> {
    let fits = |shown: u32| {
        Stat::of(shown).is_some_and(|stat| stat.started == identity.started)
            && self::owner(shown) == Some(owner)
            && Identity::of(shown).as_ref() == Some(identity)
    };
    let found = shown().find(|&shown| fits(shown))?;
    // Checked again through the pidfd, because the number may have been reused since.
    open_shown(found).filter(|_| fits(found))
}

/// Opens the process that `/proc` shows as `shown`.
pub(super) fn open_shown(shown: u32) -> Option<Process> {
    // pidfd_open(2) takes the number in this process's own namespace, which is `level` levels below the one
    // that `/proc` shows.
    let level = status("self", "NSpid:")?.len().checked_sub(1)?;
    let pid = *status(shown, "NSpid:")?.get(level)?;
    let process = Process::open(pid).ok()??;
    (process.shown_as() == Some(shown)).then_some(process)
}

/// The numbers of all processes that `/proc` shows.
pub(super) fn shown() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The real user of the process that `/proc` shows as `shown`.
pub(super) fn owner(shown: u32) -> Option<u32> {
    status(shown, "Uid:")?.first().copied()
}

/// The numbers in a line of `/proc/PID/status`. Those of `NSpid:` are the process's numbers, from the pid namespace that
/// `/proc` shows to the process's own.
fn status(shown: impl Display, line: &str) -> Option<Vec<u32>> {
    let text = fs::read_to_string(format!("/proc/{shown}/status")).ok()?;
    let words = field(&text, line)?.split_whitespace();
    words.map(|word| word.parse().ok()).collect()
}

/// The inode of a process's pid namespace.
fn namespace(shown: impl Display) -> Option<u64> {
    let link = fs::read_link(format!("/proc/{shown}/ns/pid")).ok()?;
    let text = link.to_str()?;
    text.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// The trimmed rest of the first line that begins with `name`.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name));
    rest.map(str::trim)
}

/// The fields of `/proc/PID/stat` that are used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) state: char,
    /// The parent's number as `/proc` shows it.
    pub(crate) parent: u32,
    pub(crate) started: u64,
}

impl Stat {
    pub(super) fn of(shown: impl Display) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{shown}/stat")).ok()?)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        // The program's name is in parentheses and may contain any characters.
        let (_, rest) = text.rsplit_once(") ")?;
        let mut words = rest.split(' ');
        Some(Self {
            state: words.next()?.chars().next()?,
            parent: words.next()?.parse().ok()?,
            // The start time is field 22 of proc_pid_stat(5); the state was field 3.
            started: words.nth(17)?.parse().ok()?,
        })
    }

    /// Whether its first thread has ended.
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_of_this_process_finds_it_and_no_other_does() {
        let own = Identity::own().unwrap();
        let uid = rustix::process::getuid().as_raw();
        assert_eq!(Identity::parse(&own.to_string()), Some(own));
        assert_eq!(find(&own, uid).unwrap().pid, std::process::id());
        let others = [
            Identity {
                started: own.started + 1,
                ..own
            },
            Identity {
                namespace: own.namespace + 1,
                ..own
            },
            Identity {
                // No process has this number: the highest one is 2^22.
                pid: 1 << 30,
                ..own
            },
        ];
        assert!(others.iter().all(|other| find(other, uid).is_none()));
        assert!(find(&own, uid + 1).is_none(), "of another user");
        assert_eq!(Identity::parse("7\n"), None, "a number says nothing");
    }

    #[test]
    fn a_program_may_be_called_anything() {
        let fields = "1 1 1 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4711 5";
        let stat = Stat::parse(&format!("9 (a) Z 7) S (b\n) S {fields}")).unwrap();
        let expected = Stat {
            state: 'S',
            parent: 1,
            started: 4711,
        };
        assert_eq!(stat, expected);
        assert!(Stat::parse(&format!("9 (x) Z {fields}")).unwrap().is_dead());
        assert_eq!(Stat::parse("9 (x"), None);
    }
}

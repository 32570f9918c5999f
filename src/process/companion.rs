//! Processes of this program that work beside a daemon.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// This program, even if its file was replaced or removed.
pub const OWN_PROGRAM: &str = "/proc/self/exe";

/// A process of this program that works beside a daemon, and ends with its mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Companion {
    /// Mounts images.
    Attendant,
    /// Keeps the connection of the files of images.
    Keeper,
    /// Starts another daemon after one that has died.
    Watchdog,
    /// Reads files of the mount to warm it.
    Helper,
}

impl Companion {
    const ALL: [Self; 4] = [Self::Attendant, Self::Keeper, Self::Watchdog, Self::Helper];

    /// Its name, as process lists and `pidof` show it, and its subcommand.
    const fn words(self) -> [&'static str; 2] {
        match self {
            Self::Attendant => ["copperfs-attend", "attend"],
            Self::Keeper => ["copperfs-attend", "keep"],
            Self::Watchdog => ["copperfs-watch", "watchdog"],
            Self::Helper => ["copperfs", "touch"],
        }
    }

    /// A command that starts one. It has a process group of its own, so that no Ctrl-C reaches it, and keeps no directory
    /// in use.
    #[must_use]
    pub fn command(self) -> Command {
        let [name, subcommand] = self.words();
        let mut command = Command::new(OWN_PROGRAM);
        let started = command.arg0(name).arg(subcommand);
        started.current_dir("/").process_group(0);
        command
    }

    /// The one that process `pid` is, as far as its arguments tell. `None` if it is none, or is gone.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        Self::with(&fs::read(format!("/proc/{pid}/cmdline")).ok()?)
    }

    /// The one that has these arguments, each of which ends with a zero byte.
    fn with(arguments: &[u8]) -> Option<Self> {
        let begins = |one: &Self| {
            let first = arguments.split(|&byte| byte == 0).take(2);
            first.eq(one.words().map(str::as_bytes))
        };
        Self::ALL.into_iter().find(begins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn companions_are_found_by_their_first_arguments() {
        for one in Companion::ALL {
            let [name, subcommand] = one.words();
            let found = |line: String| Companion::with(line.replace(' ', "\0").as_bytes());
            assert_eq!(found(format!("{name} {subcommand} -- /mnt ")), Some(one));
            assert_eq!(found(format!("/usr/bin/{name} {subcommand} /mnt ")), None);
            assert_eq!(found(format!("{name} mount {subcommand} ")), None);
        }
        assert_eq!(Companion::of(std::process::id()), None);
    }
}

//! Identifies processes across pid namespaces, and signals them through pidfds.
//!
//! A process id is valid in one pid namespace only. A daemon in a container and an unrelated process on its
//! host may have the same number, `/proc` may show another namespace than the caller's own, and numbers are
//! reused. A process is therefore identified by its pid namespace, its number there and its start time
//! ([`Identity`]), and is signalled only through a pidfd that was checked against them.

mod companion;
mod identity;
pub mod pipe;

pub use companion::{Companion, OWN_PROGRAM};
pub use identity::{Identity, find};
pub(crate) use identity::{Stat, field};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// A process, held by its pidfd.
#[derive(Debug)]
pub struct Process {
    /// Its id in this process's pid namespace.
    pub pid: u32,
    handle: OwnedFd,
}

impl Process {
    /// Opens process `pid` of this process's pid namespace. Returns `None` if there is none. Use it only
    /// for children of this process: the number of another process may be reused.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn open(pid: u32) -> io::Result<Option<Self>> {
        let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
            return Ok(None);
        };
        match pidfd_open(id, PidfdFlags::empty()) {
            Ok(handle) => Ok(Some(Self { pid, handle })),
            // Linux 6.1 says so of a process that is dead and has not been waited for.
            Err(Errno::SRCH | Errno::INVAL) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Its number in `/proc`, which may show another pid namespace than this process's own. Returns `None`
    /// if the process is gone or not shown there.
    #[must_use]
    pub fn shown_as(&self) -> Option<u32> {
        let path = format!("/proc/self/fdinfo/{}", self.handle.as_raw_fd());
        let text = fs::read_to_string(path).ok()?;
        let number = field(&text, "Pid:")?.parse().ok()?;
        (number > 0).then_some(number)
    }

    /// Whether the process has been killed or has ended, which shows as a zombie main thread; other threads
    /// may still hang in the kernel. A process that `/proc` does not show is alive until its pidfd is
    /// ready.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        match self.shown_as() {
            Some(shown) => Stat::of(shown).is_some_and(|stat| stat.is_dead()),
            None => self.wait(Duration::ZERO).unwrap_or(false),
        }
    }

    /// Returns the names of its threads that have not ended, each name once. Empty if `/proc` does not show it.
    #[must_use]
    pub fn threads(&self) -> Vec<String> {
        let Some(shown) = self.shown_as() else {
            return Vec::new();
        };
        let tasks = fs::read_dir(format!("/proc/{shown}/task"));
        let alive = tasks.into_iter().flatten().flatten().filter_map(|task| {
            let stat = fs::read_to_string(task.path().join("stat")).ok()?;
            let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
            (!rest.starts_with(['Z', 'X', 'x'])).then(|| name.to_owned())
        });
        let mut names: Vec<String> = alive.collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Sends `signal`. Succeeds if the process is gone already.
    ///
    /// # Errors
    /// The process belongs to another user.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.handle, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits until it has ended, for at most `timeout`. Returns whether it has ended.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let limit = Timespec::try_from(timeout).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&self.handle, PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&limit)))?;
        Ok(ready > 0)
    }

    /// Sends SIGTERM, waits up to `timeout` for an orderly end, then sends SIGKILL. Returns whether it has ended.
    ///
    /// # Errors
    /// The process belongs to another user.
    pub fn end(&self, timeout: Duration) -> io::Result<bool> {
        self.signal(Signal::TERM)?;
        if self.wait(timeout)? {
            return Ok(true);
        }
        self.signal(Signal::KILL)?;
        self.wait(Duration::from_secs(5))
    }
}

/// Whether this process's parent has been killed, which shows as a zombie main thread; other threads may
/// still hang in the kernel. A parent that `/proc` does not show counts as alive.
#[must_use]
pub fn parent_is_dead() -> bool {
    // The parent's number in `/proc`, which may differ from that of getppid(2).
    Stat::of("self")
        .and_then(|own| Stat::of(own.parent))
        .is_some_and(|parent| parent.is_dead())
}

/// Prevents core dumps of this process, to files and to programs: a core would hold the job secret, keys, and
/// data of other users. A process that may trace this one can still make a core.
///
/// `PR_SET_DUMPABLE` is not used, because it would also deny ordinary users `/proc/PID` and profilers for
/// their own daemons. The limit is one byte rather than zero, because a limit of zero does not apply to a
/// `core_pattern` that is a pipe (core(5)).
pub fn leave_no_core() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Core);
    limit.current = Some(limit.maximum.map_or(1, |maximum| maximum.min(1)));
    if let Err(error) = setrlimit(Resource::Core, limit) {
        tracing::warn!(%error, "cannot forbid core files, which hold secrets");
    }
}

/// The daemon of user `owner` that was started for `mountpoint` in this mount namespace, found by its
/// command line. Used if it hangs and its runtime directory is unknown. If there are several, the newest
/// one.
#[must_use]
pub fn find_daemon(mountpoint: &Path, owner: u32) -> Option<Process> {
    let own_namespace = fs::read_link("/proc/self/ns/mnt").ok()?;
    let fits = |shown: u32| {
        let command = fs::read(format!("/proc/{shown}/cmdline")).unwrap_or_default();
        let comm = fs::read_to_string(format!("/proc/{shown}/comm")).unwrap_or_default();
        let mut words = command.split(|&b| b == 0).skip(1);
        // Options come between them.
        words.next() == Some(b"daemon")
            && words.any(|word| word == mountpoint.as_os_str().as_bytes())
            && comm.trim_end() == "copperfs"
            && fs::read_link(format!("/proc/{shown}/ns/mnt")).ok().as_ref() == Some(&own_namespace)
            && identity::owner(shown) == Some(owner)
    };
    // Checked again after the pidfd is open, because the number may have been reused.
    let newest = identity::shown().filter(|&shown| fits(shown)).max()?;
    identity::open_shown(newest).filter(|_| fits(newest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    use std::process::{Child, Command, Stdio};

    struct Guard(Child);

    impl Drop for Guard {
        fn drop(&mut self) {
            let _ended_already = self.0.kill();
            let _reaped = self.0.wait();
        }
    }

    fn shell(script: &str) -> Guard {
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        Guard(command.spawn().unwrap())
    }

    #[test]
    fn one_that_is_dead_and_not_waited_for_is_no_error() {
        let mut child = shell("exit 0");
        let pid = child.0.id();
        let id = Pid::from_raw(pid.try_into().unwrap()).unwrap();
        let only_look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(id), only_look).unwrap();
        let opened = Process::open(pid).unwrap();
        assert!(opened.is_none_or(|process| process.is_dead()));
        child.0.wait().unwrap();
        assert!(Process::open(pid).unwrap().is_none());
    }

    #[test]
    fn one_that_listens_ends_by_sigterm() {
        let child = shell("exec sleep 60");
        let process = Process::open(child.0.id()).unwrap().unwrap();
        assert!(process.end(Duration::from_secs(10)).unwrap());
    }

    #[test]
    fn one_that_does_not_listen_ends_by_sigkill() {
        use std::io::Read;
        let mut child = shell("trap '' TERM; echo set; while :; do sleep 0.05; done");
        let mut line = [0; 4];
        child
            .0
            .stdout
            .take()
            .unwrap()
            .read_exact(&mut line)
            .unwrap();
        let process = Process::open(child.0.id()).unwrap().unwrap();
        assert!(process.end(Duration::from_millis(100)).unwrap());
    }

    #[test]
    fn one_that_is_gone() {
        let mut child = shell("exit 0");
        let pid = child.0.id();
        let process = Process::open(pid).unwrap().unwrap();
        assert!(process.wait(Duration::from_secs(5)).unwrap());
        assert!(process.is_dead(), "it was not waited for yet");
        child.0.wait().unwrap();
        assert!(process.is_dead());
        assert!(process.wait(Duration::from_secs(5)).unwrap());
        process.signal(Signal::TERM).unwrap();
        assert!(Process::open(u32::MAX).unwrap().is_none());
        let own = Process::open(std::process::id()).unwrap().unwrap();
        assert!(!own.is_dead());
        assert_eq!(own.shown_as(), Some(std::process::id()));
    }
}

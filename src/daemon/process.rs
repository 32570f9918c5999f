//! Ending a daemon for certain, by a handle that cannot come to mean another process.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// A process, held by its pidfd.
#[derive(Debug)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    handle: OwnedFd,
}

impl Process {
    /// Takes hold of process `pid`; `None` if there is none.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn open(pid: u32) -> io::Result<Option<Self>> {
        let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
            return Ok(None);
        };
        match pidfd_open(id, PidfdFlags::empty()) {
            Ok(handle) => Ok(Some(Self { pid, handle })),
            Err(Errno::SRCH) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether the program it runs is called `name`.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        let comm = fs::read_to_string(format!("/proc/{}/comm", self.pid));
        comm.is_ok_and(|comm| comm.trim_end() == name)
    }

    /// Sends `signal`; a process that is gone already is no failure.
    ///
    /// # Errors
    /// It is another user's.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.handle, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits until it has ended, at most `timeout`; whether it has.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let limit = Timespec::try_from(timeout).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&self.handle, PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&limit)))?;
        Ok(ready > 0)
    }

    /// SIGTERM, up to `patience` for an orderly end, then SIGKILL; whether it has ended.
    ///
    /// # Errors
    /// It is another user's.
    pub fn end(&self, patience: Duration) -> io::Result<bool> {
        self.signal(Signal::TERM)?;
        if self.wait(patience)? {
            return Ok(true);
        }
        self.signal(Signal::KILL)?;
        self.wait(Duration::from_secs(5))
    }
}

/// Whether process `pid` has been killed, or has ended, though some of its threads may still hang in the
/// kernel: its first thread is a zombie, or there is none.
#[must_use]
pub fn is_dead(pid: u32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        // The name of the program stands in parentheses and may hold anything.
        Ok(stat) => stat
            .rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with(['Z', 'X'])),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Has the kernel write no core file of this process, nor hand one to a program: it would hold the job
/// secret, keys, and whatever others read. Whoever may trace this process can still make one.
///
/// Not `PR_SET_DUMPABLE`, which would also take `/proc/PID` and every profiler from an ordinary user's
/// own daemon. A limit of one byte, not of none: that one holds for files only, and this also for a
/// `core_pattern` that is a pipe (core(5)).
pub fn leave_no_core() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Core);
    limit.current = limit
        .maximum
        .map_or(Some(1), |maximum| Some(maximum.min(1)));
    if let Err(error) = setrlimit(Resource::Core, limit) {
        tracing::warn!(%error, "cannot forbid core files, which hold secrets");
    }
}

/// The daemon started for `mountpoint` in this mount namespace, by its command line: for one that
/// hangs, or is another user's. The newest, if there are several.
#[must_use]
pub fn find_daemon(mountpoint: &Path) -> Option<u32> {
    let own_namespace = fs::read_link("/proc/self/ns/mnt").ok()?;
    fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = command.split(|&b| b == 0).skip(1);
            words.next() == Some(b"daemon")
                && words.next() == Some(mountpoint.as_os_str().as_bytes())
                && fs::read_link(format!("/proc/{pid}/ns/mnt")).ok().as_ref()
                    == Some(&own_namespace)
        })
        .filter(|&pid| {
            let process = Process::open(pid).ok().flatten();
            process.is_some_and(|process| process.is_called("copperfs"))
        })
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;
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
        assert!(is_dead(pid), "nobody has waited for it yet");
        child.0.wait().unwrap();
        assert!(process.wait(Duration::from_secs(5)).unwrap());
        process.signal(Signal::TERM).unwrap();
        assert!(Process::open(u32::MAX).unwrap().is_none());
        assert!(is_dead(u32::MAX));
        assert!(!is_dead(std::process::id()));
    }
}

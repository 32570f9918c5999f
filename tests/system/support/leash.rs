//! The end of mounts that make a test hang.

use rustix::process::{Pid, Signal, kill_process};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// No mount of a test lives longer.
const LIMIT: Duration = Duration::from_secs(240);

/// Kills daemons that live longer than any test should. A reader that hangs on their mount then gets an error, and the
/// test fails instead of hanging.
#[derive(Debug)]
pub struct Leash(Option<SyncSender<()>>);

impl Leash {
    /// Ties `pids`.
    pub fn tie(pids: Vec<Pid>) -> Self {
        let (sender, receiver) = sync_channel::<()>(1);
        drop(std::thread::spawn(move || {
            if receiver.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                eprintln!("a test hangs: its daemons {pids:?} are killed");
                pids.iter()
                    .filter(|&&pid| is_daemon(pid))
                    .for_each(|&pid| kill(pid));
            }
        }));
        Self(Some(sender))
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        self.0.take();
    }
}

/// Whether `pid` is (still) a daemon of ours.
pub fn is_daemon(pid: Pid) -> bool {
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
    comm.is_ok_and(|comm| comm.trim_end() == "copperfs") && !is_zombie(pid)
}

fn is_zombie(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|stat| {
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| rest.starts_with(" Z"))
    })
}

/// Kills a daemon at once.
pub fn kill(pid: Pid) {
    let _gone = kill_process(pid, Signal::KILL);
}

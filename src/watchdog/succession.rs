//! Starting the next daemon, and another one if that dies: how often, and after how long a wait.

use super::WatchdogArgs;
use crate::takeover::Legacy;
use crate::takeover::successor::{self, Begun};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Deaths within [`DEATHS_FOR`] after which the mounts are given up: the daemon dies of something that it finds again.
const DEATHS_MAX: usize = 5;
/// How long a death counts.
const DEATHS_FOR: Duration = Duration::from_secs(60);
/// A daemon that has lived as long did not die of something that it found at once. Its successor starts without a wait.
const LIFE: Duration = Duration::from_secs(5);
/// The wait before the second successor within [`DEATHS_FOR`]; it doubles with each further one.
const BACK_OFF: Duration = Duration::from_millis(100);
/// How long a successor may take until the mounts answer.
const SUCCESSION_TIMEOUT: Duration = Duration::from_secs(60);

/// Counts a death at `now`, in seconds since 1970, to the earlier ones. Returns how long the next daemon waits; `None`:
/// there is to be none.
fn after_death(died: &mut Vec<u64>, now: u64) -> Option<Duration> {
    died.retain(|time| now.abs_diff(*time) < DEATHS_FOR.as_secs());
    let (before, last) = (died.len(), died.last().copied());
    died.push(now);
    match last {
        _ if before >= DEATHS_MAX => None,
        Some(last) if now.abs_diff(last) < LIFE.as_secs() => {
            Some(BACK_OFF * (1 << (before - 1).min(DEATHS_MAX)))
        }
        _ => Some(Duration::ZERO),
    }
}

/// Starts the daemon that takes the mounts over, and waits until they answer. One that dies before that is followed by
/// another one, as any other. `refused`: why another program did not take over.
pub(super) async fn succeed(
    args: &WatchdogArgs,
    legacy: &Legacy,
    refused: Option<String>,
) -> io::Result<()> {
    let mut died = args.died.clone();
    let mut last = None;
    loop {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let Some(wait) = after_death(&mut died, now.unwrap_or_default().as_secs()) else {
            let last = last.map(|error| format!(", at last: {error}"));
            return Err(io::Error::other(format!(
                "it has died {} times in a minute{}",
                died.len(),
                last.unwrap_or_default()
            )));
        };
        tokio::time::sleep(wait).await;
        let begun = Begun {
            died: died.clone(),
            refused: refused.clone(),
            ..Begun::default()
        };
        match start(args, legacy, &begun, SUCCESSION_TIMEOUT).await {
            Ok(()) => return Ok(()),
            // The next one would hang as well, and each for so long.
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(error),
            Err(error) => last = Some(error),
        }
    }
}

/// Starts a successor, and waits until the mounts answer, or until its own watchdog has to start the next one.
async fn start(
    args: &WatchdogArgs,
    legacy: &Legacy,
    begun: &Begun,
    timeout: Duration,
) -> io::Result<()> {
    let before = legacy.served_by()?;
    let started = successor::start(&args.mountpoint, legacy, begun, timeout).await;
    // It is dead now, so this does not change any more.
    match started {
        Err(_) if legacy.served_by()? != before => Ok(()),
        started => started,
    }
}

/// How long another program may take until the mounts answer. Afterwards the program before takes them over again.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts the daemon of `program`, and waits until the mounts answer; if they do not, that of this program.
pub(super) async fn upgrade(
    args: &WatchdogArgs,
    legacy: &Legacy,
    program: &Path,
) -> io::Result<()> {
    let died = args.died.clone();
    let new = Begun {
        program: Some(program.to_owned()),
        died: died.clone(),
        refused: None,
    };
    let started = start(args, legacy, &new, UPGRADE_TIMEOUT).await;
    let Err(error) = started else {
        return Ok(());
    };
    let refused = format!("{}: {error}", program.display());
    let old = Begun {
        program: None,
        died,
        refused: Some(refused.clone()),
    };
    // This is no death of the old program, so it does not count as one.
    match start(args, legacy, &old, SUCCESSION_TIMEOUT).await {
        Err(error) if error.kind() != io::ErrorKind::TimedOut => {
            succeed(args, legacy, Some(refused)).await
        }
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_that_die_young_again_and_again_are_given_up() {
        let wait = |died: &mut Vec<u64>, now| after_death(died, now).map(|wait| wait.as_millis());
        let mut died = Vec::new();
        let waits: Vec<_> = (1000..1006).map(|now| wait(&mut died, now)).collect();
        assert_eq!(
            waits,
            [Some(0), Some(100), Some(200), Some(400), Some(800), None]
        );
        assert_eq!(died.len(), 6);
        // Deaths that lie apart cost no wait, but count.
        let mut died = Vec::new();
        let waits: Vec<_> = (0..20).map(|time| wait(&mut died, 12 * time)).collect();
        assert_eq!(waits, [Some(0); 20]);
        assert_eq!(wait(&mut died, 230), None);
        assert_eq!(wait(&mut died, 400), Some(0));
    }
}

//! How far the kernel reads ahead in this mount.
//!
//! Its default of 128 KiB makes every 128 KiB of a sequential read a message; FUSE's own `max_readahead`
//! can only lower it. The mount's entry in sysfs can raise it, which is root's right. Larger than this,
//! a mapped library's faults bring too much around them that nobody wants.

use std::path::Path;

/// Measured: 1 GiB from the daemon's memory takes .26 s instead of .60 s; at 1 MiB .23 s, but an import
/// costs a tenth more.
const READ_AHEAD_KIB: u32 = 512;

/// Widens the read-ahead of the mount with this device number. Without the right to it the mount works
/// as well, with more messages.
pub(super) fn widen(device: (u32, u32)) {
    let (major, minor) = device;
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = widen_at(Path::new(&path)) {
        tracing::debug!(%error, path, "the kernel's read-ahead stays as it is");
    }
}

/// Never narrows: an administrator's rule may have set more.
fn widen_at(path: &Path) -> std::io::Result<()> {
    let now = std::fs::read_to_string(path)?;
    match now.trim().parse::<u32>() {
        Ok(now) if now >= READ_AHEAD_KIB => Ok(()),
        _ => std::fs::write(path, READ_AHEAD_KIB.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_ahead_is_widened_and_never_narrowed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("read_ahead_kb");
        assert!(widen_at(&path).is_err(), "no such mount");
        std::fs::write(&path, "128\n").unwrap();
        widen_at(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "512");
        std::fs::write(&path, "4096\n").unwrap();
        widen_at(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "4096\n");
    }
}

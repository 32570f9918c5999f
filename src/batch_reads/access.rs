//! Whether a user may read a file, by the permission bits of the file and of the directories above it.

/// The user of a client, as the kernel told when it connected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
    /// The process, in this process' PID namespace; 0 if it is in another one.
    pub pid: u32,
}

/// The owners and permission bits of a file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Permissions {
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The bits.
    pub mode: u16,
}

/// The right to read a file.
const READ: u16 = 4;
/// The right to look names up in a directory.
const SEARCH: u16 = 1;

impl Credentials {
    /// Whether this user may read a file with `permissions`.
    #[must_use]
    pub fn may_read(&self, permissions: Permissions) -> bool {
        self.has(READ, permissions)
    }

    /// Whether this user may look names up in a directory with `permissions`.
    #[must_use]
    pub fn may_search(&self, permissions: Permissions) -> bool {
        self.has(SEARCH, permissions)
    }

    /// The first class that applies decides, as in the kernel. Root has no privilege here: it may have lost its
    /// capabilities, which the daemon cannot see, and it can always read through the mount.
    fn has(&self, right: u16, of: Permissions) -> bool {
        let shift = if self.uid == of.uid {
            6
        } else if self.gid == of.gid || self.groups.contains(&of.gid) {
            3
        } else {
            0
        };
        (of.mode >> shift) & right != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_class_that_applies_decides() {
        let user = |uid, gid, groups: &[u32]| Credentials {
            uid,
            gid,
            groups: groups.to_vec(),
            pid: 1,
        };
        let file = |mode| Permissions {
            uid: 10,
            gid: 20,
            mode,
        };
        let owner = user(10, 20, &[20]);
        let group = user(11, 20, &[]);
        let member = user(11, 21, &[5, 20]);
        let other = user(11, 21, &[5]);
        let root = user(0, 0, &[]);
        for (mode, may) in [
            (0o400, [true, false, false, false, false]),
            (0o040, [false, true, true, false, false]),
            (0o004, [false, false, false, true, true]),
            (0o644, [true; 5]),
            (0o333, [false; 5]),
            (0o4000, [false; 5]),
        ] {
            let got =
                [&owner, &group, &member, &other, &root].map(|user| user.may_read(file(mode)));
            assert_eq!(got, may, "{mode:o}");
        }
        assert!(other.may_search(file(0o001)) && !other.may_search(file(0o776)));
    }
}

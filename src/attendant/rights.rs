//! The rights of the attendant: those of the mount's user, and of root's only the ones for mounting.
//!
//! The kernel lets no other user into a FUSE mount, root neither, unless the mount says so. So the process becomes the
//! user. It stays undumpable, because a change of the user makes it so, and the user has fewer rights than it: so the user
//! cannot trace it.

use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_keep_capabilities,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

/// Mounting; and setting the read-ahead of an image, whose file in sysfs is root's.
const NEEDED: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::DAC_OVERRIDE);

/// Makes this process one of `user` and its `group`, which may still mount. Must be called before there are other threads.
///
/// # Errors
/// This process may not mount, or may not become that user.
pub(super) fn become_user(user: u32, group: u32) -> Result<(), Errno> {
    let has = capabilities(None)?;
    if !has.effective.contains(CapabilitySet::SYS_ADMIN) {
        return Err(Errno::PERM);
    }
    if user == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    set_keep_capabilities(true)?;
    // There is no other thread yet, so the identity of the thread is that of the process.
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)?;
    let needed = NEEDED & has.permitted;
    set_capabilities(
        None,
        CapabilitySets {
            effective: needed,
            permitted: needed,
            inheritable: CapabilitySet::empty(),
        },
    )
}

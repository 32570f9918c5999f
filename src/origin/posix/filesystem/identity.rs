//! The identity of a filesystem, independent of where and when it is mounted. Pure.
//!
//! | filesystem | identity |
//! | --- | --- |
//! | NFS | the server's FSID (`/proc/fs/nfsfs/volumes`), with the path of the export if the FSID is a small number that an administrator assigned; the server's name and address do not matter |
//! | Lustre | the filesystem's name, which is the end of the source |
//! | overlay | its own UUID; `f_fsid` may be that of one of its layers |
//! | FUSE, 9p, virtiofs | none: a server program generates their content |
//! | any other | `f_fsid`, unless it is zero or derived from a device number; else the UUID; else, for a cluster's or a server's filesystem, its source |
//!
//! A device number names any device that is currently attached under it, so it is never an identity.

use copperfs_fuse::mountinfo::MountEntry;

/// Filesystems on servers; they stay the same when they are mounted again.
const SERVED: [&str; 17] = [
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "gfs2",
    "glusterfs",
    "gpfs",
    "lustre",
    "nfs",
    "nfs4",
    "ocfs2",
    "orangefs",
    "panfs",
    "pvfs2",
    "smb3",
    "smbfs",
    "wekafs",
];

/// Filesystems whose content another program generates, so that they have no identity.
const GENERATED: [&str; 4] = ["9p", "fuse", "fuseblk", "virtiofs"];

/// Whether another filesystem may appear at the mount point of `mount` under the same name.
pub(super) fn is_local(mount: &MountEntry) -> bool {
    !SERVED.contains(&mount.fstype.as_str())
}

/// The identity of the filesystem of `mount`, or `None` if there is none. The other arguments are called only if
/// needed. They return the text of `/proc/fs/nfsfs/volumes`, `f_fsid`, and a UUID in lower case hexadecimal.
pub(super) fn identity(
    mount: &MountEntry,
    volumes: impl FnOnce() -> Option<String>,
    fsid: impl FnOnce() -> Option<u64>,
    uuid: impl FnOnce() -> Option<String>,
) -> Option<String> {
    let (fstype, source) = (mount.fstype.as_str(), mount.source.as_str());
    match fstype {
        "nfs" | "nfs4" => return nfs_identity(mount, &volumes()?),
        // The source `10.0.0.1@o2ib,10.0.1.1@o2ib:10.0.0.2@o2ib:/scratch/project` is the filesystem `scratch`.
        "lustre" => {
            let (_, path) = source.rsplit_once(":/")?;
            let name = path.split('/').next().filter(|name| !name.is_empty())?;
            return Some(format!("lustre {name}"));
        }
        "overlay" => return Some(format!("uuid {}", uuid()?)),
        _ if GENERATED.contains(&fstype) || fstype.starts_with("fuse.") => return None,
        _ => {}
    }
    if let Some(fsid) = fsid().filter(|fsid| !is_device_number(*fsid)) {
        return Some(format!("fsid {fstype} {fsid:016x}"));
    }
    if is_local(mount) {
        return Some(format!("uuid {}", uuid()?));
    }
    // Some filesystem types use the same word here for all instances.
    let is_generic =
        matches!(source, "" | "none" | "nodev") || source.ends_with("_nodev") || source == fstype;
    (!is_generic).then(|| format!("source {fstype} {source}"))
}

fn nfs_identity(mount: &MountEntry, volumes: &str) -> Option<String> {
    let (major, minor) = nfs_fsid(volumes, mount.device)?;
    // An administrator assigned a small number, which is not unique.
    let export = if u32::try_from(major).is_ok() && u32::try_from(minor).is_ok() {
        let export = mount.source.split_once(":/").map_or("", |(_, path)| path);
        format!(" /{}", export.trim_end_matches('/'))
    } else {
        String::new()
    };
    Some(format!("nfs {major:x}:{minor:x}{export}"))
}

/// Whether `f_fsid` is zero or a device number. Kernels encode device numbers here in 32 bits, while values
/// derived from a UUID fill 64. One UUID in four billion is mistaken for a device number.
fn is_device_number(fsid: u64) -> bool {
    u32::try_from(fsid).is_ok() || fsid.trailing_zeros() >= 32
}

/// The FSID of the filesystem with this device number, as the server reported it.
fn nfs_fsid(volumes: &str, device: (u32, u32)) -> Option<(u64, u64)> {
    let device = format!("{}:{}", device.0, device.1);
    volumes.lines().find_map(|line| {
        // NV SERVER PORT DEV FSID FSC
        let mut fields = line.split_ascii_whitespace().skip(3);
        if fields.next()? != device {
            return None;
        }
        let (major, minor) = fields.next()?.split_once(':')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        number(major).zip(number(minor))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use copperfs_fuse::mountinfo::parse;

    fn mounts(table: &str) -> Vec<MountEntry> {
        parse(table.as_bytes())
    }

    fn identity(mount: &MountEntry, fsid: u64, uuid: Option<&str>) -> Option<String> {
        super::identity(mount, || None, || Some(fsid), || uuid.map(str::to_owned))
    }

    /// Two hosts mount one export: the first by name and with NFS 4.2; the second by the server's other
    /// address, with another NFS device number, and beside another volume of the server.
    const ONE_HOST: (&str, &str) = (
        "612 31 0:58 / /home rw,relatime shared:311 - nfs4 filer:/export/home rw,vers=4.2,rsize=1048576,\
         wsize=1048576,namlen=255,hard,proto=tcp,timeo=600,sec=sys,clientaddr=10.1.0.7,addr=10.1.0.1\n",
        "NV SERVER   PORT DEV          FSID                              FSC\n\
         v4 0a010001  801 0:58         8a2f14c09d6b4e31:b1f2d7a40c5e9382 no \n",
    );
    const ANOTHER_HOST: (&str, &str) = (
        "97 26 0:51 / /scratch2 rw,relatime - nfs4 10.2.0.1:/export/scratch rw,vers=4.2,addr=10.2.0.1\n\
         99 26 0:53 / /home rw,relatime - nfs4 10.2.0.1:/export/home/ rw,vers=4.2,addr=10.2.0.1\n",
        "NV SERVER   PORT DEV          FSID                              FSC\n\
         v4 0a020001  801 0:51         8a2f14c09d6b4e31:77               no \n\
         v4 0a020001  801 0:53         8a2f14c09d6b4e31:b1f2d7a40c5e9382 no \n",
    );

    fn nfs(host: (&str, &str), at: usize) -> Option<String> {
        let volumes = host.1.to_owned();
        super::identity(&mounts(host.0)[at], || Some(volumes), || None, || None)
    }

    #[test]
    fn an_nfs_export_has_one_identity_on_all_hosts() {
        let one = nfs(ONE_HOST, 0);
        assert_eq!(
            one.as_deref(),
            Some("nfs 8a2f14c09d6b4e31:b1f2d7a40c5e9382")
        );
        assert_eq!(nfs(ANOTHER_HOST, 1), one);
        assert_ne!(nfs(ANOTHER_HOST, 0), one);
        assert!(!is_local(&mounts(ONE_HOST.0)[0]));
    }

    #[test]
    fn a_small_fsid_needs_the_export() {
        let volumes = |fsid: &str| format!("v3 0a010001  801 0:58         {fsid:<33} no \n");
        let identity = |table: &str, fsid| {
            super::identity(&mounts(table)[0], || Some(volumes(fsid)), || None, || None)
        };
        let (a, b) = (
            "1 2 0:58 / /a rw - nfs x:/a rw\n",
            "1 2 0:58 / /a rw - nfs y:/b rw\n",
        );
        assert_eq!(identity(a, "0:0").as_deref(), Some("nfs 0:0 /a"));
        assert_ne!(identity(a, "0:0"), identity(b, "0:0"));
        assert_eq!(identity(a, "not:hex"), None);
        let unread = super::identity(&mounts(a)[0], || None, || None, || None);
        assert_eq!(unread, None);
    }

    #[test]
    fn a_device_number_is_no_identity() {
        let ext4 = &mounts("1 2 7:0 / /img ro - ext4 /dev/loop0 ro\n")[0];
        let xfs = &mounts("1 2 7:0 / /img ro - xfs /dev/loop0 ro\n")[0];
        let squashfs = &mounts("1 2 7:0 / /img ro - squashfs /dev/loop0 ro\n")[0];
        let fsid = 0x729f_f2c1_e439_c82c;
        let device = 0x700;
        assert_eq!(
            identity(ext4, fsid, None).as_deref(),
            Some("fsid ext4 729ff2c1e439c82c")
        );
        for device_number in [0, device, device << 32] {
            assert_eq!(identity(squashfs, device_number, None), None);
            assert_eq!(
                identity(xfs, device_number, Some("ab12")).as_deref(),
                Some("uuid ab12")
            );
        }
    }

    #[test]
    fn generated_filesystems_have_no_identity() {
        for fstype in ["fuse.sshfs", "fuse", "fuseblk", "9p", "virtiofs"] {
            let table = format!("1 2 0:70 / /x rw - {fstype} host:/x rw\n");
            let source = &mounts(&table)[0];
            assert_eq!(identity(source, u64::MAX, Some("ab12")), None, "{fstype}");
            assert!(is_local(source), "{fstype}");
        }
    }

    #[test]
    fn a_cluster_filesystem_is_identified_by_its_name() {
        let table = "1 2 0:70 / /l rw - lustre 10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch rw\n\
             1 2 0:71 /p /p rw - lustre mgs@tcp:/scratch/p rw\n\
             1 2 0:72 / /g rw - gpfs gpfs0 rw\n\
             1 2 0:73 / /b rw - beegfs beegfs_nodev rw\n\
             1 2 0:74 / /o rw - overlay overlay rw\n";
        let [lustre, below, gpfs, beegfs, overlay] = &mounts(table)[..] else {
            panic!("five mounts")
        };
        assert_eq!(identity(lustre, 7, None).as_deref(), Some("lustre scratch"));
        assert_eq!(identity(below, 9, None), identity(lustre, 7, None));
        assert_eq!(
            identity(gpfs, 7, None).as_deref(),
            Some("source gpfs gpfs0")
        );
        assert_eq!(identity(beegfs, 7, None), None);
        // Its `f_fsid` may be that of one of its layers.
        assert_eq!(identity(overlay, 0x729f_f2c1_e439_c82c, None), None);
        assert!(is_local(overlay) && !is_local(lustre));
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ioctl interface of a copperfs mount: open any file or directory of the mount, call ioctl(2).
 * Integers are in the machine's byte order. The numbers are those of fuse/src/ioctl.rs.
 *
 * Errors: ENOTTY: not a copperfs mount, or a daemon of another version. ENOTCONN: the daemon is
 * gone. EPERM: only the mount's owner and root may clear. EINVAL: a field is invalid. ENOENT: no origin
 * covers the path to clear. Clearing returns 1 if anything of the path was cached, and 0 if not.
 */
#ifndef COPPERFS_IOCTL_H
#define COPPERFS_IOCTL_H

#include <stdint.h>
#include <sys/ioctl.h>

#define COPPERFS_ABI 2
#define COPPERFS_PATH_MAX 4096
#define COPPERFS_STATS_MAX 16368

/*
 * Counters of one node, or of all nodes summed: lines of name and value, such as "origin.opens 5". The
 * names are those of "copperfs stats --json". The text is not NUL-terminated.
 */
struct copperfs_stats {
    uint32_t abi; /* COPPERFS_ABI */
    uint32_t len; /* bytes of text */
    char text[COPPERFS_STATS_MAX];
};

#define COPPERFS_CLEAR_CLUSTER 1u

struct copperfs_clear {
    uint32_t abi;      /* COPPERFS_ABI */
    uint32_t flags;    /* 0 or COPPERFS_CLEAR_CLUSTER */
    uint32_t path_len; /* bytes of path; 0: everything */
    uint32_t reserved; /* 0 */
    char path[COPPERFS_PATH_MAX]; /* relative to the mount */
};

/*
 * The addresses at which the daemon accepts HTTP requests (docs/openapi.json). Both texts end with a NUL byte. `users` is the
 * name of an abstract Unix socket, for users of the mount that do not own it; the name lacks the leading NUL.
 */
struct copperfs_sockets {
    uint32_t abi;      /* COPPERFS_ABI */
    uint32_t reserved; /* 0 */
    char owner[112];
    char users[112];
};

#define COPPERFS_IOC_NODE_STATS _IOR(0xC7, 1, struct copperfs_stats)
#define COPPERFS_IOC_CLUSTER_STATS _IOR(0xC7, 2, struct copperfs_stats)
#define COPPERFS_IOC_CLEAR _IOW(0xC7, 3, struct copperfs_clear)
#define COPPERFS_IOC_SOCKETS _IOR(0xC7, 4, struct copperfs_sockets)

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ioctl interface of a copperfs mount: open any file or directory of the mount, call ioctl(2).
 * Integers are in the machine's byte order. A test keeps this file equal to fuse/src/ioctl.rs.
 *
 * Errors: ENOTTY: not a copperfs mount, or a daemon of another version. ENOTCONN: the daemon is
 * gone. EPERM: clear is for the mount's owner and root. EINVAL: a field that makes no sense. ENOENT:
 * the path to clear is under no origin. Clearing returns 1 if anything of the path was cached, 0 if not.
 */
#ifndef COPPERFS_IOCTL_H
#define COPPERFS_IOCTL_H

#include <stdint.h>
#include <sys/ioctl.h>

#define COPPERFS_ABI 1
#define COPPERFS_PATH_MAX 4096

/* Counters of one node, or of all nodes summed. The comment of each field is its name in JSON. */
struct copperfs_stats {
    uint32_t abi;  /* COPPERFS_ABI */
    uint32_t size; /* bytes of this struct */
    char node[64]; /* host name, NUL-terminated; in a sum the asked node's */
    /* fields */
    uint64_t pid; /* pid */
    uint64_t rank; /* rank */
    uint64_t role; /* role */
    uint64_t parent; /* parent */
    uint64_t nodes; /* nodes */
    uint64_t uptime_s; /* uptime_s */
    uint64_t rss_bytes; /* rss_bytes */
    uint64_t fuse_requests_lookup; /* fuse.requests.lookup */
    uint64_t fuse_requests_forget; /* fuse.requests.forget */
    uint64_t fuse_requests_getattr; /* fuse.requests.getattr */
    uint64_t fuse_requests_readlink; /* fuse.requests.readlink */
    uint64_t fuse_requests_open; /* fuse.requests.open */
    uint64_t fuse_requests_release; /* fuse.requests.release */
    uint64_t fuse_requests_read; /* fuse.requests.read */
    uint64_t fuse_requests_opendir; /* fuse.requests.opendir */
    uint64_t fuse_requests_readdir; /* fuse.requests.readdir */
    uint64_t fuse_requests_readdirplus; /* fuse.requests.readdirplus */
    uint64_t fuse_requests_releasedir; /* fuse.requests.releasedir */
    uint64_t fuse_requests_flush; /* fuse.requests.flush */
    uint64_t fuse_requests_fsync; /* fuse.requests.fsync */
    uint64_t fuse_requests_statfs; /* fuse.requests.statfs */
    uint64_t fuse_requests_access; /* fuse.requests.access */
    uint64_t fuse_requests_getxattr; /* fuse.requests.getxattr */
    uint64_t fuse_requests_listxattr; /* fuse.requests.listxattr */
    uint64_t fuse_requests_lseek; /* fuse.requests.lseek */
    uint64_t fuse_requests_lock; /* fuse.requests.lock */
    uint64_t fuse_requests_ioctl; /* fuse.requests.ioctl */
    uint64_t fuse_requests_write; /* fuse.requests.write */
    uint64_t fuse_bytes_read; /* fuse.bytes_read */
    uint64_t fuse_interrupted; /* fuse.interrupted */
    uint64_t cache_data_entries; /* cache.data.entries */
    uint64_t cache_data_bytes; /* cache.data.bytes */
    uint64_t cache_data_hits; /* cache.data.hits */
    uint64_t cache_data_misses; /* cache.data.misses */
    uint64_t cache_data_evictions; /* cache.data.evictions */
    uint64_t cache_attributes_entries; /* cache.attributes.entries */
    uint64_t cache_attributes_bytes; /* cache.attributes.bytes */
    uint64_t cache_attributes_hits; /* cache.attributes.hits */
    uint64_t cache_attributes_misses; /* cache.attributes.misses */
    uint64_t cache_attributes_evictions; /* cache.attributes.evictions */
    uint64_t cache_listings_entries; /* cache.listings.entries */
    uint64_t cache_listings_bytes; /* cache.listings.bytes */
    uint64_t cache_listings_hits; /* cache.listings.hits */
    uint64_t cache_listings_misses; /* cache.listings.misses */
    uint64_t cache_listings_evictions; /* cache.listings.evictions */
    uint64_t coalesced; /* coalesced */
    uint64_t upstream_requests; /* upstream.requests */
    uint64_t upstream_bytes_received; /* upstream.bytes_received */
    uint64_t downstream_requests; /* downstream.requests */
    uint64_t downstream_bytes_sent; /* downstream.bytes_sent */
    uint64_t origin_opens; /* origin.opens */
    uint64_t origin_bytes_read; /* origin.bytes_read */
    uint64_t origin_listings; /* origin.listings */
    uint64_t origin_stats; /* origin.stats */
    uint64_t origin_errors; /* origin.errors */
    uint64_t verify_blocks; /* verify.blocks */
    uint64_t verify_failures; /* verify.failures */
    uint64_t push_files; /* push.files */
    uint64_t push_bytes; /* push.bytes */
    uint64_t push_pending; /* push.pending */
    uint64_t healing_failovers; /* healing.failovers */
    uint64_t healing_returns; /* healing.returns */
    uint64_t healing_replays; /* healing.replays */
    uint64_t healing_wrong_blocks; /* healing.wrong_blocks */
    uint64_t bundle_requests; /* bundle.requests */
    uint64_t bundle_files; /* bundle.files */
    uint64_t bundle_useful_bytes; /* bundle.useful_bytes */
    uint64_t bundle_wasted_bytes; /* bundle.wasted_bytes */
    uint64_t disk_entries; /* disk.entries */
    uint64_t disk_bytes; /* disk.bytes */
    uint64_t disk_hits; /* disk.hits */
    uint64_t disk_misses; /* disk.misses */
    uint64_t disk_evictions; /* disk.evictions */
    uint64_t disk_damaged; /* disk.damaged */
    uint64_t disk_dropped; /* disk.dropped */
    uint64_t disk_shared; /* disk.shared */
    uint64_t origin_throttled; /* origin.throttled */
    uint64_t origin_concurrency; /* origin.concurrency */
    uint64_t data_mount_mounted; /* data_mount.mounted */
    uint64_t data_mount_lost; /* data_mount.lost */
    uint64_t data_mount_requests; /* data_mount.requests */
    uint64_t data_mount_opens; /* data_mount.opens */
    uint64_t data_mount_dataset_opens; /* data_mount.dataset_opens */
    uint64_t data_mount_releases; /* data_mount.releases */
    uint64_t data_mount_cached_opens; /* data_mount.cached_opens */
    uint64_t data_mount_reads; /* data_mount.reads */
    uint64_t data_mount_bytes_read; /* data_mount.bytes_read */
    uint64_t datasets_share_bytes; /* datasets.share_bytes */
    uint64_t datasets_bytes; /* datasets.bytes */
    uint64_t datasets_items; /* datasets.items */
    uint64_t datasets_origin_bytes; /* datasets.origin_bytes */
    uint64_t datasets_requests; /* datasets.requests */
    uint64_t datasets_unpaid; /* datasets.unpaid */
    uint64_t datasets_elsewhere; /* datasets.elsewhere */
    uint64_t datasets_unattributed_bytes; /* datasets.unattributed_bytes */
    uint64_t inodes_entries; /* inodes.entries */
    uint64_t inodes_bytes; /* inodes.bytes */
    uint64_t inodes_pruned; /* inodes.pruned */
    uint64_t origin_hanging; /* origin.hanging */
};

#define COPPERFS_CLEAR_CLUSTER 1u

struct copperfs_clear {
    uint32_t abi;      /* COPPERFS_ABI */
    uint32_t flags;    /* 0 or COPPERFS_CLEAR_CLUSTER */
    uint32_t path_len; /* bytes of path; 0: everything */
    uint32_t reserved; /* 0 */
    char path[COPPERFS_PATH_MAX]; /* relative to the mount */
};

struct copperfs_control {
    uint32_t abi; /* COPPERFS_ABI */
    uint32_t len; /* bytes of path */
    char path[COPPERFS_PATH_MAX];
};

#define COPPERFS_IOC_NODE_STATS _IOR(0xC7, 1, struct copperfs_stats)
#define COPPERFS_IOC_CLUSTER_STATS _IOR(0xC7, 2, struct copperfs_stats)
#define COPPERFS_IOC_CLEAR _IOW(0xC7, 3, struct copperfs_clear)
#define COPPERFS_IOC_CONTROL _IOR(0xC7, 4, struct copperfs_control)

#endif

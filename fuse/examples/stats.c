/* Prints the counters of the node that serves a mount.  cc -Iinclude -o stats examples/stats.c */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "copperfs_ioctl.h"

int main(int argc, char **argv)
{
    struct copperfs_stats s;
    int fd = open(argc > 1 ? argv[1] : "/copper_mnt", O_RDONLY);

    if (fd < 0 || ioctl(fd, COPPERFS_IOC_NODE_STATS, &s) != 0) {
        perror("copperfs");
        return 1;
    }
    printf("node %s\n", s.node);
#define PRINT(field, name) printf(name " %" PRIu64 "\n", s.field)
    PRINT(pid, "pid");
    PRINT(rank, "rank");
    PRINT(role, "role");
    PRINT(parent, "parent");
    PRINT(nodes, "nodes");
    PRINT(uptime_s, "uptime_s");
    PRINT(rss_bytes, "rss_bytes");
    PRINT(fuse_requests_lookup, "fuse.requests.lookup");
    PRINT(fuse_requests_forget, "fuse.requests.forget");
    PRINT(fuse_requests_getattr, "fuse.requests.getattr");
    PRINT(fuse_requests_readlink, "fuse.requests.readlink");
    PRINT(fuse_requests_open, "fuse.requests.open");
    PRINT(fuse_requests_release, "fuse.requests.release");
    PRINT(fuse_requests_read, "fuse.requests.read");
    PRINT(fuse_requests_opendir, "fuse.requests.opendir");
    PRINT(fuse_requests_readdir, "fuse.requests.readdir");
    PRINT(fuse_requests_readdirplus, "fuse.requests.readdirplus");
    PRINT(fuse_requests_releasedir, "fuse.requests.releasedir");
    PRINT(fuse_requests_flush, "fuse.requests.flush");
    PRINT(fuse_requests_fsync, "fuse.requests.fsync");
    PRINT(fuse_requests_statfs, "fuse.requests.statfs");
    PRINT(fuse_requests_access, "fuse.requests.access");
    PRINT(fuse_requests_getxattr, "fuse.requests.getxattr");
    PRINT(fuse_requests_listxattr, "fuse.requests.listxattr");
    PRINT(fuse_requests_lseek, "fuse.requests.lseek");
    PRINT(fuse_requests_lock, "fuse.requests.lock");
    PRINT(fuse_requests_ioctl, "fuse.requests.ioctl");
    PRINT(fuse_requests_write, "fuse.requests.write");
    PRINT(fuse_bytes_read, "fuse.bytes_read");
    PRINT(fuse_interrupted, "fuse.interrupted");
    PRINT(cache_data_entries, "cache.data.entries");
    PRINT(cache_data_bytes, "cache.data.bytes");
    PRINT(cache_data_hits, "cache.data.hits");
    PRINT(cache_data_misses, "cache.data.misses");
    PRINT(cache_data_evictions, "cache.data.evictions");
    PRINT(cache_attributes_entries, "cache.attributes.entries");
    PRINT(cache_attributes_bytes, "cache.attributes.bytes");
    PRINT(cache_attributes_hits, "cache.attributes.hits");
    PRINT(cache_attributes_misses, "cache.attributes.misses");
    PRINT(cache_attributes_evictions, "cache.attributes.evictions");
    PRINT(cache_listings_entries, "cache.listings.entries");
    PRINT(cache_listings_bytes, "cache.listings.bytes");
    PRINT(cache_listings_hits, "cache.listings.hits");
    PRINT(cache_listings_misses, "cache.listings.misses");
    PRINT(cache_listings_evictions, "cache.listings.evictions");
    PRINT(coalesced, "coalesced");
    PRINT(upstream_requests, "upstream.requests");
    PRINT(upstream_bytes_received, "upstream.bytes_received");
    PRINT(downstream_requests, "downstream.requests");
    PRINT(downstream_bytes_sent, "downstream.bytes_sent");
    PRINT(origin_opens, "origin.opens");
    PRINT(origin_bytes_read, "origin.bytes_read");
    PRINT(origin_listings, "origin.listings");
    PRINT(origin_stats, "origin.stats");
    PRINT(origin_errors, "origin.errors");
    PRINT(verify_blocks, "verify.blocks");
    PRINT(verify_failures, "verify.failures");
    PRINT(push_files, "push.files");
    PRINT(push_bytes, "push.bytes");
    PRINT(push_pending, "push.pending");
    PRINT(healing_failovers, "healing.failovers");
    PRINT(healing_returns, "healing.returns");
    PRINT(healing_replays, "healing.replays");
    PRINT(healing_wrong_blocks, "healing.wrong_blocks");
    PRINT(bundle_requests, "bundle.requests");
    PRINT(bundle_files, "bundle.files");
    PRINT(bundle_useful_bytes, "bundle.useful_bytes");
    PRINT(bundle_wasted_bytes, "bundle.wasted_bytes");
    PRINT(disk_entries, "disk.entries");
    PRINT(disk_bytes, "disk.bytes");
    PRINT(disk_hits, "disk.hits");
    PRINT(disk_misses, "disk.misses");
    PRINT(disk_evictions, "disk.evictions");
    PRINT(disk_damaged, "disk.damaged");
    PRINT(disk_dropped, "disk.dropped");
    PRINT(disk_shared, "disk.shared");
    PRINT(origin_throttled, "origin.throttled");
    PRINT(origin_concurrency, "origin.concurrency");
    PRINT(data_mount_mounted, "data_mount.mounted");
    PRINT(data_mount_lost, "data_mount.lost");
    PRINT(data_mount_requests, "data_mount.requests");
    PRINT(data_mount_opens, "data_mount.opens");
    PRINT(data_mount_dataset_opens, "data_mount.dataset_opens");
    PRINT(data_mount_releases, "data_mount.releases");
    PRINT(data_mount_cached_opens, "data_mount.cached_opens");
    PRINT(data_mount_reads, "data_mount.reads");
    PRINT(data_mount_bytes_read, "data_mount.bytes_read");
    PRINT(datasets_share_bytes, "datasets.share_bytes");
    PRINT(datasets_bytes, "datasets.bytes");
    PRINT(datasets_items, "datasets.items");
    PRINT(datasets_origin_bytes, "datasets.origin_bytes");
    PRINT(datasets_requests, "datasets.requests");
    PRINT(datasets_unpaid, "datasets.unpaid");
    PRINT(datasets_elsewhere, "datasets.elsewhere");
    PRINT(datasets_unattributed_bytes, "datasets.unattributed_bytes");
    PRINT(inodes_entries, "inodes.entries");
    PRINT(inodes_bytes, "inodes.bytes");
    PRINT(inodes_pruned, "inodes.pruned");
    PRINT(origin_hanging, "origin.hanging");
    return 0;
}

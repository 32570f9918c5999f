/* Prints the counters of the node that serves a mount.  cc -Iinclude -o stats examples/stats.c */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <stdio.h>

#include "copperfs_ioctl.h"

int main(int argc, char **argv)
{
    static struct copperfs_stats stats;
    int fd = open(argc > 1 ? argv[1] : "/copper_mnt", O_RDONLY);

    if (fd < 0 || ioctl(fd, COPPERFS_IOC_NODE_STATS, &stats) != 0) {
        perror("copperfs");
        return 1;
    }
    fwrite(stats.text, 1, stats.len, stdout);
    return 0;
}

/* The bare servers have this in common: files in memory, the answers about them, and the mount. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

/* fuse/src/policy.rs, fuse/src/mount/readahead.rs and the defaults of ttl and max_background. */
enum { WRITE_BYTES_MAX = 1 << 20, READ_AHEAD_KIB = 512, TTL_S = 86400, BACKGROUND_MAX = 1024 };
enum { PAGE_BYTES = 4096, BUFFER_BYTES = WRITE_BYTES_MAX + PAGE_BYTES };
static const uint32_t FEATURES = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_DO_READDIRPLUS |
                                 FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES | FUSE_CACHE_SYMLINKS |
                                 FUSE_EXPLICIT_INVAL_DATA;

/* A file or directory. Its inode number is its index. */
struct node {
    uint64_t parent;
    char *name;
    char *bytes;
    struct fuse_attr attributes;
};

static struct node *nodes;
static uint64_t nodes_count = FUSE_ROOT_ID;
static const char *mountpoint;
static int fuse;

static void die(const char *what, const char *path) {
    fprintf(stderr, "%s: %s %s: %s\n", program_invocation_short_name, what, path, strerror(errno));
    exit(1);
}

static char *read_file(const char *path, size_t size) {
    char *bytes = malloc(size + 1);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (bytes == NULL || file < 0) die("open", path);
    for (size_t at = 0; at < size;) {
        ssize_t got = read(file, bytes + at, size - at);
        if (got == 0) errno = ENODATA;
        if (got <= 0) die("read", path);
        at += (size_t)got;
    }
    close(file);
    return bytes;
}

static uint64_t add_node(uint64_t parent, const FTSENT *entry) {
    static uint64_t room;
    uint64_t number = nodes_count++;
    if (number >= room) {
        room = number * 2 + 1024;
        nodes = realloc(nodes, room * sizeof *nodes);
        if (nodes == NULL) die("allocate", entry->fts_path);
    }
    const struct stat *status = entry->fts_statp;
    nodes[number] = (struct node){
        .parent = parent,
        .name = strdup(entry->fts_name),
        .attributes = {.ino = number,
                       .size = (uint64_t)status->st_size,
                       .blocks = (uint64_t)status->st_blocks,
                       .mtime = (uint64_t)status->st_mtim.tv_sec,
                       .mtimensec = (uint32_t)status->st_mtim.tv_nsec,
                       .mode = status->st_mode,
                       .nlink = (uint32_t)status->st_nlink,
                       .uid = status->st_uid,
                       .gid = status->st_gid,
                       .blksize = (uint32_t)status->st_blksize}};
    if (nodes[number].name == NULL) die("allocate", entry->fts_path);
    return number;
}

static void read_tree(const char *path) {
    char *roots[] = {(char *)path, NULL};
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (walk == NULL) die("walk", path);
    for (FTSENT *entry; (entry = fts_read(walk)) != NULL;) {
        uint64_t parent = (uint64_t)entry->fts_parent->fts_number;
        if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR || entry->fts_info == FTS_NS) {
            errno = entry->fts_errno;
            die("walk", entry->fts_path);
        }
        if (entry->fts_info == FTS_D) entry->fts_number = (long)add_node(parent, entry);
        if (entry->fts_info == FTS_F) {
            uint64_t number = add_node(parent, entry);
            nodes[number].bytes = read_file(entry->fts_accpath, nodes[number].attributes.size);
        }
    }
    fts_close(walk);
    errno = ENOTDIR;
    if (nodes_count == FUSE_ROOT_ID || !S_ISDIR(nodes[FUSE_ROOT_ID].attributes.mode)) die("walk", path);
}

/* Each server has its own way. */
static void answer(uint64_t unique, int error, const void *bytes, size_t size);

static struct fuse_entry_out entry_of(uint64_t number) {
    return (struct fuse_entry_out){.nodeid = number,
                                   .entry_valid = TTL_S,
                                   .attr_valid = TTL_S,
                                   .attr = nodes[number].attributes};
}

/* A look-up goes through all nodes: the kernel keeps the names, so the rows measure none. */
static void answer_lookup(uint64_t unique, uint64_t parent, const char *name) {
    uint64_t number = FUSE_ROOT_ID + 1;
    while (number < nodes_count && (nodes[number].parent != parent || strcmp(nodes[number].name, name) != 0))
        number++;
    if (number == nodes_count) return answer(unique, ENOENT, NULL, 0);
    struct fuse_entry_out out = entry_of(number);
    answer(unique, 0, &out, sizeof out);
}

static void answer_getattr(uint64_t unique, uint64_t number) {
    struct fuse_attr_out out = {.attr_valid = TTL_S, .attr = nodes[number].attributes};
    answer(unique, 0, &out, sizeof out);
}

static void answer_open(uint64_t unique, uint64_t number, uint32_t flags) {
    struct fuse_open_out out = {.fh = number, .open_flags = flags};
    answer(unique, 0, &out, sizeof out);
}

static void answer_read(uint64_t unique, uint64_t number, const struct fuse_read_in *read) {
    uint64_t end = nodes[number].attributes.size;
    if (read->offset >= end) return answer(unique, 0, NULL, 0);
    uint64_t left = end - read->offset;
    answer(unique, 0, nodes[number].bytes + read->offset, left < read->size ? left : read->size);
}

static void unmount(void) { umount2(mountpoint, MNT_DETACH); }

/* Unmounts at any end of the program from now on. */
static void mount_device(void) {
    char options[128], type[128];
    const char *program = program_invocation_short_name;
    fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (fuse < 0) die("open", "/dev/fuse");
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%u,group_id=%u,default_permissions", fuse,
             geteuid(), getegid());
    snprintf(type, sizeof type, "fuse.%s", program);
    if (mount(program, mountpoint, type, MS_RDONLY | MS_NOSUID | MS_NODEV, options) != 0)
        die("mount on", mountpoint);
    atexit(unmount);
}

/* Comes after INIT, which sets the kernel's default. */
static void raise_read_ahead(void) {
    char path[128];
    struct stat status;
    if (stat(mountpoint, &status) != 0) die("stat", mountpoint);
    snprintf(path, sizeof path, "/sys/class/bdi/%u:%u/read_ahead_kb", major(status.st_dev),
             minor(status.st_dev));
    FILE *file = fopen(path, "w");
    if (file == NULL || fprintf(file, "%d", READ_AHEAD_KIB) < 0 || fclose(file) != 0) die("write", path);
}

/* Blocks the signals that end a server, for this thread and those that it starts. */
static sigset_t block_ends(void) {
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    return ends;
}

/* Tells that the mount answers, and waits for the end. */
static int stay(const sigset_t *ends) {
    int received;
    raise_read_ahead();
    puts("ready");
    fflush(stdout);
    sigwait(ends, &received);
    return 0;
}

/* A FUSE server that does nothing but serve: the floor that row 69 of scripts/bench compares the daemon's
 * local hits with.
 *
 *   bare_fuse MOUNTPOINT DIRECTORY THREADS
 *
 * Reads all regular files below DIRECTORY into memory and mounts them on MOUNTPOINT, which needs root. The
 * kernel does the same work as for the daemon's data mount: the same features in INIT except one of direct
 * I/O, the same read-ahead, the same flags of open files, the same time limits of names and attributes, one
 * descriptor that all THREADS read from, one writev for each answer. OPEN, READ and RELEASE take an index
 * and no more: they check, count and allocate nothing.
 *
 * Prints "ready" once the mount answers. Unmounts and ends on SIGTERM and SIGINT. Any unexpected outcome ends
 * it with a message and status 1.
 */
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
    fprintf(stderr, "bare_fuse: %s %s: %s\n", what, path, strerror(errno));
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

/* The kernel takes an answer whole or not at all. It refuses one that it does not wait for any more. */
static void answer(uint64_t unique, int error, const void *bytes, size_t size) {
    struct fuse_out_header header = {(uint32_t)(sizeof header + size), -error, unique};
    struct iovec parts[] = {{&header, sizeof header}, {(void *)bytes, size}};
    if (writev(fuse, parts, size > 0 ? 2 : 1) < 0 && errno != ENOENT && errno != ENODEV)
        die("answer", "a request");
}

static void answer_init(uint64_t unique, const struct fuse_init_in *init) {
    struct fuse_init_out out = {.major = FUSE_KERNEL_VERSION,
                                .minor = FUSE_KERNEL_MINOR_VERSION,
                                .max_readahead = init->max_readahead,
                                .flags = init->flags & FEATURES,
                                .max_background = BACKGROUND_MAX,
                                .congestion_threshold = BACKGROUND_MAX * 3 / 4,
                                .max_write = WRITE_BYTES_MAX,
                                .time_gran = 1,
                                .max_pages = WRITE_BYTES_MAX / PAGE_BYTES};
    answer(unique, 0, &out, sizeof out);
}

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

/* An entry's offset is the number of the node after it. */
static void answer_readdir(uint64_t unique, uint64_t parent, const struct fuse_read_in *read, int plus) {
    size_t used = 0, head = plus ? sizeof(struct fuse_entry_out) : 0;
    char *page = calloc(1, read->size);
    if (page == NULL) return answer(unique, ENOMEM, NULL, 0);
    uint64_t number = read->offset > FUSE_ROOT_ID ? read->offset : FUSE_ROOT_ID + 1;
    for (; number < nodes_count; number++) {
        if (nodes[number].parent != parent) continue;
        size_t length = strlen(nodes[number].name);
        size_t size = head + FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + length);
        if (used + size > read->size) break;
        struct fuse_entry_out entry = entry_of(number);
        memcpy(page + used, &entry, head);
        struct fuse_dirent *row = (struct fuse_dirent *)(page + used + head);
        *row = (struct fuse_dirent){.ino = number,
                                    .off = number + 1,
                                    .namelen = (uint32_t)length,
                                    .type = (nodes[number].attributes.mode & S_IFMT) >> 12};
        memcpy(row->name, nodes[number].name, length);
        used += size;
    }
    answer(unique, 0, page, used);
    free(page);
}

static void answer_request(const struct fuse_in_header *request) {
    const void *rest = request + 1;
    uint64_t unique = request->unique, number = request->nodeid;
    switch (request->opcode) {
    case FUSE_READ: return answer_read(unique, number, rest);
    case FUSE_OPEN: return answer_open(unique, number, FOPEN_KEEP_CACHE | FOPEN_NOFLUSH);
    case FUSE_LOOKUP: return answer_lookup(unique, number, rest);
    case FUSE_GETATTR: return answer_getattr(unique, number);
    case FUSE_OPENDIR: return answer_open(unique, 0, FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR);
    case FUSE_READDIR: return answer_readdir(unique, number, rest, 0);
    case FUSE_READDIRPLUS: return answer_readdir(unique, number, rest, 1);
    case FUSE_INIT: return answer_init(unique, rest);
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET: return;
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
    case FUSE_FLUSH:
    case FUSE_ACCESS:
    case FUSE_DESTROY: return answer(unique, 0, NULL, 0);
    default: return answer(unique, ENOSYS, NULL, 0);
    }
}

/* Answers the next request. Returns 0 once the mount is gone. */
static int serve_one(char *buffer) {
    if (read(fuse, buffer, BUFFER_BYTES) >= 0) {
        answer_request((const struct fuse_in_header *)buffer);
        return 1;
    }
    /* With ENOENT the kernel has taken the request back. */
    if (errno != ENODEV && errno != ENOENT && errno != EINTR && errno != EAGAIN) die("read", "/dev/fuse");
    return errno != ENODEV;
}

static void *serve(void *buffer) {
    while (serve_one(buffer)) continue;
    _exit(0);
}

static char *new_buffer(void) {
    char *buffer = malloc(BUFFER_BYTES);
    if (buffer == NULL) die("allocate", "a buffer");
    return buffer;
}

static void start_thread(void) {
    pthread_t thread;
    if ((errno = pthread_create(&thread, NULL, serve, new_buffer())) != 0) die("start", "a thread");
}

static void unmount(void) { umount2(mountpoint, MNT_DETACH); }

/* Unmounts at any end of the program from now on. */
static void mount_device(void) {
    char options[128];
    fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (fuse < 0) die("open", "/dev/fuse");
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%u,group_id=%u,default_permissions", fuse,
             geteuid(), getegid());
    if (mount("bare_fuse", mountpoint, "fuse.bare_fuse", MS_RDONLY | MS_NOSUID | MS_NODEV, options) != 0)
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

int main(int count, char **arguments) {
    int threads = count == 4 ? atoi(arguments[3]) : 0, received;
    if (threads < 1) {
        fprintf(stderr, "usage: bare_fuse MOUNTPOINT DIRECTORY THREADS\n");
        return 2;
    }
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);

    mountpoint = arguments[1];
    read_tree(arguments[2]);
    mount_device();
    serve_one(new_buffer()); /* INIT */
    for (int i = 0; i < threads; i++) start_thread();
    raise_read_ahead();
    puts("ready");
    fflush(stdout);
    sigwait(&ends, &received);
    return 0;
}

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
#include "bare_server.h"

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

int main(int count, char **arguments) {
    int threads = count == 4 ? atoi(arguments[3]) : 0;
    if (threads < 1) {
        fprintf(stderr, "usage: bare_fuse MOUNTPOINT DIRECTORY THREADS\n");
        return 2;
    }
    sigset_t ends = block_ends();
    mountpoint = arguments[1];
    read_tree(arguments[2]);
    mount_device();
    serve_one(new_buffer()); /* INIT */
    for (int i = 0; i < threads; i++) start_thread();
    return stay(&ends);
}

/* bare_fuse.c with FUSE over io_uring, in the fastest of the ways that were tried: row 76 of scripts/bench
 * compares both.
 *
 *   bare_uring MOUNTPOINT DIRECTORY THREADS
 *
 * The kernel has one queue for each possible processor, and a reader's requests come on the queue of the
 * processor that it runs on. One thread on the same processor answers them there, with one system call for
 * an answer and the wait for the next request. It copies an answer to the queue entry's buffer, from which
 * the kernel copies it once more. THREADS is there for bare_fuse's callers, and has no effect. Directories
 * cannot be listed, as the rows list none. All else is as in bare_fuse.c.
 *
 * Needs Linux 6.14 and Y in /sys/module/fuse/parameters/enable_uring while it starts.
 */
#include "bare_server.h"
#include <liburing.h>
#include <sched.h>

/* Headers of Linux before 6.14 lack these. */
#ifndef FUSE_OVER_IO_URING
#define FUSE_OVER_IO_URING (1ULL << 41)
struct fuse_uring_ent_in_out {
    uint64_t flags, commit_id;
    uint32_t payload_sz, padding;
    uint64_t reserved;
};
struct fuse_uring_req_header {
    char in_out[128], op_in[128];
    struct fuse_uring_ent_in_out ring_ent_in_out;
};
struct fuse_uring_cmd_req {
    uint64_t flags, commit_id;
    uint16_t qid;
    uint8_t padding[6];
};
enum { FUSE_IO_URING_CMD_REGISTER = 1, FUSE_IO_URING_CMD_COMMIT_AND_FETCH = 2 };
#endif

/* Requests that a queue holds: room for a reader and its read-ahead. */
enum { DEPTH = 4 };

/* Room for one request and its answer. */
struct entry {
    struct fuse_uring_req_header headers;
    char *payload;
    struct iovec parts[2];
};

static pthread_barrier_t registered;
/* The entry whose request this thread answers. NULL for INIT, which comes from the device. */
static _Thread_local struct entry *answered;

/* liburing returns errors and leaves errno alone. */
static void check(int result, const char *what, const char *path) {
    errno = -result;
    if (result < 0) die(what, path);
}

/* On a queue, the answer goes to the kernel with the entry's next command. */
static void answer(uint64_t unique, int error, const void *bytes, size_t size) {
    struct fuse_out_header header = {(uint32_t)(sizeof header + size), -error, unique};
    struct iovec parts[] = {{&header, sizeof header}, {(void *)bytes, size}};
    if (answered == NULL) {
        if (writev(fuse, parts, 2) < 0) die("answer", "INIT");
        return;
    }
    if (size > 0) memcpy(answered->payload, bytes, size);
    memcpy(answered->headers.in_out, &header, sizeof header);
    answered->headers.ring_ent_in_out.payload_sz = (uint32_t)size;
}

static void answer_init(void) {
    char *buffer = malloc(BUFFER_BYTES);
    if (buffer == NULL || read(fuse, buffer, BUFFER_BYTES) < 0) die("read", "INIT");
    const struct fuse_in_header *request = (const void *)buffer;
    const struct fuse_init_in *init = (const void *)(request + 1);
    struct fuse_init_out out = {.major = FUSE_KERNEL_VERSION,
                                .minor = FUSE_KERNEL_MINOR_VERSION,
                                .max_readahead = init->max_readahead,
                                .flags = init->flags & (FEATURES | FUSE_INIT_EXT),
                                .flags2 = init->flags2 & (uint32_t)(FUSE_OVER_IO_URING >> 32),
                                .max_background = BACKGROUND_MAX,
                                .congestion_threshold = BACKGROUND_MAX * 3 / 4,
                                .max_write = WRITE_BYTES_MAX,
                                .time_gran = 1,
                                .max_pages = WRITE_BYTES_MAX / PAGE_BYTES};
    errno = EOPNOTSUPP;
    if (out.flags2 == 0) die("use", "io_uring, which the kernel does not offer");
    answer(request->unique, 0, &out, sizeof out);
    free(buffer);
}

/* The kernel puts structures into the headers, and names into the payload. */
static void answer_request(struct entry *entry) {
    const void *fixed = entry->headers.op_in;
    struct fuse_in_header request;
    memcpy(&request, entry->headers.in_out, sizeof request);
    uint64_t unique = request.unique, number = request.nodeid;
    answered = entry;
    switch (request.opcode) {
    case FUSE_READ: return answer_read(unique, number, fixed);
    case FUSE_OPEN: return answer_open(unique, number, FOPEN_KEEP_CACHE | FOPEN_NOFLUSH);
    case FUSE_LOOKUP: return answer_lookup(unique, number, entry->payload);
    case FUSE_GETATTR: return answer_getattr(unique, number);
    case FUSE_RELEASE: return answer(unique, 0, NULL, 0);
    default: return answer(unique, ENOSYS, NULL, 0);
    }
}

/* The command takes the entry's answer, if it has one, and completes with the entry's next request. */
static void command(struct io_uring *ring, struct entry *entry, uint16_t queue, uint32_t operation) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    if (sqe == NULL) check(-ENOBUFS, "send", "a command");
    memset(sqe, 0, 2 * sizeof *sqe);
    sqe->opcode = IORING_OP_URING_CMD;
    sqe->flags = IOSQE_FIXED_FILE; /* number 0, the device */
    sqe->cmd_op = operation;
    sqe->addr = (uint64_t)entry->parts;
    sqe->len = 2;
    io_uring_sqe_set_data(sqe, entry);
    struct fuse_uring_cmd_req *request = (void *)sqe->cmd;
    request->qid = queue;
    request->commit_id = entry->headers.ring_ent_in_out.commit_id;
}

static void register_entries(struct io_uring *ring, uint16_t queue) {
    struct entry *entries = calloc(DEPTH, sizeof *entries);
    if (entries == NULL) die("allocate", "entries");
    for (struct entry *entry = entries; entry < entries + DEPTH; entry++) {
        entry->payload = aligned_alloc(PAGE_BYTES, WRITE_BYTES_MAX);
        if (entry->payload == NULL) die("allocate", "a payload");
        entry->parts[0] = (struct iovec){&entry->headers, sizeof entry->headers};
        entry->parts[1] = (struct iovec){entry->payload, WRITE_BYTES_MAX};
        command(ring, entry, queue, FUSE_IO_URING_CMD_REGISTER);
    }
    int sent = io_uring_submit(ring);
    check(sent == DEPTH ? 0 : sent < 0 ? sent : -EIO, "register", "entries");
}

/* A processor that is offline cannot be chosen, and sends no requests. */
static void stay_on(uint16_t processor) {
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(processor, &only);
    if (sched_setaffinity(0, sizeof only, &only) != 0 && errno != EINVAL) die("pin", "a thread");
}

static void *serve_queue(void *number) {
    uint16_t queue = (uint16_t)(uintptr_t)number;
    struct io_uring ring;
    stay_on(queue);
    check(io_uring_queue_init(DEPTH, &ring, IORING_SETUP_SQE128), "set up", "io_uring");
    check(io_uring_register_files(&ring, &fuse, 1), "register", "/dev/fuse");
    register_entries(&ring, queue);
    pthread_barrier_wait(&registered);
    for (;;) {
        struct io_uring_cqe *cqe;
        unsigned at, seen = 0;
        int result = io_uring_submit_and_wait(&ring, 1);
        if (result != -EINTR) check(result, "wait for", "requests");
        io_uring_for_each_cqe(&ring, at, cqe) {
            struct entry *entry = io_uring_cqe_get_data(cqe);
            if (cqe->res == -ENOTCONN || cqe->res == -ECONNABORTED) _exit(0); /* the mount is gone */
            check(cqe->res, "serve", "an entry");
            answer_request(entry);
            command(&ring, entry, queue, FUSE_IO_URING_CMD_COMMIT_AND_FETCH);
            seen++;
        }
        io_uring_cq_advance(&ring, seen);
    }
}

/* These need no answer. Any other request here is one that the rows would count for io_uring. */
static void *drop_forgets(void *unused) {
    static char buffer[BUFFER_BYTES];
    const struct fuse_in_header *request = (const void *)buffer;
    for (;;) {
        if (read(fuse, buffer, sizeof buffer) < 0) {
            if (errno == ENODEV) _exit(0);
            if (errno != ENOENT && errno != EINTR && errno != EAGAIN) die("read", "/dev/fuse");
        } else if (request->opcode != FUSE_FORGET && request->opcode != FUSE_BATCH_FORGET &&
                   request->opcode != FUSE_INTERRUPT)
            check(-EPROTO, "serve", "a request that did not come through io_uring");
    }
    return unused;
}

static void start_thread(void *(*run)(void *), void *argument) {
    pthread_t thread;
    check(-pthread_create(&thread, NULL, run, argument), "start", "a thread");
}

/* The kernel uses the queues once all of them have an entry. */
static void start_queues(void) {
    long queues = sysconf(_SC_NPROCESSORS_CONF);
    if (queues < 1) die("count", "processors");
    check(-pthread_barrier_init(&registered, NULL, (unsigned)queues + 1), "make", "a barrier");
    for (long queue = 0; queue < queues; queue++) start_thread(serve_queue, (void *)queue);
    pthread_barrier_wait(&registered);
}

int main(int count, char **arguments) {
    if (count != 4 || atoi(arguments[3]) < 1) {
        fprintf(stderr, "usage: bare_uring MOUNTPOINT DIRECTORY THREADS\n");
        return 2;
    }
    sigset_t ends = block_ends();
    mountpoint = arguments[1];
    read_tree(arguments[2]);
    mount_device();
    answer_init();
    start_queues();
    start_thread(drop_forgets, NULL);
    return stay(&ends);
}

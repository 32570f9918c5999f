/* The inner loops of scripts/bench: system calls and nothing else, so that what is measured is the
 * file system and not an interpreter.
 *
 *   loops OP BASE LIST SECONDS ROUNDS
 *
 * Changes to BASE, then runs OP over the paths in LIST (one per line, relative to BASE) round after
 * round, until SECONDS have passed and at least ROUNDS rounds are done. Prints one JSON object:
 * operations, bytes, wall and CPU seconds of the loop alone. Any unexpected outcome ends it with a
 * message and status 1: a benchmark of failing calls must not look fast.
 *
 * OP: stat | missing (stat that must say ENOENT) | read (open, read to the end, close) |
 *     map (mmap, add up every word, munmap; counts pages) | touch (the same with one byte a page: the
 *     page tables alone) | walk (every entry below LIST's paths, with lstat) | list (readdir only) |
 *     scatter (out of the page cache and in again page by page, without large folios) | gather (out and
 *     in again with the kernel's read-ahead)
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 20, PAGE_BYTES = 4096 };

static char buffer[BUFFER_BYTES];
static uint64_t operations, bytes;
static volatile uint64_t touched;

static void die(const char *what, const char *path) {
    fprintf(stderr, "loops: %s %s: %s\n", what, path, strerror(errno));
    exit(1);
}

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void op_stat(const char *path) {
    struct stat status;
    if (stat(path, &status) != 0) die("stat", path);
    operations++;
}

static void op_missing(const char *path) {
    struct stat status;
    if (stat(path, &status) == 0) errno = EEXIST;
    if (errno != ENOENT) die("stat of a missing name", path);
    operations++;
}

/* A read that is shorter than the buffer is the end of a regular file. */
static void op_read(const char *path) {
    int file = open(path, O_RDONLY);
    if (file < 0) die("open", path);
    ssize_t got;
    do {
        got = read(file, buffer, sizeof buffer);
        if (got < 0) die("read", path);
        bytes += (uint64_t)got;
    } while (got == (ssize_t)sizeof buffer);
    close(file);
    operations++;
}

static uint64_t add_words(const char *map, size_t size) {
    const uint64_t *words = (const uint64_t *)map;
    uint64_t sum = 0;
    for (size_t i = 0; i < size / sizeof *words; i++) sum += words[i];
    return sum;
}

static uint64_t touch_pages(const char *map, size_t size) {
    uint64_t sum = 0;
    for (size_t at = 0; at < size; at += PAGE_BYTES) sum += (unsigned char)map[at];
    return sum;
}

static void map_with(const char *path, uint64_t (*use)(const char *map, size_t size)) {
    struct stat status;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &status) != 0) die("open", path);
    size_t size = (size_t)status.st_size;
    const char *map = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) die("mmap", path);
    touched += use(map, size);
    operations += (size + PAGE_BYTES - 1) / PAGE_BYTES;
    bytes += size;
    munmap((void *)map, size);
    close(file);
}

static void op_map(const char *path) { map_with(path, add_words); }

static void op_touch(const char *path) { map_with(path, touch_pages); }

static void op_walk(const char *path) {
    char *roots[] = {(char *)path, NULL};
    FTS *walk = fts_open(roots, FTS_PHYSICAL, NULL);
    if (walk == NULL) die("walk", path);
    for (FTSENT *entry; (entry = fts_read(walk)) != NULL;) {
        if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR || entry->fts_info == FTS_NS) {
            errno = entry->fts_errno;
            die("walk", entry->fts_path);
        }
        if (entry->fts_info != FTS_DP) operations++;
    }
    fts_close(walk);
}

static void op_list(const char *path) {
    DIR *directory = opendir(path);
    if (directory == NULL) die("opendir", path);
    while (readdir(directory) != NULL) operations++;
    closedir(directory);
}

static void again(const char *path, int advice) {
    int file = open(path, O_RDONLY);
    if (file < 0) die("open", path);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    posix_fadvise(file, 0, 0, advice);
    for (ssize_t got = 1; got > 0;)
        if ((got = read(file, buffer, sizeof buffer)) < 0) die("read", path);
    close(file);
    operations++;
}

static void op_scatter(const char *path) { again(path, POSIX_FADV_RANDOM); }

static void op_gather(const char *path) { again(path, POSIX_FADV_SEQUENTIAL); }

static const struct {
    const char *name;
    void (*run)(const char *path);
} OPERATIONS[] = {{"stat", op_stat}, {"missing", op_missing}, {"read", op_read},
                  {"map", op_map},   {"touch", op_touch},     {"walk", op_walk},
                  {"list", op_list}, {"scatter", op_scatter}, {"gather", op_gather}};

static char **read_list(const char *path, size_t *count) {
    FILE *file = fopen(path, "r");
    if (file == NULL) die("open", path);
    char **paths = NULL, *line = NULL;
    size_t room = 0, capacity = 0;
    *count = 0;
    for (ssize_t length; (length = getline(&line, &capacity, file)) > 0;) {
        if (line[length - 1] == '\n') line[length - 1] = '\0';
        if (*count == room) {
            room = room ? room * 2 : 1024;
            paths = realloc(paths, room * sizeof *paths);
            if (paths == NULL) die("allocate", path);
        }
        if ((paths[(*count)++] = strdup(line)) == NULL) die("allocate", path);
    }
    free(line);
    fclose(file);
    return paths;
}

int main(int count, char **arguments) {
    if (count != 6) {
        fprintf(stderr, "usage: loops OP BASE LIST SECONDS ROUNDS\n");
        return 2;
    }
    void (*run)(const char *) = NULL;
    for (size_t i = 0; i < sizeof OPERATIONS / sizeof *OPERATIONS; i++)
        if (strcmp(OPERATIONS[i].name, arguments[1]) == 0) run = OPERATIONS[i].run;
    if (run == NULL) {
        fprintf(stderr, "loops: no operation %s\n", arguments[1]);
        return 2;
    }
    size_t paths_count;
    char **paths = read_list(arguments[3], &paths_count);
    if (chdir(arguments[2]) != 0) die("chdir", arguments[2]);
    double seconds = atof(arguments[4]);
    long rounds_min = atol(arguments[5]), rounds = 0;

    memset(buffer, 1, sizeof buffer); /* its page faults are not the file system's */
    double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    do {
        for (size_t i = 0; i < paths_count; i++) run(paths[i]);
        rounds++;
    } while (rounds < rounds_min || now(CLOCK_MONOTONIC) - wall < seconds);
    wall = now(CLOCK_MONOTONIC) - wall;
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("{\"ops\":%llu,\"bytes\":%llu,\"wall\":%.9f,\"cpu\":%.9f,\"rounds\":%ld}\n",
           (unsigned long long)operations, (unsigned long long)bytes, wall, cpu, rounds);
    return 0;
}

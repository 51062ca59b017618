/* Disks and clocks that misbehave below Python, loaded by LD_PRELOAD. Compiled by faults.py beside it.

CAMPAIGN_DISK, or campaign_disk() for a process that runs already: "KIND NUMBER TIMES ACTION VALUE MARKER ROOT ROOT...".
From the operation NUMBER (from 1) of KIND (open, read, write, sync, rename, mkdir, any) on files below a ROOT on, TIMES
operations fail: ACTION is errno (VALUE is its number), short (reads and writes of more than a byte stop at a half),
delay (VALUE is the time in ms), or gone (from there on, every operation for VALUE ms fails with ESTALE or ENOENT).
ACTION clock: from the operation on, the clock differs by an hour, forward and back at every TIMES calls of it. MARKER
is a file that is created at the first fault; a process that ends appends to MARKER.counts how many operations of each
kind it made. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { OPEN, READ, WRITE, SYNC, RENAME, MKDIR, NUM_KINDS };
static const char *NAMES[] = {"open", "read", "write", "sync", "rename", "mkdir"};
#define FILES 4096
#define REAL(name) (*(find((void **)&real_##name, #name), real_##name))

static int (*real_open64)(const char *, int, ...), (*real_openat64)(int, const char *, int, ...);
static int (*real_open)(const char *, int, ...), (*real_openat)(int, const char *, int, ...);
static int (*real_close)(int), (*real_fsync)(int), (*real_fdatasync)(int);
static int (*real_rename)(const char *, const char *), (*real_mkdir)(const char *, mode_t);
static int (*real_clock_gettime)(clockid_t, struct timespec *), (*real_gettimeofday)(struct timeval *, void *);
static ssize_t (*real_read)(int, void *, size_t), (*real_write)(int, const void *, size_t);
static ssize_t (*real_pread64)(int, void *, size_t, off_t), (*real_pwrite64)(int, const void *, size_t, off_t);

static int which = -1, value, num_roots; /* which: kind, or NUM_KINDS for any */
static long first, times;
static char action[16], marker[PATH_MAX], roots[8][PATH_MAX];
static atomic_long counts[NUM_KINDS], count, clock_calls;
static _Atomic double gone_until;
static atomic_bool ours[FILES], was_struck;

static void find(void **function, const char *name)
{
    if (!*function)
        *function = dlsym(RTLD_NEXT, name);
}

static double now(void)
{
    struct timespec time;
    REAL(clock_gettime)(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

void campaign_disk(const char *plan)
{
    char kind[16] = "", rest[4 * PATH_MAX] = "", *place = NULL;
    num_roots = 0, count = 0;
    if (sscanf(plan, "%15s %ld %ld %15s %d %4095s %16383[^\n]", kind, &first, &times, action, &value, marker, rest) < 7)
        return;
    for (char *word = strtok_r(rest, " ", &place); word && num_roots < 8; word = strtok_r(NULL, " ", &place))
        strncpy(roots[num_roots++], word, PATH_MAX - 1);
    for (which = 0; which < NUM_KINDS && strcmp(kind, NAMES[which]); which++)
        ;
}

__attribute__((constructor)) static void start(void)
{
    const char *plan = getenv("CAMPAIGN_DISK");
    if (plan)
        campaign_disk(plan);
}

__attribute__((destructor)) static void finish(void)
{
    char path[PATH_MAX + 8], text[256] = "";
    if (!num_roots)
        return;
    for (int kind = 0; kind < NUM_KINDS; kind++)
        sprintf(text + strlen(text), "%s %ld\n", NAMES[kind], counts[kind]);
    snprintf(path, sizeof path, "%s.counts", marker);
    int file = REAL(open)(path, O_CREAT | O_APPEND | O_WRONLY, 0644);
    if (file >= 0) {
        if (REAL(write)(file, text, strlen(text)) < 0)
            perror(path);
        REAL(close)(file);
    }
}

static int is_ours(const char *path)
{
    char whole[2 * PATH_MAX];
    if (!num_roots || !path)
        return 0;
    if (path[0] != '/') {
        if (!getcwd(whole, PATH_MAX))
            return 0;
        strcat(whole, "/");
        strncat(whole, path, PATH_MAX - 1);
        path = whole;
    }
    for (int index = 0; index < num_roots; index++)
        if (!strncmp(path, roots[index], strlen(roots[index])))
            return 1;
    return 0;
}

static void strike(void)
{
    if (!atomic_exchange(&was_struck, 1)) {
        int file = REAL(open)(marker, O_CREAT | O_WRONLY, 0644);
        if (file >= 0)
            REAL(close)(file);
    }
}

/* 0: do the operation; 1: do half of it; -1: it failed, and errno is set. */
static int due(int kind)
{
    if (gone_until > 0 && now() < gone_until) {
        errno = kind == OPEN ? ENOENT : ESTALE;
        return -1;
    }
    atomic_fetch_add(&counts[kind], 1);
    if (which != kind && which != NUM_KINDS)
        return 0;
    long number = atomic_fetch_add(&count, 1) + 1;
    if (number < first || (number - first >= times && strcmp(action, "clock")))
        return 0;
    if (!strcmp(action, "clock")) {
        strike();
        return 0;
    }
    if (!strcmp(action, "gone")) {
        if (gone_until > 0)
            return 0;
        strike();
        gone_until = now() + value / 1e3;
        errno = kind == OPEN ? ENOENT : ESTALE;
        return -1;
    }
    strike();
    if (!strcmp(action, "short"))
        return 1;
    if (!strcmp(action, "delay")) {
        struct timespec rest = {value / 1000, value % 1000 * 1000000L};
        nanosleep(&rest, NULL);
        return 0;
    }
    errno = value;
    return -1;
}

static int opened(int file)
{
    if (file >= 0 && file < FILES)
        ours[file] = 1;
    return file;
}

static int mine(int file) { return file >= 0 && file < FILES && ours[file]; }

#define OPENING(name, prefix, folder, ...)                                                                             \
    va_list rest;                                                                                                      \
    va_start(rest, flags);                                                                                             \
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;                                          \
    va_end(rest);                                                                                                      \
    if (!is_ours(path) || (folder))                                                                                    \
        return REAL(name)(__VA_ARGS__, flags, mode);                                                                   \
    return due(OPEN) < 0 ? -1 : opened(REAL(name)(__VA_ARGS__, flags, mode));

int open(const char *path, int flags, ...) { OPENING(open, , 0, path) }
int open64(const char *path, int flags, ...) { OPENING(open64, , 0, path) }
int openat(int at, const char *path, int flags, ...) { OPENING(openat, , path[0] != '/' && at != AT_FDCWD, at, path) }
int openat64(int at, const char *path, int flags, ...) { OPENING(openat64, , path[0] != '/' && at != AT_FDCWD, at, path) }

int close(int file)
{
    if (file >= 0 && file < FILES)
        ours[file] = 0;
    return REAL(close)(file);
}

#define MOVING(call, kind)                                                                                             \
    if (!mine(file))                                                                                                   \
        return call;                                                                                                   \
    int result = due(kind);                                                                                            \
    if (result < 0)                                                                                                    \
        return -1;                                                                                                     \
    if (result && size > 1)                                                                                            \
        size = (size + 1) / 2;                                                                                         \
    return call;

ssize_t read(int file, void *to, size_t size) { MOVING(REAL(read)(file, to, size), READ) }
ssize_t write(int file, const void *from, size_t size) { MOVING(REAL(write)(file, from, size), WRITE) }
ssize_t pread(int file, void *to, size_t size, off_t at) { MOVING(REAL(pread64)(file, to, size, at), READ) }
ssize_t pread64(int file, void *to, size_t size, off_t at) { MOVING(REAL(pread64)(file, to, size, at), READ) }
ssize_t pwrite(int file, const void *from, size_t size, off_t at) { MOVING(REAL(pwrite64)(file, from, size, at), WRITE) }
ssize_t pwrite64(int file, const void *from, size_t size, off_t at) { MOVING(REAL(pwrite64)(file, from, size, at), WRITE) }

int fsync(int file) { return mine(file) && due(SYNC) < 0 ? -1 : REAL(fsync)(file); }
int fdatasync(int file) { return mine(file) && due(SYNC) < 0 ? -1 : REAL(fdatasync)(file); }
int mkdir(const char *path, mode_t mode) { return is_ours(path) && due(MKDIR) < 0 ? -1 : REAL(mkdir)(path, mode); }
int rename(const char *from, const char *to) { return is_ours(to) && due(RENAME) < 0 ? -1 : REAL(rename)(from, to); }

static long jump(void)
{
    if (!was_struck || strcmp(action, "clock"))
        return 0;
    return 3600 * (1 - 2 * (atomic_fetch_add(&clock_calls, 1) / (times > 0 ? times : 1) % 2));
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int result = REAL(clock_gettime)(clock, time);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        time->tv_sec += jump();
    return result;
}

int gettimeofday(struct timeval *time, void *zone)
{
    int result = REAL(gettimeofday)(time, zone);
    time->tv_sec += result ? 0 : jump();
    return result;
}

time_t time(time_t *to)
{
    struct timespec now_;
    clock_gettime(CLOCK_REALTIME, &now_);
    if (to)
        *to = now_.tv_sec;
    return now_.tv_sec;
}

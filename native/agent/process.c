/* Life of the agent in one process: inert until cuInit, inert in a forked child, last snapshot at
 * the end.  Every failure here leaves the workload as it would be without the agent. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"

struct agent egpu = {
    .resolve_lock = PTHREAD_MUTEX_INITIALIZER,
    .arena_lock = PTHREAD_MUTEX_INITIALIZER,
};

static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
static bool started;       /* under the start lock: tried once in this process */
static _Atomic int spoken; /* one line per process */
static _Atomic int ended;  /* the last snapshot was asked for */

void egpu_say(const char *format, ...)
{
    char line[512];
    if (atomic_exchange(&spoken, 1))
        return;
    int at = snprintf(line, sizeof line, "egpu: ");
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(line + at, sizeof line - (size_t)at - 1, format, arguments);
    va_end(arguments);
    size_t length = (size_t)at + (more > 0 ? (size_t)more : 0);
    if (length > sizeof line - 2)
        length = sizeof line - 2;
    for (size_t i = 0; i < length; i++) /* texts come from elsewhere; the promise is one line */
        if ((unsigned char)line[i] < ' ')
            line[i] = ' ';
    line[length] = '\n';
    ssize_t written = write(STDERR_FILENO, line, length + 1);
    (void)written; /* a closed stderr is the workload's choice */
}

uint64_t egpu_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* False in any child of the process that called cuInit, however it was made. */
bool egpu_mine(void)
{
    return egpu.pid != 0 && egpu.pid == getpid();
}

void egpu_stop(void)
{
    int live = PHASE_LIVE;
    atomic_compare_exchange_strong(&egpu.phase, &live, PHASE_STOPPED);
}

/* A driver call of the agent must not disturb a capture of the workload: cuMemAlloc in another mode
 * invalidates it, even from another thread. */
int egpu_relax(void)
{
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (CALL(cuThreadExchangeStreamCaptureMode, &mode) != CUDA_SUCCESS)
        return CU_STREAM_CAPTURE_MODE_RELAXED;
    return mode;
}

void egpu_restore(int mode)
{
    CALL(cuThreadExchangeStreamCaptureMode, &mode);
}

/* Slow paths keep errno and cannot be cancelled while they hold a lock. */
struct quiet egpu_quiet(void)
{
    struct quiet quiet = {.error = errno};
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &quiet.cancel);
    return quiet;
}

void egpu_loud(struct quiet quiet)
{
    pthread_setcancelstate(quiet.cancel, NULL);
    errno = quiet.error;
}

/* A memfd with all its pages, or -1.  RLIMIT_FSIZE is looked at first: growing past it would send
 * SIGXFSZ to the workload. */
int egpu_memory_file(const char *name, uint64_t size)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < size) {
        errno = EFBIG;
        return -1;
    }
    int file = memfd_create(name, MFD_CLOEXEC);
    if (file < 0)
        return -1;
    int error = posix_fallocate(file, 0, (off_t)size);
    if (error != 0) {
        close(file);
        errno = error;
        return -1;
    }
    return file;
}

static void at_exit(void)
{
    if (!egpu_mine() || atomic_exchange(&ended, 1))
        return;
    egpu_stop(); /* first: what is counted as probed must be in the last snapshot */
    egpu_finish(NULL);
}

static void in_child(void)
{
    if (egpu.pid == 0)
        return; /* forked before cuInit: the child may still become a CUDA process */
    atomic_store(&egpu.phase, PHASE_INERT);
}

/* Files that are changed from here on may not be what the process has mapped. */
__attribute__((constructor)) static void note_time(void)
{
    clock_gettime(CLOCK_REALTIME_COARSE, &egpu.loaded);
}

/* --no-follow: only the started process is served. */
static bool wanted(void)
{
    const char *only = getenv("EGPU_NO_FOLLOW");
    return only == NULL || *only == '\0' || strtol(only, NULL, 10) == (long)getpid();
}

static void start(void)
{
    const char *path = getenv("EGPU_SOCKET");
    if (!wanted())
        return;
    if (path == NULL || *path == '\0') {
        egpu_say("EGPU_SOCKET is not set; running unprobed");
        return;
    }
    egpu_table_init();
    egpu.pid = getpid();
    if (egpu_wire_connect(path) != 0 || egpu_wire_hello() != 0)
        return; /* said why */
    if (pthread_atfork(NULL, NULL, in_child) != 0 || atexit(at_exit) != 0) {
        egpu_say("cannot follow the end of this process; running unprobed");
        egpu_wire_close();
        return;
    }
    atomic_store_explicit(&egpu.phase, PHASE_LIVE, memory_order_release);
    if (egpu_thread_start() != 0) {
        atomic_store(&egpu.phase, PHASE_INERT);
        egpu_say("cannot start the agent's thread; running unprobed");
        egpu_wire_close();
        return;
    }
    egpu_name_devices();
}

/* After the first cuInit that succeeds: so that our exit handler runs before the driver's. */
CUresult cuInit(unsigned flags)
{
    CUresult result = CALL(cuInit, flags);
    if (result != CUDA_SUCCESS)
        return result;
    if (egpu.pid != 0 && !egpu_mine())
        return result; /* a forked child, in which the lock may be held for ever */
    struct quiet quiet = egpu_quiet();
    pthread_mutex_lock(&start_lock);
    if (!started) {
        started = true;
        start();
    }
    pthread_mutex_unlock(&start_lock);
    egpu_loud(quiet);
    return result;
}

/* CUDA_INJECTION64_PATH: the driver loads this library inside cuInit and calls this. */
__attribute__((visibility("default"))) int InitializeInjection(void);
int InitializeInjection(void)
{
    Dl_info ours, seen;
    void *bound = dlsym(RTLD_DEFAULT, "cuLaunchKernel");
    if (dladdr((void *)cuLaunchKernel, &ours) == 0 || bound == NULL || dladdr(bound, &seen) == 0 ||
        ours.dli_fbase != seen.dli_fbase || !egpu_real(EP_cuLaunchKernel))
        egpu_say("entered through CUDA_INJECTION64_PATH: driver calls that are already bound are "
                 "not seen; use LD_PRELOAD");
    return 1;
}

static void leave(void)
{
    /* Not in a vfork child or a forked one; and never twice. */
    if (atomic_load_explicit(&egpu.phase, memory_order_relaxed) != PHASE_INERT)
        at_exit();
}

/* Ways out that run no exit handlers.  quick_exit ends in _exit of the C library itself. */
__attribute__((visibility("default"), noreturn)) void _exit(int status)
{
    leave();
    for (;;)
        syscall(SYS_exit_group, status);
}

__attribute__((visibility("default"), noreturn)) void _Exit(int status)
{
    _exit(status);
}

__attribute__((visibility("default"), noreturn)) void quick_exit(int status)
{
    static _Atomic(void (*)(int)) real;
    void (*next)(int) = atomic_load(&real);
    if (next == NULL) {
        next = (void (*)(int))(uintptr_t)dlsym(RTLD_NEXT, "quick_exit");
        atomic_store(&real, next);
    }
    leave();
    if (next != NULL)
        next(status);
    _exit(status);
}

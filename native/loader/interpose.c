/* What the program calls in libc's place.  Without a session everything is passed on. */
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>

#include "loader.h"

#define EXPORTED __attribute__((visibility("default")))

static void *next(void **kept, const char *name)
{
    if (*kept == NULL)
        *kept = dlsym(RTLD_NEXT, name);
    return *kept;
}


static long answered(long result)
{
    if (result >= 0)
        return result;
    errno = (int)-result;
    return -1;
}

EXPORTED long syscall(long number, ...)
{
    static void *kept;
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(arguments, long);
    va_end(arguments);
    if (loader_active() && number == SYS_bpf)
        return answered(do_bpf((int)a[0], (union bpf_attr *)a[1], (unsigned)a[2]));
    if (loader_active() && number == SYS_perf_event_open)
        return answered(do_perf_event_open((const void *)a[0]));
    long (*real)(long, ...) = (long (*)(long, ...))(uintptr_t)next(&kept, "syscall");
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

EXPORTED int ioctl(int fd, unsigned long request, ...)
{
    static void *kept;
    va_list arguments;
    va_start(arguments, request);
    unsigned long argument = va_arg(arguments, unsigned long);
    va_end(arguments);
    struct object *object = loader_active() ? object_of(fd) : NULL;
    if (object != NULL && object->kind == OBJECT_PERF)
        return (int)answered(do_perf_ioctl(object, request, argument));
    int (*real)(int, unsigned long, ...) =
        (int (*)(int, unsigned long, ...))(uintptr_t)next(&kept, "ioctl");
    return real(fd, request, argument);
}

/* libbpf reads the types of probes from files that not every kernel has. */
static FILE *open_file(const char *path, const char *mode, void **kept, const char *name)
{
    const char *text = loader_active() ? perf_file(path) : NULL;
    if (text != NULL)
        return fmemopen((void *)(uintptr_t)text, strlen(text), "r");
    FILE *(*real)(const char *, const char *) =
        (FILE * (*)(const char *, const char *))(uintptr_t)next(kept, name);
    return real(path, mode);
}

EXPORTED FILE *fopen(const char *path, const char *mode)
{
    static void *kept;
    return open_file(path, mode, &kept, "fopen");
}

EXPORTED FILE *fopen64(const char *path, const char *mode)
{
    static void *kept;
    return open_file(path, mode, &kept, "fopen64");
}

static void *map_file(void *address, size_t length, int protection, int flags, int fd, off_t offset,
                      void **kept, const char *name)
{
    struct object *object = fd >= 0 && loader_active() ? object_of(fd) : NULL;
    if (object != NULL)
        ring_mapped(fd, object, length);
    void *(*real)(void *, size_t, int, int, int, off_t) =
        (void *(*)(void *, size_t, int, int, int, off_t))(uintptr_t)next(kept, name);
    return real(address, length, protection, flags, fd, offset);
}

EXPORTED void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
    static void *kept;
    return map_file(address, length, protection, flags, fd, offset, &kept, "mmap");
}

EXPORTED void *mmap64(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
    static void *kept;
    return map_file(address, length, protection, flags, fd, offset, &kept, "mmap64");
}

/* A memfd cannot be waited for: the eventfd beside it can.  It is written once for each batch of
 * records, so only its edges mean something. */
EXPORTED int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event)
{
    static void *kept;
    struct object *object = loader_active() ? object_of(fd) : NULL;
    int instead = object == NULL ? -1 : ring_event(object);
    struct epoll_event edges;
    if (instead >= 0 && event != NULL) {
        edges = *event;
        edges.events |= EPOLLET;
        event = &edges;
    }
    int (*real)(int, int, int, struct epoll_event *) =
        (int (*)(int, int, int, struct epoll_event *))(uintptr_t)next(&kept, "epoll_ctl");
    return real(epoll, operation, instead >= 0 ? instead : fd, event);
}

/* libbpf takes the name of a kprobe apart by this very format, which ends at a comma or "<": here
 * the whole of it is the name (a list of kernels, a demangled name). */
EXPORTED int __isoc99_sscanf(const char *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int result;
    const char *tail = strrchr(format, ']');
    if (loader_active() && strncmp(format, "%m[a-zA-Z0-9_.", 14) == 0 && tail != NULL &&
        strcmp(tail, "]+%li") == 0) {
        char **name = va_arg(arguments, char **);
        *name = strdup(text);
        result = *name == NULL ? -1 : 1;
    } else {
        result = vsscanf(text, format, arguments);
    }
    va_end(arguments);
    return result;
}

/* Devices, contexts, and how a program finds the functions. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mock.h"

static struct context primary[2] = {{0, 0, 1, 0}, {1, 0, 1, 0}};
static int primary_count[2];
_Thread_local struct context *mock_current;
_Thread_local int mock_capture_mode;
static int initialized;
static char empty[8];

void mock_note(const char *format, ...)
{
    const char *path = getenv("MOCK_LOG");
    char line[512];
    if (path == NULL)
        return;
    int at = snprintf(line, sizeof line, "%d ", (int)getpid());
    va_list arguments;
    va_start(arguments, format);
    at += vsnprintf(line + at, sizeof line - (size_t)at - 1, format, arguments);
    va_end(arguments);
    line[at++] = '\n';
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (file < 0 || write(file, line, (size_t)at) != at)
        abort();
    close(file);
}

int mock_failing(const char *name)
{
    const char *which = getenv("MOCK_FAIL");
    return which != NULL && strcmp(which, name) == 0;
}

API CUresult cuInit(unsigned flags)
{
    (void)flags;
    initialized = 1;
    return mock_failing("cuInit") ? 100 : 0;
}

API CUresult cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

/* The second device is of another kind than the others. */
API CUresult cuDeviceGetCount(int *count)
{
    const char *number = getenv("MOCK_DEVICES");
    *count = number != NULL ? atoi(number) : 2;
    return 0;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return 0;
}

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    (void)device;
    *value = attribute == 16 ? 132 : attribute == 75 ? 9 : 0;
    return 0;
}

API CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    snprintf(name, (size_t)length, "Mock %d", device == 1);
    return 0;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    primary_count[device]++;
    primary[device].alive = 1;
    *context = (CUcontext)&primary[device];
    return 0;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    if (--primary_count[device] == 0) {
        mock_drain();
        primary[device].alive = 0;
        mock_note("primary %d ends", device);
    }
    return 0;
}

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    primary_count[device] = 1;
    return cuDevicePrimaryCtxRelease_v2(device);
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    *flags = 0;
    *active = primary[device].alive;
    return 0;
}

API CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    struct context *c = calloc(1, sizeof *c);
    (void)flags;
    c->device = device;
    c->alive = 1;
    mock_current = c;
    *context = (CUcontext)c;
    return 0;
}

API CUresult cuCtxDestroy_v2(CUcontext context)
{
    mock_drain();
    ((struct context *)context)->alive = 0;
    mock_note("context ends");
    return 0;
}

API CUresult cuCtxSetCurrent(CUcontext context)
{
    if (context != NULL && !((struct context *)context)->alive)
        return 709;
    mock_current = (struct context *)context;
    return 0;
}

API CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = (CUcontext)mock_current;
    return 0;
}

API CUresult cuCtxGetDevice(CUdevice *device)
{
    *device = mock_current != NULL ? mock_current->device : 0;
    return mock_current != NULL ? 0 : 201;
}

API CUresult cuCtxSynchronize(void)
{
    const char *hang = getenv("MOCK_HANG");
    if (hang != NULL)
        sleep((unsigned)atoi(hang));
    mock_drain();
    return 0;
}

API CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    int before = mock_capture_mode;
    mock_capture_mode = *mode;
    *mode = before;
    return 0;
}

API CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags,
                                 int *status)
{
    static const char *const versioned[] = {"", "_v2", "_v3"};
    static void *self;
    char name[128];
    (void)version;
    if (self == NULL)
        self = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
    *pfn = NULL;
    if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0) {
        snprintf(name, sizeof name, "%s_ptsz", symbol);
        *pfn = dlvsym(self, name, "MOCK");
    }
    for (int i = 2; i >= 0 && *pfn == NULL; i--) {
        snprintf(name, sizeof name, "%s%s", symbol, versioned[i]);
        *pfn = dlvsym(self, name, "MOCK");
    }
    if (status != NULL)
        *status = *pfn == NULL;
    return *pfn != NULL ? 0 : 500;
}

/* Keeps the compiler from thinking that nobody reads these. */
API void *mock_unused(void);
void *mock_unused(void)
{
    return initialized ? empty : NULL;
}

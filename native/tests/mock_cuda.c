/* A stand-in driver for testing the agent: it records calls and runs nothing.
 *
 * Images are texts with lines "// entry NAME params N regs R occ O max T twin W" and
 * "// global NAME".  A launch of a kernel with twin 1 reads the launch block behind its parameters
 * and, when its stream's work is done (at a synchronise), adds the number of threads to the u64 at
 * byte 4096 of the device arena, as a counting probe would.  Every parameter is 8 bytes.
 * MOCK_LOG names a file that gets one line per call of interest; MOCK_FAIL a function that fails.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../agent/hooks.h"

#define API __attribute__((visibility("default")))
enum { TAG_FUNCTION = 0x46, TAG_KERNEL = 0x4b, MAX_ENTRIES = 8, MAX_GLOBALS = 8, MAX_NODES = 64 };

struct block {
    uint64_t arena, host, id;
    uint32_t kernel, flags;
};

struct entry {
    char name[64];
    int params, regs, occupancy, max_threads, twin;
};

struct module {
    int entries, globals;
    struct entry entry[MAX_ENTRIES];
    char global[MAX_GLOBALS][64];
    uint64_t storage[MAX_GLOBALS][8];
    struct context *context;
    struct library *library;
};

struct library {
    struct module *modules[4]; /* one per context */
    char *image;
};

struct function {
    int tag;
    struct entry *entry;
    struct module *module;   /* of a function */
    struct library *library; /* of a kernel */
    struct context *context;
    int attribute[CU_FUNC_ATTRIBUTES];
};

struct context {
    int device, alive, primary;
};

struct graph {
    int count;
    struct node *nodes[MAX_NODES];
};

struct node {
    struct function *f;
    CUDA_KERNEL_NODE_PARAMS_v2 p;
    uint64_t values[64];
    void *pointers[66];
    struct block block;
};

struct stream {
    struct graph *capture;
    int invalid;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct context primary[2] = {{0, 0, 1}, {1, 0, 1}};
static int primary_count[2];
static _Thread_local struct context *current;
static _Thread_local int capture_mode; /* 0 global, 2 relaxed */
static _Atomic int captures;
static int initialized;
static struct stream null_stream;
static struct {
    uint64_t *place;
    uint64_t add;
} queue[1 << 17];
static int queued;
static char empty[8];

static void note(const char *format, ...)
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

static int failing(const char *name)
{
    const char *which = getenv("MOCK_FAIL");
    return which != NULL && strcmp(which, name) == 0;
}

static void drain(void)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < queued; i++)
        *queue[i].place += queue[i].add;
    queued = 0;
    pthread_mutex_unlock(&lock);
}

static uint64_t last_address; /* that cuModuleGetGlobal gave */

static struct module *parse(const char *image)
{
    struct module *m = calloc(1, sizeof *m);
    if (image[0] != '.' || strstr(image, "broken") != NULL) {
        free(m);
        return NULL;
    }
    for (const char *at = image; (at = strstr(at, "// ")) != NULL; at++) {
        struct entry *e = &m->entry[m->entries];
        if (sscanf(at, "// entry %63s params %d regs %d occ %d max %d twin %d", e->name, &e->params,
                   &e->regs, &e->occupancy, &e->max_threads, &e->twin) == 6)
            m->entries++;
        else if (sscanf(at, "// global %63s", m->global[m->globals]) == 1)
            m->globals++;
    }
    const char *patched = strstr(image, "// patched ");
    if (patched != NULL) { /* 8 bytes that the agent was to fill in, then a NUL */
        uint64_t address;
        memcpy(&address, patched + strlen("// patched "), sizeof address);
        note("patched %lld behind the original", (long long)(address - last_address));
    }
    m->context = current;
    return m;
}

static struct function *make(struct module *m, struct library *l, const char *name)
{
    for (int i = 0; i < m->entries; i++)
        if (strcmp(m->entry[i].name, name) == 0) {
            struct function *f = calloc(1, sizeof *f);
            f->tag = l != NULL ? TAG_KERNEL : TAG_FUNCTION;
            f->entry = &m->entry[i];
            f->module = m;
            f->library = l;
            f->context = current;
            return f;
        }
    return NULL;
}

/* A capture in another mode than relaxed forbids this call; it is broken if it is made. */
static int forbidden(void)
{
    return captures > 0 && capture_mode != 2;
}

API CUresult cuInit(unsigned flags)
{
    (void)flags;
    initialized = 1;
    return failing("cuInit") ? 100 : 0;
}

API CUresult cuDriverGetVersion(int *version)
{
    *version = 13000;
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
    snprintf(name, (size_t)length, "Mock %d", device);
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
        drain();
        primary[device].alive = 0;
        note("primary %d ends", device);
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
    current = c;
    *context = (CUcontext)c;
    return 0;
}

API CUresult cuCtxDestroy_v2(CUcontext context)
{
    drain();
    ((struct context *)context)->alive = 0;
    note("context ends");
    return 0;
}

API CUresult cuCtxSetCurrent(CUcontext context)
{
    if (context != NULL && !((struct context *)context)->alive)
        return 709;
    current = (struct context *)context;
    return 0;
}

API CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = (CUcontext)current;
    return 0;
}

API CUresult cuCtxGetDevice(CUdevice *device)
{
    *device = current != NULL ? current->device : 0;
    return current != NULL ? 0 : 201;
}

API CUresult cuCtxSynchronize(void)
{
    const char *hang = getenv("MOCK_HANG");
    if (hang != NULL)
        sleep((unsigned)atoi(hang));
    drain();
    return 0;
}

API CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return 0;
}

API CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    struct module *m = parse(image);
    note("load module mode %d captures %d", capture_mode, captures);
    *module = (CUmodule)m;
    return m != NULL ? 0 : 200;
}

API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options,
                                void **values)
{
    (void)count, (void)options, (void)values;
    if (failing("cuModuleLoadDataEx"))
        return 218;
    return cuModuleLoadData(module, image);
}

API CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    char image[4096] = "";
    int file = open(path, O_RDONLY);
    if (file < 0 || read(file, image, sizeof image - 1) < 0)
        return 301;
    close(file);
    return cuModuleLoadData(module, image);
}

API CUresult cuModuleUnload(CUmodule module)
{
    (void)module; /* handles stay valid memory: a test then sees stale use in the log */
    note("unload module");
    return 0;
}

API CUresult cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name)
{
    *f = (CUfunction)make((struct module *)module, NULL, name);
    return *f != NULL ? 0 : 500;
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module,
                                  const char *name)
{
    struct module *m = (struct module *)module;
    for (int i = 0; i < m->globals; i++)
        if (strcmp(m->global[i], name) == 0) {
            *address = (CUdeviceptr)(uintptr_t)m->storage[i];
            *size = sizeof m->storage[i];
            last_address = *address;
            return 0;
        }
    return 500;
}

API CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit, void **jit_values,
                               unsigned jit_count, int *options, void **values, unsigned count)
{
    struct library *l = calloc(1, sizeof *l);
    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    l->image = strdup(code);
    *library = (CUlibrary)l;
    return 0;
}

static struct module *in_context(struct library *l)
{
    for (int i = 0; i < 4; i++) {
        if (l->modules[i] == NULL)
            l->modules[i] = parse(l->image);
        if (l->modules[i]->context == current)
            return l->modules[i];
    }
    return NULL;
}

API CUresult cuLibraryUnload(CUlibrary library)
{
    (void)library;
    note("unload library");
    return 0;
}

API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    struct library *l = (struct library *)library;
    *kernel = (CUkernel)make(in_context(l), l, name);
    return *kernel != NULL ? 0 : 500;
}

API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    *module = (CUmodule)in_context((struct library *)library);
    return *module != NULL ? 0 : 201;
}

API CUresult cuKernelGetFunction(CUfunction *f, CUkernel kernel)
{
    struct function *k = (struct function *)kernel;
    if (k->tag != TAG_KERNEL)
        return 400;
    *f = (CUfunction)make(in_context(k->library), NULL, k->entry->name);
    memcpy(((struct function *)*f)->attribute, k->attribute, sizeof k->attribute);
    return 0;
}

API CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
    struct function *k = (struct function *)kernel;
    *name = k->entry->name;
    return k->tag == TAG_KERNEL ? 0 : 400;
}

API CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
    *library = (CUlibrary)((struct function *)kernel)->library;
    return *library != NULL ? 0 : 400;
}

API CUresult cuFuncGetName(const char **name, CUfunction f)
{
    *name = ((struct function *)f)->entry->name;
    return ((struct function *)f)->tag == TAG_FUNCTION ? 0 : 400;
}

API CUresult cuFuncGetModule(CUmodule *module, CUfunction f)
{
    *module = (CUmodule)((struct function *)f)->module;
    return ((struct function *)f)->tag == TAG_FUNCTION ? 0 : 400;
}

API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction f)
{
    struct function *x = (struct function *)f;
    *value = attribute == CU_FUNC_MAX_THREADS_PER_BLOCK ? x->entry->max_threads
             : attribute == CU_FUNC_NUM_REGS            ? x->entry->regs
                                                        : x->attribute[attribute];
    return x->tag == TAG_FUNCTION ? 0 : 400;
}

API CUresult cuFuncSetAttribute(CUfunction f, int attribute, int value)
{
    struct function *x = (struct function *)f;
    x->attribute[attribute] = value;
    note("attribute %s twin %d: %d = %d", x->entry->name, x->entry->twin, attribute, value);
    return 0;
}

API CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device)
{
    (void)device;
    return cuFuncSetAttribute((CUfunction)kernel, attribute, value);
}

API CUresult cuFuncSetCacheConfig(CUfunction f, int config)
{
    struct function *x = (struct function *)f;
    note("cache %s twin %d: %d", x->entry->name, x->entry->twin, config);
    return 0;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int threads,
                                                         size_t shared)
{
    (void)shared;
    *blocks = ((struct function *)f)->entry->occupancy / (threads > 256 ? 2 : 1);
    return 0;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    note("alloc %zu mode %d captures %d", size, capture_mode, captures);
    if (forbidden())
        return 900;
    if (failing("cuMemAlloc_v2"))
        return 2;
    *address = (CUdeviceptr)(uintptr_t)malloc(size);
    return 0;
}

API CUresult cuMemFree_v2(CUdeviceptr address)
{
    free((void *)(uintptr_t)address);
    return 0;
}

API CUresult cuMemHostRegister_v2(void *memory, size_t size, unsigned flags)
{
    (void)memory;
    note("register %zu flags %u", size, flags);
    return failing("cuMemHostRegister_v2") ? 2 : 0;
}

API CUresult cuMemHostUnregister(void *memory)
{
    (void)memory;
    return 0;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *memory, unsigned flags)
{
    (void)flags;
    *address = (CUdeviceptr)(uintptr_t)memory;
    return 0;
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    (void)stream;
    memcpy((void *)(uintptr_t)to, from, size);
    return 0;
}

API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    (void)stream;
    memcpy(to, (void *)(uintptr_t)from, size);
    return 0;
}

API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D_v2 *copy, CUstream stream)
{
    (void)stream;
    if (failing("cuMemcpy2DAsync_v2"))
        return 700;
    for (size_t i = 0; i < copy->Height; i++)
        memcpy((char *)(uintptr_t)copy->dstDevice + i * copy->dstPitch,
               (const char *)copy->srcHost + i * copy->srcPitch, copy->WidthInBytes);
    return 0;
}

API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, CUstream stream)
{
    (void)stream;
    memset((void *)(uintptr_t)to, value, size);
    return 0;
}

API CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    (void)flags;
    *stream = calloc(1, sizeof(struct stream));
    return 0;
}

API CUresult cuStreamQuery(CUstream stream)
{
    (void)stream;
    return 0;
}

API CUresult cuStreamSynchronize(CUstream stream)
{
    (void)stream;
    return 0;
}

API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    (void)mode;
    ((struct stream *)stream)->capture = calloc(1, sizeof(struct graph));
    captures++;
    return 0;
}

API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    struct stream *s = (struct stream *)stream;
    *graph = (CUgraph)s->capture;
    s->capture = NULL;
    captures--;
    return 0;
}

static struct stream *real_stream(CUstream stream)
{
    return (uintptr_t)stream < 16 ? &null_stream : (struct stream *)stream;
}

API CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    *status = real_stream(stream)->capture != NULL;
    return 0;
}

static void execute(const struct entry *e, const char *name, uint64_t threads,
                    const uint64_t *values, const struct block *block, const char *how)
{
    char list[256] = "";
    for (int i = 0, at = 0; i < e->params && i < 8; i++)
        at += snprintf(list + at, sizeof list - (size_t)at, " %llu", (unsigned long long)values[i]);
    if (!e->twin) {
        note("%s %s original threads %llu values%s", how, name, (unsigned long long)threads, list);
        return;
    }
    const uint32_t *enabled = (const uint32_t *)(uintptr_t)(block->arena + 64);
    int off = (block->flags & 1) != 0 && *enabled == 0;
    note("%s %s twin threads %llu id %llu kernel %u flags %x off %d values%s", how, name,
         (unsigned long long)threads, (unsigned long long)block->id, block->kernel, block->flags,
         off, list);
    if (off)
        return;
    pthread_mutex_lock(&lock);
    int full = queued == (int)(sizeof queue / sizeof *queue);
    if (!full) {
        queue[queued].place = (uint64_t *)(uintptr_t)(block->arena + 4096);
        queue[queued++].add = threads;
    }
    pthread_mutex_unlock(&lock);
    if (full)
        abort();
}

static int gather(const struct entry *e, void **params, void **extra, uint64_t *values,
                  struct block *block)
{
    if (extra != NULL) {
        char *buffer = NULL;
        size_t size = 0;
        for (int i = 0; extra[i] != NULL; i += 2)
            if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
                buffer = extra[i + 1];
            else
                size = *(size_t *)extra[i + 1];
        if (size != (size_t)e->params * 8 + (e->twin ? sizeof *block : 0))
            return 1;
        memcpy(values, buffer, (size_t)e->params * 8);
        if (e->twin)
            memcpy(block, buffer + e->params * 8, sizeof *block);
        return 0;
    }
    if (params == NULL && e->params + e->twin > 0)
        return 1;
    for (int i = 0; i < e->params; i++)
        memcpy(&values[i], params[i], 8);
    if (e->twin)
        memcpy(block, params[e->params], sizeof *block);
    return 0;
}

static struct node *make_node(struct function *f, const uint64_t *values,
                              const struct block *block, const CUDA_KERNEL_NODE_PARAMS_v1 *shape)
{
    struct node *n = calloc(1, sizeof *n);
    n->f = f;
    n->p.base = *shape;
    memcpy(n->values, values, sizeof n->values);
    n->block = *block;
    for (int i = 0; i < f->entry->params; i++)
        n->pointers[i] = &n->values[i];
    n->pointers[f->entry->params] = &n->block;
    n->p.base.func = (CUfunction)f;
    n->p.base.kernelParams = n->pointers;
    n->p.base.extra = NULL;
    return n;
}

static CUresult run(CUfunction handle, const CUDA_KERNEL_NODE_PARAMS_v1 *shape, CUstream stream,
                    void **params, void **extra, const char *how)
{
    struct function *f = (struct function *)handle;
    struct stream *s = real_stream(stream);
    uint64_t values[64] = {0};
    struct block block = {0};
    uint64_t threads = (uint64_t)shape->gridDimX * shape->gridDimY * shape->gridDimZ *
                       shape->blockDimX * shape->blockDimY * shape->blockDimZ;
    if (f->tag == TAG_FUNCTION && f->context != current)
        return 201;
    if (threads == 0 || gather(f->entry, params, extra, values, &block))
        return 1;
    if (f->entry->twin && failing("twin"))
        return 701; /* CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES */
    if (s->capture != NULL)
        s->capture->nodes[s->capture->count++] = make_node(f, values, &block, shape);
    else
        execute(f->entry, f->entry->name, threads, values, &block, how);
    return 0;
}

#define SHAPE {f, gx, gy, gz, bx, by, bz, shared, NULL, NULL}

API CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *size)
{
    const struct entry *e = ((struct function *)f)->entry;
    if (index >= (size_t)(e->params + e->twin))
        return 1;
    *offset = index * 8;
    *size = index < (size_t)e->params ? 8 : sizeof(struct block);
    return 0;
}

API CUresult cuLaunchKernel LAUNCH_PARAMETERS
{
    CUDA_KERNEL_NODE_PARAMS_v1 shape = SHAPE;
    return run(f, &shape, stream, params, extra, "launch");
}

API CUresult cuLaunchKernel_ptsz LAUNCH_PARAMETERS
{
    CUDA_KERNEL_NODE_PARAMS_v1 shape = SHAPE;
    return run(f, &shape, stream, params, extra, "launch-ptsz");
}

API CUresult cuLaunchCooperativeKernel COOPERATIVE_PARAMETERS
{
    CUDA_KERNEL_NODE_PARAMS_v1 shape = SHAPE;
    return run(f, &shape, stream, params, NULL, "launch-cooperative");
}

API CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **extra)
{
    CUDA_KERNEL_NODE_PARAMS_v1 shape = {f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX,
                                        c->blockDimY, c->blockDimZ, c->sharedMemBytes, NULL, NULL};
    char how[32];
    snprintf(how, sizeof how, "launch-ex-%u", c->numAttrs);
    return run(f, &shape, c->hStream, params, extra, how);
}

API CUresult cuLaunchGrid(CUfunction f, int width, int height)
{
    (void)f, (void)width, (void)height;
    note("launch-grid");
    return 0;
}

API CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
    (void)flags;
    *graph = calloc(1, sizeof(struct graph));
    return 0;
}

API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    struct graph *g = (struct graph *)graph;
    *count = (size_t)g->count;
    if (nodes != NULL)
        memcpy(nodes, g->nodes, (size_t)g->count * sizeof *nodes);
    return 0;
}

static CUresult set(struct node *n, const CUDA_KERNEL_NODE_PARAMS_v2 *p)
{
    struct function *f = (struct function *)(p->base.func != NULL ? (void *)p->base.func : p->kern);
    uint64_t values[64] = {0};
    struct block block = {0};
    if (p->base.blockDimX == 0 ||
        gather(f->entry, p->base.kernelParams, p->base.extra, values, &block))
        return 1;
    struct node *made = make_node(f, values, &block, &p->base);
    n->f = made->f;
    n->p = made->p;
    memcpy(n->values, made->values, sizeof n->values);
    n->block = made->block;
    for (int i = 0; i < f->entry->params; i++)
        n->pointers[i] = &n->values[i];
    n->pointers[f->entry->params] = &n->block;
    n->p.base.kernelParams = n->pointers;
    free(made);
    return 0;
}

API CUresult cuGraphAddKernelNode_v2 ADD_NODE_PARAMETERS(CUDA_KERNEL_NODE_PARAMS_v2)
{
    struct graph *g = (struct graph *)graph;
    struct node *n = calloc(1, sizeof *n);
    (void)deps, (void)count;
    if (set(n, p))
        return 1;
    g->nodes[g->count++] = n;
    *node = (CUgraphNode)n;
    return 0;
}

API CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    *p = ((struct node *)node)->p.base;
    return 0;
}

API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *p)
{
    *p = ((struct node *)node)->p;
    return 0;
}

API CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    CUDA_KERNEL_NODE_PARAMS_v2 more = {*p, NULL, NULL};
    return set((struct node *)node, &more);
}

API CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                            const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    (void)exec;
    return cuGraphKernelNodeSetParams(node, p);
}

API CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *p)
{
    return set((struct node *)node, &p->node.kernel);
}

API CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *p)
{
    (void)exec;
    return set((struct node *)node, &p->node.kernel);
}

API CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *p)
{
    return set((struct node *)node, p);
}

API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                               const CUDA_KERNEL_NODE_PARAMS_v2 *p)
{
    (void)exec;
    return set((struct node *)node, p);
}

API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    struct graph *g = (struct graph *)exec;
    (void)stream;
    for (int i = 0; i < g->count; i++) {
        const CUDA_KERNEL_NODE_PARAMS_v1 *s = &g->nodes[i]->p.base;
        execute(g->nodes[i]->f->entry, g->nodes[i]->f->entry->name,
                (uint64_t)s->gridDimX * s->gridDimY * s->gridDimZ * s->blockDimX * s->blockDimY *
                    s->blockDimZ,
                g->nodes[i]->values, &g->nodes[i]->block, "replay");
    }
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

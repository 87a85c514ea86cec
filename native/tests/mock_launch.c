/* Streams and launches. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mock.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream null_stream;
static struct {
    uint64_t *place;
    uint64_t add;
} queue[1 << 17];
static int queued;
_Atomic int mock_captures;

void mock_drain(void)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < queued; i++)
        *queue[i].place += queue[i].add;
    queued = 0;
    pthread_mutex_unlock(&lock);
}

API CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    (void)flags;
    struct stream *made = calloc(1, sizeof *made);
    made->context = mock_current;
    *stream = (CUstream)made;
    return 0;
}

API CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    *context = (CUcontext)((struct stream *)stream)->context;
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
    mock_captures++;
    return 0;
}

API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    struct stream *s = (struct stream *)stream;
    *graph = (CUgraph)s->capture;
    s->capture = NULL;
    mock_captures--;
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

void mock_execute(const struct entry *e, const char *name, uint64_t threads,
                  const uint64_t *values, const struct block *block, const char *how)
{
    char list[256] = "";
    for (int i = 0, at = 0; i < e->params && i < 8; i++)
        at += snprintf(list + at, sizeof list - (size_t)at, " %llu", (unsigned long long)values[i]);
    if (!e->twin) {
        mock_note("%s %s original threads %llu values%s", how, name, (unsigned long long)threads,
                  list);
        return;
    }
    const uint32_t *enabled = (const uint32_t *)(uintptr_t)(block->arena + 64);
    int off = (block->flags & 1) != 0 && *enabled == 0;
    mock_note("%s %s twin threads %llu id %llu kernel %u flags %x off %d values%s", how, name,
              (unsigned long long)threads, (unsigned long long)block->id, block->kernel,
              block->flags, off, list);
    mock_note_table("launch");
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

int mock_gather(const struct entry *e, void **params, void **extra, uint64_t *values,
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

struct node *mock_make_node(struct function *f, const uint64_t *values, const struct block *block,
                            const CUDA_KERNEL_NODE_PARAMS_v1 *shape)
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
    if (f->tag == TAG_FUNCTION && f->context != mock_current)
        return 201;
    if (threads == 0 || mock_gather(f->entry, params, extra, values, &block))
        return 1;
    if (f->entry->twin && mock_failing("twin"))
        return 701; /* CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES */
    if (s->capture != NULL)
        s->capture->nodes[s->capture->count++] = mock_make_node(f, values, &block, shape);
    else
        mock_execute(f->entry, f->entry->name, threads, values, &block, how);
    return 0;
}

#define SHAPE {f, gx, gy, gz, bx, by, bz, shared, NULL, NULL}

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
    mock_note("launch-grid");
    return 0;
}

/* Graph nodes: translated on the way in, translated back on the way out, so that a program reads
 * what it set.  A node that cannot be translated keeps the original and is counted. */
#include <string.h>

#include "agent.h"

struct node {
    CUDA_KERNEL_NODE_PARAMS_v2 p; /* for the driver */
    struct launch_block block;
    void *params[MAX_PARAMETERS + 1];
    struct entry *entry;
    bool probed;
    uint32_t reason;
};

static bool watching(void)
{
    return atomic_load_explicit(&egpu.phase, memory_order_acquire) != PHASE_INERT;
}

/* A handle of ours that the program read by a call no hook translates becomes its own again. */
static struct entry *entry_of(CUDA_KERNEL_NODE_PARAMS_v2 *p)
{
    void *handle = p->base.func != NULL ? (void *)p->base.func : (void *)p->kern;
    struct entry *entry = egpu_find(handle);
    if (entry == NULL)
        entry = egpu_learn(handle);
    if (entry != NULL && entry->kind == HANDLE_TWIN) {
        entry = entry->owner->entry;
        p->base.func = entry->handle;
    }
    return entry;
}

static struct twin *twin_for(struct node *n, CUfunction present)
{
    CUcontext now = NULL;
    uint32_t epoch = atomic_load(&egpu.epoch);
    n->reason = EGPU_REASON_UNMATCHED;
    if (atomic_load(&n->entry->unmatched) == epoch + 1)
        return NULL;
    n->reason = EGPU_REASON_GRAPH;
    CALL(cuCtxGetCurrent, &now);
    if (n->p.base.func == NULL && n->p.ctx != NULL && n->p.ctx != now)
        return NULL;
    struct variant *v = egpu_variant(n->entry, true);
    if (v == NULL)
        return NULL;
    struct twin *twin = egpu_twin(n->entry, v, &n->reason);
    if (twin == NULL && present != NULL) {
        /* An instantiated node cannot always change its function: it keeps its twin, which is off. */
        struct twin *kept = atomic_load(&v->twin);
        twin = kept != NULL && kept->function == present ? kept : NULL;
    }
    if (twin != NULL && atomic_load(&twin->arena->state) != ARENA_READY) {
        n->reason = EGPU_REASON_ARENA;
        return NULL;
    }
    return twin;
}

/* present: the function the node has now, NULL for a new node. */
static void translate(struct node *n, CUfunction present)
{
    CUDA_KERNEL_NODE_PARAMS_v1 *b = &n->p.base;
    n->probed = false;
    n->entry = entry_of(&n->p);
    struct twin *twin = n->entry != NULL ? twin_for(n, present) : NULL;
    if (twin == NULL)
        return;
    struct shape shape = {{b->gridDimX, b->gridDimY, b->gridDimZ},
                          {b->blockDimX, b->blockDimY, b->blockDimZ},
                          b->sharedMemBytes, false, NULL, {0, 0, 0}};
    if (b->extra != NULL ? b->kernelParams != NULL || !egpu_unpacked(twin, b->extra, n->params)
                         : b->kernelParams == NULL && twin->parameters != 0) {
        n->reason = EGPU_REASON_GRAPH;
        return;
    }
    if (!egpu_fits(twin, &shape, n->entry->stats, &n->reason))
        return;
    n->block = (struct launch_block){
        twin->arena->address, twin->arena->host_address, atomic_fetch_add(&egpu.launch_id, 1) + 1,
        twin->kernel_id,
        EGPU_LAUNCH_FLAG_CAPTURED | egpu_stack() << EGPU_LAUNCH_STACK_SHIFT |
            EGPU_LAYOUT_VERSION << 24};
    egpu_keep_stack(&n->block);
    if (b->extra == NULL && twin->parameters != 0)
        memcpy(n->params, b->kernelParams, twin->parameters * sizeof *n->params);
    n->params[twin->parameters] = &n->block;
    b->kernelParams = n->params;
    b->extra = NULL;
    b->func = twin->function;
    n->p.kern = NULL;
    n->p.ctx = NULL;
    n->probed = true;
}

static void recorded(const struct node *n)
{
    struct egpu_stats_slot *stats = n->entry != NULL ? n->entry->stats : egpu.slots;
    egpu_add(&stats->captured, 1);
    if (n->probed)
        egpu_add(&stats->captured_probed, 1);
    else if (n->reason != EGPU_REASON_UNMATCHED)
        egpu_add(&stats->not_probed[n->reason], 1);
}

static CUresult added(const struct node *n, CUresult result)
{
    if (result == CUDA_SUCCESS) {
        egpu_add(&egpu.stats->graph_nodes, 1);
        recorded(n);
    }
    return result;
}

/* What a node has before it is set; of an instantiated graph, what the node that it came from has. */
struct present {
    CUfunction function;
    struct entry *entry;
    bool probed;
};

static struct present present(CUgraphNode node)
{
    CUDA_KERNEL_NODE_PARAMS_v2 p = {0};
    struct present now = {0};
    if (CALL(cuGraphKernelNodeGetParams_v2, node, &p) != CUDA_SUCCESS &&
        CALL(cuGraphKernelNodeGetParams, node, &p.base) != CUDA_SUCCESS)
        return now;
    struct entry *entry = egpu_find(p.base.func != NULL ? (void *)p.base.func : (void *)p.kern);
    now.function = p.base.func;
    now.probed = entry != NULL && entry->kind == HANDLE_TWIN;
    now.entry = entry_of(&p);
    return now;
}

/* A node that runs another kernel from now on, or the same one probed or not, is as good as a new
 * one; other parameters change no count.  Of two kernels that nobody knows it is not known whether
 * they are one. */
static CUresult changed(const struct node *n, const struct present *before, CUresult result)
{
    if (result == CUDA_SUCCESS &&
        (before->probed != n->probed || !egpu_same_kernel(before->entry, n->entry)))
        recorded(n);
    return result;
}

static void start_v1(struct node *n, const CUDA_KERNEL_NODE_PARAMS_v1 *p, CUfunction now)
{
    n->p = (CUDA_KERNEL_NODE_PARAMS_v2){.base = *p};
    translate(n, now);
}

static void start_v2(struct node *n, const CUDA_KERNEL_NODE_PARAMS_v2 *p, CUfunction now)
{
    n->p = *p;
    translate(n, now);
}

#define PASS(p) ((p) == NULL || !watching())

CUresult cuGraphAddKernelNode ADD_NODE_PARAMETERS(CUDA_KERNEL_NODE_PARAMS_v1)
{
    struct node n;
    if (PASS(p))
        return CALL(cuGraphAddKernelNode, node, graph, deps, count, p);
    start_v1(&n, p, NULL);
    return added(&n, CALL(cuGraphAddKernelNode, node, graph, deps, count, &n.p.base));
}

CUresult cuGraphAddKernelNode_v2 ADD_NODE_PARAMETERS(CUDA_KERNEL_NODE_PARAMS_v2)
{
    struct node n;
    if (PASS(p))
        return CALL(cuGraphAddKernelNode_v2, node, graph, deps, count, p);
    start_v2(&n, p, NULL);
    return added(&n, CALL(cuGraphAddKernelNode_v2, node, graph, deps, count, &n.p));
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    struct node n;
    if (PASS(p))
        return CALL(cuGraphKernelNodeSetParams, node, p);
    struct present before = present(node);
    start_v1(&n, p, before.function);
    return changed(&n, &before, CALL(cuGraphKernelNodeSetParams, node, &n.p.base));
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *p)
{
    struct node n;
    if (PASS(p))
        return CALL(cuGraphKernelNodeSetParams_v2, node, p);
    struct present before = present(node);
    start_v2(&n, p, before.function);
    return changed(&n, &before, CALL(cuGraphKernelNodeSetParams_v2, node, &n.p));
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    struct node n;
    if (PASS(p))
        return CALL(cuGraphExecKernelNodeSetParams, exec, node, p);
    struct present before = present(node);
    start_v1(&n, p, before.function);
    return changed(&n, &before, CALL(cuGraphExecKernelNodeSetParams, exec, node, &n.p.base));
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS_v2 *p)
{
    struct node n;
    if (PASS(p))
        return CALL(cuGraphExecKernelNodeSetParams_v2, exec, node, p);
    struct present before = present(node);
    start_v2(&n, p, before.function);
    return changed(&n, &before, CALL(cuGraphExecKernelNodeSetParams_v2, exec, node, &n.p));
}

/* Reading back.  The driver's array holds the program's own parameters first. */
static struct entry *original_of(CUfunction f)
{
    struct entry *entry = watching() ? egpu_find(f) : NULL;
    return entry != NULL && entry->kind == HANDLE_TWIN ? entry->owner->entry : NULL;
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    CUresult result = CALL(cuGraphKernelNodeGetParams, node, p);
    struct entry *entry = result == CUDA_SUCCESS && p != NULL ? original_of(p->func) : NULL;
    if (entry != NULL)
        p->func = entry->handle;
    return result;
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *p)
{
    CUresult result = CALL(cuGraphKernelNodeGetParams_v2, node, p);
    struct entry *entry = result == CUDA_SUCCESS && p != NULL ? original_of(p->base.func) : NULL;
    if (entry != NULL) {
        bool kernel = entry->kind == HANDLE_KERNEL;
        p->base.func = kernel ? NULL : entry->handle;
        p->kern = kernel ? entry->handle : NULL;
    }
    return result;
}

/* The general forms: only kernel nodes concern us. */
#define GENERAL(n, copy, p, now)                                                                   \
    do {                                                                                           \
        (copy) = *(p);                                                                             \
        start_v2(&(n), &(p)->node.kernel, now);                                                    \
        (copy).node.kernel = (n).p;                                                                \
    } while (0)
#define PASS_GENERAL(p) (PASS(p) || (p)->type != CU_GRAPH_NODE_TYPE_KERNEL)

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count,
                        CUgraphNodeParams *p)
{
    struct node n;
    CUgraphNodeParams copy;
    if (PASS_GENERAL(p))
        return CALL(cuGraphAddNode, node, graph, deps, count, p);
    GENERAL(n, copy, p, NULL);
    return added(&n, CALL(cuGraphAddNode, node, graph, deps, count, &copy));
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
                           const void *edges, size_t count, CUgraphNodeParams *p)
{
    struct node n;
    CUgraphNodeParams copy;
    if (PASS_GENERAL(p))
        return CALL(cuGraphAddNode_v2, node, graph, deps, edges, count, p);
    GENERAL(n, copy, p, NULL);
    return added(&n, CALL(cuGraphAddNode_v2, node, graph, deps, edges, count, &copy));
}

CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *p)
{
    struct node n;
    CUgraphNodeParams copy;
    if (PASS_GENERAL(p))
        return CALL(cuGraphNodeSetParams, node, p);
    struct present before = present(node);
    GENERAL(n, copy, p, before.function);
    return changed(&n, &before, CALL(cuGraphNodeSetParams, node, &copy));
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *p)
{
    struct node n;
    CUgraphNodeParams copy;
    if (PASS_GENERAL(p))
        return CALL(cuGraphExecNodeSetParams, exec, node, p);
    struct present before = present(node);
    GENERAL(n, copy, p, before.function);
    return changed(&n, &before, CALL(cuGraphExecNodeSetParams, exec, node, &copy));
}

static CUresult replayed(CUresult result)
{
    if (result == CUDA_SUCCESS && watching())
        egpu_add(&egpu.stats->graph_launches, 1);
    return result;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    return replayed(CALL(cuGraphLaunch, exec, stream));
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    return replayed(CALL(cuGraphLaunch_ptsz, exec, stream));
}

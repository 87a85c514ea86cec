/* Graphs: their nodes and their launches. */
#include <stdlib.h>
#include <string.h>

#include "mock.h"

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
        mock_gather(f->entry, p->base.kernelParams, p->base.extra, values, &block))
        return 1;
    struct node *made = mock_make_node(f, values, &block, &p->base);
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
        mock_execute(g->nodes[i]->f->entry, g->nodes[i]->f->entry->name,
                (uint64_t)s->gridDimX * s->gridDimY * s->gridDimZ * s->blockDimX * s->blockDimY *
                    s->blockDimZ,
                g->nodes[i]->values, &g->nodes[i]->block, "replay");
    }
    return 0;
}

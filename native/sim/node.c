/* Kernel nodes of graphs: added, read and changed. */
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "driver.h"

static CUresult fill_launch(const CUDA_KERNEL_NODE_PARAMS *given, struct sim_launch *launch) {
  *launch = (struct sim_launch){
      .grid = {given->gridDimX, given->gridDimY, given->gridDimZ},
      .block = {given->blockDimX, given->blockDimY, given->blockDimZ},
      .dynamic_shared = given->sharedMemBytes,
  };
  TRY(function_resolve(given->func ? (void *)given->func : (void *)given->kern, &launch->function));
  TRY(launch_check(launch));
  return launch_parameters(launch, given->kernelParams, given->extra);
}

static CUresult replace(struct sim_node *node, const CUDA_KERNEL_NODE_PARAMS *given) {
  struct sim_launch launch;
  NEED(node && node->kind == NODE_KERNEL && given);
  TRY(fill_launch(given, &launch));
  launch.cooperative = node->launch.cooperative;
  free(node->launch.parameters);
  free(node->values);
  node->values = NULL;
  node->launch = launch;
  return CUDA_SUCCESS;
}

API CUresult cuGraphNodeGetType(CUgraphNode node, int *type) {
  ENTER();
  TRY(sim_check());
  NEED(node && type);
  *type = (int)node->kind;
  return CUDA_SUCCESS;
}

API CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                     const CUDA_KERNEL_NODE_PARAMS *given) {
  ENTER();
  TRY(sim_check_context());
  /* nodes run in the order in which they are added, which every dependency on an earlier node allows */
  NEED(node && graph && graph->tag == TAG_GRAPH && given && (after || !count));
  struct sim_launch launch;
  TRY(fill_launch(given, &launch));
  struct sim_node *made = graph_append(graph, NODE_KERNEL);
  if (!made) {
    free(launch.parameters);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  made->launch = launch;
  *node = made;
  return CUDA_SUCCESS;
}

/* The pointers given out stay good until the node is changed or its graph destroyed. */
static CUresult read_node(struct sim_node *node, CUDA_KERNEL_NODE_PARAMS *to, bool with_kernel) {
  NEED(node && node->kind == NODE_KERNEL && to);
  const struct sim_launch *launch = &node->launch;
  uint32_t count = launch->function->parameter_count;
  if (!node->values) {
    node->values = calloc(count + 1u, sizeof *node->values);
    if (!node->values) return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < count; i++) node->values[i] = launch->parameters + launch->function->parameters[i].offset;
  }
  to->func = launch->function;
  to->gridDimX = launch->grid[0], to->gridDimY = launch->grid[1], to->gridDimZ = launch->grid[2];
  to->blockDimX = launch->block[0], to->blockDimY = launch->block[1], to->blockDimZ = launch->block[2];
  to->sharedMemBytes = launch->dynamic_shared;
  to->kernelParams = count ? node->values : NULL;
  to->extra = NULL;
  if (with_kernel) to->kern = launch->function->kernel, to->ctx = NULL;
  return CUDA_SUCCESS;
}

API CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *to) {
  ENTER();
  TRY(sim_check());
  return read_node(node, to, false);
}

API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *to) {
  ENTER();
  TRY(sim_check());
  return read_node(node, to, true);
}

API CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *given) {
  ENTER();
  TRY(sim_check());
  return replace(node, given);
}

API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *given) {
  ENTER();
  TRY(sim_check());
  NEED(exec && exec->tag == TAG_EXEC && node && node->graph);
  /* the copy's nodes stand in the order of the original's */
  struct sim_node *copy = exec->graph->first;
  for (struct sim_node *at = node->graph->first; at && at != node; at = at->next) copy = copy ? copy->next : NULL;
  return replace(copy, given);
}

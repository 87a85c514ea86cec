/* Graphs made by capture, and the copies and fills that may be captured. */
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "driver.h"

struct sim_graph *graph_new(void) {
  struct sim_graph *graph = calloc(1, sizeof *graph);
  if (graph) graph->tag = TAG_GRAPH;
  return graph;
}

struct sim_node *graph_append(struct sim_graph *graph, enum node_kind kind) {
  struct sim_node *node = calloc(1, sizeof *node);
  if (!node) return NULL;
  node->kind = kind;
  node->graph = graph;
  if (graph->last)
    graph->last->next = node;
  else
    graph->first = node;
  graph->last = node;
  graph->count++;
  return node;
}

void graph_free(struct sim_graph *graph) {
  for (struct sim_node *node = graph->first; node;) {
    struct sim_node *next = node->next;
    free(node->launch.parameters);
    free(node->values);
    free(node);
    node = next;
  }
  graph->tag = 0;
  free(graph);
}

static struct sim_graph *graph_clone(const struct sim_graph *graph) {
  struct sim_graph *made = graph_new();
  if (!made) return NULL;
  for (const struct sim_node *node = graph->first; node; node = node->next) {
    struct sim_node *copy = graph_append(made, node->kind);
    if (!copy) {
      graph_free(made);
      return NULL;
    }
    *copy = *node;
    copy->next = NULL;
    copy->values = NULL;
    copy->graph = made;
    copy->launch.parameters = NULL;
    if (!node->launch.parameters) continue;
    copy->launch.parameters = malloc(node->launch.parameter_bytes + 1u);
    if (!copy->launch.parameters) {
      graph_free(made);
      return NULL;
    }
    memcpy(copy->launch.parameters, node->launch.parameters, node->launch.parameter_bytes);
  }
  return made;
}

static void fill(void *to, uint32_t value, uint32_t width, size_t count) {
  unsigned char *at = to;
  if (width == 1) {
    memset(at, (int)(value & 255), count);
    return;
  }
  for (size_t i = 0; i < count; i++) memcpy(at + i * width, &value, width);
}

static void copy_rows(const struct sim_node *node) {
  char *to = node->to;
  const char *from = node->from;
  for (size_t row = 0; row < node->rows; row++) memmove(to + row * node->to_pitch, from + row * node->from_pitch, node->bytes);
}

/* Host functions run without the lock: they may take locks that a thread inside a call holds. */
static CUresult node_run(const struct sim_node *node) {
  switch (node->kind) {
    case NODE_KERNEL: return launch_run(&node->launch);
    case NODE_COPY: copy_rows(node); return CUDA_SUCCESS;
    case NODE_SET: fill(node->to, node->value, node->width, node->bytes); return CUDA_SUCCESS;
    case NODE_HOST:
      sim_unlock();
      node->host(node->host_data);
      sim_lock();
      return CUDA_SUCCESS;
    case NODE_EMPTY: return CUDA_SUCCESS;
  }
  return CUDA_ERROR_UNKNOWN;
}

static CUresult run_or_record(CUstream handle, const struct sim_node *wanted) {
  struct sim_stream *stream;
  bool capturing;
  TRY(stream_capture(handle, &stream, &capturing));
  if (!capturing) return node_run(wanted);
  struct sim_node *node = capture_append(stream, wanted->kind);
  if (!node) return CUDA_ERROR_OUT_OF_MEMORY;
  struct sim_graph *graph = node->graph;
  *node = *wanted;
  node->graph = graph;
  return CUDA_SUCCESS;
}

enum place { PLACE_HOST, PLACE_DEVICE, PLACE_ANY };

static CUresult copy(CUstream stream, bool asynchronous, uint64_t to, enum place to_place, uint64_t from, enum place from_place,
                     size_t size) {
  TRY(sim_check_context());
  if (!size) return CUDA_SUCCESS;
  NEED(to && from);
  if (to_place == PLACE_DEVICE || (to_place == PLACE_ANY && memory_is_device(to))) TRY(memory_readable(to, size));
  if (from_place == PLACE_DEVICE || (from_place == PLACE_ANY && memory_is_device(from))) TRY(memory_readable(from, size));
  if (!asynchronous) TRY(capture_forbid());
  struct sim_node node = {
      .kind = NODE_COPY, .to = (void *)(uintptr_t)to, .from = (const void *)(uintptr_t)from, .bytes = size, .rows = 1};
  return run_or_record(stream, &node);
}

#define ADDRESS(pointer) ((uint64_t)(uintptr_t)(pointer))

API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) {
  ENTER();
  return copy(NULL, false, to, PLACE_DEVICE, ADDRESS(from), PLACE_HOST, size);
}
API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
  ENTER();
  return copy(NULL, false, ADDRESS(to), PLACE_HOST, from, PLACE_DEVICE, size);
}
API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size) {
  ENTER();
  return copy(NULL, false, to, PLACE_DEVICE, from, PLACE_DEVICE, size);
}
API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) {
  ENTER();
  return copy(NULL, false, to, PLACE_ANY, from, PLACE_ANY, size);
}
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
  ENTER();
  return copy(stream, true, to, PLACE_DEVICE, ADDRESS(from), PLACE_HOST, size);
}
API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) {
  ENTER();
  return copy(stream, true, ADDRESS(to), PLACE_HOST, from, PLACE_DEVICE, size);
}
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  ENTER();
  return copy(stream, true, to, PLACE_DEVICE, from, PLACE_DEVICE, size);
}
API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  ENTER();
  return copy(stream, true, to, PLACE_ANY, from, PLACE_ANY, size);
}

static CUresult side(unsigned type, const void *host, CUdeviceptr device, size_t x, size_t y, size_t pitch, size_t width,
                     size_t height, uint64_t *address) {
  switch (type) {
    case CU_MEMORYTYPE_HOST: *address = ADDRESS(host); break;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED: *address = device; break;
    default: return CUDA_ERROR_NOT_SUPPORTED; /* arrays */
  }
  NEED(*address && (height == 1 || pitch >= width) && (!pitch || y <= SIZE_MAX / 2 / pitch));
  *address += y * pitch + x;
  NEED(!pitch || height <= SIZE_MAX / 2 / pitch);
  if (type == CU_MEMORYTYPE_DEVICE || memory_is_device(*address)) TRY(memory_readable(*address, (height - 1) * pitch + width));
  return CUDA_SUCCESS;
}

static CUresult copy_2d(CUstream stream, bool asynchronous, const CUDA_MEMCPY2D *what) {
  TRY(sim_check_context());
  NEED(what);
  if (!what->WidthInBytes || !what->Height) return CUDA_SUCCESS;
  uint64_t to, from;
  TRY(side(what->dstMemoryType, what->dstHost, what->dstDevice, what->dstXInBytes, what->dstY, what->dstPitch,
           what->WidthInBytes, what->Height, &to));
  TRY(side(what->srcMemoryType, what->srcHost, what->srcDevice, what->srcXInBytes, what->srcY, what->srcPitch,
           what->WidthInBytes, what->Height, &from));
  if (!asynchronous) TRY(capture_forbid());
  struct sim_node node = {.kind = NODE_COPY,
                          .to = (void *)(uintptr_t)to,
                          .from = (const void *)(uintptr_t)from,
                          .bytes = what->WidthInBytes,
                          .rows = what->Height,
                          .to_pitch = what->dstPitch,
                          .from_pitch = what->srcPitch};
  return run_or_record(stream, &node);
}

API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *what) {
  ENTER();
  return copy_2d(NULL, false, what);
}
API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *what) { return cuMemcpy2D_v2(what); }
API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *what, CUstream stream) {
  ENTER();
  return copy_2d(stream, true, what);
}

static CUresult set(CUstream stream, bool asynchronous, uint64_t to, uint32_t value, uint32_t width, size_t count) {
  TRY(sim_check_context());
  NEED(to % width == 0 && count <= SIZE_MAX / width);
  if (!count) return CUDA_SUCCESS;
  TRY(memory_readable(to, count * width));
  if (!asynchronous) TRY(capture_forbid());
  struct sim_node node = {.kind = NODE_SET, .to = (void *)(uintptr_t)to, .value = value, .width = width, .bytes = count};
  return run_or_record(stream, &node);
}

API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
  ENTER();
  return set(NULL, false, to, value, 1, count);
}
API CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
  ENTER();
  return set(NULL, false, to, value, 2, count);
}
API CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
  ENTER();
  return set(NULL, false, to, value, 4, count);
}
API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  ENTER();
  return set(stream, true, to, value, 1, count);
}
API CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  ENTER();
  return set(stream, true, to, value, 2, count);
}
API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  ENTER();
  return set(stream, true, to, value, 4, count);
}

API CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data) {
  ENTER();
  TRY(sim_check_context());
  NEED(function);
  struct sim_node node = {.kind = NODE_HOST, .host = function, .host_data = data};
  return run_or_record(stream, &node);
}

API CUresult cuGraphCreate(CUgraph *graph, unsigned flags) {
  ENTER();
  TRY(sim_check());
  NEED(graph && !flags);
  *graph = graph_new();
  return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuGraphDestroy(CUgraph graph) {
  ENTER();
  TRY(sim_check());
  NEED(graph && graph->tag == TAG_GRAPH);
  graph_free(graph);
  return CUDA_SUCCESS;
}

API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  ENTER();
  TRY(sim_check());
  NEED(graph && graph->tag == TAG_GRAPH && count);
  size_t room = nodes ? *count : 0, filled = 0;
  for (struct sim_node *node = graph->first; node && filled < room; node = node->next) nodes[filled++] = node;
  for (size_t i = filled; i < room; i++) nodes[i] = NULL;
  *count = nodes ? filled : graph->count;
  return CUDA_SUCCESS;
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
  ENTER();
  TRY(sim_check_context());
  (void)flags; /* they change how, not what, a graph runs */
  NEED(exec && graph && graph->tag == TAG_GRAPH);
  struct sim_exec *made = calloc(1, sizeof *made);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  made->tag = TAG_EXEC;
  made->graph = graph_clone(graph);
  if (!made->graph) {
    free(made);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *exec = made;
  return CUDA_SUCCESS;
}

API CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t size) {
  if (node) *node = NULL;
  if (log && size) *log = 0;
  return cuGraphInstantiateWithFlags(exec, graph, 0);
}

API CUresult cuGraphExecDestroy(CUgraphExec exec) {
  ENTER();
  TRY(sim_check());
  NEED(exec && exec->tag == TAG_EXEC);
  graph_free(exec->graph);
  exec->tag = 0;
  free(exec);
  return CUDA_SUCCESS;
}

API CUresult cuGraphUpload(CUgraphExec exec, CUstream handle) {
  ENTER();
  TRY(sim_check_context());
  struct sim_stream *stream;
  NEED(exec && exec->tag == TAG_EXEC);
  return stream_resolve(handle, &stream);
}

API CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle) {
  ENTER();
  TRY(sim_check_context());
  struct sim_stream *stream;
  bool capturing;
  NEED(exec && exec->tag == TAG_EXEC);
  TRY(stream_capture(handle, &stream, &capturing));
  if (capturing) return capture_forbid_stream(stream); /* child graphs are not built */
  for (const struct sim_node *node = exec->graph->first; node; node = node->next) TRY(node_run(node));
  return CUDA_SUCCESS;
}

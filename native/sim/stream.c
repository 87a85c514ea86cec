/* Streams, events and stream capture.  Work runs when it is asked for, in call order, so a stream
 * orders nothing; what remains of streams is their capture state, which has the driver's rules. */
#include <stdlib.h>

#include "api.h"
#include "driver.h"

static struct sim_stream legacy = {.tag = TAG_STREAM, .id = 1};
static _Thread_local struct sim_stream per_thread = {.tag = TAG_STREAM};
static _Thread_local int interaction = CU_STREAM_CAPTURE_MODE_GLOBAL;
static struct sim_stream *streams;   /* created ones */
static struct sim_capture *captures; /* going on */

CUresult stream_resolve(CUstream handle, struct sim_stream **stream) {
  if (!handle || handle == CU_STREAM_LEGACY) {
    *stream = &legacy;
    return CUDA_SUCCESS;
  }
  if (handle == CU_STREAM_PER_THREAD) {
    if (!per_thread.id) per_thread.id = sim_unique() + 1;
    *stream = &per_thread;
    return CUDA_SUCCESS;
  }
  for (struct sim_stream *known = streams; known; known = known->next)
    if (known == handle) {
      *stream = known;
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_INVALID_HANDLE;
}

CUresult stream_capture(CUstream handle, struct sim_stream **stream, bool *capturing) {
  TRY(stream_resolve(handle, stream));
  *capturing = (*stream)->capture != NULL;
  if (*capturing) return (*stream)->capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  if (*stream != &legacy) return CUDA_SUCCESS;
  for (struct sim_capture *capture = captures; capture; capture = capture->next)
    if (!(capture->origin->flags & CU_STREAM_NON_BLOCKING)) {
      capture->invalidated = true; /* the legacy stream would have to wait for a stream that records */
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  return CUDA_SUCCESS;
}

CUresult capture_forbid(void) {
  if (interaction == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (struct sim_capture *capture = captures; capture; capture = capture->next) {
    bool mine = capture->thread == sim_thread() && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool others = interaction == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!mine && !others) continue;
    capture->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult capture_forbid_stream(struct sim_stream *stream) {
  if (!stream->capture) return CUDA_SUCCESS;
  stream->capture->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

struct sim_node *capture_append(struct sim_stream *stream, enum node_kind kind) {
  struct sim_node *node = graph_append(stream->capture->graph, kind);
  if (node && stream != stream->capture->origin) stream->unjoined = true;
  return node;
}

API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
  ENTER();
  TRY(sim_check_context());
  NEED(stream && !(flags & ~1u));
  struct sim_stream *made = calloc(1, sizeof *made);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  *made = (struct sim_stream){.tag = TAG_STREAM, .flags = flags, .priority = priority, .id = sim_unique() + 1, .next = streams};
  streams = made;
  *stream = made;
  return CUDA_SUCCESS;
}

API CUresult cuStreamCreate(CUstream *stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

API CUresult cuStreamDestroy_v2(CUstream handle) {
  ENTER();
  TRY(sim_check());
  for (struct sim_stream **link = &streams; *link; link = &(*link)->next) {
    struct sim_stream *stream = *link;
    if (stream != handle) continue;
    TRY(capture_forbid_stream(stream));
    *link = stream->next;
    stream->tag = 0;
    free(stream);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuStreamSynchronize(CUstream handle) {
  ENTER();
  TRY(sim_check_context());
  struct sim_stream *stream;
  bool capturing;
  CUresult result = stream_capture(handle, &stream, &capturing);
  if (result) return result;
  return capture_forbid_stream(stream);
}

API CUresult cuStreamQuery(CUstream handle) { return cuStreamSynchronize(handle); }

API CUresult cuStreamGetFlags(CUstream handle, unsigned *flags) {
  ENTER();
  TRY(sim_check());
  struct sim_stream *stream;
  TRY(stream_resolve(handle, &stream));
  NEED(flags);
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

API CUresult cuStreamGetPriority(CUstream handle, int *priority) {
  ENTER();
  TRY(sim_check());
  struct sim_stream *stream;
  TRY(stream_resolve(handle, &stream));
  NEED(priority);
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

API CUresult cuStreamGetId(CUstream handle, unsigned long long *id) {
  ENTER();
  TRY(sim_check());
  struct sim_stream *stream;
  TRY(stream_resolve(handle, &stream));
  NEED(id);
  *id = stream->id;
  return CUDA_SUCCESS;
}

API CUresult cuStreamGetCtx(CUstream handle, CUcontext *context) {
  ENTER();
  TRY(sim_check_context());
  struct sim_stream *stream;
  TRY(stream_resolve(handle, &stream));
  NEED(context);
  *context = sim_current;
  return CUDA_SUCCESS;
}

API CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
  ENTER();
  TRY(sim_check_context());
  NEED(!(flags & ~1u));
  struct sim_stream *stream;
  bool capturing;
  TRY(stream_capture(handle, &stream, &capturing));
  if (!event || event->tag != TAG_EVENT) return CUDA_ERROR_INVALID_HANDLE;
  struct sim_capture *capture = captures;
  while (capture && capture->id != event->capture_id) capture = capture->next;
  if (capturing && !capture) {
    stream->capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (!capture) return CUDA_SUCCESS; /* what it waits for has run */
  if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (capturing && stream->capture != capture) return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  stream->capture = capture;
  if (event->stream != stream) event->stream->unjoined = false;
  if (stream != capture->origin) stream->unjoined = true;
  return CUDA_SUCCESS;
}

API CUresult cuEventCreate(CUevent *event, unsigned flags) {
  ENTER();
  TRY(sim_check_context());
  NEED(event);
  struct sim_event *made = calloc(1, sizeof *made);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  made->tag = TAG_EVENT;
  made->flags = flags;
  *event = made;
  return CUDA_SUCCESS;
}

API CUresult cuEventDestroy_v2(CUevent event) {
  ENTER();
  TRY(sim_check());
  if (!event || event->tag != TAG_EVENT) return CUDA_ERROR_INVALID_HANDLE;
  event->tag = 0;
  free(event);
  return CUDA_SUCCESS;
}

API CUresult cuEventRecord(CUevent event, CUstream handle) {
  ENTER();
  TRY(sim_check_context());
  struct sim_stream *stream;
  bool capturing;
  TRY(stream_capture(handle, &stream, &capturing));
  if (!event || event->tag != TAG_EVENT) return CUDA_ERROR_INVALID_HANDLE;
  event->recorded = true;
  event->stream = stream;
  event->capture_id = capturing ? stream->capture->id : 0;
  event->nanoseconds = sim_nanoseconds();
  return CUDA_SUCCESS;
}

API CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags) {
  NEED(!(flags & ~1u));
  return cuEventRecord(event, handle);
}

API CUresult cuEventSynchronize(CUevent event) {
  ENTER();
  TRY(sim_check());
  if (!event || event->tag != TAG_EVENT) return CUDA_ERROR_INVALID_HANDLE;
  for (struct sim_capture *capture = captures; capture; capture = capture->next)
    if (capture->id == event->capture_id) {
      capture->invalidated = true;
      return CUDA_ERROR_CAPTURED_EVENT;
    }
  return CUDA_SUCCESS;
}

API CUresult cuEventQuery(CUevent event) { return cuEventSynchronize(event); }

/* Host time between the calls: the simulated device works while the host waits in a launch. */
API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
  ENTER();
  TRY(sim_check());
  NEED(milliseconds);
  if (!start || !end || start->tag != TAG_EVENT || end->tag != TAG_EVENT) return CUDA_ERROR_INVALID_HANDLE;
  enum { DISABLE_TIMING = 2 };
  if (!start->recorded || !end->recorded || ((start->flags | end->flags) & DISABLE_TIMING)) return CUDA_ERROR_INVALID_HANDLE;
  *milliseconds = (float)((double)(int64_t)(end->nanoseconds - start->nanoseconds) * 1e-6);
  return CUDA_SUCCESS;
}

API CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
  ENTER();
  NEED(mode && *mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && *mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
  int before = interaction;
  interaction = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}

API CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
  ENTER();
  TRY(sim_check_context());
  struct sim_stream *stream;
  TRY(stream_resolve(handle, &stream));
  NEED(mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
  if (stream == &legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) return CUDA_ERROR_INVALID_VALUE;
  struct sim_capture *capture = calloc(1, sizeof *capture);
  if (!capture) return CUDA_ERROR_OUT_OF_MEMORY;
  capture->graph = graph_new();
  if (!capture->graph) {
    free(capture);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  capture->id = sim_unique();
  capture->mode = mode;
  capture->thread = sim_thread();
  capture->origin = stream;
  capture->next = captures;
  captures = capture;
  stream->capture = capture;
  return CUDA_SUCCESS;
}

/* Takes every stream out of the capture; gives whether one still had unjoined work. */
static bool leave_all(struct sim_capture *capture) {
  bool unjoined = false;
  for (struct sim_stream *stream = streams; stream; stream = stream->next) {
    if (stream->capture != capture) continue;
    unjoined |= stream->unjoined && stream != capture->origin;
    stream->capture = NULL;
    stream->unjoined = false;
  }
  capture->origin->capture = NULL;
  return unjoined;
}

API CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph) {
  ENTER();
  TRY(sim_check_context());
  struct sim_stream *stream;
  TRY(stream_resolve(handle, &stream));
  NEED(graph);
  *graph = NULL;
  struct sim_capture *capture = stream->capture;
  if (!capture) return CUDA_ERROR_INVALID_VALUE;
  if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != sim_thread())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  CUresult result = CUDA_SUCCESS;
  if (leave_all(capture)) result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  if (capture->invalidated) result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  for (struct sim_capture **link = &captures; *link; link = &(*link)->next)
    if (*link == capture) {
      *link = capture->next;
      break;
    }
  if (result)
    graph_free(capture->graph);
  else
    *graph = capture->graph;
  free(capture);
  return result;
}

API CUresult cuStreamIsCapturing(CUstream handle, int *status) {
  ENTER();
  TRY(sim_check_context());
  struct sim_stream *stream;
  TRY(stream_resolve(handle, &stream));
  NEED(status);
  *status = !stream->capture               ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                           : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

/* Dependencies are not given: in a graph of this driver every node follows the one before. */
static CUresult capture_info(CUstream handle, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes, size_t *count) {
  struct sim_stream *stream;
  TRY(stream_resolve(handle, &stream));
  NEED(status);
  struct sim_capture *capture = stream->capture;
  *status = !capture ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                   : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  bool active = capture && !capture->invalidated;
  if (id && active) *id = capture->id;
  if (graph) *graph = active ? capture->graph : NULL;
  if (nodes) *nodes = active && capture->graph->last ? &capture->graph->last : NULL;
  if (count) *count = active && capture->graph->last ? 1 : 0;
  return CUDA_SUCCESS;
}

API CUresult cuStreamGetCaptureInfo(CUstream handle, int *status, uint64_t *id) {
  ENTER();
  TRY(sim_check_context());
  return capture_info(handle, status, id, NULL, NULL, NULL);
}

API CUresult cuStreamGetCaptureInfo_v2(CUstream handle, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
                                       size_t *count) {
  ENTER();
  TRY(sim_check_context());
  return capture_info(handle, status, id, graph, nodes, count);
}

API CUresult cuStreamGetCaptureInfo_v3(CUstream handle, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
                                       const void **edges, size_t *count) {
  ENTER();
  TRY(sim_check_context());
  if (edges) *edges = NULL;
  return capture_info(handle, status, id, graph, nodes, count);
}

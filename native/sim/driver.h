/* Inside of the stand-in driver: devices that are alike, one lock, everything executes in call order.
 *
 * The driver keeps memory, handles and captures; images are read and kernels run by the server at
 * the other end of a Unix socket (wire.c, src/egpu/sim/server.py). */
#ifndef EGPU_SIM_DRIVER_H
#define EGPU_SIM_DRIVER_H

#include <stdbool.h>

#include "abi.h"

enum { SIM_MAX_SHARED = 49152, SIM_MAX_SHARED_OPTIN = 232448, SIM_MAX_THREADS = 1024 };
enum { SIM_THREADS_PER_SM = 2048, SIM_BLOCKS_PER_SM = 32, SIM_REGISTERS = 16 };
enum { SIM_DRIVER_VERSION = 13000 };

#define TAG_CONTEXT 0x58544e43u
#define TAG_MODULE 0x444f4d45u
#define TAG_FUNCTION 0x434e5546u
#define TAG_LIBRARY 0x5242494cu
#define TAG_KERNEL 0x4e52454bu
#define TAG_STREAM 0x4d525453u
#define TAG_EVENT 0x544e5645u
#define TAG_GRAPH 0x48505247u
#define TAG_EXEC 0x43455845u

struct sim_context {
  uint32_t tag;
  unsigned flags;
  bool primary;
  int references;
  int device;
};

struct sim_parameter {
  uint32_t offset, size;
};

struct sim_function {
  uint32_t tag;
  uint32_t index; /* in the module */
  struct sim_module *module;
  char *name;
  uint32_t parameter_count, parameter_bytes;
  struct sim_parameter *parameters;
  uint32_t static_shared, max_threads, local_bytes;
  int dynamic_shared_limit, carveout, attributes[CU_FUNC_ATTRIBUTE_MAX];
  struct sim_kernel *kernel; /* its contextless handle, if it came from a library */
};

struct sim_global {
  char *name;
  uint64_t size, address;
};

struct sim_module {
  uint32_t tag;
  uint32_t id; /* the server's number */
  uint32_t function_count, global_count;
  struct sim_function *functions;
  struct sim_global *globals;
  uint32_t ptx_version;
  struct sim_library *library;
};

struct sim_kernel {
  uint32_t tag;
  struct sim_library *library;
  struct sim_function *function;
};

struct sim_library {
  uint32_t tag;
  struct sim_module *module;
  struct sim_kernel *kernels;
};

struct sim_node;

struct sim_graph {
  uint32_t tag;
  struct sim_node *first, *last;
  size_t count;
};

struct sim_exec {
  uint32_t tag;
  struct sim_graph *graph; /* its own copy */
};

struct sim_capture {
  uint64_t id;
  int mode;
  bool invalidated;
  uint64_t thread; /* that began it */
  struct sim_stream *origin;
  struct sim_graph *graph;
  struct sim_capture *next;
};

struct sim_stream {
  uint32_t tag;
  unsigned flags;
  int priority;
  uint64_t id;
  struct sim_capture *capture;
  bool unjoined; /* has captured work that the origin has not waited for */
  struct sim_stream *next;
};

struct sim_event {
  uint32_t tag;
  unsigned flags;
  bool recorded;
  uint64_t nanoseconds;
  uint64_t capture_id; /* of the capture that recorded it last, 0 if none did */
  struct sim_stream *stream;
};

struct sim_launch {
  struct sim_function *function;
  unsigned grid[3], block[3];
  unsigned dynamic_shared;
  bool cooperative;
  uint32_t parameter_bytes;
  unsigned char *parameters;
};

/* numbered as CUgraphNodeType */
enum node_kind { NODE_KERNEL = 0, NODE_COPY = 1, NODE_SET = 2, NODE_HOST = 3, NODE_EMPTY = 5 };

struct sim_node {
  enum node_kind kind;
  struct sim_launch launch;
  void *to;
  const void *from;
  size_t bytes, rows, to_pitch, from_pitch; /* NODE_SET: bytes is a count of values */
  uint32_t value, width;
  void **values; /* NODE_KERNEL: pointers into launch.parameters, made when they are asked for */
  struct sim_graph *graph;
  void (*host)(void *);
  void *host_data;
  struct sim_node *next;
};

/* state.c */
extern _Thread_local struct sim_context *sim_current;
void sim_lock(void);
void sim_unlock(void);
void sim_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *sim_last(void); /* the last line this thread said */
CUresult sim_check(void);         /* initialised, same process, no sticky fault */
CUresult sim_check_context(void); /* sim_check, and a context is current */
void sim_fault(CUresult fault);   /* from now on every call returns it */
uint64_t sim_thread(void);
uint64_t sim_nanoseconds(void);
uint64_t sim_unique(void);
unsigned sim_sm_count(void);
bool sim_is_device(CUdevice device);

/* Every entry point holds the lock from its first line to its return. */
static inline void sim_release(int *held) {
  (void)held;
  sim_unlock();
}
#define ENTER() \
  __attribute__((cleanup(sim_release), unused)) int held = 0; \
  sim_lock()
#define TRY(call) \
  do { \
    CUresult result_of_call = (call); \
    if (result_of_call != CUDA_SUCCESS) return result_of_call; \
  } while (0)
#define NEED(condition) \
  do { \
    if (!(condition)) return CUDA_ERROR_INVALID_VALUE; \
  } while (0)
#define PER_THREAD(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

/* wire.c */
struct sim_module_info {
  unsigned char *bytes;
  size_t size;
};
CUresult wire_open(int heap, uint64_t base, uint64_t size, unsigned *sm_count);
void wire_close(void);
CUresult wire_range(bool add, uint64_t base, uint64_t size);
CUresult wire_host(uint64_t base, uint64_t size, int fd, uint64_t offset);
CUresult wire_load(const void *image, size_t size, struct sim_module_info *info);
CUresult wire_bind(uint32_t module, const struct sim_global *globals, uint32_t count);
CUresult wire_unload(uint32_t module);
CUresult wire_launch(const struct sim_launch *launch);

/* memory.c */
int move_up(int fd); /* the descriptor under a number that no program counts on */
CUresult memory_open(void);
CUresult memory_allocate(uint64_t size, uint64_t *address);
CUresult memory_free(uint64_t address);
/* Memory without an address, and what shows it at one: mappings.c. */
CUresult memory_create(uint64_t size, uint64_t alignment, uint64_t *address);
void memory_destroy(uint64_t address);
CUresult memory_show(uint64_t base, uint64_t size, uint64_t created);
CUresult memory_hide(uint64_t base, uint64_t size);
CUresult memory_readable(uint64_t address, uint64_t size); /* inside what one call of a program may reach */
bool memory_is_device(uint64_t address);
int memory_heap(uint64_t *base, uint64_t *size);

/* stream.c */
CUresult stream_resolve(CUstream handle, struct sim_stream **stream);
/* The stream, and whether a call on it is to be recorded instead of executed. */
CUresult stream_capture(CUstream handle, struct sim_stream **stream, bool *capturing);
CUresult capture_forbid(void); /* 900 and invalidation, for calls unsafe while capturing */
CUresult capture_forbid_stream(struct sim_stream *stream); /* for synchronising calls */
struct sim_node *capture_append(struct sim_stream *stream, enum node_kind kind);
struct sim_graph *graph_new(void);
struct sim_node *graph_append(struct sim_graph *graph, enum node_kind kind);
void graph_free(struct sim_graph *graph);

/* module.c */
CUresult function_resolve(void *handle, struct sim_function **function);

/* launch.c */
CUresult launch_check(const struct sim_launch *launch);
CUresult launch_parameters(struct sim_launch *launch, void **values, void **extra); /* mallocs them */
CUresult launch_run(const struct sim_launch *launch);
int launch_blocks_per_sm(const struct sim_function *function, int threads, size_t dynamic_shared);


#endif

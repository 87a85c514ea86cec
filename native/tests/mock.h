/* A stand-in driver for testing the agent: it records calls and runs nothing.
 *
 * Images are texts with lines "// entry NAME params N regs R occ O max T twin W" and
 * "// global NAME"; a text may lie in a fatbin.  A launch of a kernel with twin 1 reads the launch block behind its parameters
 * and, when its stream's work is done (at a synchronise), adds the number of threads to the u64 at
 * byte 4096 of the device arena, as a counting probe would.  Every parameter is 8 bytes.
 *
 * Its parts: mock_cuda.c (devices, contexts, what finds functions), mock_modules.c, mock_memory.c,
 * mock_launch.c (streams too), mock_graphs.c.
 *
 * MOCK_ARENA and MOCK_TABLE, the size of the agent's device arena and where its table of allocations
 * begins, make the log say what the table of the current context holds whenever probes would read by
 * it, or memory goes.
 * MOCK_LOG names a file that gets one line per call of interest; MOCK_FAIL a function that fails.
 */
#ifndef EGPU_MOCK_H
#define EGPU_MOCK_H

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
    uint64_t arena; /* the agent's device arena, if MOCK_ARENA says its size */
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
    struct context *context;
    int invalid;
};

/* mock_cuda.c */
extern _Thread_local struct context *mock_current;
extern _Thread_local int mock_capture_mode; /* 0 global, 2 relaxed */
void mock_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
int mock_failing(const char *name);

/* mock_memory.c */
void mock_note_table(const char *when);

/* mock_launch.c */
extern _Atomic int mock_captures;
void mock_drain(void);
void mock_execute(const struct entry *e, const char *name, uint64_t threads,
                  const uint64_t *values, const struct block *block, const char *how);
int mock_gather(const struct entry *e, void **params, void **extra, uint64_t *values,
                struct block *block);
struct node *mock_make_node(struct function *f, const uint64_t *values, const struct block *block,
                            const CUDA_KERNEL_NODE_PARAMS_v1 *shape);

#endif

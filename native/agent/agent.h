/* What the agent's parts share.  Lock order: resolve before arena; a driver call is made under
 * neither, except by the arena code, which owns its private streams.  Allocations before arena. */
#ifndef EGPU_AGENT_H
#define EGPU_AGENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

#include "hooks.h"
#include "layout.h"
#include "protocol.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

enum phase {
    PHASE_INERT,   /* no session: every call passes straight through */
    PHASE_LIVE,    /* a session answers */
    PHASE_STOPPED, /* detached, session lost or process ending: originals run, counted */
};

enum { MAX_GLOBALS = 4096, MAX_PARAMETERS = 512, MAX_PACKED = 32 * 1024, SHAPES = 16, NAME_LIMIT = 8192 };

/* One loaded image. */
/* Tells a file from what takes its place, and from itself with other contents. */
struct file_mark {
    dev_t device;
    ino_t number;
    off_t size;
    struct timespec changed;
};

struct module {
    struct module *next;
    void *handle;      /* CUmodule or CUlibrary */
    bool library;
    bool told;         /* the session was told before it was loaded */
    struct module *of; /* for the CUmodule of a library: that library */
    CUcontext context; /* current when a CUmodule was loaded */
    uint64_t image;
    uint32_t source; /* enum egpu_image_source */
    uint64_t offset, size;
    char *path;
    struct file_mark mark; /* of the file at path when the image was loaded */
};

enum handle_kind { HANDLE_FUNCTION, HANDLE_KERNEL, HANDLE_TWIN };

struct variant;

/* A launch handle of the program (or, so that graph nodes can be read back, of a twin). */
struct entry {
    void *handle;
    enum handle_kind kind;
    struct module *module; /* NULL: loaded where the agent could not see it */
    char *name;
    struct entry *kernel;  /* for a function made from a kernel: that kernel */
    struct variant *owner; /* of a twin's handle */
    struct egpu_stats_slot *stats;
    uint32_t slot;
    _Atomic uint32_t unmatched; /* epoch + 1 in which no link asked for it */
    _Atomic(struct variant *) variants;
    CUcontext context; /* of a function, NULL for kernels */
    _Atomic bool dropped;
    _Atomic uint32_t turn; /* launches that could be probed, while launches are sampled */
    uint32_t set; /* attributes the program has set */
    int value[CU_FUNC_ATTRIBUTES];
    int cache_config; /* -1: not set */
};

enum resolve_state { RESOLVE_NEW, RESOLVE_ASKED, RESOLVE_TWIN, RESOLVE_BUILDING, RESOLVE_SETTLED };

struct arena;

/* An instrumented copy, immutable once published, never freed. */
struct twin {
    CUmodule module;
    CUfunction function, original;
    uint32_t hidden_offset, parameters, kernel_id;
    int max_threads;
    bool allow_occupancy;
    struct arena *arena;
    _Atomic uint64_t shapes[SHAPES]; /* decisions by launch shape, see decide.c */
};

/* What is known of one handle in one context, for one way of launching it. */
struct variant {
    struct variant *next;
    struct entry *entry;
    bool captured; /* for launches recorded into graphs, whose probes test the enable word */
    _Atomic(CUcontext) context; /* NULL once the context is gone */
    _Atomic uint32_t settled;   /* epoch + 1 for which twin and reason are final */
    _Atomic(struct twin *) twin;
    _Atomic uint32_t reason;
    /* below: under the resolve lock */
    enum resolve_state state;
    uint32_t asked; /* epoch + 1 of the last RESOLVE */
    uint32_t request;
    uint64_t deadline;
    struct variant *pending;
    int file;     /* of the reply */
    void *packet; /* of the reply, a struct egpu_twin behind its header */
};

struct shape {
    unsigned grid[3], block[3], shared;
    bool cooperative;
    const CUlaunchConfig *config; /* cluster launches need all of it */
    unsigned cluster[3];          /* 0: none */
};

/* Launch block, by value the hidden parameter (maps/layout.py LAUNCH_BLOCK). */
struct launch_block {
    uint64_t device_arena, host_arena, launch_id;
    uint32_t kernel_id, flags;
};
_Static_assert(sizeof(struct launch_block) == EGPU_LAUNCH_BLOCK_SIZE, "launch block");
_Static_assert(offsetof(struct launch_block, flags) == EGPU_LAUNCH_BLOCK_AT_FLAGS, "launch block");

enum arena_state { ARENA_NEW, ARENA_ASKED, ARENA_ANSWERED, ARENA_READY, ARENA_FAILED, ARENA_GONE };

struct device {
    uint32_t ordinal, major, minor, sm_count;
    char name[128];
};

/* What the session wants done to an arena; kind 0: nothing. */
struct command {
    uint32_t kind, request;
    int file;
    bool issued;
    uint32_t failed; /* enum egpu_command_error, once issued */
    CUresult detail;
    union {
        struct egpu_write write;
        struct egpu_operator operator;
        struct egpu_operate operate;
    } body;
};

enum { EGPU_LANES = 2 };

/* A share of every map's rings in device memory. */
struct lane {
    CUstream stream;
    bool records; /* some were to be copied when the stream was last empty */
    bool hurried; /* rings filled up then */
};

/* Copies that are to be made. */
struct uploads {
    CUdeviceptr *to, *from;
    size_t *sizes, count;
    bool one_by_one; /* the driver does not take many at once */
};

/* How far rings in device memory are copied. */
struct draining {
    bool active; /* there are some, and they are still copied */
    bool hurried; /* the next turn should come soon */
    bool ending; /* no kernel runs: what was not read is copied as it is now */
    uint64_t *drained, *copied; /* of each ring, as `positions` */
    struct uploads uploads;
    struct lane lanes[EGPU_LANES];
};

struct operation; /* a loaded kernel that does operations on a map */

struct arena {
    struct arena *next;
    uint32_t number;
    CUcontext context;
    struct device device;
    bool primary;
    _Atomic int state;
    CUdeviceptr address, host_address;
    uint64_t device_size, host_size, device_rings;
    unsigned char *host;
    CUstream stream;
    struct egpu_ring *rings;
    uint64_t *positions; /* last copied reader positions, all rings one after the other */
    uint32_t ring_count, sm_slots;
    struct draining draining; /* of rings in device memory */
    uint64_t snapshot_offset, snapshot_due;
    bool copying;      /* a snapshot is on its way */
    bool requested;    /* by the session */
    uint64_t allocations, allocations_state; /* the table's offset (0: none), its last state */
    bool allocations_changed;                /* under the allocations lock */
    CUfunction clock;  /* writes the device's clock; NULL: not compared */
    uint64_t clock_offset, clock_compared;
    bool complete;     /* the last waited-for snapshot was copied whole */
    uint32_t host_enabled; /* source of the enable word's copy */
    int files[2];          /* of the answer */
    void *packet;
    CUstream command_stream; /* made for the first command */
    struct command command;
    struct operation *operators;
};

extern struct agent {
    _Atomic int phase;
    _Atomic uint32_t epoch;
    _Atomic uint32_t twin_wait_ms;
    _Atomic bool ahead; /* the session wants to hear of images that are about to be loaded */
    _Atomic uint64_t launch_id;
    uint32_t snapshot_ms, exit_wait_ms;
    uint32_t features; /* enum egpu_feature */
    uint32_t stack_base; /* numbers of this process's stacks begin here */
    uint32_t sample; /* one launch in so many of each kernel is probed */
    pid_t pid; /* that called cuInit; 0 before */
    struct timespec loaded; /* when the agent came into the process, as files' times are */
    struct egpu_stats_header *stats;
    struct egpu_stats_slot *slots;
    uint64_t *launches; /* EGPU_LAUNCHES_KEPT of them; NULL if there is no room for them */
    pthread_mutex_t resolve_lock, arena_lock;
    pthread_cond_t resolved; /* CLOCK_MONOTONIC, with the resolve lock */
} egpu;

/* process.c */
void egpu_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void egpu_stop(void);
bool egpu_mine(void);
uint64_t egpu_now(void);
int egpu_relax(void);
void egpu_restore(int mode);
int egpu_memory_file(const char *name, uint64_t size);
struct quiet {
    int error, cancel;
};
struct quiet egpu_quiet(void);
void egpu_loud(struct quiet quiet);

/* wire.c */
int egpu_wire_connect(const char *path);
int egpu_wire_hello(void);
int egpu_wire_send(uint32_t kind, uint32_t request, const void *fixed, size_t fixed_size,
                   const char *const *texts, const size_t *sizes, size_t count, int file);
void egpu_wire_try(uint32_t kind, const void *fixed, size_t fixed_size, const char *const *texts,
                   const size_t *sizes, size_t count);
int egpu_wire_receive(unsigned char *packet, size_t *size, int *files, int wait_ms);
void egpu_wire_close(void);
int egpu_wire_descriptor(void);
bool egpu_wire_texts(const unsigned char *packet, size_t fixed_size, const uint32_t *sizes,
                     size_t count, const char **texts);

/* thread.c */
int egpu_thread_start(void);
void egpu_finish(CUcontext only); /* last snapshot; NULL: of every context, then no driver call */

/* table.c */
struct entry *egpu_find(void *handle);
struct entry *egpu_note(void *handle, enum handle_kind kind, struct module *module,
                        const char *name);
struct entry *egpu_learn(void *handle);
struct variant *egpu_variant(struct entry *entry, bool captured);
bool egpu_same_kernel(const struct entry *one, const struct entry *other);
void egpu_drop_module(struct module *module);
void egpu_drop_context(CUcontext context);
void egpu_table_init(void);

/* image.c */
uint64_t egpu_image_size(const void *image, const void **start);
void egpu_image_reference(struct module *module, const void *image);
bool egpu_image_in_file(struct module *module, const void *image);
struct file_mark egpu_file_mark(const struct stat *status);
bool egpu_image_unchanged(const struct module *module);

/* launch.c */
bool egpu_unpacked(const struct twin *twin, void **extra, void **params);

/* module.c */
struct module *egpu_module_of(void *handle);
uint64_t egpu_image_number(void);

/* ahead.c */
void egpu_name_devices(void);
struct module *egpu_ahead(const void *image);
void egpu_ahead_refused(struct module *module);

/* resolve.c, build.c, decide.c */
struct twin *egpu_twin(struct entry *entry, struct variant *variant, uint32_t *reason);
void egpu_reply(const unsigned char *packet, size_t size, int file);
void egpu_forget(struct variant *variant);
void egpu_wake(void);
bool egpu_sound(const unsigned char *image, uint64_t size);
const char *egpu_build(struct variant *variant, struct arena *arena, struct twin **twin);
bool egpu_fits(struct twin *twin, const struct shape *shape, struct egpu_stats_slot *stats,
               uint32_t *reason);
void egpu_set_attribute(struct entry *entry, int attribute, int value);
void egpu_set_cache_config(struct entry *entry, int config);

/* arena.c, snapshot.c */
struct arena *egpu_arena(CUcontext context, bool create);
void egpu_arena_answer(const unsigned char *packet, size_t size, int *files);
int egpu_arena_prepare(struct arena *arena, const char **why);
int egpu_device(CUdevice number, struct device *device);
struct arena *egpu_arenas(void);
uint64_t egpu_arena_tick(uint64_t now);
void egpu_snapshot_request(uint32_t request);
void egpu_snapshot_now(struct arena *arena, uint64_t deadline, bool final);
void egpu_snapshot_final(struct arena *arena);
void egpu_enable_all(uint32_t enabled);
void egpu_commands(struct arena *arena);
void egpu_arena_close(struct arena *arena, bool context_alive);

/* drain.c, flags.c, stamped.c */
bool egpu_ring_fits(const struct egpu_ring *map);
uint64_t egpu_ring_zeros(const struct egpu_ring *map);
const char *egpu_drain_begin(struct arena *arena);
void egpu_drain_turn(struct arena *arena);
void egpu_drain_all(struct arena *arena, uint64_t deadline);

/* allocations.c */
/* Memory whose address, and nothing else, a kernel needs to read it. */
struct allocation {
    uint64_t start, end;
    CUcontext context; /* whose kernels may; NULL: those of all contexts of `devices` */
    uint64_t devices;  /* of pools and mappings: a bit for each that may read it */
    CUmemoryPool pool; /* given by name; NULL: none was */
};

struct allocations_change {
    struct quiet quiet;
    int mode;
};

bool egpu_allocations_wanted(void);
void egpu_allocations_begin(struct arena *arena);
void egpu_allocations_drop(CUcontext context);
void egpu_allocations_add(struct allocation one);
void egpu_allocations_remove(uint64_t start, uint64_t size);
uint64_t egpu_device_bit(int ordinal); /* 0 for one beyond those that are told apart */
/* Between these two the table is the caller's; no probe reads by the old one after the second. */
struct allocations_change egpu_allocations_change(void);
void egpu_allocations_changed(struct allocations_change change);
/* All of it that [start, end) touches, in a change; `keep` may change devices, false removes. */
void egpu_allocations_each(uint64_t start, uint64_t end,
                           bool (*keep)(struct allocation *one, const void *what),
                           const void *what);

/* memory.c */
void egpu_memory_primary_ended(void); /* a device's context, or it is about to be */

/* stacks.c */
void egpu_stacks_begin(void);
uint32_t egpu_stack(void);
void egpu_keep_stack(const struct launch_block *block);

/* host.c */
void egpu_host_call(enum egpu_launch_call call, bool leaving);
void egpu_host_done(uint32_t request);

/* clock.c */
void egpu_clock_begin(struct arena *arena);
void egpu_clock_end(struct arena *arena);

/* commands.c */
void egpu_command(const unsigned char *packet, size_t size, int *files);
void egpu_command_turn(struct arena *arena);
void egpu_commands_answer(void);

/* Whether twin and reason of this variant are final for now. */
static inline bool egpu_settled(const struct variant *variant)
{
    return atomic_load_explicit(&variant->settled, memory_order_acquire) ==
           atomic_load_explicit(&egpu.epoch, memory_order_relaxed) + 1;
}

static inline void egpu_add(uint64_t *counter, uint64_t value)
{
    __atomic_fetch_add(counter, value, __ATOMIC_RELAXED);
}

#endif

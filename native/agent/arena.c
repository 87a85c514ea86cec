/* Arenas: one pair per context, made at its first twin.  Under the arena lock unless said. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"

static _Atomic(struct arena *) arenas; /* records are never freed */
static uint32_t last_number;

struct arena *egpu_arenas(void)
{
    return atomic_load_explicit(&arenas, memory_order_acquire);
}

int egpu_device(CUdevice number, struct device *device)
{
    int major = 0, minor = 0, count = 0;
    memset(device, 0, sizeof *device);
    device->ordinal = (uint32_t)number;
    if (CALL(cuDeviceGetAttribute, &major, CU_DEVICE_COMPUTE_CAPABILITY_MAJOR, number) ||
        CALL(cuDeviceGetAttribute, &minor, CU_DEVICE_COMPUTE_CAPABILITY_MINOR, number) ||
        CALL(cuDeviceGetAttribute, &count, CU_DEVICE_MULTIPROCESSOR_COUNT, number))
        return -1;
    if (CALL(cuDeviceGetName, device->name, (int)sizeof device->name - 1, number) != CUDA_SUCCESS)
        device->name[0] = '\0';
    device->major = (uint32_t)major;
    device->minor = (uint32_t)minor;
    device->sm_count = (uint32_t)count;
    return 0;
}

/* Retaining an active primary context and letting it go again changes nothing. */
static bool is_primary(CUcontext context, CUdevice device)
{
    CUcontext primary = NULL;
    unsigned flags;
    int active = 0;
    if (CALL(cuDevicePrimaryCtxGetState, device, &flags, &active) != CUDA_SUCCESS || !active ||
        CALL(cuDevicePrimaryCtxRetain, &primary, device) != CUDA_SUCCESS)
        return false;
    if (REAL(cuDevicePrimaryCtxRelease_v2) != NULL)
        CALL(cuDevicePrimaryCtxRelease_v2, device);
    else
        CALL(cuDevicePrimaryCtxRelease, device);
    return primary == context;
}

static struct arena *make(CUcontext context)
{
    CUdevice device;
    struct arena *arena = calloc(1, sizeof *arena);
    int mode = egpu_relax();
    if (arena != NULL && CALL(cuCtxGetDevice, &device) == CUDA_SUCCESS &&
        egpu_device(device, &arena->device) == 0) {
        arena->context = context;
        arena->primary = is_primary(context, device);
        arena->number = ++last_number;
        arena->files[0] = arena->files[1] = arena->command.file = -1;
        arena->next = atomic_load(&arenas);
        atomic_store_explicit(&arenas, arena, memory_order_release);
    } else {
        free(arena);
        arena = NULL;
    }
    egpu_restore(mode);
    return arena;
}

static bool ask(struct arena *arena)
{
    const struct device *d = &arena->device;
    const char *name = d->name;
    size_t size = strlen(name);
    struct egpu_open_arena message = {arena->number, d->ordinal, d->major, d->minor, d->sm_count,
                                      (uint32_t)size};
    return egpu_wire_send(EGPU_OPEN_ARENA, arena->number, &message, sizeof message, &name, &size, 1,
                          -1) == 0;
}

/* The record of the current context, made if need be; NULL without memory or device.  open: ask the
 * session for memory, once. */
struct arena *egpu_arena(CUcontext context, bool open)
{
    pthread_mutex_lock(&egpu.arena_lock);
    struct arena *arena = egpu_arenas();
    while (arena != NULL &&
           (arena->context != context || atomic_load(&arena->state) == ARENA_GONE))
        arena = arena->next;
    if (arena == NULL)
        arena = make(context);
    if (open && arena != NULL && atomic_load(&arena->state) == ARENA_NEW)
        atomic_store(&arena->state, ask(arena) ? ARENA_ASKED : ARENA_FAILED);
    pthread_mutex_unlock(&egpu.arena_lock);
    return arena;
}

static void drop_answer(struct arena *arena)
{
    for (int i = 0; i < 2; i++) {
        if (arena->files[i] >= 0)
            close(arena->files[i]);
        arena->files[i] = -1;
    }
    free(arena->packet);
    arena->packet = NULL;
}

/* The session's answer; takes the files. */
void egpu_arena_answer(const unsigned char *packet, size_t size, int *files)
{
    struct egpu_header header;
    memcpy(&header, packet, sizeof header);
    pthread_mutex_lock(&egpu.arena_lock);
    struct arena *arena = egpu_arenas();
    while (arena != NULL &&
           (arena->number != header.request || atomic_load(&arena->state) != ARENA_ASKED))
        arena = arena->next;
    if (arena != NULL) {
        bool good = header.kind == EGPU_ARENA && size >= sizeof header + sizeof(struct egpu_arena) &&
                    files[0] >= 0 && (arena->packet = malloc(size)) != NULL;
        if (good) {
            memcpy(arena->packet, packet, size);
            for (int i = 0; i < 2; i++) {
                arena->files[i] = files[i];
                files[i] = -1;
            }
        } else {
            egpu_say("the session gives no map memory for device %u; running unprobed",
                     arena->device.ordinal);
        }
        atomic_store_explicit(&arena->state, good ? ARENA_ANSWERED : ARENA_FAILED,
                              memory_order_release);
    }
    pthread_mutex_unlock(&egpu.arena_lock);
    egpu_wake();
}

static bool inside(uint64_t offset, uint64_t size, uint64_t whole)
{
    return offset % 8 == 0 && size <= whole && offset <= whole - size;
}

/* Whether a ring in device memory, if it is one, lies where it can. */
static bool records_fit(const struct arena *arena, const struct egpu_ring *r)
{
    uint64_t records = r->count * r->ring_size, device = arena->device_size + arena->device_rings;
    if (r->ring_size == 0)
        return true;
    return egpu_ring_fits(r) &&
           r->host_stride >= EGPU_READER_STRIDE && r->device_stride == EGPU_RING_CONTROL_SIZE &&
           r->device_offset >= EGPU_RING_CONTROL_AT_TAIL &&
           inside(r->host_data, records, arena->host_size) &&
           inside(r->device_data, records, device) &&
           inside(r->host_flags, records / EGPU_RING_GRANULE, arena->host_size) &&
           inside(r->device_flags, records / EGPU_RING_GRANULE, device) &&
           inside(r->host_controls,
                  r->count * EGPU_RING_CONTROL_SIZE + egpu_ring_zeros(r), arena->host_size) &&
           inside(r->host_offset, r->count * r->host_stride, arena->host_size) &&
           inside(r->device_offset - EGPU_RING_CONTROL_AT_TAIL, r->count * r->device_stride,
                  arena->device_size);
}

static bool ring_fits(const struct egpu_ring *r, uint64_t host, uint64_t device)
{
    return r->count >= 1 && r->count <= 1 << 16 && r->host_stride >= 8 && r->device_stride >= 8 &&
           r->host_stride < 1 << 20 && r->device_stride < 1 << 20 && r->host_offset % 8 == 0 &&
           r->device_offset % 8 == 0 && r->host_offset < host && r->device_offset < device &&
           (r->count - 1) * r->host_stride + 8 <= host - r->host_offset &&
           (r->count - 1) * r->device_stride + 8 <= device - r->device_offset;
}

static const char *take_rings(struct arena *arena, const char *text, uint32_t size)
{
    uint64_t total = 0;
    if (size % sizeof(struct egpu_ring) != 0)
        return "malformed ring table";
    arena->ring_count = size / sizeof(struct egpu_ring);
    arena->rings = malloc(size + 1);
    if (arena->rings == NULL)
        return "out of memory";
    memcpy(arena->rings, text, size);
    for (uint32_t i = 0; i < arena->ring_count; i++) {
        if (!ring_fits(&arena->rings[i], arena->host_size, arena->device_size) ||
            !records_fit(arena, &arena->rings[i]))
            return "a ring lies outside the arenas";
        total += arena->rings[i].count;
    }
    arena->positions = calloc(total + 1, sizeof *arena->positions);
    return arena->positions != NULL ? NULL : "out of memory";
}

static uint64_t host_word(const struct arena *arena, unsigned offset)
{
    uint64_t value;
    memcpy(&value, arena->host + offset, sizeof value);
    return value;
}

static const char *map_host(struct arena *arena)
{
    struct stat status;
    uint32_t version;
    if (arena->host_size < EGPU_HOST_CONTROL_SIZE || fstat(arena->files[0], &status) != 0 ||
        (uint64_t)status.st_size < arena->host_size)
        return "the host arena is cut short";
    void *memory =
        mmap(NULL, arena->host_size, PROT_READ | PROT_WRITE, MAP_SHARED, arena->files[0], 0);
    if (memory == MAP_FAILED)
        return "the host arena cannot be mapped";
    arena->host = memory;
    memcpy(&version, arena->host + EGPU_HOST_CONTROL_AT_VERSION, sizeof version);
    arena->snapshot_offset = host_word(arena, EGPU_HOST_CONTROL_AT_SNAPSHOT);
    if (host_word(arena, EGPU_HOST_CONTROL_AT_MAGIC) != EGPU_HOST_MAGIC ||
        version != EGPU_LAYOUT_VERSION || arena->snapshot_offset > arena->host_size ||
        arena->device_size > arena->host_size - arena->snapshot_offset ||
        arena->device_size > host_word(arena, EGPU_HOST_CONTROL_AT_SNAPSHOT_SIZE))
        return "the host arena's control page makes no sense";
    return NULL;
}

static bool copy(struct arena *arena, uint64_t offset, const void *from, uint64_t size)
{
    return CALL(cuMemcpyHtoDAsync_v2, arena->address + offset, from, size, arena->stream) ==
           CUDA_SUCCESS;
}

static const char *write_chunks(struct arena *arena, uint64_t size)
{
    struct stat status;
    const char *failure = NULL;
    if (size == 0)
        return NULL;
    if (arena->files[1] < 0 || fstat(arena->files[1], &status) != 0 ||
        (uint64_t)status.st_size < size)
        return "the initial map contents are cut short";
    unsigned char *bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, arena->files[1], 0);
    if (bytes == MAP_FAILED)
        return "the initial map contents cannot be mapped";
    for (uint64_t at = 0; failure == NULL && at < size;) {
        struct egpu_init_chunk chunk;
        if (size - at < sizeof chunk) {
            failure = "malformed initial map contents";
            break;
        }
        memcpy(&chunk, bytes + at, sizeof chunk);
        at += sizeof chunk;
        if (chunk.size > size - at || chunk.offset > arena->device_size ||
            chunk.size > arena->device_size - chunk.offset)
            failure = "initial map contents lie outside the arena";
        else if (chunk.size != 0 && !copy(arena, chunk.offset, bytes + at, chunk.size))
            failure = "initial map contents cannot be copied";
        at += (chunk.size + 7) & ~7ull;
    }
    CALL(cuStreamSynchronize, arena->stream); /* before the source is unmapped */
    munmap(bytes, size);
    return failure;
}

/* The name of the process, as Linux has it. */
static void read_comm(char comm[16])
{
    int file = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
    ssize_t size = file >= 0 ? read(file, comm, 15) : -1;
    if (size > 0 && comm[size - 1] == '\n')
        comm[size - 1] = '\0';
    if (file >= 0)
        close(file);
}

static const char *write_header(struct arena *arena)
{
    unsigned char header[128] = {0};
    uint64_t magic = EGPU_ARENA_MAGIC;
    uint32_t version = EGPU_LAYOUT_VERSION, pid = (uint32_t)egpu.pid;
    arena->host_enabled = 1;
    memcpy(header + EGPU_ARENA_HEADER_AT_MAGIC, &magic, sizeof magic);
    memcpy(header + EGPU_ARENA_HEADER_AT_VERSION, &version, sizeof version);
    memcpy(header + EGPU_ARENA_HEADER_AT_SM_SLOTS, &arena->sm_slots, sizeof arena->sm_slots);
    memcpy(header + EGPU_ARENA_HEADER_AT_SIZE, &arena->device_size, sizeof arena->device_size);
    uint32_t uid = getuid(), gid = getgid();
    memcpy(header + EGPU_ARENA_HEADER_AT_PID, &pid, sizeof pid);
    memcpy(header + EGPU_ARENA_HEADER_AT_UID, &uid, sizeof uid);
    memcpy(header + EGPU_ARENA_HEADER_AT_GID, &gid, sizeof gid);
    read_comm((char *)header + EGPU_ARENA_HEADER_AT_COMM);
    egpu_clock_begin(arena);
    memcpy(header + EGPU_ARENA_HEADER_AT_CLOCK, &arena->clock_offset, sizeof arena->clock_offset);
    memcpy(header + EGPU_ARENA_HEADER_AT_ENABLED, &arena->host_enabled, sizeof arena->host_enabled);
    if (!copy(arena, 0, header, sizeof header) ||
        CALL(cuStreamSynchronize, arena->stream) != CUDA_SUCCESS)
        return "the device arena cannot be written";
    return NULL;
}

static const char *allocate(struct arena *arena)
{
    if (CALL(cuStreamCreate, &arena->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return "no stream of its own";
    if (CALL(cuMemHostRegister_v2, arena->host, arena->host_size,
             CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP) != CUDA_SUCCESS)
        return "the host arena cannot be pinned";
    if (CALL(cuMemHostGetDevicePointer_v2, &arena->host_address, arena->host, 0) != CUDA_SUCCESS)
        return "the host arena has no device address";
    uint64_t size = arena->device_size + arena->device_rings;
    if (CALL(cuMemAlloc_v2, &arena->address, size) != CUDA_SUCCESS) {
        arena->address = 0;
        return "out of device memory for the maps";
    }
    if (CALL(cuMemsetD8Async, arena->address, 0, size, arena->stream) != CUDA_SUCCESS)
        return "the device arena cannot be cleared";
    return arena->device_rings != 0 ? egpu_drain_begin(arena) : NULL;
}

static const char *set_up(struct arena *arena)
{
    struct egpu_arena answer;
    const char *rings, *failure;
    memcpy(&answer, (char *)arena->packet + sizeof(struct egpu_header), sizeof answer);
    if (!egpu_wire_texts(arena->packet, sizeof answer, &answer.rings_size, 1, &rings) ||
        answer.device_size < EGPU_ARENA_HEADER_SIZE || answer.device_rings >= 1ull << 48)
        return "malformed answer about map memory";
    arena->device_size = answer.device_size;
    arena->device_rings = answer.device_rings;
    arena->host_size = answer.host_size;
    arena->sm_slots = answer.sm_slots;
    arena->allocations = answer.allocations;
    if (answer.allocations != 0 &&
        (answer.allocations > answer.device_size ||
         answer.device_size - answer.allocations <
             EGPU_ALLOCATIONS_HEADER + 2 * EGPU_ALLOCATIONS_LIMIT * EGPU_ALLOCATIONS_ROW))
        return "the table of allocations lies outside the arena";
    if ((failure = take_rings(arena, rings, answer.rings_size)) != NULL ||
        (failure = map_host(arena)) != NULL || (failure = allocate(arena)) != NULL ||
        (failure = write_chunks(arena, answer.init_size)) != NULL)
        return failure;
    return write_header(arena);
}

/* Not under the arena lock.  On the launching thread, in relaxed mode; 0 when ready. */
int egpu_arena_prepare(struct arena *arena, const char **why)
{
    bool prepared = false;
    pthread_mutex_lock(&egpu.arena_lock);
    if (atomic_load(&arena->state) == ARENA_ANSWERED) {
        const char *failure = set_up(arena);
        drop_answer(arena);
        arena->snapshot_due = egpu_now() + egpu.snapshot_ms * 1000000ull;
        if (failure != NULL) {
            egpu_say("device %u: %s; running unprobed", arena->device.ordinal, failure);
            egpu_arena_close(arena, true);
        }
        atomic_store_explicit(&arena->state, failure == NULL ? ARENA_READY : ARENA_FAILED,
                              memory_order_release);
        prepared = failure == NULL;
    }
    int state = atomic_load(&arena->state);
    pthread_mutex_unlock(&egpu.arena_lock);
    if (prepared)
        egpu_allocations_begin(arena);
    if (state != ARENA_READY)
        *why = "there is no map memory for this context";
    return state == ARENA_READY ? 0 : -1;
}

/* Gives back what the driver holds; the context must be current if it is alive.  The mapping stays:
 * a probe of a captured launch may still have its address. */
void egpu_arena_close(struct arena *arena, bool context_alive)
{
    if (context_alive && arena->address != 0)
        CALL(cuMemFree_v2, arena->address);
    if (context_alive && arena->host_address != 0)
        CALL(cuMemHostUnregister, arena->host);
    arena->address = arena->host_address = 0;
    egpu_snapshot_final(arena);
}

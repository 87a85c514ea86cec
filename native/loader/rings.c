/* Records: BPF ring buffers and perf buffers as libbpf maps them, and bpftime's polling function.
 *
 * The memory behind a mapped ring is the map's own memfd.  A thread fetches what the session has
 * and writes it there as Linux would: a ring buffer is mapped with its data twice in a row, so each
 * byte is written in both places. */
#include <errno.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "loader.h"

enum { PERIOD_NS = 2000000, MOST_AT_ONCE = 1 << 20, RING_HEADER = 8, PERF_HEADER = 12 };

struct ring {
    struct ring *next;
    const struct object *map; /* NULL: nobody has said yet whose records these are */
    int file, event; /* duplicates that nobody else closes */
    unsigned char *memory;
    size_t size; /* bytes of data; 0 until it is mapped */
    bool perf;
    struct answer waiting; /* fetched, not yet written because there was no room */
    size_t written;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ring *rings;
static bool running;

static size_t page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static _Atomic uint64_t *word(const struct ring *ring, size_t offset)
{
    return (_Atomic uint64_t *)(void *)(ring->memory + offset);
}

static void put(const struct ring *ring, uint64_t position, const void *bytes, size_t size)
{
    unsigned char *data = ring->memory + (ring->perf ? page() : 2 * page());
    const unsigned char *from = bytes;
    for (size_t i = 0; i < size; i++) {
        size_t at = (size_t)((position + i) % ring->size);
        data[at] = from[i];
        if (!ring->perf)
            data[at + ring->size] = from[i];
    }
}

static bool write_record(const struct ring *ring, const void *bytes, uint32_t size)
{
    size_t consumer = ring->perf ? offsetof(struct perf_event_mmap_page, data_tail) : 0;
    size_t producer = ring->perf ? offsetof(struct perf_event_mmap_page, data_head) : page();
    size_t header = ring->perf ? PERF_HEADER : RING_HEADER;
    size_t whole = (header + size + 7) & ~(size_t)7;
    uint64_t head = atomic_load_explicit(word(ring, producer), memory_order_relaxed);
    uint64_t tail = atomic_load_explicit(word(ring, consumer), memory_order_acquire);
    if (whole > ring->size - (head - tail))
        return false;
    if (ring->perf) {
        struct perf_event_header row = {PERF_RECORD_SAMPLE, 0, (uint16_t)whole};
        uint32_t raw = (uint32_t)(whole - PERF_HEADER); /* Linux counts the padding, too */
        put(ring, head, &row, sizeof row);
        put(ring, head + sizeof row, &raw, sizeof raw);
    } else {
        uint64_t length = size; /* neither busy nor discarded */
        put(ring, head, &length, sizeof length);
    }
    put(ring, head + header, bytes, size);
    atomic_store_explicit(word(ring, producer), head + whole, memory_order_release);
    return true;
}

/* The next record of an answer at `at`: its bytes, NULL at the end. */
static const unsigned char *record_at(const struct answer *answer, size_t at, uint64_t *size)
{
    if (answer->size < 8 || at > answer->size - 8)
        return NULL;
    const unsigned char *row = (const unsigned char *)answer->bytes + at;
    memcpy(size, row, sizeof *size);
    return *size <= answer->size - at - 8 ? row + 8 : NULL;
}

static int fetch(const struct object *map, struct answer *answer)
{
    struct egpu_loader_request request = {.op = EGPU_OP_RECORDS, .object = map->number,
                                          .a = MOST_AT_ONCE};
    return ask(&request, NULL, NULL, 0, answer);
}

static void fill(struct ring *ring)
{
    bool wrote = false;
    if (ring->waiting.bytes == NULL) {
        ring->written = 0;
        if (fetch(ring->map, &ring->waiting) != 0 || ring->waiting.size == 0) {
            free(ring->waiting.bytes);
            ring->waiting.bytes = NULL;
            return;
        }
    }
    const unsigned char *bytes;
    uint64_t size;
    while ((bytes = record_at(&ring->waiting, ring->written, &size)) != NULL) {
        if (!write_record(ring, bytes, (uint32_t)size))
            break;
        wrote = true;
        ring->written += 8 + ((size + 7) & ~(uint64_t)7);
    }
    if (bytes == NULL) {
        free(ring->waiting.bytes);
        ring->waiting.bytes = NULL;
    }
    if (wrote && eventfd_write(ring->event, 1) != 0)
        say("a reader of %s cannot be woken", ring->map->name);
}

static void *serve(void *nothing)
{
    (void)nothing;
    for (;;) {
        const struct timespec period = {0, PERIOD_NS};
        nanosleep(&period, NULL);
        pthread_mutex_lock(&lock);
        for (struct ring *ring = rings; ring != NULL; ring = ring->next)
            if (ring->memory != NULL && ring->map != NULL)
                fill(ring);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

static void start(void)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the program's */
    running = running || pthread_create(&thread, NULL, serve, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Under the lock. */
static struct ring *ring_of(struct object *object, const struct object *map)
{
    if (object->ring == NULL) {
        struct ring *ring = calloc(1, sizeof *ring);
        if (ring == NULL)
            return NULL;
        ring->map = map;
        ring->file = -1;
        ring->event = move_up(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        ring->next = rings;
        object->ring = rings = ring;
    }
    return object->ring;
}

/* A perf buffer gets the records of one map; those of all SMs go to the first buffer there is. */
int perf_attach(struct object *map, struct object *buffer)
{
    pthread_mutex_lock(&lock);
    struct ring *ring = ring_of(buffer, map);
    bool first = true;
    for (const struct ring *other = rings; ring != NULL && other != NULL; other = other->next)
        first = first && (other == ring || other->map != map);
    if (ring != NULL)
        ring->map = first ? map : NULL;
    pthread_mutex_unlock(&lock);
    return ring == NULL ? -ENOMEM : 0;
}

static bool grow(struct ring *ring, int fd, size_t data, bool perf)
{
    size_t total = perf ? page() + data : 2 * page() + 2 * data;
    ring->file = move_up(dup(fd));
    if (ring->file < 0 || ftruncate(ring->file, (off_t)total) != 0)
        return false;
    /* Not by mmap, which is ours and would come back here. */
    void *memory = (void *)syscall(SYS_mmap, NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED,
                                   ring->file, 0L);
    if (memory == MAP_FAILED)
        return false;
    ring->memory = memory;
    ring->perf = perf;
    ring->size = data;
    return true;
}

void ring_mapped(int fd, struct object *object, size_t length)
{
    bool perf = object->kind == OBJECT_PERF;
    if (perf ? !object->is_buffer : object->type != BPF_MAP_TYPE_RINGBUF)
        return;
    size_t data = perf ? length - page() : object->max_entries;
    pthread_mutex_lock(&lock);
    struct ring *ring = ring_of(object, perf ? NULL : object);
    if (ring != NULL && ring->memory == NULL && (!perf || length > page())) {
        if (!grow(ring, fd, data, perf))
            say("no memory for the records of %s", object->name);
        start();
    }
    pthread_mutex_unlock(&lock);
}

int ring_event(struct object *object)
{
    if (object->kind == OBJECT_PERF ? !object->is_buffer : object->type != BPF_MAP_TYPE_RINGBUF)
        return -1;
    pthread_mutex_lock(&lock);
    const struct ring *ring = ring_of(object, object->kind == OBJECT_PERF ? NULL : object);
    pthread_mutex_unlock(&lock);
    return ring == NULL ? -1 : ring->event;
}

/* bpftime's own name, which its loader programs look up: calls back for every record there is.
 * 0, or a negative error number. */
__attribute__((visibility("default"))) int
bpftime_syscall_server__poll_gpu_ringbuf_map(int map, void *context,
                                             void (*callback)(const void *, uint64_t, void *));

int bpftime_syscall_server__poll_gpu_ringbuf_map(int map, void *context,
                                                 void (*callback)(const void *, uint64_t, void *))
{
    const struct object *object = object_of(map);
    struct answer answer;
    if (object == NULL || object->kind != OBJECT_MAP || callback == NULL)
        return -EINVAL;
    int error = fetch(object, &answer);
    uint64_t size;
    const unsigned char *bytes;
    for (size_t at = 0; error == 0 && (bytes = record_at(&answer, at, &size)) != NULL;
         at += 8 + ((size + 7) & ~(uint64_t)7))
        callback(bytes, size, context);
    free(answer.bytes);
    return error;
}

/* A loader as people write them with libbpf: opens, loads and attaches an object, shows its maps.
 *
 *     loader OBJECT [--set MAP KEY VALUE]... [--later MAP KEY VALUE]... [--gpu-ring MAP]
 *                   [--ring MAP] [--perf MAP] [--delete MAP KEY] [--fill MAP COUNT VALUE]
 *
 * KEY and VALUE are numbers of the map's sizes.  --set writes before, --later after attaching,
 * --during (like --later) as soon as key 0 of the first map so named has changed; --delete deletes
 * just before that, and again after.
 * Attaches all but uprobes, with --uprobe PATH:OFFSET these too; with --no-attach it ends instead,
 * with --end-at PIPE as soon as it can read a byte of it, before it would show anything.
 * Runs until SIGINT; then prints each map as `MAP KEY VALUE` in hexadecimal bytes, each record as
 * `MAP record VALUE` when it comes.  It knows nothing of egpu.  The prototypes stand here so that
 * libbpf's headers are not needed. */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct bpf_object;
struct bpf_program;
struct bpf_map;
struct bpf_link;
struct ring_buffer;
struct perf_buffer;
struct bpf_object *bpf_object__open_file(const char *path, const void *options);
int bpf_object__load(struct bpf_object *object);
struct bpf_program *bpf_object__next_program(const struct bpf_object *object,
                                             struct bpf_program *before);
const char *bpf_program__section_name(const struct bpf_program *program);
struct bpf_link *bpf_program__attach(const struct bpf_program *program);
struct bpf_link *bpf_program__attach_uprobe(const struct bpf_program *program, bool leaving,
                                            int pid, const char *path, size_t offset);
struct bpf_map *bpf_object__next_map(const struct bpf_object *object, const struct bpf_map *before);
const char *bpf_map__name(const struct bpf_map *map);
int bpf_map__fd(const struct bpf_map *map);
int bpf_map__type(const struct bpf_map *map);
uint32_t bpf_map__key_size(const struct bpf_map *map);
uint32_t bpf_map__value_size(const struct bpf_map *map);
int bpf_map_update_elem(int fd, const void *key, const void *value, uint64_t flags);
int bpf_map_delete_elem(int fd, const void *key);
int bpf_map_lookup_elem(int fd, const void *key, void *value);
int bpf_map_get_next_key(int fd, const void *key, void *next);
struct ring_buffer *ring_buffer__new(int fd, int (*callback)(void *, void *, size_t), void *context,
                                     const void *options);
int ring_buffer__poll(struct ring_buffer *ring, int timeout_ms);
struct perf_buffer *perf_buffer__new(int fd, size_t pages,
                                     void (*sample)(void *, int, void *, uint32_t),
                                     void (*lost)(void *, int, uint64_t), void *context,
                                     const void *options);
int perf_buffer__poll(struct perf_buffer *buffer, int timeout_ms);
int libbpf_num_possible_cpus(void);
typedef int (*poll_ring)(int map, void *context, void (*callback)(const void *, uint64_t, void *));

enum { PERCPU_HASH = 5, PERCPU_ARRAY = 6, LRU_PERCPU_HASH = 10, PER_THREAD = 1502,
       PER_THREAD_HOST = 1512 };

static volatile sig_atomic_t ended;

static void end(int number)
{
    (void)number;
    ended = 1;
}

static void show(const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        printf("%02x", ((const unsigned char *)bytes)[i]);
}

static void show_record(const char *name, const void *data, size_t size)
{
    printf("%s record ", name);
    show(data, size);
    printf("\n");
    fflush(stdout);
}

static void gpu_record(const void *data, uint64_t size, void *name)
{
    show_record(name, data, size);
}

static int ring_record(void *name, void *data, size_t size)
{
    show_record(name, data, size);
    return 0;
}

static void perf_record(void *name, int cpu, void *data, uint32_t size)
{
    (void)cpu;
    show_record(name, data, size);
}

static struct bpf_map *map_named(const struct bpf_object *object, const char *name)
{
    struct bpf_map *map = NULL;
    while ((map = bpf_object__next_map(object, map)) != NULL)
        if (strcmp(bpf_map__name(map), name) == 0)
            return map;
    fprintf(stderr, "loader: no map %s\n", name);
    exit(1);
}

static void change(const struct bpf_object *object, char **words, bool removing)
{
    const struct bpf_map *map = map_named(object, words[0]);
    unsigned char key[64] = {0}, value[4096] = {0};
    uint64_t number = strtoull(words[1], NULL, 0);
    int error;
    memcpy(key, &number, sizeof number);
    if (removing) {
        error = bpf_map_delete_elem(bpf_map__fd(map), key);
    } else {
        __extension__ unsigned __int128 wide = 0; /* hexadecimal digits of a whole value */
        bool is_hex = strncmp(words[2], "0x", 2) == 0;
        for (const char *at = words[2] + 2; is_hex && *at != '\0'; at++)
            wide = wide << 4 | (unsigned)(*at <= '9' ? *at - '0' : *at - 'a' + 10);
        if (!is_hex)
            wide = strtoull(words[2], NULL, 0);
        memcpy(value, &wide, sizeof wide);
        error = bpf_map_update_elem(bpf_map__fd(map), key, value, 0);
    }
    if (error != 0) {
        printf("%s %s: error %d\n", words[0], words[1], errno);
        fflush(stdout);
    }
}

/* Elements 0 to words[1] - 1 of an array. */
static void fill(const struct bpf_object *object, char **words)
{
    int fd = bpf_map__fd(map_named(object, words[0]));
    uint64_t value[512] = {strtoull(words[2], NULL, 0)};
    for (uint32_t key = 0; key < strtoul(words[1], NULL, 0); key++)
        if (bpf_map_update_elem(fd, &key, value, 0) != 0)
            exit(1);
}

static const char *ring_of(int count, char **words, const char *option)
{
    for (int i = 2; i + 1 < count; i++)
        if (strcmp(words[i], option) == 0)
            return words[i + 1];
    return NULL;
}

/* At "path:offset"; at what a function leaves if its section says uretprobe. */
static bool attach_uprobe(const struct bpf_program *program, const char *place, const char *colon)
{
    char path[4096];
    if (colon == NULL || (size_t)(colon - place) >= sizeof path)
        return false;
    memcpy(path, place, (size_t)(colon - place));
    path[colon - place] = '\0';
    bool leaving = strcmp(bpf_program__section_name(program), "uretprobe") == 0;
    return bpf_program__attach_uprobe(program, leaving, -1, path, strtoull(colon + 1, NULL, 0)) !=
           NULL;
}

/* The value at key 0. */
static uint64_t first_of(const struct bpf_object *object, const char *name)
{
    uint32_t key = 0;
    uint64_t value[512] = {0};
    bpf_map_lookup_elem(bpf_map__fd(map_named(object, name)), &key, value);
    return value[0];
}

static size_t values_of(const struct bpf_map *map)
{
    const char *count = getenv("BPFTIME_MAP_GPU_THREAD_COUNT");
    size_t size = bpf_map__value_size(map);
    switch (bpf_map__type(map)) {
    case PER_THREAD:
    case PER_THREAD_HOST:
        return size * (count == NULL ? 1024 : strtoull(count, NULL, 10));
    case PERCPU_ARRAY:
    case PERCPU_HASH:
    case LRU_PERCPU_HASH:
        return (size + 7) / 8 * 8 * (size_t)libbpf_num_possible_cpus();
    default:
        return size;
    }
}

static void show_map(const struct bpf_map *map)
{
    /* One buffer for the key and the next, as many loaders have it. */
    unsigned char key[256];
    size_t size = values_of(map);
    unsigned char *value = malloc(size + 8);
    int fd = bpf_map__fd(map);
    if (value == NULL)
        exit(1);
    for (int error = bpf_map_get_next_key(fd, NULL, key); error == 0;
         error = bpf_map_get_next_key(fd, key, key)) {
        memset(value, 0xa5, size + 8);
        if (bpf_map_lookup_elem(fd, key, value) != 0)
            continue;
        for (size_t i = 0; i < 8; i++)
            if (value[size + i] != 0xa5) /* more than the map's values are large */
                abort();
        printf("%s ", bpf_map__name(map));
        show(key, bpf_map__key_size(map));
        printf(" ");
        show(value, size);
        printf("\n");
    }
    free(value);
}

static bool flag(int count, char **words, const char *name)
{
    for (int i = 2; i < count; i++)
        if (strcmp(words[i], name) == 0)
            return true;
    return false;
}

static void changes(const struct bpf_object *object, int count, char **words, const char *option)
{
    for (int i = 2; i < count; i++)
        if (strcmp(words[i], "--fill") == 0 && strcmp(option, "--set") == 0)
            fill(object, words + i + 1);
        else if (strcmp(words[i], option) == 0)
            change(object, words + i + 1, strcmp(option, "--delete") == 0);
}

int main(int count, char **words)
{
    if (count < 2)
        return 2;
    struct sigaction action = {.sa_handler = end};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct bpf_object *object = bpf_object__open_file(words[1], NULL);
    if (object == NULL || bpf_object__load(object) != 0) {
        fprintf(stderr, "loader: %s cannot be loaded\n", words[1]);
        return 1;
    }
    changes(object, count, words, "--set");
    struct bpf_program *program = NULL;
    while ((program = bpf_object__next_program(object, program)) != NULL) {
        if (flag(count, words, "--no-attach"))
            return 0;
        if (strncmp(bpf_program__section_name(program), "u", 1) == 0) {
            const char *path = ring_of(count, words, "--uprobe");
            const char *offset = path == NULL ? NULL : strrchr(path, ':');
            if (path != NULL && !attach_uprobe(program, path, offset))
                return 1;
            continue;
        }
        if (bpf_program__attach(program) == NULL) {
            fprintf(stderr, "loader: %s cannot be attached\n", bpf_program__section_name(program));
            return 1;
        }
    }
    changes(object, count, words, "--later");
    const char *pipe = ring_of(count, words, "--end-at");
    if (pipe != NULL) {
        FILE *told = fopen(pipe, "r");
        return told == NULL || fgetc(told) == EOF;
    }
    const char *gpu = ring_of(count, words, "--gpu-ring");
    const char *ring = ring_of(count, words, "--ring"), *perf = ring_of(count, words, "--perf");
    poll_ring poll_gpu =
        (poll_ring)(uintptr_t)dlsym(RTLD_DEFAULT, "bpftime_syscall_server__poll_gpu_ringbuf_map");
    struct ring_buffer *records =
        ring == NULL ? NULL
                     : ring_buffer__new(bpf_map__fd(map_named(object, ring)), ring_record,
                                        (void *)(uintptr_t)ring, NULL);
    struct perf_buffer *samples =
        perf == NULL ? NULL
                     : perf_buffer__new(bpf_map__fd(map_named(object, perf)), 8, perf_record, NULL,
                                        (void *)(uintptr_t)perf, NULL);
    if ((ring != NULL && records == NULL) || (perf != NULL && samples == NULL))
        return 1;
    const char *watched = ring_of(count, words, "--during");
    uint64_t before = watched == NULL ? 0 : first_of(object, watched);
    bool during = watched == NULL;
    while (!ended) {
        if (!during && first_of(object, watched) != before) {
            during = true;
            changes(object, count, words, "--delete");
            changes(object, count, words, "--during");
            changes(object, count, words, "--delete");
        }
        if (gpu != NULL && (poll_gpu == NULL || poll_gpu(bpf_map__fd(map_named(object, gpu)),
                                                         (void *)(uintptr_t)gpu, gpu_record) < 0))
            return 1;
        if (records != NULL)
            ring_buffer__poll(records, 50);
        else if (samples != NULL)
            perf_buffer__poll(samples, 50);
        else
            usleep(50000);
    }
    /* What came after it looked last, before it was told to end. */
    if (gpu != NULL &&
        poll_gpu(bpf_map__fd(map_named(object, gpu)), (void *)(uintptr_t)gpu, gpu_record) < 0)
        return 1;
    if (records != NULL)
        ring_buffer__poll(records, 0);
    if (samples != NULL)
        perf_buffer__poll(samples, 0);
    const struct bpf_map *map = NULL;
    while ((map = bpf_object__next_map(object, map)) != NULL)
        if ((gpu == NULL || strcmp(gpu, bpf_map__name(map)) != 0) &&
            (ring == NULL || strcmp(ring, bpf_map__name(map)) != 0) &&
            (perf == NULL || strcmp(perf, bpf_map__name(map)) != 0))
            show_map(map);
    fflush(stdout);
    return 0;
}

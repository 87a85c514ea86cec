/* Launches kernels of a PTX file through the CUDA driver API and says how long each takes, as it goes.
 *
 *     launcher FILE.ptx PLAN
 *
 * PLAN is a text of lines, in microseconds and bytes:
 *
 *     memory device|host BYTES               what the kernels' pointers lie in (first line)
 *     budget MICROSECONDS                    fewer launches where a row would take longer
 *     each KERNEL BLOCKS THREADS N LAUNCHES PAUSE    median of launches timed one by one
 *     batch KERNEL BLOCKS THREADS N LAUNCHES PAUSE   best of three rounds, back to back
 *     burst KERNEL BLOCKS THREADS N LAUNCHES PAUSE   as each; "begun": when each began (CLOCK_MONOTONIC)
 *     copy NAME 1 1 BYTES LAUNCHES 0         the same memory copied from the device to the host
 *
 * A kernel gets three pointers, thirds of the memory, and N.  Each row is one JSON object on a line,
 * written when it is known; "launches" counts every launch of it.  Works on any device, the simulated
 * one included.  Exit code 0, 1 on a driver error, 2 for wrong usage. */
#define _GNU_SOURCE

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct handle *CUcontext, *CUmodule, *CUfunction, *CUstream, *CUevent;

CUresult cuInit(unsigned flags);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size);
CUresult cuMemHostAlloc(void **memory, size_t size, unsigned flags);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *memory, unsigned flags);
CUresult cuMemsetD8_v2(CUdeviceptr at, unsigned char value, size_t count);
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream);
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, CUstream stream,
                        void **parameters, void **extra);
CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent stop);

enum { ROUNDS = 3, MOST_LAUNCHES = 4096, WARM_UP = 2, HOST_MAPPED = 2 };

static void check(CUresult result, const char *call)
{
    if (result == 0)
        return;
    fprintf(stderr, "launcher: %s: error %d\n", call, result);
    exit(1);
}
#define CHECK(call) check((call), #call)

struct row {
    char how[8], name[64];
    unsigned blocks, threads;
    int launches, pause;
    unsigned long n;
};

static struct {
    CUmodule module;
    CUdeviceptr memory;
    void *host; /* for copies */
    size_t size;
    double budget;
    CUevent start, stop;
} state = {.budget = 1e12};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e6 * (double)time.tv_sec + (double)time.tv_nsec / 1e3;
}

static void rest(int microseconds)
{
    struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000L};
    nanosleep(&time, NULL);
}

static void take_memory(const char *where, size_t size)
{
    state.size = size;
    if (strcmp(where, "host") == 0) {
        CHECK(cuMemHostAlloc(&state.host, size, HOST_MAPPED));
        CHECK(cuMemHostGetDevicePointer_v2(&state.memory, state.host, 0));
        memset(state.host, 0, size);
        return;
    }
    CHECK(cuMemAlloc_v2(&state.memory, size));
    CHECK(cuMemsetD8_v2(state.memory, 0, size));
}

static void launch(const struct row *row, CUfunction function)
{
    CUdeviceptr part = state.size / 3 / 16 * 16, pointers[3];
    unsigned n = (unsigned)row->n;
    void *parameters[] = {&pointers[0], &pointers[1], &pointers[2], &n};

    for (int i = 0; i < 3; i++)
        pointers[i] = state.memory + (CUdeviceptr)i * part;
    CHECK(cuLaunchKernel(function, row->blocks, 1, 1, row->threads, 1, 1, 0, NULL, parameters, NULL));
}

/* Microseconds of one launch or copy, on the device's clock. */
static double time_one(const struct row *row, CUfunction function, CUdeviceptr from)
{
    float milliseconds;

    CHECK(cuEventRecord(state.start, NULL));
    if (function != NULL)
        launch(row, function);
    else
        CHECK(cuMemcpyDtoHAsync_v2(state.host, from, row->n, NULL));
    CHECK(cuEventRecord(state.stop, NULL));
    CHECK(cuEventSynchronize(state.stop));
    CHECK(cuEventElapsedTime(&milliseconds, state.start, state.stop));
    return 1e3 * (double)milliseconds;
}

static int within_budget(const struct row *row, double each)
{
    double most = state.budget / (each + row->pause + 1e-3);
    return most >= row->launches ? row->launches : most < 1 ? 1 : (int)most;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void each(const struct row *row, CUfunction function)
{
    static double times[MOST_LAUNCHES];
    CUdeviceptr from = 0;
    double warm = 0, began;
    int launches, done;

    if (function == NULL)
        CHECK(cuMemAlloc_v2(&from, row->n));
    for (int i = 0; i < WARM_UP; i++) {
        began = now();
        time_one(row, function, from);
        warm = now() - began;
        rest(row->pause);
    }
    launches = within_budget(row, warm);
    for (done = 0; done < launches && done < MOST_LAUNCHES; done++) {
        times[done] = time_one(row, function, from);
        rest(row->pause);
    }
    qsort(times, (size_t)done, sizeof(*times), by_size);
    printf("{\"kernel\": \"%s\", \"threads\": %lu, \"launches\": %d, \"us\": %.3f, \"least_us\": %.3f}\n",
           row->name, (unsigned long)row->blocks * row->threads, done + WARM_UP, times[done / 2],
           times[0]);
}

static double time_round(const struct row *row, CUfunction function, int launches)
{
    double began = now();
    for (int i = 0; i < launches; i++)
        launch(row, function);
    CHECK(cuCtxSynchronize());
    return (now() - began) / launches;
}

static void batch(const struct row *row, CUfunction function)
{
    double least = 1e30, warm = 0;
    int launches;

    for (int i = 0; i < WARM_UP; i++)
        warm = time_round(row, function, 1);
    launches = within_budget(row, ROUNDS * warm);
    for (int round = 0; round < ROUNDS; round++) {
        rest(row->pause);
        double took = time_round(row, function, launches);
        least = took < least ? took : least;
    }
    printf("{\"kernel\": \"%s\", \"threads\": %lu, \"launches\": %d, \"us\": %.3f}\n", row->name,
           (unsigned long)row->blocks * row->threads, ROUNDS * launches + WARM_UP, least);
}

static void burst(const struct row *row, CUfunction function)
{
    printf("{\"kernel\": \"%s\", \"threads\": %lu, \"launches\": %d, \"begun\": [", row->name,
           (unsigned long)row->blocks * row->threads, row->launches);
    for (int i = 0; i < row->launches; i++) {
        printf("%s%.1f", i > 0 ? ", " : "", now());
        launch(row, function);
        CHECK(cuCtxSynchronize());
        rest(row->pause);
    }
    printf("], \"ended\": %.1f}\n", now());
}

static int run(const struct row *row)
{
    CUfunction function = NULL;

    if (strcmp(row->how, "copy") != 0)
        CHECK(cuModuleGetFunction(&function, state.module, row->name));
    else if (state.host == NULL)
        return -1;
    if (strcmp(row->how, "batch") == 0)
        batch(row, function);
    else if (strcmp(row->how, "burst") == 0)
        burst(row, function);
    else
        each(row, function);
    return fflush(stdout);
}

static int follow(FILE *plan)
{
    char line[256], where[8];
    size_t size;

    while (fgets(line, sizeof(line), plan) != NULL) {
        struct row row = {0};
        if (sscanf(line, "memory %7s %zu", where, &size) == 2)
            take_memory(where, size);
        else if (sscanf(line, "budget %lf", &state.budget) == 1)
            continue;
        else if (sscanf(line, "%7s %63s %u %u %lu %d %d", row.how, row.name, &row.blocks,
                        &row.threads, &row.n, &row.launches, &row.pause) != 7 || run(&row) != 0) {
            fprintf(stderr, "launcher: not understood: %s", line);
            return 2;
        }
    }
    return 0;
}

static char *whole(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t size = 0;

    if (file == NULL || getdelim(&text, &size, '\0', file) < 0) {
        fprintf(stderr, "launcher: cannot read %s\n", path);
        exit(2);
    }
    fclose(file);
    return text;
}

int main(int argc, char **argv)
{
    FILE *plan = argc == 3 ? fopen(argv[2], "r") : NULL;
    CUdevice device;
    CUcontext context;

    if (plan == NULL) {
        fprintf(stderr, "usage: launcher FILE.ptx PLAN\n");
        return 2;
    }
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&state.module, whole(argv[1])));
    CHECK(cuEventCreate(&state.start, 0));
    CHECK(cuEventCreate(&state.stop, 0));
    int result = follow(plan);
    CHECK(cuCtxSynchronize());
    return result;
}

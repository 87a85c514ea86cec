/* The workloads of the bpftime examples: ours, through the CUDA driver API, on any device.
 *
 *     workload APP --ptx FILE [--launches N] [--grid X,Y,Z] [--block X,Y,Z]
 *              [--gate PIPE] [--until FILE]
 *
 * APP names a row of the table below.  Prints what it computed, and how many elements are wrong.
 * With --gate it says "launched N" after each launch and waits until it can read a byte of the pipe.
 * With --until it says so too, launches every 50 ms until the file is there, and then --launches more.
 * Exit code 0, 1 on a driver error, 2 for wrong usage. */
#define _GNU_SOURCE

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct handle *CUcontext, *CUmodule, *CUfunction, *CUstream, *CUgraph, *CUgraphNode,
    *CUgraphExec;

CUresult cuInit(unsigned flags);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module,
                              const char *name);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size);
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, CUstream stream,
                        void **parameters, void **extra);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long flags);
CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream);
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
struct node {
    CUfunction function;
    unsigned gx, gy, gz, bx, by, bz, shared;
    void **parameters;
    void **extra;
    void *kernel;
    CUcontext context;
};
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, struct node *parameters);
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const struct node *parameters);
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec graph, CUgraphNode node,
                                        const struct node *parameters);

struct shape {
    unsigned x, y, z;
};

struct app {
    const char *name, *kernel;
    struct shape grid, block;
    int (*run)(struct app *app);
    int launches, made;
    FILE *gate;
    const char *until;
    CUmodule module;
    CUfunction function;
};

static void check(CUresult result, const char *call)
{
    if (result == 0)
        return;
    fprintf(stderr, "workload: %s: error %d\n", call, result);
    exit(1);
}
#define CHECK(call) check((call), #call)

static size_t threads(const struct app *app)
{
    return (size_t)app->grid.x * app->grid.y * app->grid.z * app->block.x * app->block.y *
           app->block.z;
}

static void *host(size_t size)
{
    void *memory = calloc(1, size == 0 ? 1 : size);
    if (memory == NULL)
        exit(1);
    return memory;
}

static CUdeviceptr device(const void *from, size_t size)
{
    CUdeviceptr address;
    CHECK(cuMemAlloc_v2(&address, size));
    CHECK(cuMemcpyHtoD_v2(address, from, size));
    return address;
}

/* Whether there is another launch; asked before each. */
static bool more(struct app *app)
{
    enum { FOR_EVER = 6000 }; /* five minutes: nobody is left who could make the file */
    if (app->made > 0 && (app->gate != NULL || app->until != NULL)) {
        printf("launched %d\n", app->made);
        fflush(stdout);
    }
    if (app->made > 0 && app->gate != NULL && fgetc(app->gate) == EOF)
        exit(1);
    if (app->until != NULL && access(app->until, F_OK) == 0) {
        app->launches += app->made;
        app->until = NULL;
    }
    if (app->until != NULL && app->made > 0)
        nanosleep(&(struct timespec){0, 50000000L}, NULL);
    int limit = app->until != NULL ? FOR_EVER : app->launches;
    return app->made++ < limit;
}

/* In programs built by nvcc a template of this name launches, and loaders look for it. */
__attribute__((noinline)) void cudaLaunchKernel_of(const struct app *app, CUfunction function,
                                                   void **parameters, CUstream stream)
{
    const struct shape *g = &app->grid, *b = &app->block;
    CHECK(cuLaunchKernel(function, g->x, g->y, g->z, b->x, b->y, b->z, 0, stream, parameters,
                         NULL));
}

/* The launches, one after the other; a name that a Linux uprobe can find. */
__attribute__((noinline)) void launch_once(const struct app *app, void **parameters)
{
    cudaLaunchKernel_of(app, app->function, parameters, NULL);
    CHECK(cuCtxSynchronize());
}

static void launch_all(struct app *app, void **parameters)
{
    while (more(app))
        launch_once(app, parameters);
}

static float *numbers(size_t count, float step)
{
    float *values = host(count * sizeof(float));
    for (size_t i = 0; i < count; i++)
        values[i] = step * (float)i;
    return values;
}

static float *read_back(CUdeviceptr from, size_t count)
{
    float *values = host(count * sizeof(float));
    CHECK(cuMemcpyDtoH_v2(values, from, count * sizeof(float)));
    return values;
}

static size_t show_sums(CUdeviceptr from, size_t count, float step)
{
    float *c = read_back(from, count);
    size_t zero = 0, wrong = 0;
    for (size_t i = 0; i < count; i++) {
        zero += i > 0 && c[i] == 0.0f;
        wrong += c[i] != step * (float)i;
    }
    printf("C[0]=%g C[1]=%g C[7]=%g zero=%zu wrong=%zu\n", c[0], c[1 % count], c[7 % count], zero,
           wrong);
    free(c);
    return wrong;
}

static int add(struct app *app, float second, int with_count)
{
    size_t n = threads(app);
    int count = (int)n;
    float *a = numbers(n, 1), *b = numbers(n, second), *zeros = numbers(n, 0);
    CUdeviceptr da = device(a, n * 4), db = device(b, n * 4), dc = device(zeros, n * 4);
    void *parameters[] = {&da, &db, &dc, &count};
    CUfunction up;
    CHECK(cuModuleGetFunction(&up, app->module, "_Z7countUpv"));
    while (more(app)) {
        launch_once(app, parameters);
        CHECK(cuLaunchKernel(up, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
        CHECK(cuCtxSynchronize());
    }
    show_sums(dc, n, 1 + second);
    if (with_count) {
        CUdeviceptr variable;
        size_t size;
        int value;
        CHECK(cuModuleGetGlobal_v2(&variable, &size, app->module, "counter"));
        CHECK(cuMemcpyDtoH_v2(&value, variable, sizeof value));
        printf("counter = %d (expected %d)\n", value, 233 + app->launches);
    }
    return 0;
}

static int run_add3(struct app *app)
{
    return add(app, 2, 1);
}

static int run_add4(struct app *app)
{
    return add(app, 3, 0);
}

/* One plain launch, then `launches` of a graph whose node is changed before and after it is made. */
static int run_graph(struct app *app)
{
    size_t n = threads(app), nodes = 1;
    float *a = numbers(n, 1), *b = numbers(n, 2), *zeros = numbers(n, 0);
    CUdeviceptr da = device(a, n * 4), db = device(b, n * 4), dc = device(zeros, n * 4),
                other = device(zeros, n * 4);
    void *parameters[] = {&da, &db, &dc}, *others[] = {&da, &db, &other};
    CUstream stream;
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec made;
    struct node row = {0};
    CHECK(cuStreamCreate(&stream, 1));
    cudaLaunchKernel_of(app, app->function, parameters, stream);
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuStreamBeginCapture_v2(stream, 2));
    cudaLaunchKernel_of(app, app->function, parameters, stream);
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphGetNodes(graph, &node, &nodes));
    CHECK(cuGraphKernelNodeGetParams_v2(node, &row));
    row.parameters = others;
    CHECK(cuGraphKernelNodeSetParams_v2(node, &row));
    CHECK(cuGraphInstantiateWithFlags(&made, graph, 0));
    for (int i = 0; i < app->launches; i++) {
        if (i == app->launches / 2) {
            row.parameters = parameters;
            CHECK(cuGraphExecKernelNodeSetParams_v2(made, node, &row));
        }
        CHECK(cuGraphLaunch(made, stream));
        CHECK(cuStreamSynchronize(stream));
    }
    show_sums(dc, n, 3);
    if (app->launches > 1)
        show_sums(other, n, 3);
    return 0;
}

static int run_ragged(struct app *app)
{
    size_t n = threads(app), wrong = 0;
    float *zeros = numbers(n, 0);
    CUdeviceptr out = device(zeros, n * 4);
    int count = (int)n - 5;
    void *parameters[] = {&out, &count};
    launch_all(app, parameters);
    float *values = read_back(out, n);
    for (size_t i = 0; i < n; i++)
        wrong += values[i] != (i % 3 != 0 && i < n - 5 ? (float)i : 0.0f);
    printf("wrong=%zu\n", wrong);
    return 0;
}

static int run_gemm(struct app *app)
{
    struct {
        CUdeviceptr a, b, c;
        int m, n, k;
    } arguments;
    enum { K = 24 };
    size_t m = app->grid.y * 16 - 5, n = app->grid.x * 16 - 3, wrong = 0;
    float *a = host(m * K * 4), *b = host(K * n * 4), *c = host(m * n * 4);
    for (size_t i = 0; i < m * K; i++)
        a[i] = (float)(i % 7);
    for (size_t i = 0; i < K * n; i++)
        b[i] = (float)(i % 5);
    arguments.a = device(a, m * K * 4);
    arguments.b = device(b, K * n * 4);
    arguments.c = device(c, m * n * 4);
    arguments.m = (int)m, arguments.n = (int)n, arguments.k = K;
    void *parameters[] = {&arguments};
    launch_all(app, parameters);
    float *got = read_back(arguments.c, m * n);
    for (size_t row = 0; row < m; row++)
        for (size_t column = 0; column < n; column++) {
            float sum = 0; /* whole numbers: exact in any order */
            for (size_t i = 0; i < K; i++)
                sum += a[row * K + i] * b[i * n + column];
            wrong += got[row * n + column] != sum;
        }
    printf("wrong=%zu\n", wrong);
    return 0;
}

static int run_norm(struct app *app)
{
    int width = 40; /* vectors of four */
    size_t rows = app->grid.x * 8, wrong = 0, row_size = (size_t)width * 4;
    float *x = host(rows * row_size * 4), *zeros = numbers(rows, 0);
    for (size_t i = 0; i < rows * row_size; i++)
        x[i] = (float)(i % 3);
    CUdeviceptr in = device(x, rows * row_size * 4), out = device(zeros, rows * 4);
    void *parameters[] = {&in, &out, &width};
    launch_all(app, parameters);
    float *got = read_back(out, rows);
    for (size_t row = 0; row < rows; row++) {
        float sum = 0;
        for (size_t i = 0; i < row_size; i++)
            sum += x[row * row_size + i] * x[row * row_size + i];
        wrong += got[row] != sum;
    }
    printf("wrong=%zu\n", wrong);
    return 0;
}

static int run_rms(struct app *app)
{
    int columns = 100;
    float epsilon = 1e-6f;
    size_t rows = app->grid.x, count = rows * (size_t)columns, wrong = 0;
    float *x = host(count * 4), *weight = numbers((size_t)columns, 0.5f), *zeros = host(count * 4);
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(i % 9) - 4;
    CUdeviceptr in = device(x, count * 4), scale = device(weight, (size_t)columns * 4),
                out = device(zeros, count * 4);
    void *parameters[] = {&in, &scale, &out, &columns, &epsilon};
    launch_all(app, parameters);
    float *got = read_back(out, count);
    for (size_t row = 0; row < rows; row++) {
        double sum = 0;
        for (int i = 0; i < columns; i++)
            sum += (double)x[row * (size_t)columns + (size_t)i] * x[row * (size_t)columns + (size_t)i];
        double factor = 1 / sqrt(sum / columns + epsilon);
        for (int i = 0; i < columns; i++) {
            size_t at = row * (size_t)columns + (size_t)i;
            wrong += fabs(got[at] - factor * x[at] * weight[i]) > 1e-3;
        }
    }
    printf("wrong=%zu\n", wrong);
    return 0;
}

static int run_sort(struct app *app)
{
    size_t count = app->grid.x * 64, wrong = 0;
    float *keys = host(count * 4);
    int *values = host(count * 4);
    for (size_t i = 0; i < count; i++)
        keys[i] = (float)(i * 37 % 64), values[i] = (int)(i * 37 % 64);
    CUdeviceptr dk = device(keys, count * 4), dv = device(values, count * 4);
    char order = 0;
    void *parameters[] = {&dk, &dv, &order};
    launch_all(app, parameters);
    CHECK(cuMemcpyDtoH_v2(keys, dk, count * 4));
    CHECK(cuMemcpyDtoH_v2(values, dv, count * 4));
    for (size_t i = 0; i < count; i++)
        wrong += keys[i] != (float)(i % 64) || values[i] != (int)(i % 64);
    printf("wrong=%zu\n", wrong);
    return 0;
}

static int run_traced(struct app *app)
{
    int rounds = 7;
    size_t n = threads(app), wrong = 0;
    float *zeros = numbers(n, 0);
    CUdeviceptr out = device(zeros, n * 4);
    void *parameters[] = {&out, &rounds};
    launch_all(app, parameters);
    float *got = read_back(out, n);
    for (size_t i = 0; i < n; i++)
        wrong += got[i] != 21.0f;
    printf("wrong=%zu\n", wrong);
    return 0;
}

#define GEMM                                                                                       \
    "_ZN5tiles8simtGemmIfLi16ELi16ELi16ELb0EEEvNS_9ArgumentsIT_NS_5ShapeIXT0_EXT1_EXT2_EEEXT3_EEE"
static struct app apps[] = {
    {.name = "add3", .kernel = "_Z9vectorAddPKfS0_Pf", {1, 1, 1}, {10, 1, 1}, run_add3},
    {.name = "add4", .kernel = "_Z9vectorAddPKfS0_Pfi", {32, 1, 1}, {128, 1, 1}, run_add4},
    {.name = "graph", .kernel = "_Z9vectorAddPKfS0_Pf", {64, 1, 1}, {256, 1, 1}, run_graph},
    {.name = "ragged", .kernel = "_Z6raggedPfi", {2, 3, 2}, {5, 7, 3}, run_ragged},
    {.name = "gemm", .kernel = GEMM, {3, 2, 1}, {16, 16, 1}, run_gemm},
    {.name = "norm", .kernel = "_ZN7vectors14l2NormRowMajorIf6float4Li8ELb1EEEvPKT0_PT_i",
     {5, 1, 1}, {32, 1, 1}, run_norm},
    {.name = "rms", .kernel = "_Z12rms_norm_f32ILi1024ELb1ELb0EEvPKfS1_Pfif", {6, 1, 1},
     {96, 1, 1}, run_rms},
    {.name = "sort",
     .kernel = "_ZN7sorting20bitonicSortKVInPlaceILi32EfiNS_4LessIfEEEEvPT0_PT1_T2_",
     {4, 1, 1}, {32, 1, 1}, run_sort},
    {.name = "traced", .kernel = "_Z10tracedLoopPfi", {3, 1, 1}, {33, 1, 1}, run_traced},
};

static struct shape shape_of(const char *text)
{
    struct shape shape = {0, 1, 1};
    if (sscanf(text, "%u,%u,%u", &shape.x, &shape.y, &shape.z) < 1 || shape.x == 0)
        exit(2);
    return shape;
}

static char *image(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    char *text = host(1 << 20);
    size_t size = fread(text, 1, (1 << 20) - 1, file);
    fclose(file);
    return size > 0 ? text : NULL;
}

int main(int count, char **words)
{
    struct app *app = NULL;
    const char *path = NULL;
    for (size_t i = 0; count > 1 && i < sizeof apps / sizeof apps[0]; i++)
        if (strcmp(words[1], apps[i].name) == 0)
            app = &apps[i];
    if (app == NULL || count % 2 != 0)
        return 2;
    app->launches = 3;
    for (int i = 2; i < count; i += 2) {
        if (strcmp(words[i], "--launches") == 0)
            app->launches = atoi(words[i + 1]);
        else if (strcmp(words[i], "--gate") == 0)
            app->gate = fopen(words[i + 1], "r");
        else if (strcmp(words[i], "--until") == 0)
            app->until = words[i + 1];
        else if (strcmp(words[i], "--grid") == 0)
            app->grid = shape_of(words[i + 1]);
        else if (strcmp(words[i], "--block") == 0)
            app->block = shape_of(words[i + 1]);
        else if (strcmp(words[i], "--ptx") == 0)
            path = words[i + 1];
        else
            return 2;
    }
    CUdevice number;
    CUcontext context;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&number, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, number));
    CHECK(cuCtxSetCurrent(context));
    if (path == NULL)
        return 2;
    CHECK(cuModuleLoadData(&app->module, image(path)));
    CHECK(cuModuleGetFunction(&app->function, app->module, app->kernel));
    return app->run(app);
}

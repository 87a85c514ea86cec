/* A workload of many scenes: agent_workload SCENE [NUMBER].  It prints "done" when every call
 * succeeded.
 *
 * "slow" and "capture" with NUMBER 0 go on until the file EGPU_TEST_END is there, or for five minutes,
 * and say on stderr how often they launched: what happens meanwhile may take its time. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "workload.h"

static CUcontext context;
static CUmodule module;
static CUfunction f;
static uint64_t a = 5, b = 6;
static void *params[] = {&a, &b};
static egpu_type_cuLaunchKernel *launch;

static char *heap_image(void)
{
    return strdup(image);
}

static void begin(const char *kernel)
{
    CHECK(TYPED(cuInit)(0));
    CHECK(FN("cuDevicePrimaryCtxRetain", CUresult(*)(CUcontext *, CUdevice))(&context, 0));
    CHECK(TYPED(cuCtxSetCurrent)(context));
    char *copy = heap_image();
    CHECK(TYPED(cuModuleLoadData)(&module, copy));
    memset(copy, 'x', strlen(copy)); /* the program may do what it likes with it */
    free(copy);
    CHECK(TYPED(cuModuleGetFunction)(&f, module, kernel));
    launch = TYPED(cuLaunchKernel);
}

static void several(int number)
{
    for (int i = 0; i < number; i++)
        CHECK(launch(f, 2, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
}

static void plain(int number)
{
    begin("plain");
    several(number);
}

/* Whether there is another launch after `made` of them. */
static int more(int made, int number)
{
    enum { PAUSE_US = 20000, LIMIT = 5 * 60 * (1000000 / PAUSE_US) };
    const char *end = getenv("EGPU_TEST_END");
    if (made > 0)
        usleep(PAUSE_US);
    if (number > 0)
        return made < number;
    if (made < LIMIT && (end == NULL || access(end, F_OK) != 0))
        return 1;
    fprintf(stderr, "launched %d\n", made);
    return 0;
}

static void slow(int number)
{
    begin("plain");
    for (int made = 0; more(made, number); made++)
        several(1);
}

static void forms(int number)
{
    begin("plain");
    size_t size = sizeof(uint64_t) * 2;
    uint64_t buffer[2] = {7, 8};
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    CUlaunchAttribute attribute = {.id = 8};
    CUlaunchConfig config = {2, 1, 1, 64, 1, 1, 0, NULL, &attribute, 1};
    (void)number;
    CHECK(launch(f, 2, 1, 1, 64, 1, 1, 0, NULL, NULL, extra));
    CHECK(TYPED(cuLaunchKernelEx)(&config, f, params, NULL));
    CHECK(TYPED(cuLaunchCooperativeKernel)(f, 2, 1, 1, 64, 1, 1, 0, NULL, params));
    CHECK(((egpu_type_cuLaunchKernel *)get("cuLaunchKernel", 13000, 2))(f, 2, 1, 1, 64, 1, 1, 0,
                                                                        NULL, params, NULL));
    CHECK(TYPED(cuModuleGetFunction)(&f, module, "none"));
    CHECK(launch(f, 2, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL));
    CHECK(TYPED(cuLaunchGrid)(f, 1, 1));
}

static void kernels(int number)
{
    CUlibrary library;
    CUkernel kernel;
    begin("plain");
    CHECK(TYPED(cuLibraryLoadData)(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(TYPED(cuLibraryGetKernel)(&kernel, library, "plain"));
    CHECK(TYPED(cuKernelSetAttribute)(CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536, kernel, 0));
    f = (CUfunction)kernel;
    several(number);
    CHECK(TYPED(cuKernelSetAttribute)(CU_FUNC_PREFERRED_SHARED_MEMORY_CARVEOUT, 50, kernel, 0));
    several(1);
}

struct fatbin {
    uint32_t magic;
    uint16_t version, header;
    uint64_t size;
    char text[256];
};

struct wrapper {
    uint32_t magic, version;
    const void *data, *second;
};

#define FATBIN(text) {0xba55ed50, 1, 16, 256, text}
#define WRAPPER(data) {0x466243b1, 1, data, NULL}
#define ENTRY "// entry plain params 2 regs 32 occ 8 max 1024 twin 0\n"
static const struct fatbin packed_image = FATBIN(".version 8.0\n" ENTRY);
static const struct fatbin broken_image = FATBIN(".version 8.0\n// broken\n" ENTRY);
static struct fatbin changing_image = FATBIN(".version 8.0\n" ENTRY);
static const struct fatbin endless_image = {0xba55ed50, 1, 16, 1ull << 33, ".version 8.0\n" ENTRY};
static struct wrapper wrapped_image = WRAPPER(&packed_image);
static struct wrapper wrapped_nothing = WRAPPER((const void *)16);

/* Images of every kind, loaded one after the other; the last one's kernel is launched. */
static void images(int number)
{
    CUlibrary library;
    CUkernel kernel;
    struct fatbin *copy = malloc(sizeof *copy);
    begin("plain");
    *copy = packed_image;
    const void *each[] = {&packed_image, copy, &changing_image, image};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        CHECK(TYPED(cuModuleLoadData)(&module, each[i]));
        CHECK(TYPED(cuModuleUnload)(module));
    }
    free(copy);
    CHECK(TYPED(cuModuleLoadDataEx)(&module, &wrapped_image, 0, NULL, NULL));
    CHECK(TYPED(cuModuleLoadFatBinary)(&module, &packed_image));
    if (TYPED(cuModuleLoadData)(&module, &broken_image) == 0 ||
        TYPED(cuModuleLoadData)(&module, &wrapped_nothing) == 0 ||
        TYPED(cuModuleLoadData)(&module, &endless_image) == 0 ||
        TYPED(cuLibraryLoadData)(&library, &broken_image, NULL, NULL, 0, NULL, NULL, 0) == 0)
        exit(4);
    CHECK(TYPED(cuLibraryLoadData)(&library, &wrapped_image, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(TYPED(cuLibraryGetKernel)(&kernel, library, "plain"));
    f = (CUfunction)kernel;
    several(number);
}

/* An image that is loaded and unloaded so often. */
static void reload_many(int number)
{
    CUmodule other;
    begin("plain");
    for (int i = 0; i < number; i++) {
        CHECK(TYPED(cuModuleLoadData)(&other, &packed_image));
        CHECK(TYPED(cuModuleUnload)(other));
    }
}

/* A launch, and an image that is loaded and unloaded, until there is no more. */
static void reload_late(int number)
{
    CUmodule other;
    begin("plain");
    for (int made = 0; more(made, number); made++) {
        several(1);
        CHECK(TYPED(cuModuleLoadData)(&other, &packed_image));
        CHECK(TYPED(cuModuleUnload)(other));
    }
}

static void attributes(int number)
{
    begin("plain");
    CHECK(TYPED(cuFuncSetAttribute)(f, CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, 4096));
    CHECK(TYPED(cuFuncSetCacheConfig)(f, 2));
    several(number);
}

static void capture(int number)
{
    CUstream stream;
    CUgraph graph;
    CUgraphNode nodes[8];
    size_t count;
    CUDA_KERNEL_NODE_PARAMS_v2 p;
    begin("plain");
    CHECK(TYPED(cuStreamCreate)(&stream, 0));
    CHECK(FN("cuStreamBeginCapture", CUresult(*)(CUstream, int))(stream, 0));
    CHECK(launch(f, 2, 1, 1, 64, 1, 1, 0, stream, params, NULL));
    CHECK(FN("cuStreamEndCapture", CUresult(*)(CUstream, CUgraph *))(stream, &graph));
    CHECK(FN("cuGraphGetNodes", CUresult(*)(CUgraph, CUgraphNode *, size_t *))(graph, nodes,
                                                                               &count));
    CHECK(TYPED_V2(cuGraphKernelNodeGetParams)(nodes[0], &p));
    if (p.base.func != f || *(uint64_t *)p.base.kernelParams[1] != 6)
        exit(4); /* a program reads what it set */
    a = 50;
    p.base.kernelParams = params;
    CHECK(TYPED_V2(cuGraphKernelNodeSetParams)(nodes[0], &p));
    p.base.gridDimX = 3;
    a = 70;
    CHECK(TYPED_V2(cuGraphAddKernelNode)(&nodes[1], graph, NULL, 0, &p));
    CHECK(TYPED_V2(cuGraphKernelNodeGetParams)(nodes[1], &p));
    if (p.base.func != f || p.base.gridDimX != 3)
        exit(4);
    for (int made = 0; more(made, number); made++)
        CHECK(TYPED(cuGraphLaunch)((CUgraphExec)graph, stream));
}

/* Nodes made of a CUkernel, and parameters of an instantiated graph. */
static void nodes(int number)
{
    CUlibrary library;
    CUkernel kernel;
    CUgraph graph;
    CUgraphNode node;
    CUDA_KERNEL_NODE_PARAMS_v2 p = {{NULL, 2, 1, 1, 64, 1, 1, 0, params, NULL}, NULL, NULL};
    begin("plain");
    CHECK(TYPED(cuLibraryLoadData)(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(TYPED(cuLibraryGetKernel)(&kernel, library, "plain"));
    CHECK(FN("cuGraphCreate", CUresult(*)(CUgraph *, unsigned))(&graph, 0));
    p.kern = kernel;
    CHECK(TYPED_V2(cuGraphAddKernelNode)(&node, graph, NULL, 0, &p));
    memset(&p, 0, sizeof p);
    CHECK(TYPED_V2(cuGraphKernelNodeGetParams)(node, &p));
    if (p.base.func != NULL || p.kern != kernel || p.base.blockDimX != 64)
        exit(4);
    b = 60;
    p.base.kernelParams = params;
    CHECK(TYPED_V2(cuGraphExecKernelNodeSetParams)((CUgraphExec)graph, node, &p));
    size_t size = 16;
    uint64_t packed[2] = {7, 8};
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    p.base.kernelParams = NULL;
    p.base.extra = extra;
    CHECK(TYPED_V2(cuGraphAddKernelNode)(&node, graph, NULL, 0, &p));
    for (int i = 0; i < number; i++)
        CHECK(TYPED(cuGraphLaunch)((CUgraphExec)graph, NULL));
}

/* A probed node that becomes a kernel without a twin, and back, by every call that sets one. */
static void switched(int number)
{
    CUgraph graph;
    CUgraphNode node;
    CUfunction other;
    CUDA_KERNEL_NODE_PARAMS_v2 p = {{NULL, 2, 1, 1, 64, 1, 1, 0, params, NULL}, NULL, NULL};
    begin("plain");
    CUDA_KERNEL_NODE_PARAMS_v2 q = p;
    CHECK(TYPED(cuModuleGetFunction)(&other, module, "other"));
    CHECK(FN("cuGraphCreate", CUresult(*)(CUgraph *, unsigned))(&graph, 0));
    CUgraphExec exec = (CUgraphExec)graph;
    p.base.func = f;
    q.base.func = other;
    CUgraphNodeParams first = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .node.kernel = p};
    CUgraphNodeParams second = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .node.kernel = q};
    CHECK(TYPED_V2(cuGraphAddKernelNode)(&node, graph, NULL, 0, &p));
    for (int i = 0; i < number; i++) {
        CHECK(TYPED_V2(cuGraphKernelNodeSetParams)(node, &q));
        CHECK(TYPED_V2(cuGraphKernelNodeSetParams)(node, &q)); /* only parameters */
        CHECK(TYPED_V2(cuGraphExecKernelNodeSetParams)(exec, node, &p));
        CHECK(TYPED_V2(cuGraphKernelNodeSetParams)(node, &p));
        CHECK(TYPED(cuGraphNodeSetParams)(node, &second));
        CHECK(TYPED(cuGraphExecNodeSetParams)(exec, node, &first));
        CHECK(((egpu_type_cuGraphKernelNodeSetParams *)dlsym(
            driver, "cuGraphKernelNodeSetParams"))(node, &q.base));
        CHECK(((egpu_type_cuGraphExecKernelNodeSetParams *)dlsym(
            driver, "cuGraphExecKernelNodeSetParams"))(exec, node, &p.base));
        q.base.blockDimX = 0;
        if (TYPED_V2(cuGraphKernelNodeSetParams)(node, &q) == 0) /* refused: counts nothing */
            exit(4);
        q.base.blockDimX = 64;
    }
    CHECK(TYPED(cuGraphLaunch)(exec, NULL));
}

/* Packed parameters of launches that are recorded, and too few of them. */
static void packed(int number)
{
    CUstream stream;
    CUgraph graph;
    CUgraphNode node;
    CUDA_KERNEL_NODE_PARAMS_v2 p = {{NULL, 2, 1, 1, 64, 1, 1, 0, NULL, NULL}, NULL, NULL};
    uint64_t values[2] = {0, 9};
    size_t size = 16, few = 8;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, values, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    begin("plain");
    CHECK(TYPED(cuStreamCreate)(&stream, 0));
    CHECK(FN("cuStreamBeginCapture", CUresult(*)(CUstream, int))(stream, 0));
    for (int i = 0; i < number; i++) {
        values[0] = (uint64_t)i;
        CHECK(launch(f, 2, 1, 1, 64, 1, 1, 0, stream, NULL, extra));
    }
    CHECK(FN("cuStreamEndCapture", CUresult(*)(CUstream, CUgraph *))(stream, &graph));
    p.base.func = f;
    p.base.extra = extra;
    extra[3] = &few;
    if (TYPED_V2(cuGraphAddKernelNode)(&node, graph, NULL, 0, &p) == 0)
        exit(4);
    extra[3] = &size;
    values[0] = 100;
    CHECK(TYPED_V2(cuGraphAddKernelNode)(&node, graph, NULL, 0, &p));
    values[0] = 101;
    CHECK(TYPED_V2(cuGraphKernelNodeSetParams)(node, &p));
    memset(values, 0, sizeof values); /* the node has its own copy */
    memset(&p, 0, sizeof p);
    CHECK(TYPED_V2(cuGraphKernelNodeGetParams)(node, &p));
    if (p.base.func != f || *(uint64_t *)p.base.kernelParams[0] != 101)
        exit(4);
    CHECK(TYPED(cuGraphLaunch)((CUgraphExec)graph, stream));
}

static void tight(int number)
{
    begin("tight");
    several(number);
    for (int i = 0; i < number; i++)
        CHECK(launch(f, 2, 1, 1, 512, 1, 1, 0, NULL, params, NULL));
}

static void *one_thread(void *number)
{
    CHECK(TYPED(cuCtxSetCurrent)(context));
    several((int)(intptr_t)number);
    return NULL;
}

static void threads(int number)
{
    pthread_t made[8];
    begin("plain");
    for (int i = 0; i < 8; i++)
        pthread_create(&made[i], NULL, one_thread, (void *)(intptr_t)number);
    for (int i = 0; i < 8; i++)
        pthread_join(made[i], NULL);
}

static void reload(int number)
{
    begin("plain");
    for (int i = 0; i < number; i++) {
        several(1);
        CHECK(TYPED(cuModuleUnload)(module));
        CHECK(TYPED(cuModuleLoadData)(&module, image));
        CHECK(TYPED(cuModuleGetFunction)(&f, module, "other"));
        several(1);
        CHECK(TYPED(cuModuleGetFunction)(&f, module, "plain"));
    }
}

static void contexts(int number)
{
    CUresult (*create)(CUcontext *, unsigned, CUdevice) =
        (CUresult(*)(CUcontext *, unsigned, CUdevice))get("cuCtxCreate", 3020, 0);
    begin("plain");
    for (int i = 0; i < number; i++) {
        CUcontext made;
        CHECK(create(&made, 0, 1));
        CHECK(TYPED(cuModuleLoadData)(&module, image));
        CHECK(TYPED(cuModuleGetFunction)(&f, module, "plain"));
        several(2);
        CHECK(((egpu_type_cuCtxDestroy *)get("cuCtxDestroy", 13000, 0))(made));
    }
}

static void primary(int number)
{
    plain(number);
    CHECK(((egpu_type_cuDevicePrimaryCtxRelease *)get("cuDevicePrimaryCtxRelease", 13000, 0))(0));
    CHECK(FN("cuDevicePrimaryCtxRetain", CUresult(*)(CUcontext *, CUdevice))(&context, 0));
    CHECK(TYPED(cuCtxSetCurrent)(context));
    CHECK(TYPED(cuModuleLoadData)(&module, image));
    CHECK(TYPED(cuModuleGetFunction)(&f, module, "plain"));
    several(number);
}

static void forked(int number)
{
    plain(number);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        several(number); /* of no use on a real device, but it must not reach the session */
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    if (status != 0)
        exit(5);
    child = vfork();
    if (child == 0)
        _exit(0);
    waitpid(child, &status, 0);
    several(number);
}

static void early_fork(int number)
{
    pid_t child = fork();
    int status;
    if (child == 0) {
        plain(number);
        exit(0);
    }
    waitpid(child, &status, 0);
    if (status != 0)
        exit(5);
}

static void leave(int number)
{
    plain(number);
    puts("done");
    fflush(stdout);
    _exit(7);
}

static void closing(int number)
{
    plain(number);
    for (int i = 3; i < 2000; i++)
        if (i != STDERR_FILENO)
            close(i);
    CHECK(TYPED(cuModuleGetFunction)(&f, module, "tight"));
    several(number);
}

static const struct {
    const char *name;
    void (*run)(int);
} scenes[] = {{"plain", plain},       {"slow", slow},         {"forms", forms},
              {"kernels", kernels},   {"attributes", attributes}, {"capture", capture},
              {"nodes", nodes},       {"switched", switched}, {"packed", packed},
              {"tight", tight},       {"threads", threads},   {"reload", reload},
              {"contexts", contexts}, {"primary", primary},   {"forked", forked},
              {"images", images},     {"reload_late", reload_late}, {"early_fork", early_fork},
              {"reload_many", reload_many},
              {"leave", leave},       {"closing", closing}};

int main(int argc, char **argv)
{
    if (argc < 2)
        return 1;
    find_driver();
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(scenes[i].name, argv[1]) == 0) {
            scenes[i].run(argc > 2 ? atoi(argv[2]) : 3);
            puts("done");
            return 0;
        }
    return 1;
}

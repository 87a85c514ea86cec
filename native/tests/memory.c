/* A workload that gets and gives back device memory in every way: agent_memory SCENE.  Its launches
 * make the stand-in driver's log say what the agent's table holds. */
#include "workload.h"

enum { SIZE = 4096, UNIT = 1 << 21 };

static CUcontext context;
static CUmodule module;
static CUfunction f;
static uint64_t a = 5, b = 6;
static void *params[] = {&a, &b};

static void launch(void)
{
    CHECK(TYPED(cuLaunchKernel)(f, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
}

static void load(void)
{
    CHECK(TYPED(cuModuleLoadData)(&module, image));
    CHECK(TYPED(cuModuleGetFunction)(&f, module, "plain"));
    launch(); /* the arena is there from here on */
}

static CUstream stream(void)
{
    CUstream made;
    CHECK(FN("cuStreamCreate", CUresult(*)(CUstream *, unsigned))(&made, 1));
    return made;
}

#define PER_THREAD(symbol) ((egpu_type_##symbol *)get(#symbol, 13000, 2))

static CUdeviceptr pooled(CUstream of)
{
    CUdeviceptr made;
    CHECK(TYPED(cuMemAllocAsync)(&made, SIZE, of));
    return made;
}

static CUmemoryPool pool_of(CUdevice device)
{
    CUmemoryPool pool;
    CHECK(FN("cuDeviceGetMemPool", CUresult(*)(CUmemoryPool *, CUdevice))(&pool, device));
    return pool;
}

static void pools(void)
{
    CUdeviceptr made[4];
    CUstream one = stream();
    made[0] = pooled(NULL);
    made[1] = pooled(one);
    CHECK(PER_THREAD(cuMemAllocAsync)(&made[2], SIZE, NULL));
    CHECK(PER_THREAD(cuMemAllocFromPoolAsync)(&made[3], SIZE, pool_of(0), one));
    launch();
    CHECK(TYPED(cuMemFreeAsync)(made[0], one));
    CHECK(PER_THREAD(cuMemFreeAsync)(made[1], NULL));
    CHECK(((egpu_type_cuMemFree_v2 *)get("cuMemFree", 13000, 0))(made[2]));
    CHECK(TYPED(cuMemFreeAsync)(made[3], NULL));
    launch();
}

static void captured(void)
{
    CUstream one = stream();
    CUgraph graph;
    CHECK(FN("cuStreamBeginCapture", CUresult(*)(CUstream, int))(one, 0));
    pooled(one);
    CHECK(FN("cuStreamEndCapture", CUresult(*)(CUstream, CUgraph *))(one, &graph));
    launch();
}

static void access_of_pool(CUdevice device, int flags)
{
    CUmemAccessDesc access = {{1, device}, flags};
    CHECK(TYPED(cuMemPoolSetAccess)(pool_of(1), &access, 1));
}

/* A pool of another device: readable once that was said, and no longer than it is. */
static void peers(void)
{
    CUdeviceptr made;
    CHECK(TYPED(cuMemAllocFromPoolAsync)(&made, SIZE, pool_of(1), NULL));
    launch();
    access_of_pool(0, 3);
    launch();
    CHECK(TYPED(cuMemAllocFromPoolAsync)(&made, SIZE, pool_of(1), NULL));
    CHECK(TYPED(cuMemAllocFromPoolAsync)(&made, SIZE, pool_of(0), NULL));
    launch();
    access_of_pool(0, 0);
    launch();
}

static CUmemGenericAllocationHandle created(int location, unsigned short usage)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = {.type = 1, .location = {location, 0}, .allocFlags.usage = usage};
    CHECK(TYPED(cuMemCreate)(&handle, UNIT, &properties, 0));
    return handle;
}

static CUdeviceptr reserve(int units)
{
    CUdeviceptr base;
    CHECK(FN("cuMemAddressReserve", CUresult(*)(CUdeviceptr *, size_t, size_t, CUdeviceptr,
                                                unsigned long long))(&base, (size_t)units * UNIT, 0,
                                                                     0, 0));
    return base;
}

static void map(CUdeviceptr at, CUmemGenericAllocationHandle handle)
{
    CHECK(TYPED(cuMemMap)(at, UNIT, 0, handle, 0));
}

static CUresult allow(CUdeviceptr at, int units, CUdevice device, int flags)
{
    CUmemAccessDesc access[] = {{{2, 0}, 3}, {{1, device}, flags}};
    return TYPED(cuMemSetAccess)(at, (size_t)units * UNIT, access, 2);
}

static void mappings(void)
{
    CUdeviceptr base = reserve(4);
    CUmemGenericAllocationHandle one = created(1, 0), two = created(1, 0);
    map(base, one);
    map(base + UNIT, two);
    launch(); /* mapped, and no device may read it */
    CHECK(allow(base, 2, 1, 3));
    launch(); /* another device may */
    CHECK(allow(base, 2, 0, 1));
    launch();
    CHECK(TYPED(cuMemRelease)(two));
    CHECK(TYPED(cuMemUnmap)(base, UNIT));
    launch();
    CHECK(allow(base + UNIT, 1, 0, 0));
    launch();
    CHECK(allow(base + UNIT, 1, 0, 3));
    CHECK(TYPED(cuMemUnmap)(base + UNIT, UNIT));
    CHECK(TYPED(cuMemAddressFree)(base, 4 * UNIT));
    launch();
}

/* Access that the driver does not give is not had, and what is taken is gone even if it stays. */
static void refused(void)
{
    CUdeviceptr base = reserve(2);
    map(base, created(1, 0));
    if (allow(base, 1, 0, 3) == 0)
        exit(4);
    launch();
}

/* Mappings that are not of memory that cuMemCreate gave on a device. */
static void unknown(void)
{
    CUdeviceptr base = reserve(5);
    CUmemGenericAllocationHandle imported, gone = created(1, 0);
    CHECK(FN("cuMemImportFromShareableHandle",
             CUresult(*)(CUmemGenericAllocationHandle *, void *, int))(&imported, NULL, 1));
    CHECK(TYPED(cuMemRelease)(gone));
    map(base, imported);
    map(base + UNIT, created(3, 0));
    map(base + 2 * UNIT, created(1, 1));
    map(base + 3 * UNIT, gone);
    CHECK(allow(base, 4, 0, 3));
    launch();
}

/* What a probe reads by the table that was does not go before it has read. */
static void readers(void)
{
    void (*read_by_table)(void) = (void (*)(void))(uintptr_t)dlsym(driver, "mock_read_by_table");
    CUdeviceptr base = reserve(1), made = pooled(NULL);
    map(base, created(1, 0));
    CHECK(allow(base, 1, 0, 3));
    read_by_table();
    CHECK(TYPED(cuMemFreeAsync)(made, NULL));
    read_by_table();
    CHECK(TYPED(cuMemUnmap)(base, UNIT));
}

/* A mapping is every context's of its device, memory of a pool its stream's context's. */
static void contexts(void)
{
    CUcontext other;
    CUdeviceptr base = reserve(1), made;
    CUstream first = stream();
    CUfunction was = f;
    CHECK(FN("cuCtxCreate", CUresult(*)(CUcontext *, unsigned, CUdevice))(&other, 0, 0));
    load();
    map(base, created(1, 0));
    CHECK(allow(base, 1, 0, 3));
    made = pooled(first);
    launch();
    CHECK(TYPED(cuCtxSetCurrent)(context));
    f = was;
    launch();
    CHECK(TYPED(cuCtxSetCurrent)(NULL));
    CHECK(TYPED(cuMemFreeAsync)(made, first));
    CHECK(TYPED(cuMemUnmap)(base, UNIT));
    CHECK(TYPED(cuCtxSetCurrent)(other));
    CHECK(TYPED(cuModuleGetFunction)(&f, module, "plain"));
    launch();
    CHECK(TYPED(cuCtxSetCurrent)(context));
    f = was;
    launch();
}

/* Nothing says that mappings and pools outlive the end of a device's primary context. */
static void ended(void)
{
    CUcontext other;
    CUdeviceptr base = reserve(1), own;
    CHECK(FN("cuCtxCreate", CUresult(*)(CUcontext *, unsigned, CUdevice))(&other, 0, 0));
    load();
    map(base, created(1, 0));
    CHECK(allow(base, 1, 0, 3));
    pooled(NULL);
    CHECK(((egpu_type_cuMemAlloc_v2 *)get("cuMemAlloc", 13000, 0))(&own, SIZE));
    fprintf(stdout, "%llx\n", own);
    launch();
    CHECK(((egpu_type_cuDevicePrimaryCtxReset *)get("cuDevicePrimaryCtxReset", 13000, 0))(0));
    launch();
}

/* More rows than the table has: those at the highest addresses are left out, until there is room. */
static void full(void)
{
    enum { MANY = 4100 };
    CUdeviceptr base = reserve(2 * MANY);
    for (int i = 0; i < MANY; i++) {
        map(base + (CUdeviceptr)i * 2 * UNIT, created(1, 0));
    }
    for (int i = 0; i < MANY; i++)
        CHECK(allow(base + (CUdeviceptr)i * 2 * UNIT, 1, 0, 3));
    launch();
    for (int i = 0; i < 10; i++)
        CHECK(TYPED(cuMemUnmap)(base + (CUdeviceptr)i * 2 * UNIT, UNIT));
    launch();
}

static const struct {
    const char *name;
    void (*run)(void);
} scenes[] = {{"pools", pools},     {"captured", captured}, {"peers", peers},
              {"mappings", mappings}, {"refused", refused}, {"unknown", unknown},
              {"readers", readers}, {"contexts", contexts}, {"ended", ended},
              {"full", full}};

int main(int argc, char **argv)
{
    if (argc < 2)
        return 1;
    find_driver();
    CHECK(TYPED(cuInit)(0));
    CHECK(FN("cuDevicePrimaryCtxRetain", CUresult(*)(CUcontext *, CUdevice))(&context, 0));
    CHECK(TYPED(cuCtxSetCurrent)(context));
    load();
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(scenes[i].name, argv[1]) == 0) {
            scenes[i].run();
            puts("done");
            return 0;
        }
    return 1;
}

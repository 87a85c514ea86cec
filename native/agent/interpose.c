/* Interposed symbols, dlsym answers, cuGetProcAddress answers: all from hooks.h. */
#include <dlfcn.h>
#include <string.h>

#include "agent.h"

struct hook {
    const char *symbol; /* exported name */
    const char *name;   /* what cuGetProcAddress calls it; NULL if only used */
    int since, ptsz;
    void *wrapper;
};

static const struct hook hooks[EP_COUNT] = {
#define ROW_HOOK(symbol, name, since, ptsz, parameters)                                            \
    [EP_##symbol] = {#symbol, #name, since, ptsz, (void *)symbol},
#define ROW_USE(symbol, parameters) [EP_##symbol] = {#symbol, NULL, 0, 0, NULL},
    EGPU_HOOKS(ROW_HOOK) EGPU_USES(ROW_USE)};

typedef void *dlsym_type(void *, const char *);
__attribute__((visibility("hidden"))) dlsym_type *egpu_real_dlsym;
__attribute__((visibility("hidden"))) void *egpu_dlsym_answer(void *handle, const char *name);
static _Atomic(void *) real[EP_COUNT];
static _Atomic(void *) driver;

/* Marks a function this driver does not have, so that it is looked for once. */
static char absent;

/* A sanitizer's runtime calls dlsym before it is ready for instrumented code. */
#define EARLY __attribute__((no_sanitize("address", "thread", "undefined")))

EARLY static void find_dlsym(void)
{
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    for (size_t i = 0; egpu_real_dlsym == NULL && i < sizeof versions / sizeof *versions; i++)
        egpu_real_dlsym = (dlsym_type *)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    if (egpu_real_dlsym == NULL)
        __builtin_trap(); /* no C library that this was built for is without it */
}

/* The driver, by handle: whatever else is preloaded, and however it was linked. */
static void *driver_handle(void)
{
    void *handle = atomic_load_explicit(&driver, memory_order_acquire);
    if (handle == NULL) {
        handle = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
        if (handle != NULL)
            atomic_store_explicit(&driver, handle, memory_order_release);
    }
    return handle;
}

void *egpu_real(enum egpu_entry_point point)
{
    void *found = atomic_load_explicit(&real[point], memory_order_acquire);
    if (likely(found != NULL))
        return found == &absent ? NULL : found;
    void *handle = driver_handle();
    if (handle == NULL)
        return NULL;
    if (egpu_real_dlsym == NULL)
        find_dlsym();
    found = egpu_real_dlsym(handle, hooks[point].symbol);
    if (found != NULL && found == hooks[point].wrapper)
        found = NULL; /* never call ourselves */
    atomic_store_explicit(&real[point], found != NULL ? found : &absent, memory_order_release);
    return found;
}

EARLY static int hook_named(const char *symbol)
{
    if (symbol[0] != 'c' || symbol[1] != 'u')
        return -1;
    for (int i = 0; i < EP_HOOKS; i++)
        if (strcmp(hooks[i].symbol, symbol) == 0)
            return i;
    return -1;
}

/* A driver under another name than libcuda.so.1: believe only a file called libcuda.so*. */
static void note_driver(void *address)
{
    Dl_info info;
    if (driver_handle() != NULL || dladdr(address, &info) == 0 || info.dli_fname == NULL)
        return;
    const char *slash = strrchr(info.dli_fname, '/');
    if (strncmp(slash != NULL ? slash + 1 : info.dli_fname, "libcuda.so", 10) != 0)
        return;
    void *handle = dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
    if (handle != NULL)
        atomic_store_explicit(&driver, handle, memory_order_release);
}

/* Called by dlsym.S: a wrapper, NULL to let the real dlsym answer, or NO_ANSWER: without a driver in
 * the process, our own symbol must not look like one. */
#define NO_ANSWER ((void *)-1)

EARLY void *egpu_dlsym_answer(void *handle, const char *name)
{
    if (egpu_real_dlsym == NULL)
        find_dlsym();
    int point = handle == RTLD_NEXT || name == NULL ? -1 : hook_named(name);
    if (point < 0)
        return NULL;
    void *found = egpu_real_dlsym(handle, name);
    if (found == NULL)
        return NULL;
    if (found == hooks[point].wrapper) { /* the whole program's scope, where we come first */
        if (egpu_real(point) != NULL)
            return found;
        egpu_real_dlsym(RTLD_NEXT, name); /* for dlerror() */
        return NO_ANSWER;
    }
    note_driver(found);
    return egpu_real(point) == found ? hooks[point].wrapper : NULL;
}

/* The wrapper for what cuGetProcAddress found.  The answer is recognised by its address; an address
 * that the driver does not export is taken by name, version and stream flavour.  An exported one
 * that no row knows is a newer variant with other parameters: it is left alone. */
static void *answer_for(void *found, const char *symbol, int version, uint64_t flags)
{
    int ptsz = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    int best = -1;
    for (int i = 0; i < EP_HOOKS; i++) {
        if (found == hooks[i].wrapper)
            return found;
        if (strcmp(hooks[i].name, symbol) != 0 && strcmp(hooks[i].symbol, symbol) != 0)
            continue;
        if (egpu_real(i) == found)
            return hooks[i].wrapper;
        /* A later row of the same name is a later version or the per-thread form. */
        if (hooks[i].since <= version && hooks[i].ptsz <= ptsz && egpu_real(i) != NULL &&
            (best < 0 || hooks[i].ptsz >= hooks[best].ptsz))
            best = i;
    }
    Dl_info info;
    if (best < 0 || (dladdr(found, &info) != 0 && info.dli_saddr == found))
        return found;
    return hooks[best].wrapper;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags)
{
    CUresult result = CALL(cuGetProcAddress, symbol, pfn, version, flags);
    if (result == CUDA_SUCCESS && symbol != NULL && pfn != NULL && *pfn != NULL)
        *pfn = answer_for(*pfn, symbol, version, flags);
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags,
                             int *status)
{
    CUresult result = CALL(cuGetProcAddress_v2, symbol, pfn, version, flags, status);
    if (result == CUDA_SUCCESS && symbol != NULL && pfn != NULL && *pfn != NULL)
        *pfn = answer_for(*pfn, symbol, version, flags);
    return result;
}

/* How the workloads of the agent's tests find the stand-in driver, and what they launch.
 * EGPU_TEST_BIND=dlsym or proc (default) says how they find functions. */
#ifndef EGPU_TEST_WORKLOAD_H
#define EGPU_TEST_WORKLOAD_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../agent/hooks.h"

static void *driver;
typedef CUresult (*get_type)(const char *, void **, int, uint64_t, int *);
static get_type get_address;

static void *get(const char *symbol, int version, uint64_t flags)
{
    const char *bind = getenv("EGPU_TEST_BIND");
    void *found = NULL;
    if (bind != NULL && strcmp(bind, "dlsym") == 0) {
        static const char *const ends[] = {"_v2", ""};
        char name[128];
        for (int i = 0; found == NULL && i < 2; i++) {
            snprintf(name, sizeof name, "%s%s%s", symbol, ends[i], flags & 2 ? "_ptsz" : "");
            found = dlsym(driver, name);
        }
    } else if (get_address(symbol, &found, version, flags, NULL) != 0) {
        found = NULL;
    }
    if (found == NULL) {
        fprintf(stderr, "no %s\n", symbol);
        exit(3);
    }
    return found;
}

#define FN(symbol, type) ((type)get(symbol, 13000, 0))
#define CHECK(call)                                                                                \
    do {                                                                                           \
        CUresult result_ = (call);                                                                 \
        if (result_ != 0) {                                                                        \
            fprintf(stderr, "%s: error %d\n", #call, result_);                                     \
            exit(2);                                                                               \
        }                                                                                          \
    } while (0)
#define TYPED(symbol) ((egpu_type_##symbol *)get(#symbol, 13000, 0))
#define TYPED_V2(symbol) ((egpu_type_##symbol##_v2 *)get(#symbol, 13000, 0))

static const char image[] = ".version 8.0\n"
                            "// entry plain params 2 regs 32 occ 8 max 1024 twin 0\n"
                            "// entry none params 0 regs 16 occ 8 max 1024 twin 0\n"
                            "// entry tight params 1 regs 64 occ 8 max 1024 twin 0\n"
                            "// entry other params 1 regs 64 occ 8 max 1024 twin 0\n"
                            "// global counter\n";

static void find_driver(void)
{
    void *again = NULL;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL)
        exit(1);
    get_address = (get_type)(uintptr_t)dlsym(driver, "cuGetProcAddress_v2");
    /* as cudart does: the answer to its own name must see everything too */
    if (get_address("cuGetProcAddress", &again, 12000, 0, NULL) == 0)
        get_address = (get_type)(uintptr_t)again;
}

#endif

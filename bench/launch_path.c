/* What the agent adds to a launch that is not probed, in ns: run it without and with the agent, on a
 * driver that does nothing (native/tests' stand-in) for the agent's share alone.
 *
 *   launch_path [LAUNCHES]    prints "ns_per_launch <number>"
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef int (*init_type)(unsigned);
typedef int (*retain_type)(void **, int);
typedef int (*one_type)(void *);
typedef int (*load_type)(void **, const void *);
typedef int (*function_type)(void **, void *, const char *);
typedef int (*launch_type)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                           unsigned, void *, void **, void **);

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(int argc, char **argv)
{
    static const char image[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
                                "// entry bench params 0 regs 32 occ 8 max 1024 twin 0\n"
                                ".visible .entry bench()\n{ ret; }\n";
    int launches = argc > 1 ? atoi(argv[1]) : 2000000;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context, *module, *f;
    if (driver == NULL)
        return 1;
    init_type init = (init_type)(uintptr_t)dlsym(driver, "cuInit");
    retain_type retain = (retain_type)(uintptr_t)dlsym(driver, "cuDevicePrimaryCtxRetain");
    one_type set = (one_type)(uintptr_t)dlsym(driver, "cuCtxSetCurrent");
    load_type load = (load_type)(uintptr_t)dlsym(driver, "cuModuleLoadData");
    function_type function = (function_type)(uintptr_t)dlsym(driver, "cuModuleGetFunction");
    launch_type launch = (launch_type)(uintptr_t)dlsym(driver, "cuLaunchKernel");
    if (init(0) || retain(&context, 0) || set(context) || load(&module, image) ||
        function(&f, module, "bench") || launch(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL))
        return 1;
    double best = 1e30;
    for (int round = 0; round < 5; round++) {
        double start = now();
        for (int i = 0; i < launches / 5; i++)
            if (launch(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL))
                return 1;
        double each = (now() - start) / (launches / 5);
        best = each < best ? each : best;
    }
    printf("ns_per_launch %.1f\n", best);
    return 0;
}

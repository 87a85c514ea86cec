/* A program linked against the driver, as most driver-API programs are. */
#include <stdio.h>

#include "../agent/hooks.h"

CUresult cuDeviceGet(CUdevice *device, int ordinal);

int main(void)
{
    extern CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
    extern CUresult cuCtxSetCurrent(CUcontext);
    CUcontext context;
    CUmodule module;
    CUfunction f;
    uint64_t a = 5, b = 6;
    void *params[] = {&a, &b};
    const char *image = ".version 8.0\n// entry plain params 2 regs 32 occ 8 max 1024 twin 0\n";
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
        cuModuleLoadData(&module, image) || cuModuleGetFunction(&f, module, "plain"))
        return 1;
    for (int i = 0; i < 3; i++)
        if (cuLaunchKernel(f, 2, 1, 1, 64, 1, 1, 0, NULL, params, NULL))
            return 1;
    puts("done");
    return 0;
}

/* 8, the shape of launchlate-kernel-gpu-shared-map: time from the call to the kernel's start, in bins of
 * powers of ten. */
#define SHARED 1504
#define HISTOGRAM 1504
#define FLAGS (1 << 10)
#define SITE "kprobe/cuda_" VADD
#include "launchlate.bpf.c"

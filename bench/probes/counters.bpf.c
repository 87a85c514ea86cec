// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Every kernel: threads that enter and leave, counted per SM by one lane a warp. */
#define KERNELS "*"
#include "entry_exit_warp.bpf.c"

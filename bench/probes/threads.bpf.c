// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Every kernel: threads that enter and leave, counted per SM by each of them. */
#define KERNELS "*"
#include "entry_exit_thread.bpf.c"

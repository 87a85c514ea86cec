// SPDX-License-Identifier: Apache-2.0 OR MIT
/* The same with room for more records of threads, to see how fast they come out of device memory. */
#define RING_BYTES (1 << 30)
#include "rates_ring.bpf.c"

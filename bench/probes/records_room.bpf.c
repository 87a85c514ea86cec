// SPDX-License-Identifier: Apache-2.0 OR MIT
/* The same records as records.bpf.c's, into rings that hold those of a whole launch. */
#define RING_BYTES (1 << 27)
#include "records.bpf.c"

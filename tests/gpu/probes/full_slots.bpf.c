// SPDX-License-Identifier: Apache-2.0 OR MIT
/* A ring of slots that every warp writes to as it enters and leaves, at full rate: most records find
 * no room.  Those of leaving lanes have bit 63 in their second word. */
#define SLOTS
#include "full_ring.bpf.c"

// SPDX-License-Identifier: Apache-2.0 OR MIT
#define PARTS COUNTS
#include "hashes.bpf.c"

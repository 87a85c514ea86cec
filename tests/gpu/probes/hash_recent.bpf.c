// SPDX-License-Identifier: Apache-2.0 OR MIT
#define PARTS RECENT
#include "hashes.bpf.c"

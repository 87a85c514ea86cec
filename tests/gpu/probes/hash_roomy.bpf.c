// SPDX-License-Identifier: Apache-2.0 OR MIT
#define PARTS ROOMY
#include "hashes.bpf.c"

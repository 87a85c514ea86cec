// SPDX-License-Identifier: Apache-2.0 OR MIT
#define PARTS PER_SM
#include "hashes.bpf.c"

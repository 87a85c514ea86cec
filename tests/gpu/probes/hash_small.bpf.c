// SPDX-License-Identifier: Apache-2.0 OR MIT
#define PARTS SMALL
#include "hashes.bpf.c"

// SPDX-License-Identifier: Apache-2.0 OR MIT
#define PARTS CHURN
#include "hashes.bpf.c"

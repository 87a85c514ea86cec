"""What probes/stacks.bpf.c must count: every kernel of the demo is launched by a function of its
own."""

from __future__ import annotations

CALLERS = {  # of each kernel
    "vecadd": "run_vecadd",
    "_Z6matmulILi16EEvPKfS1_Pfi": "run_matmul",
    "reduce_sum": "run_reduce",
    "histogram": "run_histogram",
    "_ZN4demo7collatzEPKjPjij": "run_collatz",
}


def wrong_stacks(maps: dict, kernels: dict) -> list[str]:
    """Everything that is not as it must be; ``kernels`` are the workload's own totals."""
    stacks = {row["key"]: row["value"] for row in maps["stacks"]}
    blocks = {row["key"]: row["value"] for row in maps["blocks"]}
    wrong = []
    if set(stacks) != set(blocks):
        wrong.append(f"stacks {sorted(stacks)}, counted are {sorted(blocks)}")
    for kernel, caller in CALLERS.items():
        counted = sum(blocks.get(number, 0) for number in stacks if caller in stacks[number])
        if counted != kernels[kernel]["blocks"]:
            wrong.append(f"{caller}: {counted} blocks, {kernels[kernel]['blocks']} ran")
    wrong += [f"no main in {frames}" for frames in stacks.values() if "main" not in frames]
    section = maps[".bss"]
    if section and any(section[0]["value"].values()):
        wrong.append(f"no stack or a wrong flag taken: {section}")
    return wrong

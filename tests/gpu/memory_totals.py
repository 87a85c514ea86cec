"""What probes/memory_kinds.bpf.c must have counted of what workloads/memory_kinds.py says."""

from __future__ import annotations

KINDS = ("read", "sum", "faults")


def wrong_looks(report: dict, looks: dict) -> list[str]:
    """Every total that is not as it must be."""
    found = {row["key"]: row["value"] for row in report["maps"]["seen"]}
    wrong = []
    for name, look in looks.items():
        first = look["which"] * len(KINDS)
        read, total, faults = (found.get(first + at, 0) for at in range(len(KINDS)))
        if read + faults != look["threads"]:
            wrong.append(f"{name}: {read} + {faults} of {look['threads']} threads")
        if look["read"] is not None and read != look["read"]:
            wrong.append(f"{name}: {read} read, expected {look['read']}")
        if look["sum"] is not None and total != look["sum"]:
            wrong.append(f"{name}: sum {total}, expected {look['sum']}")
    return wrong

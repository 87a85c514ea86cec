"""What probes/block_exits.bpf.c must count in a workload that says what it launched."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from egpu.bpf.demangle import demangle

ENTERED, ENTERED_THREADS, ENTERED_SUM, LEFT, LEFT_THREADS, LEFT_SUM, ALONE = range(7)


def wrong_block_exits(
    kernels: Mapping[str, Mapping], report: Mapping, trapping: Collection[str] = ()
) -> tuple[list[str], str]:
    """(what is not as it must be, what was checked), over the kernels that had the probes.

    ``kernels`` are the workload's own totals, by mangled name; ``report`` is egpu's.  ``trapping``:
    kernels with a path that ends in a trap, which no launch of the workload takes; the report has
    to warn of these and of nothing else.
    """
    wrong = wrong_warnings(report, {demangle(kernel) for kernel in trapping})
    rows = {row["name"]: row for row in report["kernels"]}
    blocks = threads = count = 0
    left_out = []
    for kernel, totals in kernels.items():
        row = rows[demangle(kernel)]
        if row["not_probed"]:
            left_out.append(f"{row['name']}: {row['not_probed']}")
            if row["launches_probed"]:
                wrong.append(f"{row['name']}: only some launches had probes")
            continue
        count += 1
        blocks += totals["blocks"]
        threads += totals["threads"]
    seen = dict.fromkeys(range(ALONE + 1), 0)
    for row in report["maps"]["totals"]:  # one for each context that has something
        seen[row["key"]] = (seen[row["key"]] + row["value"]) % (1 << 64)
    for place, expected in (
        (ENTERED, blocks),
        (ENTERED_THREADS, threads),
        (LEFT, blocks),
        (LEFT_THREADS, threads),
        (LEFT_SUM, seen[ENTERED_SUM]),
        (ALONE, blocks),
    ):
        if seen[place] != expected:
            wrong.append(f"total {place} is {seen[place]}, expected {expected}")
    if not count:
        wrong.append("no kernel had the probes")
    answer = f"{blocks:,} blocks of {count} kernels left once"
    return wrong, answer + "".join(f"; without probes: {each}" for each in left_out)


def wrong_warnings(report: Mapping, trapping: set[str]) -> list[str]:
    """What the report warns of without need, and what it should have warned of.

    It says why a kernel has no probes at all, and of each twin with a trap, used or not.
    """
    rows = {row["name"]: row for row in report["kernels"]}
    awaited = {name for name in trapping if name in rows and rows[name]["launches_probed"]}
    wrong = []
    for text in report["warnings"]:
        name, found, _ = text.partition(": threads that end by trap")
        if found and name in trapping:
            awaited.discard(name)
        elif not any(_says_why(text, row) for row in report["kernels"]):
            wrong.append(f"warning: {text}")
    return wrong + [f"no warning of the trap in {name}" for name in sorted(awaited)]


def _says_why(text: str, row: Mapping) -> bool:
    refused = bool(row["not_probed"]) and not row["launches_probed"]
    return refused and text.startswith(f"{row['name']}: not supported: ")

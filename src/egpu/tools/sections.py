"""The parts that every tool's report has: what was not probed, and what egpu itself cost."""

from __future__ import annotations

from egpu.report import KERNEL, Align, Column, Paragraph, Part, Table, Weight, duration
from egpu.tools.model import KernelLaunches, Run, RunCost

PARTIAL = "+"  # stands behind every number that is a lower bound


def count(value: int, *, lower_bound: bool) -> str:
    """A number for a cell, marked if it is only a lower bound."""
    return f"{value:,}{PARTIAL if lower_bound else ''}"


def coverage(run: Run) -> list[Part]:
    """What is missing from the numbers above; empty if nothing is."""
    parts: list[Part] = []
    missing = [kernel for kernel in run.kernels if kernel.partial]
    if missing:
        rows = tuple(
            (kernel.label, reason, f"{number:,}", f"{kernel.seen:,}")
            for kernel in missing
            for reason, number in _reasons(kernel)
        )
        columns = (
            KERNEL,
            Column("WHY", Align.LEFT, may_shorten=True),
            Column("LAUNCHES"),
            Column("OF"),
        )
        parts.append(Table("Launches that were not probed", columns, rows))
    if run.partial:
        text = f"Numbers with {PARTIAL} are lower bounds: not every launch was probed."
        if run.snapshot:
            text = f"Numbers with {PARTIAL} are lower bounds: {run.snapshot}."
        parts.append(Paragraph(text, Weight.WARNING))
    parts += [Paragraph(warning, Weight.WARNING) for warning in run.warnings]
    return parts


def cost(run: Run) -> list[Part]:
    """The cost lines that end every report."""
    seen = sum(kernel.seen for kernel in run.kernels)
    probed = sum(kernel.probed for kernel in run.kernels)
    spent = run.cost
    place = "the simulated device" if run.simulated else run.device
    cached = f" ({spent.cached} from the cache)" if spent.cached else ""
    lines = [
        (
            f"egpu on {place}: {probed:,} of {seen:,} launches probed, "
            f"{spent.twins} twins built in {spent.twin_ms:.0f} ms{cached}, "
            f"{spent.records_dropped:,} records dropped, {spent.records_missing:,} missing."
        ),
        _slowdown(spent, probed),
    ]
    if spent.instructions:
        lines.append(
            f"On the device the probes add at most {spent.instructions:,} BPF instructions to a "
            f"thread, {spent.site_instructions:,} at one site; their time is not measured."
        )
    registers = "" if run.simulated else _registers(run.kernels)  # it has no real ones
    if registers:
        lines.append(f"Registers per thread, before -> after: {registers}.")
    return [Paragraph(line, Weight.COST) for line in lines]


def _slowdown(spent: RunCost, probed: int) -> str:
    """What launches were held up by, and the share of the run that it is."""
    parts = []
    if spent.waits:
        parts.append(f"{spent.waits:,} launches waited {duration(spent.wait_ms * 1e6)} for twins")
    if spent.asks:
        waited = duration(spent.ask_ms * 1e6)
        parts.append(f"{spent.asks:,} launches waited {waited} to learn that no probe is for them")
    if spent.launch_ns is not None:
        parts.append(f"{spent.launch_ns:.0f} ns per probed launch")
    part = spent.host_share(probed)
    if not parts:
        return "Slowdown on the host: not measured."
    amount = "" if part is None else f" ({_percent(part)} of the run)"
    return f"Slowdown on the host: {', then '.join(parts)}{amount}."


def _percent(part: float) -> str:
    """A share with two significant digits: "0.012 %", "3.4 %", "120 %"."""
    value = 100 * part
    digits = 0 if value >= 9.95 else 1 if value >= 0.995 else 2 if value >= 0.0995 else 3
    return f"{value:.{digits}f} %"


def share(part: float, whole: float) -> str:
    """A share in whole percent, "-" of nothing."""
    return f"{100 * part / whole:.0f} %" if whole else "-"


def common_data(run: Run) -> dict[str, object]:
    """The keys that every tool's JSON has."""
    spent = run.cost
    host = spent.host_share(sum(kernel.probed for kernel in run.kernels))
    return {
        "device": run.device,
        "simulated": run.simulated,
        "partial": run.partial,
        "snapshot": run.snapshot,
        "warnings": list(run.warnings),
        "launches": {
            "seen": sum(kernel.seen for kernel in run.kernels),
            "probed": sum(kernel.probed for kernel in run.kernels),
        },
        "cost": {
            "twins": spent.twins,
            "twins_cached": spent.cached,
            "images": spent.images,
            "twin_ms": round(spent.twin_ms, 3),
            "waits": spent.waits,
            "wait_ms": round(spent.wait_ms, 3),
            "asks": spent.asks,
            "ask_ms": round(spent.ask_ms, 3),
            "launch_ns": None if spent.launch_ns is None else round(spent.launch_ns, 1),
            "launches_timed": spent.timed,
            "run_ms": round(spent.run_ms, 3),
            "host_share": None if host is None else round(host, 6),
            "instructions": spent.instructions,
            "site_instructions": spent.site_instructions,
            "records_dropped": spent.records_dropped,
            "records_missing": spent.records_missing,
            "runs_cut_short": spent.runs_cut_short,
        },
    }


def launch_data(kernel: KernelLaunches) -> dict[str, object]:
    """The keys that every kernel of every tool's JSON has."""
    return {
        "kernel_id": kernel.kernel_id,
        "name": kernel.name,
        "short_name": kernel.label,
        "launches_seen": kernel.seen,
        "launches_probed": kernel.probed,
        "launches_captured": kernel.captured,
        "not_probed": dict(_reasons(kernel)),
        "registers_before": kernel.registers_before,
        "registers_after": kernel.registers_after,
        "partial": kernel.partial,
    }


def _reasons(kernel: KernelLaunches) -> tuple[tuple[str, int], ...]:
    """The reasons, with a row for launches that none of them explains."""
    explained = sum(number for _, number in kernel.not_probed)
    rest = kernel.seen - kernel.probed - explained
    return (*kernel.not_probed, ("unknown", rest)) if rest > 0 else kernel.not_probed


def _registers(kernels: tuple[KernelLaunches, ...]) -> str:
    known = [kernel for kernel in kernels if kernel.registers_after]
    return ", ".join(
        f"{kernel.label} {kernel.registers_before} -> {kernel.registers_after}" for kernel in known
    )

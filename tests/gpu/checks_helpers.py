"""Helpers on the device: what they print, read and tell, against what is known otherwise."""

from __future__ import annotations

from building import HERE, Built
from observing import egpu, plain, require
from print_lines import documents, wrong_lines


def printk(built: Built) -> str:
    """Lines of five kernels: every one is right, and what was dropped is counted."""
    workload = [str(built.demo), "--launches", "3", "--size", "300000", "--json"]
    program = str(HERE / "probes" / "prints.bpf.o")
    options = ("--json", "--print-limit", "0")
    run = plain(egpu("run", program, *options, "--", *workload), timeout=120)
    require(run.code == 0, f"exit {run.code}: {run.errors[-2000:]}")
    lines, report, kernels = documents(run.output)
    wrong = wrong_lines(lines, report, kernels)
    require(not wrong, "; ".join(wrong[:10]))
    require(bool(lines), "no line came")
    return f"{len(lines):,} lines exact, {report['printed']['dropped']:,} dropped"


CHECKS = (printk,)

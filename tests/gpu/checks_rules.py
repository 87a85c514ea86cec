"""Each rule of machine code taken out: a rule whose absence nobody sees may be none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from building import HERE, WORKLOADS, Built
from observing import Observed, environment, plain, require, rows_by_name, split_report

from egpu.bpf.demangle import demangle
from egpu.splice.sass_rules import Rule

_TIMEOUT_S = 30  # of a run whose kernels do not end
_MISSING = 77  # exit code of frameworks.py: not installed
_ROUNDS = "40"

# Where each rule is taken out: a tool, and the kernels that it is for.  What is not here is seen by
# counters in every kernel.
_PLACES = {
    Rule.REGISTER_MARGIN: ("kernellat", "one_by_one"),
    Rule.NO_CARRIED_UNIFORMS: ("kernellat", "one_by_one"),
    Rule.NO_MEETING: ("kernellat", "one_by_one"),
}
_DEFAULT = ("kernelcount", "*")

# Kernels and tools here keep nothing in local memory, rule or not (docs/machine-code.md).
_WITHOUT_A_PLACE = frozenset({Rule.NO_STACK})
# Without these something must be seen at once.  The damage of the others depends on when something
# lands, and may need more launches than a check makes: docs/machine-code.md.
CERTAIN = frozenset({Rule.OWN_UNIFORMS})


def rules(built: Built) -> str:
    """What is seen without each rule within a few seconds: wrong counts, wrong results, a fault, or
    kernels that do not end.  With every rule nothing is seen."""
    found = {}
    for place in (_DEFAULT, ("kernellat", "one_by_one")):
        damage = _damage(None, place, _argv(built, None))
        require(not damage, f"{place}: with every rule: {damage}")  # else the rest says nothing
    for rule in set(Rule) - _WITHOUT_A_PLACE:
        place = _PLACES.get(rule, _DEFAULT)
        found[rule] = _damage(rule, place, _argv(built, rule))
    seen = "; ".join(f"{rule.name}: {text}" for rule, text in found.items() if text)
    missed = [rule for rule, text in found.items() if not text]
    answer = f"seen: {seen}; not seen: {', '.join(rule.name for rule in missed) or 'none'}"
    require(not CERTAIN & set(missed), answer)
    return answer


def _argv(built: Built, rule: Rule | None) -> list[str]:
    if rule is Rule.SECOND_PREDICATE:  # of kernels here, only PyTorch's have such an EXIT
        return [sys.executable, str(WORKLOADS / "frameworks.py"), "all"]
    return [built.program("machine_code"), _ROUNDS]


def _damage(rule: Rule | None, place: tuple[str, str], argv: Sequence[str]) -> str:
    """What went wrong without a rule, "" if nothing."""
    tool, kernels = place
    unprobed = plain(argv, timeout=120)
    if unprobed.code == _MISSING:
        return ""
    start = [str(HERE / "without_rule.py"), rule.name] if rule is not None else ["-m", "egpu"]
    options = ("--json", "--allow-occupancy-loss", "--kernels", kernels)
    with subprocess.Popen(
        [sys.executable, *start, "run", tool, *options, "--", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,  # the workload is killed with it
    ) as process:
        try:
            output, errors = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "kernels did not end"
    text, report = split_report(output)
    if process.returncode != 0:
        return f"exit {process.returncode}"
    if text != unprobed.output:
        return "wrong results"
    return _miscounted(Observed(0, text, errors, report))


def _miscounted(run: Observed) -> str:
    rows = rows_by_name(run.report, run.errors)
    for name, totals in run.last.get("kernels", {}).items():
        row = rows.get(demangle(name))
        if row is None or row["not_probed"]:
            continue
        counts = {"blocks": row.get("blocks"), "threads": row.get("threads")}
        if "block" in row:  # kernellat's
            counts = {"blocks": row["block"]["count"], "launches": row["launch"]["count"]}
        for what, count in counts.items():
            if count != totals[what]:
                return f"{name}: {count} of {totals[what]} {what}"
        if row.get("exits", totals["threads"]) != totals["threads"]:
            return f"{name}: {row['exits']} of {totals['threads']} threads left"
    return ""


CHECKS = (rules,)

"""Each rule of machine code taken out: a rule whose absence nobody sees may be none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from block_exit_totals import wrong_block_exits
from building import HERE, WORKLOADS, Built
from leaving_totals import documents, wrong_leavings
from observing import Observed, environment, plain, require, rows_by_name, split_report
from ways import Way, demo

from egpu.bpf.demangle import demangle
from egpu.image.cubin import open_cubin
from egpu.image.cubin_edit import put_together, take_apart
from egpu.splice.sass_encoding import (
    SR_CLOCK,
    STALL,
    bytes_of,
    loads_stack_pointer,
    read_clock,
    words_of,
)
from egpu.splice.sass_rules import Rule

_TIMEOUT_S = 40  # of a run whose kernels do not end
_MISSING = 77  # exit code of frameworks.py: not installed
_AT_ONCE = 4
_TRAPPING = ("together",)  # kernels of machine_code.cu with a trap


@dataclass(frozen=True)
class Place:
    """Where a rule is taken out: what is probed by what; ``wrong`` gives what is miscounted in a
    run's output, "" if nothing."""

    name: str
    probe: str
    argv: tuple[str, ...]
    wrong: Callable[[str], str]


def places(built: Built) -> dict[str, Place]:
    """By name; each is exact with every rule."""
    kernels, stress = built.program("machine_code"), built.program("stress")
    torch = (sys.executable, str(WORKLOADS / "frameworks.py"), "all")
    names = ("block_exits", "leaving", "pushed", "stores")
    blocks, leaves, pairs, stores = (str(HERE / "probes" / f"{name}.bpf.o") for name in names)
    shuffles = tuple(demo(built, Way.MACHINE_CODE, 2, 100_003))
    found = (
        Place("kernelcount", "kernelcount", (kernels, "40"), _miscounted),
        Place("kernellat", "kernellat", (kernels, "40"), _miscounted),
        Place("uniforms", "kernelcount", (built.program("hogging"), "20"), _miscounted),
        Place("PyTorch", "kernelcount", torch, _miscounted),
        Place("blocks", blocks, (stress, "60"), _miscounted_blocks),
        Place("blocks of kernels", blocks, (kernels, "40"), _miscounted_blocks),
        Place("threads", leaves, (stress, "25"), _miscounted_threads),
        Place("threads of kernels", leaves, (kernels, "4"), _miscounted_threads),
        Place("shuffles", pairs, shuffles, _nothing),  # the workload's own results say it
        Place("stores", stores, (kernels, "40"), _wrong_stores),
        Place("stores at once", stores, overwriting(built), _wrong_stores),
    )
    return {each.name: each for each in found}


def rules(built: Built) -> str:
    """What is seen without each rule: wrong counts, wrong results, a fault, or kernels that do not
    end.  With every rule nothing is seen."""
    known = places(built)
    trials = [(None, place) for place in known.values()]
    trials += [(rule, known[name]) for rule, names in _SEEN_AT.items() for name in names]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        damages = list(pool.map(lambda trial: _damage(*trial), trials))
    found: dict[Rule, list[str]] = {rule: [] for rule in Rule}
    for (rule, place), damage in zip(trials, damages, strict=True):
        if rule is None:
            require(not damage, f"{place.name}: with every rule: {damage}")  # the rest says nothing
        elif damage:
            found[rule].append(f"{place.name}: {damage}")
    seen = "; ".join(f"{rule.name}: {', '.join(text)}" for rule, text in found.items() if text)
    missed = [rule for rule in found if not found[rule]]
    answer = f"seen: {seen}; not seen: {', '.join(rule.name for rule in missed) or 'none'}"
    require(not CERTAIN & set(missed), answer)
    return answer


# Where the absence of each rule is looked for.
_SEEN_AT = {
    Rule.LATE_READS: ("kernelcount", "stores"),
    Rule.VISIBLE_SCOREBOARD: ("stores at once",),
    Rule.LANDED_LOADS: ("kernelcount", "blocks"),
    Rule.REGISTER_MARGIN: ("kernellat",),
    Rule.SECOND_PREDICATE: ("PyTorch",),
    Rule.EXIT_STALL: ("uniforms",),
    Rule.OWN_UNIFORMS: ("blocks", "blocks of kernels"),
    Rule.NO_CARRIED_UNIFORMS: ("blocks", "blocks of kernels"),
    Rule.NO_MEETING: ("blocks", "blocks of kernels", "threads", "threads of kernels"),
    Rule.MEETING_AGAIN: ("shuffles",),
    Rule.LATE_STACK_POINTER: ("blocks", "blocks of kernels"),
}
# Nothing was ever seen without it since probes exchange no values between lanes at exits: what is
# left are barriers without a mask, in the place of which there is nothing with the rule.
_NEVER_SEEN = frozenset({Rule.NO_MEETING})
CERTAIN = frozenset(Rule) - _NEVER_SEEN


def overwriting(built: Built) -> tuple[str, ...]:
    """A workload whose kernels begin with an instruction that overwrites R2 and R3: the assembler's
    begin with a load of the stack pointer that nothing waits for."""
    parts = take_apart(open_cubin(Path(built.driver_cubin).read_bytes()))
    changed = {}
    for number, part in enumerate(parts.parts):
        if part.name.startswith(".text."):
            first, *others = words_of(part.data)
            require(loads_stack_pointer(first), f"{part.name}: begins with {first:#x}")
            changed[number] = bytes_of([STALL.set(read_clock(2, SR_CLOCK), 11), *others])
    path = built.folder / "overwriting.cubin"
    path.write_bytes(put_together(parts.with_data(changed)))
    return built.program("driver"), str(path)


def _damage(rule: Rule | None, place: Place) -> str:
    """What went wrong without a rule, "" if nothing."""
    unprobed = plain(place.argv, timeout=120)
    if unprobed.code == _MISSING:
        return ""
    start = [str(HERE / "without_rule.py"), rule.name] if rule is not None else ["-m", "egpu"]
    options = ("--json", "--allow-occupancy-loss", "--machine-code")
    with subprocess.Popen(
        [sys.executable, *start, "run", place.probe, *options, "--", *place.argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,  # the workload is killed with it
    ) as process:
        try:
            output, _ = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "kernels did not end"
    if process.returncode != 0:
        return f"exit {process.returncode}"
    if not output.startswith(unprobed.output.rstrip()) and not _same_lines(output, unprobed):
        return "wrong results"
    return place.wrong(output)


def _same_lines(output: str, unprobed: Observed) -> bool:
    """Whether the workload's lines are there, among records of rings."""
    lines = set(output.splitlines())
    return all(line in lines for line in unprobed.output.splitlines())


def _miscounted(output: str) -> str:
    """Of kernelcount and kernellat."""
    text, report = split_report(output)
    run = Observed(0, text, "", report)
    rows = rows_by_name(run.report)
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


def _nothing(_output: str) -> str:
    return ""


_STORED = 0x5E1F  # by probes/stores.bpf.c


def _wrong_stores(output: str) -> str:
    found = {row["value"] for row in json.loads(output.strip().splitlines()[-1])["maps"]["stored"]}
    return "" if found <= {0, _STORED} and _STORED in found else f"stored: {found}"


def _miscounted_blocks(output: str) -> str:
    *lines, report = output.strip().splitlines()
    kernels = json.loads(lines[-1])["kernels"]
    trapping = [name for name in _TRAPPING if name in kernels]
    return _first(wrong_block_exits(kernels, json.loads(report), trapping)[0])


def _miscounted_threads(output: str) -> str:
    found, report, kernels, _ = documents(output)
    return _first(wrong_leavings(kernels, report, found)[0])


def _first(wrong: Sequence[str]) -> str:
    return wrong[0] if wrong else ""


CHECKS = (rules,)

"""Kernels that exist only as machine code: results unchanged, counts exact."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from building import HERE, ROOT, WORKLOADS, Built
from leaving_totals import documents, wrong_leavings
from observing import (
    Observed,
    egpu,
    plain,
    probed,
    require,
    require_accounted,
    require_same,
    require_totals,
    rows_by_name,
)

from egpu.bpf.demangle import demangle

_MISSING = 77  # exit code of frameworks.py: not installed


def sass_counts(built: Built) -> str:
    """Every launch shape, kernels written to be disturbed: exact counts, the same results."""
    argv = [built.program("machine_code")]
    unprobed, run = plain(argv), probed(argv)
    require_same(unprobed, run)
    return f"{require_totals(run)} launches exact"


def sass_repeated(built: Built) -> str:
    """Thousands of launches, three times over: what goes wrong one time in ten shows."""
    argv = [built.program("machine_code"), "100"]
    unprobed = plain(argv)
    launches = 0
    for _ in range(3):
        run = probed(argv)
        require_same(unprobed, run)
        launches += require_totals(run)
    return f"{launches} launches exact"


def sass_nodes(built: Built) -> str:
    """Explicit graph nodes of machine code: packed parameters, and nodes that are set to other
    parameters and kernels; one kernel cannot be probed, and is counted as often as it is recorded.
    """
    argv = [built.program("driver"), built.driver_cubin]
    unprobed, run = plain(argv), probed(argv, options=("--explain",))
    require_same(unprobed, run)
    launches = require_totals(run, but=["stepped"])
    ways = {row["name"]: row["way"] for row in run.report["explain"]}
    require(ways.pop("stepped") == "no" and set(ways.values()) == {"SASS"}, f"probed by {ways}")
    rows = rows_by_name(run.report)
    alone = rows["stepped"]
    require(
        (alone["launches_captured"], alone["launches_probed"]) == (_STEPPED, 0)
        and alone["not_probed"] == {"no twin can be made": _STEPPED}
        and not alone["threads"],
        f"stepped: {alone}",
    )
    recorded = {name: rows[name]["launches_captured"] for name in ("packed", "noded")}
    require(recorded == {"packed": 3, "noded": 4}, f"recorded: {recorded}")
    return f"{launches} launches exact, {_STEPPED} recorded without probes"


_STEPPED = 4  # nodes that driver.cpp sets to the kernel of that name


def sass_hopper(built: Built) -> str:
    """Warps that hand registers to each other, kernels that begin before the one before them has
    ended, blocks that meet in clusters while some of their threads have left."""
    argv = [built.program("hopper")]
    unprobed, run = plain(argv), probed(argv, options=("--explain",))
    require_same(unprobed, run)
    launches = require_totals(run)
    ways = {row["name"]: row["way"] for row in run.report["explain"]}
    require(set(ways.values()) == {"SASS"}, f"probed by {ways}")
    # The start clock lies in registers that a kernel which divides its own has not to give.
    timed = probed(argv, tool="kernellat", options=("--allow-occupancy-loss",))
    require_same(unprobed, timed)
    rows = rows_by_name(timed.report)
    divided = rows.pop("handed_over")
    seen = divided["launches_seen"]
    require(divided["not_probed"] == {"no twin can be made": seen}, f"handed_over: {divided}")
    reasons = [text for text in timed.report["warnings"] if "setmaxnreg" in text]
    require(len(reasons) == 1, f"no reason: {timed.report['warnings']}")
    for name, row in rows.items():
        blocks = unprobed.last["kernels"][name]["blocks"]
        require(not row["not_probed"], f"{name}: {row['not_probed']}")
        require(row["block"]["count"] == blocks, f"{name}: {row['block']} of {blocks} blocks")
        require(row["block"]["max"] > 0, f"{name}: {row['block']}")
    return f"{launches} launches exact; {reasons[0]}"


def sass_stress(built: Built) -> str:
    """More than 100,000 short launches: streams, graphs, a second context, and every device."""
    argv = [built.program("stress"), "1100"]
    unprobed = plain(argv)
    run = probed(argv, timeout=300)
    require_same(unprobed, run)
    launches = require_totals(run)
    require(launches > 100_000, f"only {launches} launches")
    return f"{launches} launches exact"


def sass_warps(built: Built) -> str:
    """A lane that the hardware elects counts at entry and exit of each warp: exact sums, whatever
    diverges, in kernels that were written to be disturbed and in short ones."""
    return _summed(built, "counters.bpf.o")


def sass_threads(built: Built) -> str:
    """The same where each thread adds one, which one lane does for all that are there."""
    return _summed(built, "threads.bpf.o")


def _summed(built: Built, probes: str) -> str:
    program = str(ROOT / "bench" / "probes" / probes)
    answers = []
    for argv in ([built.program("machine_code"), "20"], [built.program("stress"), "150"]):
        unprobed = plain(argv)
        run = plain(egpu("run", program, "--json", "--", *argv))
        *output, report = run.output.strip().splitlines()
        require(run.code == 0, f"exit {run.code}: {run.errors[-2000:]}")
        require(output == unprobed.output.strip().splitlines(), "output differs")
        said, report = json.loads(output[-1])["kernels"], json.loads(report)
        launches = report["launches"]
        require(launches["seen"] == launches["probed"], f"probed: {launches}")
        threads = sum(totals["threads"] for totals in said.values())
        sums = {0: 0, 1: 0}
        for row in report["maps"]["counts"]:  # one for each context
            sums[row["key"]] += row["value"]
        require(sums == {0: threads, 1: threads}, f"{sums} of {threads} threads came and left")
        answers.append(f"{threads:,} threads")
    return f"{' and '.join(answers)} exact"


def sass_preferred(built: Built) -> str:
    """Where a program has machine code and PTX, probes go into the machine code, or into PTX where
    ptxas can hold that to registers that cost no resident block."""
    argv = [built.program("runtime_static")]
    unprobed, run = plain(argv), probed(argv, options=("--explain",))
    require_same(unprobed, run)
    launches = require_totals(run)
    rows = [row for row in run.report["explain"] if row["probed"]]
    dearer = {
        row["name"] for row in rows if (row["blocks_after"] or 0) < (row["blocks_before"] or 0)
    }
    text = {row["name"] for row in rows if row["way"] == "PTX"}
    require(not text & dearer, f"PTX with fewer resident blocks: {sorted(text & dearer)}")
    # Where a loss of blocks is allowed, all are in machine code but for what cannot be.
    anyhow = probed(argv, options=("--explain", "--allow-occupancy-loss"))
    require_same(unprobed, anyhow)
    require_totals(anyhow)
    ways = {row["name"]: row["way"] for row in anyhow.report["explain"] if row["probed"]}
    expected = {name: "PTX" if name in _WITH_CONSTANTS else "SASS" for name in ways}
    require(ways == expected, f"probed by {ways}")
    return f"{launches} launches exact, {len(rows) - len(text)} of {len(rows)} in machine code"


_WITH_CONSTANTS = ("writer_plain", "writer_probed")  # which the program can write


def sass_latencies(built: Built) -> str:
    """kernellat keeps the start in registers of its own: every block of every kernel that is
    probed has a duration."""
    argv = [built.program("machine_code"), "4"]
    unprobed, run = (
        plain(argv),
        probed(argv, tool="kernellat", options=("--allow-occupancy-loss",)),
    )
    require_same(unprobed, run)
    seen, count = require_accounted(run)
    # A cooperative launch never runs a twin of which fewer blocks fit.
    missing = [
        kernel
        for kernel, row in rows_by_name(run.report).items()
        if row["not_probed"] and kernel != "together"
    ]
    require(not missing, f"{count} of {seen} launches probed: {_reasons(run)} ({missing})")
    blocks = 0
    for name, totals in run.last["kernels"].items():
        row = rows_by_name(run.report)[demangle(name)]
        if row["not_probed"]:
            continue
        measured = (row["block"]["count"], row["launch"]["count"])
        expected = (totals["blocks"], totals["launches"])
        require(measured == expected, f"{name}: (blocks, launches) {measured}, expected {expected}")
        require(0 < row["block"]["max"] <= row["launch"]["max"], f"{name}: {row}")
        blocks += totals["blocks"]
    require(not any(run.report["lost"].values()), f"lost: {run.report['lost']}")
    return f"{count} launches and {blocks} blocks timed"


def leaving(built: Built) -> str:
    """Threads that leave and part, each counting in a hash map and some sending records, in machine
    code and in PTX: all are counted, whatever else their warps do."""
    probe = str(HERE / "probes" / "leaving.bpf.o")
    threads, records = 0, 0
    for name, rounds in (("stress", "25"), ("machine_code", "4")):
        for program in (name, f"{name}_ptx"):
            argv = [built.program(program), rounds]
            unprobed = plain(argv)
            options = ("--json", "--allow-occupancy-loss", "--no-machine-code")
            options = options[: 3 if program.endswith("_ptx") else 2]
            run = plain(egpu("run", probe, *options, "--", *argv))
            require(run.code == 0, f"exit {run.code}: {run.errors[-2000:]}")
            found, report, kernels, lines = documents(run.output)
            require(lines == unprobed.output.strip().splitlines(), "output differs")
            wrong, probed_threads = wrong_leavings(kernels, report, found)
            require(not wrong, f"{program}: {'; '.join(wrong)}")
            missed = {row["name"] for row in report["kernels"] if row["not_probed"]}
            # A cooperative launch never runs a twin of which fewer blocks fit.
            few = missed <= {"together"}
            require(few or program != name, f"{program}: {missed} {report['warnings'][:5]}")
            threads += probed_threads
            records += len(found)
    return f"{threads:,} threads and {records:,} records exact"


def sass_constants(built: Built) -> str:
    """__constant__ variables that change between launches: right in PTX, refused by kernel in
    machine code."""
    argv = [built.program("constants")]
    unprobed, run = plain(argv), probed(argv)
    require_same(unprobed, run)
    launches = require_totals(run)
    argv = [built.program("constants_alone")]
    unprobed, run = plain(argv), probed(argv)
    require_same(unprobed, run)
    rows = rows_by_name(run.report)
    seen = rows["scaled"]["launches_seen"]
    require(not rows["plain"]["not_probed"], f"plain: {rows['plain']['not_probed']}")
    require(
        rows["scaled"]["not_probed"] == {"no twin can be made": seen}, f"scaled: {rows['scaled']}"
    )
    reasons = [text for text in run.report["warnings"] if "__constant__ memory" in text]
    require(len(reasons) == 1, f"no reason: {run.report['warnings']}")
    return f"{launches} launches exact; {reasons[0]}"


def _framework(name: str, *, allowed: frozenset[str] = frozenset(), recording: bool = False) -> str:
    """Results as without probes, counts as the launches' shapes have it; launches may stay unprobed
    for an ``allowed`` reason only.  ``recording``: some have to be recorded into graphs."""
    return _counted(name, allowed=allowed, recording=recording)[0]


def _counted(
    name: str, *, allowed: frozenset[str] = frozenset(), recording: bool = False
) -> tuple[str, Observed | None]:
    """The same, with the run; None where the framework is not installed."""
    run, skipped = _same_results(name)
    if run is None:
        return skipped, None
    seen, count = require_accounted(run)
    rows = rows_by_name(run.report)
    wrong = [f"{kernel}: {text}" for kernel, row in rows.items() for text in _miscounts(row)]
    require(not wrong, "\n  ".join(["counts:", *wrong]))
    require(run.report["overflow_threads"] == 0, "kernels without room in the map")
    missed = [text for kernel, row in rows.items() for text in _missed(kernel, row)]
    said = "\n    ".join(["", *missed, *run.report["warnings"]])
    others = {reason for row in rows.values() for reason in row["not_probed"]} - allowed
    require(count > 0 and not others, f"{count} of {seen} launches probed{said}")
    graphs = sum(row["launches_captured"] for row in rows.values())
    require(graphs > 0 or not recording, "nothing was recorded into a graph")
    answer = f"{count} of {seen} launches ({graphs} recorded), {len(rows)} kernels exact{said}"
    return answer, run


def _same_results(
    name: str, *, tool: str = "kernelcount", options: Sequence[str] = ()
) -> tuple[Observed | None, str]:
    """A framework's run under a tool, whose results are those without probes; None and why not
    where it is not installed."""
    argv = [sys.executable, str(WORKLOADS / "frameworks.py"), name]
    unprobed = plain(argv, timeout=300)
    if unprobed.code == _MISSING:
        return None, f"skipped: {unprobed.errors.strip().splitlines()[-1]}"
    require(unprobed.code == 0, f"unprobed: exit {unprobed.code}: {unprobed.errors[-2000:]}")
    run = probed(argv, tool=tool, options=options, timeout=500)
    require(run.code == 0, f"probed: exit {run.code}: {run.errors[-2000:]}")
    require(bool(unprobed.last) and run.last.keys() == unprobed.last.keys(), "other results")
    wrong = [key for key, value in unprobed.last.items() if run.last[key] != value]
    if wrong:
        again = plain(argv, timeout=300).last
        varies = [key for key in wrong if again[key] != unprobed.last[key]]
        require(False, f"results differ: {wrong}; also without probes: {varies}")
    return run, ""


def _miscounts(row: Mapping) -> list[str]:
    """What was counted of a kernel and is not what its probed launches have."""
    found = []
    if row["threads"] != row["exits"]:
        found.append(f"{row['threads']} threads came, {row['exits']} left")
    for key in ("threads", "blocks"):
        expected = row[f"{key}_expected"]  # none for graphs, whose replays nobody saw
        if expected is not None and row[key] != expected:
            found.append(f"{row[key]} {key}, expected {expected}")
    if row["launches_probed"] and not row["threads"]:
        found.append("probed, and nobody came")
    return found


def _missed(kernel: str, row: Mapping) -> list[str]:
    return [f"{number} x {reason}: {kernel[:100]}" for reason, number in row["not_probed"].items()]


def _reasons(run: Observed) -> str:
    found: dict[str, int] = {}
    for row in rows_by_name(run.report).values():
        for reason, number in row["not_probed"].items():
            found[reason] = found.get(reason, 0) + number
    return "; ".join(f"{number} x {reason}" for reason, number in sorted(found.items()))


def sass_torch(built: Built) -> str:
    """PyTorch eager: 49 operators, four optimizers among them, each with the digest that it has
    without probes."""
    return _framework("torch")


def sass_training(built: Built) -> str:
    """A small transformer for 200 steps with AdamW, each loss bit for bit, and a replayed graph of
    two kernels, which ran as often as it says."""
    answer, run = _counted("train", recording=True)
    if run is None:
        return answer
    runs = run.last["runs_of_frac_and_atan"]
    for kernel in ("frac_kernel", "atan_kernel"):
        found = [row for name, row in rows_by_name(run.report).items() if kernel in name]
        require(len(found) == 1, f"{kernel}: {len(found)} kernels")
        (row,) = found
        require(row["launches_captured"] == 1, f"{kernel}: {row['launches_captured']} recorded")
        for what in ("threads", "exits", "blocks"):
            require(
                row[what] > 0 and row[what] % runs == 0, f"{kernel}: {row[what]} in {runs} runs"
            )
        # 1,024 elements: what one run has is known within what a thread may take.
        require(64 <= row["threads"] // runs <= 1024, f"{kernel}: {row['threads']} in {runs} runs")
    return answer


def sass_torch_stress(built: Built) -> str:
    """More than 100,000 short launches of PyTorch in eight streams: right results, exact counts."""
    answer, run = _counted("stress")
    if run is None:
        return answer
    launches = run.last["launches"]
    require(launches >= 100_000, f"only {launches} launches")
    wrong = {key: number for key, number in run.last.items() if key.startswith("wrong_") and number}
    require(not wrong, f"wrong results: {wrong}")
    rows = sorted((row["launches_seen"] for row in rows_by_name(run.report).values()), reverse=True)
    require(rows[:2] == [launches // 2] * 2, f"{launches} launches of two kernels, seen: {rows}")
    return answer


def kernellat_torch(built: Built) -> str:
    """Durations of PyTorch's kernels: of every launch and block that was probed, under names that
    can be told apart."""
    answers = []
    for name in ("torch", "short"):
        run, skipped = _same_results(
            name, tool="kernellat", options=("--explain", "--allow-occupancy-loss")
        )
        if run is None:
            return skipped
        answers.append(f"{name}: {_durations(run)}")
    return "; ".join(answers)


def _durations(run: Observed) -> str:
    seen, count = require_accounted(run)
    rows = [row for row in run.report["kernels"] if row["launches_probed"]]
    blocks = 0
    for row in rows:
        if not row["launches_captured"]:
            measured = row["launch"]["count"]
            require(measured == row["launches_probed"], f"{row['name']}: {measured} launches timed")
            require(row["blocks_incomplete"] == 0, f"{row['name']}: {row['blocks_incomplete']}")
        require(0 < row["block"]["max"] <= row["launch"]["max"], f"{row['name']}: {row}")
        blocks += row["block"]["count"]
    require(not any(run.report["lost"].values()), f"lost: {run.report['lost']}")
    for text in run.report["warnings"]:
        print("   ", text, flush=True)
    names = [row["short_name"] for row in run.report["kernels"]]
    require(len(set(names)) == len(names), f"names that are alike: {sorted(names)}")
    wrong = [name for name in names if "_Z" in name or not name or len(name) > _LONG_NAME]
    require(not wrong, f"not demangled, or not shortened: {wrong}")
    require(count > 0 and bool(rows), f"{count} of {seen} launches probed")
    return (
        f"{count} of {seen} launches and {blocks} blocks of {len(rows)} kernels timed; "
        f"not: {_reasons(run) or 'none'}"
    )


_LONG_NAME = 80  # what tables show, cut or not


def blocksched_torch(built: Built) -> str:
    """A record of every block of PyTorch's kernels, or one more that was dropped."""
    run, skipped = _same_results(
        "short", tool="blocksched", options=("--explain", "--allow-occupancy-loss")
    )
    if run is None:
        return skipped
    seen, count = require_accounted(run)
    rows = [row for row in run.report["kernels"] if row["launches_probed"]]
    records = run.report["records"]
    lost = records["dropped"] + records["missing"]
    known = [row for row in rows if row["blocks_expected"] is not None]
    expected = sum(row["blocks_expected"] for row in known)
    found = sum(row["blocks"] for row in known)
    require(bool(known) and found > 0, f"{count} of {seen} launches probed: {_reasons(run)}")
    require(expected - lost <= found <= expected, f"{found} of {expected} blocks, {records}")
    replayed = [row for row in rows if row["launches_captured"]]
    require(all(row["blocks"] for row in replayed), "graphs without a record")
    return (
        f"{found} of {expected} blocks of {len(known)} kernels, {lost} dropped, "
        f"{len(replayed)} in graphs; {count} of {seen} launches probed; "
        f"not: {_reasons(run) or 'none'}"
    )


def sass_gemms(built: Built) -> str:
    """Matrix products of every precision through cuBLAS and cuBLASLt, fp8 among them."""
    return _framework("gemms")


def sass_compiled(built: Built) -> str:
    """torch.compile: forward and backward."""
    return _framework("compiled")


def sass_numba(built: Built) -> str:
    """Kernels written in Python."""
    return _framework("numba")


def sass_triton(built: Built) -> str:
    """Triton kernels, tl.dot among them."""
    return _framework("triton")


def sass_cupy(built: Built) -> str:
    """CuPy's element-wise kernels, reductions, sorting and cuBLAS."""
    return _framework("cupy")


def sass_jax(built: Built) -> str:
    """JAX with its command buffers."""
    return _framework("jax", recording=True)


CHECKS = (
    sass_counts,
    sass_repeated,
    sass_nodes,
    sass_hopper,
    sass_stress,
    sass_warps,
    sass_threads,
    sass_preferred,
    sass_latencies,
    leaving,
    sass_constants,
    sass_torch,
    sass_training,
    sass_torch_stress,
    kernellat_torch,
    blocksched_torch,
    sass_gemms,
    sass_compiled,
    sass_triton,
    sass_cupy,
    sass_jax,
    sass_numba,
)

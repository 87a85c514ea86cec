"""Both verdicts on a program, and the written exceptions (docs/verifier.md, "Against Linux").

Where bpf(2) is not permitted, Linux's verdicts are those of ``linux_verdicts.txt``; run this file
with ``--record`` where it is permitted to write them anew.
"""

import contextlib
import functools
import hashlib
import platform
import random
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import budget_programs
import callback_programs
import linux_oracle
import oracle_programs
import pytest
from random_programs import MEMORY, Writer
from verifier_programs import CONFORMANCE, ENTRY, MAPS, ROOT, has_conformance, read_pairs

from egpu.bpf.asm import assemble
from egpu.bpf.conformance import read_case
from egpu.bpf.helpers import HELPERS
from egpu.bpf.insn import encode, program_from_code
from egpu.bpf.isa import CALL, MAY_GOTO, AluOp, CallSrc
from egpu.bpf.program import AttachKind, Insn
from egpu.errors import EgpuError
from egpu.verifier import callbacks as called
from egpu.verifier import memory, one_turn, verify
from egpu.verifier.gate import DEFAULT_LIMITS
from egpu.verifier.scalar import ANY, S64, ScalarDomain

SHIFTS = (AluOp.LSH, AluOp.RSH, AluOp.ARSH)


class Policy(NamedTuple):
    """A refusal of Linux that we do not repeat: its log, in which modes, the words of the docs,
    and the helpers that it is about."""

    log: str
    modes: frozenset
    reason: str
    calls: frozenset = frozenset()  # helpers of which the program calls one, if there are any
    budgeted: bool = False  # only programs that we take for the budget of a counting loop alone
    opcode: int | None = None  # which the program has

    def covers(self, case, log, mode):
        """Whether a refusal with this log is what is written down."""
        called = {i.imm for i in case.program.code if i.opcode == CALL and i.src == CallSrc.HELPER}
        fits = mode in self.modes and re.search(self.log, log)
        if not fits or (self.calls and not self.calls & called):
            return False
        if self.opcode is not None and all(i.opcode != self.opcode for i in case.program.code):
            return False
        return not self.budgeted or budget_alone(case)


PRIVILEGED, STRICT, NO_LEAK = "privileged", "strict alignment", "no leak"
EVERY = frozenset({PRIVILEGED, STRICT, NO_LEAK})
POLICIES = (
    Policy(r"dereference of modified ctx ptr", EVERY, "context pointers moved by a constant"),
    Policy(
        r"misaligned value access",
        frozenset({STRICT}),
        "unaligned accesses to the memory block of tests",
    ),
    Policy(
        r"pointer comparison prohibited",
        frozenset({NO_LEAK}),
        "comparison of pointers into the same memory",
    ),
    Policy(
        r"prohibited for !root|stack pointer arithmetic goes out of range",
        frozenset({NO_LEAK}),
        "variable offsets into the stack",
    ),
    Policy(
        r"infinite loop detected|BPF program is too large|jumps is too complex",
        frozenset({NO_LEAK}),
        "ways that a processor takes only when it guesses",
    ),
    Policy(
        r"BPF program is too large|jumps is too complex",
        EVERY,
        "callbacks whose number of calls Linux counts one by one",
        frozenset({164, 181}),
    ),
    Policy(
        r"verifier bug: No program to jit",
        EVERY,
        "functions whose address is taken and that are never called",
    ),
    Policy(
        r"infinite loop detected|BPF program is too large|jumps is too complex|back-edge",
        EVERY,
        "loops that count to a number that is not known",
        budgeted=True,
    ),
    Policy(
        r"BPF program is too large|jumps is too complex",
        EVERY,
        "loops with may_goto whose turns Linux counts one by one",
        opcode=MAY_GOTO,
    ),
    Policy(
        r"cannot use helper bpf_probe_read",
        frozenset({NO_LEAK}),
        "helpers that read the memory of others",
        frozenset({112, 113, 114, 115}),
    ),
    Policy(
        r"more than one arg with ref_obj_id",
        EVERY,
        "two arguments that point into one record",
    ),
)


class Case(NamedTuple):
    """A program to be judged; r1 is ``size`` bytes of memory, or a context if that is None."""

    name: str
    program: object
    size: int | None

    def ours(self, limits=DEFAULT_LIMITS):
        """Our refusal, None if we accept."""
        if self.program.on_host:  # where it runs alone: as sessions verify it
            limits = replace(limits, lost_updates=True)
        try:
            verify(self.program, memory_size=self.size or 0, limits=limits)
        except EgpuError as error:
            return error
        return None

    def key(self, mode):
        """What the recorded verdict of this program is found by."""
        shape = (mode, self.size, self.program.maps if self.size is None else ())
        text = repr(shape).encode() + encode(self.program.code)
        return hashlib.sha256(text).hexdigest()[:12]

    def job(self, flags=0):
        """The arguments of ``linux_oracle.load``."""
        if self.size is None:
            return linux_oracle.program_bytes(self.program), linux_oracle.TRACEPOINT, flags
        code = linux_oracle.stood_in(self.program.code)
        code = linux_oracle.with_descriptors(code, self.program.maps)
        prologue = linux_oracle.prologue(self.size)
        return encode((*prologue, *code)), linux_oracle.SOCKET_FILTER, flags


@contextlib.contextmanager
def as_coarse_as_linux():
    """Forget what Linux does not follow: division, byte swaps, wide shifts, bounds of fields,
    the turns of bpf_loop."""
    exact = {name: getattr(ScalarDomain, name) for name in ("alu", "alu_low")}
    forgotten = {"alu": S64.unknown, "alu_low": ANY[32]}

    def coarse(name):
        def operation(self, op, a, b, *, signed=False):
            amount, bits = (b.umax32, 32) if name == "alu_low" else (b.umax, 64)
            if op in (AluOp.DIV, AluOp.MOD) or (op in SHIFTS and amount >= bits):
                return forgotten[name]
            return exact[name](self, op, a, b, signed=signed)

        return operation

    with pytest.MonkeyPatch.context() as patch:
        for name in exact:
            patch.setattr(ScalarDomain, name, coarse(name))
        patch.setattr(ScalarDomain, "byte_swap", lambda self, value, size: ANY[8 * size])
        patch.setattr(memory, "_field_value", lambda found, skipped, size: ANY[8 * size])
        patch.setattr(called, "_up_to", lambda greatest: S64.unknown)
        for number, row in HELPERS.items():
            patch.setitem(HELPERS, number, replace(row, maximum=None))
        yield


def budget_alone(case, limits=DEFAULT_LIMITS):
    """Whether a budgeted loop, not made so by may_goto or bpf_loop, is why we take a program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_turn, "counts_to_unknown", lambda turn, state: False)
        error = case.ours(limits)
    return getattr(error, "rule", "") == "P4"


def excused(case, log, mode):
    """The written exception that covers a refusal of what we accept, None if there is none."""
    for policy in POLICIES:
        if policy.covers(case, log, mode):
            return policy.reason
    with as_coarse_as_linux():
        # Without those values, a loop may be one that a budget bounds.
        budgeted = any(policy.budgeted and policy.covers(case, log, mode) for policy in POLICIES)
        if budgeted or case.ours() is not None:
            return "values that Linux does not follow"
    return None


RECORD = Path(__file__).with_name("linux_verdicts.txt")
_recorded = {}  # while recording: key -> how the record says it


def verdicts(asked, mode):
    """Linux's (accepted, log) of each case; accepted is None where a record lacks it."""
    if linux_oracle.unavailable():
        return [recorded().get(case.key(mode), (None, "")) for case, _ in asked]
    flags = linux_oracle.STRICT_ALIGNMENT if mode == STRICT else 0
    jobs = [case.job(flags) for case, _ in asked]
    if mode == NO_LEAK:
        found = linux_oracle.without_leaks(jobs)
    else:
        found = [linux_oracle.load(*job) for job in jobs]
    for (case, error), (accepted, log) in zip(asked, found, strict=True):
        if error is None or accepted:
            _recorded[case.key(mode)] = "+" if accepted else refused_as(case, log, mode)
    return found


def refused_as(case, log, mode):
    """The number of the policy that excuses a refusal of Linux, or else whose log it has."""
    numbers = [n for n, policy in enumerate(POLICIES) if re.search(policy.log, log)]
    covering = (n for n in numbers if POLICIES[n].covers(case, log, mode))
    return str(next(covering, numbers[0] if numbers else "-"))


@functools.cache
def recorded():
    """Recorded verdicts by key.  A log is the pattern of the policy that it matched, or empty."""
    found = {}
    for line in RECORD.read_text().splitlines():
        if not line.startswith("#"):
            key, verdict = line.split()
            log = "" if verdict in "+-" else SAMPLES[int(verdict)]
            found[key] = verdict == "+", log
    return found


# What the log of each policy's refusals says, for replay.
SAMPLES = tuple(policy.log.split("|")[0] for policy in POLICIES)


def record():
    """Ask the kernel about every program of a CI run and write its verdicts."""
    for mode, cases in ci_runs():
        compare(cases, mode, false_rejects=mode == PRIVILEGED)
    lines = [f"# Verdicts of Linux {platform.release().split('-')[0]}: differential.py --record"]
    lines += [f"{key} {verdict}" for key, verdict in sorted(_recorded.items())]
    RECORD.write_text("\n".join(lines) + "\n")
    print(f"{len(lines) - 1} verdicts in {RECORD}")


class Outcome(NamedTuple):
    """How both verdicts compare: names of programs."""

    wrong: list  # accepted by us, refused by Linux, not excused: with its log
    excused: list  # with the reason
    both: list
    refused: list  # by us, with our error, accepted by Linux

    def __add__(self, other):
        return Outcome(*(a + b for a, b in zip(self, other, strict=True)))


def compare(cases, mode=PRIVILEGED, *, false_rejects=False):
    """Ask both verifiers; Linux only where we accept, unless ``false_rejects``."""
    outcome = Outcome([], [], [], [])
    asked = []
    for case in cases:
        error = case.ours()
        if error is None or false_rejects:
            asked.append((case, error))
    for (case, error), (accepted, log) in zip(asked, verdicts(asked, mode), strict=True):
        if accepted is None:
            continue  # not recorded
        if error is not None:
            if accepted:
                outcome.refused.append((case.name, error))
        elif accepted:
            outcome.both.append(case.name)
        else:
            reason = excused(case, log, mode)
            if reason is None:
                outcome.wrong.append((case.name, case.program.code, log))
            else:
                outcome.excused.append((case.name, reason))
    return outcome


def conformance():
    """The public suite where it is present, and our own cases."""
    paths = sorted((ROOT / "tests" / "conformance" / "cases").glob("*.data"))
    if has_conformance():
        paths += sorted((CONFORMANCE / "tests").glob("*.data"))
    for path in paths:
        case = read_case(path)
        yield bare(case.name, case.code(), len(case.memory))


def bare(name, code, size):
    """A program without attach point."""
    return Case(name, program_from_code(code, "p", maps=MAPS), size)


def rules():
    """The programs of the rule files, whether they pass or not, with 0 in place of r1."""
    for file in ("rules.txt", "threads.txt"):
        for name, pair in read_pairs(file).items():
            yield bare(f"{file}/{name}/accepted", assemble(pair.accepted), 0)
            yield bare(f"{file}/{name}/refused", assemble(pair.refused), 0)


def callbacks():
    """Programs with callbacks: alone, and as probes."""
    for name, text in callback_programs.texts():
        yield bare(f"callbacks/{name}", assemble(text), 0)


def budgeted(texts=budget_programs.LINUX_TOO):
    """Programs whose loops only a budget bounds."""
    for name, text in texts.items():
        yield bare(f"budgets/{name}", assemble(text), budget_programs.SIZE)


def generated(seeds):
    """Random programs."""
    for seed in seeds:
        text = Writer(random.Random(seed)).program()
        yield bare(f"random {seed}", assemble(text), MEMORY)


def mutant(code, randomness):
    """``code`` with one field of one instruction changed."""
    place = randomness.randrange(len(code))
    old = code[place]
    number = randomness.choice([0, 1, 4, 7, 8, 16, 31, 32, 63, 64, -1, -8, -16, 255, 1 << 20])
    field, value = randomness.choice(
        [
            ("opcode", randomness.randrange(256)),
            ("opcode", old.opcode ^ 1 << randomness.randrange(8)),
            ("dst", randomness.randrange(11)),
            ("src", randomness.randrange(11)),
            ("off", number if number < 1 << 15 else 2),
            ("off", max(-0x8000, min(0x7FFF, old.off + randomness.choice([-8, -4, -1, 1, 4, 8])))),
            ("imm", number),
            ("imm", max(-(1 << 31), min((1 << 31) - 1, old.imm + randomness.choice([-1, 1])))),
        ]
    )
    fields = {name: getattr(old, name) for name in ("opcode", "dst", "src", "off", "imm")}
    fields[field] = value
    return (*code[:place], Insn(**fields), *code[place + 1 :])


def mutants(sources, seed, count):
    """``count`` programs that differ in one field from one of ``sources``."""
    randomness = random.Random(seed)
    sources = [case for case in sources if 0 < len(case.program.code) < 400]
    for number in range(count):
        case = randomness.choice(sources)
        code = mutant(case.program.code, randomness)
        try:
            program = replace(case.program, code=code, lines=())
        except EgpuError:
            continue
        yield case._replace(name=f"{case.name} mutant {number} of {seed}", program=program)


def probes():
    """Whole probes: the corpus, the idioms and what we ship."""
    for name, program in (*oracle_programs.corpus(), *oracle_programs.shipped()):
        # Some fixtures are attached to nothing, which would give them test memory for a context.
        if all(point.kind is AttachKind.EXECUTOR for point in program.attach):
            program = replace(program, attach=ENTRY)  # noqa: PLW2901
        yield Case(name, program, None)


# Guessing, Linux walks these loops to its limit: seconds each, and nothing is learned.
_SLOW_GUESSES = re.compile(r"^loop$|/(loop|spin|cost)/")


def bare_programs(mode=PRIVILEGED):
    """Programs without a context."""
    cases = [*conformance(), *rules(), *callbacks(), *generated(range(10_000, 10_060))]
    return [c for c in cases if mode != NO_LEAK or not _SLOW_GUESSES.search(c.name)]


def mutated(mode, seed, count):
    """Mutants of everything that one mode can be asked about, short programs only."""
    sources = [*conformance(), *rules(), *callbacks()]
    if mode != NO_LEAK and not oracle_programs.compiler_missing():
        sources += probes()
    short = [
        case
        for case in sources
        if len(case.program.code) < 60 and not _SLOW_GUESSES.search(case.name)
    ]
    return mutants(short, seed, count)


MUTANTS = {PRIVILEGED: 1600, STRICT: 300, NO_LEAK: 200}  # a CI run


CALLBACK_MUTANTS = {PRIVILEGED: 1000, STRICT: 300, NO_LEAK: 300}  # of a CI run


def changed_callbacks(mode):
    """Mutants of the programs with callbacks."""
    seed = 500 + [*CALLBACK_MUTANTS].index(mode)
    return mutants(callbacks(), seed, CALLBACK_MUTANTS[mode])


BUDGET_MUTANTS = {PRIVILEGED: 120, STRICT: 60, NO_LEAK: 100}  # of a CI run


def changed_budgets(mode):
    """Mutants of the programs that a budget bounds, as far as Linux is done with them quickly."""
    seed = 700 + [*BUDGET_MUTANTS].index(mode)
    sources = [case for case in budgeted() if not _SLOW_BUDGETS.search(case.name)]
    return mutants(sources, seed, BUDGET_MUTANTS[mode])


_SLOW_BUDGETS = re.compile(r"/may_goto (sums|twice|in a function|on the stack)")


def ci_runs():
    """(mode, programs) of everything that a CI run asks about."""
    for seed, (mode, count) in enumerate(MUTANTS.items()):
        yield mode, bare_programs(mode)
        if mode != NO_LEAK and not oracle_programs.compiler_missing():
            yield mode, list(probes())
        yield mode, mutated(mode, seed, count)
        yield mode, changed_callbacks(mode)
        yield mode, list(budgeted())
        yield mode, changed_budgets(mode)


if __name__ == "__main__":
    if sys.argv[1:] != ["--record"] or linux_oracle.unavailable():
        sys.exit(linux_oracle.unavailable() or "usage: differential.py --record")
    record()

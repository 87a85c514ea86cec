"""Differential test: what this verifier takes, Linux takes.

Needs bpf(2); without it the tests are skipped and say why.
"""

import contextlib
import random

import linux_oracle
import pytest
from random_programs import MEMORY, Writer
from verifier_programs import CONFORMANCE, MAPS, ROOT, has_conformance, read_pairs

from egpu.bpf.asm import assemble, disassemble
from egpu.bpf.conformance import read_case
from egpu.bpf.insn import encode, program_from_code
from egpu.bpf.isa import AluOp
from egpu.bpf.program import Insn
from egpu.errors import EgpuError
from egpu.verifier import verify
from egpu.verifier.scalar import ANY, S64, ScalarDomain

pytestmark = pytest.mark.skipif(
    bool(linux_oracle.unavailable()), reason=linux_oracle.unavailable() or "available"
)


SHIFTS = (AluOp.LSH, AluOp.RSH, AluOp.ARSH)


def ours(code, size):
    try:
        verify(program_from_code(code, "p", maps=MAPS), memory_size=size)
    except EgpuError:
        return False
    return True


@contextlib.contextmanager
def as_coarse_as_linux():
    """Forget what Linux does not follow (docs/verifier.md): division, byte swaps, wide shifts."""
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
        yield


def wrong_accepts(programs):
    """Programs that we take and Linux does not, with its log; and how many we take.

    Those that we would refuse if we forgot what Linux forgets do not count.
    """
    wrong, taken = [], 0
    for code, size in programs:
        if not ours(code, size):
            continue
        taken += 1
        translated = linux_oracle.with_descriptors(code, MAPS[:5])
        accepted, log = linux_oracle.accepts(translated, size)
        if not accepted:
            with as_coarse_as_linux():
                if ours(code, size):
                    wrong.append((disassemble(code), log))
    return wrong, taken


def conformance():
    paths = sorted((ROOT / "tests" / "conformance" / "cases").glob("*.data"))
    if has_conformance():
        paths += sorted((CONFORMANCE / "tests").glob("*.data"))
    found = []
    for path in paths:
        case = read_case(path)
        found.append((case.code(), len(case.memory)))
    return found


def test_conformance_programs():
    programs = conformance()
    wrong, taken = wrong_accepts(programs)
    assert wrong == []
    assert taken > len(programs) // 2


def test_random_programs():
    programs = []
    for seed in range(200):
        text = Writer(random.Random(10_000 + seed)).program()
        programs.append((assemble(text), MEMORY))
    wrong, taken = wrong_accepts(programs)
    assert wrong == []
    assert taken > 50


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
            ("imm", number),
        ]
    )
    fields = {name: getattr(old, name) for name in ("opcode", "dst", "src", "off", "imm")}
    fields[field] = value
    return (*code[:place], Insn(**fields), *code[place + 1 :])


def mutants(seed, count):
    randomness = random.Random(seed)
    sources = [(code, size) for code, size in conformance() if encode(code)]
    sources += [(assemble(Writer(random.Random(seed + n)).program()), MEMORY) for n in range(50)]
    for _ in range(count):
        code, size = randomness.choice(sources)
        yield mutant(code, randomness), size


def rule_programs():
    """The programs of rules.txt, whether they pass or not, with the number 0 in place of r1."""
    texts = [text for pair in read_pairs().values() for text in (pair.accepted, pair.refused)]
    return [(assemble(text), 0) for text in texts if "call 505" not in text]


def test_rule_programs():
    wrong, taken = wrong_accepts(rule_programs())
    assert wrong == []
    assert taken > 50


def test_mutants_of_rule_programs():
    randomness = random.Random(3)
    sources = [(code, size) for code, size in rule_programs() if len(code) < 100]
    wrong, taken = wrong_accepts(
        (mutant(code, randomness), size) for code, size in randomness.choices(sources, k=600)
    )
    assert wrong == []
    assert taken > 30


def test_mutants():
    wrong, taken = wrong_accepts(mutants(1, 400))
    assert wrong == []
    assert taken > 40


@pytest.mark.long
def test_many_mutants(request):
    if "long" not in (request.config.getoption("markexpr") or ""):
        pytest.skip("the long run: pytest -m long")
    wrong, taken = wrong_accepts(mutants(2, 5_000))
    assert wrong == []
    assert taken > 500


def test_coarse_mode_forgets_division():
    """A way that only the value of a quotient shows to be dead: Linux 6.18 walks it and refuses."""
    text = "mov %r1, 7\nmov %r2, 2\ndiv %r1, %r2\njeq %r1, 3, end\nmov %r0, %r9\nend:\n"
    code = assemble(text + "mov %r0, 0\nexit")
    assert ours(code, 0)
    with as_coarse_as_linux():
        assert not ours(code, 0)


def test_the_oracle_refuses():
    assert not linux_oracle.accepts(assemble("mov %r0, %r3\nexit"), 0)[0]

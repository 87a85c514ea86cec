"""The conformance suite on the reference interpreter."""

from pathlib import Path

import pytest

from egpu.bpf import isa
from egpu.bpf.asm import assemble, disassemble
from egpu.bpf.conformance import read_case
from egpu.bpf.insn import decode, encode, program_from_code
from egpu.bpf.interp import run
from egpu.errors import InputError, UnsupportedError

ROOT = Path(__file__).resolve().parents[2]
OWN = sorted((ROOT / "tests/conformance/cases").glob("*.data"))
PUBLIC = ROOT.parent / "shared/conformance"
CASES = sorted((PUBLIC / "tests").glob("*.data"))
RESERVED = sorted((PUBLIC / "reserved").glob("*.data"))
REFUSED = {"callx": "callx"}


def name_of(path):
    return path.stem


def reasons(code):
    return [
        reason
        for _, insn, following in isa.instructions(code)
        if (reason := isa.check_fields(insn, following))
    ]


def test_public_suite_is_there():
    if not PUBLIC.is_dir():
        pytest.skip(f"the public suite is not at {PUBLIC}; only egpu's own cases run")
    assert len(CASES) == 251
    assert len(RESERVED) == 30


def test_own_cases_cover_every_kind():
    seen = {isa.FORMS[insn.opcode].kind for path in OWN for insn in first_slots(path)}
    assert seen == set(isa.Kind)


def first_slots(path):
    return [insn for _, insn, _ in isa.instructions(read_case(path).code())]


@pytest.mark.parametrize("path", OWN + CASES, ids=name_of)
def test_result(path):
    case = read_case(path)
    program = program_from_code(case.code(), case.name)
    if case.name in REFUSED:
        with pytest.raises(UnsupportedError, match=REFUSED[case.name]):
            run(program, bytearray(case.memory))
        return
    assert reasons(program.code) == []
    assert run(program, bytearray(case.memory)) == case.expected


@pytest.mark.parametrize("path", OWN + CASES + RESERVED, ids=name_of)
def test_round_trips(path):
    code = read_case(path).code()
    assert decode(encode(code)) == code
    assert assemble("\n".join(disassemble(code))) == code


@pytest.mark.parametrize("path", RESERVED, ids=name_of)
def test_reserved_fields_are_rejected(path):
    case = read_case(path)
    assert case.expected is None
    assert reasons(case.code())
    with pytest.raises((InputError, UnsupportedError)):
        run(program_from_code(case.code(), case.name))


def test_raw_words_and_text_agree():
    path = PUBLIC / "tests/lddw.data"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    case = read_case(path)
    assert assemble(case.asm) == decode(case.raw_bytes)

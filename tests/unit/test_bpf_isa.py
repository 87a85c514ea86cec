"""Tables, decoding, the structural check and the assembler."""

import pytest

from egpu.bpf import isa
from egpu.bpf.asm import assemble, disassemble, format_insn
from egpu.bpf.insn import decode, encode, program_from_code
from egpu.bpf.program import Insn
from egpu.errors import InputError

# opcode, dst, src, off, imm of instructions that Linux or the RFC's optional groups have.
REFUSED = {
    "callx": Insn(0x8D, 1),
    "gotox": Insn(0x0D, 1),
    "legacy packet access": Insn(0x20, imm=4),
    "arena cast": Insn(0xBF, 1, 1, 1, 1),
    "load-acquire": Insn(0xDB, 1, 2, 0, 0x100),
    "store-release": Insn(0xC3, 1, 2, 0, 0x110),
    "16-bit atomics": Insn(0xCB, 1, 2),
    "kfunc": Insn(0x85, src=2, imm=7),
    "ksym": Insn(0x18, 1, 3),
}


def check(text):
    return [
        isa.check_fields(insn, following) for _, insn, following in isa.instructions(assemble(text))
    ]


@pytest.mark.parametrize("feature", REFUSED)
def test_refused_by_name(feature):
    insn = REFUSED[feature]
    assert feature in isa.refused(insn)
    assert feature in isa.check_fields(insn, Insn(0))


def test_every_opcode_is_a_form_refused_or_unknown():
    known = {opcode for opcode in range(256) if opcode in isa.FORMS}
    # Counted by hand from RFC 9669: ALU, byte order, jumps and calls, memory; may_goto is Linux's.
    assert len(known) == 2 * (12 * 2 + 1) + 3 + (2 * 11 * 2 + 4) + (4 + 3 + 4 + 4 + 2 + 1) + 1
    for opcode in set(range(256)) - known:
        assert isa.check_fields(Insn(opcode), None) is not None


def every_field():
    for form in isa.FORMS.values():
        for field, rule in (
            ("dst", form.dst), ("src", form.src), ("off", form.off), ("imm", form.imm)
        ):  # fmt: skip
            yield form, field, rule


def valid(form):
    """The smallest well-formed instruction of a form."""
    imm = min(form.imm) if isinstance(form.imm, frozenset) else 0
    return Insn(form.opcode, imm=imm)


def test_each_reserved_field_is_checked_in_each_form():
    count = 0
    for form, field, rule in every_field():
        base = valid(form)
        assert isa.check_fields(base, Insn(0)) is None
        fields = {name: getattr(base, name) for name in ("opcode", "dst", "src", "off", "imm")}
        if rule is isa.Use.ZERO:
            bad = 1
        elif rule in (isa.Use.READ, isa.Use.WRITE):
            bad = 11
        elif isinstance(rule, frozenset):
            bad = next(value for value in range(5, 16) if value not in rule)
        else:
            continue
        assert isa.check_fields(Insn(**{**fields, field: bad}), Insn(0)), (form, field)
        count += 1
    assert count > 200


@pytest.mark.parametrize(
    "text", ["mov %r10, 1", "ldxw %r10, [%r1]", "lock fetch add [%r1], %r10", "lddw %r10, 1"]
)
def test_frame_pointer_is_read_only(text):
    assert any(reason and "r" in reason for reason in check(text))


def test_atomics_without_fetch_may_read_the_frame_pointer():
    assert check("lock add [%r1], %r10") == [None]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ([Insn(0x18, 1)], "lacks its second half"),
        ([Insn(0x18, 1), Insn(0x95)], "reserved"),
        ([Insn(0x18, 1), Insn(0, 1)], "reserved"),
        ([Insn(0x18, 1, 5, 0, 0), Insn(0, imm=1)], "upper immediate"),
        ([Insn(0x18, 1, 7), Insn(0)], "must be one of"),
        ([Insn(0)], "second half"),
    ],
)
def test_wide_immediates(code, reason):
    assert reason in isa.check_fields(code[0], code[1] if len(code) > 1 else None)


def test_decode_fields():
    (insn,) = decode(bytes.fromhex("7b a1 f8 ff fe ff ff ff"))
    assert insn == Insn(0x7B, 1, 10, -8, -2)
    assert encode([insn]) == bytes.fromhex("7ba1f8fffeffffff")


@pytest.mark.parametrize("insn", [Insn(256), Insn(1, 16), Insn(1, 0, 0, 32768), Insn(1, imm=2**31)])
def test_encode_refuses_what_does_not_fit(insn):
    with pytest.raises(InputError, match="insn 0"):
        encode([insn])


def test_decode_refuses_odd_lengths():
    with pytest.raises(InputError, match="not a multiple of 8"):
        decode(bytes(12))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nop", "unknown instruction"),
        ("mov %r11, 1", "not a register"),
        ("mov %r0", "2 operands wanted"),
        ("mov %r0, 4294967295", "does not fit 32 bits"),
        ("mov %r0, 0x100000000", "does not fit 32 bits"),
        ("ldxw %r0, %r1", "memory operand"),
        ("ldxw %r0, [%r1+32768]", "does not fit 16 bits"),
        ("ja nowhere", "unknown label"),
        ("ja 40000", "does not fit 16 bits"),
        ("lock nand [%r1], %r2", "unknown atomic"),
        ("a:\na:\nexit", "defined twice"),
        ("call local 1 2", "call wants"),
        ("lddw %r1, map_index 0+4", "takes no offset"),
    ],
)
def test_assembler_messages(text, message):
    with pytest.raises(InputError, match=message) as caught:
        assemble(text)
    assert "line" in str(caught.value)


def test_immediates():
    values = [
        insn.imm for insn in assemble("mov %r0, 0xffffffff\nmov %r0, -1\nmov %r0, 2147483647")
    ]
    assert values == [-1, -1, 0x7FFFFFFF]


def test_exit_label_is_the_first_exit():
    code = assemble("ja exit\nmov %r0, 1\nexit\nexit")
    assert code[0].off == 1


def test_labels_count_two_slots_for_lddw():
    code = assemble("ja end\nlddw %r1, 5\nend: exit")
    assert code[0].off == 2


@pytest.mark.parametrize(
    "line",
    [
        "lddw %r1, map_index 3",
        "lddw %r1, map_index_value 2+16",
        "lddw %r2, code +4",
        "lddw %r0, 0xffffffffffffffff",
        "lock fetch xor32 [%r10-8], %r3",
        "movsx3264 %r1, %r2",
        "jslt32 %r1, -5, +3",
        "call local -2",
        "call runtime 9",
        "call %r3",
        "smod32 %r1, %r2",
        "stdw [%r10-8], -1",
        "may_goto +3",
        "may_goto -2",
        ".insn 0xe5, 0, 1, 3, 0",
        ".insn 0xe6, 0, 0, 3, 0",
        ".insn 0x07, 1, 1, 0, 5",
    ],
)
def test_text_round_trip(line):
    assert disassemble(assemble(line)) == [line]


def test_malformed_wide_immediate_keeps_both_slots():
    code = (Insn(0x18, 1, 9), Insn(0, 1, 2, 3, 4))
    assert assemble("\n".join(disassemble(code))) == code


def test_format_without_the_second_slot():
    assert format_insn(Insn(0x18, 1)).startswith(".insn")


def test_functions_split_at_call_targets():
    program = program_from_code(
        assemble("call local f\nexit\nf: mov %r0, 1\ncall local g\nexit\ng: mov %r0, 2\nexit"), "p"
    )
    assert [(f.name, f.start, f.length) for f in program.functions] == [
        ("p", 0, 2), ("p.2", 2, 3), ("p.5", 5, 2)
    ]  # fmt: skip


def test_jump_targets():
    code = assemble("jeq %r1, 0, +2\nja32 -2\ncall local +0\ncall 5\nexit")
    assert [isa.jump_target(pc, insn) for pc, insn in enumerate(code)] == [3, 0, 3, None, None]

"""Addresses that an entry probe computes and the exit probe uses."""

import re

from sass_corpus import assemble, disassembled, needs_tools
from test_splice_sass_encoding import instructions
from test_splice_sass_schedule import RED, codes_of, meaning, raw, spliced

from egpu.codegen import Launch
from egpu.splice import sass_kept
from egpu.splice.sass import splice_sass
from egpu.splice.sass_encoding import (
    BASE,
    CS2R,
    DESTINATION,
    GUARD,
    OPCODE,
    PT,
    S2R,
    SOURCE_A,
    SOURCE_B,
    Field,
)
from egpu.splice.sass_operands import Kind, operands
from egpu.splice.sass_schedule import scheduled

pytestmark = needs_tools

MOV_IMMEDIATE, IMAD, IMAD_UNIFORM, VOTEU, UPOPC = 0x224, 0x824, 0xE24, 0x886, 0x2BF
SOURCE_B_IMMEDIATE = Field(32, 32)


def test_the_exit_probe_uses_the_address_of_the_entry_probe():
    for name in ("counters.bpf.o", "threads.bpf.o"):
        codes, layout = codes_of(name)
        made, leaving, entry = spliced(codes, layout)
        assert not made.costs_blocks
        names = {line.name.split(".")[0] for line in leaving}
        assert not names & {"S2R", "LDC.64", "CS2R", "VIMNMX"}
        additions = [line for line in (*leaving, *entry) if "REDG" in line.text]
        (first,) = {SOURCE_A.of(line.word) for line in additions}
        assert len(additions) == 2
        # Nothing else writes the registers, in the kernel or in the probes.
        for line in disassembled(made.image)["vector_add"]:
            writes = re.match(r"(?:@\S+ )?\S+ R(\d+)\b", line.text)
            wide = ".WIDE" in line.name or ".64" in line.name
            if writes and BASE.of(line.word) != RED and int(writes[1]) + wide >= first:
                assert int(writes[1]) == first
                assert line in entry
        assert made.registers >= first + 1 + 3
        assert len([line for line in leaving if line.name != "NOP"]) <= 10


def test_each_computes_its_own_where_registers_or_reasons_lack(monkeypatch):
    codes, layout = codes_of("counters.bpf.o")

    def shares():
        _, leaving, _ = spliced(codes, layout)
        return not any("VIRTUALSMID" in line.text for line in leaving)

    assert shares()
    with monkeypatch.context() as patch:
        patch.setattr(sass_kept, "free_registers", lambda registers: registers)
        assert not shares()
    with monkeypatch.context() as patch:
        patch.setattr(sass_kept, "_TIMES", ("%smid",))
        assert not shares()


def test_each_computes_its_own_in_captured_launches():
    """Whose entry probe may have been off when the exit probe is on."""
    for name in ("counters.bpf.o", "threads.bpf.o"):
        codes, layout = codes_of(name, Launch.CAPTURED)
        _, leaving, entry = spliced(codes, layout)
        for block in (leaving, entry):
            assert any("VIRTUALSMID" in line.text for line in block)


def test_addresses_that_differ_are_not_shared(monkeypatch):
    entry, leaving = (scheduled(words) for words in raw("counters.bpf.o", monkeypatch)[:2])
    assert sass_kept._shared(entry, leaving, 20) is not None
    assert sass_kept._shared(entry, entry, 20) is not None
    for at, word in enumerate(leaving):
        found = operands(word)
        if (
            found is None
            or BASE.of(word) == RED
            or Kind.REGISTER not in {k for k, _ in found.writes}
        ):
            continue
        other = word ^ 1 << 38  # another constant, another register
        changed = [*leaving[:at], other, *leaving[at + 1 :]]
        if meaning(changed)[0][1] == meaning(leaving)[0][1]:
            continue
        shared = sass_kept._shared(entry, changed, 20)
        address = {(Kind.REGISTER, 20), (Kind.REGISTER, 21)}
        if shared is not None:  # what changed was the value, not the address
            assert any(BASE.of(w) == RED and address <= operands(w).reads for w in shared[1])


def test_a_guarded_computation_is_not_shared(monkeypatch):
    entry, leaving = (scheduled(words) for words in raw("counters.bpf.o", monkeypatch)[:2])
    at = next(n for n, word in enumerate(leaving) if OPCODE.of(word) == S2R)
    guarded = [*leaving[:at], GUARD.set(leaving[at], 2), *leaving[at + 1 :]]
    assert GUARD.of(leaving[at]) == PT
    assert sass_kept._shared(entry, guarded, 20) is None


def by_opcode(words, opcode):
    return next(word for word in words if OPCODE.of(word) == opcode)


def test_a_register_beside_one_that_is_written_keeps_its_own_value(monkeypatch):
    """CS2R.32 writes one register; what the next one holds is another's, and may differ."""
    entry, leaving = (scheduled(words) for words in raw("counters.bpf.o", monkeypatch)[:2])

    def indexed(words, constant):
        at = next(n for n, word in enumerate(words) if OPCODE.of(word) == CS2R)
        beside = DESTINATION.of(words[at]) + 1
        moved = by_opcode(words, MOV_IMMEDIATE)
        index = SOURCE_B_IMMEDIATE.set(DESTINATION.set(moved, beside), constant)
        later = [
            SOURCE_A.set(word, beside) if OPCODE.of(word) == IMAD else word for word in words[at:]
        ]
        return [*words[:at], index, *later]

    def shared(one, other):
        return sass_kept._shared(indexed(entry, one), indexed(leaving, other), 20)

    assert shared(1, 2) is None


def test_what_a_neighbour_may_write_is_not_taken_for_written(monkeypatch):
    """UMOV writes one uniform register: the count in the next one is still needed."""
    leaving = raw("counters.bpf.o", monkeypatch)[1]
    vote, count = by_opcode(leaving, VOTEU), by_opcode(leaving, UPOPC)
    taken = by_opcode(leaving, IMAD_UNIFORM)
    counted = SOURCE_B.set(DESTINATION.set(count, 5), 5)
    words = [
        leaving[0],
        DESTINATION.set(vote, 5),
        counted,
        DESTINATION.set(next(line.word for line in instructions("90") if line.name == "UMOV"), 4),
        SOURCE_B.set(DESTINATION.set(taken, 4), 4),
        SOURCE_B.set(DESTINATION.set(taken, 5), 5),
        SOURCE_A.set(next(word for word in leaving if BASE.of(word) == RED), 20),
        leaving[-1],
    ]
    words[6] = SOURCE_B.set(words[6], 4)
    assert counted in sass_kept._needed(words)


def test_an_exit_probe_that_cannot_be_put_in_order_computes_its_own_address(monkeypatch):
    """Its stalls are for all instructions that it had."""
    entry, leaving = raw("counters.bpf.o", monkeypatch)[:2]
    at = next(n for n, word in enumerate(leaving) if BASE.of(word) == RED)
    value = SOURCE_B.of(leaving[at])
    again = DESTINATION.set(by_opcode(leaving, MOV_IMMEDIATE), value)  # read late, written again
    words = (*leaving[: at + 1], again, *leaving[at:])
    assert scheduled(words) == words
    assert sass_kept._shared(entry, words, 20) is not None
    assert sass_kept._kept(scheduled(entry), words, 20) is None


PRINTING = """
.version 8.0
.target sm_90
.address_size 64
.extern .func (.param .b32 printed) vprintf (.param .b64 format, .param .b64 values);
.global .align 1 .b8 text[4] = {37, 100, 10, 0};
.visible .entry printing(.param .u64 to)
{
.reg .b64 %q<5>;
.reg .b32 %r<2>;
ld.param.u64 %q1, [to];
mov.u64 %q2, text;
cvta.global.u64 %q3, %q2;
mov.u64 %q4, 0;
{
.param .b64 format;
.param .b64 values;
.param .b32 printed;
st.param.b64 [format], %q3;
st.param.b64 [values], %q4;
call.uni (printed), vprintf, (format, values);
ld.param.b32 %r1, [printed];
}
st.global.u32 [%q1], %r1;
ret;
}
"""


def test_nothing_is_kept_across_functions_that_the_cubin_does_not_have():
    """How many registers those of the driver take is not known."""
    codes, layout = codes_of("counters.bpf.o")
    made = splice_sass(assemble(PRINTING, "sm_90"), "printing", codes, layout, assemble)
    lines = disassembled(made.image)["printing"]
    assert [line for line in lines if line.name.startswith("CALL.ABS")]
    assert len([line for line in lines if "VIRTUALSMID" in line.text]) == 2
    assert made.registers == made.was_registers

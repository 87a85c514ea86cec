"""Addresses that an entry probe computes and the exit probe uses."""

import re

from sass_corpus import disassembled, needs_tools
from test_splice_sass_schedule import RED, codes_of, meaning, raw, spliced

from egpu.splice import sass_kept
from egpu.splice.sass_encoding import BASE, GUARD, OPCODE, PT, S2R, SOURCE_A
from egpu.splice.sass_operands import Kind, operands
from egpu.splice.sass_schedule import scheduled

pytestmark = needs_tools


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

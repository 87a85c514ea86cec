"""For every rule a program that passes and one that is refused, with the whole error text."""

from dataclasses import replace

import pytest
from verifier_programs import (
    END,
    ENTRY,
    EXIT,
    LOOKUP,
    MAPS,
    VALUE,
    check,
    program,
    read_pairs,
    refusal,
)

from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.program import AttachKind, AttachPoint, Function, Program, SourceLine
from egpu.errors import InputError, VerifierError
from egpu.verifier import Limits, Policy, Region, RmwOp, RmwTerm, verify

PAIRS = read_pairs()


def test_every_rule_has_a_pair():
    rules = {pair.rule for pair in PAIRS.values()}
    assert rules >= {"P1", "P2", "P3", "P4", "P6", "P8", "P9", "P10", "P12"}


@pytest.mark.parametrize("name", PAIRS)
def test_accepted(name):
    assert check(PAIRS[name].accepted).policy is Policy.PROBE


@pytest.mark.parametrize("name", PAIRS)
def test_refused(name):
    error = refusal(PAIRS[name].refused)
    assert (error.rule, str(error)) == (PAIRS[name].rule, PAIRS[name].message)


# Context fields of exit probes


def test_start_time_only_in_exit_probes():
    text = "ldxdw %r0, [%r1+272]\nexit"
    check(text, attach=EXIT)
    check(text, exit_probe=True)
    for attach in (ENTRY, ENTRY + EXIT):
        assert refusal(text, attach=attach).message.endswith(
            "context field start_time exists in exit probes only"
        )
    assert refusal(text, attach=EXIT, exit_probe=False).rule == "P2"


def test_context_facts():
    facts = check("ldxdw %r2, [%r1+104]\nldxw %r0, [%r1+212]\nexit").facts
    assert facts.context_fields == {"parm2", "thread_x"}
    assert facts.parameters == {1}
    assert facts.operands[1, 1].regions == {Region.CONTEXT}
    assert facts.operands[1, 1].offset == 0


def test_context_fields_have_bounds():
    """thread_x is at most 1023, so it indexes 1024 bytes without a test (P15)."""
    text = VALUE.format(1) + END
    inside = "ldxw %r7, [%r1+232]\n" + text.replace(
        "found:", "found:\nand %r7, 15\nadd %r6, %r7\nldxb %r1, [%r6]"
    )
    check(inside)
    check(inside.replace("and %r7, 15", "rsh %r7, 1"))  # lane / 2 is at most 15
    assert refusal(inside.replace("and %r7, 15", "mov %r8, 1")).rule == "P2"


def test_lost_updates_can_be_allowed():
    text = (
        "stw [%r10-4], 0\nlddw %r1, map_index 1\nmov %r2, %r10\nadd %r2, -4\ncall 1\n"
        "jeq %r0, 0, end\nldxdw %r1, [%r0]\nadd %r1, 1\nstxdw [%r0], %r1\nend:\nmov %r0, 0\nexit"
    )
    assert refusal(text).rule == "P8"
    verified = check(text, limits=Limits(lost_updates=True))
    assert {warning.rule for warning in verified.warnings} == {"P8"}
    assert any("updates by other threads" in str(warning) for warning in verified.warnings)


# Policies


def test_thread_exit_needs_control():
    text = "call 507\nmov %r0, 0\nexit"
    assert check(text, policy=Policy.CONTROL).policy is Policy.CONTROL
    assert refusal(text, policy=Policy.PROBE).rule == "P6"
    assert "r0 is not initialised" in refusal("call 507\nexit", policy=Policy.CONTROL).message


def test_executor_starts_with_memory_and_its_size():
    text = "ldxb %r3, [%r1+15]\nmov %r0, %r2\nexit"
    verified = check(text, attach=(), policy=Policy.EXECUTOR, memory_size=16)
    assert verified.memory_size == 16
    assert verified.facts.operands[0, 1].regions == {Region.MEMORY}
    assert refusal(text, attach=(), policy=Policy.EXECUTOR, memory_size=15).rule == "P2"
    assert refusal(text, attach=(), policy=Policy.EXECUTOR).rule == "P2"


def test_executor_allows_what_code_generation_splits_or_masks():
    text = "ldxdw %r0, [%r1+1]\nlsh %r0, 64\nexit"
    verified = check(text, attach=(), policy=Policy.EXECUTOR, memory_size=16)
    assert verified.facts.operands[0, 1].align == 1
    atomic = "mov %r2, 1\nlock add [%r1+1], %r2\nmov %r0, 0\nexit"
    assert refusal(atomic, attach=(), policy=Policy.EXECUTOR, memory_size=16).rule == "P3"


def test_program_without_attach_point_gets_memory_instead_of_a_context():
    check("ldxb %r0, [%r1]\nexit", attach=(), memory_size=1)
    assert refusal("ldxdw %r0, [%r1+112]\nexit", attach=()).rule == "P2"


def test_kernel_space_programs_belong_to_linux():
    attach = (AttachPoint(AttachKind.KERNEL_SPACE, "x"),)
    assert "belongs to the Linux kernel" in refusal(END, attach=attach).message


# Limits


def test_limits_name_themselves():
    loop = "mov %r0, 0\nloop:\nadd %r0, 1\njlt %r0, 300, loop\nexit"
    check(loop)
    for limits, name in (
        (Limits(processed=50), "Limits.processed"),
        (Limits(cost=500), "Limits.cost"),
    ):
        error = refusal(loop, limits=limits)
        assert error.rule == "P4"
        assert name in error.hint
        assert "50" in error.message


def test_cost_counts_the_longest_way():
    loop = "mov %r0, 0\nloop:\nadd %r0, 1\njlt %r0, 300, loop\nexit"
    assert check(loop).cost.instructions == 1 + 2 * 300 + 1
    branch = "call 5\njeq %r0, 0, end\n" + "mov %r0, 1\n" * 10 + "end:\nexit"
    cost = check(branch).cost
    assert (cost.instructions, cost.helper_calls, cost.helpers) == (13, 1, 4)


def test_cost_of_a_way_that_joins_an_explored_one_is_counted():
    text = "call 5\njeq %r0, 0, long\nmov %r0, 1\nja join\nlong:\n" + "mov %r0, 1\n" * 7
    text += "join:\n" + "mov %r0, 1\n" * 5 + "exit"
    assert check(text).cost.instructions == 2 + 7 + 5 + 1


def test_cost_counts_memory_atomics_and_ring_bytes():
    cost = check(PAIRS["record"].accepted).cost
    assert (cost.ring_bytes, cost.memory) == (8, 1 + 2 + 2)
    cost = check(PAIRS["aligned-atomic"].accepted).cost
    assert (cost.atomics, cost.memory) == (1, 1 + 1 + 1)


# Facts


def test_stack_depth_is_that_of_the_deepest_chain():
    assert check(PAIRS["stack-chain"].accepted).facts.stack_depth == 512
    assert check(END).facts.stack_depth == 0
    assert check("stb [%r10-1], 0" + END).facts.stack_depth == 8


def test_helper_arguments_are_operands():
    facts = check(VALUE.format(1) + END).facts
    assert facts.operands[5, 1].regions == {Region.MAP_POINTER}
    assert facts.operands[5, 1].map == 1
    key = facts.operands[5, 2]
    assert (key.regions, key.offset, key.frame, key.align) == ({Region.STACK}, -4, 0, 4)
    assert facts.helpers == {1}
    assert facts.maps == {1}


def test_operands_join_over_ways():
    text = VALUE.format(1) + "call 5\njeq %r0, 0, read\nadd %r6, 4\nread:\nldxw %r0, [%r6]\nexit"
    operand = next(
        operand for (pc, register), operand in check(text).facts.operands.items() if pc == 13
    )
    assert (operand.map, operand.offset, operand.align) == (1, None, 4)


def test_pointer_into_a_callers_frame():
    text = "mov %r1, %r10\nadd %r1, -8\ncall local f\nexit\nf:\nstdw [%r1], 7\nmov %r0, 0\nexit"
    operand = check(text).facts.operands[4, 1]
    assert (operand.frame, operand.offset) == (1, -8)


def test_unreached_instructions_have_no_operands():
    text = "mov %r2, 1\njeq %r2, 1, end\nldxdw %r0, [%r1+112]\nend:\nmov %r0, 0\nexit"
    assert check(text).facts.operands == {}


# Read-modify-write on per-SM maps


def rmw(body):
    return list(check(VALUE.format(0) + body + END).facts.rmw.values())


def test_rmw_forms():
    load, store = "ldxdw %r1, [%r6]\n", "stxdw [%r6], %r1"
    clock = "call 5\nmov %r7, %r0\n"
    (plain,) = rmw(load + "add %r1, 3\n" + store)
    assert (plain.op, plain.size) == (RmwOp.ADD, 8)
    assert plain.terms == (RmwTerm(plain.load_pc + 1, None, 3),)
    assert plain.skip_pcs == (plain.load_pc + 1,)
    (negative,) = rmw(clock + load + "sub %r1, %r7\n" + store)
    assert negative.terms == (RmwTerm(negative.load_pc + 1, 7, 0, True),)
    (swapped,) = rmw(clock + load + "add %r7, %r1\nstxdw [%r6], %r7")
    assert swapped.terms == (RmwTerm(swapped.load_pc + 1, 7),)
    (moved,) = rmw(load + "mov %r2, %r1\nor %r2, 4\nstxdw [%r6], %r2")
    assert (moved.op, len(moved.skip_pcs)) == (RmwOp.OR, 2)
    (two,) = rmw(clock + load + "add %r1, %r7\nadd %r1, 1\n" + store)
    assert [term.register for term in two.terms] == [7, None]
    (narrow,) = rmw("ldxw %r1, [%r6+4]\nxor32 %r1, 5\nstxw [%r6+4], %r1")
    assert (narrow.op, narrow.size) == (RmwOp.XOR, 4)
    (between,) = rmw(
        load
        + "ldxdw %r2, [%r10-8]\n".replace("ldxdw %r2, [%r10-8]", "mov %r2, 9")
        + "stxdw [%r10-16], %r2\nadd %r1, %r2\n"
        + store
    )
    assert between.terms[0].register == 2


@pytest.mark.parametrize(
    "body",
    [
        "ldxdw %r1, [%r6]\nmul %r1, 3\nstxdw [%r6], %r1",
        "ldxdw %r1, [%r6]\nadd %r1, 3\nand %r1, 7\nstxdw [%r6], %r1",
        "ldxdw %r1, [%r6]\nmov %r2, 5\nsub %r2, %r1\nstxdw [%r6], %r2",
        "ldxdw %r1, [%r6]\nadd32 %r1, 3\nstxdw [%r6], %r1",
        "ldxdw %r1, [%r6]\nadd %r1, %r1\nstxdw [%r6], %r1",
        "ldxdw %r1, [%r6]\nmov %r2, %r1\nadd %r1, 3\nadd %r1, %r2\nstxdw [%r6], %r1",
        "ldxdw %r1, [%r6]\nadd %r1, 3\nstdw [%r6], 9\nstxdw [%r6], %r1",
        "ldxdw %r7, [%r6]\ncall 5\nadd %r7, %r0\nstxdw [%r6], %r7",
        "ldxh %r1, [%r6]\nadd %r1, 3\nstxh [%r6], %r1",
        "ldxdw %r1, [%r6]\njeq %r1, 0, skip\nadd %r1, 3\nskip:\nstxdw [%r6], %r1",
    ],
)
def test_rmw_that_is_no_atomic_is_refused(body):
    assert refusal(VALUE.format(0) + body + END).rule == "P8"


def test_plain_stores_to_shared_maps_pass():
    check(VALUE.format(0) + "stdw [%r6], 5" + END)
    check("call 5\nmov %r7, %r0\n" + VALUE.format(1) + "stxdw [%r6], %r7" + END)


# Structure that only a Program value can have


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ((), "functions cover 0 of 2 slots"),
        ((Function("p", 0, 1),), "functions cover 1 of 2 slots"),
        ((Function("p", 1, 1),), "function p starts at slot 1, expected 0"),
        ((Function("p", 0, 2), Function("q", 1, 1)), "function q starts at slot 1, expected 2"),
        ((Function("p", 0, 3),), "functions cover 3 of 2 slots"),
    ],
)
def test_functions_tile_the_code(functions, message):
    broken = Program("p", "", assemble("mov %r0, 0\nexit"), functions)
    with pytest.raises(VerifierError) as caught:
        verify(broken)
    assert caught.value.message.endswith(message)


def test_empty_program():
    with pytest.raises(VerifierError, match="no instructions"):
        verify(Program("p", "", (), ()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ja +1\nlddw %r0, 1\nexit", "jump into the second half of the 64-bit immediate at 1"),
        ("ja +5\nexit", "jump to slot 6 leaves its function"),
        ("ja -2\nexit", "jump to slot -1 leaves its function"),
        ("call local +7\nexit", "call to slot 8, where no function starts"),
        (
            "lddw %r1, map_fd 3\nmov %r0, 0\nexit",
            "a map is named by a file descriptor, which means nothing here",
        ),
        ("lddw %r1, code +1\nmov %r0, 0\nexit\nmov %r0, 0\nexit", None),
    ],
)
def test_jumps_and_references(text, message):
    code = assemble(text)
    single = Program("p", "", code, (Function("p", 0, len(code)),), maps=MAPS, attach=ENTRY)
    with pytest.raises(VerifierError) as caught:
        verify(single)
    if message is not None:
        assert caught.value.message.endswith(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key_size": 2}, "map totals: keys have 2 bytes, must have 4"),
        (
            {"value_size": 0},
            "map totals: 4 values of 0 bytes, must be at least 1 of 1 to 536870911",
        ),
        (
            {"max_entries": 0},
            "map totals: 0 values of 16 bytes, must be at least 1 of 1 to 536870911",
        ),
    ],
)
def test_maps_of_sizes_that_no_device_body_expects(change, message):
    maps = (MAPS[0], replace(MAPS[1], **change))
    with pytest.raises(VerifierError) as caught:
        verify(program_from_code(assemble(LOOKUP.format(1) + END), "p", maps=maps, attach=ENTRY))
    assert caught.value.message.endswith(message)


def test_negative_memory_size():
    with pytest.raises(InputError, match="memory size -1 is negative"):
        check(END, attach=(), policy=Policy.EXECUTOR, memory_size=-1)


# Messages


def test_error_names_source_line_and_path():
    code = assemble(VALUE.format(1) + "ldxdw %r0, [%r6+16]\nexit")
    lines = (
        SourceLine(0, "probe.bpf.c", 7, 3, "int key = 0;"),
        SourceLine(10, "probe.bpf.c", 9, 3, "  return value[2];"),
    )
    source = program_from_code(code, "p", maps=MAPS, attach=ENTRY)
    with pytest.raises(VerifierError) as caught:
        verify(Program("p", "", code, source.functions, maps=MAPS, attach=ENTRY, lines=lines))
    error = caught.value
    assert error.line == "probe.bpf.c:9 `return value[2];`"
    assert (error.pc, error.insn) == (10, "ldxdw %r0, [%r6+16]")
    assert error.path[0].startswith("0: stw [%r10-4], 0 ; r1=ctx")
    assert error.path[-1] == ("10: ldxdw %r0, [%r6+16] ; r0=map_value(totals) r6=map_value(totals)")
    assert not any(entry.startswith("8:") for entry in error.path), "the null way ends before"


def test_path_follows_the_way_through_loops_and_calls():
    text = (
        "mov %r6, 0\nloop:\ncall local f\nadd %r6, 1\njlt %r6, 3, loop\nmov %r0, %r4\nexit\n"
        "f:\ncall 5\njeq %r0, 7, end\nmov %r0, 1\nend:\nexit"
    )
    error = refusal(text, limits=Limits(path=100))
    assert error.path[-1].startswith("4: mov %r0, %r4")
    assert sum(entry.startswith("1: call local") for entry in error.path) == 3
    assert len(refusal(text, limits=Limits(path=2)).path) == 2
    assert refusal(text, limits=Limits(path=0)).path == ()


def test_program_helper_makes_attached_programs():
    assert program(END).attach == ENTRY

"""Helpers that say who runs: device code against the interpreter, and the verifier's rules."""

import errno
import os

import pytest

from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.interp import run
from egpu.bpf.interp_state import MapState, Place
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import AttachKind, AttachPoint, MapSpec
from egpu.codegen import HostArenas, run_host
from egpu.errors import UnsupportedError, VerifierError
from egpu.maps.layout import ARENA_HEADER
from egpu.verifier import Policy, verify

ENTRY = (AttachPoint(AttachKind.ENTRY, "*"),)


def program(text, attach=()):
    return program_from_code(assemble(text), attach=attach)


def on_host(made, **header):
    """r0 of a run with these fields in the arena's header."""
    verified = verify(made, policy=Policy.PROBE)
    arenas = HostArenas(verified)
    for name, value in header.items():
        offset, size = ARENA_HEADER[name]
        data = value if isinstance(value, bytes) else value.to_bytes(size, "little")
        arenas.device[offset : offset + size] = data.ljust(size, b"\0")
    return run_host(verified, bytearray(), arenas=arenas)


@pytest.mark.parametrize("room", [1, 2, 8, 15, 16, 17, 24])
@pytest.mark.parametrize("byte", [0, 1, 6, 7])
def test_comm_fills_its_room(room, byte):
    made = program(
        f"""
        mov %r1, %r10
        add %r1, -32
        mov %r2, {room}
        call 16
        ldxb %r0, [%r10-{32 - min(byte, room - 1)}]
        exit
        """
    )
    expected = run(made, place=Place(comm=b"a program"))
    assert on_host(made, comm=b"a program") == expected
    text = b"a program"[: room - 1].ljust(room, b"\0")
    assert expected == text[min(byte, room - 1)]


def test_identity():
    place = Place(pid_tgid=7 << 32 | 7, uid_gid=4 << 32 | 3)
    for number, header in ((14, {"pid": 7}), (15, {"uid": 3, "gid": 4})):
        made = program(f"call {number}\nexit")
        assert on_host(made, **header) == run(made, place=place)


def test_time_is_the_devices_and_the_headers_offset():
    made = program("call 502\nmov %r6, %r0\ncall 5\nsub %r0, %r6\nexit")
    late = on_host(made, clock=10**15)
    assert 10**15 <= late < 10**15 + 10**9  # both readings within a second
    early = on_host(made, clock=2**64 - 10**15)  # a negative offset
    assert 2**64 - 10**15 <= early < 2**64 - 10**15 + 10**9
    assert os.getpid()


def test_stacks_are_those_of_the_launch():
    """On the host nobody launches; flags as in Linux."""
    text = "lddw %r2, map_index 0\nlddw %r3, {}\ncall 27\nexit"
    maps = (MapSpec("stacks", MapType.STACK_TRACE, 4, 64, 16),)
    for flags, expected in ((0, 7), (0x700, 7), (1 << 11, 2**64 - 22), (2**63, 2**64 - 22)):
        made = program_from_code(assemble(text.format(flags)), maps=maps, attach=ENTRY)
        states = [MapState(spec) for spec in maps]
        assert run(made, context=bytes(4384), place=Place(stack=7), maps=states) == expected
        nowhere = run(made, context=bytes(4384), maps=[MapState(spec) for spec in maps])
        assert on_host(made) == nowhere == (2**64 - 14 if expected == 7 else expected)


@pytest.mark.parametrize(
    ("callers", "skipped", "found"),
    [
        ((11, 22), 0, True),
        ((11, 22), 1, True),
        ((11, 22), 2, False),
        ((11, 22), 255, False),
        ((), 0, True),  # the number is known, the frames are not: there is at least one
        ((), 1, False),
    ],
)
def test_a_stack_has_no_number_when_all_its_frames_are_skipped(callers, skipped, found):
    """Linux's answer (__bpf_get_stackid): -EFAULT at the depth and past it."""
    text = f"lddw %r2, map_index 0\nlddw %r3, {0x100 | skipped}\ncall 27\nexit"
    spec = MapSpec("stacks", MapType.STACK_TRACE, 4, 64, 16)
    made = program_from_code(assemble(text), maps=(spec,), attach=LAUNCHING)
    place = Place(stack=7, callers=callers)
    got = run(made, context=b"", place=place, maps=[MapState(spec)])
    assert got == (7 if found else 2**64 - errno.EFAULT)


LAUNCHING = (AttachPoint(AttachKind.HOST_ENTRY, "libcuda.so.1:cuLaunchKernel"),)
FRAMES = """
mov %r2, %r10
add %r2, -16
stdw [%r10-8], -1
stdw [%r10-16], -1
mov %r3, {size}
lddw %r4, {flags}
call 67
ldxdw %r6, [%r10-{at}]
{then}
exit
"""


@pytest.mark.parametrize(
    ("size", "flags", "expected"),
    [
        (16, 0x100, (16, 11, 22)),
        (16, 1, (16, 22, 33)),
        (16, 2, (8, 33, 0)),
        (8, 0, (8, 11, 2**64 - 1)),
        (16, 3, (0, 0, 0)),
        (16, 4, (2**64 - 14, 0, 0)),
        (16, 255, (2**64 - 14, 0, 0)),
        (0, 4, (2**64 - 14, 2**64 - 1, 2**64 - 1)),
        (15, 0, (2**64 - 22, 0, 0xFF << 56)),
        (16, 1 << 11, (2**64 - 22, 0, 0)),
        (0, 0, (0, 2**64 - 1, 2**64 - 1)),
    ],
)
def test_the_frames_of_a_stack(size, flags, expected):
    """Linux's answers (__bpf_get_stack), the rest of the buffer zeros."""
    got = []
    for at, then in ((8, ""), (16, "mov %r0, %r6"), (8, "mov %r0, %r6")):
        text = FRAMES.format(size=size, flags=flags, at=at, then=then)
        made = program(text, LAUNCHING)
        verify(made)
        got.append(run(made, context=b"", place=Place(callers=(11, 22, 33))))
    assert tuple(got) == expected


def test_frames_are_for_programs_on_the_host():
    """A kernel has a number only; the result is a size that was written, or an error."""
    used = "mov %r1, %r10\nadd %r1, -16\njsge %r0, 0, good\nmov %r0, 0\nja end\ngood:\n"
    used += "jeq %r0, 16, end\nadd %r1, %r0\nldxb %r0, [%r1]\nend:"
    text = FRAMES.format(size=16, flags=0, at=8, then=used)
    verify(program(text, LAUNCHING))
    with pytest.raises(VerifierError, match="bpf_get_stack is not available: a kernel has the num"):
        verify(program(text, ENTRY))
    with pytest.raises(VerifierError, match="bpf_get_stack is not available"):
        verify(program(text))
    further = text.replace("jeq %r0, 16, end", "mov %r2, 0")
    with pytest.raises(VerifierError, match=r"outside|past"):
        verify(program(further, LAUNCHING))


ARGUMENT = """
mov %r2, {number}
mov %r3, %r10
add %r3, -8
call 183
ldxdw %r0, [%r10-8]
exit
"""


def test_parameters_are_those_of_the_context():
    made = program(ARGUMENT.format(number=2), ENTRY)
    assert run(made, context=bytes(4384), place=Place(parameters=(1, 2, 33))) == 33
    verified = verify(made)
    assert verified.facts.parameters == {2}
    with pytest.raises(UnsupportedError, match="__egpu_param_2"):
        run_host(verified, bytearray())


REFUSED = {
    "no constant": (
        "mov %r9, %r1\ncall 7\nmov %r1, %r9\n"
        + ARGUMENT.format(number=1).replace("mov %r2, 1", "mov %r2, %r0"),
        "a constant below 512",
    ),
    "too many": (ARGUMENT.format(number=512), "a constant below 512"),
    "no context": ("mov %r1, 0\ncall 174\nexit", "must be the context"),
    "size of comm": (
        "call 7\nand %r0, 7\nadd %r0, 1\nmov %r2, %r0\nmov %r1, %r10\nadd %r1, -16\ncall 16\nexit",
        "a constant size from 1 to 256",
    ),
    "one size of comm or another": (
        (
            "call 7\nmov %r1, %r10\nadd %r1, -16\nmov %r2, 16\njset %r0, 1, +1\nmov %r2, 8\n"
            "call 16\nmov %r0, 0\nexit"
        ),
        "r2 of bpf_get_current_comm is a different constant on different ways",
    ),
    "nothing of comm": (
        "mov %r1, %r10\nadd %r1, -16\nmov %r2, 0\ncall 16\nexit",
        "a constant size from 1 to 256, is 0",
    ),
    "one parameter or another": (
        (
            "mov %r6, %r1\ncall 7\nmov %r1, %r6\nmov %r2, 1\njset %r0, 1, +1\nmov %r2, 2\n"
            "mov %r3, %r10\nadd %r3, -8\ncall 183\nmov %r0, 0\nexit"
        ),
        "r2 of bpf_get_func_arg is a different constant on different ways",
    ),
    "no room": ("mov %r1, %r10\nadd %r1, -8\nmov %r2, 16\ncall 16\nexit", "outside its frame"),
    "uninitialised": (
        "mov %r1, %r10\nadd %r1, -16\nmov %r2, 8\ncall 16\nldxdw %r0, [%r10-8]\nexit",
        "not initialised",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    text, message = REFUSED[name]
    with pytest.raises(VerifierError, match=message):
        verify(program(text, ENTRY))

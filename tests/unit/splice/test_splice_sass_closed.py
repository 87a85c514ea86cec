"""Spliced code leads nowhere but to its own instructions, and a probe that would is refused."""

import pytest
from sass_corpus import assemble, cubin, needs_tools
from splice_probes import EVERYTHING, EXIT, LAYOUT, code, count

from egpu.codegen.device_code import Relocation, RelocKind
from egpu.errors import InternalError, UnsupportedError
from egpu.image.cubin import open_cubin
from egpu.image.cubin_edit import take_apart
from egpu.image.cubin_kernel import open_kernel
from egpu.splice.sass import splice_sass
from egpu.splice.sass_closed import check_meetings, check_probe, check_spliced
from egpu.splice.sass_code import Code
from egpu.splice.sass_encoding import (
    BARRIER,
    BRA,
    BSSY,
    BSYNC,
    CALL,
    NOP,
    OPCODE,
    SIZE,
    branch,
    distance_of,
    instruction,
    with_distance,
)
from egpu.splice.sass_encoding import EXIT as EXIT_OPCODE

ARCH = 90
# Divides where lanes have parted: a function of the assembler's own.
DIVIDING = """
.reg .pred %p1; .reg .b32 %r<3>; .reg .b64 %rd<5>;
activemask.b32 %r1;
mov.b64 %rd1, __egpu_launch_0;
ld.global.u64 %rd2, [%rd1];
ld.global.u64 %rd3, [%rd1+8];
setp.eq.u64 %p1, %rd3, 0;
@%p1 bra $done;
div.u64 %rd4, %rd2, %rd3;
red.global.add.u64 [%rd1+16], %rd4;
$done:
bar.warp.sync %r1;
"""


def code_of(data, name):
    parts = take_apart(open_cubin(data))
    return Code.of(parts.parts[open_kernel(parts, name).text].data)


def lands(words, index):
    return index + 1 + distance_of(words[index], ARCH) // SIZE


def meeting(barrier, at):
    """A BSSY whose lanes meet at the BSYNC in front of ``at`` instructions from here."""
    word = BARRIER.set(instruction(BSSY), barrier)
    return word | (at - 1) * 4 << 34


def met(barrier):
    return BARRIER.set(instruction(BSYNC), barrier)


def test_a_probe_keeps_to_itself():
    end = instruction(EXIT_OPCODE)
    check_probe([branch(ARCH, 0), end], ARCH)
    check_meetings([meeting(3, 3), branch(ARCH, 0), met(3), end], ARCH)
    for words in ([branch(ARCH, SIZE), end], [branch(ARCH, -2 * SIZE), end]):
        with pytest.raises(UnsupportedError, match="a jump out of it"):
            check_probe(words, ARCH)
    with pytest.raises(UnsupportedError, match="a jump out of it"):
        check_probe([instruction(NOP) & ~0xFFF | 0x949, end], ARCH)  # BRX: through a register
    for words in (
        [meeting(3, 3), branch(ARCH, 0), met(2), end],
        [meeting(3, 3), met(3), met(3), end],  # from the first of them, too, lanes go to the end
        [meeting(3, 3), branch(ARCH, 0), branch(ARCH, 0), end],
        [branch(ARCH, 0), met(3), end],
    ):
        with pytest.raises(UnsupportedError, match="meet in an unknown way"):
            check_meetings(words, ARCH)


@needs_tools
@pytest.mark.parametrize("name", ["early_exits", "matmul"])
def test_each_wrong_jump_is_found(name):
    before = code_of(cubin("plain", "90"), name)
    spliced = splice_sass(cubin("plain", "90"), name, EVERYTHING, LAYOUT, assemble)
    after = code_of(spliced.image, name)
    check_spliced(before, after, ARCH)
    jumps = [
        index
        for index in range(len(after))
        if OPCODE.of(after[index]) == BRA
        and (index >= len(before) or after[index] != before[index])
    ]
    assert len(jumps) > 4
    for index in jumps:
        outside = (len(after) - index - 1) * SIZE
        inside = (2 - index - 1) * SIZE  # the kernel's third instruction
        for distance in (outside, inside):
            wrong = after.with_words({index: with_distance(after[index], ARCH, distance)})
            with pytest.raises(InternalError, match="leads elsewhere"):
                check_spliced(before, wrong, ARCH)
    ends = [index for index in after.where(EXIT_OPCODE) if index >= len(before)]
    with pytest.raises(InternalError, match="leads elsewhere"):
        check_spliced(before, after.with_words({ends[-1]: instruction(NOP)}), ARCH)


@needs_tools
@pytest.mark.parametrize("arch", ["80", "90"])
def test_functions_of_a_probe_come_along(arch):
    relocation = Relocation(RelocKind.LAUNCH, 0)
    probes = (count(), code(DIVIDING, relocation), code(DIVIDING, relocation, kind=EXIT))
    before = code_of(cubin("plain", arch), "early_exits")
    spliced = splice_sass(cubin("plain", arch), "early_exits", probes, LAYOUT, assemble)
    after = code_of(spliced.image, "early_exits")
    calls = [index for index in after.where(CALL) if index >= len(before)]
    assert len(calls) == 2
    for index in calls:
        place = index + 1 + distance_of(after[index], int(arch)) // SIZE
        assert len(before) < place < len(after)

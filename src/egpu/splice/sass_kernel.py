"""What is looked at before a kernel's machine code is changed, and what stands in the way."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from egpu.bpf.program import AttachKind
from egpu.codegen.device_code import DeviceCode
from egpu.errors import UnsupportedError
from egpu.image.cubin import STT_FUNC
from egpu.image.cubin_attributes import CODES
from egpu.image.cubin_edit import (
    CubinParts,
    read_symbols,
    relocations_of,
    symbol_rows,
)
from egpu.image.cubin_kernel import Kernel
from egpu.maps.layout import LAUNCH_BLOCK_SIZE
from egpu.splice.sass_code import Code
from egpu.splice.sass_encoding import (
    BRA,
    BRA_UNIFORM,
    EXIT,
    IMMEDIATE,
    SETMAXREG,
    SIZE,
    Field,
    distance_of,
)
from egpu.splice.sass_globals import used_constants
from egpu.splice.sass_uniform import Usage, usage_of

_TEXT = ".text."
_PARAMETER_LIMIT = 32764  # bytes (PTX ISA 8.1)
_KNOWN_EXIT = 0x3800000  # high half of an EXIT without its predicates and control bits
_EXIT_HIGH = 0x3FF_FFFF_FFFF & ~(0xF << 23)


def check_kernel(
    parts: CubinParts, kernel: Kernel, code: Code, arch: int, probes: Sequence[DeviceCode]
) -> None:
    """UnsupportedError, with the reason, when ``kernel`` cannot have these probes; ``code`` is
    the machine code of its section."""
    name = kernel.name
    if any(part.name.startswith((".nv.capmerc", ".nv.merc")) for part in parts.parts):
        raise UnsupportedError(f"{name}, whose code is described twice (.nv.capmerc)")
    size = -(-kernel.parameter_size // 8) * 8 + LAUNCH_BLOCK_SIZE
    if size > _PARAMETER_LIMIT:
        raise UnsupportedError(
            f"{name} with {kernel.parameter_size} bytes of parameters: {LAUNCH_BLOCK_SIZE} more do "
            f"not fit into {_PARAMETER_LIMIT}"
        )
    if not len(code):
        raise UnsupportedError(f"{name}, which has no code")
    _check_start(parts, kernel, code, arch)
    if any(each.kind is AttachKind.EXIT for each in probes):
        _check_exits(parts, kernel, code)


def _check_start(parts: CubinParts, kernel: Kernel, code: Code, arch: int) -> None:
    name = kernel.name
    for at, relocation in relocations_of(parts, kernel.text):
        if relocation.offset < SIZE:
            raise UnsupportedError(
                f"{name}, whose first instruction is changed when it is loaded "
                f"({parts.parts[at].name})"
            )
    if _jumps_to_start(code, arch):
        raise UnsupportedError(f"{name}, which jumps back to its first instruction")
    targets = kernel.attribute("INDIRECT_BRANCH_TARGETS")
    if targets is not None and 0 in _branch_targets(targets.words()):
        raise UnsupportedError(f"{name}, which may jump to its first instruction")


def _jumps_to_start(code: Code, arch: int) -> bool:
    jumps = code.where(BRA, BRA_UNIFORM)
    # Of a jump back the distance's top bits are set: few are looked at one by one.
    back = code.field(_BACK)[jumps] != 0
    return any(
        (index + 1) * SIZE + distance_of(code[index], arch) == 0
        for index in itertools.compress(jumps, back.tolist())
    )


_BACK = Field(81, 1)  # the sign of a distance, for every arch


def _branch_targets(values: Sequence[int]) -> Iterable[int]:
    at = 0
    while at + 3 <= len(values):
        count = values[at + 2]
        yield from values[at + 3 : at + 3 + count]
        at += 3 + count


def _check_exits(parts: CubinParts, kernel: Kernel, code: Code) -> None:
    codes = [code, *(Code.of(parts.parts[at].data) for at in other_functions(parts))]
    exits = [each[index] for each in codes for index in each.where(EXIT)]
    if not exits:
        raise UnsupportedError(f"an exit probe in {kernel.name}, which has no EXIT")
    if any(
        (word >> 64) & _EXIT_HIGH & ~(0xFFF << 41) != (_KNOWN_EXIT & _EXIT_HIGH) for word in exits
    ):
        raise UnsupportedError(f"an exit probe in {kernel.name}, with an unusual EXIT")


def other_functions(parts: CubinParts) -> list[int]:
    """Sections with functions that are no kernels: what a kernel by itself may call, by name or
    through a pointer that lies anywhere."""
    code = [at for at, part in enumerate(parts.parts) if part.name.startswith(_TEXT)]
    if len(code) < 2:  # as in most twins: the kernel itself
        return []
    entries = {each.section for each in read_symbols(parts) if each.is_kernel}
    return [at for at in code if at not in entries]


# Code of the driver (printf, malloc): nobody has seen it.  What the ABI lets a callee use is below.
# A failed assertion ends everything, and whatever it does to other lanes is lost with them.
_NEVER_RETURNS = frozenset({"__assertfail"})
_CALLEE = Usage(frozenset(range(32)), frozenset(range(4)), frozenset(range(10)))


def code_around(parts: CubinParts, kernel: Kernel, code: Code) -> Usage:
    """What the kernel and whatever it calls may use of what a warp has once."""
    used = [usage_of(code)]
    for at in other_functions(parts):
        used.append(usage_of(Code.of(parts.parts[at].data)))
    if _calls_the_driver(parts, kernel, code):
        used.append(_CALLEE)
    return Usage(
        frozenset().union(*(each.registers for each in used)),
        frozenset().union(*(each.predicates for each in used)),
        frozenset().union(*(each.barriers for each in used)),
    )


def _calls_the_driver(parts: CubinParts, kernel: Kernel, code: Code) -> bool:
    """Whether it may call a function that is defined elsewhere and comes back.

    Those are named by the code or among EXTERNS; their addresses, too, lie in constant bank 4, in a
    place that the code reads through a register.
    """
    rows, symbols = symbol_rows(parts), read_symbols(parts)
    elsewhere = np.flatnonzero((rows["section"] == 0) & (rows["info"] & 0xF == STT_FUNC))
    foreign = {at for at in elsewhere.tolist() if symbols[at].name not in _NEVER_RETURNS}
    if not foreign:
        return False
    named = {each.symbol for _, each in relocations_of(parts, kernel.text)}
    bank = parts.find(".nv.constant4")
    if bank is not None and (used := used_constants(parts, kernel, 4, code)) is not None:
        named |= {each.symbol for _, each in relocations_of(parts, bank) if each.offset in used}
    for attribute in kernel.attributes:
        if attribute.code == CODES["EXTERNS"]:
            named.update(attribute.words())
    return not foreign.isdisjoint(named)


def lowest_register_limit(code: Code) -> int | None:
    """The fewest registers that a warp has after a setmaxnreg, None without one."""
    limits = [IMMEDIATE.of(code[index]) for index in code.where(SETMAXREG)]
    return min(limits) if limits else None

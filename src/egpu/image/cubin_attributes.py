"""``.nv.info`` sections: attributes of a cubin and of its kernels, read and written as they are.

NVIDIA documents none of it.  The names are those that nvdisasm prints; formats and shapes hold for
what ptxas 12.8 and 13.0 write.
"""

from __future__ import annotations

import enum
import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from egpu.errors import InputError


class Form(enum.IntEnum):
    """How long an attribute is: two bytes of value, or a u16 size and that many bytes."""

    NONE = 1
    BYTE = 2
    HALF = 3
    SIZED = 4


class Shape(enum.Enum):
    """What an attribute holds."""

    NONE = "nothing"
    VALUE = "a value"
    SYMBOL_VALUE = "u32 symbol, u32 value"
    SYMBOLS = "u32 symbols"
    OFFSETS = "u32 offsets of instructions in the kernel"
    BRANCH_TARGETS = "u32 offset, u32, u32 count, count u32 offsets, repeated"
    REGISTERS = "u32 per entry of another list"
    PARAMETER = "u32, u16 ordinal, u16 offset, u32 with the size in its top 14 bits"
    LARGE_PARAMETER = "u32, u16 ordinal, u16 offset, u32 size"
    BANK = "u32 section symbol, u16 offset, u16 size"
    WORDS = "u32s"


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of the table."""

    name: str
    form: Form
    shape: Shape


# fmt: off
ATTRIBUTES: dict[int, Kind] = {
    0x04: Kind("CTAIDZ_USED",                Form.NONE,  Shape.NONE),
    0x05: Kind("MAX_THREADS",                Form.SIZED, Shape.WORDS),
    0x0A: Kind("PARAM_CBANK",                Form.SIZED, Shape.BANK),
    0x0F: Kind("EXTERNS",                    Form.SIZED, Shape.SYMBOLS),
    0x10: Kind("REQNTID",                    Form.SIZED, Shape.WORDS),
    0x11: Kind("FRAME_SIZE",                 Form.SIZED, Shape.SYMBOL_VALUE),
    0x12: Kind("MIN_STACK_SIZE",             Form.SIZED, Shape.SYMBOL_VALUE),
    0x17: Kind("KPARAM_INFO",                Form.SIZED, Shape.PARAMETER),
    0x19: Kind("CBANK_PARAM_SIZE",           Form.HALF,  Shape.VALUE),
    0x1B: Kind("MAXREG_COUNT",               Form.HALF,  Shape.VALUE),
    0x1C: Kind("EXIT_INSTR_OFFSETS",         Form.SIZED, Shape.OFFSETS),
    0x1E: Kind("CRS_STACK_SIZE",             Form.SIZED, Shape.WORDS),
    0x28: Kind("COOP_GROUP_INSTR_OFFSETS",   Form.SIZED, Shape.OFFSETS),
    0x29: Kind("COOP_GROUP_MASK_REGIDS",     Form.SIZED, Shape.REGISTERS),
    0x2F: Kind("REGCOUNT",                   Form.SIZED, Shape.SYMBOL_VALUE),
    0x2E: Kind("ATOM16_EMUL_INSTR_REG_MAP",  Form.SIZED, Shape.WORDS),
    0x31: Kind("INT_WARP_WIDE_INSTR_OFFSETS", Form.SIZED, Shape.OFFSETS),
    0x34: Kind("INDIRECT_BRANCH_TARGETS",    Form.SIZED, Shape.BRANCH_TARGETS),
    0x36: Kind("SW_WAR",                     Form.SIZED, Shape.WORDS),
    0x37: Kind("CUDA_API_VERSION",           Form.SIZED, Shape.WORDS),
    0x38: Kind("NUM_MBARRIERS",              Form.HALF,  Shape.VALUE),
    0x39: Kind("MBARRIER_INSTR_OFFSETS",     Form.SIZED, Shape.WORDS),
    0x3D: Kind("CTA_PER_CLUSTER",            Form.SIZED, Shape.WORDS),
    0x3E: Kind("EXPLICIT_CLUSTER",           Form.NONE,  Shape.NONE),
    0x40: Kind("INSTR_REG_MAP",              Form.SIZED, Shape.WORDS),
    0x44: Kind("UNUSED_LOAD_BYTE_OFFSET",    Form.SIZED, Shape.WORDS),
    0x45: Kind("KPARAM_INFO_V2",             Form.SIZED, Shape.LARGE_PARAMETER),
    0x46: Kind("SYSCALL_OFFSETS",            Form.SIZED, Shape.OFFSETS),
    0x4C: Kind("NUM_BARRIERS",               Form.BYTE,  Shape.VALUE),
    0x50: Kind("SPARSE_MMA_MASK",            Form.HALF,  Shape.VALUE),
    0x53: Kind("GEN_ERRBAR_AT_EXIT",         Form.NONE,  Shape.NONE),
    0x54: Kind("REG_RECONFIG",               Form.NONE,  Shape.NONE),
    0x55: Kind("ANNOTATIONS",                Form.SIZED, Shape.WORDS),
    0x66: Kind("LANGUAGE",                   Form.SIZED, Shape.WORDS),
}
# fmt: on
CODES = {kind.name: code for code, kind in ATTRIBUTES.items()}
_PARAMETERS = (CODES["KPARAM_INFO"], CODES["KPARAM_INFO_V2"])
_PAIR = struct.Struct("<II")
_PARAMETER = struct.Struct("<IHHI")
_BANK = struct.Struct("<IHH")
_PARAMETER_SIZE_SHIFT = 18
_PARAMETER_BANK = 0x1F000  # the constant bank that the driver chooses
_SMALL_PARAMETERS = 4352  # bytes
_HEAD = struct.Struct("<BBH")
_PAIR_SIZE = _HEAD.size + _PAIR.size  # most rows of .nv.info, thousands one behind the other
_PAIR_HEAD = _PAIR.size << 16 | Form.SIZED  # without the code
_WINDOW = 4096  # rows


class Attribute(NamedTuple):
    """One attribute: ``value`` is the u16 behind its code (of SIZED ones, the payload's length)."""

    form: int
    code: int
    value: int
    payload: bytes = b""

    def words(self) -> tuple[int, ...]:
        """The payload as u32s."""
        return struct.unpack(f"<{len(self.payload) // 4}I", self.payload[: len(self.payload) & ~3])


@functools.lru_cache(maxsize=256)  # a kernel's are asked for several times
def read_attributes(content: bytes) -> tuple[Attribute, ...]:
    """Every attribute of a section; InputError when one runs past the end."""
    found: list[Attribute] = []
    at, length, head, sized = 0, len(content), _HEAD.size, int(Form.SIZED)
    while at < length:
        form, code, value = _head(content, at)
        at += head
        end = at + value if form == sized else at
        if end > length or not 0 < form <= sized:
            _check(code, form, end, content)
        found.append(Attribute(form, code, value, content[at:end]))
        at = end
    return tuple(found)


def _head(content: bytes, at: int) -> tuple[int, int, int]:
    if at + _HEAD.size > len(content):
        raise InputError(f"{len(content) - at} bytes behind the last attribute", where="cubin")
    return _HEAD.unpack_from(content, at)


def _check(code: int, form: int, end: int, content: bytes) -> None:
    if end > len(content) or not Form.NONE <= form <= Form.SIZED:
        raise InputError(f"attribute {code:#x} of form {form} is cut off", where="cubin")


def write_attributes(attributes: Sequence[Attribute]) -> bytes:
    """The bytes of a section."""
    return b"".join(
        _HEAD.pack(each.form, each.code, each.value) + each.payload for each in attributes
    )


def sized(name: str, payload: bytes) -> Attribute:
    """An attribute with a payload."""
    return Attribute(Form.SIZED, CODES[name], len(payload), payload)


def words(name: str, values: Sequence[int]) -> Attribute:
    """An attribute that is a list of u32s."""
    return sized(name, struct.pack(f"<{len(values)}I", *values))


def symbol_value(attribute: Attribute) -> tuple[int, int]:
    """(symbol index, value) of an attribute of that shape."""
    return _PAIR.unpack_from(attribute.payload)


def is_parameter(attribute: Attribute) -> bool:
    """Whether an attribute describes a parameter, in either form."""
    return attribute.code in _PARAMETERS


def parameter(attribute: Attribute) -> tuple[int, int, int]:
    """(ordinal, offset, size) of a parameter's attribute."""
    _, ordinal, offset, word = _PARAMETER.unpack_from(attribute.payload)
    large = attribute.code == CODES["KPARAM_INFO_V2"]
    return ordinal, offset, word if large else word >> _PARAMETER_SIZE_SHIFT


def parameters_of(places: Sequence[tuple[int, int]]) -> list[Attribute]:
    """The attributes of parameters at (offset, size), the last one first, as the assembler has it:
    in the second form where the first has no room for all of them."""
    end = max((offset + size for offset, size in places), default=0)
    large = end > _SMALL_PARAMETERS
    name = "KPARAM_INFO_V2" if large else "KPARAM_INFO"
    out = []
    for ordinal, (offset, size) in reversed(list(enumerate(places))):
        word = size if large else size << _PARAMETER_SIZE_SHIFT | _PARAMETER_BANK
        out.append(sized(name, _PARAMETER.pack(0, ordinal, offset, word)))
    return out


def bank(attribute: Attribute) -> tuple[int, int, int]:
    """(symbol of the constant bank's section, offset of the parameters in it, their size)."""
    return _BANK.unpack_from(attribute.payload)


def bank_of(symbol: int, offset: int, size: int) -> Attribute:
    """A PARAM_CBANK."""
    return sized("PARAM_CBANK", _BANK.pack(symbol, offset, size))

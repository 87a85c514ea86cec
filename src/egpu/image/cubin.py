"""Cubins: ELF files with machine code, read without trusting any field (System V gABI, ELF-64).

NVIDIA documents neither its sections nor its attributes; the tables hold what ptxas 12 and 13
write.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from egpu.errors import InputError
from egpu.image.cubin_tables import (
    SECTIONS,
    SYMBOLS,
    NamedRows,
    Table,
    first_called,
    letters_at,
    name_of,
    reaches_past,
    table_of,
    unnamed,
)
from egpu.image.model import Buffer, KernelInfo

# fmt: off
ELF_MAGIC    = b"\x7fELF\x02\x01"  # 64-bit, little-endian
EM_CUDA      = 190
HEADER_SIZE  = 64
HEADER = {  # field: (offset, format)
    "machine":   (18, "<H"),
    "phoff":     (32, "<Q"),
    "shoff":     (40, "<Q"),
    "flags":     (48, "<I"),
    "phentsize": (54, "<H"),
    "phnum":     (56, "<H"),
    "shentsize": (58, "<H"),
    "shnum":     (60, "<H"),
    "shstrndx":  (62, "<H"),
}
SECTION      = struct.Struct("<IIQQQQIIQQ")  # name type flags addr offset size link info ...
SEGMENT      = struct.Struct("<IIQQQQQQ")    # type flags offset vaddr paddr filesz memsz align
SYMBOL       = struct.Struct("<IBBHQQ")      # name info other shndx value size
SHT_SYMTAB, SHT_NOBITS = 2, 8
STT_FUNC     = 2
STO_ENTRY    = 0x10                          # st_other: the function is a kernel
ABI_WITH_ARCH_IN_SECOND_BYTE = 8             # CUDA 13; older ABIs keep the arch in byte 0
EIATTR_REGCOUNT    = 0x2F                    # .nv.info: u32 symbol index, u32 registers
EIATTR_KPARAM_INFO = 0x17                    # .nv.info.<kernel>: u32, u16 ordinal, u16 offset, u32
KPARAM_SIZE_SHIFT  = 18                      # ... whose top 14 bits are the size
EIATTR_KPARAM_INFO_V2 = 0x45                 # the same above 4352 bytes: all of it is the size
PTX_SECTION        = ".nv_debug_ptx_txt"     # PTX text, lines ended by NUL; nvJitLink adds .<hash>
RESERVED_SHARED    = 1024                    # bytes that CUDA keeps of each block's shared memory
RESERVED_FROM_ARCH = 90                      # from here on .nv.shared.<kernel> counts them
# fmt: on


def _packed(fields: dict[str, tuple[int, str]]) -> struct.Struct:
    """Fields in the order of their places, all read at once."""
    text, at = "<", 0
    for offset, form in fields.values():
        text += f"{offset - at}x{form[1:]}"
        at = offset + struct.calcsize(form)
    return struct.Struct(text)


_HEADER = _packed(HEADER)
_ARCH_OPTION = re.compile(rb"-arch[ =]*sm_[0-9]+([af]?)")


class Section(NamedTuple):
    """A section: its place in the file (``size`` counts no file bytes when ``type`` is NOBITS)."""

    name: str
    type: int
    offset: int
    size: int
    link: int
    info: int


@dataclass(frozen=True, slots=True)
class Cubin:
    """An opened cubin.  ``arch`` 90 for sm_90, ``suffix`` as far as ptxas noted its option."""

    data: Buffer
    arch: int
    suffix: str
    sections: Sequence[Section]

    @property
    def names(self) -> bytes:
        """The string table with the names of its sections."""
        if isinstance(self.sections, NamedRows):
            return self.sections.names
        return section_names(self.data, section_table(self.data), header_of(self.data)["shstrndx"])

    def content(self, section: Section) -> bytes:
        """The bytes of a section in the file."""
        if section.type == SHT_NOBITS:
            return b""
        return bytes(self.data[section.offset : section.offset + section.size])

    def section(self, name: str) -> Section | None:
        """The section ``name``, None if there is none."""
        at = first_called(self.sections, name)
        return None if at is None else self.sections[at]


def open_cubin(data: Buffer) -> Cubin:
    """Reads the headers of a cubin; InputError when it is not one or points outside itself."""
    header = _header(data)
    if header["machine"] != EM_CUDA:
        raise _malformed(f"machine {header['machine']} instead of {EM_CUDA} (CUDA)")
    sections = _sections(data, header)
    if (length := _length(data, header, sections=False)) > len(data):
        raise _malformed(f"it has {len(data)} of its {length} bytes")
    flags, abi = header["flags"], data[8]
    arch = flags >> 8 & 0xFF if abi >= ABI_WITH_ARCH_IN_SECOND_BYTE else flags & 0xFF
    cubin = Cubin(data, arch, "", sections)
    note = cubin.section(".note.nv.tkinfo")
    option = _ARCH_OPTION.search(cubin.content(note)) if note else None
    suffix = option[1].decode() if option else ""
    return Cubin(data, arch, suffix, sections)


def elf_tables_end(head: Buffer) -> int:
    """Bytes from the start that hold the ELF header and both header tables."""
    return _tables_end(_header(head))


def _tables_end(header: dict[str, int]) -> int:
    return max(
        HEADER_SIZE,
        header["shoff"] + header["shnum"] * header["shentsize"],
        header["phoff"] + header["phnum"] * header["phentsize"],
    )


def elf_length(data: Buffer) -> int:
    """Bytes of the ELF file whose first ``elf_tables_end`` bytes are ``data``."""
    return _length(data, _header(data), sections=True)


def _length(data: Buffer, header: dict[str, int], *, sections: bool) -> int:
    """Where the tables and the segments end, and, where nobody has looked at them, the sections."""
    ends = [_tables_end(header)]
    for row in _table(data, header, "ph", SEGMENT):
        ends.append(row[2] + row[5])
    for row in _table(data, header, "sh", SECTION) if sections else ():
        if row[1] != SHT_NOBITS:
            ends.append(row[4] + row[5])
    return max(ends)


def _header(data: Buffer) -> dict[str, int]:
    if len(data) < HEADER_SIZE:
        raise _malformed("the ELF header is cut off")
    if data[: len(ELF_MAGIC)] != ELF_MAGIC:
        raise _malformed("not a 64-bit little-endian ELF file")
    return header_of(data)


def header_of(data: Buffer) -> dict[str, int]:
    """The fields of an ELF header that is there."""
    return dict(zip(HEADER, _HEADER.unpack_from(data), strict=True))


def _table(
    data: Buffer, header: dict[str, int], prefix: str, row: struct.Struct
) -> Iterator[tuple[int, ...]]:
    count, step, begin = _place(data, header, prefix, row.size)
    for index in range(count):
        yield row.unpack_from(data, begin + index * step)


def _place(data: Buffer, header: dict[str, int], prefix: str, size: int) -> tuple[int, int, int]:
    """(rows, bytes from each to the next, offset) of a header table."""
    count, step, begin = header[f"{prefix}num"], header[f"{prefix}entsize"], header[f"{prefix}off"]
    if count and (step < size or begin + count * step > len(data)):
        raise _malformed(f"its {prefix} table of {count} x {step} bytes at {begin} does not fit")
    return count, step, begin


def section_table(data: Buffer) -> Table:
    """The section headers of a cubin."""
    return _section_table(data, _header(data))


def _section_table(data: Buffer, header: dict[str, int]) -> Table:
    count, step, begin = _place(data, header, "sh", SECTION.size)
    return table_of(data, SECTIONS, begin, count, step)


def section_names(data: Buffer, table: Table, strings: int) -> bytes:
    """The string table with the names of a cubin's sections, which is in section ``strings``."""
    if strings >= len(table):
        raise _malformed(f"section names in section {strings} of {len(table)}")
    row = table[strings]
    begin = int(row["offset"])
    return b"" if row["type"] == SHT_NOBITS else bytes(data[begin : begin + int(row["size"])])


def _sections(data: Buffer, header: dict[str, int]) -> Sequence[Section]:
    table = _section_table(data, header)
    stored = table[table["type"] != SHT_NOBITS]
    for at in reaches_past(stored, len(data)):
        row = stored[at]
        raise _malformed(f"a section of {row['size']} bytes at {row['offset']} does not fit")
    if not len(table):
        return ()
    names = section_names(data, table, header["shstrndx"])
    for at in unnamed(table, names):
        name_of(names, int(table["name"][at]))  # says so

    def section(at: int) -> Section:
        row = SECTION.unpack_from(data, begin + at * step)
        return Section(name_of(names, row[0]), row[1], row[4], row[5], row[6], row[7])

    begin, step = header["shoff"], header["shentsize"]
    letters = letters_at(data, int(table["offset"][header["shstrndx"]]), len(names))
    return NamedRows(table, names, section, letters)


def list_cubin_kernels(cubin: Cubin) -> tuple[KernelInfo, ...]:
    """Its kernels, with registers, parameters and static shared memory, in symbol order."""
    table = next((each for each in cubin.sections if each.type == SHT_SYMTAB), None)
    if table is None:
        return ()
    if table.link >= len(cubin.sections):
        raise _malformed(f"symbol names in section {table.link} of {len(cubin.sections)}")
    names = cubin.content(cubin.sections[table.link])
    named = {each.name: each for each in cubin.sections}
    registers = _registers(cubin)
    has_ptx = bool(ptx_sections(cubin))
    kernels: list[KernelInfo] = []
    symbols = symbol_table_of(cubin.content(table))
    for index in kernel_symbols(symbols):
        name = name_of(names, int(symbols["name"][index]))
        kernels.append(
            KernelInfo(
                name=name,
                parameters=_parameters(cubin, named.get(f".nv.info.{name}")),
                registers=registers.get(index, 0),
                shared=_shared(cubin, named.get(f".nv.shared.{name}")),
                has_ptx=has_ptx,
            )
        )
    return tuple(kernels)


def symbol_table_of(content: bytes) -> Table:
    """The rows of a symbol table's section."""
    return table_of(content, SYMBOLS, 0, len(content) // SYMBOL.size, SYMBOL.size)


def kernel_symbols(symbols: Table) -> list[int]:
    """Which rows of a symbol table are kernels."""
    entries = (symbols["other"] & STO_ENTRY).astype(np.bool_)
    found: list[int] = ((symbols["info"] & 0xF == STT_FUNC) & entries).nonzero()[0].tolist()
    return found


def ptx_sections(cubin: Cubin) -> tuple[Section, ...]:
    """Sections that hold the PTX text the cubin was made from."""
    return tuple(
        each
        for each in cubin.sections
        if each.name == PTX_SECTION or each.name.startswith(PTX_SECTION + ".")
    )


def recovered_ptx(cubin: Cubin, section: Section) -> bytes:
    """The PTX text of such a section, with line ends again."""
    return cubin.content(section).replace(b"\0", b"\n")


def _registers(cubin: Cubin) -> dict[int, int]:
    section = cubin.section(".nv.info")
    found: dict[int, int] = {}
    if section is not None:
        for attribute, payload in _attributes(cubin.content(section)):
            if attribute == EIATTR_REGCOUNT and len(payload) >= 8:
                symbol, count = struct.unpack_from("<II", payload)
                found[symbol] = count
    return found


def _parameters(cubin: Cubin, section: Section | None) -> tuple[tuple[int, int], ...]:
    found: dict[int, tuple[int, int]] = {}
    if section is not None:
        for attribute, payload in _attributes(cubin.content(section)):
            if attribute == EIATTR_KPARAM_INFO_V2 and len(payload) >= 12:
                _index, ordinal, offset, size = struct.unpack_from("<IHHI", payload)
                found[ordinal] = (offset, size)
            elif attribute == EIATTR_KPARAM_INFO and len(payload) >= 12:
                _index, ordinal, offset, word = struct.unpack_from("<IHHI", payload)
                found[ordinal] = (offset, word >> KPARAM_SIZE_SHIFT)
    return tuple(found[ordinal] for ordinal in sorted(found))


def _shared(cubin: Cubin, section: Section | None) -> int:
    if section is None:
        return 0
    reserved = RESERVED_SHARED if cubin.arch >= RESERVED_FROM_ARCH else 0
    return max(section.size - reserved, 0)


def _attributes(content: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, payload) of an .nv.info section.

    Format 4 has a u16 size and that many bytes; formats 1 to 3 have two bytes of value.
    """
    at = 0
    while at + 4 <= len(content):
        form, attribute, value = struct.unpack_from("<BBH", content, at)
        at += 4
        if form == 4:
            if at + value > len(content):
                raise _malformed(f"attribute {attribute:#x} runs past its section")
            yield attribute, content[at : at + value]
            at += value
        else:
            yield attribute, value.to_bytes(2, "little")


def _malformed(message: str) -> InputError:
    return InputError(message, where="cubin")

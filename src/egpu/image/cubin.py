"""Cubins: ELF files with machine code, read without trusting any field (System V gABI, ELF-64).

NVIDIA documents neither its sections nor its attributes; the tables hold what ptxas 12 and 13
write.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from egpu.errors import InputError
from egpu.image.model import KernelInfo

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
_ARCH_OPTION = re.compile(rb"-arch[ =]*sm_[0-9]+([af]?)")


@dataclass(frozen=True, slots=True)
class Section:
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

    data: bytes
    arch: int
    suffix: str
    sections: tuple[Section, ...]

    def content(self, section: Section) -> bytes:
        """The bytes of a section in the file."""
        if section.type == SHT_NOBITS:
            return b""
        return self.data[section.offset : section.offset + section.size]

    def section(self, name: str) -> Section | None:
        """The section ``name``, None if there is none."""
        return next((each for each in self.sections if each.name == name), None)


def open_cubin(data: bytes) -> Cubin:
    """Reads the headers of a cubin; InputError when it is not one or points outside itself."""
    header = _header(data)
    if header["machine"] != EM_CUDA:
        raise _malformed(f"machine {header['machine']} instead of {EM_CUDA} (CUDA)")
    sections = _sections(data, header)
    if (length := elf_length(data)) > len(data):
        raise _malformed(f"it has {len(data)} of its {length} bytes")
    flags, abi = header["flags"], data[8]
    arch = flags >> 8 & 0xFF if abi >= ABI_WITH_ARCH_IN_SECOND_BYTE else flags & 0xFF
    cubin = Cubin(data, arch, "", sections)
    note = cubin.section(".note.nv.tkinfo")
    option = _ARCH_OPTION.search(cubin.content(note)) if note else None
    suffix = option[1].decode() if option else ""
    return Cubin(data, arch, suffix, sections)


def elf_tables_end(head: bytes) -> int:
    """Bytes from the start that hold the ELF header and both header tables."""
    header = _header(head)
    return max(
        HEADER_SIZE,
        header["shoff"] + header["shnum"] * header["shentsize"],
        header["phoff"] + header["phnum"] * header["phentsize"],
    )


def elf_length(data: bytes) -> int:
    """Bytes of the ELF file whose first ``elf_tables_end`` bytes are ``data``."""
    header = _header(data)
    ends = [elf_tables_end(data)]
    for row in _table(data, header, "ph", SEGMENT):
        ends.append(row[2] + row[5])
    for row in _table(data, header, "sh", SECTION):
        if row[1] != SHT_NOBITS:
            ends.append(row[4] + row[5])
    return max(ends)


def _header(data: bytes) -> dict[str, int]:
    if len(data) < HEADER_SIZE:
        raise _malformed("the ELF header is cut off")
    if data[: len(ELF_MAGIC)] != ELF_MAGIC:
        raise _malformed("not a 64-bit little-endian ELF file")
    return {
        name: int(struct.unpack_from(form, data, offset)[0])
        for name, (offset, form) in HEADER.items()
    }


def _table(
    data: bytes, header: dict[str, int], prefix: str, row: struct.Struct
) -> Iterator[tuple[int, ...]]:
    count, step, begin = header[f"{prefix}num"], header[f"{prefix}entsize"], header[f"{prefix}off"]
    if not count:
        return
    if step < row.size or begin + count * step > len(data):
        raise _malformed(f"its {prefix} table of {count} x {step} bytes at {begin} does not fit")
    for index in range(count):
        yield row.unpack_from(data, begin + index * step)


def _sections(data: bytes, header: dict[str, int]) -> tuple[Section, ...]:
    rows = list(_table(data, header, "sh", SECTION))
    for row in rows:
        if row[1] != SHT_NOBITS and row[4] + row[5] > len(data):
            raise _malformed(f"a section of {row[5]} bytes at {row[4]} does not fit")
    if not rows:
        return ()
    if header["shstrndx"] >= len(rows):
        raise _malformed(f"section names in section {header['shstrndx']} of {len(rows)}")
    strings = rows[header["shstrndx"]]
    names = b"" if strings[1] == SHT_NOBITS else data[strings[4] : strings[4] + strings[5]]
    return tuple(
        Section(_string(names, row[0]), row[1], row[4], row[5], row[6], row[7]) for row in rows
    )


def _string(table: bytes, at: int) -> str:
    end = table.find(b"\0", at)
    if at >= len(table) or end < 0:
        raise _malformed(f"a name at byte {at} of a string table of {len(table)}")
    return table[at:end].decode("utf-8", "backslashreplace")


def list_cubin_kernels(cubin: Cubin) -> tuple[KernelInfo, ...]:
    """Its kernels, with registers, parameters and static shared memory, in symbol order."""
    table = next((each for each in cubin.sections if each.type == SHT_SYMTAB), None)
    if table is None:
        return ()
    if table.link >= len(cubin.sections):
        raise _malformed(f"symbol names in section {table.link} of {len(cubin.sections)}")
    names = cubin.content(cubin.sections[table.link])
    registers = _registers(cubin)
    has_ptx = bool(ptx_sections(cubin))
    kernels: list[KernelInfo] = []
    content = cubin.content(table)
    for index in range(len(content) // SYMBOL.size):
        name_at, info, other, _shndx, _value, _size = SYMBOL.unpack_from(
            content, index * SYMBOL.size
        )
        if info & 0xF != STT_FUNC or not other & STO_ENTRY:
            continue
        name = _string(names, name_at)
        kernels.append(
            KernelInfo(
                name=name,
                parameters=_parameters(cubin, name),
                registers=registers.get(index, 0),
                shared=_shared(cubin, name),
                has_ptx=has_ptx,
            )
        )
    return tuple(kernels)


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


def _parameters(cubin: Cubin, kernel: str) -> tuple[tuple[int, int], ...]:
    section = cubin.section(f".nv.info.{kernel}")
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


def _shared(cubin: Cubin, kernel: str) -> int:
    section = cubin.section(f".nv.shared.{kernel}")
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

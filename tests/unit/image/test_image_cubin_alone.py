"""One kernel of a cubin as a cubin of its own: everything about it is there and means the same."""

from dataclasses import replace
from pathlib import Path

import pytest

from egpu.errors import InputError
from egpu.image.cubin import SHT_NOBITS, list_cubin_kernels, open_cubin
from egpu.image.cubin_alone import alone
from egpu.image.cubin_attributes import CODES, read_attributes, symbol_value
from egpu.image.cubin_contents import contents_of
from egpu.image.cubin_edit import (
    put_together,
    read_relocations,
    read_symbols,
    relocations_of,
    take_apart,
)
from egpu.image.cubin_kernel import open_kernel

IMAGES = Path(__file__).parents[1] / "images"
CUBINS = ("sm_80.cubin", "sm_90.cubin", "lineinfo_sm_90a.cubin", "abi7_sm_90.cubin")


def contents(name):
    return contents_of(open_cubin((IMAGES / name).read_bytes()))


def every_kernel():
    for name in CUBINS:
        for kernel in contents(name).kernels:
            yield pytest.param(name, kernel, id=f"{name}-{kernel[:30]}")


def described(kernel, parts):
    """A kernel's attributes with names in the place of symbol numbers."""
    symbols = read_symbols(parts)
    found = []
    for each in kernel.attributes:
        if each.code == CODES["PARAM_CBANK"]:
            index = int.from_bytes(each.payload[:4], "little")
            section = parts.parts[symbols[index].section].name
            found.append((each.code, section, each.payload[4:]))
        elif each.code == CODES["EXTERNS"]:
            found.append((each.code, [symbols[index].name for index in each.words()]))
        else:
            found.append((each.code, each.form, each.value, each.payload))
    return found


def changes(section, parts):
    """Relocations of a section, with names."""
    symbols = read_symbols(parts)
    return [
        (each.offset, symbols[each.symbol].name, each.type, each.addend)
        for _, each in relocations_of(parts, section)
    ]


@pytest.mark.parametrize(("name", "kernel"), list(every_kernel()))
def test_a_kernel_means_what_it_meant(name, kernel):
    whole = contents(name)
    parts = alone(whole, kernel)
    data = put_together(parts)
    again = take_apart(open_cubin(data))
    assert (again.parts, again.segments) == (parts.parts, parts.segments)
    assert again.cubin.sections == parts.cubin.sections
    assert parts.cubin.data == data[:64]
    assert [each.was for each in again.parts] == [each.was for each in parts.parts]
    assert read_symbols(again) == read_symbols(parts)
    assert put_together(again) == data
    assert [each.name for each in list_cubin_kernels(open_cubin(data))] == [kernel]
    before = open_kernel(whole.parts, kernel)
    after = open_kernel(parts, kernel)
    assert parts.parts[after.text].data == whole.parts.parts[before.text].data
    assert parts.parts[after.constants].data == whole.parts.parts[before.constants].data
    assert described(after, parts) == described(before, whole.parts)
    assert (after.registers, after.frame, after.parameters) == (
        before.registers,
        before.frame,
        before.parameters,
    )
    assert changes(after.text, parts) == changes(before.text, whole.parts)
    # What describes a section of code points at it, and the section at its symbol.
    for part in parts.parts:
        owner = part.name.removesuffix(f".{kernel}")
        if part.name.endswith(f".{kernel}") and owner in (
            ".nv.info",
            ".nv.constant0",
            ".nv.shared",
        ):
            assert part.info == after.text
    symbols = read_symbols(parts)
    text = parts.parts[after.text]
    was = whole.parts.parts[before.text]
    assert text.info >> 24 == was.info >> 24
    assert symbols[text.info & 0xFFFFFF].name == whole.symbols[was.info & 0xFFFFFF].name == kernel


@pytest.mark.parametrize(("name", "kernel"), list(every_kernel()))
def test_the_file_is_well_formed(name, kernel):
    whole = contents(name)
    parts = alone(whole, kernel)
    assert not [part.name for part in parts.parts if ".debug" in part.name]
    symbols = read_symbols(parts)
    table = whole.parts.parts[whole.parts.find(".symtab")]
    first = [each.name for each in whole.symbols[: table.info]]
    for at, part in enumerate(parts.parts):
        if part.type in (4, 9):
            assert all(each.symbol < len(symbols) for each in read_relocations(part))
        if part.name == ".symtab":
            assert {each.name for each in symbols[: part.info]} <= set(first)
            assert not {each.name for each in symbols[part.info :]} & (set(first) - {""})
            assert parts.parts[part.link].name == ".strtab"
        if part.data:
            assert part.offset % max(part.align, 1) == 0, at
    for each in symbols:
        assert each.section < len(parts.parts) or each.section >= 0xFF00
    rows = read_attributes(parts.parts[parts.find(".nv.info")].data)
    assert {symbols[symbol_value(each)[0]].name for each in rows if each.form == 4} == {kernel}
    # Each segment begins and ends with sections, and covers what it covered.
    for segment, before in zip(parts.segments, whole.parts.segments, strict=False):
        assert (segment.type, segment.flags) == (before.type, before.flags)
        assert segment.file_size <= segment.memory_size
    loaded = [part for part in parts.parts if part.flags & 2 and part.type != SHT_NOBITS]
    for part in loaded:
        assert any(
            each.offset <= part.offset and part.offset + part.size <= each.offset + each.file_size
            for each in parts.segments
        ), part.name


@pytest.mark.parametrize("name", CUBINS)
def test_sections_that_are_only_named_after_their_kernel(name):
    """cuBLAS's cubins do not flag them; those of other kernels would add to a twin's memory."""
    whole = contents(name)
    unflagged = replace(
        whole.parts,
        parts=tuple(part._replace(flags=part.flags & ~0x40) for part in whole.parts.parts),
    )
    again = contents_of(open_cubin(put_together(unflagged)))
    for kernel in whole.kernels:
        parts = alone(again, kernel)
        flagged = alone(whole, kernel)
        assert [part.name for part in parts.parts] == [part.name for part in flagged.parts]
        assert [part.info for part in parts.parts] == [part.info for part in flagged.parts]


def test_a_cubin_with_something_unknown_stays_whole():
    data = bytearray((IMAGES / "sm_90.cubin").read_bytes())
    at = data.index(b".nv.callgraph\0")
    data[at : at + 13] = b".nv.new_thing"
    whole = contents_of(open_cubin(bytes(data)))
    assert alone(whole, next(iter(whole.kernels))).cubin.data == bytes(data)


def test_a_kernel_that_is_not_there():
    with pytest.raises(InputError, match="no kernel nothing"):
        alone(contents("sm_90.cubin"), "nothing")

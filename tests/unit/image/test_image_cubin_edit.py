"""Cubins taken apart and put together: byte for byte the same, and right when a section grows."""

import struct
from pathlib import Path

import pytest

from egpu.errors import InputError
from egpu.image.cubin import HEADER, SECTION, SHT_NOBITS, list_cubin_kernels, open_cubin
from egpu.image.cubin_attributes import ATTRIBUTES, read_attributes, write_attributes
from egpu.image.cubin_edit import (
    SHT_REL,
    SHT_RELA,
    file_offsets,
    put_together,
    read_relocations,
    read_symbols,
    relocation_at,
    relocation_table,
    take_apart,
)
from egpu.image.cubin_kernel import open_kernel

IMAGES = Path(__file__).parents[1] / "images"
CUBINS = ("sm_80.cubin", "sm_90.cubin", "lineinfo_sm_90a.cubin", "abi7_sm_90.cubin")


def parts_of(name):
    return take_apart(open_cubin((IMAGES / name).read_bytes()))


@pytest.mark.parametrize("name", CUBINS)
def test_unchanged_parts_give_the_same_bytes(name):
    assert put_together(parts_of(name)) == (IMAGES / name).read_bytes()


@pytest.mark.parametrize("name", CUBINS)
def test_attributes_and_relocations_are_written_as_they_were(name):
    parts = parts_of(name)
    seen = 0
    for part in parts.parts:
        if part.name.startswith(".nv.info"):
            attributes = read_attributes(part.data)
            assert write_attributes(attributes) == part.data
            for each in attributes:
                kind = ATTRIBUTES.get(each.code)
                assert kind is None or kind.form == each.form
            seen += 1
        if part.type in (SHT_RELA, SHT_REL):
            rows = read_relocations(part)
            assert relocation_table(part)["symbol"].tolist() == [each.symbol for each in rows]
            assert relocation_table(part)["type"].tolist() == [each.type for each in rows]
            assert relocation_table(part)["offset"].tolist() == [each.offset for each in rows]
            assert [relocation_at(part, at) for at in range(len(rows))] == list(rows)
    assert seen > 1


def test_both_abi_versions_are_there():
    assert {parts_of(name).abi for name in CUBINS} == {7, 8}


@pytest.mark.parametrize("name", CUBINS)
@pytest.mark.parametrize("grown", [16, 4096])
def test_a_section_grows(name, grown):
    """Everything else keeps its bytes and its alignment; segments cover the same sections."""
    parts = parts_of(name)
    for at, part in enumerate(parts.parts):
        if part.type == SHT_NOBITS or not part.data or part.name == ".shstrtab":
            continue
        data = put_together(parts.with_data({at: part.data + b"\xaa" * grown}))
        again = take_apart(open_cubin(data))
        assert file_offsets(again)[at] == again.parts[at].offset
        for index, (was, now) in enumerate(zip(parts.parts, again.parts, strict=True)):
            expected = was.data + b"\xaa" * grown if index == at else was.data
            assert now.data == expected, now.name
            assert now.offset % max(now.align, 1) == 0 or was.type == SHT_NOBITS
            anywhere = {"offset": 0, "data": b"", "size": 0, "was": 0}
            assert now._replace(**anywhere) == was._replace(**anywhere)
        for was, now in zip(parts.segments, again.segments, strict=True):
            assert covered(now, again) == covered(was, parts)
            assert now.memory_size - now.file_size == was.memory_size - was.file_size


def covered(segment, parts):
    """Names of the sections with bytes that a segment holds."""
    return [
        part.name
        for part in parts.parts
        if part.data
        and part.type != SHT_NOBITS
        and segment.offset <= part.offset
        and part.offset + part.size <= segment.offset + segment.file_size
    ]


def test_kernels_are_described():
    data = (IMAGES / "sm_90.cubin").read_bytes()
    parts = take_apart(open_cubin(data))
    for info in list_cubin_kernels(open_cubin(data)):
        kernel = open_kernel(parts, info.name)
        assert kernel.parameters == info.parameters
        assert kernel.registers == info.registers
        assert parts.parts[kernel.text].name == f".text.{info.name}"
    with pytest.raises(InputError, match="no kernel nothing"):
        open_kernel(parts, "nothing")


def test_sections_that_overlap_are_refused():
    with pytest.raises(InputError, match="overlap"):
        put_together(parts_of("sm_120.cubin"))


def test_symbols_name_their_sections():
    parts = parts_of("sm_90.cubin")
    kernels = [each for each in read_symbols(parts) if each.is_kernel]
    assert kernels
    for each in kernels:
        assert parts.parts[each.section].name == f".text.{each.name}"


def test_damaged_tables_are_refused():
    data = bytearray((IMAGES / "sm_90.cubin").read_bytes())
    at, form = HEADER["shentsize"]
    struct.pack_into(form, data, at, SECTION.size + 8)
    with pytest.raises(InputError):
        take_apart(open_cubin(bytes(data)))
    with pytest.raises(InputError, match="cut off"):
        read_attributes(b"\x04\x2f\x08\x00\x01")
    with pytest.raises(InputError, match="behind the last"):
        read_attributes(b"\x01\x04\x00\x00\x00")

"""One kernel of a cubin as a cubin of its own: everything about it is there and means the same."""

import gc
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from egpu.errors import InputError, UnsupportedError
from egpu.image import cubin_alone, cubin_facts, cubin_native, native
from egpu.image.cubin import (
    SECTION,
    SHT_NOBITS,
    STT_FUNC,
    SYMBOL,
    list_cubin_kernels,
    open_cubin,
)
from egpu.image.cubin_alone import alone, prepare
from egpu.image.cubin_attributes import CODES, Form, read_attributes, symbol_value
from egpu.image.cubin_contents import contents_of
from egpu.image.cubin_edit import (
    SHT_REL,
    put_together,
    read_relocations,
    read_symbols,
    relocations_of,
    take_apart,
)
from egpu.image.cubin_kernel import open_kernel

STT_OBJECT = 1
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
    assert (tuple(again.parts), again.segments) == (parts.parts, parts.segments)
    assert tuple(again.cubin.sections) == tuple(parts.cubin.sections)
    assert parts.cubin.data == data
    assert (again.cubin.arch, again.cubin.suffix) == (parts.cubin.arch, parts.cubin.suffix)
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


# fmt: off
FIELDS = {  # of a section's header: (offset, format)
    "name":   (0, "<I"),
    "type":   (4, "<I"),
    "offset": (24, "<Q"),
    "size":   (32, "<Q"),
    "link":   (40, "<I"),
    "info":   (44, "<I"),
}
# fmt: on


class Changed:
    """A cubin of which single numbers are changed."""

    def __init__(self, name="sm_90.cubin"):
        self.data = bytearray((IMAGES / name).read_bytes())
        self.parts = take_apart(open_cubin(bytes(self.data)))

    def at(self, section):
        return self.parts.find(section)

    def header(self, section, field, value):
        offset, form = FIELDS[field]
        table = int.from_bytes(self.data[40:48], "little")
        at = section if isinstance(section, int) else self.at(section)
        struct.pack_into(form, self.data, table + at * SECTION.size + offset, value)
        return self

    def bytes(self, section, offset, new):
        begin = self.parts.parts[self.at(section)].offset + offset
        self.data[begin : begin + len(new)] = new
        return self

    @property
    def contents(self):
        return contents_of(open_cubin(bytes(self.data)))

    @property
    def stays_whole(self):
        contents = self.contents
        return alone(contents, "add") is contents.parts


def relocations_of_constants(parts):
    return next(each.name for each in parts.parts if each.name.startswith((".rel.nv", ".rela.nv")))


def test_what_is_changed_here_is_what_matters():
    assert not Changed().stays_whole
    assert Changed().header(0, "info", 0).data == Changed().data


@pytest.mark.parametrize("beyond", [0, 700])
def test_symbols_that_are_not_there(beyond):
    wrong = Changed()
    symbol = len(read_symbols(wrong.parts)) + beyond
    name = relocations_of_constants(wrong.parts)
    wrong.bytes(name, 12, symbol.to_bytes(4, "little"))
    with pytest.raises(InputError, match=f"cubin: a relocation by symbol {symbol}"):
        alone(wrong.contents, "add")
    wrong = Changed()
    at = wrong.parts.parts[wrong.at(".nv.info.add")].data.index(bytes([4, CODES["PARAM_CBANK"]]))
    wrong.bytes(".nv.info.add", at + 4, symbol.to_bytes(4, "little"))
    message = f"something refers to symbol {symbol}, which is not there"
    with pytest.raises(InputError, match=message):
        alone(wrong.contents, "add")


def test_relocations_that_are_none():
    wrong = Changed()
    name = relocations_of_constants(wrong.parts)
    size = wrong.parts.parts[wrong.at(name)].size
    with pytest.raises(InputError, match=f"{name} is no relocation section"):
        alone(wrong.header(name, "size", size - 1).contents, "add")


def test_a_section_about_one_that_is_left_out():
    """A symbol brings a section that is about another kernel's code."""
    wrong = Changed()
    other = next(name for name in wrong.contents.kernels if name != "add")
    bank = wrong.at(f".nv.constant0.{other}")
    symbols = read_symbols(wrong.parts)
    name = relocations_of_constants(wrong.parts)
    entry = read_relocations(wrong.parts.parts[wrong.at(name)])[0]
    at = entry.symbol * 24 + 6
    wrong.bytes(".symtab", at, bank.to_bytes(2, "little"))
    about = wrong.parts.parts[bank].info
    assert symbols[entry.symbol].section != bank
    with pytest.raises(InputError, match=f"something is about section {about}, which is not there"):
        alone(wrong.contents, "add")


@pytest.mark.parametrize("section", [".nv.info", ".nv.info.add"])
def test_attributes_that_are_cut_off(section):
    with pytest.raises(InputError, match="cubin: 3 bytes behind the last attribute"):
        alone(Changed().header(section, "size", 3).contents, "add")
    wrong = Changed().bytes(section, 2, b"\xff\xff")
    code = wrong.parts.parts[wrong.at(section)].data[1]
    whole = wrong.contents
    for _ in range(2):  # it is not remembered as anything else
        with pytest.raises(InputError, match=f"cubin: attribute {code:#x} of form 4 is cut off"):
            alone(whole, "add")
    with pytest.raises(InputError, match=f"attribute {code:#x} of form 5 is cut off"):
        alone(Changed().bytes(section, 0, b"\x05").contents, "add")


def test_what_all_kernels_share_is_looked_at_ahead():
    prepare(Changed().contents)
    with pytest.raises(InputError, match="behind the last attribute"):
        prepare(Changed().header(".nv.info", "size", 3).contents)


def test_sections_that_no_assembler_writes_stay_whole():
    assert Changed().header(0, "size", 1).stays_whole  # bytes of no section
    one = Changed()
    rows = one.parts.parts[one.at(".nv.info")].name_at
    one.header(".nv.callgraph", "name", rows).header(".nv.callgraph", "size", 0)
    assert one.stays_whole  # rows twice
    # The bytes of others, which would be written twice.
    two = Changed()
    two.header(".nv.callgraph", "offset", 0).header(".nv.callgraph", "size", len(two.data))
    assert two.stays_whole
    # Relocations and something else.
    both = Changed().header(".nv.callgraph", "size", 0).header(".nv.callgraph", "type", SHT_REL)
    assert both.header(".nv.callgraph", "info", 0).stays_whole
    # More memory than a number can say.
    three = Changed()
    shared = next(each for each in three.parts.parts if each.type == SHT_NOBITS and each.flags & 2)
    assert three.header(shared.name, "size", (1 << 64) - 1).stays_whole


def test_attributes_that_have_no_room_for_their_symbol_stay_whole():
    one = Changed()
    at = 0
    for each in read_attributes(one.parts.parts[one.at(".nv.info.add")].data):
        if each.form == Form.HALF:
            break
        at += 4 + len(each.payload)
    assert one.bytes(".nv.info.add", at + 1, bytes([CODES["PARAM_CBANK"]])).stays_whole


def test_one_table_for_the_names_of_sections_and_symbols_stays_whole():
    """Both would be written there."""
    one = Changed()
    names, symbol_names = (one.parts.parts[one.at(each)] for each in (".shstrtab", ".strtab"))
    joined = one.parts.with_data({one.at(".shstrtab"): names.data + symbol_names.data})
    parts = list(joined.parts)
    table = bytearray(parts[one.at(".symtab")].data)
    for at in range(0, len(table), 24):
        name_at = int.from_bytes(table[at : at + 4], "little") + len(names.data)
        table[at : at + 4] = name_at.to_bytes(4, "little")
    at = one.at(".symtab")
    parts[at] = parts[at]._replace(data=bytes(table), link=one.at(".shstrtab"))
    contents = contents_of(open_cubin(put_together(replace(joined, parts=tuple(parts)))))
    assert set(contents.kernels) == set(one.contents.kernels)
    assert alone(contents, "add") is contents.parts


def test_names_that_are_no_text_stay_what_they_are():
    data = bytes(Changed().data).replace(b".nv.info.add\0", b".nv.info.ad\xff\0")
    whole = contents_of(open_cubin(data))
    parts = alone(whole, "add")
    (name,) = [each.name for each in parts.parts if each.name.startswith(".nv.info.")]
    assert name == ".nv.info.ad\\xff"
    assert b".nv.info.ad\xff\0" in put_together(parts)


@pytest.mark.parametrize("size", [1 << 17, 1 << 18, 1 << 20])
def test_a_kernel_larger_than_most(size):
    one = Changed()
    at = one.at(".text.add")
    grown = one.parts.parts[at].data + bytes(size)
    whole = contents_of(open_cubin(put_together(one.parts.with_data({at: grown}))))
    parts = alone(whole, "add")
    assert parts.parts[parts.find(".text.add")].data == grown
    assert len(put_together(parts)) > size
    small = alone(contents("sm_90.cubin"), "add")  # after it, another one
    assert len(put_together(small)) < 1 << 14


@pytest.mark.parametrize("kind", [STT_OBJECT, STT_FUNC])
def test_thousands_of_symbols_of_which_variables_go(kind):
    one = Changed()
    at, strings, text = (one.at(each) for each in (".symtab", ".strtab", ".text.add"))
    table, names = one.parts.parts[at].data, one.parts.parts[strings].data
    for number in range(5000):
        table += SYMBOL.pack(len(names) + 8 * number, kind, 0, text, 0, 0)
    names += b"".join(b"v%06d\0" % number for number in range(5000))
    grown = one.parts.with_data({at: table, strings: names})
    parts = alone(contents_of(open_cubin(put_together(grown))), "add")
    small = alone(contents("sm_90.cubin"), "add")
    more = [each.name for each in read_symbols(parts)][len(read_symbols(small)) :]
    assert more == [f"v{number:06}" for number in range(5000) if kind == STT_FUNC]
    assert (put_together(parts) == put_together(small)) == (kind == STT_OBJECT)
    for section in (".text.add", relocations_of_constants(parts).removeprefix(".rel")):
        assert changes(parts.find(section), parts) == changes(small.find(section), small)


def test_each_cubin_is_looked_through_once_and_forgotten_with_its_contents(monkeypatch):
    looked = []

    class Counting(cubin_native.NativeCubin):
        def __init__(self, cubin, sections):
            looked.append(cubin)
            super().__init__(cubin, sections)

    monkeypatch.setattr(cubin_alone, "NativeCubin", Counting)
    before = len(cubin_alone._natives)
    many = [contents("sm_90.cubin") for _ in range(100)]
    for each in many * 2:
        prepare(each)
        alone(each, "add")
    assert len(looked) == 100
    assert len(cubin_alone._natives) == before + 100
    del many, each
    gc.collect()
    assert len(cubin_alone._natives) == before


@pytest.fixture
def library_again():
    """Another library is looked for, and the right one by those who come later."""
    for each in (cubin_native._library, native.image_library):
        each.cache_clear()
    yield
    for each in (cubin_native._library, native.image_library):
        each.cache_clear()


@pytest.mark.usefixtures("library_again")
def test_without_the_library_it_is_said_what_is_missing(monkeypatch):
    monkeypatch.setattr(native, "LIBRARY_NAME", "libegpu_elsewhere.so")
    with pytest.raises(UnsupportedError, match=r"_native/libegpu_elsewhere\.so.*make native"):
        alone(contents("sm_90.cubin"), "add")


@pytest.mark.usefixtures("library_again")
def test_a_library_that_was_built_from_other_tables_is_not_called(monkeypatch):
    monkeypatch.setattr(cubin_facts, "KNOWN", cubin_facts.KNOWN[1:])
    with pytest.raises(UnsupportedError, match=r"of another egpu.*make native"):
        alone(contents("sm_90.cubin"), "add")

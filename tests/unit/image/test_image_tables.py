"""Tables of cubins as columns, and rows that are made when somebody looks at them."""

import random
from pathlib import Path

import numpy as np
import pytest

from egpu.errors import InputError
from egpu.image import contents_of, open_cubin
from egpu.image.cubin_attributes import (
    Attribute,
    Form,
    attribute_at,
    attribute_places,
    read_attributes,
    write_attributes,
)
from egpu.image.cubin_contents import TEXT
from egpu.image.cubin_edit import SHT_REL, SHT_RELA
from egpu.image.cubin_tables import SYMBOLS, Grouped, NamedRows, Rows, letters_at, name_of

IMAGES = Path(__file__).parents[1] / "images"
CUBINS = sorted(IMAGES.glob("*.cubin"))


def test_rows_are_made_once_and_only_when_asked_for():
    made = []
    rows = Rows(5, lambda at: made.append(at) or at * at)
    assert (rows[3], rows[3], rows[-1], len(rows)) == (9, 9, 16, 5)
    assert made == [3, 4]
    assert rows[1:3] == (1, 4)
    assert rows == (0, 1, 4, 9, 16)
    assert rows != (0, 1, 4, 9)
    assert hash(rows) == hash(tuple(rows))
    with pytest.raises(IndexError):
        rows[5]
    with pytest.raises(IndexError):
        rows[-6]


def random_attributes(numbers):
    """Runs of pairs, as assemblers write them, with everything else in between."""
    found = []
    for _ in range(numbers.randrange(40)):
        if numbers.random() < 0.6:
            found += [
                Attribute(Form.SIZED, numbers.choice([0x2F, 0x11, 0x12]), 8, numbers.randbytes(8))
            ] * numbers.randrange(1, 9)
        elif numbers.random() < 0.5:
            size = numbers.choice([0, 3, 4, 8, 12, 16])
            found.append(Attribute(Form.SIZED, 0x37, size, numbers.randbytes(size)))
        else:
            found.append(Attribute(numbers.choice([1, 2, 3]), 0x4C, numbers.randrange(1 << 16)))
    return tuple(found)


def number(read, content):
    """How many attributes are read, or what is said of those that are cut off."""
    try:
        return len(read(content))
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(30))
def test_places_of_attributes_are_those_that_reading_them_one_by_one_finds(seed):
    numbers = random.Random(seed)
    attributes = random_attributes(numbers)
    content = write_attributes(attributes)
    assert read_attributes(content) == attributes
    assert tuple(attribute_at(content, at) for at in attribute_places(content)) == attributes
    for _ in range(20):
        cut = content[: numbers.randrange(len(content) + 1)]
        assert number(attribute_places, cut) == number(read_attributes, cut)


def test_places_beyond_one_window_of_rows():
    pair = Attribute(Form.SIZED, 0x2F, 8, bytes(8))
    content = write_attributes([pair] * 9000 + [Attribute(Form.SIZED, 0x37, 4, bytes(4)), pair])
    assert len(attribute_places(content)) == 9002


@pytest.mark.parametrize("path", CUBINS, ids=lambda path: path.stem)
def test_contents_are_what_looking_at_every_section_and_symbol_finds(path):
    contents = contents_of(open_cubin(path.read_bytes()))
    parts, symbols = contents.parts.parts, contents.symbols
    described = {at for found in contents.about.values() for at in found}
    for at, part in enumerate(parts):
        code = parts[part.info].name if 0 < part.info < len(parts) else ""
        changing = part.type in (SHT_REL, SHT_RELA)
        named = part.name.endswith("." + code.removeprefix(TEXT)) and not part.name.startswith(TEXT)
        about = not changing and code.startswith(TEXT) and (bool(part.flags & 0x40) or named)
        assert (at in described) == contents.describing[at] == about
        assert (at in contents.about.get(part.info, ())) == about
        assert (at in contents.relocations.get(part.info, ())) == changing
        assert (at in contents.others) == (
            not about and not changing and not part.name.startswith(TEXT)
        )
    assert {each.name for each in symbols if each.is_kernel} == set(contents.kernels)
    assert {name: each.index for name, each in contents.kernels.items()} == {
        each.name: each.index for each in symbols if each.is_kernel
    }
    assert contents.table["section"].tolist() == [each.section for each in symbols]
    for name in {each.name for each in (*parts, *symbols)} | {"nothing is called so", "\xff"}:
        for rows in (parts, symbols):
            assert rows.called(name) == [at for at, row in enumerate(rows) if row.name == name]


def test_rows_are_found_by_names_that_share_their_ends_or_are_no_text():
    names = b"\0abc\0bc\0\xff\0\\xff\0"
    table = np.zeros(6, SYMBOLS)
    table["name"] = [2, 1, 5, 8, 10, 0]
    rows = NamedRows(table, names, lambda at: name_of(names, int(table["name"][at])))
    assert list(rows) == ["bc", "abc", "bc", "\\xff", "\\xff", ""]
    found = {name: rows.called(name) for name in (*rows, "c", "\xff", "longer than all of them")}
    assert found == {
        "bc": [0, 2],
        "abc": [1],
        "\\xff": [3, 4],
        "": [5],
        "c": [],
        "\xff": [],
        "longer than all of them": [],
    }


def test_rows_by_what_a_column_says():
    keys = np.array([7, 0, 7, 3, 7, 9], np.uint32)
    found = Grouped(np.array([0, 1, 2, 4]), keys)
    assert dict(found) == {0: [1], 7: [0, 2, 4]}
    assert (len(found), found.get(3, ()), found.get(1 << 32, ())) == (2, (), ())
    assert dict(Grouped(np.zeros(0, np.int64), keys)) == {}


def test_what_lies_behind_a_string_table_belongs_to_no_name():
    names, behind = b"\0.text.a\0.te", b"xt.b\0" + bytes(8)
    table = np.zeros(3, SYMBOLS)
    table["name"] = [1, 9, len(names)]
    for data in (names + behind, names):  # with room behind it, and at the very end
        letters = letters_at(data, 0, len(names))
        rows = NamedRows(table, names, lambda at: at, letters)
        assert rows.called(".text.a") == [0]
        assert rows.called(".text.b") == rows.called(".te") == []
        assert rows.beginning(b".text.")[0]
        assert not rows.beginning(b".texts.").any()

"""Tables of cubins as columns, and rows that are made when somebody looks at them."""

import random
from pathlib import Path

import numpy as np
import pytest

from egpu.errors import InputError
from egpu.image import contents_of, open_cubin
from egpu.image.cubin_attributes import Attribute, Form, read_attributes, write_attributes
from egpu.image.cubin_tables import SYMBOLS, NamedRows, Rows, letters_at, name_of

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


@pytest.mark.parametrize("seed", range(30))
def test_attributes_are_read_as_they_were_written_or_said_to_be_cut_off(seed):
    numbers = random.Random(seed)
    attributes = random_attributes(numbers)
    content = write_attributes(attributes)
    assert read_attributes(content) == attributes
    ends = {0}
    for each in attributes:
        ends.add(max(ends) + len(write_attributes([each])))
    for end in range(len(content)):
        if end in ends:
            assert write_attributes(read_attributes(content[:end])) == content[:end]
        else:
            with pytest.raises(InputError, match=r"behind the last attribute|is cut off"):
                read_attributes(content[:end])


@pytest.mark.parametrize("path", CUBINS, ids=lambda path: path.stem)
def test_contents_are_what_looking_at_every_section_and_symbol_finds(path):
    contents = contents_of(open_cubin(path.read_bytes()))
    parts, symbols = contents.parts.parts, contents.symbols
    assert {each.name for each in symbols if each.is_kernel} == set(contents.kernels)
    assert {name: each.index for name, each in contents.kernels.items()} == {
        each.name: each.index for each in symbols if each.is_kernel
    }
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


def test_what_lies_behind_a_string_table_belongs_to_no_name():
    names, behind = b"\0.text.a\0.te", b"xt.b\0" + bytes(8)
    table = np.zeros(3, SYMBOLS)
    table["name"] = [1, 9, len(names)]
    for data in (names + behind, names):  # with room behind it, and at the very end
        letters = letters_at(data, 0, len(names))
        rows = NamedRows(table, names, lambda at: at, letters)
        assert rows.called(".text.a") == [0]
        assert rows.called(".text.b") == rows.called(".te") == []

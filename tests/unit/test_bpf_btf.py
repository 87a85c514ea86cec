"""BTF built by hand: values of each kind, and types that lead nowhere."""

import struct

import pytest

from egpu.bpf.btf import Btf, BtfKind
from egpu.bpf.btf_ext import parse_btf_ext
from egpu.errors import InputError

K = BtfKind


class Writer:
    """Writes a .BTF section type by type; each method gives the new type's id."""

    def __init__(self):
        self.strings = b"\0"
        self.types = b""
        self.count = 0

    def text(self, name):
        if not name:
            return 0
        at = len(self.strings)
        self.strings += name.encode() + b"\0"
        return at

    def add(self, kind, name="", word=0, *rest, count=0, flag=0):
        info = flag << 31 | kind << 24 | count
        self.types += struct.pack("<III", self.text(name), info, word)
        self.types += struct.pack(f"<{len(rest)}I", *rest)
        self.count += 1
        return self.count

    def integer(self, name, size, encoding=0):
        return self.add(K.INT, name, size, encoding << 24 | 8 * size)

    def array(self, element, count):
        return self.add(K.ARRAY, "", 0, element, element, count)

    def struct(self, name, size, *members, kind=K.STRUCT, flag=0):
        words = [word for member in members for word in (self.text(member[0]), *member[1:])]
        return self.add(kind, name, size, *words, count=len(members), flag=flag)

    def blob(self):
        header = struct.pack(
            "<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(self.types), len(self.types), len(self.strings)
        )
        return header + self.types + self.strings

    def btf(self):
        return Btf.parse(self.blob())


def test_scalars():
    w = Writer()
    u8, s16 = w.integer("unsigned char", 1), w.integer("short", 2, 1)
    flag = w.integer("_Bool", 1, 4)
    pointer = w.add(K.PTR, "", u8)
    alias = w.add(K.TYPEDEF, "alias", w.add(K.CONST, "", s16))
    double, single = w.add(K.FLOAT, "double", 8), w.add(K.FLOAT, "float", 4)
    plain = w.add(K.ENUM, "e", 4, w.text("A"), 1, count=1)
    negative = w.add(K.ENUM, "n", 4, w.text("B"), 2**32 - 1, count=1, flag=1)
    wide = w.add(K.ENUM64, "w", 8, w.text("C"), 0, 1, count=1)
    btf = w.btf()
    assert btf.decode(u8, b"\xff") == 255
    assert btf.decode(s16, b"\xfe\xff") == -2
    assert btf.decode(flag, b"\x01") is True
    assert btf.decode(pointer, bytes([1] + [0] * 7)) == 1
    assert btf.decode(alias, b"\xff\xff") == -1
    assert btf.decode(double, struct.pack("<d", 1.5)) == 1.5
    assert btf.decode(single, struct.pack("<f", -2.0)) == -2.0
    assert btf.decode(plain, b"\xff\xff\xff\xff") == 2**32 - 1
    assert btf.decode(negative, b"\xff\xff\xff\xff") == -1
    assert btf.decode(wide, struct.pack("<Q", 1 << 32)) == 1 << 32
    assert btf.size_of(pointer) == 8


def test_arrays():
    w = Writer()
    char, u16 = w.integer("char", 1, 1), w.integer("u16", 2)
    text, matrix = w.array(char, 3), w.array(w.array(u16, 2), 2)
    btf = w.btf()
    assert btf.decode(text, b"ab\0") == b"ab\0"
    assert btf.decode(matrix, struct.pack("<4H", 1, 2, 3, 4)) == ((1, 2), (3, 4))
    assert btf.size_of(matrix) == 8


def test_bit_fields():
    w = Writer()
    s32, u32 = w.integer("int", 4, 1), w.integer("unsigned", 4)
    fields = w.struct(
        "f", 4, ("a", u32, 3 << 24), ("b", s32, 5 << 24 | 3), ("c", u32, 20 << 24 | 8), flag=1
    )
    btf = w.btf()
    value = btf.decode(fields, struct.pack("<I", 5 | (-3 & 31) << 3 | 0xABCDE << 8))
    assert value._asdict() == {"a": 5, "b": -3, "c": 0xABCDE}


def test_names_that_python_forbids():
    w = Writer()
    u8 = w.integer("u8", 1)
    names = ("class", "_pad", "pad", "__x", "x", "_")
    odd = w.struct("s", 6, *((name, u8, 8 * at) for at, name in enumerate(names)))
    value = w.btf().decode(odd, bytes(range(6)))
    assert value == (0, 1, 2, 3, 4, 5)
    assert len(set(value._fields)) == 6
    assert value.class_ == 0


def test_unions_show_every_reading():
    w = Writer()
    u8, u16 = w.integer("u8", 1), w.integer("u16", 2)
    union = w.struct("u", 2, ("low", u8, 0), ("all", u16, 0), kind=K.UNION)
    assert w.btf().decode(union, b"\x34\x12")._asdict() == {"low": 0x34, "all": 0x1234}


def test_cycles_and_sizeless_types_are_answered():
    w = Writer()
    loop = w.add(K.TYPEDEF, "loop", 2)
    w.add(K.CONST, "", 1)
    function = w.add(K.FUNC_PROTO, "", 0)
    inside = w.struct("inside", 8, ("again", w.count + 1, 0))
    array = w.add(K.ARRAY, "", 0, w.count + 1, 1, 1)
    btf = w.btf()
    with pytest.raises(InputError, match="chain of over"):
        btf.size_of(loop)
    with pytest.raises(InputError, match=r"FUNC_PROTO .*has no size"):
        btf.size_of(function)
    with pytest.raises(InputError, match=r"nests too deep|outside it"):
        btf.decode(inside, bytes(8))
    with pytest.raises(InputError, match="no size"):
        btf.size_of(array)
    with pytest.raises(InputError, match="type 99 does not exist"):
        btf.decode(99, b"")


def test_members_outside_their_struct():
    w = Writer()
    u32 = w.integer("u32", 4)
    outside = w.struct("o", 4, ("x", u32, 64))
    with pytest.raises(InputError, match="member 'x' of o lies outside it"):
        w.btf().decode(outside, bytes(4))


def line_info(writer, file, text):
    """A .BTF.ext with one line, 7, of one section."""
    lines = struct.pack("<IIIIIII", 16, writer.text("kprobe/*"), 1, 8, file, text, 7 << 10 | 3)
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, 0, 0, len(lines))
    return parse_btf_ext(header + lines, writer.btf(), "o").lines["kprobe/*"][0]


def test_source_lines_are_for_people():
    """As Linux and libbpf: neither their length nor their encoding is a reason to refuse a file."""
    writer = Writer()
    file, long = writer.text("a.bpf.c"), writer.text("  x = " + "y + " * 2000)
    latin = len(writer.strings)
    writer.strings += b"\treturn 0; /* caf\xe9 */\0"
    found = line_info(writer, file, long)
    assert (found.file, found.line, found.column) == ("a.bpf.c", 7, 3)
    assert found.text.startswith("x = y + y")
    assert 4000 < len(found.text) <= 4096
    assert line_info(writer, latin, latin).text == "return 0; /* caf\ufffd */"
    with pytest.raises(InputError, match="name at 99999 of"):
        line_info(writer, file, 99999)

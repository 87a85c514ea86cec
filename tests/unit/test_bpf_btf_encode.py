"""Python values into bytes by BTF, against decoding them again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpu.bpf.btf import Btf, BtfKind, BtfMember, BtfType
from egpu.bpf.btf_encode import encode_value
from egpu.bpf.btf_values import legal_names
from egpu.errors import InputError

K = BtfKind
U8, S16, BOOL, CHAR, F64, ENUM, PTR, TEXT, ROWS, BITS, UNION, OUTER, SECTION, VAR, WORD = range(
    1, 16
)
BTF = Btf(
    (
        BtfType(0, K.VOID),
        BtfType(U8, K.INT, "unsigned char", 1),
        BtfType(S16, K.INT, "short", 2, encoding=1),
        BtfType(BOOL, K.INT, "_Bool", 1, encoding=4),
        BtfType(CHAR, K.INT, "char", 1, encoding=1),
        BtfType(F64, K.FLOAT, "double", 8),
        BtfType(ENUM, K.ENUM, "phase", 4, members=(BtfMember("IN", 0, 1), BtfMember("OUT", 0, 9))),
        BtfType(PTR, K.PTR),
        BtfType(TEXT, K.ARRAY, type=CHAR, count=6),
        BtfType(ROWS, K.ARRAY, type=S16, count=3),
        BtfType(
            BITS,
            K.STRUCT,
            "bits",
            2,
            flag=True,
            members=(BtfMember("low", WORD, 0, bits=3), BtfMember("high", S16, 3, bits=5)),
        ),
        BtfType(
            UNION, K.UNION, "", 8, members=(BtfMember("whole", PTR, 0), BtfMember("half", WORD, 0))
        ),
        BtfType(
            OUTER,
            K.STRUCT,
            "outer",
            40,
            members=(
                BtfMember("text", TEXT, 0),
                BtfMember("rows", ROWS, 48),
                BtfMember("", UNION, 128),
                BtfMember("phase", ENUM, 192),
                BtfMember("flag", BOOL, 224),
                BtfMember("bits", BITS, 240),
                BtfMember("real", F64, 256),
            ),
        ),
        BtfType(SECTION, K.DATASEC, ".data", 10, members=(BtfMember("", VAR, 8, size=2),)),
        BtfType(VAR, K.VAR, "__class", type=S16, encoding=1),
        BtfType(WORD, K.INT, "unsigned int", 4),
    ),
    b"\0",
)


def row_of(**given):
    plain = {"text": "", "rows": (0, 0, 0), "phase": 0, "flag": 0, "bits": (0, 0), "real": 0}
    return plain | given


def test_members_of_an_anonymous_union_are_one_value():
    whole = encode(OUTER, row_of(whole=0x1_0000_0002))
    assert whole == encode(OUTER, row_of(whole=0x1_0000_0002, half=2))
    assert BTF.decode(OUTER, whole).half == 2
    assert BTF.decode(OUTER, encode(OUTER, row_of(half=7))).whole == 7
    with pytest.raises(InputError, match="v: its field whole contradicts another one"):
        encode(OUTER, row_of(whole=5, half=6))
    with pytest.raises(InputError, match="its field whole contradicts"):
        encode(OUTER, BTF.decode(OUTER, whole)._replace(half=3))
    with pytest.raises(InputError, match="lacks the field whole"):
        encode(OUTER, row_of())


def test_names_of_fields_are_different():
    assert legal_names(("a", "a_2", "_a", "__a")) == ("a", "a_2", "a_2_", "a_3")
    assert legal_names(("\ufb01", "fi", "class", "class_", "_")) == (
        "fi", "fi_1", "class_", "class__3", "field4")  # fmt: skip


def test_any_number_of_nothing():
    kinds = (*BTF.types, BtfType(16, K.ARRAY, type=17, count=3), BtfType(17, K.ARRAY, type=U8))
    btf = Btf(kinds, b"\0")
    assert encode_value(btf, 16, btf.decode(16, b""), "v") == b""
    with pytest.raises(InputError, match="a sequence of 3, but of 2"):
        encode_value(btf, 16, ((), ()), "v")


def encode(kind, value):
    return encode_value(BTF, kind, value, "v")


@given(
    st.fixed_dictionaries(
        {
            "text": st.binary(max_size=6),
            "rows": st.tuples(*[st.integers(-(2**15), 2**15 - 1)] * 3),
            "whole": st.integers(0, 2**64 - 1),
            "phase": st.integers(0, 2**32 - 1),
            "flag": st.booleans(),
            "bits": st.tuples(st.integers(0, 7), st.integers(-16, 15)),
            "real": st.floats(allow_nan=False),
        }
    )
)
def test_what_is_encoded_decodes_to_the_same(value):
    value["half"] = value["whole"] & 0xFFFFFFFF
    data = encode(OUTER, value)
    found = BTF.decode(OUTER, data)
    assert len(data) == 40
    assert found._asdict() == value | {"text": value["text"].ljust(6, b"\0")}
    assert encode(OUTER, found) == data
    assert encode(OUTER, data) == data


@pytest.mark.parametrize(
    ("kind", "value", "data"),
    [
        (U8, 255, "ff"),
        (U8, True, "01"),
        (S16, -2, "feff"),
        (ENUM, "OUT", "09000000"),
        (ENUM, 7, "07000000"),
        (PTR, 2**64 - 1, "ff" * 8),
        (TEXT, "héy", "68c3a9790000"),
        (UNION, {"half": 5}, "05" + "00" * 7),
        (UNION, (258, 258), "0201" + "00" * 6),
        (SECTION, {"class_": -1}, "00" * 8 + "ffff"),
        (SECTION, {"__class": -1}, "00" * 8 + "ffff"),
        (F64, 1, "000000000000f03f"),
    ],
)
def test_values(kind, value, data):
    assert encode(kind, value).hex() == data


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (U8, 256, "v: 256 is not from 0 to 255"),
        (U8, 1.0, "is not an integer"),
        (U8, "1", "is not an integer"),
        (U8, b"1", "is not an integer"),
        (S16, -32769, "from -32768 to 32767"),
        (BOOL, 2, "from 0 to 1"),
        (ENUM, "NOT", "one of IN, OUT"),
        (ENUM, -1, "from 0"),
        (TEXT, "too long", "text of at most 6 bytes"),
        (TEXT, 5, "text of at most"),
        (TEXT, "\ud800", "text that UTF-8 has"),
        (ROWS, (1, 2), "of 3, but of 2"),
        (ROWS, "abc", "a sequence of 3"),
        (ROWS, (1, 2, 99999), r"v\[2\]: 99999"),
        (BITS, (8, 0), r"v\.low: 8 is not from 0 to 7"),
        (BITS, (0, 16), r"v\.high"),
        (BITS, {"low": 1}, "lacks the field high"),
        (BITS, {"low": 1, "high": 1, "more": 1}, "no field 'more'"),
        (BITS, (1, 2, 3), "3 values for 2 fields"),
        (BITS, 5, "a struct bits"),
        (UNION, {}, "0 members of a union"),
        (UNION, {"other": 1}, "no member 'other'"),
        (UNION, (1, 2), "not the same bytes"),
        (F64, "1", "a float of 8 bytes"),
        (F64, 10**400, "in the range"),
        (VAR, 1, "has no values|has no size"),
    ],
)
def test_what_is_wrong_is_named(kind, value, words):
    with pytest.raises(InputError, match=words):
        encode(kind, value)

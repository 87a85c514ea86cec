"""Fatbins: every form that nvcc writes, and what is wrong with malformed ones."""

import struct
from pathlib import Path

import lz4.block
import pytest
import zstandard

from egpu.errors import InputError
from egpu.image import ImageKind, MemberKind, open_image, unpack, unpack_into

IMAGES = Path(__file__).parents[1] / "images"
PTX = b".version 8.0\n.target sm_90\n.address_size 64\n"


def fatbin(*entries):
    """A fatbin of (kind, arch, flags, compressed size, size, payload) entries."""
    body = b""
    for kind, arch, flags, compressed, size, content in entries:
        payload = content + bytes(-len(content) % 8)
        head = struct.pack("<HHIQIIIIQQQQ", kind, 0x101, 64, len(payload), compressed, 0, 0, arch,
                           0, flags, 0, size)  # fmt: skip
        body += head + payload
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def plain(payload=PTX, arch=90):
    return fatbin((1, arch, 0x11, 0, 0, payload))


def only_ptx(name):
    image = open_image((IMAGES / name).read_bytes())
    return next(each for each in image.members if each.kind is MemberKind.PTX)


@pytest.mark.parametrize(
    ("name", "compression"),
    [("zstd.fatbin", "zstd"), ("lz4.fatbin", "lz4"), ("plain.fatbin", "none")],
)
def test_every_compression_gives_the_same_text(name, compression):
    member = only_ptx(name)
    assert member.compression == compression
    text = unpack(member).rstrip(b"\0")
    assert text == unpack(only_ptx("plain.fatbin")).rstrip(b"\0")
    assert b".visible .entry add(" in text


def test_compressed_machine_code_unpacks_to_the_plain_one():
    cubins = [
        unpack(next(m for m in open_image(data).members if m.kind is MemberKind.CUBIN))
        for data in ((IMAGES / "size.fatbin").read_bytes(), (IMAGES / "plain.fatbin").read_bytes())
    ]
    assert cubins[0] == cubins[1]
    assert cubins[0].startswith(b"\x7fELF")


def test_members_say_kind_arch_and_suffix():
    image = open_image((IMAGES / "several.fatbin").read_bytes())
    assert image.kind is ImageKind.FATBIN
    assert [(m.kind.value, m.arch, m.suffix) for m in image.members] == [
        ("cubin", 80, ""),
        ("ptx", 80, ""),
        ("cubin", 90, "a"),
        ("ptx", 90, "a"),
        ("cubin", 100, "f"),
        ("ptx", 100, "f"),
        ("ptx", 120, ""),
    ]


def test_fatbins_that_follow_each_other_with_padding_and_wrapper():
    wrapper = struct.pack("<IIQQ", 0x466243B1, 1, 0x1000, 0)
    data = wrapper + plain(arch=80) + bytes(8) + plain(arch=90) + bytes(24)
    image = open_image(data)
    assert [member.arch for member in image.members] == [80, 90]
    for member in image.members:
        assert data[member.offset : member.offset + len(member.data)] == member.data


def test_kinds_that_cannot_be_loaded_are_passed_over():
    data = fatbin((8, 90, 0x11, 0, 0, b"LTO IR  "), (1, 90, 0x11, 0, 0, PTX))
    assert [member.kind for member in open_image(data).members] == [MemberKind.PTX]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (plain()[:12], "cut off"),
        (plain()[:-8], "ends at byte"),
        (plain()[:4] + b"\1\0\x08\0" + plain()[8:], "a header of 8 bytes"),
        (plain() + b"garbage!", "neither a fatbin header nor padding"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 2**63), "ends at byte"),
        (fatbin((1, 90, 0x8011, 9999, 50, PTX)), "9999 compressed bytes"),
        (fatbin((1, 90, 0x11, 8, 50, PTX)), "unknown compression"),
        (fatbin((1, 90, 0xA011, 8, 50, PTX)), "unknown compression"),
    ],
)
def test_malformed_headers_are_refused(data, says):
    with pytest.raises(InputError, match=says):
        open_image(data)


@pytest.mark.parametrize("offset", [4, 8])  # header size, payload size of the entry
def test_an_entry_cannot_reach_past_its_fatbin(offset):
    data = bytearray(plain())
    data[16 + offset : 16 + offset + 4] = b"\xff\xff\xff\x7f"
    with pytest.raises(InputError, match="does not fit"):
        open_image(bytes(data))


def packed(name, plain_bytes, declared):
    if name == "zstd":
        data, flags = zstandard.ZstdCompressor().compress(plain_bytes), 0x8011
    else:
        data, flags = lz4.block.compress(plain_bytes, store_size=False), 0x2011
    return open_image(fatbin((1, 90, flags, len(data), declared, data))).members[0]


@pytest.mark.parametrize("name", ["zstd", "lz4"])
def test_size_must_be_the_declared_one(name):
    content = PTX * 50
    assert unpack(packed(name, content, len(content))) == content
    for declared in (len(content) - 1, len(content) + 1, 0):
        with pytest.raises(InputError):
            unpack(packed(name, content, declared))


@pytest.mark.parametrize("name", ["zstd", "lz4"])
def test_members_unpack_into_memory_that_is_there(name):
    content = PTX * 50
    member = packed(name, content, len(content))
    place = bytearray(b"\xff" * len(content))
    found = unpack_into(member, lambda size: memoryview(place)[:size])
    assert found == content
    assert (bytes(place) == content) == (name == "zstd")
    for wrong in (member.data[:-1], member.data + b"more", member.data * 2):
        with pytest.raises(InputError):
            unpack_into(member._replace(data=wrong), lambda size: memoryview(bytearray(size)))
    for declared in (len(content) - 1, len(content) + 1, 0):
        with pytest.raises(InputError):
            unpack_into(packed(name, content, declared), lambda size: memoryview(bytearray(size)))


@pytest.mark.parametrize("name", ["zstd", "lz4"])
def test_decompression_bombs_fail_without_being_unpacked(name):
    bomb = bytes(64 << 20)
    with pytest.raises(InputError):
        unpack(packed(name, bomb, 1000))
    with pytest.raises(InputError, match="declares"):
        unpack(packed(name, bomb[:1000], 1 << 40))


@pytest.mark.parametrize("name", ["zstd.fatbin", "lz4.fatbin"])
def test_damaged_data_are_an_input_error(name):
    member = only_ptx(name)
    with pytest.raises(InputError):
        unpack(member._replace(data=member.data[:40]))
    with pytest.raises(InputError):
        unpack(member._replace(data=bytes(len(member.data))))

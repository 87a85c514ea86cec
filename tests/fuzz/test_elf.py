"""Fuzzed objects: read, or refused with an error of egpu's, and always soon."""

import struct
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egpu.bpf.btf import Btf
from egpu.bpf.demangle import demangle
from egpu.bpf.elf import MAX_RELOCATIONS, MAX_SYMBOLS, read_elf
from egpu.bpf.insn import MAX_SLOTS
from egpu.bpf.object import read_object
from egpu.errors import InputError, UnsupportedError

OBJECTS = sorted((Path(__file__).resolve().parents[1] / "unit/objects").glob("*.bpf.o"))
DATA = [path.read_bytes() for path in OBJECTS]
SECONDS = 5  # for one object, however it was made: a plain one takes a few milliseconds
EXTREMES = (0, 1, 7, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1)

budget = settings(
    max_examples=250,
    deadline=None,  # wall time means nothing on a loaded machine; pytest ends a hang
    derandomize=True,  # the same inputs on every machine: a failure is never somebody else's
    suppress_health_check=[HealthCheck.too_slow],
)
objects = st.sampled_from(DATA)


def answered(data):
    """Read; only the two errors that tell a user something may come out."""
    try:
        obj = read_object(data, "fuzzed.o")
    except (InputError, UnsupportedError):
        return None
    for spec in obj.maps:
        if spec.btf is not None and spec.value_type:
            try:
                spec.btf.decode(spec.value_type, bytes(min(spec.value_size, 4096)))
            except InputError:
                continue
    return obj


def test_fixtures_are_there():
    assert len(DATA) >= 3


@budget
@given(objects, st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=8))
def test_changed_bytes(data, changes):
    copy = bytearray(data)
    for at, value in changes:
        copy[at % len(copy)] = value
    answered(bytes(copy))


@budget
@given(objects, st.integers(0, 1 << 20), st.binary(max_size=64))
def test_cut_and_continued(data, size, tail):
    answered(data[: size % len(data)] + tail)


@budget
@given(objects, st.integers(0, 15), st.sampled_from(EXTREMES), st.sampled_from("HIQ"))
def test_extremes_in_the_elf_header(data, slot, value, width):
    copy = bytearray(data)
    value &= (1 << 8 * struct.calcsize(width)) - 1
    struct.pack_into(f"<{width}", copy, 16 + 2 * slot + (slot == 15) * 6, value)
    answered(bytes(copy))


@budget
@given(
    objects,
    st.integers(0, 40),
    st.sampled_from((0, 4, 8, 24, 32, 40, 44, 56)),
    st.sampled_from(EXTREMES),
)
def test_extremes_in_section_headers(data, section, field, value):
    copy = bytearray(data)
    start, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    long = field in (8, 24, 32, 56)
    value &= (1 << (64 if long else 32)) - 1
    struct.pack_into("<Q" if long else "<I", copy, start + 64 * (section % count) + field, value)
    answered(bytes(copy))


@budget
@given(
    objects,
    st.sampled_from((".BTF", ".BTF.ext", ".symtab", ".maps", ".text", "license")),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.sampled_from(EXTREMES)), min_size=1, max_size=6),
)
def test_extremes_inside_sections(data, name, changes):
    section = read_elf(data, "x").section(name)
    if section is None or len(section.data) < 4:
        return
    header = struct.unpack_from("<Q", data, 40)[0] + 64 * section.index
    start = struct.unpack_from("<Q", data, header + 24)[0]
    copy = bytearray(data)
    for at, value in changes:
        offset = start + at % (len(section.data) - 3)
        struct.pack_into("<I", copy, offset, value & 0xFFFFFFFF)
    answered(bytes(copy))


@budget
@given(st.binary(max_size=256))
def test_noise_as_btf(noise):
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(noise), len(noise), 1)
    try:
        btf = Btf.parse(header + noise + b"\0")
    except InputError:
        return
    assert len(btf.types) > 0


@budget
@given(st.text(alphabet="NKLIESTZPRAFvij_0123456789ab", max_size=40))
def test_noise_as_mangled_names(text):
    assert demangle("_Z" + text)


def elf_with(sections):
    """An object of rows (name, type, flags, data, link, info, entry size)."""
    names = b"\0" + b"".join(row[0].encode() + b"\0" for row in sections) + b".shstrtab\0"
    rows = [*sections, (".shstrtab", 3, 0, names, 0, 0, 0)]
    body, headers, at = b"", bytes(64), 64
    name_at = 1
    for name, kind, flags, data, link, info, size in rows:
        headers += struct.pack(
            "<IIQQQQIIQQ", name_at, kind, flags, 0, at + len(body), len(data), link, info, 1, size
        )
        name_at += len(name) + 1
        body += data
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack(
        "<HHIQQQIHHHHHH", 1, 247, 1, 0, 0, at + len(body), 0, 64, 0, 0, 64,
        len(rows) + 1, len(rows),
    )  # fmt: skip
    return head + body + headers


def function(at, slots=1, section=1):
    return struct.pack("<IBBHQQ", 1, 0x12, 0, section, 8 * at, 8 * slots)


CALL_NEXT = bytes.fromhex("8510000001000000")  # call what begins two slots on
EXIT = bytes.fromhex("9500000000000000")


def code_object(code, symbols, relocations=b"", name="executor"):
    return elf_with(
        [
            (name, 1, 6, code, 0, 0, 0),
            (".symtab", 2, 0, symbols, 3, 0, 24),
            (".strtab", 3, 0, b"\0f\0", 0, 0, 0),
            (".rel", 9, 0, relocations, 2, 1, 16),
        ]
    )


CHAIN = 3000
BIG = {
    "as many symbols as allowed": lambda: code_object(
        EXIT * MAX_SYMBOLS, b"".join(function(at) for at in range(MAX_SYMBOLS)), name=".text"
    ),
    "too many symbols": lambda: code_object(EXIT, function(0) * (MAX_SYMBOLS + 1)),
    "every symbol the same": lambda: code_object(EXIT, function(0) * MAX_SYMBOLS),
    "a chain of calls from each of its links": lambda: code_object(
        (CALL_NEXT + EXIT) * (CHAIN - 1) + EXIT * 2,
        b"".join(function(2 * at, 2) for at in range(CHAIN)),
    ),
    "as many relocations as allowed": lambda: code_object(
        EXIT, function(0), struct.pack("<QQ", 0, 10) * MAX_RELOCATIONS
    ),
    "the longest program": lambda: code_object(
        bytes.fromhex("b700000000000000") * (MAX_SLOTS - 1) + EXIT, function(0, MAX_SLOTS)
    ),
    "a longer program": lambda: code_object(EXIT * 2_000_000, function(0, 2_000_000)),
    "many sections over one range": lambda: elf_with([("kprobe/k", 1, 6, EXIT, 0, 0, 0)] * 4000),
    "a long list of kernels": lambda: code_object(
        EXIT, function(0), name="kprobe/" + "a," * 8000 + "a"
    ),
    "a name without end": lambda: code_object(EXIT, function(0), name="kprobe/" + "a" * 100_000),
}


@pytest.mark.parametrize("kind", BIG)
def test_big_objects_do_not_hang(kind):
    data = BIG[kind]()
    started = time.process_time()
    answered(data)
    assert time.process_time() - started < SECONDS


def test_small_object_of_this_writer_is_read():
    local = bytearray(function(2))
    local[4] = 0x02
    obj = answered(code_object(CALL_NEXT + EXIT * 2, function(0, 2) + bytes(local)))
    (program,) = obj.programs
    assert [(row.start, row.length) for row in program.functions] == [(0, 2), (2, 1)]

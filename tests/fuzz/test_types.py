"""Damaged types: CO-RE relocations, the kernel's types, modules of ``egpu gen``, kept PTX.

What comes out is an answer or one of egpu's errors.
"""

import ast
import functools
import struct
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egpu.bpf.btf import Btf
from egpu.bpf.core_target import CoreTarget
from egpu.bpf.elf import read_elf
from egpu.bpf.object import read_object
from egpu.errors import InputError, UnsupportedError
from egpu.image import list_kernels, open_image, ptx_text
from egpu.image.model import MemberKind
from egpu.image.open import kept_ptx
from egpu.session.kernel_types import kernel_types
from egpu.session.stub import module_text

HERE = Path(__file__).resolve().parents[1] / "unit"
OBJECTS = [path.read_bytes() for path in sorted((HERE / "objects").glob("*.bpf.o"))]
CORE = (HERE / "objects" / "core.bpf.o").read_bytes()
TYPES = bytes(read_elf(CORE, "core.bpf.o").section(".BTF").data)
KEPT = (HERE / "images" / "lineinfo_sm_90a.cubin").read_bytes()
EXTREMES = (0, 1, 2, 7, 8, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
BUDGET = settings(
    max_examples=250,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
changes = st.lists(
    st.tuples(st.integers(0, 1 << 20), st.sampled_from(EXTREMES), st.sampled_from("BHI")),
    min_size=1,
    max_size=6,
)


def changed(data, places, start=0, size=None):
    """``data`` with numbers written into ``size`` bytes from ``start`` on."""
    copy, size = bytearray(data), len(data) if size is None else size
    for at, value, width in places:
        offset = start + at % (size - 3)
        struct.pack_into(f"<{width}", copy, offset, value & ((1 << 8 * struct.calcsize(width)) - 1))
    return bytes(copy)


@functools.cache
def place_of(section):
    """Where a section of core.bpf.o lies in the file."""
    found = read_elf(CORE, "core.bpf.o").section(section)
    header = struct.unpack_from("<Q", CORE, 40)[0] + 64 * found.index
    return struct.unpack_from("<Q", CORE, header + 24)[0], len(found.data)


def target(data):
    return CoreTarget.of(Btf.parse(data, "kernel"), "kernel")


def test_fixtures_are_whole():
    assert read_object(CORE, "core.bpf.o", kernel=lambda: target(TYPES)).programs
    (member,) = open_image(KEPT).members
    assert list_kernels(*kept_ptx(member))


@BUDGET
@given(changes, st.sampled_from((".BTF.ext", ".BTF", "kprobe/core", ".text")))
def test_relocations_of_a_damaged_object(places, section):
    if read_elf(CORE, "core.bpf.o").section(section) is None:
        section = ".BTF.ext"
    data = changed(CORE, places, *place_of(section))
    try:
        read_object(data, "fuzzed.o", kernel=lambda: target(TYPES))
    except (InputError, UnsupportedError):
        return


@BUDGET
@given(changes)
def test_relocations_against_damaged_types(places):
    try:
        read_object(CORE, "core.bpf.o", kernel=lambda: target(changed(TYPES, places)))
    except (InputError, UnsupportedError):
        return


@BUDGET
@given(st.one_of(st.binary(max_size=200), changes.map(lambda places: changed(CORE, places))))
def test_files_of_kernel_types(data):
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        try:
            kernel_types(Path(file.name))()
        except InputError:
            return


@BUDGET
@given(st.sampled_from(OBJECTS), changes)
def test_modules_of_damaged_objects_are_python(data, places):
    try:
        text = module_text(read_object(changed(data, places), "fuzzed.o"), "")
    except (InputError, UnsupportedError):
        return
    ast.parse(text)


@BUDGET
@given(changes, st.integers(0, len(KEPT)))
def test_kept_ptx_of_damaged_cubins(places, size):
    for data in (changed(KEPT, places), KEPT[:size]):
        try:
            members = open_image(data).members
        except InputError:
            continue
        for member in members:
            try:
                texts = kept_ptx(member)
            except InputError:
                continue
            for each in texts:
                assert each.kind is MemberKind.PTX
                try:
                    ptx_text(each)
                    list_kernels(each)
                except InputError:
                    continue

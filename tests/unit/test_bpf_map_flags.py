"""The flags that maps may be created with: the table, its messages, and Linux as its judge."""

import ctypes
import errno
import itertools
import os
import platform
import struct

import pytest

from egpu.bpf.map_flags import ENOTSUPP, NAMES, TAKEN, chosen, flag_problem
from egpu.bpf.maptypes import MapType

CALLS = {"x86_64": 321, "aarch64": 280}
CREATE, FREEZE = 0, 22
SIZES = {  # key, value, entries, where not 4, 8, 8
    MapType.PERF_EVENT_ARRAY: (4, 4, 8),
    MapType.STACK_TRACE: (4, 64, 8),
    MapType.ARRAY_OF_MAPS: (4, 4, 4),
    MapType.HASH_OF_MAPS: (4, 4, 4),
    MapType.QUEUE: (0, 8, 8),
    MapType.STACK: (0, 8, 8),
    MapType.RINGBUF: (0, 0, 4096),
    MapType.BLOOM_FILTER: (0, 8, 8),
}
OUTER = (MapType.ARRAY_OF_MAPS, MapType.HASH_OF_MAPS)
LINUX = [kind for kind in MapType if kind < MapType.GPU_HASH]
FLAGS = [*NAMES, 1 << 13, 1 << 31]  # BPF_F_LINK is no map's, and none that there will soon be
BUILD_ID = 1 << 5  # known, and not egpu's


def bpf(command, *numbers):
    """The result, or a negative error number; what it opens is closed by the caller."""
    library = ctypes.CDLL(None, use_errno=True)
    attributes = struct.pack(f"<{len(numbers)}I", *numbers).ljust(160, b"\0")
    buffer = ctypes.create_string_buffer(attributes, 160)
    result = library.syscall(CALLS[platform.machine()], command, buffer, 160)
    return result if result >= 0 else -ctypes.get_errno()


def created(kind, flags, inner):
    key, value, entries = SIZES.get(kind, (4, 8, 8))
    number = bpf(CREATE, kind, key, value, entries, flags, inner if kind in OUTER else 0)
    if number < 0:
        return -number
    os.close(number)
    return 0


@pytest.fixture(scope="module")
def inner():
    if platform.machine() not in CALLS:
        pytest.skip(f"the number of bpf() on {platform.machine()} is not known here")
    number = bpf(CREATE, MapType.ARRAY, 4, 8, 1, 0)
    if number < 0:
        pytest.skip(f"this process may not create maps: {os.strerror(-number)}")
    if created(MapType.HASH, 0, 0) or created(MapType.HASH, 1 << 6, 0):
        pytest.skip("this process lacks CAP_BPF or CAP_SYS_ADMIN")
    yield number
    os.close(number)


def ours(kind, flags):
    problem = flag_problem(kind, flags)
    return 0 if problem is None else problem.errno


@pytest.mark.parametrize("kind", LINUX, ids=lambda kind: kind.name)
def test_flags_are_taken_and_refused_as_by_linux(inner, kind):
    """None, each, and every pair."""
    pairs = [first | second for first, second in itertools.combinations(FLAGS, 2)]
    different = {
        hex(flags): (ours(kind, flags), found)
        for flags in [0, *FLAGS, *pairs, 0x18 | 1, 0x180 | 1, 0x1F]
        if (found := created(kind, flags, inner)) != ours(kind, flags)
        and not (kind is MapType.STACK_TRACE and flags & BUILD_ID)
    }
    assert different == {}


def test_a_second_freeze(inner):
    fresh = bpf(CREATE, MapType.ARRAY, 4, 8, 1, 0)
    assert (bpf(FREEZE, fresh), bpf(FREEZE, fresh)) in ((0, -errno.EPERM), (0, -errno.EBUSY))
    os.close(fresh)


def test_every_type_has_a_row():
    assert TAKEN.keys() == set(MapType)


@pytest.mark.parametrize(
    ("kind", "flags", "text", "hint", "number"),
    [
        (
            MapType.QUEUE,
            1,
            "a QUEUE does not take BPF_F_NO_PREALLOC",
            f"it takes {', '.join(chosen(0x19C))}",
            errno.EINVAL,
        ),
        (
            MapType.LRU_HASH,
            3,
            "an LRU_HASH cannot have BPF_F_NO_PREALLOC: its entries are there from the beginning",
            "leave the flag out",
            ENOTSUPP,
        ),
        (
            MapType.RINGBUF,
            1 << 31,
            "a RINGBUF does not take 0x80000000",
            "it takes BPF_F_NUMA_NODE",
            errno.EINVAL,
        ),
        (
            MapType.HASH,
            0x18,
            "BPF_F_RDONLY and BPF_F_WRONLY exclude each other",
            "give one of them, or neither",
            errno.EINVAL,
        ),
    ],
)
def test_what_is_said(kind, flags, text, hint, number):
    problem = flag_problem(kind, flags)
    assert (problem.text, problem.hint, problem.errno) == (text, hint, number)


def test_messages_have_the_right_article():
    assert MapType.ARRAY_OF_MAPS.phrase == "an ARRAY_OF_MAPS"
    assert MapType.HASH.phrase == "a HASH"

"""Rows and operations in the command area, with an agent that only notes them."""

import struct

import pytest

from egpu.agent.channel import WriteRow
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.errors import AgentError
from egpu.maps import HostArena, plan
from egpu.maps.layout import COMMAND_SIZE
from egpu.session.writer import ArenaWriter

ARRAY = MapSpec("a", MapType.ARRAY, 4, 8, 1 << 17)


class Link:
    """Does writes on a bytearray, and gives each operation's first word plus one."""

    gone = False

    def __init__(self, host, layout):
        self.host, self.layout = host, layout
        self.device = bytearray(layout.device_size)
        self.calls, self.late = [], None

    def area(self):
        start = self.layout.commands
        return self.host.bytes[start : start + COMMAND_SIZE].tobytes()

    def settle(self, timeout):
        self.calls.append("settle")
        if self.late is not None:
            assert self.area() == self.late, "the area was written although it was in use"
            self.late = None

    def write(self, size, timeout):
        assert size <= COMMAND_SIZE
        self.calls.append("write")
        data, at = self.area()[:size], 0
        while at < size:
            offset, each, stride, rows = struct.unpack_from("<4Q", data, at)
            at += 32
            for row in range(rows):
                start = offset + row * stride
                self.device[start : start + each] = data[at + row * each : at + (row + 1) * each]
            at += -(-each * rows // 8) * 8

    def load(self, number, image, timeout):
        self.calls.append(("load", number, image))

    def operate(self, number, timeout, *, count, stride, results):
        self.calls.append("operate")
        assert results + 8 * count <= COMMAND_SIZE
        area = self.area()
        if number == 99:
            self.late = area
            raise AgentError("not in time")
        words = [struct.unpack_from("<q", area, n * stride)[0] + 1 for n in range(count)]
        start = self.layout.commands + results
        self.host.bytes[start : start + 8 * count] = bytearray(struct.pack(f"<{count}q", *words))


@pytest.fixture
def scene():
    layout = plan([ARRAY], 2)
    with HostArena.create(layout) as host:
        link = Link(host, layout)
        yield ArenaWriter(host, layout, link), link


def test_rows_larger_than_the_area_come_in_parts(scene):
    writer, link = scene
    large = bytes(range(1, 252)) * 3000
    many = bytes(range(1, 9)) * 40_000
    writer.write(
        [
            WriteRow(5000, b"abc"),
            WriteRow(8192, large),
            WriteRow(8192 + len(large) + 5, many[: 8 * 10_000], rows=10_000, stride=16),
            WriteRow(7000, b"xyzxyz", rows=2, stride=50),
        ]
    )
    assert link.device[5000:5003] == b"abc"
    assert link.device[8192 : 8192 + len(large)] == large
    start = 8192 + len(large) + 5
    assert all(link.device[start + 16 * n :][:8] == bytes(range(1, 9)) for n in (0, 9_999))
    assert link.device[start + 8 : start + 16] == bytes(8)
    assert (link.device[7000:7003], link.device[7050:7053]) == (b"xyz", b"xyz")
    assert writer.dirty


def test_a_strided_row_of_large_parts(scene):
    writer, link = scene
    part = bytes(range(1, 200)) * 1400  # larger than the area
    writer.write([WriteRow(4096, part * 2, rows=2, stride=len(part) + 8)])
    assert link.device[4096 : 4096 + len(part)] == part
    assert link.device[4096 + len(part) + 8 :][: len(part)] == part


def test_operations_in_parts(scene):
    writer, link = scene
    operations = [struct.pack("<q", -number) + bytes(56) for number in range(10_000)]
    assert writer.operate(4, lambda: b"image", operations) == [1 - n for n in range(10_000)]
    assert writer.operate(4, lambda: b"other", operations[:1]) == [1]
    assert [call for call in link.calls if call[0] == "load"] == [("load", 4, b"image")]


def test_an_operation_under_way_keeps_the_area(scene):
    writer, link = scene
    with pytest.raises(AgentError):
        writer.operate(99, lambda: b"image", [b"x" * 64])
    writer.write([WriteRow(4096, b"later")])
    assert link.late is None
    assert link.device[4096:4101] == b"later"

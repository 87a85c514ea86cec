"""What the agent does when the session wants maps changed."""

import os
import struct

import agent_harness as harness
import pytest
from agent_harness import PATIENCE

from egpu.agent.channel import WriteRow, write_row
from egpu.errors import AgentError

OPERATOR = b".version 8.0\n// entry egpu_operate params 6 regs 8 occ 8 max 1024 twin 0\n"


@pytest.fixture(scope="module", params=["plain", "sanitized"])
def folder(request):
    return harness.build(request.param)


@pytest.fixture
def broker():
    made = harness.Broker()
    yield made
    made.close()


class Scene:
    """A workload that launches slowly, once its first context's arena is ready."""

    def __init__(self, bench, broker, server):
        self.bench, self.broker, self.server = bench, broker, server
        self.process = bench.start(server.socket_path, "slow", harness.UNTIL_FINISH)
        harness.wait_for(lambda: broker.links and server.stats() and server.stats()[0].probed)
        self.link = broker.links[0]

    def put(self, data, offset=0):
        os.pwrite(self.broker.hosts[0][2], data, harness.COMMANDS + offset)

    def device(self):
        assert self.server.snapshot(PATIENCE)
        file = self.broker.hosts[0][2]
        return os.pread(file, harness.DEVICE_SIZE, harness.SNAPSHOT)

    def finish(self):
        self.process.kill()
        return self.bench.finish(self.process)


@pytest.fixture
def scene(folder, tmp_path, broker):
    bench = harness.Bench(folder, tmp_path)
    with bench.server(broker, snapshot_period_s=0) as server:
        made = Scene(bench, broker, server)
        yield made
        if made.process.poll() is None:
            made.finish()


def test_rows_are_copied(scene):
    rows = [
        WriteRow(5000, b"hello"),
        WriteRow(6000, b"abcdef", rows=3, stride=100),
        WriteRow(harness.DEVICE_SIZE - 8, b"the last"),
    ]
    data = b"".join(map(write_row, rows))
    scene.put(data)
    scene.link.write(len(data), PATIENCE)
    device = scene.device()
    assert device[4999:5006] == b"\0hello\0"
    assert [device[6000 + 100 * n :][:3] for n in range(3)] == [b"ab\0", b"cd\0", b"ef\0"]
    assert device[-8:] == b"the last"


@pytest.mark.parametrize(
    ("head", "size"),
    [
        ((harness.DEVICE_SIZE, 8, 0, 1), 40),
        ((harness.DEVICE_SIZE - 7, 8, 0, 1), 40),
        ((0, 0, 0, 1), 40),
        ((0, 8, 0, 0), 40),
        ((0, 16, 0, 1), 40),  # longer than what is there
        ((5000, 4, 3189, 2), 40),  # the second ends outside
        ((5000, 4, 2, 2), 40),  # overlapping
        ((0, 1 << 63, 0, 2), 40),
        ((0, 8, 1 << 63, 1 << 62), 40),
        ((5000, 8, 0, 1), 39),
        ((5000, 8, 0, 1), 20),  # half a row
        ((5000, 8, 0, 1), harness.COMMAND_SIZE + 8),
    ],
)
def test_rows_outside_are_refused(scene, head, size):
    before = scene.device()
    scene.put(struct.pack("<4Q", *head) + b"\xee" * 8)
    with pytest.raises(AgentError, match="malformed"):
        scene.link.write(size, PATIENCE)
    assert scene.device()[4104:] == before[4104:]  # the launches go on counting before


def test_operations(scene):
    scene.link.load(3, OPERATOR, PATIENCE)
    scene.link.operate(3, PATIENCE, count=65, stride=32, results=2080)
    (call,) = scene.finish().of("launch egpu_operate")
    values = list(map(int, call.split("values ")[1].split()))
    base = values[0]
    assert " threads 128 " in call
    assert values[1:4] == [32, base + 2080, 65]
    assert values[5] == base - harness.COMMANDS


@pytest.mark.parametrize(
    "what",
    [
        {"number": 4},
        {"count": 0},
        {"count": 200, "stride": 8, "results": 3000},  # results end outside
        {"count": 3, "stride": 32, "results": 64},  # operations overlap results
        {"results": 12},
        {"count": 0xFFFFFFFF, "stride": 0xFFFFFFFF},
    ],
)
def test_operations_outside_are_refused(scene, what):
    scene.link.load(3, OPERATOR, PATIENCE)
    wanted = {"number": 3, "count": 2, "stride": 32, "results": 64} | what
    number = wanted.pop("number")
    with pytest.raises(AgentError, match="malformed"):
        scene.link.operate(number, PATIENCE, **wanted)
    assert scene.finish().of("launch egpu_operate") == []


def test_operators_that_cannot_be_loaded(scene):
    for image, words in [
        (b"\x7fELF" + bytes(60), "malformed"),
        (b"nonsense", "malformed"),
        (b".version 8.0 broken", "the driver refuses it"),
        (b".version 8.0\n// entry other params 6 regs 8 occ 8 max 64 twin 0\n", "error 500"),
    ]:
        with pytest.raises(AgentError, match=words):
            scene.link.load(0, image, PATIENCE)


def test_a_process_that_is_gone(scene):
    scene.finish()
    with pytest.raises(AgentError, match="its context is gone"):
        scene.link.write(0, PATIENCE)
    assert scene.link.gone


def test_a_context_that_is_not_known(scene):
    scene.link._number = 99
    with pytest.raises(AgentError, match="its context is gone"):
        scene.link.write(0, PATIENCE)

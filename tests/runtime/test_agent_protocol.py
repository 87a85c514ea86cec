"""The wire's table, its C headers, and the server's answers to packets."""

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import agent_harness as harness
import pytest

from egpu.agent import Reason, Server, agent_environment, channel, headers, launch
from egpu.agent import protocol as wire
from egpu.agent.launch import NO_FOLLOW_VARIABLE
from egpu.agent.protocol import Kind, decode, encode
from egpu.agent.totals import REASON_TEXT
from egpu.errors import AgentError, InputError
from egpu.maps.layout import LAYOUT_VERSION


def values(message):
    return {name: 3 + i for i, (name, _) in enumerate(message.fields)}


@pytest.mark.parametrize("message", wire.MESSAGES, ids=lambda m: m.kind.name)
def test_round_trip(message):
    texts = tuple(f"text {i}".encode() * i for i in range(len(message.texts)))
    packet = decode(encode(message.kind, request=9, texts=texts, **values(message)))
    assert (packet.kind, packet.request, packet.fields) == (message.kind, 9, values(message))
    assert tuple(packet.texts.values()) == texts


@pytest.mark.parametrize("message", wire.MESSAGES, ids=lambda m: m.kind.name)
def test_structs_need_no_padding(message):
    """What C lays out naturally is what Python packs."""
    codes = {"u16": "H", "u32": "I", "u64": "Q"}
    form = "".join(codes[kind] for _, kind in wire.all_fields(message))
    assert struct.calcsize("@" + form) == struct.calcsize("<" + form)
    assert struct.calcsize("<" + form) % 8 == 0


def test_every_kind_has_one_row():
    assert [message.kind for message in wire.MESSAGES] == list(Kind)
    assert set(REASON_TEXT) == set(Reason)
    assert max(Reason) < wire.STATS_REASONS


def test_headers_are_as_the_tables_say(tmp_path):
    command = [sys.executable, "-W", "ignore", "-m", "egpu.agent.protocol", "--check"]
    committed = Path(__file__).resolve().parents[2] / "native" / "agent"
    current = [*command, "--directory", str(committed)]
    assert subprocess.run(current, check=False).returncode == 0
    for name, text in headers.HEADERS.items():
        (tmp_path / name).write_text(text())
    (tmp_path / "layout.h").write_text("old")
    stale = subprocess.run(
        [*command, "--directory", str(tmp_path)], check=False, capture_output=True, text=True
    )
    assert (stale.returncode, "layout.h is not" in stale.stdout) == (1, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p[:8], "shorter than its header"),
        (lambda p: b"XXXX" + p[4:], "magic"),
        (lambda p: p[:4] + b"\x63\0" + p[6:], "protocol 99"),
        (lambda p: p[:6] + b"\xff\xff" + p[8:], "unknown message kind"),
        (lambda p: p + b"x", "packet says"),
        (lambda p: p[:8] + struct.pack("<I", 20) + p[12:20], "cut short"),
        (lambda p: p[:20] + b"\xff\xff\0\0" + p[24:], "runs past the end"),
    ],
)
def test_malformed_packets(change, words):
    packet = encode(Kind.REFUSED, texts=(b"because",), epoch=1)
    with pytest.raises(AgentError, match=words):
        decode(change(packet))


def test_too_large_or_incomplete():
    with pytest.raises(AgentError, match="exceeds"):
        encode(Kind.REFUSED, texts=(bytes(wire.PACKET_LIMIT),), epoch=1)
    with pytest.raises(AgentError, match="do not fill"):
        encode(Kind.EPOCH, epoch=1)


# ---------------------------------------------------------------------- server


@pytest.fixture(scope="module")
def bench_folder():
    return harness.build("plain")


@pytest.fixture
def broker():
    made = harness.Broker()
    yield made
    made.close()


@pytest.fixture
def server(broker, tmp_path):
    with Server(tmp_path / "run", broker) as made:
        yield made


class Client:
    def __init__(self, server):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(harness.PATIENCE)
        self.socket.connect(str(server.socket_path))
        self.files = []

    def ask(self, data, files=()):
        channel.send(self.socket, data, files)
        return self.read()

    def read(self):
        data, files = channel.receive(self.socket)
        self.files += files
        return decode(data) if data else None

    def hello(self):
        return self.ask(encode(Kind.HELLO, pid=os.getpid(), layout=LAYOUT_VERSION))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
        channel.close_all(self.files)


def resolve(request, kernel=b"plain", **more):
    fields = {
        "image": 1,
        "offset": 0,
        "size": 4,
        "source": 1,
        "slot": 1,
        "epoch": 1,
        "arena": 1,
        "captured": 0,
        "ordinal": 0,
        "major": 9,
        "minor": 0,
        "sm_count": 4,
    }
    path = more.pop("path", b"")
    return encode(Kind.RESOLVE, request=request, texts=(kernel, path, b"D"), **{**fields, **more})


def test_directory_is_private(server):
    assert os.stat(server.socket_path.parent).st_mode & 0o777 == 0o700


def test_resolve_and_stats(server, broker):
    with Client(server) as client:
        welcome = client.hello()
        assert (welcome.kind, welcome.fields["twin_wait_ms"]) == (Kind.WELCOME, 10_000)
        assert len(client.files) == 1
        with channel.file_of("image", b"abcd") as file:
            channel.send(client.socket, encode(Kind.IMAGE, image=1, size=4), (file,))
        twin = client.ask(resolve(5))
        assert (twin.kind, twin.request, twin.fields["parameters"]) == (Kind.TWIN, 5, 2)
        assert os.pread(client.files[1], 100, 0).endswith(b"\0")
        assert broker.images == [b"abcd"]
        assert client.ask(resolve(6, b"unknown", slot=2)).kind is Kind.UNMATCHED
    assert server.drain() or server.live()  # the peer is this very process


def test_image_that_is_gone(server):
    with Client(server) as client:
        client.hello()
        never = client.ask(resolve(1, source=0))
        assert (never.kind, b"did not see" in never.texts["reason"]) == (Kind.REFUSED, True)
        lost = client.ask(resolve(2, source=2, path=b"/nonexistent", size=10))
        assert b"/nonexistent" in lost.texts["reason"]
        short = client.ask(resolve(3, source=2, path=b"/proc/self/exe", size=1 << 33))
        assert b"shorter" in short.texts["reason"]


def test_broker_that_fails(server, broker):
    broker.twins = None
    with Client(server) as client:
        client.hello()
        answer = client.ask(resolve(1))
        assert answer.texts["reason"] == b"internal error of the session"
    harness.wait_for(lambda: server.problems)
    assert "TypeError" in server.problems[0] or "AttributeError" in server.problems[0]


@pytest.mark.parametrize(
    ("packet", "words"),
    [
        (b"", None),
        (b"hello", b"shorter than its header"),
        (encode(Kind.IMAGE_GONE, image=1), b"before HELLO"),
        (encode(Kind.HELLO, pid=1, layout=77), b"layout 77"),
    ],
)
def test_nonsense_is_answered_and_cut_off(server, packet, words):
    with Client(server) as client:
        if words is None:
            client.socket.shutdown(socket.SHUT_WR)
        else:
            answer = client.ask(packet)
            assert answer.kind is Kind.BYE
            assert words in answer.texts["reason"]
        assert client.read() is None
    with Client(server) as other:
        assert other.hello().kind is Kind.WELCOME  # the server goes on


def test_messages_out_of_place(server):
    for packet in (
        encode(Kind.HELLO, pid=1, layout=LAYOUT_VERSION),
        encode(Kind.DETACH),
        encode(Kind.IMAGE, image=1, size=4),
        resolve(1, b""),
        resolve(1, slot=1 << 30),
    ):
        with Client(server) as client:
            client.hello()
            assert client.ask(packet).kind is Kind.BYE


def test_close_twice_and_with_clients(broker, tmp_path):
    server = Server(tmp_path / "run", broker)
    with Client(server) as client:
        client.hello()
        server.close()
        server.close()
        assert client.read() is None
    assert not server.socket_path.exists()


def test_snapshot_of_nobody(server):
    assert server.snapshot(0.1)


def test_snapshot_that_is_not_answered(server):
    with Client(server) as client:
        client.hello()
        assert not server.snapshot(0.1)
        assert client.read().kind is Kind.SNAPSHOT


# ---------------------------------------------------------------------- launch


def test_many_short_processes_leave_little(bench_folder, tmp_path):
    """Stats of ended processes are cut to what was used; they stay readable after close()."""
    broker = harness.Broker(twins={})
    bench = harness.Bench(bench_folder, tmp_path)
    with bench.server(broker) as server:
        for _ in range(4):
            bench.run(server, "plain", 2)
        sizes = [len(peer._stats) for peer in server._peers]
    assert max(sizes[:3]) < 10_000
    assert [process.kernels[0].launches for process in server.processes()] == [2] * 4


def test_environment_keeps_what_is_there(tmp_path):
    agent = tmp_path / "a.so"
    made = agent_environment(
        tmp_path / "s", {"LD_PRELOAD": "x.so", NO_FOLLOW_VARIABLE: "1", "A": "b"}, library=agent
    )
    assert made["LD_PRELOAD"] == f"{agent}:x.so"
    assert (made["A"], made["EGPU_SOCKET"]) == ("b", str(tmp_path / "s"))
    assert NO_FOLLOW_VARIABLE not in made


def test_launch_errors(tmp_path):
    with pytest.raises(InputError, match="no command"):
        launch([], tmp_path / "s")
    with pytest.raises(AgentError, match="space or a colon"):
        launch(["true"], tmp_path / "s", library=tmp_path / "a b.so")
    with pytest.raises(InputError, match="cannot start it"):
        launch([str(tmp_path / "nothing")], tmp_path / "s", library=tmp_path / "a.so")

"""Random and damaged packets: a clear error or an answer, never a traceback or a hang."""

import contextlib
import gc
import os
import random
import socket

from egpu.agent import Server, Unmatched, channel
from egpu.agent import protocol as wire
from egpu.agent.protocol import Kind, decode, encode
from egpu.errors import AgentError
from egpu.maps.layout import LAYOUT_VERSION

SEED = 20240817
PACKETS = 4000
CONNECTIONS = 60
PACKETS_EACH = 12
PATIENCE = 100  # seconds for an answer: how fast a machine is proves nothing


class Broker:
    """Asks for every image, so that damaged references are followed too."""

    def process_started(self, pid, command):
        pass

    def process_ended(self, pid):
        pass

    def open_device(self, pid, device, link):
        raise AgentError("no device here")

    def resolve(self, seen):
        seen.image()
        return Unmatched()

    def answered(self):
        pass

    def wants_images(self):
        return True

    def device_named(self, device):
        pass

    def host_call(self, call):
        pass

    def image_loading(self, seen):
        with contextlib.suppress(AgentError):
            seen.image()

    def image_gone(self, pid, connection, module):
        pass


def sample(rng):
    message = rng.choice(wire.MESSAGES)
    limits = {"u16": 16, "u32": 32, "u64": 64}
    fields = {name: rng.getrandbits(rng.choice((3, limits[k]))) for name, k in message.fields}
    texts = tuple(rng.randbytes(rng.randrange(40)) for _ in message.texts)
    return encode(message.kind, request=rng.getrandbits(32), texts=texts, **fields)


def damage(rng, packet):
    data = bytearray(packet)
    for _ in range(rng.randrange(4)):
        match rng.randrange(4):
            case 0 if data:
                data[rng.randrange(len(data))] = rng.getrandbits(8)
            case 1:
                del data[rng.randrange(len(data) + 1) :]
            case 2:
                data += rng.randbytes(rng.randrange(64))
            case 3 if len(data) > 12:
                data[8:12] = len(data).to_bytes(4, "little")
    return bytes(data)


def test_decode():
    rng = random.Random(SEED)
    good = 0
    for _ in range(PACKETS):
        try:
            packet = decode(damage(rng, sample(rng)))
        except AgentError:
            continue
        good += 1
        assert isinstance(packet.kind, Kind)
    assert 0 < good < PACKETS


def test_server(tmp_path):
    rng = random.Random(SEED)
    gc.collect()  # of earlier tests, lest it comes in between
    before = len(os.listdir("/proc/self/fd"))
    with Server(tmp_path / "run", Broker()) as server:
        for _ in range(CONNECTIONS):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.settimeout(PATIENCE)
                client.connect(str(server.socket_path))
                with contextlib.suppress(OSError):  # the server has cut us off
                    abuse(rng, client)
                drain(client)
        assert server.problems
        assert not [problem for problem in server.problems if "broker" in problem]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.settimeout(PATIENCE)
            client.connect(str(server.socket_path))
            channel.send(client, encode(Kind.HELLO, pid=1, layout=LAYOUT_VERSION))
            data, files = channel.receive(client)
            channel.close_all(files)
            assert decode(data).kind is Kind.WELCOME
    assert len(os.listdir("/proc/self/fd")) == before


def abuse(rng, client):
    if rng.random() < 0.8:
        channel.send(client, encode(Kind.HELLO, pid=1, layout=LAYOUT_VERSION))
    for _ in range(PACKETS_EACH):
        packet = sample(rng) if rng.random() < 0.6 else damage(rng, sample(rng))
        if not packet:
            continue
        if rng.random() < 0.3:
            with channel.file_of("fuzz", rng.randbytes(20)) as file:
                channel.send(client, packet, [file] * rng.randrange(1, 4))
        else:
            channel.send(client, packet)


def drain(client):
    client.shutdown(socket.SHUT_WR)
    while True:
        try:
            data, files = channel.receive(client)
        except OSError:
            return
        channel.close_all(files)
        if not data:
            return

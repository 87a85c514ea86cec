"""What a session does before a kernel waits for it, and what it leaves alone."""

import os
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from egpu.agent import Server
from egpu.agent.protocol import PACKET_LIMIT, Kind, encode
from egpu.agent.twin import DeviceInfo, ImageSeen, KernelSeen, Refused, Twin, Unmatched
from egpu.bpf.object import read_object
from egpu.errors import AgentError
from egpu.maps import plan
from egpu.maps.layout import LAYOUT_VERSION
from egpu.session import images, rehearsal
from egpu.session.assemble import Assembler, Ptxas, find_ptxas
from egpu.session.attached import ProbeSet
from egpu.session.cache import TwinCache
from egpu.session.images import OpenedImages
from egpu.session.twins import TwinBuilder
from egpu.verifier import verify

ROOT = Path(__file__).resolve().parents[3]
IMAGES = ROOT / "tests" / "unit" / "images"
TOOL = ROOT / "src" / "egpu" / "tools" / "kernelcount" / "kernelcount.bpf.o"
DEVICE = DeviceInfo(0, 9, 0, 132, "test")
PATIENCE = 100
needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="the probes cannot be assembled")


class Source:
    """An image that counts how often it is read, and can be held up."""

    def __init__(self, name):
        self.data = (IMAGES / name).read_bytes()
        self.reads, self.begun, self.go = 0, threading.Event(), threading.Event()
        self.go.set()

    def __call__(self):
        self.reads += 1
        self.begun.set()
        assert self.go.wait(PATIENCE)
        if self.data is None:
            raise AgentError("it cannot be read")
        return self.data


def seen(source, *, kernel="add", module=1, **more):
    return KernelSeen(1, DEVICE, kernel, module, 1, source="file", image=source, **more)


def loading(source, *, module=1):
    return ImageSeen(1, DEVICE, module, "file", 0, image=source)


def programs(glob="*"):
    read = read_object(TOOL.read_bytes(), TOOL.name)
    found = []
    for program in read.programs:
        points = tuple(replace(each, pattern=glob) for each in program.attach)
        found.append(verify(replace(program, attach=points)))
    return read, found


def builder(*, glob="*", only="", cache=None, machine_code=True, probes=None, assembler=None):
    read, found = programs(glob)
    return TwinBuilder(
        probes or ProbeSet(found, only=only),
        assembler or Assembler(find_ptxas()),
        cache,
        lambda device: plan(read.maps, device.sm_count),
        allow_occupancy_loss=False,
        machine_code=machine_code,
    )


@pytest.fixture
def unpacked(monkeypatch):
    """The images whose machine code is taken apart, one entry each."""
    found, whole = [], images.contents_of

    def noted(cubin):
        found.append(cubin)
        return whole(cubin)

    monkeypatch.setattr(images, "contents_of", noted)
    return found


# ---------------------------------------------------------------------- images


@needs_ptxas
def test_an_image_is_opened_and_taken_apart_while_the_driver_loads_it(unpacked):
    made, source = builder(), Source("zstd.fatbin")
    assert made.wants_images()
    made.open_ahead(loading(source))
    assert (source.reads, made.images_read, len(unpacked)) == (1, 1, 1)
    made.open_ahead(loading(source))  # once
    assert isinstance(made.resolve(seen(source)), Twin)
    assert (source.reads, made.images_read, len(unpacked)) == (1, 1, 1)
    (report,) = made.reports()
    assert report.image_ms == 0


@pytest.mark.parametrize(("glob", "only"), [("a*", ""), ("*", "a*")])
def test_nothing_is_opened_for_narrower_globs(glob, only):
    made, source = builder(glob=glob, only=only), Source("zstd.fatbin")
    assert not made.wants_images()
    made.open_ahead(loading(source))
    assert isinstance(made.resolve(seen(source, kernel="other")), Unmatched)
    assert (source.reads, made.images_read) == (0, 0)


def test_nothing_is_opened_for_programs_that_are_not_attached():
    made, source = builder(), Source("zstd.fatbin")
    probes = made._probes
    for item in probes.attachments:
        probes.disable(item.program)
    assert not made.wants_images()
    made.open_ahead(loading(source))
    assert source.reads == 0
    for item in probes.attachments:
        probes.enable(item.program)
    assert made.wants_images()


@needs_ptxas
def test_a_warm_cache_has_nothing_unpacked(tmp_path, unpacked):
    """As long as twins are found there; the first one that is not shows that others will not be."""
    kept = TwinCache(tmp_path)
    cold = builder(cache=kept)
    cold.open_ahead(loading(Source("zstd.fatbin")))
    assert len(unpacked) == 1  # nothing is kept: it will be built
    assert isinstance(cold.resolve(seen(Source("zstd.fatbin"))), Twin)
    cold.settle()

    unpacked.clear()
    warm, source = builder(cache=TwinCache(tmp_path)), Source("zstd.fatbin")
    warm.open_ahead(loading(source))
    assert isinstance(warm.resolve(seen(source)), Twin)
    warm.open_ahead(loading(Source("machine_code.fatbin"), module=2))
    assert ([each.cached for each in warm.reports()], warm.images_read) == ([True], 2)
    assert unpacked == []
    assert isinstance(warm.resolve(seen(Source("sm_90.cubin"), module=3)), Twin)
    assert len(unpacked) == 1
    warm.open_ahead(loading(Source("lineinfo_sm_90a.cubin"), module=4))
    assert len(unpacked) == 2


@needs_ptxas
def test_a_cache_that_others_have_filled_is_no_reason_to_unpack(tmp_path, unpacked):
    (tmp_path / "0.twin").write_bytes(b"")
    builder(cache=TwinCache(tmp_path)).open_ahead(loading(Source("zstd.fatbin")))
    assert unpacked == []


@pytest.mark.parametrize("name", ["kernels.ptx", "zstd.fatbin"])
def test_kernels_that_are_spliced_as_ptx_need_no_machine_code(unpacked, name):
    made = builder(machine_code=False)
    made.open_ahead(loading(Source(name)))
    assert (made.images_read, unpacked) == (1, [])


def test_a_kernel_waits_for_its_image_that_is_being_opened():
    opened, source = OpenedImages(), Source("zstd.fatbin")
    source.go.clear()
    ahead = threading.Thread(target=lambda: opened.open_ahead(loading(source), lambda _: True))
    ahead.start()
    assert source.begun.wait(PATIENCE)
    found = []

    def ask():
        image = opened.image(seen(source))
        found.append(opened.machine_code(image, seen(source)))

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join(0.05)
    assert asking.is_alive()
    source.go.set()
    asking.join(PATIENCE)
    ahead.join(PATIENCE)
    assert (source.reads, opened.read, len(found)) == (1, 1, 1)
    assert opened.spent_s > 0.04  # what it waited


def test_a_kernel_does_not_wait_for_another_image():
    opened, slow, source = OpenedImages(), Source("zstd.fatbin"), Source("machine_code.fatbin")
    slow.go.clear()
    ahead = threading.Thread(
        target=lambda: opened.open_ahead(loading(slow, module=2), lambda _: True)
    )
    ahead.start()
    assert slow.begun.wait(PATIENCE)
    image = opened.image(seen(source))
    assert opened.machine_code(image, seen(source)).kernels
    slow.go.set()
    ahead.join(PATIENCE)


@pytest.mark.parametrize("data", [None, b"nonsense", b"\x50\xed\x55\xba"])
def test_what_goes_wrong_ahead_is_said_of_the_kernel(data):
    """And of one that would be fine nothing is said."""
    made, alone, source = builder(), builder(), Source("zstd.fatbin")
    source.data = data
    made.open_ahead(loading(source))
    answer = made.resolve(seen(source))
    assert isinstance(answer, Refused)
    assert answer == alone.resolve(seen(source))


@needs_ptxas
def test_an_image_that_could_not_be_read_ahead_is_read_when_it_is_asked_for():
    made, source = builder(), Source("zstd.fatbin")
    data, source.data = source.data, None
    made.open_ahead(loading(source))
    source.data = data
    assert isinstance(made.resolve(seen(source)), Twin)


@needs_ptxas
@pytest.mark.parametrize("at", range(0, 2000, 97))
def test_damaged_machine_code_ahead_changes_nothing(at):
    source = Source("sm_90.cubin")
    data = bytearray(source.data)
    data[at] ^= 0xFF
    source.data = bytes(data)
    made, alone = builder(), builder()
    made.open_ahead(loading(source))
    assert made.resolve(seen(source)) == alone.resolve(seen(source))


def test_images_that_are_never_launched_do_not_pile_up():
    opened = OpenedImages()
    sources = [Source("zstd.fatbin") for _ in range(3 * images._EARLY)]
    for module, source in enumerate(sources):
        opened.open_ahead(loading(source, module=module), lambda _: False)
    assert opened.read == images._EARLY
    other = Source("sm_90.cubin")
    opened.image(seen(other, module=100))  # makes room for one
    opened.open_ahead(loading(Source("zstd.fatbin"), module=101), lambda _: False)
    opened.open_ahead(loading(Source("zstd.fatbin"), module=102), lambda _: False)
    assert opened.read == images._EARLY + 2
    for module, source in enumerate(sources[:3]):  # the first was let go, and for it the second
        opened.image(seen(source, module=module))
    assert [source.reads for source in sources[:3]] == [2, 2, 1]


def test_what_is_gone_before_it_is_its_turn_is_not_opened(tmp_path):
    """Nobody would let it go, and what is opened ahead is counted."""
    opened, busy, go = OpenedImages(), threading.Semaphore(0), threading.Event()
    image = tmp_path / "image"
    image.write_bytes((IMAGES / "zstd.fatbin").read_bytes())

    class Broker:
        def __getattr__(self, name):
            return lambda *told: True

        def device_named(self, device):
            busy.release()
            assert go.wait(PATIENCE)

        def image_loading(self, seen):
            opened.open_ahead(seen, lambda _: False)

        def image_gone(self, *which):
            opened.let_go(lambda *key: key == which)

        def process_ended(self, pid):
            opened.forget(pid)
            busy.release()

    def load(agent, number):
        where = {"image": number, "offset": 0, "size": image.stat().st_size}
        device = {"ordinal": 0, "major": 9, "minor": 0, "sm_count": 132}
        agent.send(encode(Kind.LOADING, texts=(bytes(image), b"a"), **where, **device))

    with (
        Server(tmp_path, Broker()) as server,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent,
    ):
        agent.connect(str(server.socket_path))
        agent.send(encode(Kind.HELLO, pid=os.getpid(), layout=LAYOUT_VERSION))
        agent.recv(PACKET_LIMIT)
        for count in (1, 2):  # as many as there are threads
            device = {"ordinal": 0, "major": 9, "minor": 0, "sm_count": count}
            agent.send(encode(Kind.DEVICE, texts=(b"a",), **device))
        for _ in range(2):
            assert busy.acquire(timeout=PATIENCE)
        load(agent, 1)
        agent.send(encode(Kind.IMAGE_GONE, image=1))
        load(agent, 2)
        agent.close()  # all of it is read before the end is
        assert busy.acquire(timeout=PATIENCE)
        go.set()
        assert server._ahead.settle(PATIENCE)
    assert (opened.read, opened._early) == (0, {})


def test_what_was_not_loaded_or_is_unloaded_is_let_go():
    opened = OpenedImages()
    sources = [Source("zstd.fatbin") for _ in range(2)]
    for module, source in enumerate(sources):
        opened.open_ahead(loading(source, module=module), lambda _: False)
    opened.let_go(lambda *key: key == (1, 0, 0))
    for module, source in enumerate(sources):
        opened.image(seen(source, module=module))
    assert [source.reads for source in sources] == [2, 1]
    opened.let_go(lambda *key: key == (1, 0, 1))  # others of its kernels may still be asked for
    opened.image(seen(sources[1], module=1))
    assert sources[1].reads == 1


def test_what_goes_while_it_is_opened_is_not_kept():
    opened, source = OpenedImages(), Source("zstd.fatbin")
    source.go.clear()
    ahead = threading.Thread(target=lambda: opened.open_ahead(loading(source), lambda _: False))
    ahead.start()
    assert source.begun.wait(PATIENCE)
    opened.forget(1)
    source.go.set()
    ahead.join(PATIENCE)
    opened.image(seen(source))
    assert source.reads == 2


def test_a_file_that_changed_since_it_was_loaded_is_not_what_was_opened_ahead():
    """It may have changed before that: what the agent sees when it asks decides."""
    opened, source = OpenedImages(), Source("zstd.fatbin")

    def changed():
        raise AgentError("it has been changed")

    opened.open_ahead(loading(source), lambda _: False)
    for _ in range(2):
        with pytest.raises(AgentError, match="has been changed"):
            opened.image(seen(changed, changed=True))
    known, source = OpenedImages(), Source("zstd.fatbin")
    known.open_ahead(loading(source), lambda _: False)
    image = known.image(seen(source))  # as it was loaded
    assert known.image(seen(changed, changed=True)) is image


# ---------------------------------------------------------------------- the probes


@needs_ptxas
def test_the_first_kernel_finds_its_probes_assembled():
    made, alone = builder(), builder()
    made.rehearse(DEVICE)
    answers = [each.resolve(seen(Source("zstd.fatbin"))) for each in (made, alone)]
    assert answers[0] == answers[1]
    (after,), (before,) = made.reports(), alone.reports()
    assert (after.compile_ms, before.compile_ms > 0) == (0, True)


@needs_ptxas
def test_what_kernels_of_each_glob_get_is_rehearsed():
    _, (everywhere, *_) = programs()
    _, (narrower, *_) = programs("a*")
    probes = ProbeSet([everywhere, narrower])
    made = builder(probes=probes)
    assert [[each.point.pattern for each in group] for group in probes.likely()] == [
        ["*"],
        ["*", "a*"],
    ]
    assert [each.point.pattern for each in probes.everywhere()] == ["*"]
    made.rehearse(DEVICE)
    for module, kernel in enumerate(("add", "none")):  # with both programs, and with one
        assert isinstance(made.resolve(seen(Source("sm_90.cubin"), kernel=kernel)), Twin), module
    assert [report.compile_ms for report in made.reports()] == [0, 0]


@needs_ptxas
def test_devices_of_one_kind_are_rehearsed_once(monkeypatch):
    cubins = []
    splice = rehearsal.splice_sass

    def noted(cubin, *rest):
        cubins.append(cubin)
        return splice(cubin, *rest)

    monkeypatch.setattr(rehearsal, "splice_sass", noted)
    made = builder()
    for device in (DEVICE, replace(DEVICE, ordinal=1), replace(DEVICE, sm_count=114)):
        made.rehearse(device)
    assert len(cubins) == 2
    made.rehearse(replace(DEVICE, major=10))  # its machine code is not known
    made.rehearse(replace(DEVICE, major=8, minor=6))
    assert len(cubins) == 3
    assert isinstance(made.resolve(seen(Source("zstd.fatbin"))), Twin)
    made.rehearse(replace(DEVICE, major=8))  # kernels are asked for
    assert len(cubins) == 3


@pytest.mark.parametrize("way", ["ptx", "detached", "no ptxas"])
def test_nothing_is_rehearsed_that_no_kernel_would_get(monkeypatch, way):
    def never(*_):
        raise AssertionError("spliced for nobody")

    monkeypatch.setattr(rehearsal, "splice_sass", never)
    if way == "no ptxas":
        monkeypatch.setenv("EGPU_PTXAS", "none")
    made = builder(machine_code=way != "ptx")
    if way == "detached":
        for item in made._probes.attachments:
            made._probes.disable(item.program)
    made.rehearse(DEVICE)


@needs_ptxas
def test_a_kernel_waits_for_its_own_rehearsal_only(monkeypatch):
    """One that is spliced as PTX goes on beside it."""
    begun, go, splice = threading.Event(), threading.Event(), rehearsal.splice_sass

    def slowly(*rest):
        begun.set()
        assert go.wait(PATIENCE)
        return splice(*rest)

    monkeypatch.setattr(rehearsal, "splice_sass", slowly)
    made = builder()
    ahead = threading.Thread(target=lambda: made.rehearse(DEVICE))
    ahead.start()
    assert begun.wait(PATIENCE)
    assert isinstance(made.resolve(seen(Source("kernels.ptx"))), Twin)
    answers = []
    asking = threading.Thread(
        target=lambda: answers.append(made.resolve(seen(Source("zstd.fatbin"), module=2)))
    )
    asking.start()
    asking.join(0.05)
    assert asking.is_alive()
    go.set()
    asking.join(PATIENCE)
    ahead.join(PATIENCE)
    assert isinstance(answers[0], Twin)
    assert made.reports()[0].compile_ms > 40  # what it waited


@needs_ptxas
def test_a_rehearsal_that_fails_says_nothing(monkeypatch):
    made = builder()
    monkeypatch.setattr(rehearsal, "_KERNEL", "nonsense for {arch}")
    made.rehearse(DEVICE)
    assert isinstance(made.resolve(seen(Source("zstd.fatbin"))), Twin)


@pytest.mark.parametrize("before", [False, True])
def test_a_session_that_ends_does_not_wait_for_a_rehearsal(tmp_path, before):
    """ptxas may hang; what a kernel has asked for is finished, what nobody has is not."""
    hanging, started = tmp_path / "ptxas", tmp_path / "started"
    hanging.write_text(f"#!/bin/sh\ntouch {started}\nexec sleep 1000\n")
    hanging.chmod(0o755)
    made = builder(assembler=Assembler(Ptxas(str(hanging), "one that hangs")))
    if before:
        made.abandon()
    thread = threading.Thread(target=made.rehearse, args=(DEVICE,))
    thread.start()
    if not before:
        end = time.monotonic() + PATIENCE
        while not started.exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        made.abandon()
    thread.join(PATIENCE)
    assert not thread.is_alive()


@needs_ptxas
def test_what_a_kernel_asked_for_is_assembled_although_the_session_ends():
    made = builder()
    made.abandon()
    assert isinstance(made.resolve(seen(Source("zstd.fatbin"))), Twin)

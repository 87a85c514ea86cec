"""Images are read once in a process's life, and never taken for another process's."""

import random
import struct
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from egpu.agent.twin import DeviceInfo, ImageSeen, KernelSeen
from egpu.errors import UnsupportedError
from egpu.image.cubin_edit import put_together
from egpu.session import images
from egpu.session.images import OpenedImages

IMAGES = Path(__file__).parents[1] / "images"
DEVICE = DeviceInfo(0, 9, 0, 132, "test")


class Source:
    """An image that counts how often it is read."""

    def __init__(self, name):
        self.data = (IMAGES / name).read_bytes()
        self.reads = 0

    def __call__(self):
        self.reads += 1
        return self.data


def seen(source, *, pid=1, module=1, connection=1, kernel="add"):
    return KernelSeen(pid, DEVICE, kernel, module, 1, connection=connection, image=source)


def test_an_image_is_read_for_its_first_kernel():
    opened, source = OpenedImages(), Source("sm_90.cubin")
    first = opened.image(seen(source))
    assert opened.image(seen(source, kernel="none")) is first
    assert source.reads == 1
    contents = opened.machine_code(first, seen(source))
    assert opened.machine_code(first, seen(source, kernel="none")) is contents


@pytest.mark.parametrize("other", [{"pid": 2}, {"module": 2}, {"connection": 2}])
def test_other_processes_and_modules_have_other_images(other):
    opened = OpenedImages()
    one, two = Source("sm_90.cubin"), Source("abi7_sm_90.cubin")
    opened.image(seen(one))
    assert opened.image(seen(two, **other)).members[0].data == two.data


def test_kernels_of_more_images_than_were_kept_in_turn():
    """PyTorch's first step takes kernels of forty images, some of them again later."""
    opened = OpenedImages()
    sources = [Source("sm_90.cubin") for _ in range(100)]
    for source in sources:  # the same machine code in all of them
        source.data += bytes(16 * (1 + sources.index(source)))
    for _ in range(2):
        for module, source in enumerate(sources):
            opened.image(seen(source, module=module))
    assert opened.read == len(sources)


def test_what_is_kept_is_bounded_by_its_bytes(monkeypatch):
    source = Source("sm_90.cubin")
    monkeypatch.setattr(images, "_STORED", 3 * len(source.data))
    opened = OpenedImages()
    for module in (1, 2, 3, 1, 4, 1, 2):  # the least recently used goes: 2 for 4
        opened.image(seen(source, module=module))
    assert opened.read == source.reads == 5
    opened.forget(1)
    for module in (1, 2, 3):
        opened.image(seen(source, module=module))
    assert opened.read == 8
    monkeypatch.setattr(images, "_STORED", 1)
    alone = OpenedImages()
    alone.image(seen(source))
    alone.image(seen(source))
    assert alone.read == 1


def test_other_devices_have_other_parts_of_an_image():
    opened, source = OpenedImages(), Source("several.fatbin")
    one = opened.image(seen(source))
    two = opened.image(replace(seen(source), device=DeviceInfo(1, 8, 6, 84, "test")))
    assert (source.reads, one.digest != two.digest) == (2, True)


def test_time_of_opening_is_told():
    opened, source = OpenedImages(), Source("sm_90.cubin")
    image = opened.image(seen(source))
    opened.machine_code(image, seen(source))
    spent = opened.spent_s
    assert spent > 0
    opened.machine_code(opened.image(seen(source)), seen(source))
    assert opened.spent_s == spent


def test_what_a_process_leaves_is_forgotten():
    opened, source = OpenedImages(), Source("sm_90.cubin")
    opened.image(seen(source))
    opened.forget(2)
    opened.image(seen(source))
    assert source.reads == 1
    opened.forget(1)
    opened.image(seen(source))
    assert source.reads == 2


def test_an_image_that_cannot_be_read_is_asked_for_again():
    opened, source = OpenedImages(), Source("sm_90.cubin")

    def gone():
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        opened.image(seen(gone))
    assert opened.image(seen(source)).members


def test_an_image_without_the_kernel():
    opened, source = OpenedImages(), Source("sm_90.cubin")
    wanted = seen(source, kernel="nothing")
    with pytest.raises(UnsupportedError, match="splicing nothing"):
        opened.machine_code(opened.image(wanted), wanted)


def fatbin(arch, content):
    payload = content + bytes(-len(content) % 8)
    entry = struct.pack("<HHIQIIIIQQQQ", 1, 0x101, 64, len(payload), 0, 0, 0, arch, 0, 0x11, 0, 0)
    body = entry + payload
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_members_that_lie_where_another_images_lie_are_not_taken_for_them():
    """One digest: the second image begins with what the device cannot use, and is as long."""
    text = ".version 7.0\n.target sm_{0}\n.address_size 64\n.visible .entry k{0}() {{ ret; }}\n"
    old, new, later = (fatbin(arch, text.format(arch).encode()) for arch in (70, 80, 99))
    one, two = Source("sm_90.cubin"), Source("sm_90.cubin")
    one.data, two.data = old + new, later + old + new
    opened = OpenedImages()
    for module, source in enumerate((one, two)):
        image = opened.image(seen(source, module=module))
        found = {
            opened.ptx(image, seen(source, module=module, kernel=name)).functions[0].name
            for name in ("k70", "k80")
        }
        assert found == {"k70", "k80"}, module


def compressed(content):
    """A fatbin with a cubin that zstd has packed."""
    data = zstandard.ZstdCompressor().compress(content)
    payload = data + bytes(-len(data) % 8)
    head = struct.pack("<H2xIQI8xI8xQ8xQ", 2, 64, len(payload), len(data), 90, 0x8011, len(content))
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64 + len(payload)) + head + payload


@pytest.mark.parametrize("pieces", [0.5, 1.5, 2.5, 10])
def test_images_that_take_the_same_memory_in_turn(monkeypatch, pieces):
    names = ("sm_90.cubin", "abi7_sm_90.cubin", "lineinfo_sm_90a.cubin")
    plain = [Source(name) for name in names]
    largest = max(len(source.data) for source in plain)
    monkeypatch.setattr(images, "_ROOM", int(2 * largest * pieces))
    packed = [Source(name) for name in names]
    for source in packed:
        source.data = compressed(source.data)
    opened, alone = OpenedImages(), OpenedImages()
    chance = random.Random(1)
    for _ in range(40):
        module = chance.randrange(3)
        wanted = seen(packed[module], module=module)
        found = opened.machine_code(opened.image(wanted), wanted)
        expected = seen(plain[module], module=module)
        other = alone.machine_code(alone.image(expected), expected)
        assert put_together(found.parts) == put_together(other.parts) == plain[module].data


@pytest.mark.parametrize("pieces", [0.5, 1.5, 2.5])
def test_images_that_are_opened_ahead_leave_those_alone_that_are_in_use(monkeypatch, pieces):
    """They take the same memory in turn."""
    names = ("sm_90.cubin", "abi7_sm_90.cubin", "lineinfo_sm_90a.cubin")
    plain = [Source(name).data for name in names]
    monkeypatch.setattr(images, "_ROOM", int(2 * max(map(len, plain)) * pieces))
    monkeypatch.setattr(images, "_IMAGES", 2)
    monkeypatch.setattr(images, "_CUBINS", 2)
    opened, done = OpenedImages(), threading.Event()

    def packed(kind, number=0):
        source = Source(names[kind])
        source.data = compressed(source.data + bytes(16 * number))
        return source

    def ahead(first):
        module = first
        while not done.is_set():
            module += 10
            source = packed(module % 3, module % 97)
            wanted = ImageSeen(1, DEVICE, module, "", 1, image=source)
            opened.open_ahead(wanted, lambda _: True)
            opened.let_go(lambda _pid, _connection, number, gone=module: number == gone)

    others = [threading.Thread(target=ahead, args=(first,)) for first in (1000, 1001)]
    for thread in others:
        thread.start()
    try:
        chance = random.Random(1)
        for _ in range(100):
            kind = chance.randrange(3)
            wanted = seen(packed(kind), module=kind)
            found = opened.machine_code(opened.image(wanted), wanted)
            for _ in range(5):
                assert put_together(found.parts) == plain[kind]
                time.sleep(0.0005)
    finally:
        done.set()
        for thread in others:
            thread.join(100)

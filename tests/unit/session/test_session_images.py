"""Images are read once in a process's life, and never taken for another process's."""

from pathlib import Path

import pytest

from egpu.agent.twin import DeviceInfo, KernelSeen
from egpu.errors import UnsupportedError
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

"""Parts of files that messages name."""

import gc
import os
import random

import pytest

from egpu.agent.file_part import FilePart
from egpu.errors import AgentError


def test_slices_are_of_the_part(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    part = FilePart(str(path), 10, 50)
    assert len(part) == 50
    assert part[:4] == bytes(range(10, 14))
    assert part[40:60] == bytes(range(50, 60))  # never past the part
    assert part[60:70] == part[20:10] == b""
    assert part[: len(part)] == bytes(range(10, 60))


@pytest.mark.parametrize("seed", range(5))
def test_any_slices_are_what_slices_of_bytes_are(tmp_path, seed):
    numbers = random.Random(seed)
    data = numbers.randbytes(30_000)
    path = tmp_path / "file"
    path.write_bytes(data)
    part, expected = FilePart(str(path), 1000, 20_000), data[1000:21_000]
    for _ in range(300):
        begin = numbers.randrange(21_000)
        end = begin + numbers.choice([0, 1, 4, 64, 4095, 4096, 4097, 15_000])
        assert part[begin:end] == expected[begin:end]


def test_it_stays_the_same_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    part = FilePart(str(path), 0, 6)
    path.unlink()
    path.write_bytes(b"after!")
    assert part[:6] == b"before"


def test_the_file_is_closed_with_it(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"here")
    gc.collect()  # of earlier tests, lest it comes in between
    before = os.listdir("/proc/self/fd")
    part = FilePart(str(path), 0, 4)
    assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    del part
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_bytes_that_are_not_there(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(AgentError, match=r"cannot read the image in .*No such file"):
        FilePart(str(path), 0, 4)
    path.write_bytes(b"here")
    with pytest.raises(AgentError, match="shorter than the agent says"):
        FilePart(str(path), 1, 4)
    with pytest.raises(AgentError, match=r"cannot read the image in .*Is a directory"):
        FilePart(str(tmp_path), 0, 4)[:4]
    with pytest.raises(AgentError, match="no path of an image"):
        FilePart("a\0b", 0, 4)
    part = FilePart(str(path), 0, 4)
    path.write_bytes(b"he")
    with pytest.raises(AgentError, match="ended while it was read"):
        part[:4]

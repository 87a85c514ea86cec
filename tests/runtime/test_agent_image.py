"""How long an image is, from its headers only."""

import os
import shutil
import struct
import subprocess

import agent_harness as harness
import pytest


@pytest.fixture(scope="module", params=["plain", "sanitized"])
def measure(request):
    program = harness.build(request.param) / "tests" / "agent_unit_image"

    def run(*arguments):
        environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split("\n")[:-1]

    return run


def elf(sections=(), size=None, **fields):
    """A little-endian ELF64 of the given sections (type, offset, size), table at the end."""
    body = max([64, *(offset + length for kind, offset, length in sections if kind != 8)])
    header = {"shoff": body, "shnum": len(sections), "shentsize": 64, **fields}
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, header["shoff"], 0, 64, 56, 0,
                        header["shentsize"], header["shnum"], 0)  # fmt: skip
    table = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, k, 0, 0, o, n, 0, 0, 0, 0) for k, o, n in sections
    )
    return head.ljust(body, b"\0") + table if size is None else head.ljust(size, b"\0")


def fatbin(payload, header=16):
    return struct.pack("<IHHQ", 0xBA55ED50, 1, header, len(payload)).ljust(header, b"\0") + payload


@pytest.mark.parametrize(
    ("data", "length"),
    [
        (fatbin(b"x" * 100), 116),
        (fatbin(b"x" * 100, header=24), 124),
        (fatbin(b"x" * 100) + fatbin(b"y" * 50), 116),  # the second is another module's
        (fatbin(b""), 16),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 62), 0),  # a claim that cannot be
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 8, 100), 0),
        (elf([(0, 0, 0), (1, 64, 100)]), 64 + 100 + 128),
        (elf([(0, 0, 0), (8, 64, 1 << 30)]), 64 + 128),  # NOBITS has no bytes
        (elf(shoff=1 << 60, shnum=3), 0),
        (elf(), 64),
        (b".version 8.0\n.target sm_80\n\0", 28),
        (b"\0", 0),
    ],
)
def test_length(measure, tmp_path, data, length):
    path = tmp_path / "image"
    path.write_bytes(data)
    assert measure(path) == [str(length)]


def test_wrapper(measure, tmp_path):
    path = tmp_path / "image"
    path.write_bytes(fatbin(b"x" * 40))
    assert measure("wrapper", path) == ["56"]


@pytest.mark.skipif(not shutil.which("nvcc") and not os.path.exists("/usr/local/cuda/bin/nvcc"),
                    reason="no nvcc on this machine")  # fmt: skip
def test_what_nvcc_writes(measure, tmp_path):
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    source = tmp_path / "k.cu"
    source.write_text("__device__ int g; extern __shared__ int s[];\n"
                      "__global__ void k(int *p) { s[0] = g; *p = s[threadIdx.x]; }\n")  # fmt: skip
    made = []
    for kind in ("-fatbin", "-cubin"):
        out = tmp_path / f"k.{kind[1:]}"
        subprocess.run([nvcc, kind, "-arch=sm_90", "-o", out, source], check=True)
        made.append(out)
    assert measure(*made) == [str(path.stat().st_size) for path in made]

"""Machine code to splice, assembled by ptxas, and the vendor's disassembler to judge with."""

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

KERNELS = Path(__file__).parent / "kernels"
ARCHS = ("80", "86", "89", "90")


def _tool(name):
    wheel = Path(sysconfig.get_path("purelib")) / "nvidia"
    places = [shutil.which(name), f"/usr/local/cuda/bin/{name}", *wheel.glob(f"*/bin/{name}")]
    return next((os.fspath(place) for place in places if place and Path(place).exists()), None)


PTXAS, NVDISASM = _tool("ptxas"), _tool("nvdisasm")
needs_tools = pytest.mark.skipif(
    PTXAS is None or NVDISASM is None, reason="needs ptxas and nvdisasm (the cuda extra)"
)


@functools.cache
def assemble(text, arch, *options):
    """A cubin of PTX; the test fails with what ptxas says."""
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "source.ptx"), Path(folder, "output.cubin")
        source.write_text(text)
        words = [PTXAS, f"-arch={arch}", "--disable-optimizer-constants", *options]
        done = subprocess.run(
            [*words, source, "-o", output], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return output.read_bytes()


def runs_on(text, arch):
    target = re.search(r"^\.target\s+(\w+)", text, re.MULTILINE)[1]
    return target == f"sm_{arch}a" if target.endswith("a") else int(target[3:]) <= int(arch)


def cubin(stem, arch):
    """The cubin of a PTX file of the corpus for "80" ... "90" (its own target if that has an a)."""
    text = (KERNELS / f"{stem}.ptx").read_text()
    suffix = "a" if re.search(r"^\.target\s+\w+a\b", text, re.MULTILINE) else ""
    options = ("-g",) if ", debug" in text else ()
    return assemble(text, f"sm_{arch}{suffix}", *options)


@dataclass(frozen=True)
class Line:
    """One instruction as the disassembler sees it."""

    offset: int
    text: str
    word: int

    @property
    def name(self):
        return re.sub(r"^@!?\w+\s+", "", self.text).split()[0]


_LOW = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;\s+/\* 0x([0-9a-f]{16}) \*/\s*$")
_HIGH = re.compile(r"^\s+/\* 0x([0-9a-f]{16}) \*/\s*$")
_TEXT = re.compile(r"^\.text\.(\S+):")
_cache = {}


# Said of cubins of ABI version 7, and all that is: each instruction is read as in newer ones.
_OLD_FORMAT = (
    "nvdisasm warning : Disassembling Std Elf to Old format or Old Elf to Std format not supported "
    "yet, switching to Old format\n"
    "nvdisasm warning : Dataflow analysis disabled due to previous warnings\n"
)
_ABI_VERSION = 8  # the byte of the ELF header
_OLD_ABI = 7


def disassembled(data):
    """Instructions by section name; the test fails if the disassembler objects to anything."""
    key = hashlib.sha256(data).digest()
    if key not in _cache:
        _cache[key] = _disassemble(data)
    return _cache[key]


def _disassemble(data):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(data)
        file.flush()
        done = subprocess.run(
            [NVDISASM, "-c", "-hex", file.name], capture_output=True, text=True, check=False
        )
    warned = _OLD_FORMAT if data[_ABI_VERSION] == _OLD_ABI else ""
    assert (done.returncode, done.stderr) in ((0, ""), (0, warned)), done.stderr
    found, section, low = {}, None, None
    for line in done.stdout.splitlines():
        if match := _TEXT.match(line):
            section = found.setdefault(match[1], [])
        elif match := _LOW.match(line):
            low = match
        elif (match := _HIGH.match(line)) and low:
            word = int(match[1], 16) << 64 | int(low[3], 16)
            section.append(Line(int(low[1], 16), low[2], word))
            low = None
    return found

"""Programs, and an assembler to judge PTX with, for the code generator's tests."""

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import AttachKind, AttachPoint, Level, MapSpec
from egpu.verifier import verify
from egpu.verifier.verified import Policy

GOLDEN = Path(__file__).resolve().parents[2] / "golden/codegen"
ARCHES = (80, 90, 120)

PER_SM = MapSpec("hits", MapType.PERCPU_ARRAY, 4, 8, 4)
ARRAY = MapSpec("totals", MapType.ARRAY, 4, 12, 3)
RING = MapSpec("events", MapType.RINGBUF, 0, 0, 4096)

COUNT = """
stw [%r10-4], 2
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -4
call 1
jeq %r0, 0, done
ldxdw %r1, [%r0]
add %r1, 3
stxdw [%r0], %r1
done:
mov %r0, 0
exit
"""

OUTPUT = """
stdw [%r10-24], 11
stdw [%r10-16], 22
stdw [%r10-8], 33
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -24
mov %r3, {size}
mov %r4, 0
call 130
exit
"""


def entry(level=Level.THREAD):
    return AttachPoint(AttachKind.ENTRY, "*", level)


def leave(level=Level.THREAD):
    return AttachPoint(AttachKind.EXIT, "*", level)


def probe(text, *maps, points=None):
    """A program verified for probing, by default at kernel entry."""
    attach = (entry(),) if points is None else points
    return verify(program_from_code(assemble(text), "p", maps=maps, attach=attach))


def executable(text, *maps, memory=0):
    """A program verified for execution, with ``memory`` bytes behind r1."""
    program = program_from_code(assemble(text), "p", maps=maps)
    return verify(program, policy=Policy.EXECUTOR, memory_size=memory)


def find_ptxas():
    """ptxas from PATH, the toolkit or the nvidia wheel, None without one."""
    wheel = Path(sysconfig.get_path("purelib")) / "nvidia"
    places = [shutil.which("ptxas"), "/usr/local/cuda/bin/ptxas", *wheel.glob("*/bin/ptxas")]
    return next((str(place) for place in places if place and Path(place).exists()), None)


PTXAS = find_ptxas()
needs_ptxas = pytest.mark.skipif(PTXAS is None, reason="no ptxas on PATH, in CUDA or in a wheel")


def assemble_ptx(text, folder, arch):
    """Assemble a module; the test fails with what ptxas says."""
    source = folder / "module.ptx"
    source.write_text(text)
    done = subprocess.run(
        [PTXAS, f"-arch=sm_{arch}", source, "-o", folder / f"module.{arch}.cubin"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def in_kernel(*codes, version="6.2", target="sm_70"):
    """A module whose kernel holds probe texts next to each other and one inside another's scope,
    with numbers for their symbols."""
    texts = [re.sub(r"__egpu_\w+(?=;)", "64", code.text) for code in codes]
    scopes = "".join(f"{{\n{text}}}\n" for text in texts)
    return (
        f".version {version}\n.target {target}\n.address_size 64\n.visible .entry k() {{\n"
        f".reg .b64 %rd<4>;\nmov.b64 %rd1, 1;\n{scopes}"
        f"{{\n{texts[0]}{{\n{texts[-1]}}}\n}}\nret;\n}}\n"
    )


def same_as_golden(name, text):
    """``text`` is what the golden file holds; EGPU_UPDATE_GOLDEN=1 writes it instead."""
    path = GOLDEN / f"{name}.ptx"
    if os.environ.get("EGPU_UPDATE_GOLDEN") == "1":
        path.write_text(text)
    assert text == path.read_text()

"""Single kernels out of cubins, in C: damaged ones, under sanitizers too."""

import os
import subprocess
from pathlib import Path

import agent_harness as harness
import pytest

from egpu.errors import EgpuError
from egpu.image.cubin_facts import Answer
from egpu.session.assemble import Assembler, find_ptxas

IMAGES = Path(__file__).parents[1] / "unit" / "images"
CUBINS = ("sm_80.cubin", "sm_90.cubin", "abi7_sm_90.cubin", "lineinfo_sm_90a.cubin")


@pytest.fixture(scope="module", params=["plain", "sanitized"])
def damage(request):
    program = harness.build(request.param) / "tests" / "image_unit_cubin"

    def run(*images):
        environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
        done = subprocess.run(
            [program, *images], capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr
        return dict(zip(Answer, map(int, done.stdout.split()), strict=True))

    return run


def test_damaged_cubins_are_answered_within_their_bytes(damage):
    answers = damage(*(IMAGES / name for name in CUBINS))
    assert answers.pop(Answer.ROOM) == answers.pop(Answer.NO_MEMORY) == 0
    assert answers[Answer.DONE] > 20000
    assert min(answers.values()) > 0


def test_what_ptxas_writes_here(damage, tmp_path):
    try:
        assembler = Assembler(find_ptxas())
        text = (IMAGES / "kernels.ptx").read_text()
        cubin = assembler.machine_code(text, "sm_90")
    except EgpuError as error:
        pytest.skip(str(error))
    path = tmp_path / "kernels.cubin"
    path.write_bytes(cubin)
    assert damage(path)[Answer.DONE] > 1000


@pytest.mark.parametrize("kind", ["plain", "sanitized"])
def test_code_is_looked_through_within_its_bytes(kind):
    program = harness.build(kind) / "tests" / "image_unit_code"
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "as bit by bit\n"), done.stderr

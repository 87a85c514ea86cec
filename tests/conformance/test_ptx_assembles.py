"""Every program of the conformance suite as PTX: ptxas takes the executor's modules."""

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from egpu.bpf.conformance import read_case
from egpu.bpf.insn import program_from_code
from egpu.codegen import compile_executor_ptx
from egpu.verifier import Policy, verify

ROOT = Path(__file__).resolve().parents[2]
OWN = sorted((ROOT / "tests/conformance/cases").glob("*.data"))
PUBLIC = sorted((ROOT.parent / "shared/conformance/tests").glob("*.data"))
# Every arch of ptxas 13.0; each landing tries three of them.
ARCHES = [80, 90, 120] + [
    pytest.param(arch, marks=pytest.mark.long) for arch in (75, 86, 87, 88, 89, 100, 103, 110, 121)
]
REFUSED = {"callx"}  # call through a register: no executor has it
CASES = [path for path in OWN + PUBLIC if path.stem not in REFUSED]


def find_ptxas():
    wheel = Path(sysconfig.get_path("purelib")) / "nvidia"
    places = [shutil.which("ptxas"), "/usr/local/cuda/bin/ptxas", *wheel.glob("*/bin/ptxas")]
    return next((place for place in places if place and Path(place).exists()), None)


def module_of(path):
    case = read_case(path)
    program = program_from_code(case.code(), case.name)
    return compile_executor_ptx(
        verify(program, policy=Policy.EXECUTOR, memory_size=len(case.memory))
    )


@pytest.fixture(scope="module")
def modules():
    return [module_of(path) for path in CASES]


def test_head(modules):
    heads = {text.split(".address_size 64")[0].split("//\n")[-1].strip() for text in modules}
    assert heads == {".version 6.2\n.target sm_70"}


def test_only_a_kernel_each(modules):
    for text in modules:
        assert text.count(".entry egpu_exec(") == 1
        assert not re.search(
            r"\.(global|const|shared|func|extern)\b(?! *\.?[bus]\d*\.)", body(text)
        )


def body(text):
    """The module without its instructions: declarations start a line.  The header of zeros that
    stands for a launch is there for programs that ask for the time."""
    header = ".global .align 16 .b8 egpu_exec_header["
    lines = [line for line in text.splitlines() if line.startswith(".")]
    return "\n".join(line for line in lines if not line.startswith(header))


@pytest.mark.parametrize("arch", ARCHES)
def test_ptxas_takes_all_of_them(modules, arch, tmp_path):
    ptxas = find_ptxas()
    if ptxas is None:
        pytest.skip("no ptxas on PATH, in CUDA or in a wheel")
    # One run for all, as a run costs 30 ms: the kernels get names of their own.
    parts = [modules[0].split(".address_size 64")[0] + ".address_size 64\n"]
    for number, text in enumerate(modules):
        rest = text.split(".address_size 64")[1].replace("egpu_exec", f"egpu_exec_{number}")
        parts.append(rest.replace("__local_depot", f"__local_{number}_"))
    source = tmp_path / "all.ptx"
    source.write_text("".join(parts))
    done = subprocess.run(
        [ptxas, f"-arch=sm_{arch}", source, "-o", tmp_path / "all.cubin"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

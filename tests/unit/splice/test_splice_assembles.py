"""ptxas accepts every twin of every kernel of the corpus, for sm_80, sm_90 and sm_120."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from llvmlite import binding
from splice_probes import ENTRY, EVERYTHING, LAYOUT, count

from egpu.errors import UnsupportedError
from egpu.image.ptx import parse
from egpu.splice import ptxas_arguments, splice_ptx

KERNELS = Path(__file__).parent / "kernels"
ARCHS = (80, 90, 120)
EVERY_ARCH = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
PTXAS = shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")

# Kernels that cannot be spliced with an exit probe, and why.
REFUSED = {
    "leaves_inside": "_Z5leavei ends the thread at line",
    "function_table": "reads the address of function",
    "foreign_pointer": "calls through a pointer from memory at line",
}


def runs_on(target, arch):
    """Whether PTX for ``target`` can be assembled for ``arch``."""
    return target == f"sm_{arch}a" if target.endswith("a") else int(target[3:]) <= arch


every_kernel = pytest.mark.parametrize(
    ("path", "kernel"),
    [
        pytest.param(path, function.name, id=f"{path.stem}-{function.name}")
        for path in sorted(KERNELS.glob("*.ptx"))
        for function in parse(path.read_text()).functions
        if function.is_entry and function.body is not None
    ],
)


def assemble(text, target, arch, folder):
    source, output = folder / "twin.ptx", folder / "twin.cubin"
    source.write_text(text)
    arguments = ptxas_arguments(target, arch, source=os.fspath(source), output=os.fspath(output))
    done = subprocess.run([PTXAS, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


needs_ptxas = pytest.mark.skipif(PTXAS is None, reason="no ptxas on this machine")


@needs_ptxas
@every_kernel
def test_ptxas_accepts_the_twin(path, kernel, tmp_path):
    module = parse(path.read_text())
    if kernel in REFUSED:
        with pytest.raises(UnsupportedError, match=REFUSED[kernel]):
            splice_ptx(module, kernel, EVERYTHING, LAYOUT)
        return
    image = splice_ptx(module, kernel, EVERYTHING, LAYOUT)
    assert parse(image.text).entry(kernel).parameters[-1].offset == image.hidden_offset
    for arch in ARCHS:
        if runs_on(module.target, arch):
            assert assemble(image.text, image.target, arch, tmp_path) == ""


@needs_ptxas
@pytest.mark.long
@every_kernel
def test_ptxas_accepts_the_twin_for_every_arch(path, kernel, tmp_path):
    if kernel in REFUSED:
        pytest.skip("cannot be spliced, see test_ptxas_accepts_the_twin")
    module = parse(path.read_text())
    image = splice_ptx(module, kernel, EVERYTHING, LAYOUT)
    for arch in EVERY_ARCH:
        if runs_on(module.target, arch):
            assemble(image.text, image.target, arch, tmp_path)


LLVM_IR = """
target triple = "nvptx64-nvidia-cuda"
@total = addrspace(1) global i32 0, align 4
@table = internal addrspace(4) constant [4 x i32] [i32 1, i32 2, i32 3, i32 4], align 4
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
define ptx_kernel void @llvm_kernel(ptr addrspace(1) %out, i32 %n) {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %inside = icmp ult i32 %t, %n
  br i1 %inside, label %work, label %leave
work:
  %low = and i32 %t, 3
  %entry = getelementptr i32, ptr addrspace(4) @table, i32 %low
  %value = load i32, ptr addrspace(4) %entry, align 4
  %old = atomicrmw add ptr addrspace(1) @total, i32 %value monotonic
  store i32 %old, ptr addrspace(1) %out, align 4
  switch i32 %value, label %leave [ i32 1, label %fault i32 2, label %leave ]
fault:
  call void asm sideeffect "exit;", ""()
  unreachable
leave:
  ret void
}
"""


@needs_ptxas
@pytest.mark.parametrize("cpu", ["sm_80", "sm_90a"])
def test_ptxas_accepts_the_twin_of_what_llvm_emits(cpu, tmp_path):
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = binding.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(cpu=cpu)
    module = parse(target.emit_assembly(binding.parse_assembly(LLVM_IR)))
    image = splice_ptx(module, "llvm_kernel", EVERYTHING, LAYOUT)
    assert set(image.globals) == {"total", "table"}
    assert image.exit_sites >= 2
    assemble(image.text, cpu, 80 if cpu == "sm_80" else 90, tmp_path)


@needs_ptxas
def test_the_parameter_limits_are_those_of_ptxas(tmp_path):
    """The last size that egpu accepts assembles; ptxas refuses the next, so the limit is exact."""
    for version, limit in (("8.0", 4352), ("8.1", 32764)):
        fits = (limit - 32) // 8 * 8
        text = (
            f".version {version}\n.target sm_80\n.address_size 64\n"
            ".visible .entry k(.param .align 8 .b8 p[{}]) {{ ret; }}\n"
        )
        image = splice_ptx(parse(text.format(fits)), "k", (count(ENTRY),), LAYOUT)
        assert image.hidden_offset == fits
        assemble(image.text, image.target, 80, tmp_path)
        with pytest.raises(UnsupportedError, match=f"more do not fit into {limit}"):
            splice_ptx(parse(text.format(fits + 8)), "k", (count(ENTRY),), LAYOUT)
        with pytest.raises(AssertionError, match=r"[Pp]aram"):
            assemble(text.format(limit + 8), "sm_80", 80, tmp_path)

"""Programs whose files are built anew, or go, while they run: twins are of what was loaded."""

import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_runtime_cli import PATIENCE
from test_runtime_cli import pytestmark as built

import egpu

PROGRAM = Path(__file__).parents[1] / "gpu" / "probes" / "identity.bpf.o"
pytestmark = [built, pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")]

PTX = """.version 7.0
.target sm_80
.address_size 64
.visible .entry %s(.param .u64 out)
{
  .reg .b64 %%rd<2>;
  ld.param.u64 %%rd1, [out];
  st.global.u32 [%%rd1], %d;
  ret;
}
"""

# An image in a library's constants (or a file of its own), loaded and launched in steps.
WORKLOAD = """
import ctypes, sys
from ctypes import byref
cuda, path = ctypes.CDLL("libcuda.so.1"), sys.argv[1]
steps, answers = open(sys.argv[2]), open(sys.argv[3], "w")
def say(text):
    print(text, file=answers, flush=True)
def step(text):
    say(text)
    steps.readline()
def call(name, *arguments):
    assert getattr(cuda, name)(*arguments) == 0, name
context, module, function, out = (ctypes.c_void_p() for _ in range(4))
result, size = ctypes.c_uint(), ctypes.c_size_t(4)
library = ctypes.CDLL(path) if path.endswith(".so") else None
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", byref(out), size)
step("opened")
if library:
    image = ctypes.addressof(ctypes.c_char.in_dll(library, "image"))
    call("cuModuleLoadData", byref(module), ctypes.c_void_p(image))
else:
    call("cuModuleLoad", byref(module), path.encode())
step("loaded")
call("cuModuleGetFunction", byref(function), module, b"store")
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(out))
call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, None, parameters, None)
call("cuCtxSynchronize")
call("cuMemcpyDtoH_v2", byref(result), out, size)
say(result.value)
"""


def fatbin(text):
    """Of which the session hears before it is loaded."""
    payload = text.encode() + bytes(-len(text) % 8)
    head = struct.pack("<HHIQIIIIQQQQ", 1, 0x101, 64, len(payload), 0, 0, 0, 80, 0, 0x11, 0, 0)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(head + payload)) + head + payload


def make(path, number):
    """A file that did not exist before, with a kernel that stores ``number``."""
    text = PTX % ("store", number)
    if path.suffix == ".so":
        image = path.with_suffix(".in")
        image.write_bytes(fatbin(text) if path.stem == "fatbin" else text.encode())
        source = path.with_suffix(".c")
        source.write_text(
            '__asm__(".section .rodata\\n.global image\\n.balign 64\\nimage:\\n'
            f'.incbin \\"{image}\\"\\n.byte 0\\n.previous\\n");'
        )
        new = path.with_suffix(".new")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(new), str(source)], check=True)
    else:
        new = path.with_suffix(".new")
        new.write_text(text)
    os.replace(new, path)


@pytest.mark.parametrize(
    ("name", "when", "what", "probed"),
    [
        ("image.so", "never", "", True),
        ("image.so", "opened", "replace", True),  # the image is copied from memory then
        ("image.so", "opened", "remove", True),
        ("image.so", "loaded", "replace", False),
        ("image.so", "loaded", "remove", False),
        ("fatbin.so", "never", "", True),
        ("fatbin.so", "opened", "replace", True),
        ("fatbin.so", "loaded", "replace", False),
        ("fatbin.so", "loaded", "remove", False),
        ("image.ptx", "never", "", True),
        ("image.ptx", "loaded", "replace", False),
        ("image.ptx", "loaded", "remove", False),
    ],
)
def test_a_file_that_changes_while_it_runs(tmp_path, name, when, what, probed):
    """The kernel that was loaded stores 1; the file that takes its place has one that stores 2."""
    path, script = tmp_path / name, tmp_path / "workload.py"
    make(path, 1)
    script.write_text(WORKLOAD)
    commands, answers = tmp_path / "commands", tmp_path / "answers"
    os.mkfifo(commands)
    os.mkfifo(answers)
    argv = [sys.executable, str(script), str(path), str(commands), str(answers)]
    options = egpu.Options(simulated=True)
    with (
        egpu.run(argv, programs=PROGRAM, options=options) as session,
        commands.open("w") as to,
        answers.open() as said,
    ):
        for step in ("opened", "loaded"):
            assert said.readline() == f"{step}\n"
            if step == when and what == "remove":
                path.unlink()
            elif step == when:
                make(path, 2)
            print(file=to, flush=True)
        assert said.readline() == "1\n"
        assert session.wait(PATIENCE) == 0
        (kernel,) = session.kernels()
        assert kernel.probed == int(probed)
        why = f"{path} has been changed or removed since the kernel was loaded from it"
        assert list(kernel.refusals) == ([] if probed else [why])


@pytest.mark.parametrize(
    ("kernels", "launched", "images"), [("*", False, 1), ("*", True, 1), ("s*", False, 0)]
)
def test_images_are_opened_ahead_where_every_kernel_is_probed(tmp_path, kernels, launched, images):
    """What is read ahead counts as read, whether a kernel is launched or not; with other globs
    nothing is read before that."""
    path, script = tmp_path / "fatbin.so", tmp_path / "workload.py"
    make(path, 1)
    script.write_text(WORKLOAD)
    commands, answers = tmp_path / "commands", tmp_path / "answers"
    commands.write_text("")
    argv = [sys.executable, str(script), str(path), str(commands), str(answers)]
    if not launched:
        script.write_text(WORKLOAD.replace('step("loaded")', 'step("loaded")\nsys.exit()'))
    options = egpu.Options(simulated=True, kernels=kernels)
    with egpu.run(argv, programs=PROGRAM, options=options) as session:
        assert session.wait(PATIENCE) == 0
        end = time.monotonic() + PATIENCE
        while session.cost().images < images and time.monotonic() < end:
            time.sleep(0.01)
        assert session.cost().images == images
        assert [kernel.probed for kernel in session.kernels()] == ([1] if launched else [])

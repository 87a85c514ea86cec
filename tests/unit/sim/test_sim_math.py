"""The compiler's own mathematical functions, as nvcc expands them, against Python's."""

import math
import shutil
import subprocess

import numpy as np
import pytest
from sim_kernels import Device

from egpu.image.ptx import parse

SINGLE = {
    "expf": math.exp,
    "sinf": math.sin,
    "cosf": math.cos,
    "logf": math.log,
    "tanhf": math.tanh,
    "erff": math.erf,
    "cbrtf": np.cbrt,
    "lgammaf": math.lgamma,
}
DOUBLE = {"exp": math.exp, "sin": math.sin, "log": math.log, "cbrt": np.cbrt, "erf": math.erf}
COUNT = 512


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on PATH")
    lines = []
    for kind, names in (("float", SINGLE), ("double", DOUBLE)):
        lines += [
            f'extern "C" __global__ void k_{name}(const {kind} *a, {kind} *b)'
            f"{{ int i = blockIdx.x * 128 + threadIdx.x; b[i] = {name}(a[i]); }}"
            for name in names
        ]
    folder = tmp_path_factory.mktemp("math")
    (folder / "math.cu").write_text("\n".join(lines))
    command = [nvcc, "-ptx", "-arch=sm_75", "-o", str(folder / "math.ptx"), str(folder / "math.cu")]
    subprocess.run(command, check=True, timeout=120)
    return parse((folder / "math.ptx").read_text())


@pytest.mark.parametrize("name", [*SINGLE, *DOUBLE])
def test_function(module, name):
    dtype, function = (np.float32, SINGLE[name]) if name in SINGLE else (np.float64, DOUBLE[name])
    values = (np.random.default_rng(51).random(COUNT) * 20 + 0.1).astype(dtype)
    values[:3] = [1e6, 12345.678, 1e-5] if name in ("sinf", "cosf", "sin") else [1, 2, 3]
    device = Device()
    source, target = device.put(values), device.put(np.zeros(COUNT, dtype))
    params = source.to_bytes(8, "little") + target.to_bytes(8, "little")
    device.machine.launch(module, f"k_{name}", (COUNT // 128, 1, 1), (128, 1, 1), params)
    expected = np.array([function(value) for value in values.tolist()])
    tolerance = 2e-6 if dtype is np.float32 else 1e-14
    assert np.allclose(device.get(target), expected, rtol=tolerance, atol=tolerance)

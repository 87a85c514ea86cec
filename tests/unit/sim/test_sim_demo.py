"""The demo's kernels, as nvcc compiled them, against numpy."""

import struct
from pathlib import Path

import numpy as np
import pytest
from sim_kernels import Device

from egpu.image.ptx import parse

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def module():
    return parse((ROOT / "workloads/demo/kernels.ptx").read_text())


def launch(device, module, name, shape, layout, *params):
    grid, block = ((*each, 1, 1)[:3] for each in shape)
    return device.machine.launch(module, name, grid, block, struct.pack(layout, *params))


def test_vector_add_of_a_million(module):
    rng = np.random.default_rng(41)
    n = 1_000_003
    device = Device()
    x, y = (rng.standard_normal(n).astype(np.float32) for _ in range(2))
    a, b, out = device.put(x), device.put(y), device.put(np.zeros(n, np.float32))
    report = launch(device, module, "vecadd", ((-(-n // 256),), (256,)), "<3Qi", a, b, out, n)
    assert report.threads == -(-n // 256) * 256
    assert (device.get(out) == x + y).all()


def test_matrix_product(module):
    rng = np.random.default_rng(42)
    n = 57
    device = Device()
    # small integers: every order of the sums gives the same float
    x, y = (rng.integers(-9, 9, (n, n)).astype(np.float32) for _ in range(2))
    a, b, out = device.put(x), device.put(y), device.put(np.zeros((n, n), np.float32))
    name = "_Z6matmulILi16EEvPKfS1_Pfi"
    launch(device, module, name, ((4, 4), (16, 16)), "<3Qi", a, b, out, n)
    assert (device.get(out).reshape(n, n) == x @ y).all()


@pytest.mark.parametrize("block", [32, 128, 1024])
def test_reduction(module, block):
    rng = np.random.default_rng(43)
    values = rng.integers(0, 1 << 32, 10_007, dtype=np.uint32)
    device = Device()
    a, total = device.put(values), device.put(np.zeros(1, np.uint64))
    launch(device, module, "reduce_sum", ((6,), (block,)), "<2Qi", a, total, len(values))
    assert device.get(total)[0] == values.sum(dtype=np.uint64)


def test_histogram(module):
    rng = np.random.default_rng(44)
    values = rng.integers(0, 256, 30_011, dtype=np.uint8)
    device = Device()
    a, bins = device.put(values), device.put(np.zeros(64, np.uint32))
    launch(device, module, "histogram", ((6,), (192,)), "<2Qi", a, bins, len(values))
    assert device.get(bins).tolist() == np.bincount(values % 64, minlength=64).tolist()


def collatz(value, limit):
    if value == 0:
        return 0xFFFFFFFF
    count = 0
    while value != 1:
        if count == limit:
            return limit | 0x80000000
        value = value // 2 if value % 2 == 0 else (3 * value + 1) & 0xFFFFFFFF
        count += 1
    return count


def test_divergent_exits(module):
    start = np.random.default_rng(45).integers(0, 5000, 1000).astype(np.uint32)
    device = Device()
    a, out = device.put(start), device.put(np.zeros(1000, np.uint32))
    name = "_ZN4demo7collatzEPKjPjij"
    launch(device, module, name, ((11,), (96,)), "<2QiI", a, out, 1000, 100)
    assert device.get(out).tolist() == [collatz(value, 100) for value in start.tolist()]

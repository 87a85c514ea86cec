"""Twins on the simulated device: same results as the original, every thread counted once.

Original and twin run on the same inputs in two memories; the twin's table holds the addresses of
the original module's variables, as the agent fills it.
"""

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from splice_probes import COUNT, ENTRY, EXIT, LAYOUT, code, value

from egpu.codegen.device_code import Relocation, RelocKind
from egpu.image.ptx import parse
from egpu.sim import DeviceMemory, Machine
from egpu.splice import splice_ptx

KERNELS = Path(__file__).parent / "kernels"
RANDOM = np.random.default_rng(7)
ENTERED, LEFT = (place.offset for place in LAYOUT.places)
LAUNCH = Relocation(RelocKind.LAUNCH, 0)
PROBES = (
    code(COUNT, LAUNCH, Relocation(RelocKind.MAP, 0), kind=ENTRY),
    code(
        COUNT.replace("__egpu_map_0", "__egpu_map_1"),
        LAUNCH,
        Relocation(RelocKind.MAP, 1),
        kind=EXIT,
    ),
)


def numbers(count, kind=np.int32, low=-50, high=50):
    return RANDOM.integers(low, high, count).astype(kind)


# kernel: (module, grid, block, dynamic shared, arguments); arrays are passed by address
F = np.float32
CASES = {
    "vector_add": (
        "plain", (3, 1, 1), (96, 1, 1), 0,
        ("PPPi", numbers(250, F), numbers(250, F), np.zeros(250, F), 250),
    ),
    "matmul": (
        "plain", (2, 2, 1), (16, 16, 1), 0,
        ("PPPi", numbers(1024, F), numbers(1024, F), np.zeros(1024, F), 32),
    ),
    "reduce": ("plain", (3, 1, 1), (64, 1, 1), 0, ("PPi", numbers(180), numbers(1), 180)),
    "histogram": (
        "plain", (2, 1, 1), (257, 1, 1), 1024,
        ("PPi", numbers(2000, np.uint8, 0, 256), np.zeros(256, np.uint32), 2000),
    ),
    "early_exits": ("plain", (1, 1, 1), (33, 1, 1), 0, ("Pi", np.arange(-3, 30, dtype=np.int32)
                                                       % 7 - 2, 7)),
    "no_parameters": ("plain", (5, 2, 1), (31, 2, 1), 0, ("",)),
    "switch_table": ("plain", (1, 1, 1), (32, 1, 1), 0, ("Pi", numbers(16), 3)),
    "inline_scopes": ("plain", (1, 1, 1), (40, 1, 1), 0, ("P", numbers(64))),
    "by_value": (
        "plain", (1, 1, 1), (32, 1, 1), 0,
        ("12sb19x64sPh6xd", bytes(range(1, 13)), 2, struct.pack("<6db15x", 1, 2, 3, 4, 5, 6, 7),
         np.zeros(32, F), 1, 2.5),
    ),
    "_Z5scaleIfLi4EEvPT_S0_": ("plain", (1, 1, 1), (9, 1, 1), 0, ("Pf", numbers(36, F), 1.5)),
    "globals": ("module", (2, 1, 1), (64, 1, 1), 0, ("Pi", numbers(16, F), 9)),
    "constant_pointer": ("module", (1, 1, 1), (32, 1, 1), 0, ("Pi", numbers(32, F), 7)),
    "add_kernel": (
        "triton", (2, 1, 1), (128, 1, 1), 16,
        ("PPi4xPP", numbers(1024), np.zeros(1024, np.int32), 700, 0, 0),
    ),
    "debugged": ("debug", (1, 1, 1), (64, 1, 1), 0, ("Pi", numbers(64), 40)),
}  # fmt: skip


class Run:
    """One memory with the case's arrays and the original module's variables."""

    def __init__(self, module, arguments):
        self.memory = DeviceMemory()
        self.machine = Machine(self.memory)
        self.globals = self.machine.globals(module)
        for position, variable in enumerate(module.variables):
            if variable.name in self.globals and not variable.initializer:
                pattern = struct.pack("<f", position + 0.5) * (variable.size // 4)
                self.memory.write(self.globals[variable.name], pattern)
        self.sizes = {v.name: v.size for v in module.variables if v.name in self.globals}
        self.arrays = []
        layout, *values = arguments
        for index, argument in enumerate(values):
            if isinstance(argument, np.ndarray):
                address = self.memory.allocate(argument.nbytes)
                self.memory.write(address, argument.tobytes())
                self.arrays.append((address, argument.nbytes))
                values[index] = address
        self.params = struct.pack("@" + layout, *values)

    def state(self):
        """Every byte that the kernel can have written."""
        places = [*self.arrays, *((self.globals[name], size) for name, size in self.sizes.items())]
        return [self.memory.read(address, size) for address, size in places]

    def launch_twin(self, image, module, grid, block, shared):
        twin = parse(image.text)
        arena = self.memory.allocate(LAYOUT.device_size)
        if image.globals:
            table = self.machine.globals(twin)[image.globals_table]
            addresses = [self.globals[name] for name in image.globals]
            self.memory.write(table, struct.pack(f"<{len(addresses)}Q", *addresses))
        params = self.params.ljust(image.hidden_offset, b"\0")[: image.hidden_offset]
        params += struct.pack("<4Q", arena, 0, 1, 0)
        self.machine.launch(twin, image.kernel, grid, block, params, dynamic_shared=shared)
        return arena

    def word(self, address):
        return struct.unpack("<Q", self.memory.read(address, 8))[0]


def load(name):
    return parse((KERNELS / f"{name}.ptx").read_text())


@pytest.mark.parametrize("kernel", CASES)
def test_same_results_and_exact_counts(kernel):
    source, grid, block, shared, arguments = CASES[kernel]
    module = load(source)
    original, probed = Run(module, arguments), Run(module, arguments)
    before = original.state()
    original.machine.launch(module, kernel, grid, block, original.params, dynamic_shared=shared)
    image = splice_ptx(module, kernel, PROBES, LAYOUT)
    arena = probed.launch_twin(image, module, grid, block, shared)
    assert probed.state() == original.state()
    assert original.state() != before or kernel == "no_parameters"
    threads = int(np.prod(grid)) * int(np.prod(block))
    assert probed.word(arena + ENTERED) == threads
    assert probed.word(arena + LEFT) == threads


def test_original_and_twin_share_their_globals():
    source, grid, block, shared, arguments = CASES["globals"]
    module = load(source)
    run = Run(module, arguments)
    run.memory.write(run.globals["counter"], bytes(4))
    image = splice_ptx(module, "globals", PROBES, LAYOUT)
    for _ in range(2):
        run.machine.launch(module, "globals", grid, block, run.params)
        run.launch_twin(image, module, grid, block, shared)
    assert struct.unpack("<i", run.memory.read(run.globals["counter"], 4)) == (4 * 128,)


PARAMETER_VALUES = {
    (RelocKind.PARAMETER, 0): bytes(range(1, 9)),
    (RelocKind.PARAMETER, 1): b"\x02",
    (RelocKind.PARAMETER, 2): struct.pack("<d", 1),
    (RelocKind.PARAMETER, 4): struct.pack("<h", 1),
    (RelocKind.PARAMETER, 5): struct.pack("<d", 2.5),
    (RelocKind.PARAM_BYTES, 6): bytes(range(7, 13)) + b"\x02\0",
    (RelocKind.PARAM_BYTES, 33): struct.pack("<d", 1)[1:] + b"\0",
    (RelocKind.PARAM_BYTES, 1000): b"",
    (RelocKind.PARAM_SIZE, 0): struct.pack("<Q", 120),
    (RelocKind.LAUNCH, 16): b"\1",
    (RelocKind.LAUNCH, 24): b"",
}


@pytest.mark.parametrize(("kind", "index"), PARAMETER_VALUES)
def test_symbols_have_the_values_of_the_launch(kind, index):
    """Parameters of a kernel with by-value and over-aligned structures, read by a probe."""
    source, grid, _block, shared, arguments = CASES["by_value"]
    module = load(source)
    run = Run(module, arguments)
    for at in (ENTRY, EXIT):
        image = splice_ptx(module, "by_value", (value(kind, index, at=at),), LAYOUT)
        arena = run.launch_twin(image, module, grid, (1, 1, 1), shared)
        expected = PARAMETER_VALUES[kind, index].ljust(8, b"\0")
        assert run.memory.read(arena, 8) == expected


def test_start_values_are_those_of_the_entry():
    module = load("plain")
    run = Run(module, CASES["no_parameters"][4])
    probe = value(RelocKind.START_CLOCK, at=EXIT)
    probe = replace(
        probe,
        text=probe.text.replace(
            "st.global", "mov.u64 %w, %clock64; sub.u64 %v, %w, %v; st.global"
        ).replace("%v; mov", "%v; .reg .b64 %w; mov", 1),
    )
    image = splice_ptx(module, "no_parameters", (probe,), LAYOUT)
    arena = run.launch_twin(image, module, (1, 1, 1), (1, 1, 1), 0)
    assert 0 < run.word(arena) < 100

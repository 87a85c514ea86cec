"""Damaged cubins: one kernel of them is taken, checked and put together, or they are refused."""

import random
from pathlib import Path

import pytest

from egpu.errors import EgpuError
from egpu.image.cubin import open_cubin
from egpu.image.cubin_alone import alone
from egpu.image.cubin_contents import contents_of
from egpu.image.cubin_edit import put_together, read_symbols
from egpu.image.cubin_kernel import open_kernel
from egpu.splice.sass_code import Code
from egpu.splice.sass_functions import called_registers
from egpu.splice.sass_globals import share_globals
from egpu.splice.sass_kernel import check_kernel, code_around, lowest_register_limit

IMAGES = Path(__file__).parents[1] / "unit" / "images"
ROUNDS = 1500


def damaged(data, chance):
    """Some bytes changed, half of them in the tables of headers."""
    bytes_ = bytearray(data)
    tables = int.from_bytes(data[40:48], "little")
    for _ in range(chance.choice((1, 1, 2, 4))):
        begin = tables if chance.random() < 0.5 else 0
        at = chance.randrange(begin, len(bytes_))
        bytes_[at] = chance.choice(
            (0, 1, 255, chance.randrange(256), bytes_[at] ^ 1 << chance.randrange(8))
        )
    return bytes(bytes_)


def everything_before_probes(data):
    contents = contents_of(open_cubin(data))
    parts = alone(contents, "add")
    kernel = open_kernel(parts, "add")
    code = Code.of(parts.parts[kernel.text].data)
    check_kernel(parts, kernel, code, contents.parts.cubin.arch, ())
    code_around(parts, kernel, code)
    share_globals(parts, kernel, read_symbols(parts), code)
    called_registers(parts)
    lowest_register_limit(code)
    put_together(parts)


@pytest.mark.parametrize("name", ["sm_80.cubin", "sm_90.cubin", "abi7_sm_90.cubin"])
def test_damaged_cubins_are_refused_or_taken(name):
    data = (IMAGES / name).read_bytes()
    chance = random.Random(name)
    refused = 0
    for _ in range(ROUNDS):
        try:
            everything_before_probes(damaged(data, chance))
        except EgpuError:
            refused += 1
    assert 0 < refused < ROUNDS

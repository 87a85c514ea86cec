"""Programs of the shape of bpftime's examples, on the simulated device, under a libbpf loader."""

import pytest
from examples import EXAMPLES
from running import run_loaded

from egpu.bpf.helpers import HELPERS
from egpu.bpf.maptypes import MapType, traits


def name_of(example):
    return f"{example.number:02}-{example.program}-{example.app}"


def not_there_yet(example):
    """What egpu does not have yet of what an example needs, "" if it has everything."""
    if example.ring and traits(MapType.GPU_RINGBUF).storage is None:
        return "maps of type 1527"
    if "--allow-control" in example.needs and not HELPERS[507].body:
        return "helper 507, bpf_cuda_exit"
    return ""


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_example(example, built):
    if built.loader is None:
        pytest.skip("there is no libbpf.so.1 on this machine")
    if missing := not_there_yet(example):
        pytest.skip(f"egpu has no {missing} yet")
    example.check(example, run_loaded(example, built, "--sim"))

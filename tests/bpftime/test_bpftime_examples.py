"""Programs of the shape of bpftime's examples, on the simulated device: by egpu itself, and under a
libbpf loader."""

import pytest
from examples import EXAMPLES
from running import HERE, PTX, egpu, run_direct, run_loaded

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


def skip_unfit(example):
    if missing := not_there_yet(example):
        pytest.skip(f"egpu has no {missing} yet")


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_by_itself(example, built):
    skip_unfit(example)
    place = EXAMPLES.index(example)
    example.check(example, run_direct(place, example, built, "--sim"))


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_under_a_loader(example, built):
    skip_unfit(example)
    if built.loader is None:
        pytest.skip("there is no libbpf.so.1 on this machine")
    example.check(example, run_loaded(example, built, "--sim"))


def test_a_program_that_meets_no_kernel_is_reported(built):
    """Silence would look like a kernel that did nothing."""
    workload = [built.workload, "add4", "--ptx", PTX]
    done = egpu("run", "--sim", HERE / "programs" / "threadhist.bpf.o", "--", *workload)
    assert done.returncode == 0, done.stderr
    assert "No launch of a kernel that the probes match was seen." in done.stdout


def test_names_without_the_prefix_are_verified():
    """20: rocm-counter, whose workload needs another vendor's device."""
    path = HERE / "programs" / "rocm_counter.bpf.o"
    done = egpu("verify", path)
    assert done.returncode == 0, done.stdout
    assert "probe (kprobe/_Z9vectorAddPKfS0_Pf): accepted" in done.stdout

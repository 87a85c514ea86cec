"""Programs of the shape of bpftime's examples, on the simulated device: by egpu itself, and under a
libbpf loader."""

import pytest
from examples import EXAMPLES
from host_side import HOSTED, hosted
from running import HERE, PTX, egpu, run_direct, run_loaded


def name_of(example):
    return f"{example.number:02}-{example.program}-{example.app}"


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_by_itself(example, built):
    place = EXAMPLES.index(example)
    example.check(example, run_direct(place, example, built, "--sim"))


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_under_a_loader(example, built):
    if built.loader is None:
        pytest.skip("there is no libbpf.so.1 on this machine")
    example.check(example, run_loaded(example, built, "--sim"))


@pytest.mark.parametrize("place", HOSTED, ids=lambda place: name_of(EXAMPLES[place]))
@pytest.mark.parametrize("loader", [False, True], ids=["alone", "loader"])
def test_with_their_programs_on_the_host(place, loader, built):
    """6 to 8: the host's clock is ahead of the simulated device's, so that no sample is late."""
    if loader and built.loader is None:
        pytest.skip("there is no libbpf.so.1 on this machine")
    found = hosted(place, built, simulated=True, loader=loader)
    assert found == ("" if EXAMPLES[place].number == 6 else "0:30")


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

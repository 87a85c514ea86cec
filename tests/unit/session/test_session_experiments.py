"""What is off unless somebody asks for it."""

from pathlib import Path

import pytest

from egpu import session
from egpu.agent.twin import DeviceInfo, KernelSeen, Refused, Twin
from egpu.bpf.object import read_object
from egpu.errors import UnsupportedError
from egpu.image import list_kernels, open_image
from egpu.maps import plan
from egpu.session.assemble import Assembler, find_ptxas
from egpu.session.attached import ProbeSet
from egpu.session.twins import TwinBuilder
from egpu.verifier import verify

ROOT = Path(__file__).resolve().parents[3]
HASHES = ROOT / "tests" / "gpu" / "probes" / "hashes.bpf.o"
TOOLS = ROOT / "src" / "egpu" / "tools"
CUBIN = next(iter(sorted((ROOT / "tests" / "unit" / "images").glob("*sm_90*.cubin"))))


def test_hash_maps_on_a_real_device():
    with pytest.raises(UnsupportedError, match=r"HASH on a real GPU.*--hash-maps"):
        session.run(["true"], programs=HASHES, options=session.Options(simulated=False))


def builder(machine_code):
    obj = read_object((TOOLS / "kernelcount" / "kernelcount.bpf.o").read_bytes(), "kernelcount")
    return TwinBuilder(
        ProbeSet([verify(program) for program in obj.programs]),
        Assembler(find_ptxas()),
        None,
        lambda device: plan(obj.maps, device.sm_count),
        allow_occupancy_loss=False,
        machine_code=machine_code,
    )


def test_machine_code():
    data = CUBIN.read_bytes()
    kernel = list_kernels(open_image(data).members[0])[0].name
    seen = KernelSeen(1, DeviceInfo(0, 9, 0, 132, "test"), kernel, 1, 1, image=lambda: data)
    refused = builder(machine_code=False).resolve(seen)
    assert isinstance(refused, Refused)
    assert "only machine code" in refused.reason
    assert "--machine-code" in refused.reason
    if find_ptxas() is None:
        pytest.skip("no ptxas: the probes cannot be assembled")
    twin = builder(machine_code=True).resolve(seen)
    assert isinstance(twin, Twin)
    assert twin.image.startswith(b"\x7fELF")

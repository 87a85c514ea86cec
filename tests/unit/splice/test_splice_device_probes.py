"""The probes of the device checks, spliced into the machine code that these run: what the checks
take for refused is refused, for that reason, and nothing else is."""

import sys
from pathlib import Path

import pytest
from sass_corpus import assemble, needs_tools

from egpu.bpf.object import read_object
from egpu.image import list_kernels, open_image
from egpu.session.cache import Way
from egpu.session.trial import Trials

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests" / "gpu"))
from ways import REFUSED  # noqa: E402 - the path above comes first

pytestmark = needs_tools


@pytest.mark.parametrize(
    "name", ["identity", "stacks", "per_thread", "callbacks", "prints", "reads"]
)
def test_a_probe_of_the_device_checks(name):
    cubin = assemble((ROOT / "workloads" / "demo" / "kernels.ptx").read_text(), "sm_90")
    probe = ROOT / "tests" / "gpu" / "probes" / f"{name}.bpf.o"
    (member,) = open_image(cubin).members
    trials = Trials([read_object(probe.read_bytes(), name)])
    rows = [trials.of(member, kernel) for kernel in list_kernels(member)]
    asked = [row for row in rows if row.reason != "no program asks for it"]
    assert asked
    for row in asked:
        if name in REFUSED:
            assert row.way is Way.NONE
            assert REFUSED[name] in row.reason
        else:
            assert (row.way, row.reason) == (Way.MACHINE_CODE, "")

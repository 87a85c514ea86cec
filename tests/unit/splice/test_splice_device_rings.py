"""Records into rings in device memory, as machine code in a kernel."""

from pathlib import Path

import pytest
from sass_corpus import ARCHS, assemble, cubin, disassembled, needs_tools

from egpu.bpf.object import read_object
from egpu.codegen import compile_probe
from egpu.maps import plan
from egpu.session.arrivals import verify_all
from egpu.session.objects import combine
from egpu.splice.sass import splice_sass

pytestmark = needs_tools
RECORDS = Path(__file__).resolve().parents[3] / "bench" / "probes" / "records.bpf.o"


def spliced(arch, *, on_device):
    collection = combine([read_object(RECORDS.read_bytes(), RECORDS.name)])
    if on_device:
        collection = collection.with_rings_on_device()
    codes = tuple(
        compile_probe(each, point=each.program.attach[0])
        for each in verify_all(collection.programs)
    )
    made = splice_sass(
        cubin("plain", arch), "vector_add", codes, plan(collection.maps, 132), assemble
    )
    return [line.text for line in disassembled(made.image)["vector_add"]]


@pytest.mark.parametrize("arch", ARCHS)
def test_what_publishes_waits_for_the_device_only(arch):
    """A flag is stored behind a fence of the device's scope; nothing waits for the host."""
    lines = spliced(arch, on_device=True)
    flags = [n for n, text in enumerate(lines) if "STG.E.U16.STRONG.GPU" in text]
    assert flags
    for flag in flags:
        assert any("MEMBAR" in text and "GPU" in text for text in lines[max(0, flag - 12) : flag])
    assert not any("SYS" in text for text in lines)
    assert any("SYS" in text for text in spliced(arch, on_device=False))

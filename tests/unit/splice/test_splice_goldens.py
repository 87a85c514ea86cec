"""Twins as text, one construct each: tests/golden/ptx/NAME.ptx becomes NAME.twin.

``UPDATE_GOLDENS=1`` writes them anew; the difference is then to be read like code.
"""

import os
from pathlib import Path

import pytest
from splice_probes import ENTRY, EXIT, LAYOUT, code

from egpu.codegen.device_code import Relocation, RelocKind
from egpu.image.ptx import parse
from egpu.splice import splice_ptx

GOLDENS = Path(__file__).parents[2] / "golden" / "ptx"
NAMES = sorted(path.stem for path in GOLDENS.glob("*.ptx"))
COUNT = Relocation(RelocKind.MAP, 0)
LAUNCH = Relocation(RelocKind.LAUNCH, 0)
START = Relocation(RelocKind.START_CLOCK)
PROBES = (
    code(
        ".reg .b64 %rd<3>;\nmov.b64 %rd1, __egpu_launch_0;\nmov.b64 %rd2, __egpu_map_0;\n"
        "add.s64 %rd1, %rd1, %rd2;\nred.global.add.u64 [%rd1], 1;",
        LAUNCH,
        COUNT,
        kind=ENTRY,
    ),
    code(
        ".reg .b64 %rd<3>;\nmov.b64 %rd1, __egpu_launch_0;\nmov.b64 %rd2, __egpu_start_clock;\n"
        "red.global.max.u64 [%rd1], %rd2;",
        LAUNCH,
        START,
        kind=EXIT,
    ),
)


@pytest.mark.parametrize("name", NAMES)
def test_twin(name):
    image = splice_ptx(parse((GOLDENS / f"{name}.ptx").read_text()), "k", PROBES, LAYOUT)
    summary = (
        f"// hidden_offset {image.hidden_offset}, parameters {image.parameters}, "
        f"sites {image.entry_sites} + {image.exit_sites}\n"
        f"// globals {', '.join(image.globals) or '-'}\n"
        f"// uncovered {'; '.join(image.uncovered) or '-'}\n"
    )
    golden = GOLDENS / f"{name}.twin"
    if os.environ.get("UPDATE_GOLDENS"):
        golden.write_text(summary + image.text)
    assert summary + image.text == golden.read_text()


def test_there_are_goldens():
    assert len(NAMES) >= 6

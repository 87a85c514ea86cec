"""The generated header."""

import re
from pathlib import Path

from egpu.bpf.context import FIELDS
from egpu.bpf.header import default_path, header_text, main
from egpu.bpf.helpers import HELPERS
from egpu.bpf.maptypes import MapType

# Named, because the package under test may be an installed one.
ROOT = Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "bpf" / "include" / "egpu.bpf.h"


def test_committed_header_is_current(capsys):
    assert main(["--check", str(COMMITTED)]) == 0
    assert capsys.readouterr().err == ""


def test_check_tells_a_stale_header(tmp_path, capsys):
    path = tmp_path / "old.h"
    path.write_text(header_text() + "\n")
    assert main(["--check", str(path)]) == 1
    assert "is stale" in capsys.readouterr().err
    assert main(["--check", str(tmp_path / "absent.h")]) == 1
    assert main([str(path)]) == 0
    assert main(["--check", str(path)]) == 0


def test_every_row_is_in_it():
    text = header_text()
    for helper in HELPERS.values():
        assert helper.name in text
        assert f"(void *){helper.id};" in text or helper.missing in text
    for kind in MapType:
        assert f"#define BPF_MAP_TYPE_{kind.name} {kind.value}" in text
    for row in FIELDS:
        if row.offset >= 168:
            assert f"__builtin_offsetof(struct egpu_ctx, {row.name}) == {row.offset}" in text


def test_licence_and_place():
    assert header_text().startswith("/* SPDX-License-Identifier: (Apache-2.0 OR MIT) */")
    assert default_path().parts[-3:] == ("bpf", "include", "egpu.bpf.h")


def test_flags_that_the_guide_names_are_in_it():
    """Nothing else needs to be included."""
    named = set()
    for page in ("guide", "maps"):
        named |= set(re.findall(r"\bBPF_F_\w+", (ROOT / "docs" / f"{page}.md").read_text()))
    named -= {"BPF_F_STACK_BUILD_ID"}  # refused
    assert "BPF_F_CURRENT_CPU" in named
    defined = set(re.findall(r"^#define (\w+) ", header_text(), re.MULTILINE))
    assert named - defined == set()

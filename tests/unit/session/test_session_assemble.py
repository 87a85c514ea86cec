"""Registers of a twin: held to what the kernel takes by itself."""

import os
import re
import stat

import pytest

from egpu.session.assemble import Assembler, Ptxas, find_ptxas

# Says what it was asked to say: "free", "alone" and "held" registers, spilled bytes of the last.
SCRIPT = """#!/bin/sh
echo "$*" >> {log}
case "$*" in
    *maxrregcount*) used={held} spilled={spilled} ;;
    *) used={free} spilled=0; if grep -q alone twin.ptx; then used={alone}; fi ;;
esac
echo "$used" > twin.cubin
echo "    8 bytes stack frame, $spilled bytes spill stores, 0 bytes spill loads" >&2
echo "ptxas info    : Used $used registers, used 0 barriers" >&2
"""


@pytest.fixture
def made(tmp_path):
    def make(*, sites=1, **numbers):
        path, log = tmp_path / "ptxas", tmp_path / "log"
        log.unlink(missing_ok=True)
        path.write_text(SCRIPT.format(log=log, **numbers))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        image = Assembler(Ptxas(str(path), "1")).assemble(
            "twin", "sm_80", 90, original=lambda: "alone", sites=sites
        )
        return int(image), log.read_text().splitlines()

    return make


@pytest.mark.parametrize(
    ("numbers", "used", "runs"),
    [
        ({"free": 32, "alone": 12, "held": 0, "spilled": 0}, 32, 1),  # costs no block
        ({"free": 40, "alone": 34, "held": 0, "spilled": 0}, 40, 2),  # in the kernel's own step
        ({"free": 41, "alone": 34, "held": 40, "spilled": 0}, 40, 3),
        ({"free": 40, "alone": 12, "held": 32, "spilled": 64}, 32, 3),
        ({"free": 40, "alone": 12, "held": 32, "spilled": 68}, 40, 3),
    ],
)
def test_a_twin_is_held_to_the_kernels_step(made, numbers, used, runs):
    got, log = made(**numbers)
    assert (got, len(log)) == (used, runs)
    if runs == 3:
        limit = int(re.search(r"-maxrregcount=(\d+)", log[-1])[1])
        assert limit == max(32, -(-numbers["alone"] // 8) * 8)


@pytest.mark.parametrize(("spilled", "used"), [(128, 32), (132, 40)])
def test_every_site_may_spill(made, spilled, used):
    got, _ = made(sites=2, free=40, alone=12, held=32, spilled=spilled)
    assert got == used


KERNEL = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{
  .reg .b64 %rd<3>;
  .reg .f32 %f<80>;
  ld.param.u64 %rd1, [p];
BODY
  ret;
}
"""


@pytest.mark.parametrize("variable", ["PATH", "EGPU_PTXAS"])
def test_a_relative_path_leads_to_the_same_place_from_everywhere(monkeypatch, tmp_path, variable):
    script = tmp_path / "tools" / "ptxas"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\necho version 1\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EGPU_PTXAS", raising=False)
    given = {"PATH": f"tools:{os.environ['PATH']}", "EGPU_PTXAS": "tools/ptxas"}[variable]
    monkeypatch.setenv(variable, given)
    assert find_ptxas() == Ptxas(str(script), "version 1")


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas here")
def test_ptxas_is_understood():
    loads = [f"  ld.volatile.global.f32 %f{n}, [%rd1+{4 * n}];" for n in range(60)]
    stores = [f"  st.volatile.global.f32 [%rd1+{4 * n}], %f{n};" for n in range(60)]
    large = KERNEL.replace("BODY", "\n".join(loads + stores))
    small = KERNEL.replace("BODY", "")
    assembler = Assembler(find_ptxas())
    asked = []

    def original():
        asked.append(1)
        return small

    image = assembler.assemble(large, "sm_80", 80, original=original)
    # 60 values at once do not fit into 32 registers without spilling more than a few.
    assert image == assembler.assemble(large, "sm_80", 80)
    assert asked == [1]
    assembler.assemble(small, "sm_80", 80, original=original)
    assert asked == [1]

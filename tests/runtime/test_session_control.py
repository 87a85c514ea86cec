"""Probes that end threads, on the simulated device: what then does not happen, and where not."""

import json
from dataclasses import replace

import pytest
from test_runtime_cli import DEMO, ROOT, egpu, pytestmark, workload

from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.maptypes import MapType
from egpu.bpf.object import read_object
from egpu.bpf.program import AttachKind, AttachPoint, Level, MapSpec
from egpu.codegen import compile_probe
from egpu.errors import UnsupportedError, VerifierError
from egpu.session import Options, run
from egpu.verifier import Policy, verify

__all__ = ["pytestmark"]
PROGRAM = ROOT / "tests" / "gpu" / "probes" / "ending.bpf.o"


def test_threads_end_before_they_do_anything():
    size = 777
    done = egpu(
        "run", PROGRAM, "--sim", "--allow-control", "--json", "--", *workload(launches=1, size=size)
    )
    assert done.returncode == 1  # the demo's own verdict
    # vecadd leaves every third element as it was, which is right for the first: 0 + 0.
    assert f"vecadd{'':31}1 launches  grid 4x1  block 256x1  WRONG: {-(-size // 3) - 1} values" in (
        done.stdout
    )
    assert done.stdout.count(" ok\n") == 4
    totals, report = map(json.loads, done.stdout.strip().splitlines()[-2:])
    threads = totals["kernels"]["vecadd"]["threads"]
    counted = {row["key"]: row["value"] for row in report["maps"]["threads"]}
    assert counted == {0: threads - -(-threads // 3), 1: -(-threads // 3)}


def test_without_permission_nothing_starts():
    done = egpu("run", PROGRAM, "--sim", "--", *workload())
    assert done.returncode == 1
    assert "allow it with --allow-control" in done.stderr
    assert "vecadd" not in done.stdout


def everywhere():
    """The program at every kernel."""
    obj = read_object(PROGRAM.read_bytes(), "ending")
    (program,) = obj.programs
    return replace(obj, programs=(replace(program, attach=(AttachPoint(AttachKind.ENTRY, "*"),)),))


def test_kernels_whose_threads_work_together_run_as_they_are():
    options = Options(simulated=True, allow_control=True)
    with run([str(DEMO / "demo")], programs=everywhere(), options=options) as session:
        session.wait()
        reasons = {report.kernel: report.reason for report in session.twins()}
    together = {kernel for kernel, reason in reasons.items() if "work together: " in reason}
    assert together == {"_Z6matmulILi16EEvPKfS1_Pfi", "reduce_sum", "histogram"}
    assert {kernel for kernel, reason in reasons.items() if not reason} == reasons.keys() - together


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        (AttachKind.EXIT, Level.THREAD),
        (AttachKind.ENTRY, Level.WARP),
        (AttachKind.ENTRY, Level.BLOCK),
    ],
)
def test_only_entry_probes_of_every_thread_end_threads(kind, level):
    (program,) = everywhere().programs
    point = AttachPoint(kind, "*", level)
    verified = verify(replace(program, attach=(point,)), policy=Policy.CONTROL)
    with pytest.raises(UnsupportedError, match="every thread runs"):
        compile_probe(verified, point=point)


def test_a_record_is_not_left_behind():

    text = """
    lddw %r1, map_index 0
    mov %r2, 8
    mov %r3, 0
    call 131
    jeq %r0, 0, none
    call 507
    none:
    mov %r0, 0
    exit
    """
    ring = MapSpec("ring", MapType.RINGBUF, 0, 0, 4096)
    made = program_from_code(
        assemble(text), maps=(ring,), attach=(AttachPoint(AttachKind.ENTRY, "*"),)
    )
    with pytest.raises(VerifierError, match="while it holds a record"):
        verify(made, policy=Policy.CONTROL)

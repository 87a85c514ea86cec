"""Resident blocks by the vendor's rules, and what explanations are made of."""

import pytest

from egpu.agent.protocol import Reason
from egpu.agent.stats import resident_of
from egpu.agent.twin import DeviceInfo, ProcessStats, SlotStats, TwinState
from egpu.session.cache import Way
from egpu.session.explain import explain, without_resources
from egpu.session.occupancy import blocks_per_sm
from egpu.session.twins import TwinReport


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks"),
    [
        (90, 256, 32, 0, 8),  # 2,048 threads
        (90, 256, 33, 0, 6),  # 40 registers are taken: 48 warps
        (90, 256, 64, 0, 4),
        (90, 1024, 64, 0, 1),
        (90, 1024, 65, 0, 0),  # cannot be launched
        (90, 32, 16, 0, 32),  # blocks of an SM
        (90, 128, 16, 100_000, 2),
        (90, 128, 16, 116_000, 1),
        (86, 256, 32, 0, 6),  # 1,536 threads
        (75, 256, 32, 0, 4),
        (89, 32, 16, 0, 24),
        (90, 96, 255, 0, 2),
        (90, 33, 32, 0, 32),
        (60, 256, 32, 0, None),
        (90, 0, 32, 0, None),
        (90, 256, 0, 0, None),
    ],
)
def test_blocks_of_an_sm(arch, threads, registers, shared, blocks):
    assert blocks_per_sm(arch, threads=threads, registers=registers, shared=shared) == blocks


H200 = DeviceInfo(0, 9, 0, 132, "NVIDIA H200")


def slot(kernel, *, twin=None, refusals=(), **fields):
    numbers = dict.fromkeys(
        ("launches", "threads", "blocks", "probed", "probed_threads", "probed_blocks", "captured",
         "captured_probed", "failed"), 0)  # fmt: skip
    reasons = fields.pop("not_probed", {})
    return SlotStats(
        slot=1, kernel=kernel, not_probed=reasons, refusals=refusals, twin=twin, **numbers | fields
    )


def process(*slots):
    return ProcessStats(1, (), False, 0, 0, 0, 0, slots)


def test_before_and_after():
    state = TwinState(1, 1, 0, "", 32, 40, 1024, 1024, 0, 16)
    seen = slot("k", twin=state, launches=5, threads=5 * 512, blocks=10, probed=4,
                not_probed={Reason.OCCUPANCY: 1})  # fmt: skip
    report = TwinReport(0, "k", False, "", 1, 2, (), 3.5, False, Way.MACHINE_CODE)
    (row,) = explain([process(seen)], [report], [H200])
    assert (row.way, row.seen, row.probed, row.block) == (Way.MACHINE_CODE, 5, 4, 256)
    assert (row.registers_before, row.registers_after) == (32, 40)
    assert (row.local_before, row.local_after) == (0, 16)
    assert (row.blocks_before, row.blocks_after) == (8, 6)
    assert row.why_not == ("twin has fewer resident blocks",)
    (bare,) = without_resources([row])
    assert (bare.registers_after, bare.blocks_after, bare.way) == (0, None, Way.MACHINE_CODE)


def test_the_drivers_own_answer_is_taken():
    state = TwinState(1, 1, 0, "", 32, 40, 1024, 1024, 0, 0)
    word = 49_152 | 128 << 32 | 4 << 48 | 3 << 56
    assert resident_of(0) is None
    seen = slot("k", twin=state, launches=1, threads=128, blocks=1, resident=resident_of(word))
    report = TwinReport(0, "k", False, "", 1, 1, way=Way.PTX)
    (row,) = explain([process(seen)], [report], [H200])
    assert (row.block, row.dynamic_shared, row.blocks_before, row.blocks_after) == (
        128, 49_152, 4, 3)  # fmt: skip


def test_what_was_refused_or_not_asked_for():
    refused = slot("r", launches=2, refusals=("no PTX in it",), not_probed={Reason.REFUSED: 2})
    other = slot("o", launches=9, not_probed={Reason.UNMATCHED: 9})
    unused = slot("", launches=0)
    report = TwinReport(0, "r", False, "no PTX in it")
    rows = explain([process(refused, other, unused)], [report], [])
    assert [(row.kernel, row.way, row.why_not) for row in rows] == [
        ("o", Way.NONE, ("no link asks for it",)),
        ("r", Way.NONE, ("no PTX in it",)),
    ]


def test_a_kernel_of_several_processes_is_one():
    rows = explain([process(slot("k", launches=1)), process(slot("k", launches=2))], [], [])
    assert [(row.kernel, row.seen) for row in rows] == [("k", 3)]

"""From what agents counted to what reports show."""

from egpu.agent.twin import KernelStats
from egpu.tools.running import kernels_of

COUNTERS = (
    "seen",
    "probed",
    "threads",
    "blocks",
    "threads_probed",
    "blocks_probed",
    "captured",
    "captured_probed",
    "failed",
    "registers_before",
    "registers_after",
)


def stats(name, kernel_id=0, **fields):
    numbers = dict.fromkeys(COUNTERS, 0)
    return KernelStats(name, kernel_id, not_probed={}, refusals=(), **(numbers | fields))


def test_recorded_launches_count_as_seen():
    (row,) = kernels_of(
        [stats("_Z4vaddPf", 3, seen=10, probed=8, captured=2, captured_probed=1, threads_probed=99)]
    )
    assert row.name == "vadd(float*)"
    assert (row.kernel_id, row.seen, row.probed, row.captured) == (3, 12, 9, 2)
    assert row.threads_probed == 99
    assert row.partial


def test_kernels_without_a_twin_have_ids_of_their_own():
    rows = kernels_of([stats("a", -1, seen=1), stats("b", -1, seen=2), stats("", -1)])
    assert len({row.kernel_id for row in rows}) == 3
    assert all(row.kernel_id < 0 for row in rows)
    assert [row.name for row in rows] == ["b", "a", "(kernels past the agent's table)"]


def test_reasons_are_in_order():
    row = stats("k", seen=3)
    row.not_probed.update({"twin not ready in time": 1, "detached": 2})
    (shown,) = kernels_of([row])
    assert shown.not_probed == (("detached", 2), ("twin not ready in time", 1))

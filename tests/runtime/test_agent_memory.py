"""The agent's table of device memory, as the stand-in driver sees it when memory comes and goes."""

import re

import agent_harness as harness
import pytest

from egpu.agent.protocol import Feature
from egpu.bpf.own_maps import ALLOCATIONS_HEADER, ALLOCATIONS_LIMIT, ALLOCATIONS_ROW

TABLE = ALLOCATIONS_HEADER + 2 * ALLOCATIONS_LIMIT * ALLOCATIONS_ROW
BASE, UNIT, SIZE = 0x700000000000, 1 << 21, 4096


@pytest.fixture(scope="module", params=["plain", "sanitized"])
def folder(request):
    return harness.build(request.param)


@pytest.fixture
def memory(folder, tmp_path):
    """Runs a scene of agent_memory: the driver's log of it, and what the agent said."""
    broker = harness.Broker()
    broker.table = TABLE
    bench = harness.Bench(folder, tmp_path)

    def run(scene, *, bind="proc", features=Feature.ALLOCATIONS, **more):
        more |= {"MOCK_ARENA": str(harness.DEVICE_SIZE + TABLE)}
        more |= {"MOCK_TABLE": str(harness.DEVICE_SIZE), "EGPU_TEST_BIND": bind}
        with bench.server(broker, features=features) as server:
            command = bench.command(scene, program="agent_memory")
            result = bench.finish(bench.start(server.socket_path, command=command, **more))
            assert server.drain(harness.PATIENCE)
        assert (result.returncode, result.out.split()[-1:]) == (0, ["done"]), result.err
        return result

    yield run
    broker.close()


def rows(call):
    """(start, size) of what a line of the log says of the table."""
    found = re.findall(r" ([0-9a-f]+)\+(\d+)", call.partition(" rows")[2])
    return [(int(start, 16), int(size)) for start, size in found]


def tables(result, when):
    return [rows(call) for call in result.of(f"table at {when}:")]


def given(result):
    """(start, size) of what pools gave, in that order."""
    found = [re.search(r" ([0-9a-f]+)\+(\d+)$", call) for call in result.of("pool-alloc")]
    return [(int(each[1], 16), int(each[2])) for each in found]


def merged(pieces):
    """Pieces in order, neighbours as one, as the table has them."""
    made = []
    for start, size in sorted(pieces):
        if made and sum(made[-1]) == start:
            made[-1] = (made[-1][0], made[-1][1] + size)
        else:
            made.append((start, size))
    return made


@pytest.mark.parametrize("bind", ["proc", "dlsym"])
def test_memory_of_pools_is_known_until_the_call_that_frees_it(memory, bind):
    result = memory("pools", bind=bind)
    pieces = given(result)
    names = [call.split()[0] for call in result.of("pool-alloc")]
    assert names == ["pool-alloc", "pool-alloc", "pool-alloc-ptsz", "pool-alloc-from-ptsz"]
    assert tables(result, "launch") == [[], merged(pieces), []]
    freed = [merged(pieces[1:]), merged(pieces[2:]), []]
    assert tables(result, "pool free") == freed
    assert tables(result, "free")[0] == merged(pieces[3:])


def test_memory_of_a_graph_is_not_known(memory):
    result = memory("captured")
    assert len(given(result)) == 1
    assert tables(result, "launch") == [[], []]


def test_a_pool_of_another_device_is_known_while_that_may_read_it(memory):
    result = memory("peers")
    _, second, own = given(result)
    assert tables(result, "launch") == [[], [], [], merged([second, own]), [own]]
    assert tables(result, "pool access") == [[], [own]]


def test_mappings_are_known_while_their_device_may_read_them(memory):
    result = memory("mappings")
    both, right = [(BASE, 2 * UNIT)], [(BASE + UNIT, UNIT)]
    assert tables(result, "launch") == [[], [], [], both, right, [], []]
    assert tables(result, "access") == [[], [], [], []]  # taken before, given after
    assert tables(result, "unmap") == [right, []]
    assert tables(result, "address free") == [[]]


def test_access_that_is_refused_is_not_had(memory):
    result = memory("refused", MOCK_FAIL="cuMemSetAccess")
    assert tables(result, "launch") == [[], []]


def test_mappings_of_other_memory_are_not_known(memory):
    result = memory("unknown")
    assert len(result.of("map ")) == 4
    assert tables(result, "launch") == [[], []]


def test_memory_stays_until_those_who_read_by_the_old_table_have_read(memory):
    result = memory("readers")
    steps = [
        call for call in result.calls if re.match("the reader|table at (pool free|unmap)", call)
    ]
    assert [step.split(":")[0] for step in steps] == [
        "the reader leaves",
        "table at pool free",
        "the reader leaves",
        "table at unmap",
    ]
    assert result.complaints == []


def test_each_context_has_its_own_table(memory):
    result = memory("contexts")
    (piece,) = given(result)
    mapping = (BASE, UNIT)
    first, loaded, *later = tables(result, "launch")
    assert (first, loaded) == ([], [])
    assert later == [[mapping], merged([mapping, piece]), [], []]


def test_mappings_and_pools_are_not_known_after_a_primary_context(memory):
    result = memory("ended")
    (piece,) = given(result)
    own = (int(result.out.split()[0], 16), SIZE)  # of another context, by cuMemAlloc
    *before, last = tables(result, "launch")
    assert before == [[], [], merged([(BASE, UNIT), piece, own])]
    assert last == [own]


def test_more_than_the_table_holds(memory):
    result = memory("full")
    counts = [int(call.split(" rows")[0].split()[-1]) for call in result.of("table at launch")]
    assert counts == [0, ALLOCATIONS_LIMIT, 4090]
    assert result.complaints == [
        f"egpu: over {ALLOCATIONS_LIMIT} allocations: probes cannot read the others"
    ]


def test_no_table_without_its_feature(memory):
    result = memory("pools", features=Feature(0))
    assert tables(result, "launch") == [[], [], []]
    assert len(given(result)) == 4

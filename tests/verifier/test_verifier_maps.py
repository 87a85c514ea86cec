"""Map types as the verifier sees them: who takes which, and what a call may cost."""

import pytest
from verifier_programs import ENTRY

from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.maptypes import HASH_WINDOW, MAP_TRAITS, MapType
from egpu.bpf.program import MapSpec
from egpu.errors import VerifierError
from egpu.verifier import verify

HASH = MapSpec("h", MapType.HASH, 8, 16, 10)
CALL = """
stdw [%r10-8], 1
stdw [%r10-24], 2
stdw [%r10-16], 3
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -8
mov %r3, %r10
add %r3, -24
mov %r4, 0
call {0}
{1}
mov %r0, 0
exit
"""
USE = "jeq %r0, 0, none\nldxdw %r1, [%r0+{0}]\nnone:"


def accepted(text, spec):
    return verify(program_from_code(assemble(text), "p", maps=(spec,), attach=ENTRY))


def refused(text, spec):
    with pytest.raises(VerifierError) as caught:
        accepted(text, spec)
    return str(caught.value)


@pytest.mark.parametrize("kind", [MapType.HASH, MapType.GPU_HASH, MapType.PERCPU_HASH])
@pytest.mark.parametrize("helper", [1, 2, 3])
def test_hash_maps_are_taken(kind, helper):
    spec = MapSpec("h", kind, 8, 16, 10)
    cost = accepted(CALL.format(helper, ""), spec).cost
    array = MapSpec("a", MapType.ARRAY, 4, 16, 10)
    slots = (5 if helper == 2 else 1) * HASH_WINDOW
    assert cost.helpers - accepted(CALL.format(helper, ""), array).cost.helpers == 8 * slots


def test_values_of_hash_maps():
    accepted(CALL.format(1, USE.format(8)), HASH)
    assert "outside its 16 bytes" in refused(CALL.format(1, USE.format(16)), HASH)
    assert "may be null" in refused(CALL.format(1, "ldxdw %r1, [%r0]"), HASH)


def test_a_key_must_be_written_whole():
    text = CALL.format(1, "").replace("stdw [%r10-8], 1", "stw [%r10-8], 1")
    assert "stack" in refused(text, HASH)


@pytest.mark.parametrize("kind", [MapType.LRU_HASH, MapType.LRU_PERCPU_HASH])
@pytest.mark.parametrize("helper", [1, 2, 3])
def test_maps_that_evict_are_taken(kind, helper):
    """To insert, they may look at a whole window once more, for an entry to give up."""
    cost = accepted(CALL.format(helper, ""), MapSpec("h", kind, 8, 16, 10)).cost
    array = MapSpec("a", MapType.ARRAY, 4, 16, 10)
    slots = (6 if helper == 2 else 1) * HASH_WINDOW
    assert cost.helpers - accepted(CALL.format(helper, ""), array).cost.helpers == 8 * slots


def test_sums_in_per_sm_hash_values():
    text = CALL.format(1, "jeq %r0, 0, none\nldxdw %r1, [%r0]\nadd %r1, 1\nstxdw [%r0], %r1\nnone:")
    spec = MapSpec("h", MapType.PERCPU_HASH, 8, 16, 10)
    assert len(accepted(text, spec).facts.rmw) == 1
    assert "*v op= n" in refused(text.replace("add %r1, 1", "mul %r1, 3"), spec)


def test_lost_updates_in_hash_values():
    text = CALL.format(1, "jeq %r0, 0, none\nldxdw %r1, [%r0]\nadd %r1, 1\nstxdw [%r0], %r1\nnone:")
    assert "use an atomic" in refused(text, HASH)


@pytest.mark.parametrize("size", [0, 257])
def test_key_sizes(size):
    spec = MapSpec("h", MapType.HASH, size, 16, 10)
    assert f"keys have {size} bytes, must have 1 to 256" in refused(CALL.format(1, ""), spec)


def test_no_address_of_the_first_value():
    text = "lddw %r1, map_index_value 0\nmov %r0, 0\nexit"
    assert "map h of type HASH has no first value" in refused(text, HASH)


def test_types_without_storage_are_named(monkeypatch):
    monkeypatch.delitem(MAP_TRAITS, MapType.QUEUE)
    spec = MapSpec("h", MapType.QUEUE, 0, 8, 64)
    assert "type QUEUE is not supported" in refused(CALL.format(1, ""), spec)


PER_THREAD = [MapType.GPU_PER_THREAD_ARRAY, MapType.GPU_PER_THREAD_HOST_ARRAY]
SAME_AS_ARRAY = [MapType.GPU_HOST_ARRAY, MapType.GPU_KERNEL_SHARED_ARRAY]
DOUBLE = "jeq %r0, 0, none\nldxdw %r1, [%r0]\nmul %r1, 2\nstxdw [%r0], %r1\nnone:"


@pytest.mark.parametrize("kind", [*PER_THREAD, *SAME_AS_ARRAY])
@pytest.mark.parametrize("helper", [1, 2, 3])
def test_arrays_are_taken(kind, helper):
    accepted(CALL.format(helper, ""), MapSpec("a", kind, 4, 16, 10))


@pytest.mark.parametrize("kind", PER_THREAD)
def test_a_thread_may_change_its_own_value(kind):
    accepted(CALL.format(1, DOUBLE), MapSpec("a", kind, 4, 16, 10))
    text = "lddw %r1, map_index_value 0\nmov %r0, 0\nexit"
    assert "has no first value" in refused(text, MapSpec("a", kind, 4, 16, 10))
    assert "keys have 8 bytes" in refused(CALL.format(1, ""), MapSpec("a", kind, 8, 16, 10))


@pytest.mark.parametrize("kind", SAME_AS_ARRAY)
def test_threads_may_not_change_a_shared_value(kind):
    assert "use an atomic" in refused(CALL.format(1, DOUBLE), MapSpec("a", kind, 4, 16, 10))
    accepted("lddw %r1, map_index_value 0\nmov %r0, 0\nexit", MapSpec("a", kind, 4, 16, 1))

"""Per-thread arrays read from Python."""

import pytest
from test_maps_view import BTF, U32

from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.errors import InputError, InternalError
from egpu.maps.memory import Snapshot
from egpu.maps.planning import plan as plan_maps
from egpu.maps.thread_view import ThreadView
from egpu.maps.view import MapCopy

SPEC = MapSpec("t", MapType.GPU_PER_THREAD_ARRAY, 4, 4, 3, btf=BTF, value_type=U32)


def view_of(copies=1, slots=5):
    plan = plan_maps([SPEC], 2, thread_slots=slots)
    place = plan.places[0]
    data = bytearray(plan.device_size)
    for key in range(3):
        for thread in range(slots):
            data[place.offset + 8 * (key * slots + thread)] = 10 * key + thread
    shot = Snapshot(bytes(data), 1, 1, True)
    return ThreadView(SPEC, [MapCopy(place, 2, lambda: shot)] * copies)


def test_values_of_all_threads():
    view = view_of()
    assert view.spec is SPEC
    assert (len(view), list(view)) == (3, [0, 1, 2])
    assert dict(view) == {key: tuple(10 * key + n for n in range(5)) for key in range(3)}
    assert view.raw(2) == b"".join(bytes([20 + n, 0, 0, 0]) for n in range(5))
    assert repr(view) == "<ThreadView t GPU_PER_THREAD_ARRAY of 3>"


def test_refusals():
    with pytest.raises(KeyError, match="the keys 0 to 2, not 3"):
        view_of()[3]
    with pytest.raises(TypeError, match="keys are integers"):
        view_of()["a"]
    with pytest.raises(InputError, match="exists 2 times"):
        view_of(copies=2)[0]
    assert [copy[1][2] for copy in view_of(copies=2).copies()] == [12, 12]
    with pytest.raises(InternalError, match="not per thread"):
        ThreadView(MapSpec("a", MapType.ARRAY, 4, 8, 1), [])
    with pytest.raises(InputError, match="0 slots"):
        plan_maps([SPEC], 1, thread_slots=0)

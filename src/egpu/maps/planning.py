"""Where the maps of a session lie: from declarations to a layout of both arenas."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from egpu.bpf.maptypes import EVENTS, THREAD_SLOTS, Storage, bloom_bits, ring_bytes, traits
from egpu.bpf.program import MapSpec
from egpu.errors import InputError, InternalError
from egpu.maps.declared import check_declaration
from egpu.maps.layout import (
    ARENA_HEADER_SIZE,
    BLOOM_CONTROL_SIZE,
    COMMAND_SIZE,
    DEQUE_CELL,
    DEQUE_CONTROL_SIZE,
    HOST_CONTROL_SIZE,
    MAP_ALIGNMENT,
    PAGE,
    READER_STRIDE,
    RING_CONTROL_SIZE,
    RING_GRANULE,
    RING_MAXIMUM,
    RING_MINIMUM,
    SPREAD_LIMIT,
    SPREAD_MAXIMUM,
    ArenaLayout,
    MapPlace,
    copy_stride,
    hash_table,
    ring_zeros,
    round_up,
    stamped_stride,
)


def plan(
    maps: Sequence[MapSpec],
    sm_slots: int,
    *,
    additive: Collection[int] = (),
    thread_slots: int = THREAD_SLOTS,
) -> ArenaLayout:
    """Places for ``maps`` on a device of ``sm_slots`` SMs.

    Per-thread maps have values for ``thread_slots`` threads of a launch.

    ``additive`` are the indices of per-SM maps to which programs only ever add: the warps of an SM
    may then use different copies, since only sums are read.  They get up to 8 copies per SM, as
    long as the map stays below 64 MiB: an L2 slice takes one addition to a line every few cycles,
    and warps that start and end blocks come faster (measured: docs/results.md).

    A ring's ``max_entries`` is, as in libbpf, its size in bytes: one SM's ring has ``max_entries /
    sm_slots`` bytes rounded up to a power of two of at least 4096, so the whole is never smaller
    than what was asked for; one of stamped slots has a power of two of them in as many bytes or
    more.  Raises UnsupportedError for a map type without storage and InputError
    for a map without entries or values, or with a ring of more than 1 GiB per SM.
    """
    if sm_slots < 1:
        raise InternalError(f"a layout for {sm_slots} SM slots was asked for")
    if thread_slots < 1:
        raise InputError(f"{thread_slots} slots for threads", where="per-thread maps")
    for spec in maps:
        check_declaration(spec)
    planner = _Planner(sm_slots, thread_slots, additive)
    device = ARENA_HEADER_SIZE
    places: list[MapPlace] = []
    for index, spec in enumerate(maps):
        place, size = planner.place(index, spec, round_up(device, MAP_ALIGNMENT))
        places.append(place)
        device = place.offset + size
    layout = _with_host(places, sm_slots, round_up(device, PAGE))
    return _with_rings(layout, [index for index, spec in enumerate(maps) if spec.on_device])


@dataclass(frozen=True, slots=True)
class _Planner:
    """For which device, and which maps are only added to; see ``plan``."""

    sm_slots: int
    thread_slots: int
    additive: Collection[int]

    def place(self, index: int, spec: MapSpec, offset: int) -> tuple[MapPlace, int]:
        """The place of map ``index`` from ``offset`` of the device arena on, and its bytes."""
        entry = round_up(spec.value_size, 8)
        match traits(spec.type).storage:
            case Storage.ARRAY:
                return MapPlace(offset, 0, entry), spec.max_entries * entry
            case Storage.PER_SM_ARRAY:
                return self._copies(index, spec, offset)
            case Storage.PER_THREAD_ARRAY:
                stride = self.thread_slots * entry
                return MapPlace(offset, stride, entry), spec.max_entries * stride
            case Storage.RING:
                ring = _ring_size(spec, self.sm_slots)
                place = MapPlace(
                    offset, RING_CONTROL_SIZE, 0, ring_size=ring, ring_stamped=spec.stamped
                )
                return place, RING_CONTROL_SIZE * self.sm_slots
            case Storage.HASH:
                table = hash_table(spec)
                return MapPlace(offset, 0, table.stride), table.size
            case Storage.PER_SM_HASH:
                table, stride = hash_table(spec), copy_stride(spec)
                place = MapPlace(offset, stride, table.stride)
                return place, table.values + stride * self.sm_slots
            case Storage.MAPS:
                return MapPlace(offset, 0, 8), 8 * spec.max_entries
            case Storage.DEQUE:
                cell = DEQUE_CELL + entry
                return MapPlace(offset, 0, cell), DEQUE_CONTROL_SIZE + spec.max_entries * cell
            case Storage.BLOOM:
                bits, _ = bloom_bits(spec.max_entries, spec.extra)
                return MapPlace(offset, 0, 0), BLOOM_CONTROL_SIZE + bits // 8
            case Storage.STACKS:
                return MapPlace(offset, 0, 0), 0
            case None:
                raise InternalError(f"map {spec.name} passed the check without storage")

    def _copies(self, index: int, spec: MapSpec, offset: int) -> tuple[MapPlace, int]:
        """A copy of an array for each SM slot, several of one that is only added to."""
        stride = copy_stride(spec)
        one_each = stride * self.sm_slots
        spread = _spread(one_each) if index in self.additive else 1
        place = MapPlace(offset, stride, round_up(spec.value_size, 8), spread=spread)
        return place, one_each * spread


def _spread(one_each: int) -> int:
    """Copies per SM for a map that takes ``one_each`` bytes with one."""
    spread = SPREAD_MAXIMUM
    while spread > 1 and one_each * spread > SPREAD_LIMIT:
        spread //= 2
    return spread


def _with_host(device: list[MapPlace], sm_slots: int, device_size: int) -> ArenaLayout:
    """The layout once the device side is known: reader positions, records, commands, snapshot."""
    readers = HOST_CONTROL_SIZE
    rings = sum(1 for place in device if place.ring_size)
    data = round_up(readers + rings * sm_slots * READER_STRIDE, PAGE)
    places: list[MapPlace] = []
    for place in device:
        if place.ring_size:
            places.append(replace(place, ring_data=data, ring_readers=readers))
            readers += sm_slots * READER_STRIDE
            data += sm_slots * place.ring_size
        else:
            places.append(place)
    commands = round_up(data, PAGE)
    snapshot = commands + COMMAND_SIZE
    size = snapshot + device_size
    return ArenaLayout(sm_slots, tuple(places), device_size, size, snapshot, commands)


def _with_rings(layout: ArenaLayout, on_device: Sequence[int]) -> ArenaLayout:
    """``layout`` with the rings ``on_device`` in device memory."""
    if not on_device:
        return layout
    places, slots = list(layout.places), layout.sm_slots
    ring, data = layout.device_size, layout.commands
    flags = ring + slots * sum(places[index].ring_size for index in on_device)
    for index in on_device:
        records = slots * places[index].ring_size
        controls = data + records // RING_GRANULE
        places[index] = replace(
            places[index],
            ring_device=ring,
            ring_flags=flags,
            host_flags=data,
            host_controls=controls,
        )
        ring, flags = ring + records, flags + records // RING_GRANULE
        data = controls + slots * RING_CONTROL_SIZE + ring_zeros(places[index])
    commands = round_up(data, PAGE)
    snapshot = commands + COMMAND_SIZE
    return replace(
        layout,
        places=tuple(places),
        host_size=snapshot + layout.device_size,
        snapshot=snapshot,
        commands=commands,
        device_rings=flags - layout.device_size,
    )


def _ring_size(spec: MapSpec, sm_slots: int) -> int:
    asked = ring_bytes(spec.type, spec.max_entries, spec.value_size)
    share = asked if spec.type in EVENTS else -(-asked // sm_slots)
    if spec.stamped:
        stride = stamped_stride(spec.stamped)
        slots = -(-max(RING_MINIMUM, share) // stride)
        return stride << (slots - 1).bit_length()
    size = max(RING_MINIMUM, 1 << (share - 1).bit_length())
    if size > RING_MAXIMUM:
        raise InputError(
            f"{spec.max_entries} bytes are more than 1 GiB per SM",
            where=f"map {spec.name}",
            hint="lower max_entries",
        )
    return size

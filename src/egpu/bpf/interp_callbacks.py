"""Helpers that call back, for the reference interpreter: the arguments of each call in turn."""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from egpu.bpf.maptypes import traits

if TYPE_CHECKING:
    from egpu.bpf.interp import Machine

Turns = Generator[tuple[int, ...], None, None]  # r1, r2 and so on of each call
_MOST_LOOPS = 1 << 23  # BPF_MAX_LOOPS of linux/bpf.h


def _loop(machine: Machine, args: Sequence[int]) -> Turns | int:
    turns, _, context, flags = args
    turns &= 0xFFFFFFFF
    if flags:
        return -errno.EINVAL
    if turns > _MOST_LOOPS:
        return -errno.E2BIG
    return ((index, context) for index in range(turns))


def _for_each(machine: Machine, args: Sequence[int]) -> Turns | int:
    handle, _, context, flags = args
    if flags:
        return -errno.EINVAL
    index = machine.map_index(handle)
    kind = traits(machine.maps[index].spec.type)
    if kind.hashed:
        return _each_entry(machine, index, context)
    if kind.indexed and not kind.per_thread:
        return _each_value(machine, index, context)
    return -errno.EINVAL


@contextmanager
def _key(machine: Machine, content: bytes) -> Iterator[int]:
    """The address of a key while its call runs."""
    region = machine.space.add("map key", bytearray(content), writable=False)
    try:
        yield region.base
    finally:
        machine.space.remove(region)


def _each_value(machine: Machine, index: int, context: int) -> Turns:
    """The elements of an array, in order."""
    handle = machine.map_address(index)
    for number in range(machine.maps[index].spec.max_entries):
        with _key(machine, number.to_bytes(4, "little")) as key:
            yield handle, key, machine.value_address(index, number), context


def _each_entry(machine: Machine, index: int, context: int) -> Turns:
    """The entries that a hash map has now, but for those that go before their turn comes."""
    table, handle = machine.maps[index].table, machine.map_address(index)
    for content in list(table):
        value = table.get(content)
        if value is not None:
            with _key(machine, content) as key:
                yield handle, key, machine.entry_address(index, value), context


# By helper: what it calls with, or its result if it calls nothing.
CALLING_BACK: Mapping[int, Callable[[Machine, Sequence[int]], Turns | int]] = {
    164: _for_each,
    181: _loop,
}

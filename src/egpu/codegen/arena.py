"""The numbers of the arenas that device code needs.

``egpu.maps.layout`` is the one place that knows them; this is the one place of code generation that
reads them (the layout is a table of constants, so nothing of the floor above is pulled in).
"""

from __future__ import annotations

from egpu.maps.layout import (
    ARENA_HEADER,
    HASH_CLAIMED,
    HASH_CONTROL,
    HASH_ENTERING,
    HASH_FULL,
    HASH_INCARNATION,
    HASH_SLOT,
    HASH_STATE,
    HASH_TAG_BITS,
    LAUNCH_BLOCK,
    RING_CONTROL,
    RING_DISCARD,
    RING_GROUP_HEADER,
    RING_PAD_COUNT,
    ArenaLayout,
    HashTable,
    hash_table,
    initial_chunks,
    plan,
    round_up,
)

__all__ = [
    "ARENA_HEADER",
    "HASH_CLAIMED",
    "HASH_CONTROL",
    "HASH_ENTERING",
    "HASH_FULL",
    "HASH_INCARNATION",
    "HASH_SLOT",
    "HASH_STATE",
    "HASH_TAG_BITS",
    "LAUNCH_BLOCK",
    "RING_CONTROL",
    "RING_DISCARD",
    "RING_GROUP_HEADER",
    "RING_PAD_COUNT",
    "ArenaLayout",
    "HashTable",
    "hash_table",
    "initial_chunks",
    "plan",
    "round_up",
]

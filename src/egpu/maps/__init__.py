"""Shared state of probes and people: bytes on the device, memory, Python views, ring buffers."""

from egpu.maps.access import check_read, check_write
from egpu.maps.changes import Changes, MapHost, UpdateFlag, Values
from egpu.maps.contents import Contents, Kept, contents_of, pack, unpack
from egpu.maps.hash_view import HashView
from egpu.maps.initial import initial_chunks
from egpu.maps.layout import ArenaLayout, MapPlace
from egpu.maps.memory import HostArena, RingControl, Snapshot, ring_controls
from egpu.maps.outer_view import OuterView
from egpu.maps.planning import plan
from egpu.maps.pushed_view import BloomView, QueueView
from egpu.maps.pushes import Pushes, PushHost
from egpu.maps.ring_table import RingTable, ring_table
from egpu.maps.ringbuf import Batch, RingCounts, RingReader
from egpu.maps.thread_view import ThreadView
from egpu.maps.view import MapCopy, MapView, summable

__all__ = [
    "ArenaLayout",
    "Batch",
    "BloomView",
    "Changes",
    "Contents",
    "HashView",
    "HostArena",
    "Kept",
    "MapCopy",
    "MapHost",
    "MapPlace",
    "MapView",
    "OuterView",
    "PushHost",
    "Pushes",
    "QueueView",
    "RingControl",
    "RingCounts",
    "RingReader",
    "RingTable",
    "Snapshot",
    "ThreadView",
    "UpdateFlag",
    "Values",
    "check_read",
    "check_write",
    "contents_of",
    "initial_chunks",
    "pack",
    "plan",
    "ring_controls",
    "ring_table",
    "summable",
    "unpack",
]

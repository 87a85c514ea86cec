"""Timelines as files for ui.perfetto.dev and Perfetto's trace processor.

A trace is a sequence of packets (perfetto.dev, "Trace Packet Protos"); the messages are those of
the ``perfetto`` package.  Names and texts are interned: each stands in the file once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from egpu.errors import UnsupportedError
from egpu.timeline import Slice, Timeline, Track

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackEvent

_SEQUENCE = 1  # everything comes from one writer
_ROOT = 1000  # uuid of the first track: 0 means the trace's own
_CHUNK = 4096  # packets written at once


def require_perfetto() -> None:
    """Raises UnsupportedError unless the ``perfetto`` package can be imported."""
    try:
        import perfetto.protos.perfetto.trace.perfetto_trace_pb2  # noqa: F401, PLC0415
    except ImportError as error:
        raise UnsupportedError(
            f"Perfetto files ({error})", needs="pip install 'warpbpf[perfetto]'"
        ) from error


def write_perfetto(timeline: Timeline, stream: BinaryIO) -> int:
    """Write ``timeline``; the number of slices.  UnsupportedError without the package."""
    require_perfetto()
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace  # noqa: PLC0415

    writer = _Writer()
    chunk = Trace()
    for packet in writer.packets(timeline):
        chunk.packet.append(packet)
        if len(chunk.packet) >= _CHUNK:
            stream.write(chunk.SerializeToString())
            chunk = Trace()  # messages that follow each other in a file are merged
    stream.write(chunk.SerializeToString())
    return writer.slices


class _Writer:
    """The packets of one trace, and what is interned so far."""

    def __init__(self) -> None:
        self.slices = 0
        self._names: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._texts: dict[str, int] = {}

    def packets(self, timeline: Timeline) -> Iterator[TracePacket]:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (  # noqa: PLC0415
            TracePacket,
        )

        first = TracePacket(trusted_packet_sequence_id=_SEQUENCE)
        first.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        yield first
        yield from self._descriptors(timeline.tracks)
        yield from self._events(timeline.slices)

    def _descriptors(self, tracks: Iterable[Track]) -> Iterator[TracePacket]:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (  # noqa: PLC0415
            TracePacket,
            TrackDescriptor,
        )

        for place, track in enumerate(tracks):
            packet = TracePacket(trusted_packet_sequence_id=_SEQUENCE)
            row = packet.track_descriptor
            row.uuid = _ROOT + place
            row.name = track.name
            row.child_ordering = TrackDescriptor.EXPLICIT
            row.sibling_order_rank = place
            # Two slots of one name are two slots.
            row.sibling_merge_behavior = TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE
            if track.parent is not None:
                row.parent_uuid = _ROOT + track.parent
            yield packet

    def _events(self, slices: Iterable[Slice]) -> Iterator[TracePacket]:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (  # noqa: PLC0415
            TracePacket,
            TrackEvent,
        )

        for each in slices:
            self.slices += 1
            begin = TracePacket(
                timestamp=each.start,
                trusted_packet_sequence_id=_SEQUENCE,
                sequence_flags=TracePacket.SEQ_NEEDS_INCREMENTAL_STATE,
            )
            begin.track_event.type = TrackEvent.TYPE_SLICE_BEGIN
            begin.track_event.track_uuid = _ROOT + each.track
            begin.track_event.name_iid = self._interned(begin, "event_names", each.name)
            self._arguments(begin, begin.track_event, each)
            yield begin
            end = TracePacket(timestamp=each.end, trusted_packet_sequence_id=_SEQUENCE)
            end.track_event.type = TrackEvent.TYPE_SLICE_END
            end.track_event.track_uuid = _ROOT + each.track
            yield end

    def _arguments(self, packet: TracePacket, event: TrackEvent, each: Slice) -> None:
        for key, value in each.arguments:
            row = event.debug_annotations.add()
            row.name_iid = self._interned(packet, "debug_annotation_names", key)
            if isinstance(value, int):
                row.int_value = value
            else:
                row.string_value_iid = self._interned(
                    packet, "debug_annotation_string_values", value
                )

    def _interned(self, packet: TracePacket, table: str, text: str) -> int:
        known = {"event_names": self._names, "debug_annotation_names": self._keys}.get(
            table, self._texts
        )
        number = known.get(text)
        if number is None:
            number = known[text] = len(known) + 1
            row = getattr(packet.interned_data, table).add()
            row.iid = number
            if table == "debug_annotation_string_values":
                row.str = text.encode("utf-8", "replace")
            else:
                row.name = text
        return number

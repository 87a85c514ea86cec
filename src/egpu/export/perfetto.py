"""Timelines as files for ui.perfetto.dev and Perfetto's trace processor.

A trace is a sequence of packets (perfetto.dev, "Trace Packet Protos"); the messages are those of
the ``perfetto`` package.  Names and texts are interned: each stands in the file once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO

from egpu.errors import UnsupportedError
from egpu.timeline import Slice, Timeline, Track

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

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
    writer = _Writer(stream)
    writer.tracks(timeline.tracks)
    writer.events(timeline.slices)
    writer.flush()
    return writer.slices


class _Writer:
    """One trace on its way into a file, and what is interned so far."""

    def __init__(self, stream: BinaryIO) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2  # noqa: PLC0415

        self.slices = 0
        self._messages = perfetto_trace_pb2
        self._stream = stream
        self._names: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._texts: dict[str, int] = {}
        self._chunk = perfetto_trace_pb2.Trace()
        first = self._packet()
        first.sequence_flags = first.SEQ_INCREMENTAL_STATE_CLEARED

    def flush(self) -> None:
        """Write what is waiting; messages that follow each other in a file are merged."""
        self._stream.write(self._chunk.SerializeToString())
        self._chunk = self._messages.Trace()

    def tracks(self, tracks: Iterable[Track]) -> None:
        """Say which tracks there are."""
        kind = self._messages.TrackDescriptor
        for place, track in enumerate(tracks):
            row = self._packet().track_descriptor
            row.uuid = _ROOT + place
            row.name = track.name
            row.child_ordering = kind.EXPLICIT
            row.sibling_order_rank = place
            # Two slots of one name are two slots.
            row.sibling_merge_behavior = kind.SIBLING_MERGE_BEHAVIOR_NONE
            if track.parent is not None:
                row.parent_uuid = _ROOT + track.parent

    def events(self, slices: Iterable[Slice]) -> None:
        """A begin and an end for each slice."""
        kind = self._messages.TrackEvent
        for each in slices:
            self.slices += 1
            begin = self._packet()
            begin.timestamp = each.start
            begin.sequence_flags = begin.SEQ_NEEDS_INCREMENTAL_STATE
            event = begin.track_event
            event.type = kind.TYPE_SLICE_BEGIN
            event.track_uuid = _ROOT + each.track
            event.name_iid = self._names.get(each.name) or self._name(begin, each.name)
            for key, value in each.arguments:
                number = self._keys.get(key) or self._key(begin, key)
                if isinstance(value, int):
                    event.debug_annotations.add(name_iid=number, int_value=value)
                else:
                    text = self._texts.get(value) or self._text(begin, value)
                    event.debug_annotations.add(name_iid=number, string_value_iid=text)
            end = self._packet()
            end.timestamp = each.end
            end.track_event.type = kind.TYPE_SLICE_END
            end.track_event.track_uuid = _ROOT + each.track

    def _packet(self) -> TracePacket:
        if len(self._chunk.packet) >= _CHUNK:
            self.flush()
        return self._chunk.packet.add(trusted_packet_sequence_id=_SEQUENCE)

    def _name(self, packet: TracePacket, text: str) -> int:
        number = self._names[text] = len(self._names) + 1
        packet.interned_data.event_names.add(iid=number, name=text)
        return number

    def _key(self, packet: TracePacket, text: str) -> int:
        number = self._keys[text] = len(self._keys) + 1
        packet.interned_data.debug_annotation_names.add(iid=number, name=text)
        return number

    def _text(self, packet: TracePacket, text: str) -> int:
        number = self._texts[text] = len(self._texts) + 1
        encoded = text.encode("utf-8", "replace")
        packet.interned_data.debug_annotation_string_values.add(iid=number, str=encoded)
        return number

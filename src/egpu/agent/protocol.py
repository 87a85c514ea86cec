"""The wire between agent and session: one table, from which the C header is generated.

A packet (one SEQPACKET message) is a header, the fixed fields of its kind and its texts one after
the other; the sizes of the texts are the last fixed fields.  The first three header fields never
change, so that two versions can still tell each other that they do not match.  Files travel beside
a packet as descriptors (``Message.files``).

``python -m egpu.agent.protocol`` writes ``native/agent/protocol.h`` and ``native/agent/layout.h``;
with ``--check`` it only says whether they are as the tables say.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Final

from egpu.errors import AgentError

WIRE_MAGIC: Final = 0x55504745  # "EGPU"
WIRE_VERSION: Final = 4
PACKET_LIMIT: Final = 64 * 1024  # bytes; below every default socket buffer
FILES_LIMIT: Final = 2  # descriptors in one packet

_FORMATS: Final = {"u16": "H", "u32": "I", "u64": "Q", "i32": "i"}


class Kind(enum.IntEnum):
    """Message kinds; a number is never used again for something else."""

    HELLO = 1
    IMAGE = 2
    IMAGE_GONE = 3
    OPEN_ARENA = 4
    RESOLVE = 5
    TWIN_STATE = 6
    SNAPSHOT_DONE = 7
    COMMAND_DONE = 8
    STACK = 9
    HOST_CALL = 10
    DEVICE = 11
    LOADING = 12
    WELCOME = 32
    BYE = 33
    ARENA = 34
    ARENA_REFUSED = 35
    TWIN = 36
    UNMATCHED = 37
    REFUSED = 38
    EPOCH = 39
    SNAPSHOT = 40
    DETACH = 41
    WRITE = 42
    OPERATOR = 43
    OPERATE = 44
    HOST_DONE = 45


@dataclass(frozen=True, slots=True)
class Message:
    """Fixed fields as (name, type), then texts; ``files`` is the most descriptors beside it."""

    kind: Kind
    meaning: str
    fields: tuple[tuple[str, str], ...] = ()
    texts: tuple[str, ...] = ()
    files: int = 0


# fmt: off
HEADER: Final = (
    ("magic", "u32"), ("version", "u16"), ("kind", "u16"),  # these three never change
    ("size", "u32"), ("request", "u32"),                    # size of the whole packet
)
_DEVICE = (
    ("ordinal", "u32"), ("major", "u32"), ("minor", "u32"), ("sm_count", "u32"),
)

MESSAGES: Final = (
    # agent to session
    Message(Kind.HELLO, "a process called cuInit", (("pid", "u32"), ("layout", "u32"))),
    Message(Kind.IMAGE, "an image in heap memory, copied when it was loaded; file 0 holds it",
            (("image", "u64"), ("size", "u64")), files=1),
    Message(Kind.IMAGE_GONE, "the module of an image was unloaded, or never loaded",
            (("image", "u64"),)),
    Message(Kind.OPEN_ARENA, "asks for the arenas of one context",
            (("arena", "u32"), *_DEVICE), ("name",)),
    Message(Kind.RESOLVE, "first launch of a kernel: is there a twin?",
            (("image", "u64"), ("offset", "u64"), ("size", "u64"), ("source", "u32"),
             ("slot", "u32"), ("epoch", "u32"), ("arena", "u32"), ("captured", "u32"), *_DEVICE),
            ("kernel", "path", "name")),
    Message(Kind.TWIN_STATE, "what became of a twin; error 0 means in use",
            (("kernel_id", "u32"), ("error", "u32"),
             ("registers", "u32"), ("twin_registers", "u32"), ("shared", "u32"),
             ("twin_shared", "u32"), ("local", "u32"), ("twin_local", "u32"),
             ("slot", "u32")), ("reason",)),
    Message(Kind.SNAPSHOT_DONE, "answers SNAPSHOT; error counts arenas that could not be copied",
            (("arenas", "u32"), ("error", "u32"))),
    Message(Kind.COMMAND_DONE, "answers WRITE, OPERATOR and OPERATE once it is done; detail is the "
            "driver's error", (("error", "u32"), ("detail", "u32"))),
    Message(Kind.STACK, "a stack from which a kernel was launched for the first time; frames are "
            "u64 return addresses, innermost first", (("stack", "u32"),), ("frames",)),
    Message(Kind.HOST_CALL, "a thread is about to launch, or has launched (leaving), and waits for "
            "the answer; call is of LaunchCall, time CLOCK_MONOTONIC in ns, stack its "
            "number plus 1",
            (("time", "u64"), ("thread", "u32"), ("call", "u32"), ("leaving", "u32"),
             ("stack", "u32"))),
    Message(Kind.DEVICE, "a device that the process sees, one of each kind; before any context",
            _DEVICE, ("name",)),
    Message(Kind.LOADING, "the driver is about to load an image that lies in a file; sent where "
            "the session wants it (ahead)",
            (("image", "u64"), ("offset", "u64"), ("size", "u64"), *_DEVICE), ("path", "name")),
    # session to agent
    Message(Kind.WELCOME, "answers HELLO; file 0 is the stats memory; one launch in sample of each "
            "kernel is probed; ahead: 1 if LOADING is wanted",
            (("stats_size", "u64"), ("layout", "u32"), ("epoch", "u32"), ("twin_wait_ms", "u32"),
             ("snapshot_ms", "u32"), ("exit_wait_ms", "u32"), ("features", "u32"),
             ("stack_base", "u32"), ("sample", "u32"), ("ahead", "u32")), files=1),
    Message(Kind.BYE, "the session will not serve this process", (), ("reason",)),
    Message(Kind.ARENA, "answers OPEN_ARENA; file 0 is the host arena, file 1 the initial "
            "contents; rings holds rows of struct egpu_ring; allocations: the offset of that "
            "table, or 0; device_rings: bytes of rings behind device_size",
            (("device_size", "u64"), ("host_size", "u64"), ("init_size", "u64"),
             ("allocations", "u64"), ("device_rings", "u64"),
             ("arena", "u32"), ("sm_slots", "u32")), ("rings",), files=2),
    Message(Kind.ARENA_REFUSED, "answers OPEN_ARENA", (("arena", "u32"),), ("reason",)),
    Message(Kind.TWIN, "answers RESOLVE; file 0 is the image (PTX ends with a NUL); globals are "
            "NUL-terminated names; patches has a row of struct egpu_patch for each, or is empty",
            (("size", "u64"), ("kernel_id", "u32"), ("hidden_offset", "u32"), ("parameters", "u32"),
             ("globals_count", "u32"), ("allow_occupancy", "u32"), ("epoch", "u32")),
            ("globals", "table", "patches"), files=1),
    Message(Kind.UNMATCHED, "answers RESOLVE: no link asks for it", (("epoch", "u32"),)),
    Message(Kind.REFUSED, "answers RESOLVE", (("epoch", "u32"),), ("reason",)),
    Message(Kind.EPOCH, "links have changed: ask again at the next launch; ahead as in WELCOME",
            (("epoch", "u32"), ("twin_wait_ms", "u32"), ("ahead", "u32"))),
    Message(Kind.SNAPSHOT, "copy every arena now"),
    Message(Kind.DETACH, "use no twin from now on"),
    # Commands: one at a time for each arena, over a private stream.
    Message(Kind.WRITE, "copy to the device arena what the command area holds: rows of struct "
            "egpu_write", (("arena", "u32"), ("size", "u32"))),
    Message(Kind.OPERATOR, "load an image whose kernel egpu_operate does operations on a map; "
            "file 0 is the image (PTX ends with a NUL)",
            (("size", "u64"), ("arena", "u32"), ("number", "u32")), files=1),
    Message(Kind.OPERATE, "run it over count operations, stride bytes each, at the start of the "
            "command area; their results follow as u64s at offset results",
            (("arena", "u32"), ("number", "u32"), ("count", "u32"), ("stride", "u32"),
             ("results", "u32"))),
    Message(Kind.HOST_DONE, "answers HOST_CALL: what it does is on the device"),
)

RING: Final = (   # a row of ARENA.rings: reader positions of one ring map
    ("host_offset", "u64"), ("host_stride", "u64"),
    ("device_offset", "u64"), ("device_stride", "u64"), ("count", "u64"),
    # of rings in device memory, else 0: bytes of a ring, and where everything lies
    ("ring_size", "u64"), ("host_data", "u64"), ("device_data", "u64"),
    ("host_flags", "u64"), ("device_flags", "u64"), ("host_controls", "u64"),
    ("stamped", "u64"),  # bytes of a record in stamped slots, else 0
)
PATCH: Final = (("offset", "u64"), ("addend", "u64"))  # in a TWIN's image: an address goes there
INIT_CHUNK: Final = (("offset", "u64"), ("size", "u64"))  # then size bytes, padded to 8
WRITE: Final = (  # a row of WRITE; then rows x size bytes, padded to 8
    ("offset", "u64"), ("size", "u64"), ("stride", "u64"), ("rows", "u64"),
)


class ImageSource(enum.IntEnum):
    """Where the image of a RESOLVE is."""

    NONE = 0    # loaded before the agent, or by a call the agent does not know
    SENT = 1    # an earlier IMAGE message with the same image number
    FILE = 2    # path, offset, size
    CHANGED = 3 # the file is not, or no longer, the one that was loaded


class Reason(enum.IntEnum):
    """Why a launch was not probed; indexes ``not_probed`` of a stats slot."""

    UNMATCHED = 0    # no link asks for this kernel
    NOT_READY = 1    # the twin was not there in time
    REFUSED = 2      # no twin can be made of this kernel
    OCCUPANCY = 3    # the twin has fewer resident blocks for this launch shape
    RESOURCES = 4    # the twin cannot be launched in this shape at all
    PARAMETERS = 5   # parameters handed over in a form the agent does not know
    GRAPH = 6        # a graph node that could not be translated
    DETACHED = 7     # detached, session lost or process ending
    ARENA = 8        # no arena for this context
    FORM = 9         # a launch call that carries no hidden parameter (cuLaunchGrid, multi-device)
    SAMPLED = 10     # only one launch in several is probed


class Feature(enum.IntFlag):
    """What programs use of the agent beyond maps, so that nobody else pays for it."""

    CLOCK = 1        # the device's clock against the host's
    ALLOCATIONS = 2  # a table of the process's device memory
    STACKS = 4       # where launches come from
    HOST_ENTRY = 8   # the session runs programs before launches
    HOST_EXIT = 16   # and after them


class LaunchCall(enum.IntEnum):
    """By which of the driver's calls a kernel is launched; per-thread streams or not."""

    KERNEL = 0       # cuLaunchKernel
    KERNEL_EX = 1    # cuLaunchKernelEx
    COOPERATIVE = 2  # cuLaunchCooperativeKernel


class CommandError(enum.IntEnum):
    """Why a command was not done; ``error`` of COMMAND_DONE."""

    NONE = 0
    GONE = 1         # no such arena, or it is not usable any more
    MALFORMED = 2    # it reaches outside of the arenas, or an image cannot be one
    DRIVER = 3       # the driver refused; detail is its error
    BUSY = 4         # the command before it is not done


STATS_MAGIC: Final = 0x54415453_55504745    # "EGPUSTAT"
STATS_HEADER: Final = (
    ("magic", "u64"), ("version", "u32"), ("slots", "u32"), ("used", "u64"),
    ("graph_launches", "u64"), ("graph_nodes", "u64"), ("images", "u64"), ("twins", "u64"),
    ("not_asked", "u64"),
    ("waits", "u64"), ("wait_ns", "u64"),          # launches that waited for a twin
    ("timed", "u64"), ("timed_ns", "u64"),         # probed launches timed, the agent's part of them
    ("asks", "u64"), ("ask_ns", "u64"),            # that waited to learn that nothing asks for them
)
STATS_HEADER_SIZE: Final = 4096
STATS_SLOT: Final = (  # 0 collects what has no slot of its own
    ("launches", "u64"),         # accepted by the driver and run now
    ("threads", "u64"), ("blocks", "u64"),                 # of these
    ("probed", "u64"), ("probed_threads", "u64"), ("probed_blocks", "u64"),
    ("captured", "u64"), ("captured_probed", "u64"),       # recorded into a graph, not run now
    ("failed", "u64"),           # refused by the driver
)
STATS_REASONS: Final = 16      # not_probed, a word for each Reason
STATS_SLOT_END: Final = (      # behind them
    # of the last shape that was decided: dynamic shared memory in 32 bits, threads of a block in
    # 16, blocks that an SM holds of the original and of the twin in 8 each; 0: none yet
    ("resident", "u64"),
)
STATS_SLOT_SIZE: Final = 256
STATS_SLOTS: Final = 8192
# Behind the slots, for sessions that ask for stacks: the last probed launches, each at its id
# modulo this, as its id << LAUNCH_ID_SHIFT | the number of its stack plus 1.
LAUNCHES_KEPT: Final = 1 << 16
LAUNCH_ID_SHIFT: Final = 24
# fmt: on

BY_KIND: Final = {message.kind: message for message in MESSAGES}


def _format(fields: tuple[tuple[str, str], ...]) -> str:
    return "<" + "".join(_FORMATS[kind] for _, kind in fields)


def all_fields(message: Message) -> tuple[tuple[str, str], ...]:
    """The fixed fields, sizes of the texts and padding to 8 bytes included."""
    fields = (*message.fields, *((f"{text}_size", "u32") for text in message.texts))
    if struct.calcsize(_format(fields)) % 8:
        fields = (*fields, ("reserved", "u32"))
    return fields


HEADER_SIZE: Final = struct.calcsize(_format(HEADER))
_FIXED: Final = {m.kind: struct.Struct(_format(all_fields(m))) for m in MESSAGES}
_HEADER: Final = struct.Struct(_format(HEADER))


@dataclass(frozen=True, slots=True)
class Packet:
    """A decoded packet: ``fields`` by name, ``texts`` as bytes by name."""

    kind: Kind
    request: int
    fields: dict[str, int]
    texts: dict[str, bytes]

    def text(self, name: str) -> str:
        """A text as str; bytes that are not UTF-8 are kept as surrogates."""
        return self.texts[name].decode("utf-8", "surrogateescape")


def encode(kind: Kind, *, request: int = 0, texts: tuple[bytes, ...] = (), **fields: int) -> bytes:
    """One packet.  ``texts`` in the table's order.  AgentError if it is too large for the wire."""
    message = BY_KIND[kind]
    sizes = {f"{name}_size": len(text) for name, text in zip(message.texts, texts, strict=True)}
    values = [{**fields, **sizes}.get(name) for name, _ in all_fields(message)]
    names = [name for name, _ in all_fields(message)]
    filled = [0 if v is None and n == "reserved" else v for n, v in zip(names, values, strict=True)]
    if None in filled or len(fields) != len(message.fields):
        raise AgentError(f"{kind.name}: fields {sorted(fields)} do not fill the message")
    body = _FIXED[kind].pack(*filled) + b"".join(texts)
    size = HEADER_SIZE + len(body)
    if size > PACKET_LIMIT:
        raise AgentError(f"{kind.name} message of {size} bytes exceeds {PACKET_LIMIT}")
    return _HEADER.pack(WIRE_MAGIC, WIRE_VERSION, kind, size, request) + body


def decode(data: bytes) -> Packet:
    """Read one packet.  AgentError names what is wrong with it."""
    if len(data) < HEADER_SIZE:
        raise AgentError(f"packet of {len(data)} bytes is shorter than its header")
    magic, version, number, size, request = _HEADER.unpack_from(data)
    if magic != WIRE_MAGIC:
        raise AgentError(f"packet does not start with egpu's magic (0x{magic:08x})")
    if version != WIRE_VERSION:
        raise AgentError(f"peer speaks protocol {version}, this is protocol {WIRE_VERSION}")
    if size != len(data):
        raise AgentError(f"packet says {size} bytes and has {len(data)}")
    if number not in BY_KIND:
        raise AgentError(f"unknown message kind {number}")
    message = BY_KIND[Kind(number)]
    fixed = _FIXED[message.kind]
    if len(data) < HEADER_SIZE + fixed.size:
        raise AgentError(f"{message.kind.name} message is cut short")
    values = fixed.unpack_from(data, HEADER_SIZE)
    fields = dict(zip((name for name, _ in all_fields(message)), values, strict=True))
    fields.pop("reserved", None)
    texts: dict[str, bytes] = {}
    at = HEADER_SIZE + fixed.size
    for name in message.texts:
        length = fields.pop(f"{name}_size")
        if at + length > len(data):
            raise AgentError(f"{message.kind.name} message: {name} runs past the end")
        texts[name] = data[at : at + length]
        at += length
    if at != len(data):
        raise AgentError(f"{message.kind.name} message has {len(data) - at} bytes too many")
    return Packet(message.kind, request, fields, texts)


if __name__ == "__main__":
    from egpu.agent.headers import main

    raise SystemExit(main())

"""The wire between a loader program's interposing library and the session: one table.

A stream of requests, each answered by one reply; a header is followed by ``size`` bytes.  ``python
-m egpu.loader.protocol`` writes ``native/loader/protocol.h``; with ``--check`` it only says whether
that is as the tables say.
"""

from __future__ import annotations

import enum
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from egpu.errors import AgentError

MAGIC: Final = 0x4C554745  # "EGUL"
VERSION: Final = 1
SIZE_LIMIT: Final = 1 << 30  # bytes behind a header
NAME_SIZE: Final = 16  # BPF_OBJ_NAME_LEN (Linux uapi)
LICENSE_SIZE: Final = 64


class Op(enum.IntEnum):
    """What a request asks; a number is never used again for something else."""

    HELLO = 1  # a: pid
    MAP_CREATE = 2  # payload MAP; the reply's value is the map's number, its payload one u64
    PROG_LOAD = 3  # a: program type; payload name, licence, instructions; the reply has the log
    LINK = 4  # object: program; a: 1 for return probes, b: 1 for uprobes; payload the place
    UNLINK = 5  # object: link
    LOOKUP = 6  # payload the key; the reply has the value as user space sees it
    UPDATE = 7  # a: flags; payload key and value
    DELETE = 8  # payload the key
    NEXT_KEY = 9  # payload the key, or nothing for the first
    TAKE = 10  # look up and delete
    FREEZE = 11
    RECORDS = 12  # a: most bytes; the reply has records, each a u64 size and bytes padded to 8


# fmt: off
REQUEST: Final = (
    ("magic", "u32"), ("version", "u16"), ("op", "u16"),  # these three never change
    ("object", "u32"), ("size", "u32"), ("a", "u64"), ("b", "u64"),
)
REPLY: Final = (
    ("magic", "u32"), ("version", "u16"), ("op", "u16"),
    ("error", "u32"), ("size", "u32"), ("value", "u64"),  # error: of errno.h, 0 for none
)
MAP: Final = (
    ("type", "u32"), ("key_size", "u32"), ("value_size", "u32"), ("max_entries", "u32"),
    ("flags", "u32"), ("reserved", "u32"),
)  # then NAME_SIZE bytes of name
# fmt: on
_FORMATS: Final = {"u16": "H", "u32": "I", "u64": "Q"}


def layout(fields: tuple[tuple[str, str], ...]) -> struct.Struct:
    """The bytes of a table's struct."""
    return struct.Struct("<" + "".join(_FORMATS[kind] for _, kind in fields))


_REQUEST: Final = layout(REQUEST)
_REPLY: Final = layout(REPLY)
REQUEST_SIZE: Final = _REQUEST.size


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded request header; ``payload`` follows it on the wire."""

    op: Op
    object: int
    size: int
    a: int
    b: int


def decode_request(data: bytes) -> Request:
    """Read a header; AgentError names what is wrong with it."""
    magic, version, number, target, size, a, b = _REQUEST.unpack(data)
    if magic != MAGIC:
        raise AgentError(f"a loader's request does not start with its magic (0x{magic:08x})")
    if version != VERSION:
        raise AgentError(f"the loader's library speaks protocol {version}, this is {VERSION}")
    if size > SIZE_LIMIT:
        raise AgentError(f"a loader's request of {size} bytes")
    try:
        return Request(Op(number), target, size, a, b)
    except ValueError:
        raise AgentError(f"unknown request {number} of a loader") from None


def encode_reply(op: Op, *, error: int = 0, value: int = 0, payload: bytes = b"") -> bytes:
    """A reply, header and payload."""
    return _REPLY.pack(MAGIC, VERSION, op, error, len(payload), value) + payload


def header() -> str:
    """``native/loader/protocol.h``."""
    lines = [
        "/* Written by python -m egpu.loader.protocol; do not edit. */",
        "#pragma once",
        "",
        "#include <stdint.h>",
        "",
        f"#define EGPU_LOADER_MAGIC 0x{MAGIC:08x}u",
        f"#define EGPU_LOADER_VERSION {VERSION}u",
        f"#define EGPU_LOADER_SIZE_LIMIT {SIZE_LIMIT}u",
        f"#define EGPU_LOADER_NAME_SIZE {NAME_SIZE}",
        f"#define EGPU_LOADER_LICENSE_SIZE {LICENSE_SIZE}",
        "",
        "enum egpu_loader_op {",
        *(f"    EGPU_OP_{op.name} = {op.value}," for op in Op),
        "};",
    ]
    for name, fields in (("request", REQUEST), ("reply", REPLY), ("map", MAP)):
        lines += ["", f"struct egpu_loader_{name} {{"]
        lines += [f"    uint{kind[1:]}_t {field};" for field, kind in fields]
        size = layout(fields).size
        lines += ["};", f'_Static_assert(sizeof(struct egpu_loader_{name}) == {size}, "layout");']
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write the header, or with ``--check`` say whether it is as it would be written."""
    path = Path(__file__).resolve().parents[3] / "native" / "loader" / "protocol.h"
    if arguments != ["--check"]:
        path.write_text(header())
        return 0
    if path.read_text() == header():
        return 0
    print(f"{path} is not what python -m egpu.loader.protocol writes", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

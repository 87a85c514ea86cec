"""The values that come out of an object file: instructions, maps, programs.

They are frozen, know nothing of devices, and are the input of the verifier.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from egpu.bpf.btf import Btf
    from egpu.bpf.maptypes import MapType


# Flags of maps (Linux uapi): what may not be done from outside of programs, and by them.
BPF_F_RDONLY, BPF_F_WRONLY = 1 << 3, 1 << 4
BPF_F_RDONLY_PROG, BPF_F_WRONLY_PROG = 1 << 7, 1 << 8

# Beyond all helpers: calls that a program must not reach.
MISSING_HELPER = 0x0BAD0000


@dataclass(frozen=True, slots=True)
class Insn:
    """One 8-byte slot (RFC 9669 section 3).

    LD_IMM64 takes two slots: the second is an ``Insn`` with opcode 0 whose ``imm`` holds the upper
    half.  A pc is therefore an index of slots, as in Linux.  ``off`` and ``imm`` are signed.
    """

    opcode: int
    dst: int = 0
    src: int = 0
    off: int = 0
    imm: int = 0


class PseudoSrc(enum.IntEnum):
    """The source register field of LD_IMM64 (RFC 9669 section 5.4, table "64-bit immediate")."""

    CONST = 0
    MAP_FD = 1
    MAP_FD_VALUE = 2
    VARIABLE = 3
    CODE = 4
    MAP_INDEX = 5  # imm = index into Program.maps: what the object reader produces
    MAP_INDEX_VALUE = 6  # imm = index, next imm = byte offset in the first value


NO_MAP = -1


@dataclass(frozen=True, slots=True)
class MapSpec:
    """A map as the object declares it; sizes in bytes.

    ``initial`` is the content of .rodata/.data (None: zero-filled); ``read_only`` means that
    programs cannot write it, and nobody else once they run; ``deletes`` that they may delete its
    entries.  ``on_device``: a ring whose records are written to device memory; ``stamped``: bytes
    of each of them, if all are written whole by lanes that are alone, else 0.  ``extra`` is
    Linux's map_extra: how many bits of a Bloom filter a value has (0: 5).
    ``inner`` are the indices of the maps in a map of maps by key, ``NO_MAP`` where a key has none;
    all of one shape.
    ``key_type``/``value_type`` are BTF type ids in ``btf``, 0 if unknown.
    """

    name: str
    type: MapType
    key_size: int
    value_size: int
    max_entries: int
    flags: int = 0
    initial: bytes | None = None
    read_only: bool = False
    deletes: bool = field(default=True, repr=False)
    on_device: bool = field(default=False, repr=False)
    stamped: int = field(default=0, repr=False)
    extra: int = field(default=0, repr=False)
    inner: tuple[int, ...] = field(default=(), repr=False)
    pin_by_name: bool = False
    btf: Btf | None = field(default=None, repr=False, compare=False)
    key_type: int = 0
    value_type: int = 0

    @property
    def writable(self) -> bool:
        """Whether programs may change it (Linux: BPF_F_RDONLY_PROG)."""
        return not (self.read_only or self.flags & BPF_F_RDONLY_PROG)

    @property
    def readable(self) -> bool:
        """Whether programs may read its values (Linux: BPF_F_WRONLY_PROG)."""
        return not self.flags & BPF_F_WRONLY_PROG


class AttachKind(enum.Enum):
    """What a program is attached to (design.md section 5)."""

    ENTRY = "kprobe"
    EXIT = "kretprobe"
    INSTRUCTION = "insn"
    HOST_ENTRY = "uprobe"
    HOST_EXIT = "uretprobe"
    LAUNCH = "launch"
    LAUNCH_RETURN = "launchret"
    KERNEL_SPACE = "kernel"  # belongs to the Linux kernel
    EXECUTOR = "executor"  # not attached: `egpu exec`, conformance


HOST_KINDS = frozenset({AttachKind.HOST_ENTRY, AttachKind.HOST_EXIT})


# The detail of INSTRUCTION points that are bpftime's ``kprobe/__memcapture``: every load and store,
# with the text of the instruction as context (``egpu.bpf.context.LINE_FIELDS``).
MEMORY_CAPTURE = "__memcapture"


class Level(enum.Enum):
    """Who runs a probe at a site: every thread, one lane a warp, one thread a block."""

    THREAD = "thread"
    WARP = "warp"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class AttachPoint:
    """One parsed element of a SEC() name.

    ``pattern`` is a glob over mangled or demangled kernel names; ``detail`` is the instruction
    class of INSTRUCTION (or MEMORY_CAPTURE), "lib:symbol" of the host kinds.
    """

    kind: AttachKind
    pattern: str
    level: Level = Level.THREAD
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Function:
    """A sub-program inside ``Program.code``: slots ``start`` to ``start + length``."""

    name: str
    start: int
    length: int
    is_global: bool = False


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of BTF.ext line information: it holds from ``pc`` to the next entry's pc."""

    pc: int
    file: str
    line: int
    column: int
    text: str


@dataclass(frozen=True, slots=True)
class Program:
    """An eBPF program, complete: its main function at slot 0, then every sub-program it reaches.

    Map references in ``code`` are LD_IMM64 with MAP_INDEX or MAP_INDEX_VALUE into ``maps``; local
    calls (src 1) hold pc-relative slot distances.  A call of helper ``MISSING_HELPER + i`` stands
    where the program needs what ``missing[i]`` says is not there.  ``arrives``: it begins with
    ``egpu.bpf.block_exits``'s instructions.
    """

    name: str
    section: str
    code: tuple[Insn, ...]
    functions: tuple[Function, ...]
    maps: tuple[MapSpec, ...] = ()
    attach: tuple[AttachPoint, ...] = ()
    lines: tuple[SourceLine, ...] = ()
    license: str = ""
    missing: tuple[str, ...] = ()
    cookie: int = 0  # what bpf_get_attach_cookie gives
    arrives: bool = False

    @property
    def on_host(self) -> bool:
        """Whether it is attached to places of the host only."""
        return bool(self.attach) and {point.kind for point in self.attach} <= HOST_KINDS


@dataclass(frozen=True, slots=True)
class Object:
    """An object file read: every program and map it defines."""

    name: str
    programs: tuple[Program, ...]
    maps: tuple[MapSpec, ...]
    license: str = ""
    btf: Btf | None = field(default=None, repr=False, compare=False)

    def by_name(self) -> Mapping[str, Program]:
        """The programs by their function name."""
        return {program.name: program for program in self.programs}

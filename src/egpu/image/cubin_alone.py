"""One kernel of a cubin, with what it needs, as a cubin of its own.

A twin is one kernel.  Without the others it is small: quick to put together, to keep on disk, and
to load, and it takes the device's memory once only.  Sections and symbols keep their order and get
new numbers; everything that holds such a number is known by table, and a cubin with anything else
stays whole.

The work is done in C (``native/image``): a launch waits for it.
"""

from __future__ import annotations

from functools import partial
from weakref import WeakKeyDictionary

from egpu.errors import InputError
from egpu.image.cubin import (
    SECTION,
    SEGMENT,
    SHT_SYMTAB,
    Cubin,
    Section,
    header_of,
)
from egpu.image.cubin_contents import Contents
from egpu.image.cubin_edit import CubinParts, Part, Segment, part_of, symbols_of
from egpu.image.cubin_native import NativeCubin
from egpu.image.cubin_tables import Rows


def alone(contents: Contents, kernel: str) -> CubinParts:
    """A cubin with ``kernel`` and what it may use, taken apart; the whole cubin where that is not
    certain.

    InputError when there is no such kernel, or what it needs is malformed; UnsupportedError where
    the library in C was not built.  Debug sections are left out in any case but the last.
    """
    symbol = contents.kernels.get(kernel)
    if symbol is None or not 0 < symbol.section < len(contents.parts.parts):
        raise InputError(f"no kernel {kernel}", where="cubin")
    image = _native(contents).alone(symbol.index)
    return contents.parts if image is None else _taken_apart(image, contents.parts.cubin)


def prepare(contents: Contents) -> None:
    """Finds out what ``alone`` needs to know of the whole cubin, and keeps it; errors as from
    ``alone``."""
    _native(contents)


# As long as somebody has the contents: who keeps them says how many there may be.
_natives: WeakKeyDictionary[Contents, NativeCubin] = WeakKeyDictionary()


def _native(contents: Contents) -> NativeCubin:
    found = _natives.get(contents)
    if found is None:
        found = NativeCubin(contents.parts.cubin, len(contents.parts.parts))
        _natives[contents] = found
    return found


def _taken_apart(image: bytes, whole: Cubin) -> CubinParts:
    """The parts of what was just written, which needs no second look: as ``take_apart`` gives them,
    but all at once, as there are few."""
    header = header_of(image)
    begin, end = header["shoff"], header["shoff"] + header["shnum"] * SECTION.size
    rows = list(SECTION.iter_unpack(image[begin:end]))
    _, _, _, _, begin, size, *_ = rows[header["shstrndx"]]
    names = image[begin : begin + size]
    parts = [part_of(row, names, image) for row in rows]
    begin, end = header["phoff"], header["phoff"] + header["phnum"] * SEGMENT.size
    segments = tuple(map(Segment._make, SEGMENT.iter_unpack(image[begin:end])))
    table = next(each for each in parts if each.type == SHT_SYMTAB)
    symbols = symbols_of(table.data, parts[table.link].data)
    cubin = Cubin(image, whole.arch, whole.suffix, Rows(len(parts), partial(_section, parts)))
    return CubinParts(cubin, tuple(parts), segments, symbols)


def _section(parts: list[Part], at: int) -> Section:
    each = parts[at]
    return Section(each.name, each.type, each.offset, each.size, each.link, each.info)

"""One kernel of a cubin, with what it needs, as a cubin of its own.

A twin is one kernel.  Without the others it is small: quick to put together, to keep on disk, and
to load, and it takes the device's memory once only.  Sections and symbols keep their order and get
new numbers; everything that holds such a number is known by table, and a cubin with anything else
stays whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from egpu.errors import InputError
from egpu.image.cubin_attributes import Attribute, Shape, read_attributes
from egpu.image.cubin_common import common_of, is_known, shape_of
from egpu.image.cubin_contents import Contents
from egpu.image.cubin_edit import CubinParts, Symbol, relocation_table
from egpu.image.cubin_write import Writer


def alone(contents: Contents, kernel: str) -> CubinParts:
    """A cubin with ``kernel`` and what it may use, taken apart; the whole cubin where that is not
    certain.  ``put_together`` gives its bytes.

    InputError when there is no such kernel.  Debug sections are left out in any case but the last.
    """
    symbol = contents.kernels.get(kernel)
    if symbol is None or not 0 < symbol.section < len(contents.parts.parts):
        raise InputError(f"no kernel {kernel}", where="cubin")
    kept = _kept_sections(contents, symbol)
    if kept is None:
        return contents.parts
    return Writer(contents, kept).parts()


def _kept_sections(contents: Contents, kernel: Symbol) -> frozenset[int] | None:
    """Sections of the kernel, what it refers to, and what belongs to none; None if in doubt."""
    parts = contents.parts.parts
    common = common_of(contents)
    kept: set[int] = set()
    work = [kernel.section, *common.sections]
    while work:
        at = work.pop()
        if at in kept:
            continue
        kept.add(at)
        work += contents.about.get(at, ())
        for relocation in contents.relocations.get(at, ()):
            kept.add(relocation)
            named = relocation_table(parts[relocation])["symbol"]
            if len(named) and (most := int(named.max())) >= len(contents.table):
                raise InputError(f"a relocation by symbol {most}", where="cubin")
            sections = set(contents.table["section"][named].tolist())
            work += [section for section in sections if 0 < section < len(parts)]
        if parts[at].name.startswith(".nv.info."):
            work += _named(contents, read_attributes(parts[at].data))
    own = kept.difference(common.sections)
    known = common.known and all(is_known(parts[at]) for at in own)
    return frozenset(kept) if known else None


def _named(contents: Contents, attributes: Iterable[Attribute]) -> Iterable[int]:
    """Sections of the symbols that attributes name."""
    for each in attributes:
        if shape_of(each) is Shape.SYMBOLS:
            for index in each.words():
                section = contents.symbols[index].section if index < len(contents.symbols) else 0
                if 0 < section < len(contents.parts.parts):
                    yield section

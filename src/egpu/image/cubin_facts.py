"""What is known of the sections and attributes of a cubin, for the C that takes kernels out of it.

    python -m egpu.image.cubin_facts [--check]

writes ``native/image/facts.h`` from the tables here and in ``cubin_attributes.py``, or compares it.
"""

from __future__ import annotations

import argparse
import enum
import zlib
from collections.abc import Iterable
from pathlib import Path

from egpu.image.cubin_attributes import ATTRIBUTES, Form, Shape
from egpu.image.cubin_edit import LARGEST_ALIGNMENT

HEADER = Path(__file__).resolve().parents[3] / "native" / "image" / "facts.h"
ROWS = ".nv.info"  # what is said of all kernels, one row each; of one kernel: .nv.info.<name>
DEBUG = (  # sections that a kernel's cubin goes without
    ".debug_",
    ".nv_debug_",
    ".rel.debug_",
    ".rela.debug_",
    ".rel.nv_debug_",
    ".rela.nv_debug_",
)
# Sections whose contents are known to hold no number of a section or symbol, or are renumbered.
KNOWN = (
    ".shstrtab",
    ".strtab",
    ".symtab",
    ".note.nv.",
    ".nv.info",
    ".nv.compat",
    ".nv.callgraph",
    ".nv.rel.action",
    ".nv.constant",
    ".nv.global",
    ".nv.shared",
    ".nv.local",
    ".text.",
    ".rel.text.",
    ".rela.text.",
    ".rel.nv.constant",
    ".rela.nv.constant",
    ".rel.nv.global",
    ".rela.nv.global",
)
_NAMES = {"TEXT": ".text.", "ROWS": ROWS, "CALLS": ".nv.callgraph", "CONSTANTS": ".nv.constant"}


class Answer(enum.IntEnum):
    """What the C answers; the value is the text of the error, with a number, if it is one."""

    DONE = 0
    WHOLE = 1  # something that no assembler writes: the cubin is taken whole
    ROOM = 2  # so many bytes would be needed
    MALFORMED = 3
    NO_MEMORY = 4
    RELOCATION = 5  # by a symbol that is not there
    NO_RELOCATIONS = 6  # a section that holds no whole number of them
    NO_SYMBOL = 7
    NO_SECTION = 8
    BEHIND_ATTRIBUTES = 9  # so many bytes
    ATTRIBUTE_CUT_OFF = 10  # code << 8 | form


# fmt: off
SECTION_FIELDS = (  # struct egpu_section, of u32s
    ("kind",       "IS_CODE and the like"),
    ("describing", "the first section that describes it, EGPU_NONE if none does"),
    ("changing",   "the first one with relocations that change it"),
    ("next",       "in such a list, which is in ascending order: no section is in both"),
)
CUBIN_FIELDS = (  # struct egpu_cubin: who calls gives the first four, egpu_cubin_read the others
    ("const unsigned char *", "data",          "the image"),
    ("uint64_t ",             "size",          "its bytes"),
    ("struct egpu_section *", "sections",      "room for what is found out about each"),
    ("uint64_t ",             "room",          "for so many"),
    ("uint64_t ",             "count",         "sections"),
    ("uint64_t ",             "names_end",     "of their names: where the last one ends"),
    ("uint32_t ",             "section_names", "in which section they are"),
    ("uint32_t ",             "symtab",        "the section of symbols"),
    ("uint32_t ",             "strtab",        "and of their names"),
    ("uint32_t ",             "info",          "the first .nv.info that belongs to no kernel"),
    ("uint32_t ",             "known",         "nothing common to all holds a number that stays"),
)
# fmt: on


def _struct(name: str, fields: Iterable[tuple[str, str, str]]) -> list[str]:
    rows = [f"    {kind}{field}; /* {comment} */" for kind, field, comment in fields]
    return [f"struct {name} {{", *rows, "};", ""]


def _list(name: str, rows: Iterable[str]) -> list[str]:
    """A macro of several rows, for an array."""
    lines = [f"#define EGPU_{name}", *(f"    {each}," for each in rows)]
    return [*(f"{each} \\" for each in lines[:-1]), lines[-1], ""]


def _facts() -> str:
    lines = [
        f"#define EGPU_MOST_ALIGNED {LARGEST_ALIGNMENT}u /* bytes */",
        f"#define EGPU_FORM_SIZED {Form.SIZED:d}u",
        *(f'#define EGPU_{name} "{text}"' for name, text in _NAMES.items()),
        "",
        *_list("KNOWN", (f'"{each}"' for each in KNOWN)),
        *_list("DEBUG", (f'"{each}"' for each in DEBUG)),
        "enum egpu_cubin_answer {",
        *(f"    EGPU_CUBIN_{each.name} = {each.value}," for each in Answer),
        "};",
        "",
        "enum egpu_shape {",
        "    EGPU_SHAPE_UNKNOWN,",
        *(f"    EGPU_SHAPE_{each.name}, /* {each.value} */" for each in Shape),
        "};",
        "",
        *_list(
            "SHAPES /* by the attribute's code */",
            (
                f"[0x{code:02x}] = EGPU_SHAPE_{kind.shape.name}"
                for code, kind in sorted(ATTRIBUTES.items())
            ),
        ),
        *_struct("egpu_section", (("uint32_t ", *each) for each in SECTION_FIELDS)),
        *_struct("egpu_cubin", CUBIN_FIELDS),
    ]
    return "\n".join(lines)


def facts_number() -> int:
    """A number of these facts, by which a library that was built with others is found out."""
    return zlib.crc32(_facts().encode())


def facts_header() -> str:
    """Text of native/image/facts.h."""
    return f"""\
/* Generated by `python -m egpu.image.cubin_facts` from src/egpu/image. Do not edit. */
#ifndef EGPU_IMAGE_FACTS_H
#define EGPU_IMAGE_FACTS_H

#include <stdint.h>

#define EGPU_FACTS 0x{facts_number():08x}u /* of all below: another library has another number */
{_facts()}
#endif
"""


def main() -> int:
    """Write the header, or with ``--check`` compare it; 1 if it is stale."""
    parser = argparse.ArgumentParser(description="generate the C header of a cubin's facts")
    parser.add_argument("--check", action="store_true", help="only compare")
    if not parser.parse_args().check:
        HEADER.write_text(facts_header())
        return 0
    if HEADER.exists() and HEADER.read_text() == facts_header():
        return 0
    print(f"{HEADER} is not what the tables say; run python -m egpu.image.cubin_facts")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Write the tables of guide.md and limits.md from egpu's own tables, or check them (``--check``).

A generated part stands between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from egpu.agent.protocol import Reason
from egpu.bpf.context import FIELDS, Field, Source
from egpu.bpf.helpers import HELPERS, REFUSED
from egpu.bpf.maptypes import MapType, Storage, traits

HERE = Path(__file__).resolve().parent
MARKED = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

# fmt: off
MEANING = {  # context field: what it says where the source alone does not
    "version":     "of this layout",
    "flags":       "of the launch block; bit 0: launched from a graph",
    "sm":          "the multiprocessor that runs the thread",
    "warp":        "warp slot on the SM; may change while the thread runs",
    "active_mask": "lanes that are at the site together",
    "launch_id":   "counts launches of the process; a graph's node keeps one",
    "kernel_id":   "which kernel, as reports name it",
    "param_size":  "bytes of the kernel's parameters",
    "globaltimer": "ns; ticks coarsely on some devices",
    "clock":       "cycles of the SM",
    "start_time":  "ns, when the thread entered the kernel",
    "start_clock": "cycles, when the thread entered the kernel",
    "param":       "the kernel's parameter bytes, zero past their end",
}
REASONS = {  # why a launch was seen and not probed: what it means, what to do
    Reason.UNMATCHED:  ("no probe asks for this kernel", ""),
    Reason.NOT_READY:  ("its twin was not there in time", "a longer `--twin-wait`"),
    Reason.REFUSED:    ("no twin can be made of this kernel", "the report names the construct"),
    Reason.OCCUPANCY:  ("its twin has fewer resident blocks", "`--allow-occupancy-loss`"),
    Reason.RESOURCES:  ("its twin cannot be launched in this shape", "a smaller probe"),
    Reason.PARAMETERS: ("parameters in a form that the agent does not know", ""),
    Reason.GRAPH:      ("a graph node that could not be translated", ""),
    Reason.DETACHED:   ("detached, or the session was gone", ""),
    Reason.ARENA:      ("no map memory in this context", "free device memory"),
    Reason.FORM:       ("a launch call that carries no further parameter", ""),
    Reason.SAMPLED:    ("only one launch in several is probed", "a smaller `--sample`"),
}
STORAGE = {
    Storage.ARRAY:        "one copy in device memory",
    Storage.PER_SM_ARRAY: "a copy per SM; \"CPU\" means SM",
    Storage.PER_SM_HASH:  "the same, with a value per SM for each key",
    Storage.PER_THREAD_ARRAY: "for each key a value of every thread of a launch",
    Storage.RING:         "a ring per SM; drops are counted and reported",
    Storage.DEQUE:        "a circle of values in device memory",
    Storage.MAPS:         "for each key where another map lies",
    Storage.BLOOM:        "bits in device memory",
    Storage.STACKS:       "none on the device: the agent keeps the stacks of launches",
    Storage.HASH:         "a table in device memory; insertions refused by a full map are counted",
}
# fmt: on


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def heading(*cells: str) -> str:
    return row(*cells) + "|" + " --- |" * len(cells) + "\n"


def origin(field: Field) -> str:
    match field.source:
        case Source.PARAMETER:
            return f"kernel parameter {int(field.detail) + 1}, zero-extended (`PT_REGS_PARM`)"
        case Source.SPECIAL:
            return f"PTX `{field.detail}`"
        case Source.LAUNCH:
            return "launch block"
        case Source.START:
            return "saved at kernel entry"
        case Source.PARAM_BYTES:
            return "kernel parameters"
        case Source.CONSTANT:
            return "known when compiled"


def context_table() -> str:
    text = heading("field", "bytes", "from", "what")
    for field in sorted(FIELDS, key=lambda field: field.offset):
        what = MEANING.get(field.name, "")
        if field.exit_only:
            what += "; exit probes only"
        text += row(f"`{field.name}`", str(field.size), origin(field), what)
    return text


def helper_table() -> str:
    text = heading("id", "helper", "cost")
    for helper in sorted(HELPERS.values(), key=lambda helper: helper.id):
        if helper.body or helper.host:
            cost = "programs on the host only" if helper.host else str(helper.cost)
            text += row(str(helper.id), f"`{helper.name}`", cost)
    return text


def missing_helpers() -> str:
    rows = {each.id: (each.name, each.why, each.instead) for each in REFUSED.values()}
    for helper in HELPERS.values():
        if not helper.body:
            where = f"{helper.name} in kernels" if helper.host else helper.name
            rows[helper.id] = (where, helper.missing or "no device body", "")
    text = heading("id", "helper", "why not", "instead")
    for number, (name, why, instead) in sorted(rows.items()):
        shown, _, rest = name.partition(" ")
        text += row(str(number), f"`{shown}` {rest}".strip(), why, instead)
    return text


def map_table() -> str:
    text = heading("type", "number", "memory")
    for kind in MapType:
        storage = traits(kind).storage
        if storage is not None:
            text += row(f"`{kind.name}`", str(kind.value), STORAGE[storage])
    return text


def refused_maps() -> str:
    names = [f"`{kind.name}`" for kind in MapType if traits(kind).storage is None]
    return (", ".join(names) or "none") + "\n"


def reason_table() -> str:
    text = heading("reason", "means", "what helps")
    for reason in Reason:
        text += row(f"`{reason.name.lower()}`", *REASONS[reason])
    return text


TABLES: dict[str, Callable[[], str]] = {
    "context": context_table,
    "helpers": helper_table,
    "missing_helpers": missing_helpers,
    "maps": map_table,
    "refused_maps": refused_maps,
    "reasons": reason_table,
}


def rewritten(text: str) -> str:
    """``text`` with every marked part as the tables have it now."""
    return MARKED.sub(lambda part: part[1] + TABLES[part[2]]() + part[4], text)


def stale() -> list[str]:
    """Documents that differ from the tables."""
    return [
        path.name
        for path in sorted(HERE.glob("*.md"))
        if rewritten(path.read_text()) != path.read_text()
    ]


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        for name in stale():
            print(f"docs/{name}: stale, run python docs/tables.py", file=sys.stderr)
        return 1 if stale() else 0
    if arguments:
        print("usage: tables.py [--check]", file=sys.stderr)
        return 2
    for path in HERE.glob("*.md"):
        path.write_text(rewritten(path.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

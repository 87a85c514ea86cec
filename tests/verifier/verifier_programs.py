"""Programs for the verifier's tests: assembler text, maps, attach points."""

from pathlib import Path
from typing import NamedTuple

from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import AttachKind, AttachPoint, MapSpec
from egpu.errors import VerifierError
from egpu.verifier import Policy, verify

ROOT = Path(__file__).resolve().parents[2]
CONFORMANCE = ROOT.parent / "shared" / "conformance"

TABLE = b"".join(n.to_bytes(4, "little") for n in (3, 1, 4, 1))

# Map 0 to 5 of every program.
MAPS = (
    MapSpec("hits", MapType.PERCPU_ARRAY, 4, 16, 4),
    MapSpec("totals", MapType.ARRAY, 4, 16, 4),
    MapSpec("events", MapType.RINGBUF, 0, 0, 4096),
    MapSpec(".rodata", MapType.ARRAY, 4, 16, 1, initial=TABLE, read_only=True),
    MapSpec(".data", MapType.ARRAY, 4, 16, 1, initial=bytes(16)),
    MapSpec("table", MapType.HASH_OF_MAPS, 4, 8, 64),
)

ENTRY = (AttachPoint(AttachKind.ENTRY, "*"),)
EXIT = (AttachPoint(AttachKind.EXIT, "*"),)

# r0 = pointer to value 0 of map {0}, or null
LOOKUP = """
stw [%r10-4], 0
lddw %r1, map_index {0}
mov %r2, %r10
add %r2, -4
call 1
"""
# r6 = pointer to value 0 of map {0}, never null
VALUE = (
    LOOKUP
    + """
mov %r6, %r0
jne %r6, 0, found
mov %r0, 0
exit
found:
"""
)
RESERVE = """
lddw %r1, map_index 2
mov %r2, {0}
mov %r3, 0
call 131
"""
END = """
mov %r0, 0
exit
"""


def program(text, *, attach=ENTRY, name="p"):
    return program_from_code(assemble(text), name, maps=MAPS, attach=attach)


def check(text, *, attach=ENTRY, policy=Policy.PROBE, **options):
    """Verify assembler text as an attached probe by default."""
    return verify(program(text, attach=attach), policy=policy, **options)


def refusal(text, **options):
    """The VerifierError that ``text`` meets."""
    try:
        check(text, **options)
    except VerifierError as error:
        return error
    raise AssertionError(f"accepted:\n{text}")


def has_conformance():
    return (CONFORMANCE / "tests").is_dir()


def expand(text):
    """Replace ``@name argument`` lines by the common parts."""
    parts = {"@value": VALUE, "@lookup": LOOKUP, "@reserve": RESERVE, "@end": END}
    lines = []
    for line in text.splitlines():
        name, *arguments = line.split() or [""]
        lines.append(parts[name].format(*arguments) if name.startswith("@") else line)
    return "\n".join(lines)


class Pair(NamedTuple):
    """A rule, a program that passes in silence, one that is refused (or passes with a warning, if
    ``warned``), and the text of that."""

    rule: str
    accepted: str
    refused: str
    message: str
    warned: bool


def read_pairs(name="rules.txt"):
    """The pairs of a file by name."""
    pairs = {}
    text = Path(__file__).with_name(name).read_text()
    for block in text.split("\n== ")[1:]:
        head, rest = block.split("\n", 1)
        warned = "\n-- warned\n" in rest
        accepted, rest = rest.split("\n-- warned\n" if warned else "\n-- refused\n")
        refused, message = rest.split("\n-- ")
        name, rule = head.split()
        assert name not in pairs
        pairs[name] = Pair(rule, expand(accepted), expand(refused), message.strip(), warned)
    return pairs

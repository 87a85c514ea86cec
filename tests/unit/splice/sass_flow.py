"""What lies behind each other on every way through spliced code.

Every check walks the same graph and gives what it objects to as text, nothing if that is nothing.
"""

import heapq
import re
from dataclasses import dataclass

# A register may be written under conditions: bit n of a mask for "if this predicate is (not) true",
# and one for "in any case".
_LITERALS = [
    f"{no}{kind}{number}" for kind in ("P", "UP") for number in range(7) for no in ("", "!")
]
_BIT = {literal: 1 << at for at, literal in enumerate(_LITERALS)}
_ALWAYS = 1 << len(_LITERALS)
_ALL = 2 * _ALWAYS - 1
_TRUE = sum(_BIT[literal] for literal in _LITERALS if literal[0] != "!")
_NEVER = ("!PT", "!UPT")
_PARTING = ("YIELD", "BSYNC", "CALL", "RET", "BREAK", "WARPSYNC", "NANOSLEEP")


def _not(mask):
    return (mask & _TRUE) << 1 | mask >> 1 & _TRUE


def _negated(literal):
    return literal[1:] if literal.startswith("!") else f"!{literal}"


@dataclass(frozen=True)
class State:
    """``written``: for each name the mask of conditions of which any one is enough; ``known``: of
    those that hold here."""

    written: dict
    known: int = 0

    def mask(self, name):
        found = self.written.get(name, 0)
        return _ALL if found & (_ALWAYS | self.known) else found | _not(self.known)

    def has(self, name, guard):
        found = self.mask(name)
        return bool(found & (_BIT[guard] | _ALWAYS if guard else _ALWAYS))

    def merged(self, other):
        written = {}
        for name in self.written.keys() | other.written.keys():
            both = self.mask(name) & other.mask(name)
            if both:
                written[name] = _ALWAYS if both & _ALWAYS else both
        return State(written, self.known & other.known)

    def knowing(self, literal):
        """None where that cannot be."""
        if literal in _NEVER or self.known & _BIT.get(_negated(literal), 0):
            return None
        return State(self.written, self.known | _BIT.get(literal, 0))


def _after(state, line):
    """What is written behind an instruction; of predicates also whether they are the same for all
    lanes ("=P0")."""
    found = line.operands
    guard = found.guard
    if guard in _NEVER:
        return state
    written = dict(state.written)
    implied = _implied(found)
    for name in found.writes:
        if name.lstrip("U")[0] != "P":
            continue
        own = _BIT[name] | _BIT[f"!{name}"]
        for each, mask in state.written.items():
            if mask & _ALWAYS:
                continue
            new = written[each] & ~own
            if not guard:
                for mine, theirs in implied:
                    if mine.lstrip("!") == name and state.mask(each) & _BIT[theirs]:
                        new |= _BIT[mine]
            written[each] = new
    known = state.known
    for name in found.writes:
        if name.lstrip("U")[0] == "P":
            known &= ~(_BIT[name] | _BIT[f"!{name}"])
    source = _copied(found)
    for name in found.writes:
        if source:  # halves of pairs that nobody needs are copied, too
            written[name] = state.mask(source)
        elif not guard or state.known & _BIT[guard]:
            written[name] = _ALWAYS
        else:
            mask = written.get(name, 0) | _BIT[guard]
            both = mask & _BIT[_negated(guard)]
            written[name] = _ALWAYS if both or mask & _ALWAYS else mask
        if name.startswith("P"):
            inputs = all(written.get(f"={each}") for each in found.reads if each[0] == "P")
            plain = not guard and inputs and _same(found)
            written[f"={name}"] = _ALWAYS if plain else 0
    return State({name: mask for name, mask in written.items() if mask}, known)


def _copied(found):
    """The register that is copied and nothing else, "" if that is not what an instruction does."""
    (*others, source) = found.operands or ("",)
    plain = not found.guard and found.name in ("MOV", "IMAD.MOV.U32") and source[0] == "R"
    return source.removesuffix(".reuse") if plain and found.reads and others else ""


def _same(found):
    return found.name.startswith("ISETP") and not any(each[0] == "R" for each in found.reads)


def _implied(found):
    """(literal, literal) of what follows from a predicate that is written now for what was there
    before."""
    parts = found.operands
    if found.name.startswith(("ISETP", "UISETP")):
        old = parts[4]
        if old.lstrip("!") in ("PT", "UPT"):
            return []
        results = [each for each in parts[:2] if each not in ("PT", "UPT")]
        if ".AND" in found.name:
            return [(each, old) for each in results]
        return [(f"!{each}", _negated(old)) for each in results] if ".OR" in found.name else []
    if found.name == "PLOP3.LUT":
        return [
            pair
            for result, table in zip(parts[:2], parts[5:7], strict=True)
            if result != "PT"
            for pair in _of_table(result, parts[2:5], int(table, 16))
        ]
    return []


def _of_table(result, inputs, table):
    found = []
    for literal, value in ((result, 1), (f"!{result}", 0)):
        rows = [
            row
            for row in range(8)
            if table >> row & 1 == value
            and all(not (name == "PT" and not row >> 2 - at & 1) for at, name in enumerate(inputs))
            and all(not (name == "!PT" and row >> 2 - at & 1) for at, name in enumerate(inputs))
        ]
        for at, name in enumerate(inputs):
            if name.lstrip("!") == "PT" or not rows:
                continue
            values = {row >> 2 - at & 1 for row in rows}
            if len(values) == 1:
                found.append((literal, name if values == {1} else _negated(name)))
    return found


def _has_second(line):
    """Whether a jump has another predicate, or a uniform register, beside its guard."""
    return bool(re.match(r"!?U?[PR]\w", (*line.operands.operands, "")[0]))


def following(lines, place):
    """(place, literal that holds there or "") of where lanes can be after an instruction.

    A place is an index and where the functions on the way to it return to.
    """
    at, returns = place
    line = lines[at]
    kind, guard = line.operands.name.split(".")[0], line.operands.guard
    second = kind in ("BRA", "EXIT") and _has_second(line)
    otherwise = ((at + 1, returns), _negated(guard) if guard and not second else "")
    if kind == "EXIT":
        return [otherwise] if guard or second else []
    if kind == "BRA":
        taken = ((line.target, returns), guard)
        return [taken, otherwise] if guard or second else [taken]
    if kind == "CALL":
        assert at + 1 not in returns, "a function that calls itself"
        taken = ((line.target, (*returns, at + 1)), guard)
        return [taken, otherwise] if guard else [taken]
    if kind == "RET":
        taken = ((returns[-1], returns[:-1]), guard)
        return [taken, otherwise] if guard else [taken]
    return [((at + 1, returns), "")]


def states(lines, start, initial, transfer, within):
    """The state before each instruction that is reached from ``start``, by place."""
    found = {(start, ()): initial}
    work = [(start, ())]
    while work:  # in the order in which the code lies, as far as it goes
        place = heapq.heappop(work)
        after = transfer(found[place], lines[place[0]])
        for to, literal in following(lines, place):
            if to[0] not in within:
                continue
            state = after.knowing(literal) if literal else after
            if state is None:
                continue
            new = found[to].merged(state) if to in found else state
            if to not in found or new != found[to]:
                found[to] = new
                if to not in work:
                    heapq.heappush(work, to)
    return found


def unwritten(lines, start, within, initial=()):
    """Reads of what is not written on every way from ``start``."""
    begin = State(dict.fromkeys(initial, _ALWAYS))
    found = states(lines, start, begin, _after, within)
    return _reads(lines, found, set())


def _reads(lines, found, exempt):
    out = []
    for (at, _), state in sorted(found.items(), key=lambda each: each[0]):
        operands = lines[at].operands
        if operands.guard in _NEVER:
            continue
        guard = operands.guard
        names = operands.reads | ({guard.lstrip("!")} if guard else set())
        names -= {_copied(operands)}
        out += [
            f"{at * 16:#x} {lines[at].text}: {name}"
            for name in sorted(names - exempt)
            if not state.has(name, "" if name == guard.lstrip("!") else guard)
        ]
    return out


def written_at_end(lines, start, within):
    """What is written wherever lanes go back to the kernel."""
    found = states(lines, start, State({}), _after, within)
    ends = [
        place for place in found if any(to[0] not in within for to, _ in following(lines, place))
    ]
    return set.intersection(
        *({name for name in found[end].written if found[end].has(name, "")} for end in ends)
    )


def spoilt(lines, start, within):
    """Reads of what a warp has once, after another group of its lanes may have written it.

    What holds one constant wherever it is written may be read.
    """

    def transfer(state, line):
        kind, guard = line.operands.name.split(".")[0], line.operands.guard
        after = _after(state, line)
        alike = not guard or f"={guard.lstrip('!')}" in state.written
        if kind not in _PARTING and not (kind == "BRA" and (not alike or _has_second(line))):
            return after
        kept = {name: mask for name, mask in after.written.items() if name[0] != "U"}
        return State(kept, after.known & ~_UNIFORM)

    reached = states(lines, start, State({}), transfer, within)
    values = {}
    for at, _ in reached:
        found = lines[at].operands
        for name in found.writes:
            constant = (found.name == "UMOV" and not found.reads) or found.name.startswith("ULDC")
            values.setdefault(name, set()).add(
                re.sub(r"^@\S+ ", "", lines[at].text) if constant else at
            )
    single = {
        name
        for name, each in values.items()
        if len(each) == 1 and isinstance(next(iter(each)), str)
    }
    lanes = {name for name in _names(lines, reached) if name[0] != "U"}
    return _reads(lines, reached, single | lanes)


_UNIFORM = sum(_BIT[literal] for literal in _LITERALS if "U" in literal)


def _names(lines, reached):
    found = set()
    for at, _ in reached:
        operands = lines[at].operands
        found |= operands.reads | operands.writes
        if operands.guard:
            found.add(operands.guard.lstrip("!"))
    return found

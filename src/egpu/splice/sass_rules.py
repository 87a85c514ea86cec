"""What went wrong before it had a rule: hazards of machine code that is put together.

Each row corrupted results or stopped a kernel on real hardware, most of them rarely.  The splicer
asks the table; the tests take one row out at a time and see the damage in the bytes.
"""

from __future__ import annotations

import enum
import functools

import numpy as np

from egpu.splice.sass_code import Code
from egpu.splice.sass_encoding import (
    ALL_SCOREBOARDS,
    BASE,
    DESTINATION,
    GUARD,
    LATE_READERS,
    LDC,
    LOADS,
    MEETINGS,
    NO_SCOREBOARD,
    NOP,
    OPCODE,
    PT,
    READ_SCOREBOARD,
    RZ,
    SECOND_GUARD,
    SLOW,
    STALL,
    WAIT,
    WRITE_SCOREBOARD,
    YIELD,
    Field,
    branch,
    instruction,
    is_store,
    loads_stack_pointer,
)
from egpu.splice.sass_native import Change, Changes


class Rule(enum.Enum):
    """A hazard and what is done about it."""

    LATE_READS = (
        "stores and reductions read their sources after they issue, and the assembler sets no "
        "scoreboard for that before EXIT: they get one, in the kernel and in the probe"
    )
    VISIBLE_SCOREBOARD = (
        "a scoreboard is seen two cycles after the instruction that sets it: its stall is at "
        "least 2"
    )
    LANDED_LOADS = (
        "loads may be in flight where lanes leave or a probe ends: what follows first waits on all "
        "six scoreboards; a volatile load whose result nothing needs has none, and gets one; so do "
        "those that the assembler knows to have landed when a load that is taken out has"
    )
    REGISTER_MARGIN = (
        "the hardware needs a register count of the highest register plus three, or the "
        "instruction is illegal"
    )
    SECOND_PREDICATE = (
        "EXIT has a second predicate: the jump that replaces it carries both, or lanes leave that "
        "should stay"
    )
    EXIT_STALL = (
        "lanes that do not leave go on behind an EXIT, which holds them until what was computed "
        "before it can be read: the jump that replaces it holds them as long"
    )
    OWN_UNIFORMS = (
        "uniform registers, uniform predicates and convergence barriers belong to the warp, not to "
        "the lanes that leave: the exit probe gets numbers that the kernel does not use"
    )
    NO_CARRIED_UNIFORMS = (
        "several groups of a warp's lanes can be inside the exit probe: no uniform value of one "
        "group lives across a branch, or a YIELD, at which the warp runs another group; lanes that "
        "try again may wait for one, so YIELD stays"
    )
    NO_MEETING = (
        "a convergence barrier has one set of lanes for the whole warp, and groups of leaving "
        "lanes that are in the probe at once spoil it for each other: they are merged and run on "
        "with one lane's mask, in which others wait for ever or are an illegal instruction; so in "
        "an exit probe no lanes meet, and none work together"
    )
    MEETING_AGAIN = (
        "lanes that part in an entry probe go on one by one behind the assembler's last "
        "bar.warp.sync, and the kernel exchanges values between lanes as if all were there: they "
        "meet at a convergence barrier behind the probe"
    )
    LATE_STACK_POINTER = (
        "a kernel that keeps nothing on the stack loads the stack pointer all the same, and waits "
        "for it nowhere: the load may land in an exit probe, behind its own, which then reads what "
        "it stored from another place; it is taken out where an exit probe has a stack"
    )


EVERY_RULE = frozenset(Rule)
_OWN_SCOREBOARD = 5
_BASES = np.arange(1 << OPCODE.width) & (1 << BASE.width) - 1  # of each opcode
_LOADS = np.isin(_BASES, sorted(LOADS))
_READS_LATE = np.isin(_BASES, sorted(LATE_READERS))
_VISIBLE_AFTER = 2


def with_scoreboards(code: Code, rules: frozenset[Rule]) -> Code:
    """A kernel's code; every store has a scoreboard that tells when its sources were read, and
    every load one that tells when its result is there."""
    data = _changes(rules).made_in(code.data())
    return code if data is None else code.with_bytes(data)


@functools.lru_cache(maxsize=32)
def _changes(rules: frozenset[Rule]) -> Changes:
    free: tuple[tuple[Field, int], ...] = ((WRITE_SCOREBOARD, NO_SCOREBOARD),)
    least = (STALL, _VISIBLE_AFTER) if Rule.VISIBLE_SCOREBOARD in rules else None
    found = []
    if Rule.LANDED_LOADS in rules:
        gets, nobody = (WRITE_SCOREBOARD, _OWN_SCOREBOARD), (DESTINATION, RZ)
        found.append(Change(_LOADS, free, gets, but=nobody, least=least))
    if Rule.LATE_READS in rules:
        free += ((READ_SCOREBOARD, NO_SCOREBOARD),)
        found.append(Change(_READS_LATE, free, (READ_SCOREBOARD, _OWN_SCOREBOARD), least=least))
    return Changes(found)


@functools.lru_cache(maxsize=256)
def tracked(words: tuple[int, ...], rules: frozenset[Rule]) -> tuple[int, ...]:
    """The same of a probe's code."""
    return tuple(_tracked(word, rules) for word in words)


def _tracked(word: int, rules: frozenset[Rule]) -> int:
    if WRITE_SCOREBOARD.of(word) != NO_SCOREBOARD:
        return word
    if BASE.of(word) in LOADS and DESTINATION.of(word) != RZ and Rule.LANDED_LOADS in rules:
        return _visible(WRITE_SCOREBOARD.set(word, _OWN_SCOREBOARD), rules)
    reads = is_store(word) and READ_SCOREBOARD.of(word) == NO_SCOREBOARD
    if reads and Rule.LATE_READS in rules:
        return _visible(READ_SCOREBOARD.set(word, _OWN_SCOREBOARD), rules)
    return word


@functools.lru_cache(maxsize=256)
def settled(words: tuple[int, ...], rules: frozenset[Rule]) -> tuple[int, ...]:
    """A probe's code whose loads from shared memory will be something else: whatever the assembler
    gives no scoreboard gets one.

    What is under way comes to an end in its order: where a load from shared memory is waited for,
    or overwrites what a reduction reads, the assembler takes all before it for done.
    """
    return tuple(
        _visible(WRITE_SCOREBOARD.set(word, _OWN_SCOREBOARD), rules)
        if BASE.of(word) in SLOW
        and WRITE_SCOREBOARD.of(word) == NO_SCOREBOARD
        and not loads_stack_pointer(word)
        and Rule.LANDED_LOADS in rules
        else _tracked(word, rules)
        for word in words
    )


def before_wait(word: int, rules: frozenset[Rule]) -> int:
    """An instruction right before one that waits: a scoreboard that it sets is seen by then."""
    sets = {WRITE_SCOREBOARD.of(word), READ_SCOREBOARD.of(word)} != {NO_SCOREBOARD}
    return _visible(word, rules) if sets else word


def _visible(word: int, rules: frozenset[Rule]) -> int:
    early = Rule.VISIBLE_SCOREBOARD in rules and STALL.of(word) < _VISIBLE_AFTER
    return STALL.set(word, _VISIBLE_AFTER) if early else word


def without_late_stack_pointer(code: Code, rules: frozenset[Rule]) -> Code:
    """A kernel's code for an exit probe that has a stack, which loads the pointer for itself."""
    if Rule.LATE_STACK_POINTER not in rules:
        return code
    late = [index for index in code.where(LDC) if loads_stack_pointer(code[index])]
    return code.with_words({index: nothing(code[index]) for index in late})


def after_everything(word: int, rules: frozenset[Rule]) -> int:
    """An instruction that waits until whatever is in flight has landed."""
    return WAIT.set(word, ALL_SCOREBOARDS) if Rule.LANDED_LOADS in rules else word


def jump_for_exit(word: int, arch: int, distance: int, rules: frozenset[Rule]) -> int:
    """The branch that takes an EXIT's place: the same lanes take it, after the same waits, and the
    others go on as late."""
    second = SECOND_GUARD.of(word) if Rule.SECOND_PREDICATE in rules else PT
    jump = branch(arch, distance, guard=GUARD.of(word), second=second, wait=WAIT.of(word))
    return as_long(jump, word, rules)


def as_long(jump: int, word: int, rules: frozenset[Rule]) -> int:
    """A jump that keeps lanes which do not take it as long as the instruction in whose place it
    stands, if that is longer than a jump takes."""
    if Rule.EXIT_STALL not in rules or STALL.of(word) <= STALL.of(jump):
        return jump
    return YIELD.set(STALL.set(jump, STALL.of(word)), YIELD.of(word))


def register_count(highest: int, rules: frozenset[Rule]) -> int:
    """The register count for code whose highest register is ``highest``."""
    return highest + (3 if Rule.REGISTER_MARGIN in rules else 1)


@functools.lru_cache(maxsize=256)
def without_meetings(words: tuple[int, ...], rules: frozenset[Rule]) -> tuple[int, ...]:
    """Code with NOPs in the place of convergence barriers, whose lanes go on by themselves."""
    if Rule.NO_MEETING not in rules:
        return words
    return tuple(nothing(word) if OPCODE.of(word) in MEETINGS else word for word in words)


def nothing(word: int) -> int:
    """A NOP that takes as long as an instruction of a probe, and waits for what it waits for:
    others behind it count on both."""
    return YIELD.set(instruction(NOP, stall=STALL.of(word), wait=WAIT.of(word)), YIELD.of(word))

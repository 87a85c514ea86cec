"""The protocol of egpu.codegen.hashes as a machine of single memory accesses, to be run in every
order.

All keys have the same home and the same bits of the hash, which is the worst case.  A step of a
lane is one access to shared memory; ``explore`` takes every order of the steps of all lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

FREE, CLAIMED, ENTERING, FULL = range(4)
DONE = "done"


class Slot(NamedTuple):
    """``number`` is the incarnation."""

    state: int = FREE
    number: int = 0
    key: str = ""
    pins: int = 0

    @property
    def word(self):
        return self.state, self.number


class Memory(NamedTuple):
    slots: tuple[Slot, ...]
    reach: int
    count: int
    entering: int
    room: int
    evicts: bool = False
    evicted: int = 0

    def put(self, at: int, **changes) -> Memory:
        slots = list(self.slots)
        slots[at] = slots[at]._replace(**changes)
        return self._replace(slots=tuple(slots))

    def swap(self, at: int, old: tuple[int, int], new: tuple[int, int]) -> tuple[bool, Memory]:
        if self.slots[at].word != old:
            return False, self
        return True, self.put(at, state=new[0], number=new[1])


class Lane(NamedTuple):
    """``own`` and ``mine`` are the claimed slot and its incarnation; ``flag`` is what the step at
    hand needs to remember."""

    operation: str
    key: str
    retries: int
    step: str = "reach"
    at: int = 0
    limit: int = 0
    word: tuple[int, int] = (FREE, 0)
    same: bool = False
    own: int = -1
    mine: int = 0
    flag: bool = False
    full: bool = False  # the look is the second, in a map that is full
    result: str = ""

    def go(self, step: str, **changes) -> Lane:
        return self._replace(step=step, **changes)

    def give(self, result: str) -> Lane:
        return Lane(self.operation, self.key, 0, DONE, result=result)

    def again(self) -> Lane:
        if self.retries == 0:
            return self.give("busy")
        return Lane(self.operation, self.key, self.retries - 1)


Outcome = Iterator[tuple[Memory, Lane]]


class WrongSlotError(AssertionError):
    """A value was written into a slot that belongs to somebody else."""


def reach(memory: Memory, lane: Lane) -> Outcome:
    following = lane.go("look", at=0, limit=memory.reach)
    yield memory, following if memory.reach else absent(lane)


def look(memory: Memory, lane: Lane) -> Outcome:
    word = memory.slots[lane.at].word
    yield memory, lane.go("key", word=word) if word[0] == FULL else looked(lane)


def key(memory: Memory, lane: Lane) -> Outcome:
    yield memory, lane.go("look_again", same=memory.slots[lane.at].key == lane.key)


def look_again(memory: Memory, lane: Lane) -> Outcome:
    steady = memory.slots[lane.at].word == lane.word
    yield memory, present(lane) if lane.same and steady else looked(lane)


def looked(lane: Lane) -> Lane:
    return lane.go("look", at=lane.at + 1) if lane.at + 1 < lane.limit else absent(lane)


def present(lane: Lane) -> Lane:
    if lane.full:
        return lane.again()
    return {
        "insert": lambda: lane.give("exists"),
        "delete": lambda: lane.go("delete"),
        "update": lambda: lane.go("pin"),
    }[lane.operation]()


def absent(lane: Lane) -> Lane:
    if lane.full:
        return lane.give("no room")
    return lane.go("room") if lane.operation == "insert" else lane.give("absent")


def delete(memory: Memory, lane: Lane) -> Outcome:
    won, after = memory.swap(lane.at, lane.word, (FREE, lane.word[1] + 1))
    yield after, lane.go("uncount") if won else lane.give("absent")


def uncount(memory: Memory, lane: Lane) -> Outcome:
    yield memory._replace(count=memory.count - 1), lane.give("deleted")


def pin(memory: Memory, lane: Lane) -> Outcome:
    yield memory.put(lane.at, pins=memory.slots[lane.at].pins + 1), lane.go("pinned")


def pinned(memory: Memory, lane: Lane) -> Outcome:
    steady = memory.slots[lane.at].word == lane.word
    yield memory, lane.go("value" if steady else "unpin", flag=steady)


def value(memory: Memory, lane: Lane) -> Outcome:
    slot = memory.slots[lane.at]
    kept = slot.word == lane.word
    if not kept and slot.state not in (FREE, CLAIMED):
        raise WrongSlotError
    # CLAIMED by somebody who has not looked at the pins yet is all right, unless it wrote its key.
    if not kept and slot.key != lane.key:
        raise WrongSlotError
    yield memory, lane.go("unpin")


def unpin(memory: Memory, lane: Lane) -> Outcome:
    after = memory.put(lane.at, pins=memory.slots[lane.at].pins - 1)
    yield after, lane.give("updated") if lane.flag else lane.again()


def room(memory: Memory, lane: Lane) -> Outcome:
    if memory.evicts:
        yield memory, lane.go("claim", at=0, flag=False)
    elif memory.count >= memory.room:
        yield memory, lane.go("reach", full=True)
    elif memory.count + memory.entering >= memory.room:
        yield memory, lane.again()
    else:
        yield memory, lane.go("claim", at=0, flag=False)


def claim(memory: Memory, lane: Lane) -> Outcome:
    word = memory.slots[lane.at].word
    if word[0] == FREE:
        yield memory, lane.go("take", word=word)
    else:
        yield memory, taken(memory, lane, word[0])


def take(memory: Memory, lane: Lane) -> Outcome:
    won, after = memory.swap(lane.at, lane.word, (CLAIMED, lane.word[1]))
    if won:
        yield after, lane.go("unpinned", own=lane.at, mine=lane.word[1])
    else:
        yield memory, taken(memory, lane, memory.slots[lane.at].state)


def taken(memory: Memory, lane: Lane, state: int) -> Lane:
    """The slot is not to be had: all keys have the same bits, so who fills it may be a twin."""
    if state in (CLAIMED, ENTERING):
        return lane.again()
    return passed_by(memory, lane, flag=lane.flag or state == FREE)


def passed_by(memory: Memory, lane: Lane, *, flag: bool) -> Lane:
    if lane.at + 1 < len(memory.slots):
        return lane.go("claim", at=lane.at + 1, flag=flag)
    return lane.again() if flag else lane.go("reach", full=True)


def unpinned(memory: Memory, lane: Lane) -> Outcome:
    if memory.slots[lane.own].pins:
        yield memory, lane.go("give_back")
    else:
        yield memory, lane.go("raise" if memory.evicts else "reserve")


def give_back(memory: Memory, lane: Lane) -> Outcome:
    after = memory.put(lane.own, state=FREE, number=lane.mine + 1)
    yield after, passed_by(memory, lane, flag=True)


def reserve(memory: Memory, lane: Lane) -> Outcome:
    fits = memory.count + memory.entering < memory.room
    after = memory._replace(entering=memory.entering + 1)
    yield after, lane.go("raise" if fits else "unreserve")


def raise_reach(memory: Memory, lane: Lane) -> Outcome:
    yield memory._replace(reach=max(memory.reach, lane.own + 1)), lane.go("write")


def write(memory: Memory, lane: Lane) -> Outcome:
    yield memory.put(lane.own, key=lane.key), lane.go("enter")


def enter(memory: Memory, lane: Lane) -> Outcome:
    yield memory.put(lane.own, state=ENTERING), lane.go("settle_reach")


def settle_reach(memory: Memory, lane: Lane) -> Outcome:
    yield memory, settle_at(lane, 0, memory.reach)


def settle_at(lane: Lane, at: int, limit: int) -> Lane:
    if at == lane.own:
        at += 1
    return lane.go("settle", at=at, limit=limit) if at < limit else lane.go("become")


def settle(memory: Memory, lane: Lane) -> Outcome:
    word = memory.slots[lane.at].word
    if word[0] in (ENTERING, FULL):
        yield memory, lane.go("rival", word=word)
    else:
        yield memory, settle_at(lane, lane.at + 1, lane.limit)


def rival(memory: Memory, lane: Lane) -> Outcome:
    yield memory, lane.go("judge", same=memory.slots[lane.at].key == lane.key)


def judge(memory: Memory, lane: Lane) -> Outcome:
    if memory.slots[lane.at].word != lane.word:
        yield from changed(memory, lane)
    elif not lane.same:
        yield memory, settle_at(lane, lane.at + 1, lane.limit)
    elif lane.word[0] == ENTERING and lane.at > lane.own:
        yield memory, lane.go("undo")
    else:
        yield memory, lane.go("unreserve")


def undo(memory: Memory, lane: Lane) -> Outcome:
    won, after = memory.swap(lane.at, lane.word, (CLAIMED, lane.word[1]))
    if won:
        yield after, settle_at(lane, lane.at + 1, lane.limit)
    else:
        yield from changed(memory, lane)


def changed(memory: Memory, lane: Lane) -> Outcome:
    """Looks again, or has done so too often."""
    yield memory, lane.go("settle")
    yield memory, lane.go("unreserve")


def become(memory: Memory, lane: Lane) -> Outcome:
    won, after = memory.swap(lane.own, (ENTERING, lane.mine), (FULL, lane.mine))
    yield after, lane.go("commit" if won else "unreserve")


def commit(memory: Memory, lane: Lane) -> Outcome:
    if memory.evicts:
        after = memory._replace(count=memory.count + 1)
        yield after, lane.go("owe") if memory.count >= memory.room else lane.give("inserted")
        return
    after = memory._replace(count=memory.count + 1, entering=memory.entering - 1)
    yield after, lane.give("inserted")


def owe(memory: Memory, lane: Lane) -> Outcome:
    """Looks for an entry to free; which is the oldest, anybody may see otherwise."""
    yield memory, lane  # nothing was found, or something has changed
    for at, slot in enumerate(memory.slots):
        if slot.state == FULL and at != lane.own:
            yield memory, lane.go("evict", at=at, word=slot.word)


def evict(memory: Memory, lane: Lane) -> Outcome:
    won, after = memory.swap(lane.at, lane.word, (FREE, lane.word[1] + 1))
    after = after._replace(evicted=after.evicted + won)
    yield after, lane.go("paid" if won else "owe")


def paid(memory: Memory, lane: Lane) -> Outcome:
    yield memory._replace(count=memory.count - 1), lane.give("inserted")


def unreserve(memory: Memory, lane: Lane) -> Outcome:
    reserved = 0 if memory.evicts else 1
    yield memory._replace(entering=memory.entering - reserved), lane.go("withdraw")


def withdraw(memory: Memory, lane: Lane) -> Outcome:
    yield memory.put(lane.own, state=FREE, number=lane.mine + 1), lane.again()


STEPS = {
    function.__name__: function
    for function in (
        reach, look, key, look_again, delete, uncount, pin, pinned, value, unpin, room, claim, take,
        unpinned, give_back, reserve, write, enter, settle_reach, settle, rival, judge, undo,
        become, commit, owe, evict, paid, unreserve, withdraw,
    )
} | {"raise": raise_reach}  # fmt: skip

State = tuple[Memory, tuple[Lane, ...]]


def explore(start: State) -> tuple[int, set[State]]:
    """How many states there are from ``start``, and those in which every lane is done.

    AssertionError if a key is in two slots, or there are more entries than room.
    """
    seen = {start}
    pending = [start]
    ends = set()
    while pending:
        memory, lanes = state = pending.pop()
        check(memory)
        moved = False
        for number, lane in enumerate(lanes):
            if lane.step == DONE:
                continue
            moved = True
            for after, following in STEPS[lane.step](memory, lane):
                reached = after, (*lanes[:number], following, *lanes[number + 1 :])
                if reached not in seen:
                    seen.add(reached)
                    pending.append(reached)
        if not moved:
            ends.add(state)
    return len(seen), ends


def check(memory: Memory) -> None:
    keys = [slot.key for slot in memory.slots if slot.state == FULL]
    assert len(keys) == len(set(keys)), f"a key is there twice: {memory}"
    assert len(keys) <= memory.room or memory.evicts, f"too many entries: {memory}"
    assert memory.entering >= 0

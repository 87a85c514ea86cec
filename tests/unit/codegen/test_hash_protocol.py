"""Every order in which two or three lanes can take the steps of the hash maps' protocol."""

import pytest
from hash_model import (
    CLAIMED,
    ENTERING,
    FREE,
    FULL,
    STEPS,
    Lane,
    Memory,
    Slot,
    WrongSlotError,
    explore,
)

from egpu.maps import layout

# name: (keys in the slots before, slots, room, what the lanes do with which keys, retries)
CASES = {
    "one key": ("", 2, 2, "insert a, insert a", 2),
    "one key, three lanes": ("", 3, 1, "insert a, insert a, insert a", 1),
    "a slot nearer to home becomes free": ("b", 2, 2, "insert a, insert a, delete b", 1),
    "two slots nearer to home become free": ("bc", 3, 3, "insert a, insert a, delete b", 1),
    "two keys, room for one": ("", 2, 1, "insert a, insert b", 2),
    "two keys in two slots": ("", 2, 2, "insert a, insert b", 2),
    "two keys, three lanes": ("", 3, 2, "insert a, insert b, insert a", 1),
    "a full map": ("ab", 3, 2, "insert c, insert a, delete b", 1),
    "deleted while it is inserted": ("", 2, 1, "insert a, delete a, insert a", 1),
    "there already": ("ba", 3, 3, "insert a, delete b, delete a", 1),
    "its slot goes to another key": ("a", 1, 1, "update a, delete a, insert b", 2),
    "its slot goes to another key, three": ("a", 2, 2, "update a, delete a, insert b", 1),
}


def start(keys, slots, room, operations, retries):
    filled = [Slot(FULL, 0, key) for key in keys] + [Slot()] * (slots - len(keys))
    lanes = tuple(Lane(*words.split(), retries) for words in operations.split(", "))
    return Memory(tuple(filled), len(keys), len(keys), 0, room), lanes


def wrong_end(memory, lanes, keys):
    """What is wrong when all lanes are done."""
    there = {slot.key for slot in memory.slots if slot.state == FULL}
    wrong = []
    for key in {lane.key for lane in lanes} | set(keys):
        results = [lane.result for lane in lanes if lane.key == key]
        left = (key in keys) + results.count("inserted") - results.count("deleted")
        if left != (key in there):
            wrong.append(f"{key}: {results}, but it is {'' if key in there else 'not '}there")
    if any(slot.state in (CLAIMED, ENTERING) or slot.pins for slot in memory.slots):
        wrong.append("a slot is held")
    if (memory.count, memory.entering) != (len(there), 0):
        wrong.append("the count is wrong")
    return wrong


@pytest.mark.parametrize("name", CASES)
def test_every_order(name):
    keys, _, room, operations, _ = CASES[name]
    states, ends = explore(start(*CASES[name]))
    assert states > 100
    assert ends
    results = set()
    for memory, lanes in ends:
        assert wrong_end(memory, lanes, keys) == []
        results |= {lane.result for lane in lanes}
    needed = {words.split()[1] for words in operations.split(", ") if "insert" in words} | set(keys)
    # Where there is room for every key, nobody is ever refused.  A deletion that is under way still
    # counts as an entry.
    if "delete" in operations:
        assert "no room" not in results or len(needed) >= room
    else:
        assert ("no room" in results) == (len(needed) > room)


def test_both_lanes_can_win_and_lose():
    _, ends = explore(start(*CASES["one key"]))
    results = {tuple(lane.result for lane in lanes) for _, lanes in ends}
    assert {("inserted", "exists"), ("exists", "inserted")} <= results


# name: (keys in the slots before, slots, room, what the lanes do with which keys, retries)
EVICTING = {
    "room for all": ("", 4, 2, "insert a, insert b, insert a", 1),
    "one goes": ("a", 4, 1, "insert b", 1),
    "two at a time": ("ab", 4, 2, "insert c, insert d", 1),
    "the same key twice": ("ab", 4, 2, "insert c, insert c", 1),
    "three": ("a", 4, 1, "insert b, insert c, insert b", 1),
    "deleted meanwhile": ("ab", 4, 2, "insert c, delete a, insert c", 1),
}


@pytest.mark.parametrize("name", EVICTING)
def test_evicting_in_every_order(name):
    """Nothing goes unless the map is full, and what is counted is there."""
    keys, slots, room, operations, retries = EVICTING[name]
    memory, lanes = start(keys, slots, room, operations, retries)
    _, ends = explore((memory._replace(evicts=True), lanes))
    assert ends
    distinct = len({words.split()[1] for words in operations.split(", ") if "insert" in words})
    for after, done in ends:
        there = [slot.key for slot in after.slots if slot.state == FULL]
        results = [lane.result for lane in done]
        assert (after.count, after.entering) == (len(there), 0)
        assert not any(slot.state in (CLAIMED, ENTERING) for slot in after.slots)
        left = len(keys) + results.count("inserted") - results.count("deleted") - after.evicted
        assert left == len(there)
        assert "no room" not in results
        assert len(there) <= room
        if len(keys) + distinct <= room:
            assert after.evicted == 0
    assert any("busy" not in [lane.result for lane in done] for _, done in ends)


# What holds the protocol together, left out one by one: the model must notice.
def become_without_looking(memory, lane):
    yield memory, lane.go("become")


def become_blindly(memory, lane):
    yield memory.put(lane.own, state=FULL), lane.go("commit")


def never_undo(memory, lane):
    yield (
        memory,
        lane.go("settle", at=lane.at + 1) if lane.at + 1 < lane.limit else lane.go("become"),
    )


def ignore_pins(memory, lane):
    yield memory, lane.go("reserve")


def no_place_reserved(memory, lane):
    yield memory._replace(entering=memory.entering + 1), lane.go("raise")


def refuse_at_once(memory, lane):
    if memory.count + memory.entering >= memory.room:
        yield memory, lane.give("no room")
    else:
        yield memory, lane.go("claim", at=0, flag=False)


BROKEN = {
    "no look at other slots": ("settle_reach", become_without_looking, "a slot nearer"),
    "an entry in spite of being undone": ("become", become_blindly, "a slot nearer"),
    "nobody is undone": ("undo", never_undo, "a slot nearer"),
    "pinned slots are given out": ("unpinned", ignore_pins, "its slot goes to another key, t"),
    "no place is reserved": ("reserve", no_place_reserved, "two keys, room for one"),
    "refused while others may withdraw": ("room", refuse_at_once, "two keys, three"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_model_sees_what_is_missing(name, monkeypatch):
    step, function, case = BROKEN[name]
    monkeypatch.setitem(STEPS, step, function)
    (chosen,) = (found for found in CASES if found.startswith(case))
    keys, _, room, operations, _ = CASES[chosen]
    with pytest.raises((AssertionError, WrongSlotError)):
        judge_ends(explore(start(*CASES[chosen]))[1], keys, operations, room)


def judge_ends(ends, keys, operations, room):
    needed = {words.split()[1] for words in operations.split(", ")}
    for memory, lanes in ends:
        assert wrong_end(memory, lanes, keys) == []
        refused = any(lane.result == "no room" for lane in lanes)
        assert not refused or len(needed) > room


def test_states_are_numbered_as_in_the_layout():
    """The model's states have the numbers of the layout."""
    assert (FREE, CLAIMED, ENTERING, FULL) == (
        layout.HASH_FREE,
        layout.HASH_CLAIMED,
        layout.HASH_ENTERING,
        layout.HASH_FULL,
    )

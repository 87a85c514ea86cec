"""Memory that is given out in turn never changes under who may still look at it."""

import random

import pytest

from egpu.session.room import Room


@pytest.mark.parametrize("seed", range(20))
def test_pieces_stay_as_they_were_written_until_they_are_taken_back(seed):
    numbers = random.Random(seed)
    held = {}
    room = Room(1000, held.pop)
    for number in range(200):
        key = numbers.randrange(12)
        size = numbers.choice([0, 1, 10, 300, 500, 501, 2000])
        piece = room.piece(key, size)
        assert len(piece) == size
        piece[:] = bytes([number % 256]) * size
        if size <= 500:  # more than half of the room has memory of its own
            assert key not in held
            held[key] = piece, bytes(piece)
        for kept, text in held.values():
            assert kept == text


def test_the_oldest_goes_first():
    gone = []
    room = Room(100, gone.append)
    for key in "abcd":
        room.piece(key, 30)
    assert gone == ["a"]
    room.piece("e", 45)
    assert gone == ["a", "b", "c"]


def test_a_key_is_given_another_piece():
    gone = []
    room = Room(100, gone.append)
    room.piece("a", 30)
    room.piece("a", 40)
    assert gone == ["a"]


def test_what_is_held_is_not_taken_back():
    gone = []
    room = Room(100, gone.append)
    room.hold("a")
    first = room.piece("a", 40)
    first[:] = b"a" * 40
    room.piece("b", 40)
    own = room.piece("c", 30)  # would begin where "a" is
    own[:] = b"c" * 30
    assert (gone, bytes(first)) == ([], b"a" * 40)
    room.piece("d", 40)  # behind it: where "b" is
    assert gone == ["b"]
    room.let_go("a")
    room.piece("e", 40)
    assert gone == ["b", "a"]


def test_who_makes_what_another_one_holds_gets_other_memory():
    gone = []
    room = Room(100, gone.append)
    room.hold("a")
    first = room.piece("a", 40)
    first[:] = b"a" * 40
    room.hold("a")
    room.piece("a", 40)[:] = b"b" * 40
    room.let_go("a")
    assert (gone, bytes(first)) == ([], b"a" * 40)
    room.piece("a", 40)
    assert gone == ["a"]


@pytest.mark.parametrize("seed", range(10))
def test_pieces_that_are_held_stay_as_they_are(seed):
    numbers = random.Random(seed)
    held, gone = {}, []
    room = Room(1000, gone.append)
    for number in range(300):
        key = numbers.randrange(12)
        if key in held:
            room.let_go(key)
            piece, text = held.pop(key)
            assert piece == text
            continue
        room.hold(key)
        gone.clear()
        piece = room.piece(key, numbers.choice([1, 10, 300, 500]))
        assert not set(gone) & set(held)
        piece[:] = bytes([number % 256]) * len(piece)
        held[key] = piece, bytes(piece)
        for other, text in held.values():
            assert other == text

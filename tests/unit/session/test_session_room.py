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

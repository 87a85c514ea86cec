"""Every order of the steps by which slots are taken (``egpu.codegen.library_stamped``), for few
producers, slots and records: no slot is given twice, left out or given before it was read."""

from dataclasses import dataclass, replace

import pytest

VAIN = 2  # asked for in vain until somebody takes that back
TRIES = 2


class BrokenError(Exception):
    """What must not be."""


@dataclass(frozen=True, order=True)
class Producer:
    """``step`` it does next; ``word`` and ``tail`` as it saw them."""

    left: int
    step: str = "begin"
    word: tuple[int, int] = (0, 0)
    tail: int = 0
    tries: int = 0

    def over(self) -> "Producer":
        return Producer(self.left)


@dataclass(frozen=True)
class State:
    """``word``: slots asked for and room; ``given`` slots, ``read`` ones, ``tail`` as copied."""

    producers: tuple[Producer, ...]
    word: tuple[int, int] = (0, 0)
    given: int = 0  # all below, as they must be given in order
    read: int = 0
    tail: int = 0


@dataclass(frozen=True)
class Rules:
    slots: int
    next_of_taken: bool = True  # not of all that were asked for
    swap_compares: bool = True

    def steps(self, state: State):
        """Every state that one step leads to."""
        if state.read < state.given:
            yield replace(state, read=state.read + 1)
        if state.tail < state.read:
            yield replace(state, tail=state.read)
        for at, producer in enumerate(state.producers):
            for changed, moved in self.moves(state, producer):
                others = (*state.producers[:at], moved, *state.producers[at + 1 :])
                yield replace(changed, producers=tuple(sorted(others)))

    def moves(self, state: State, producer: Producer):
        (asked, room), taken = producer.word, sum(producer.word)
        match producer.step:
            case "begin":
                if producer.left:
                    yield state, Producer(producer.left - 1, "ask")
            case "ask":
                word = state.word[0] + 1, state.word[1] - 1
                asking = replace(state, word=word)
                if state.word[1] > 0:
                    yield self.give(asking, state.word[0]), producer.over()
                else:
                    yield asking, replace(producer, step="look", word=word)
            case "look":
                yield state, replace(producer, step="swap", tail=state.tail)
            case "swap":
                new = producer.tail + self.slots - taken
                first = taken if self.next_of_taken else asked
                if new <= 0 and room >= -VAIN:
                    yield state, producer.over()
                elif state.word != producer.word and self.swap_compares:
                    yield state, self.lost(state, producer) if new > 0 else producer.over()
                elif new > 0:
                    yield (
                        self.give(replace(state, word=(first + 1, new - 1)), first),
                        producer.over(),
                    )
                else:
                    yield replace(state, word=(taken, 0)), producer.over()

    def lost(self, state: State, producer: Producer) -> Producer:
        if producer.tries == TRIES:
            return producer.over()
        step = "ask" if state.word[1] > 0 else "look"
        return replace(producer, step=step, word=state.word, tries=producer.tries + 1)

    def give(self, state: State, slot: int) -> State:
        if slot != state.given:
            raise BrokenError(f"slot {slot} is given, {state.given} is next")
        if slot >= state.read + self.slots:
            raise BrokenError(f"slot {slot} is given, {state.read} are read")
        return replace(state, given=slot + 1)


def all_states(rules: Rules, producers: int, records: int) -> set[State]:
    start = State((Producer(records),) * producers)
    seen, pending = {start}, [start]
    while pending:
        for found in rules.steps(pending.pop()):
            if found not in seen:
                seen.add(found)
                pending.append(found)
    return seen


@pytest.mark.parametrize(
    ("slots", "producers", "records"), [(1, 2, 3), (2, 2, 3), (1, 3, 2), (2, 2, 4)]
)
def test_every_order(slots, producers, records):
    states = all_states(Rules(slots), producers, records)
    ended = [state for state in states if all(p == Producer(0) for p in state.producers)]
    # Nothing is taken but what is given: what was asked for in vain is told from it.
    assert all(state.word[0] + min(state.word[1], 0) == state.given for state in states)
    assert {state.given for state in ended} >= {slots, producers * records}
    assert any(state.word[1] < 0 for state in ended)


@pytest.mark.parametrize("broken", ["next_of_taken", "swap_compares"])
def test_what_would_be_wrong(broken):
    with pytest.raises(BrokenError):
        all_states(replace(Rules(2), **{broken: False}), 2, 3)

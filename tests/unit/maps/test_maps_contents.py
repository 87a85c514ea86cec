"""Contents of maps as bytes, and changes of views that have a host of dictionaries."""

import errno
import json
import random

import pytest
from test_maps_view import BTF, PAIR, U64, spec

from egpu.bpf.btf import Btf, BtfKind, BtfMember, BtfType
from egpu.bpf.btf_json import dump_types, load_types
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.errors import InputError, MapError
from egpu.maps import HashView, MapView, UpdateFlag
from egpu.maps.contents import Contents, contents_of, pack, unpack, value_of

PAIRS = MapSpec("pairs", MapType.HASH, 8, 24, 10, btf=BTF, key_type=U64, value_type=PAIR)
PER_SM = spec(MapType.PERCPU_ARRAY, entries=2)


def word(number):
    return number.to_bytes(8, "little")


def test_packed_contents_come_back():
    copies = (
        {word(5): (bytes(24),), word(9): (bytes(range(24)),)},
        {},
    )
    given = Contents(PAIRS, copies, {"full": 3}, complete=True)
    found = unpack(pack(given), "here")
    assert (found.copies, found.counters, found.complete, found.frozen) == (
        copies,
        {"full": 3},
        True,
        False,
    )
    assert found.decoded(0) == {5: (0, 0, (0, 0, 0)), 9: BTF.decode(PAIR, bytes(range(24)))}
    assert found.decoded(0)[9]._fields == ("total", "small", "rows")
    assert len(found.spec.btf.types) < len(BTF.types)


def test_values_for_each_sm_are_summed():
    copies = ({bytes(4): (word(3), word(4)), b"\1\0\0\0": (word(2**64 - 1), word(2))},)
    found = unpack(pack(Contents(PER_SM, copies, {})), "here")
    assert found.decoded(0) == {0: 7, 1: 1}
    assert found.parts(0) == {0: (3, 4), 1: (2**64 - 1, 2)}
    assert value_of(PER_SM, (word(1),)) == 1


@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_what_is_cut_is_refused(cut):
    data = pack(Contents(PAIRS, ({word(1): (bytes(24),)},), {}))
    assert cut < len(data)
    with pytest.raises(InputError, match="here: is no map of egpu"):
        unpack(data[:cut], "here")
    with pytest.raises(InputError, match="too many"):
        unpack(data + b"x", "here")


def test_damage_is_refused_or_harmless():
    data = pack(Contents(PAIRS, ({word(1): (bytes(24),)},), {"full": 1}))
    rng = random.Random(1)
    for _ in range(2000):
        damaged = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            found = unpack(bytes(damaged), "here")
            [found.decoded(number) for number in range(len(found.copies))]
        except InputError:
            continue


def heads(head):
    """Every head that differs from ``head`` in one place: another number, or something else."""
    for name in head:
        for value in (0, -1, 2**31, 2**64, 10**30, float("inf"), float("nan"), None, "x", [], {}):
            yield {**head, name: value}
    for number, row in enumerate(head["types"]):
        for name in row:
            for value in (-1, 2**62, 10**30, float("inf"), [], "x", [["a", 1, 0, 10**30, 0]]):
                types = [
                    *head["types"][:number],
                    {**row, name: value},
                    *head["types"][number + 1 :],
                ]
                yield {**head, "types": types}
    for rows, slots in ((1, 0), (1, 10**12), (10**12, 1), (0, 10**12), (1, float("inf"))):
        yield {**head, "copies": [[rows, slots]]}
        yield {**head, "copies": [[rows, slots]], "value_size": 0, "value_type": 0}


def test_every_wrong_head_is_refused_or_harmless():
    data = pack(Contents(PAIRS, ({word(1): (bytes(24),)},), {"full": 1}))
    size = 4 + int.from_bytes(data[:4], "little")
    refused = 0
    for head in heads(json.loads(data[4:size])):
        text = json.dumps(head).encode()
        try:
            found = unpack(len(text).to_bytes(4, "little") + text + data[size:], "here")
            [found.decoded(number) for number in range(len(found.copies))]
        except InputError:
            refused += 1
    assert refused > 100
    for text in (b"[" * 100_000, b'{"a":' * 100_000):
        with pytest.raises(InputError, match="nests too deep"):
            unpack(len(text).to_bytes(4, "little") + text, "here")


def test_types_refer_to_each_other():
    btf = Btf(
        (
            BtfType(0, BtfKind.VOID),
            BtfType(1, BtfKind.STRUCT, "node", 8, members=(BtfMember("next", 2, 0),)),
            BtfType(2, BtfKind.PTR, type=1),
            BtfType(3, BtfKind.INT, "unused", 4),
        ),
        b"\0",
    )
    rows, (node, none) = dump_types(btf, (1, 0))
    back = load_types(rows)
    assert (len(rows), none) == (2, 0)
    assert back.decode(node, word(77)) == (77,)
    for wrong in ({}, [1], [{"kind": "NOTHING"}], [{"kind": "PTR", "type": 9}]):
        with pytest.raises(InputError, match="malformed types"):
            load_types(wrong)


class Host:
    """A map in a dictionary."""

    frozen = False

    def __init__(self, refused=()):
        self.table, self.refused = {}, dict(refused)

    def freeze(self):
        self.frozen = True

    def update(self, rows, flag):
        errors = [self.refused.get(key, 0) for key, _ in rows]
        for (key, values), error in zip(rows, errors, strict=True):
            if not error:
                self.table[key] = values
        return errors

    def delete(self, keys):
        return [0 if self.table.pop(key, None) else errno.ENOENT for key in keys]

    def initial(self):
        return self.table


def test_a_view_without_a_host_is_read_only():
    view = MapView(spec(), ())
    for change in (
        lambda: view.update(0, 1),
        lambda: view.__setitem__(0, 1),
        lambda: view.delete(0),
        view.freeze,
    ):
        with pytest.raises(InputError, match="can only be read here"):
            change()
    assert not view.frozen


def test_a_batch_says_what_was_refused():
    view = HashView(PAIRS, (), Host({word(2): errno.E2BIG}))
    value = (1, 2, (3, 4, 5))
    with pytest.raises(MapError, match="key 2: it is full; 1 of 3 were not done") as info:
        view.update_batch(dict.fromkeys((1, 2, 3), value))
    assert info.value.errno == errno.E2BIG
    assert view.to_dict() == {1: value, 3: value}
    assert view.lookup_batch([3, 4]) == {3: value}
    assert view.delete_batch([1]) == 1
    del view[3]
    assert view.update_batch({}) == view.delete_batch([]) == 0
    contents = contents_of(view, complete=False, frozen=False)
    assert contents.copies == ({},)


def test_keys_and_values_are_checked():
    view, array = HashView(PAIRS, (), Host()), MapView(spec(), (), Host())
    for key in (-1, 2**64, 1.5, None, b"1234567"):
        with pytest.raises(InputError):
            view[key] = (0, 0, (0, 0, 0))
    with pytest.raises(TypeError):
        array[True] = 1
    with pytest.raises(MapError) as info:
        array[-1] = 1
    assert info.value.errno == errno.E2BIG
    view[word(7)] = bytes(range(24))
    assert view.to_dict() == {7: BTF.decode(PAIR, bytes(range(24)))}
    with pytest.raises(InputError, match="is no per-SM array"):
        array.update_per_sm(0, [1, 2])
    with pytest.raises(MapError, match="no such flag: 3"):
        view.update(1, (0, 0, (0, 0, 0)), 3)
    array.update(1, 9, UpdateFlag.EXIST)
    assert array.to_dict() == {0: 0, 1: 9, 2: 0}

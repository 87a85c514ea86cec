"""Maps that the session changes while a workload on the simulated device uses them."""

import errno
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
from test_runtime_cli import ROOT, pytestmark

import egpu
from egpu.bpf.program import BPF_F_RDONLY
from egpu.errors import AgentError, InputError, MapError
from egpu.maps import UpdateFlag

sys.path.insert(0, str(ROOT / "tests" / "gpu"))
from host_maps import (
    FACTORS,
    FIRST,
    KEYS,
    PRESENT,
    PROGRAM,
    SECOND,
    Amount,
    Expected,
    Stepper,
    alternate,
    together,
)

__all__ = ["pytestmark"]


@contextmanager
def running(tmp_path, program=PROGRAM, **options):
    stepper = Stepper(tmp_path)
    settings = egpu.Options(simulated=True, **options)
    with egpu.run(stepper.argv, programs=program, options=settings) as session:
        yield session, stepper
        if session.running():
            stepper.end(session)


def test_what_is_set_is_what_the_next_launch_uses(tmp_path):
    """Factors, steps and keys set between launches of two kernels: the totals follow from them."""
    threads = factors = steps = 0
    blocks = dict.fromkeys(range(KEYS), 0)
    with running(tmp_path) as (session, stepper):
        maps = session.maps
        rounds = [("first", 12, 33, 5, 2), ("second", 7, 64, 9, 10), ("first", 3, 31, 0, 1)]
        for number, (kernel, grid, block, factor, step) in enumerate(rounds):
            maps["settings"][int(kernel == "second")] = {"factor": factor, "bias": -number}
            maps[".data"]["step"] = step
            maps["blocks"][1000 + number] = number
            stepper.do(f"{kernel} {grid} {block}")
            threads += grid * block
            factors += grid * block * factor
            steps += grid * block * step
            for index in range(grid):
                blocks[index % KEYS] += 1
        stepper.end(session)
        assert maps["totals"][FIRST] + maps["totals"][SECOND] == threads
        assert maps["totals"][FACTORS] == factors
        assert maps["totals"][PRESENT] == sum(blocks.values())
        assert maps[".bss"]["steps"] == steps
        assert dict(maps["blocks"]) == {**blocks, 1000: 0, 1001: 1, 1002: 2}
        assert maps["settings"][0] == (0, -2)
        assert maps["settings"][1] == (9, -1)


def test_two_kernels_and_the_host(tmp_path):
    """The device check (tests/gpu/checks_host_maps.py) in small."""
    expected, amount = Expected(), Amount(grid=23, block=40, times=3)
    with running(tmp_path, map_deletions=True) as (session, stepper):
        alternate(session.maps, stepper, expected, amount)
        ours, _, _ = together(session.maps, stepper, expected, amount)
        stepper.end(session)
        assert expected.wrong(session.maps, ours) == []
        assert expected.wrong(session.maps, {}) != []


def test_contents_set_before_the_first_launch(tmp_path):
    with running(tmp_path) as (session, stepper):
        maps = session.maps
        maps["settings"][0] = (3, 0)
        maps["totals"][SECOND] = 100
        maps["blocks"].update_batch({2: 50, 77: 1})
        maps[".data"]["marks"] = (4, 5)
        assert maps["settings"][0] == (3, 0)
        assert (maps["totals"][SECOND], maps["totals"][FIRST]) == (100, 0)
        assert dict(maps["blocks"]) == {2: 50, 77: 1}
        assert (maps[".data"]["marks"], maps[".data"]["step"]) == ((4, 5), 1)
        stepper.do("first 5 10")
        stepper.end(session)
        assert maps["totals"].to_dict() == {0: 50, 1: 100, 2: 150, 3: 5, 4: 0, 5: 0}
        assert dict(maps["blocks"]) == {0: 1, 1: 1, 2: 51, 3: 1, 4: 1, 77: 1}
        assert maps[".data"]["marks"] == (4, 5)


def test_flags_and_error_numbers(tmp_path):
    def refused(function, *arguments):
        with pytest.raises(MapError) as info:
            function(*arguments)
        return info.value.errno

    def check(maps):
        blocks, settings = maps["blocks"], maps["settings"]
        blocks.update(5, 1, UpdateFlag.NOEXIST)
        assert refused(blocks.update, 5, 2, UpdateFlag.NOEXIST) == errno.EEXIST
        assert refused(blocks.update, 6, 2, UpdateFlag.EXIST) == errno.ENOENT
        blocks.update(5, 3, UpdateFlag.EXIST)
        assert blocks[5] == 3
        del blocks[5]
        assert 5 not in blocks
        assert refused(blocks.delete, 5) == errno.ENOENT
        with pytest.raises(KeyError):
            del blocks[5]
        assert refused(settings.update, 4, (1, 1)) == errno.E2BIG
        assert refused(settings.update, 0, (1, 1), UpdateFlag.NOEXIST) == errno.EEXIST
        assert refused(settings.delete, 0) == errno.EINVAL
        assert refused(maps[".rodata"].__setitem__, "keys", 3) == errno.EPERM
        room = blocks.spec.max_entries
        assert blocks.update_batch({key: key for key in range(room)}) == room
        assert refused(blocks.update, room, 0) == errno.E2BIG
        assert blocks.update_batch({key: 2 * key for key in range(room)}) == room
        assert blocks.to_dict() == {key: 2 * key for key in range(room)}
        assert blocks.delete_batch(range(room)) == room
        assert len(blocks) == 0

    with running(tmp_path, map_deletions=True) as (session, stepper):
        check(session.maps)
        stepper.do("second 1 1")
        session.maps["blocks"].delete_batch(list(session.maps["blocks"]))
        check(session.maps)


def test_deletions_that_the_table_has_no_room_for(tmp_path):
    with running(tmp_path) as (session, stepper):
        blocks = session.maps["blocks"]
        blocks.update_batch({50: 1, 51: 2})
        del blocks[50]  # there is no table yet
        stepper.do("first 1 1")
        with pytest.raises(MapError, match="map_deletions") as info:
            del blocks[51]
        assert info.value.errno == errno.EOPNOTSUPP
        session.snapshot()
        assert dict(blocks) == {0: 1, 51: 2}


def test_values_of_another_type_or_range(tmp_path):
    with running(tmp_path) as (session, _):
        maps = session.maps
        for view, key, value in [
            (maps["settings"], 0, {"factor": 1}),
            (maps["settings"], 0, (1 << 32, 0)),
            (maps["settings"], 0, (1, 0.5)),
            (maps["settings"], 0, (1, 2, 3)),
            (maps["settings"], 0, b"1234567"),
            (maps["blocks"], -1, 0),
            (maps["blocks"], "a", 0),
            (maps["blocks"], 0, -1),
            (maps[".data"], "step", 1 << 64),
            (maps[".data"], "marks", (1,)),
        ]:
            with pytest.raises(InputError):
                view[key] = value
        with pytest.raises(KeyError, match="it has step, marks"):
            maps[".data"]["nothing"] = 1
        with pytest.raises(TypeError):
            maps["settings"][1.5] = (1, 1)
        with pytest.raises(InputError, match="given twice"):
            maps["settings"].update_batch([(0, (1, 1)), (0, (2, 2))])
        assert maps["settings"][0] == (0, 0)


def test_frozen_maps_are_the_programs_alone(tmp_path):
    with running(tmp_path) as (session, stepper):
        blocks = session.maps["blocks"]
        blocks[4] = 40
        blocks.freeze()
        assert (blocks.frozen, session.maps["blocks"].frozen) == (True, True)
        with pytest.raises(MapError, match="frozen") as info:
            blocks.freeze()
        assert info.value.errno == errno.EPERM
        with pytest.raises(MapError, match="frozen") as info:
            blocks[4] = 41
        assert info.value.errno == errno.EPERM
        stepper.do("first 5 3")
        with pytest.raises(MapError, match="frozen"):
            session.maps["blocks"].copies()[0][4] = 41
        session.snapshot()
        assert blocks[4] == 41  # by the kernel


def test_two_contexts_and_one_that_comes_later(tmp_path):
    with running(tmp_path) as (session, stepper):
        maps = session.maps
        stepper.do("first 2 10")
        maps["settings"][0] = (6, 0)
        maps["blocks"][500] = 5
        maps["totals"][SECOND] = 1000
        stepper.do("new")
        stepper.do("first 3 10")
        first, second = maps["settings"].copies()
        assert (first[0], second[0]) == ((6, 0), (6, 0))
        second[0] = (8, 1)
        assert (first[0], second[0]) == ((6, 0), (8, 1))
        stepper.do("first 4 10")
        maps["settings"][0] = (1, 1)
        assert [copy[0] for copy in maps["settings"].copies()] == [(1, 1), (1, 1)]
        stepper.end(session)
        assert maps["totals"][FACTORS] == 3 * 10 * 6 + 4 * 10 * 8
        assert maps["totals"][FIRST] == 90
        assert maps["totals"][SECOND] == 1000  # the sum over contexts is what was set
        assert [dict(copy)[500] for copy in maps["blocks"].copies()] == [5, 5]


def test_parts_of_a_per_sm_array(tmp_path):
    with running(tmp_path) as (session, stepper):
        totals = session.maps["totals"]
        with pytest.raises(InputError, match="how many SMs"):
            totals.update_per_sm(FACTORS, [1, 2, 3, 4])
        stepper.do("second 8 1")
        totals.update_per_sm(FACTORS, [1, 2, 3, 4])
        assert totals.per_sm(FACTORS) == (1, 2, 3, 4)
        assert totals[FACTORS] == 10
        with pytest.raises(InputError, match="3 values, 4 wanted"):
            totals.update_per_sm(FACTORS, [1, 2, 3])
        totals[FACTORS] = 77
        assert (totals[FACTORS], totals[SECOND]) == (77, 8)


def test_values_of_each_thread(tmp_path):
    program = ROOT / "tests" / "gpu" / "probes" / "per_thread.bpf.o"
    with running(tmp_path, program, thread_slots=100) as (session, stepper):
        name = next(name for name in session.maps if session.maps[name].spec.value_size == 8)
        view = session.maps[name]
        view[0] = range(100)
        assert view[0] == tuple(range(100))
        stepper.do("second 1 1")
        before = view[0]
        view[0] = [value + 5 for value in before]
        assert view[0] == tuple(value + 5 for value in before)
        with pytest.raises(InputError, match="99 values, 100 wanted"):
            view[0] = [0] * 99


def test_a_workload_that_has_ended(tmp_path):
    with running(tmp_path) as (session, stepper):
        stepper.do("first 1 1")
        stepper.end(session)
        for change in (
            lambda: session.maps["settings"].update(0, (1, 1)),
            lambda: session.maps["blocks"].update(0, 1),
            lambda: session.maps[".data"].__setitem__("step", 1),
        ):
            with pytest.raises(MapError) as info:
                change()
            assert info.value.errno == errno.ESTALE
        assert session.maps["blocks"].to_dict() == {0: 1}


def test_many_changes_at_once(tmp_path):
    """More than the command area holds."""
    with running(tmp_path) as (session, stepper):
        stepper.do("first 1 1")
        blocks = session.maps["blocks"]
        for value in (1, 2):
            entries = {key: key * value for key in range(1, 4090)}
            assert blocks.update_batch(entries) == len(entries)
            assert blocks.to_dict() == {0: 1, **entries}
        assert blocks.lookup_batch([5, 6, 100_000]) == {5: 10, 6: 12}
        assert session.maps["settings"].lookup_batch([0, 3]) == {0: (0, 0), 3: (0, 0)}


HASHES = ROOT / "tests" / "gpu" / "probes" / "hashes.bpf.o"


@pytest.mark.parametrize("early", [True, False])
def test_every_type_of_hash_map(tmp_path, early):
    """Keys that the programs never use, set before there is a table (on this machine, by the same
    code) and while there is one (on the device)."""
    with running(tmp_path, HASHES) as (session, stepper):
        if not early:
            stepper.do("first 1 4")
        maps = session.maps
        wide = {"number": 9_000, "twice": 1, "square": 2}
        maps["counts"][wide] = 5
        maps["churn"].update_batch({key: key for key in range(300, 400)})
        maps["small"].update_batch({10**6 + key: (key, key) for key in range(90)})
        maps["per_sm"][40_000] = 7
        maps["recent"].update_batch({10**6 + key: (key, -key % 5) for key in range(150)})
        if early:
            stepper.do("first 1 4")
        maps["counts"][wide] = 6
        maps["per_sm"][40_000] = 8
        del maps["churn"][399]
        stepper.end(session)
        counts, churn = maps["counts"].to_dict(), maps["churn"].to_dict()
        assert (counts.pop((9_000, 1, 2)), sum(counts.values())) == (6, 4)
        assert churn == {**dict.fromkeys(range(4), 1), **{key: key for key in range(300, 399)}}
        small = maps["small"].to_dict()
        assert {key: small.pop(10**6 + key) for key in range(90)} == {
            key: (key, key) for key in range(90)
        }
        assert small == {key: (3 * key, 3 * key) for key in range(4)}
        per_sm = maps["per_sm"].to_dict()
        assert (per_sm.pop(40_000), sum(per_sm.values())) == (8, 4)
        assert sum(maps["per_sm"].parts()[40_000]) == 8
        recent = maps["recent"].to_dict()
        assert {key - 10**6: recent[key] for key in recent if key >= 10**6} == {
            key: (key, -key % 5) for key in range(150)
        }


def test_a_map_that_evicts_takes_new_keys_from_the_host(tmp_path):
    with running(tmp_path, HASHES) as (session, stepper):
        stepper.do("first 1 1")
        recent = session.maps["recent"]
        room = recent.spec.max_entries
        assert recent.update_batch({10**6 + key: (0, 0) for key in range(2 * room)}) == 2 * room
        assert len(recent) == room
        assert recent.counter("evicted") == room + 1  # with the kernel's own
        recent.update_batch(dict.fromkeys(list(recent), (1, 1)))
        assert set(recent.values()) == {(1, 1)}


def test_a_per_sm_hash_without_deletions(tmp_path):
    """Only the SM that inserts has a value then; what is there cannot be set on the others."""
    program = ROOT / "tests" / "gpu" / "probes" / "hash_per_sm.bpf.o"
    with running(tmp_path, program) as (session, stepper):
        stepper.do("first 1 4")
        per_sm = session.maps["per_sm"]
        per_sm.update(40_000, 7, UpdateFlag.NOEXIST)
        with pytest.raises(MapError, match="map_deletions"):
            per_sm[40_000] = 8
        assert per_sm[40_000] == 7


def test_a_map_that_is_declared_read_only_outside():
    obj = egpu.Object(PROGRAM)
    maps = tuple(replace(spec, flags=BPF_F_RDONLY) for spec in obj.bound().maps)
    declared = egpu.Object(replace(obj.bound(), maps=maps))
    for change in (
        lambda: declared.maps["settings"].update(0, (1, 1)),
        lambda: declared.maps["blocks"].update(0, 1),
        lambda: setattr(declared.data, "step", 1),
    ):
        with pytest.raises(MapError, match="BPF_F_RDONLY") as info:
            change()
        assert info.value.errno == errno.EPERM


def test_waiting_for_ever_is_refused(tmp_path):
    with running(tmp_path) as (session, _):
        with pytest.raises(InputError, match="timeout: nan is no number of seconds"):
            session.wait(float("nan"))
        for seconds in (0.01, 0, -1):
            with pytest.raises(subprocess.TimeoutExpired):
                session.wait(seconds)


def in_a_forked_process(function):
    """What ``function`` gives there, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, str(function()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()  # until the child has ended
    assert os.waitpid(child, 0) == (child, 0)
    return said


def test_a_forked_process_cannot_change_what_is_its_parents(tmp_path):
    with running(tmp_path) as (session, stepper):
        maps = session.maps
        stepper.do("first 4 10")
        session.snapshot()

        def child():
            said = [str(maps["totals"][FIRST])]
            for act in (
                session.snapshot,
                session.detach,
                lambda: maps["settings"].update(0, (9, 9)),
            ):
                with pytest.raises(AgentError) as info:
                    act()
                said.append(str(info.value).partition(",")[0])
            session.close()
            session.close()
            return said

        words = "this process was forked from the session's"
        assert in_a_forked_process(child) == str(["40", words, words, words])
        maps["settings"][0] = (3, 0)
        stepper.do("first 4 10")
        stepper.end(session)
        assert (maps["totals"][FIRST], maps["totals"][FACTORS]) == (80, 3 * 40)


def test_options_and_arguments_that_make_no_sense(tmp_path, monkeypatch):
    def refused(words, argv=("true",), **options):
        with pytest.raises(InputError, match=words):
            egpu.run(argv, programs=PROGRAM, options=egpu.Options(simulated=True, **options))

    refused("cannot start it: embedded null byte", ["tr\0ue"])
    refused("0 is no number of threads", thread_slots=0)
    for name in ("twin_wait_s", "snapshot_period_s"):
        for seconds in (float("nan"), -1.0):
            refused(f"{name}: {seconds} is no number of seconds", **{name: seconds})
    refused("cookie 'x' does not fit", cookies={"on_first": "x"})
    for name, values, wanted in (
        ("sample", (0, -1, 1 << 32, 1.5), "from 1 to 4294967295"),
        ("print_limit", (-1, 0.5), "of 0 or more"),
        ("cost_limit", (0, "9"), "of 1 or more"),
    ):
        for value in values:
            refused(f"{name}: {value!r} is no whole number {wanted}", **{name: value})
    monkeypatch.setenv("BPFTIME_MAP_GPU_THREAD_COUNT", "9" * 5000)
    refused("is no number of threads")
    maps = egpu.Object(PROGRAM).maps
    for flag in (3, -1, "x"):
        with pytest.raises(MapError, match="no such flag") as info:
            maps["settings"].update(0, (1, 2), flag)
        assert info.value.errno == errno.EINVAL

"""``egpu.Object`` in real runs on the simulated device."""

import hashlib
import importlib.util
import shutil
import sys

import pytest
from test_host_maps import PROGRAM, running
from test_runtime_cli import pytestmark

import egpu
from egpu.codegen import compile_probe
from egpu.errors import InputError, MapError
from egpu.session.loadable import load
from egpu.session.stub import module_text

__all__ = ["pytestmark"]

FIRST, SECOND, FACTORS, PRESENT, ABSENT = range(5)
RESERVE = 131  # bpf_ringbuf_reserve


def test_settings_before_the_run_and_globals_during_it(tmp_path):
    obj = egpu.Object(PROGRAM)
    obj.rodata.keys = 3
    obj.rodata.records_on = 1
    obj.data.step = 4
    obj.bss.steps = 1000
    obj.maps["settings"].update_batch({0: (5, 0), 1: (6, 0)})
    obj.maps["blocks"][2] = 70
    assert (obj.rodata.keys, obj.data.step, obj.data.marks) == (3, 4, (-1, 7))
    assert obj.session is None
    with running(tmp_path, obj) as (session, stepper):
        assert obj.session is session
        stepper.do("first 7 20")
        session.snapshot()
        assert obj.bss.steps == 1000 + 4 * 140
        assert obj.maps["totals"][FACTORS] == 5 * 140
        assert dict(obj.maps["blocks"]) == {0: 3, 1: 2, 2: 72}  # three keys, as .rodata says
        with pytest.raises(MapError, match="before the workload starts"):
            obj.rodata.keys = 4
        obj.data.step = 10
        obj.maps["settings"][0] = (1, 1)
        stepper.do("first 1 20")
        stepper.end(session)
        assert obj.bss.steps == 1000 + 4 * 140 + 10 * 20
        assert obj.maps["totals"].to_dict() == {0: 160, 1: 0, 2: 720, 3: 8, 4: 0, 5: 0}
        records = list(obj.maps["records"])
        assert sorted(record.block for record in records) == [0, *range(7)]
        assert {record.kind for record in records} == {-3}
        assert {record.text for record in records} == {b"block\0"}


def test_an_object_whose_tables_are_laid_out_otherwise(tmp_path):
    obj = egpu.Object(PROGRAM)
    blocks = obj.maps["blocks"]
    blocks.update_batch({50: 1, 51: 2})
    with running(tmp_path, obj, map_deletions=True) as (session, stepper):
        stepper.do("first 2 1")
        del blocks[50]
        assert dict(blocks) == dict(session.maps["blocks"]) == {0: 1, 1: 1, 51: 2}
    assert dict(blocks) == {50: 1, 51: 2}


def test_a_second_run_begins_with_what_is_set(tmp_path):
    obj = egpu.Object(PROGRAM)
    settings = obj.maps["settings"]
    settings[0] = (2, 0)
    for number, keys in enumerate((2, 5)):
        folder = tmp_path / str(number)
        folder.mkdir()
        obj.rodata.keys = keys
        with running(folder, obj) as (session, stepper):
            stepper.do("first 10 1")
            settings[0] = (9, number)  # the session's own
            with pytest.raises(InputError, match="runs already"):
                egpu.run(["true"], programs=obj)
            stepper.end(session)
            assert len(obj.maps["blocks"]) == keys
            assert obj.maps["totals"][FACTORS] == 20
        assert settings[0] == (2, 0)
        assert len(obj.maps["blocks"]) == 0


def test_links_come_and_go_while_it_runs(tmp_path):
    obj = egpu.Object(PROGRAM)
    obj.programs["on_second"].detach()
    assert [obj.programs[name].attached for name in obj.programs] == [True, False, True]
    with running(tmp_path, obj) as (session, stepper):
        totals = obj.maps["totals"]

        def counted():
            session.snapshot()
            return tuple(totals[key] for key in (FIRST, SECOND, PRESENT))

        stepper.do("second 2 10")
        assert counted() == (0, 0, 2)
        obj.programs["on_second"].attach()
        assert session.links["on_second"].attached
        stepper.do("second 2 10")
        assert counted() == (0, 20, 4)
        obj.programs["on_block"].detach()
        stepper.do("first 3 5")
        stepper.do("second 3 5")
        assert counted() == (15, 35, 4)
        obj.detach()
        stepper.do("first 3 5")
        assert counted() == (15, 35, 4)
        assert not any(program.attached for program in obj.programs.values())
        session.links["on_first"].attach()
        stepper.do("first 3 5")
        stepper.do("second 3 5")
        assert counted() == (30, 35, 4)
        obj.attach()
        stepper.do("second 3 5")
        assert counted() == (30, 50, 7)
        stepper.end(session)


def test_none_attached_from_the_start(tmp_path):
    obj = egpu.Object(PROGRAM)
    obj.detach()
    with running(tmp_path, obj) as (session, stepper):
        stepper.do("first 3 5")
        obj.attach()
        stepper.do("first 2 5")
        stepper.end(session)
        assert obj.maps["totals"][FIRST] == 10


def test_two_objects_that_share_names(tmp_path):
    one, two = egpu.Object(PROGRAM), egpu.Object(PROGRAM)
    one.maps["settings"][0] = (1, 0)
    two.maps["settings"][0] = (100, 0)
    two.rodata.keys = 1
    with pytest.raises(InputError, match="twice"):
        egpu.run(["true"], programs=[one, two])


@pytest.mark.parametrize("on", [0, 1])
def test_constants_decide_what_is_verified_and_compiled(on):
    """What is behind a constant that is 0 is not there."""
    obj = egpu.Object(PROGRAM)
    obj.rodata.records_on = on
    program = obj.bound().by_name()["on_block"]
    verified = egpu.verify(program)
    code = compile_probe(verified, point=program.attach[0])
    assert (RESERVE in verified.facts.helpers, "__egpu_ring_data" in code.text) == (
        on == 1,
        on == 1,
    )


def test_names_and_values_that_are_wrong():
    obj = egpu.Object(PROGRAM)
    with pytest.raises(InputError, match="from 0 to 4294967295"):
        obj.rodata.keys = -1
    with pytest.raises(InputError, match="from 0 to 255"):
        obj.rodata.records_on = 256
    with pytest.raises(InputError, match="is not an integer"):
        obj.data.step = 1.5
    with pytest.raises(AttributeError, match="it has keys, records_on"):
        obj.rodata.nothing = 1
    with pytest.raises(AttributeError, match="it has steps"):
        _ = obj.bss.nothing
    with pytest.raises(KeyError, match="no map 'nothing'"):
        _ = obj.maps["nothing"]
    with pytest.raises(InputError, match="while its object runs"):
        _ = obj.maps["records"]
    with pytest.raises(InputError, match=r"nothing\.o: cannot be read"):
        egpu.Object("nothing.o")
    assert "keys" in dir(obj.rodata)
    assert repr(obj.programs["on_first"]) == "<ObjectProgram on_first 'kprobe/first'>"


def test_a_command_that_does_not_start_frees_the_object():
    obj = egpu.Object(PROGRAM)
    with pytest.raises(InputError, match="cannot start it"):
        egpu.run(["/no/such"], programs=obj, options=egpu.Options(simulated=True))
    obj.rodata.keys = 4
    assert (obj.session, obj.rodata.keys) == (None, 4)


def test_a_generated_module_runs(tmp_path):
    """Records and values are the module's own classes, in a session too."""
    folder = tmp_path / "package"
    folder.mkdir()
    shutil.copy(PROGRAM, folder)
    text = module_text(load(PROGRAM), hashlib.sha256(PROGRAM.read_bytes()).hexdigest())
    (folder / "generated_types.py").write_text(text)
    spec = importlib.util.spec_from_file_location("generated_types", folder / "generated_types.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["generated_types"] = module
    spec.loader.exec_module(module)
    obj = module.HostMaps()
    obj.rodata.records_on = 1
    obj.maps["settings"][0] = module.Setting(factor=6, bias=0)
    obj.progs.on_second.detach()
    with running(tmp_path, obj) as (session, stepper):
        stepper.do("first 3 9")
        stepper.do("second 2 9")
        stepper.end(session)
        assert obj.maps["totals"].to_dict() == {0: 27, 1: 0, 2: 162, 3: 5, 4: 0, 5: 0}
        assert type(obj.maps["settings"][0]) is module.Setting
        records = list(obj.maps["records"])
        assert {type(record) for record in records} == {module.Record}
        assert sorted(record.block for record in records) == [0, 0, 1, 1, 2]

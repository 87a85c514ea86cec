"""Maps that are declared with BPF_F_RDONLY or BPF_F_WRONLY: what is refused outside of programs."""

import errno
import json
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_host_maps import FIRST, PROGRAM, running
from test_runtime_cli import egpu as command
from test_runtime_cli import pytestmark
from test_session_pushes import PROGRAM as PUSHED
from test_session_pushes import pair, refused

import egpu
from egpu.bpf.program import BPF_F_RDONLY, BPF_F_WRONLY
from egpu.maps import UpdateFlag
from egpu.tools.build import compiler

__all__ = ["pytestmark"]

INCLUDE = Path(__file__).parents[2] / "bpf" / "include"  # of this tree, whatever is installed


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EGPU_RUNTIME_DIR", str(tmp_path / "runtime"))


def declared(program, flags, *names):
    """An object whose maps ``names`` have ``flags``, and are pinned by name."""
    obj = egpu.Object(program).bound()
    maps = tuple(
        replace(spec, flags=flags, pin_by_name=True) if spec.name in names else spec
        for spec in obj.maps
    )
    return egpu.Object(replace(obj, maps=maps))


def unreadable(maps):
    """What reads arrays and hash maps."""
    settings, blocks, totals = maps["settings"], maps["blocks"], maps["totals"]
    return [
        lambda: settings[0],
        lambda: dict(settings),
        settings.to_dict,
        lambda: settings.lookup_batch([1]),
        settings.raw_entries,
        settings.nonzero_keys,
        lambda: totals[FIRST],
        lambda: totals.per_sm(FIRST),
        lambda: blocks[1],
        lambda: list(blocks),
        lambda: len(blocks),
        lambda: blocks.lookup_batch([1]),
        blocks.raw_entries,
    ]


def test_what_only_programs_read(tmp_path):
    names = ("settings", "blocks", "totals")
    with running(tmp_path, declared(PROGRAM, BPF_F_WRONLY, *names)) as (session, stepper):
        maps = session.maps
        for launched in (False, True):
            assert [refused(read) for read in unreadable(maps)] == [errno.EPERM] * 13
            maps["settings"][0] = (3, 0)
            maps["blocks"].update(70 + launched, 1, UpdateFlag.NOEXIST)
            assert refused(maps["blocks"].update, 70, 1, UpdateFlag.NOEXIST) == errno.EEXIST
            stepper.do("first 4 10")
        opened = egpu.open_map("blocks")
        opened[90] = 5
        assert refused(opened.to_dict) == errno.EPERM
        stepper.end(session)
    saved = egpu.open_map("totals")
    assert refused(saved.to_dict) == refused(lambda: saved[FIRST]) == errno.EPERM
    assert not saved.frozen
    saved[FIRST] = 7
    done = command("map", "dump", "blocks")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "BPF_F_WRONLY" in done.stderr


def test_what_is_kept_of_a_map_that_only_programs_read(tmp_path):
    """The same map in a later session, declared without the flag, has it all."""
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()
    with running(places[0], declared(PROGRAM, BPF_F_WRONLY, "blocks")) as (session, stepper):
        session.maps["blocks"][70] = 6
        stepper.do("first 4 10")
        stepper.end(session)
    with running(places[1], declared(PROGRAM, 0, "blocks")) as (session, stepper):
        assert dict(session.maps["blocks"]) == {0: 1, 1: 1, 2: 1, 3: 1, 70: 6}
        stepper.do("first 2 10")
        session.snapshot()
        assert dict(session.maps["blocks"]) == {0: 2, 1: 2, 2: 1, 3: 1, 70: 6}


def test_what_only_programs_change_goes_on_from_its_pin(tmp_path):
    obj = declared(PROGRAM, BPF_F_RDONLY, "blocks", "totals")
    for number in (1, 2):
        place = tmp_path / str(number)
        place.mkdir()
        with running(place, obj) as (session, stepper):
            blocks = session.maps["blocks"]
            stepper.do("first 3 10")
            assert refused(blocks.update, 1, 1) == refused(blocks.delete, 1) == errno.EPERM
            assert refused(blocks.freeze) == errno.EPERM
            stepper.end(session)
            assert blocks.to_dict() == {0: number, 1: number, 2: number}
        saved = egpu.open_map("blocks")
        assert refused(saved.update, 1, 1) == refused(saved.delete, 1) == errno.EPERM
        assert refused(saved.freeze) == errno.EPERM
        assert saved.to_dict() == {0: number, 1: number, 2: number}
        assert egpu.open_map("totals")[FIRST] == 30 * number


def test_queues_and_filters(tmp_path):
    obj = declared(PUSHED, BPF_F_WRONLY, "waiting", "latest", "seen")
    with running(tmp_path, obj) as (session, stepper):
        maps = session.maps
        queue, seen = maps["waiting"], maps["seen"]
        for _ in range(2):
            queue.push(pair(1))
            seen.push(5)
            reads = [queue.pop, queue.peek, lambda: list(queue), lambda: 5 in seen, seen.fill]
            assert [refused(read) for read in reads] == [errno.EPERM] * 5
            stepper.do("second 1 1")
        opened = egpu.open_map("waiting")
        opened.push(pair(2))
        assert refused(opened.pop) == refused(opened.peek) == errno.EPERM
        assert refused(lambda: 5 in egpu.open_map("seen")) == errno.EPERM
        stepper.end(session)


def test_queues_that_only_programs_change(tmp_path):
    with running(tmp_path, declared(PUSHED, BPF_F_RDONLY, "latest")) as (session, stepper):
        stack = session.maps["latest"]
        stepper.do("first 1 1")  # pushes number 0 and pops it
        session.snapshot()
        assert list(stack) == []
        assert refused(stack.push, pair(1)) == refused(stack.pop) == errno.EPERM
        stepper.end(session)


SECRET = """
#include "egpu.bpf.h"
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __uint(map_flags, BPF_F_WRONLY);
  __type(key, __u32);
  __type(value, __u64);
} secret SEC(".maps");
SEC("kprobe/*") int count(void *c) {
  __u32 key = 0;
  __u64 *value = bpf_map_lookup_elem(&secret, &key);
  if (value) __sync_fetch_and_add(value, 1);
  return 0;
}
char LICENSE[] SEC("license") = "GPL";
"""


@pytest.mark.skipif(find_spec("ziglang") is None, reason="no compiler for BPF")
def test_the_report_says_what_is_not_shown(tmp_path):
    source, target = tmp_path / "secret.bpf.c", tmp_path / "secret.bpf.o"
    source.write_text(SECRET)
    flags = ["-mcpu=v3", "-O2", "-g", "-c", f"-I{INCLUDE}", "-o", str(target), str(source)]
    subprocess.run([*compiler(), *flags], check=True)
    done = command("run", "--sim", "--json", str(target), "--", "true")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["maps"]["secret"] is None
    done = command("run", "--sim", str(target), "--", "true")
    assert "secret: not shown, only programs read it (BPF_F_WRONLY)" in done.stdout

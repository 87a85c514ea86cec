"""egpu cache: what is kept, and clearing it."""

import json

import pytest

from egpu.cli import main
from egpu.cli.machine import State, _cache
from egpu.session.cache import BuiltTwin, Origin, TwinCache

TWIN = BuiltTwin(bytes(2000), 24, 3, (), "", (), 1, 2, ())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EGPU_CACHE_DIR", str(tmp_path / "twins"))
    monkeypatch.delenv("EGPU_CACHE_LIMIT", raising=False)
    return tmp_path / "twins"


def fill(folder, number=1):
    cache = TwinCache(folder)
    for each in range(number):
        origin = Origin(f"_Z6matmulILi{each}EEvPKf", ("count_entry", "count_exit"), 90)
        cache.store(TwinCache.key(str(each)), TWIN, origin)


def test_path(folder, capsys):
    assert main(["cache", "path"]) == 0
    assert capsys.readouterr().out == f"{folder}\n"


def test_an_empty_cache(folder, capsys):
    assert main(["cache", "list"]) == 0
    assert "0 twins, 0 B of at most 256 MiB" in " ".join(capsys.readouterr().out.split())
    assert main(["cache", "clear", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == 0
    assert not folder.exists()


def test_list(folder, capsys):
    fill(folder)
    assert main(["cache", "list"]) == 0
    text = capsys.readouterr().out
    assert "matmul<0>" in text
    assert "count_entry, count_exit" in text
    assert "sm_90" in text
    assert all(len(line) <= 80 for line in text.splitlines() if str(folder) not in line)
    assert main(["cache", "list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "egpu.cache/1"
    (row,) = document["entries"]
    assert row["kernel"] == "_Z6matmulILi0EEvPKf"
    assert row["current"] is True
    assert row["bytes"] == document["bytes"] > 2000


def test_many_entries_are_cut_in_the_text_only(folder, capsys):
    fill(folder, 50)
    assert main(["cache", "list"]) == 0
    assert "and 10 more" in capsys.readouterr().out
    assert main(["cache", "list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["entries"]) == 50


def test_clear(folder, capsys):
    fill(folder, 3)
    assert main(["cache", "clear", "--keep", "5K", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == 1
    assert main(["cache", "clear"]) == 0
    assert "2 twins removed" in " ".join(capsys.readouterr().out.split())
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "arguments", [["clear", "--keep", "lots"], ["burn"], ["list", "--nothing"]]
)
def test_wrong_usage(folder, capsys, arguments):
    assert main(["cache", *arguments]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["clear"]])
def test_what_is_no_folder_is_no_empty_cache(folder, capsys, monkeypatch, arguments):
    folder.write_text("mine")
    assert main(["cache", *arguments]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"egpu: {folder}: is no folder; EGPU_CACHE_DIR names another\n"
    monkeypatch.setenv("EGPU_CACHE_DIR", str(folder / "twins"))
    assert main(["cache", *arguments]) == 1
    assert capsys.readouterr().err == said.err
    assert folder.read_text() == "mine"


def test_doctor_says_that_it_is_no_folder(folder, monkeypatch):
    assert _cache().state is State.OK
    folder.write_text("mine")
    for place in (folder, folder / "twins"):
        monkeypatch.setenv("EGPU_CACHE_DIR", str(place))
        found = _cache()
        assert found.state is State.MISSING
        assert found.detail == f"{folder} is no folder: twins are built anew"


def test_a_wrong_limit_is_named(folder, capsys, monkeypatch):
    monkeypatch.setenv("EGPU_CACHE_LIMIT", "lots")
    assert main(["cache", "list"]) == 2
    assert "EGPU_CACHE_LIMIT" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["clear"]])
def test_a_folder_that_cannot_be_read_is_no_empty_cache(tmp_path, capsys, monkeypatch, arguments):
    """No name of a file is that long; where rights are missing it is the same."""
    folder = tmp_path / ("x" * 300)
    monkeypatch.setenv("EGPU_CACHE_DIR", str(folder))
    assert main(["cache", *arguments]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"egpu: {folder}: File name too long\n"
    assert _cache().name == "cache"  # and the doctor looks on

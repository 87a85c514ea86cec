"""Twins on disk: what is damaged, foreign or in the way means "not cached", never a failure."""

import hashlib
import os

import pytest

from egpu.session import assemble
from egpu.session.cache import CACHE_FORMAT, BuiltTwin, TwinCache

TWIN = BuiltTwin(b"\x7fELF code", 24, 3, ("a", "b"), "table", ((64, 0), (72, 8)), 1, 2, ("trap",))
KEY = TwinCache.key("image", "kernel")


def path_of(folder):
    return folder / f"{KEY}.twin"


def signed(body):
    return CACHE_FORMAT + hashlib.sha256(body).digest() + body


def head(text):
    return len(text).to_bytes(4, "little") + text


def test_what_is_stored_is_loaded(tmp_path):
    cache = TwinCache(tmp_path / "new")
    assert cache.load(KEY) is None
    cache.store(KEY, TWIN)
    assert cache.failure == ""
    assert TwinCache(tmp_path / "new").load(KEY) == TWIN
    assert [path.name for path in (tmp_path / "new").iterdir()] == [f"{KEY}.twin"]


def test_a_file_that_is_cut_or_changed_anywhere_is_not_taken(tmp_path):
    cache = TwinCache(tmp_path)
    cache.store(KEY, TWIN)
    whole = path_of(tmp_path).read_bytes()
    for end in range(len(whole)):
        path_of(tmp_path).write_bytes(whole[:end])
        assert cache.load(KEY) is None
        changed = bytearray(whole)
        changed[end] ^= 1
        path_of(tmp_path).write_bytes(changed)
        assert cache.load(KEY) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xff\xff\xff",
        head(b"{}"),
        head(b"[]"),
        head(b"null"),
        head(b"not JSON"),
        head(b"\xff\xfe\x80"),
        head(b'{"globals": 1, "uncovered": []}'),
        head(b'{"globals": [], "uncovered": [], "more": 1}'),
    ],
)
def test_a_foreign_file_with_a_right_checksum_is_not_taken(tmp_path, body):
    path_of(tmp_path).write_bytes(signed(body))
    assert TwinCache(tmp_path).load(KEY) is None


def test_a_folder_in_the_way_is_no_failure(tmp_path):
    path_of(tmp_path).mkdir()
    cache = TwinCache(tmp_path)
    assert cache.load(KEY) is None
    cache.store(KEY, TWIN)
    assert "not cached" in cache.failure
    cache = TwinCache(path_of(tmp_path) / "file")
    (path_of(tmp_path) / "file").write_bytes(b"")
    assert cache.load(KEY) is None
    cache.store(KEY, TWIN)
    assert "not cached" in cache.failure


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("egpu.session.cache.os.replace", full)
    cache = TwinCache(tmp_path)
    cache.store(KEY, TWIN)
    assert cache.failure.endswith("No space left on device")
    assert not list(tmp_path.iterdir())


def test_the_oldest_go_first_and_what_a_killed_session_left(tmp_path):
    cache = TwinCache(tmp_path, limit=2 * len(signed(TWIN.to_bytes())))
    keys = [TwinCache.key(str(number)) for number in range(3)]
    for age, name in ((7200, ".new-old"), (0, ".new-young")):
        (tmp_path / name).write_bytes(b"half")
        now = (tmp_path / name).stat().st_mtime
        os.utime(tmp_path / name, (now - age, now - age))
    for number, key in enumerate(keys):
        cache.store(key, TWIN)
        os.utime(tmp_path / f"{key}.twin", (number, number))
    assert [cache.load(key) is not None for key in keys] == [False, True, True]
    assert [path.name for path in tmp_path.glob(".new-*")] == [".new-young"]


@pytest.mark.parametrize("script", ["", "printf '\\377'", "exit 1", "echo; echo"])
def test_a_ptxas_that_says_no_version_is_none(tmp_path, monkeypatch, script):
    program = tmp_path / "ptxas"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("EGPU_PTXAS", str(program))
    assert assemble.find_ptxas() is None

"""Twins on disk: what is damaged, foreign or in the way means "not cached", never a failure."""

import itertools
import multiprocessing
import os
import time
import zlib
from pathlib import Path

import llvmlite
import pytest

from egpu.errors import InputError
from egpu.session import assemble
from egpu.session.cache import (
    CACHE_FORMAT,
    BuiltTwin,
    Origin,
    TwinCache,
    build_identity,
    byte_size,
    cache_limit,
    identity_of,
)
from egpu.session.cache_listing import clear, list_entries
from egpu.version import VERSION

PATIENCE = 60  # seconds for what takes a moment: how fast a machine is proves nothing
TWIN = BuiltTwin(b"\x7fELF code", 24, 3, ("a", "b"), "table", ((64, 0), (72, 8)), 1, 2, ("trap",))
KEY = TwinCache.key("image", "kernel")
SIZE = len(CACHE_FORMAT) + 4 + len(TWIN.to_bytes())


def path_of(folder):
    return folder / f"{KEY}.twin"


def signed(body):
    return CACHE_FORMAT + zlib.crc32(body).to_bytes(4, "little") + body


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
        assert not path_of(tmp_path).exists()
        changed = bytearray(whole)
        changed[end] ^= 1
        path_of(tmp_path).write_bytes(changed)
        assert cache.load(KEY) is None
    assert cache.damaged == 2 * len(whole)
    cache.store(KEY, TWIN)
    assert cache.load(KEY) == TWIN


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xff\xff\xff",
        head(b"{}"),
        head(b"[]"),
        head(b"null"),
        head(b"not JSON"),
        head(b"[" * 100_000),
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
    cache = TwinCache(tmp_path, limit=2 * SIZE)
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


def test_a_use_is_remembered(tmp_path):
    cache = TwinCache(tmp_path, limit=2 * SIZE)
    first, second, third = (TwinCache.key(str(number)) for number in range(3))
    for age, key in ((200, first), (100, second)):
        cache.store(key, TWIN)
        os.utime(tmp_path / f"{key}.twin", (time.time() - age,) * 2)
    assert cache.load(first) == TWIN
    cache.store(third, TWIN)
    assert [cache.load(key) is not None for key in (first, second, third)] == [True, False, True]


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), ("123", 123), ("64k", 65536), ("2G", 2 << 30), (" 1M ", 1 << 20)]
)
def test_sizes(monkeypatch, text, number):
    monkeypatch.setenv("EGPU_CACHE_LIMIT", text)
    assert cache_limit() == byte_size(text, "here") == number


@pytest.mark.parametrize("text", ["-1", "1T", "much", "1.5G", "１"])
def test_what_is_no_size_is_said(monkeypatch, text):
    monkeypatch.setenv("EGPU_CACHE_LIMIT", text)
    with pytest.raises(InputError, match="EGPU_CACHE_LIMIT"):
        cache_limit()


def test_listing_says_what_is_kept(tmp_path):
    assert list_entries(tmp_path / "not made yet") == ()
    cache = TwinCache(tmp_path)
    cache.store(KEY, TWIN, Origin("_Z1kv", ("enter", "leave"), 90))
    other = TwinCache.key("other")
    (tmp_path / f"{other}.twin").write_bytes(b"egpu twin 3\n" + bytes(40))
    os.utime(tmp_path / f"{other}.twin", (time.time() - 3600,) * 2)
    (tmp_path / "mine.twin").write_bytes(b"not a twin's name")
    new, old = list_entries(tmp_path)
    assert (new.origin.kernel, new.origin.programs, new.origin.arch) == (
        "_Z1kv", ("enter", "leave"), 90)  # fmt: skip
    assert new.current
    assert new.size == path_of(tmp_path).stat().st_size
    assert old.origin is None
    assert not old.current
    assert 3590 < old.age_s < 3700


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"origin": 1}',
        b'{"origin": {"kernel": 1, "programs": 2, "arch": 3, "version": 4, "build": 5}}',
        b'{"origin": {"kernel": "k", "programs": [], "arch": Infinity, "version": ""}}',
    ],
)
def test_what_others_wrote_is_listed_without_an_origin(tmp_path, text):
    path_of(tmp_path).write_bytes(signed(head(text)))
    (entry,) = list_entries(tmp_path)
    assert entry.origin is None


def test_a_pipe_in_the_way_is_not_waited_for(tmp_path):
    os.mkfifo(path_of(tmp_path))
    cache = TwinCache(tmp_path)
    assert cache.load(KEY) is None
    assert list_entries(tmp_path) == ()
    cache.store(KEY, TWIN)
    assert cache.load(KEY) == TWIN


def test_clearing_leaves_what_is_not_ours(tmp_path):
    cache = TwinCache(tmp_path)
    keys = [TwinCache.key(str(number)) for number in range(5)]
    for age, key in enumerate(reversed(keys)):
        cache.store(key, TWIN)
        os.utime(tmp_path / f"{key}.twin", (time.time() - age,) * 2)
    (tmp_path / "notes.txt").write_text("mine")
    assert clear(tmp_path, keep=2 * SIZE).entries == 3
    assert [cache.load(key) is not None for key in keys] == [False, False, False, True, True]
    cleared = clear(tmp_path)
    assert (cleared.entries, cleared.bytes, cleared.failed) == (2, 2 * SIZE, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert clear(tmp_path / "not made yet").entries == 0


@pytest.mark.parametrize("module", ["session/assemble.py", "session/splicing.py", "splice/sass.py"])
def test_a_change_of_what_builds_twins_is_another_key(tmp_path, module):
    (tmp_path / module).parent.mkdir()
    (tmp_path / module).write_text("a = 1")
    first = identity_of(tmp_path, "1.0", "0.45")
    assert first == identity_of(tmp_path, "1.0", "0.45") != identity_of(tmp_path, "1.0", "0.46")
    (tmp_path / module).write_text("a = 10")
    assert identity_of(tmp_path, "1.0", "0.45") != first


def test_another_compiler_is_another_key(monkeypatch):
    build_identity.cache_clear()
    before = TwinCache.key("image", "kernel")
    build_identity.cache_clear()
    monkeypatch.setattr("llvmlite.__version__", "0.0")
    after = TwinCache.key("image", "kernel")
    build_identity.cache_clear()
    assert before != after
    monkeypatch.undo()
    installed = Path(assemble.__file__).parents[1]
    assert build_identity() == identity_of(installed, VERSION, llvmlite.__version__)


def _hammer(folder, seed, over, results):
    """Store and load; whatever is loaded must be whole and the one that was asked for."""
    cache, wrong, hits, number = TwinCache(folder, limit=40 * 20_000), 0, 0, seed
    rounds = itertools.count()
    while next(rounds) < 400 or not over.is_set():
        number = (number * 1103515245 + 12345) % (1 << 31)
        which = number >> 8 & 63
        twin = BuiltTwin(bytes([which]) * 20_000, which, 3, (), "", (), 1, 2, ())
        key = TwinCache.key(str(which))
        if number & 1 << 20:
            cache.store(key, twin)
        found = cache.load(key)
        hits += found is not None
        wrong += found is not None and found != twin
    results.put((wrong, hits, cache.failure, cache.damaged))


def test_several_processes_store_load_and_clear_at_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    over, results = context.Event(), context.Queue()
    workers = [
        context.Process(target=_hammer, args=(tmp_path, seed, over, results)) for seed in range(4)
    ]
    for worker in workers:
        worker.start()
    cleared = 0
    end = time.monotonic() + PATIENCE
    while cleared < 200 and time.monotonic() < end:
        cleared += clear(tmp_path, keep=0 if cleared % 2 else 100_000).entries
        list_entries(tmp_path)
        time.sleep(0.005)
    over.set()
    rows = [results.get(timeout=PATIENCE) for _ in workers]
    for worker in workers:
        worker.join(PATIENCE)
        assert worker.exitcode == 0
    assert [row[0] for row in rows] == [0] * 4
    assert [row[2:] for row in rows] == [("", 0)] * 4
    assert all(row[1] for row in rows)
    assert cleared >= 200
    # each process may overshoot by an eighth of the limit before it looks again
    assert sum(entry.size for entry in list_entries(tmp_path)) <= 40 * 20_000 * 3 // 2 + 4 * 21_000


def test_a_cache_is_empty_until_a_twin_is_kept(tmp_path):
    cache = TwinCache(tmp_path / "not there yet")
    assert cache.is_empty()
    (tmp_path / "not there yet").mkdir()
    (tmp_path / "not there yet" / "README").touch()
    assert cache.is_empty()
    cache.store(TwinCache.key("a"), TWIN)
    assert not cache.is_empty()
    assert not TwinCache(tmp_path / "not there yet").is_empty()

"""The verdicts of tests/gpu/run.py: what is skipped is no pass."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "gpu"


@pytest.fixture
def runner(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    spec = importlib.util.spec_from_file_location("gpu_run", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def passes(built):
    return f"{built} exact"


def lacks(built):
    return "skipped: no libbpf.so.1"


def fails(built):
    raise ValueError("wrong")


def test_three_verdicts(runner):
    rows = [runner.run_check(check, 7) for check in (passes, lacks, fails)]
    assert [row["verdict"] for row in rows] == ["passed", "skipped", "failed"]
    assert rows[0]["detail"] == "7 exact"
    assert "ValueError: wrong" in rows[2]["detail"]
    line, code = runner.summary(rows, no_skips=False)
    assert (line, code) == ("1 passed, 1 skipped (lacks), 1 failed (fails)", 1)


@pytest.mark.parametrize(("no_skips", "code"), [(False, 0), (True, 1)])
def test_skips_fail_where_that_is_asked(runner, no_skips, code):
    rows = [runner.run_check(check, 7) for check in (passes, lacks)]
    assert runner.summary(rows, no_skips=no_skips) == (
        "1 passed, 1 skipped (lacks), 0 failed",
        code,
    )
    assert runner.parse(["--no-skips"]).no_skips
    assert runner.summary(rows[:1], no_skips=no_skips)[1] == 0
    assert runner.summary([], no_skips=no_skips)[1] == 1

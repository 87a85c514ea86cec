"""The workload and the loader are compiled once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from running import build

from egpu.cli.machine import NATIVE


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    if not (NATIVE / "libegpu_loader.so").exists() or not (NATIVE / "sim").is_dir():
        pytest.skip("the native parts are not built (make native)")
    return build(tmp_path_factory.mktemp("bpftime"))

"""The workload and the loader are compiled once."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from running import build

from egpu.cli.machine import NATIVE


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    ready = (NATIVE / "libegpu_loader.so").exists() and (NATIVE / "sim").is_dir()
    if not ready and os.environ.get("CI") != "true":  # in CI they must be there
        pytest.skip("the native parts are not built (make native)")
    return build(tmp_path_factory.mktemp("bpftime"))

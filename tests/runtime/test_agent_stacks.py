"""Stacks reach the session before whatever names them."""

import subprocess

import agent_harness as harness
import pytest


@pytest.mark.parametrize("kind", ["plain", "sanitized"])
def test_a_number_is_not_known_before_its_stack(kind):
    program = harness.build(kind) / "tests" / "agent_unit_stacks"
    done = subprocess.run(
        [program], capture_output=True, text=True, check=False, timeout=harness.PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr

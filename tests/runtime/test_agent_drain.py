"""How the agent copies records out of device memory: producers, copies and the reader in a random
order of their steps, and copies that fail."""

import os
import subprocess

import agent_harness as harness
import pytest

from egpu.maps.layout import RING_LAPS


@pytest.fixture(scope="module", params=["plain", "sanitized"])
def drained(request):
    program = harness.build(request.param) / "tests" / "agent_unit_drain"

    def run(seed, steps, fail=0):
        environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
        command = [program, str(seed), str(steps), str(fail)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return [int(number) for number in done.stdout.split()]

    return run


@pytest.mark.parametrize("seed", range(1, 9))
def test_every_record_comes_once_whole_and_in_order(drained, seed):
    laps, behind, produced, received, discarded, dropped = drained(seed, 200_000)[:6]
    assert received + discarded == produced
    assert min(received, discarded, dropped, behind) > 1000
    assert laps > RING_LAPS  # so that flags of earlier laps have this lap's number


@pytest.mark.parametrize("seed", range(1, 9))
def test_every_slot_comes_once_whole_and_in_order(drained, seed):
    laps, behind, taken, received, dropped = drained(seed, 100_000)[6:]
    assert received == taken
    assert min(received, dropped, behind) > 1000
    assert laps > 60  # stamps begin again at 0 after 40


@pytest.mark.parametrize("fail", [1, 2, 3, 4, 5, 6, 7, 10, 31, 100, 333, 334, 335, 336, 337, 338])
def test_a_copy_that_fails_ends_it_and_tears_nothing(drained, fail):
    counts = drained(fail, 50_000, fail)
    _, _, produced, received, discarded, dropped = counts[:6]
    assert received + discarded <= produced
    assert dropped > produced - received - discarded > 0
    _, _, taken, received, dropped = counts[6:]
    assert dropped > taken - received > 0

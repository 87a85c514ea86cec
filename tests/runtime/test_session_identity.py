"""Helpers that say who runs and when, of a real workload on the simulated device."""

import os
import sys
import time

import pytest
from test_runtime_cli import DEMO, ROOT, egpu, pytestmark, workload

from egpu.errors import InputError
from egpu.session import Options, run

sys.path.insert(0, str(ROOT / "tests" / "gpu"))
from identity_records import documents, wrong_records

__all__ = ["pytestmark"]
PROGRAM = ROOT / "tests" / "gpu" / "probes" / "identity.bpf.o"
UID_GID = os.getgid() << 32 | os.getuid()


def test_every_record_says_what_the_host_knows():
    before = time.monotonic_ns()
    done = egpu("run", PROGRAM, "--sim", "--json", "--", *workload())
    after = time.monotonic_ns()
    assert done.returncode == 0, done.stderr
    records, report, kernels = documents(done.stdout)
    assert wrong_records(records, kernels, (before, after), UID_GID) == []
    # One offset for all: the header's, added to the device's clock.
    offsets = {record["ktime"] - record["device"] for record in records}
    assert max(offsets) - min(offsets) < 100  # steps of the simulated clock between the readings
    (clock,) = report["clocks"]
    assert clock["error_ns"] > 0


def cookies(**options):
    with run(
        [str(DEMO / "demo"), "--launches", "1"],
        programs=PROGRAM,
        options=Options(simulated=True, **options),
    ) as session:
        session.wait()
        return {record.cookie for record in session.maps["events"]}


def test_cookies_reach_their_program():
    assert cookies() == {0}
    assert cookies(cookies={"block": 2**64 - 3}) == {2**64 - 3}
    assert cookies(cookies={"block": True}) == {1}


@pytest.mark.parametrize(
    ("given", "message"), [({"other": 1}, "no program 'other'"), ({"block": -1}, "does not fit")]
)
def test_bad_cookies(given, message):
    with pytest.raises(InputError, match=message):
        cookies(cookies=given)


def test_only_programs_that_ask_pay_for_the_clock():
    program = ROOT / "tests" / "gpu" / "probes" / "prints.bpf.o"
    done = egpu("run", program, "--sim", "--json", "--", *workload(launches=1))
    assert done.returncode == 0, done.stderr
    _, report, _ = documents(done.stdout)
    assert report["clocks"] == []

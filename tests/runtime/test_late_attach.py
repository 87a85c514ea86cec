"""Programs that are attached to a workload which runs already."""

from contextlib import contextmanager

import pytest
from test_host_maps import FIRST, PROGRAM, SECOND, Stepper
from test_runtime_cli import PATIENCE, ROOT, pytestmark

import egpu
from egpu import session as api
from egpu.errors import InputError, VerifierError

__all__ = ["pytestmark"]

OTHER = ROOT / "tests" / "gpu" / "probes" / "hash_counts.bpf.o"


@contextmanager
def idle(tmp_path):
    stepper = Stepper(tmp_path)
    options = egpu.Options(simulated=True)
    with api.start_idle(stepper.argv, options=options) as workload:
        yield workload, stepper
        stepper._to.close()
        assert workload.process.wait(PATIENCE) == 0
        stepper._from.close()


def seen(session):
    return {row.name: (row.seen, row.probed, row.not_probed) for row in session.kernels()}


def test_counts_from_the_attach_to_the_detach(tmp_path):
    """Kernels that ran before, one that did not; nothing of what was launched before or after."""
    with idle(tmp_path) as (workload, stepper):
        stepper.do("first 7 33")
        stepper.do("first 5 64")
        assert workload.pids() == (workload.pid,)
        with api.attach(workload, programs=str(PROGRAM)) as session:
            assert seen(session) == {}
            for _ in range(3):
                stepper.do("first 4 10")
            stepper.do("second 2 31")
            session.maps["settings"][0] = {"factor": 2, "bias": 0}
            stepper.do("first 4 10")
            session.detach()
            totals = session.maps["totals"].to_dict()
            assert (totals[FIRST], totals[SECOND]) == (160, 62)
            assert seen(session) == {"first": (4, 4, {}), "second": (1, 1, {})}
            assert session.maps["blocks"].to_dict() == {0: 5, 1: 5, 2: 4, 3: 4}
        stepper.do("first 9 90")
        assert workload.running()
        assert not workload.attached


def test_leaving_the_session_is_detaching(tmp_path):
    with idle(tmp_path) as (workload, stepper):
        with api.attach(workload, programs=str(PROGRAM)) as session:
            stepper.do("first 4 10")
            session.snapshot()
            assert session.maps["totals"][FIRST] == 40
            with pytest.raises(InputError, match="has a session attached already"):
                api.attach(workload, programs=str(OTHER))
        stepper.do("first 4 10")
        with pytest.raises(InputError, match="was attached to before"):
            api.attach(workload, programs=str(OTHER))
        stepper.do("second 4 10")


def test_a_second_session_where_the_first_ran_nothing(tmp_path):
    with idle(tmp_path) as (workload, stepper):
        stepper.do("second 1 1")
        options = egpu.Options(kernels="no_such_kernel")
        with api.attach(workload, programs=str(PROGRAM), options=options) as session:
            stepper.do("first 4 10")
            assert seen(session) == {}
        with api.attach(workload, programs=str(PROGRAM)) as session:
            stepper.do("first 4 10")
            session.snapshot()
            assert session.maps["totals"][FIRST] == 40
            assert seen(session) == {"first": (1, 1, {})}


def test_programs_that_are_refused_leave_it_idle(tmp_path):
    refused = ROOT / "tests" / "bpftime" / "programs" / "racy.bpf.o"
    with idle(tmp_path) as (workload, stepper):
        stepper.do("first 1 1")
        with pytest.raises(VerifierError):
            api.attach(workload, programs=str(refused))
        with pytest.raises(InputError, match="sampling is settled"):
            api.attach(workload, programs=str(PROGRAM), options=egpu.Options(sample=2))
        with api.attach(workload, programs=str(PROGRAM)) as session:
            stepper.do("first 4 10")
            session.snapshot()
            assert session.maps["totals"][FIRST] == 40


def test_it_ends_while_it_is_attached_to(tmp_path):
    with idle(tmp_path) as (workload, stepper):
        stepper.do("first 2 2")
        with api.attach(workload, programs=str(PROGRAM)) as session:
            stepper.do("first 4 10")
            stepper._to.close()
            assert session.wait(PATIENCE) == 0
            assert session.stale() == ""
            assert session.maps["totals"][FIRST] == 40

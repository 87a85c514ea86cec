"""Sessions: with a workload that is started, or attached to one that runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from egpu.bpf import program as bpf
from egpu.errors import InputError
from egpu.session.arrivals import verify_all
from egpu.session.loadable import Object
from egpu.session.objects import Collection, combine
from egpu.session.options import Options, RingMemory
from egpu.session.seconds import check_seconds
from egpu.session.session import Session
from egpu.session.stamping import stamped_maps
from egpu.session.workload import IDLE_WAIT_S, Attachment, IdleWorkload, NewWorkload, Workload
from egpu.verifier import Limits, Policy

Programs = Object | bpf.Object | str | Path


def run(
    argv: Sequence[str],
    *,
    programs: Programs | Sequence[Programs],
    options: Options | None = None,
) -> Session:
    """Start ``argv`` with the programs of ``programs`` (objects or paths of them) attached.

    Everything is read and verified before the workload starts, and what was set in an ``Object`` is
    in its maps.  Raises InputError (VerifierError for a program that was refused),
    UnsupportedError, or OSError if the command cannot be started.
    """
    if not argv:
        raise InputError("no command to run", hint="put it behind --", usage=True)
    options = options or Options()
    return _open(NewWorkload(argv, options), programs, options)


def start_idle(argv: Sequence[str], *, options: Options | None = None) -> IdleWorkload:
    """Start ``argv`` with nothing attached; :func:`attach` attaches programs while it runs.

    Of ``options`` it takes ``simulated``, ``follow``, ``environment`` and ``snapshot_period_s``.
    Raises as :func:`run`.
    """
    if not argv:
        raise InputError("no command to run", hint="put it behind --", usage=True)
    options = options or Options()
    check_seconds("snapshot_period_s", options.snapshot_period_s)
    return IdleWorkload(argv, replace(options, twin_wait_s=IDLE_WAIT_S, sample=1))


def attach(
    workload: IdleWorkload,
    *,
    programs: Programs | Sequence[Programs],
    options: Options | None = None,
) -> Session:
    """Attach programs to a workload that was started idle: launches that begin after this returns
    are probed, counts are of these only.  Closing the session takes the programs out.

    Raises as :func:`run`, and InputError for ``sample``, which is settled at the start, for a
    workload that has a session already, and for one that had one whose programs ran.
    """
    options = replace(options or Options(), simulated=workload.simulated)
    if options.sample != 1:
        raise InputError("sampling is settled when a workload starts", where="sample")
    return _open(Attachment(workload, options.twin_wait_s), programs, options)


def _open(workload: Workload, programs: Programs | Sequence[Programs], options: Options) -> Session:
    given = [programs] if isinstance(programs, Programs) else list(programs)
    check_seconds("twin_wait_s", options.twin_wait_s)
    check_seconds("snapshot_period_s", options.snapshot_period_s)
    for name, value, least, most in (
        ("sample", options.sample, 1, (1 << 32) - 1),
        ("cost_limit", options.cost_limit, 1, None),
        ("print_limit", options.print_limit, 0, None),
    ):
        _check_whole(name, value, least, most)
    objects = [item if isinstance(item, Object) else Object(item) for item in given]
    collection = combine([item.bound() for item in objects]).with_cookies(options.cookies)
    if options.map_deletions:
        collection = collection.with_deletions()
    if options.rings is RingMemory.DEVICE:
        collection = collection.with_rings_on_device()
    limits = Limits(cost=options.cost_limit, lost_updates=options.lost_updates)
    policy = Policy.CONTROL if options.allow_control else Policy.PROBE
    verified = verify_all(collection.programs, policy, limits)
    if options.rings is RingMemory.DEVICE and (stamped := stamped_maps(verified, collection.maps)):
        collection = collection.with_stamped(stamped)
        verified = verify_all(collection.programs, policy, limits)
    return Session(
        workload,
        verified,
        collection,
        options,
        lambda session: _prepare(session, objects, collection),
    )


def _check_whole(name: str, value: object, least: int, most: int | None) -> None:
    """InputError if it is no whole number from ``least`` to ``most``; None: any that is greater."""
    if isinstance(value, int) and least <= value and (most is None or value <= most):
        return
    wanted = f"of {least} or more" if most is None else f"from {least} to {most}"
    raise InputError(f"{value!r:.40} is no whole number {wanted}", where=name)


def _prepare(session: Session, objects: Sequence[Object], collection: Collection) -> None:
    """Tie objects to their session, with what was set in them."""
    base = first = 0
    for item in objects:
        maps, programs = len(item.maps), item.programs
        links = collection.links[first : first + len(programs)]
        item.prepare(session.arenas, base)
        item.bind(session, base, links)
        unwanted = [
            link for link, own in zip(links, programs.values(), strict=True) if not own.wanted
        ]
        session.change_links(unwanted, attached=False)
        base, first = base + maps, first + len(programs)

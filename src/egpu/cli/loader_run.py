"""``egpu run --loader``: a libbpf program shows the numbers, egpu reports beside it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

import click

from egpu.cli.extras import Extras
from egpu.cli.output import write_report
from egpu.report import Report

if TYPE_CHECKING:
    from egpu.loader import Loader
    from egpu.loader.directly import Shape
    from egpu.session import Options, Session


# Of a program that runs directly: it has ended when it has ended.
_DIRECT_WAIT_S = 0.1
_DIRECT_INTERVAL_S = 0.02


@dataclass(frozen=True, slots=True)
class LoaderRun:
    """What is run: ``loader`` (a shell's words), the workload, how long the loader goes on after
    it (``wait_s``); printed lines are looked for every ``interval_s``; ``extras`` are added to
    the report."""

    loader: str
    workload: tuple[str, ...]
    wait_s: float
    interval_s: float
    extras: Extras = field(default_factory=Extras)


def run_loader(asked: LoaderRun, options: Options, stream: TextIO, *, as_json: bool) -> int:
    """Start the loader, then the workload under what it attached; the workload's
    exit code.  Lines that programs print go to ``stream`` as they come; when both have ended, what
    happened to launches.
    """
    from egpu.loader import run_attached, start_loader  # noqa: PLC0415

    with (
        start_loader(_words(asked.loader), options) as started,
        run_attached(started, asked.workload, options) as running,
    ):
        return _followed(started, running, asked, stream, as_json=as_json)


def run_loader_directly(
    loader: str, name: str, shape: Shape, options: Options, stream: TextIO, *, as_json: bool
) -> int:
    """Start the loader, then its program ``name`` as a kernel of its own; 0 unless that failed."""
    from egpu.loader import run_directly, start_loader  # noqa: PLC0415

    with (
        start_loader(_words(loader), options) as started,
        run_directly(started, name, shape, options) as running,
    ):
        asked = LoaderRun(loader, (), _DIRECT_WAIT_S, _DIRECT_INTERVAL_S)
        return _followed(started, running, asked, stream, as_json=as_json)


def _words(loader: str) -> list[str]:
    try:
        words = shlex.split(loader)
    except ValueError as error:
        raise click.UsageError(f"--loader {loader!r}: {error}") from error
    if not words:
        raise click.UsageError("--loader names no program")
    return words


def _followed(
    started: Loader, running: Session, asked: LoaderRun, stream: TextIO, *, as_json: bool
) -> int:
    """Both to their end; the workload's exit code."""
    from egpu.cli.live import finish, follow  # noqa: PLC0415

    detached = False

    def collect() -> None:
        nonlocal detached
        if not detached and not started.running():  # on Linux, links end with their program
            running.detach()
            detached = True
            click.echo("egpu: the loader has ended: its programs are detached", err=True)
        for line in running.prints:
            stream.write(f"{line}\n")
            stream.flush()

    status = follow(running, collect, interval_s=asked.interval_s)
    started.server.finish()
    for line in running.prints.finish():
        stream.write(f"{line}\n")
    stream.flush()
    started.end(asked.wait_s)
    for problem in started.server.problems:
        click.echo(f"egpu: {problem}", err=True)
    return finish(
        status,
        lambda: write_report(
            asked.extras.added_to(_report(running), running), stream, as_json=as_json
        ),
        stream,
    )


def _report(running: Session) -> Report:
    """Launches and cost; the loader shows the maps."""
    from egpu.tools.running import run_of  # noqa: PLC0415
    from egpu.tools.sections import common_data, cost, coverage, launch_data  # noqa: PLC0415

    run = run_of(running)
    kernels = [launch_data(kernel) for kernel in run.kernels]
    return Report("loader/1", (*coverage(run), *cost(run)), common_data(run) | {"kernels": kernels})

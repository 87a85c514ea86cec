"""``egpu run --loader``: a libbpf program shows the numbers, egpu reports beside it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, TextIO

import click

from egpu.cli.output import write_report
from egpu.report import Report

if TYPE_CHECKING:
    from egpu.session import Options, Session

LINGER_S = 2.5  # for a loader that prints every second or two to show the last numbers


def run_loader(
    loader: str, workload: tuple[str, ...], options: Options, stream: TextIO, *, as_json: bool
) -> int:
    """Start ``loader`` (a shell's words), then the workload under what it attached; the workload's
    exit code.  What happened to launches is written to ``stream`` when both have ended.
    """
    from egpu.cli.live import finish, follow  # noqa: PLC0415
    from egpu.loader import run_attached, start_loader  # noqa: PLC0415

    try:
        words = shlex.split(loader)
    except ValueError as error:
        raise click.UsageError(f"--loader {loader!r}: {error}") from error
    if not words:
        raise click.UsageError("--loader names no program")
    with (
        start_loader(words, options) as started,
        run_attached(started, workload, options) as running,
    ):
        status = follow(running, lambda: None, interval_s=0.05)
        running.snapshot()
        started.end(LINGER_S)
        for problem in started.server.problems:
            click.echo(f"egpu: {problem}", err=True)
        return finish(
            status, lambda: write_report(_report(running), stream, as_json=as_json), stream
        )


def _report(running: Session) -> Report:
    """Launches and cost; the loader shows the maps."""
    from egpu.tools.running import run_of  # noqa: PLC0415
    from egpu.tools.sections import common_data, cost, coverage, launch_data  # noqa: PLC0415

    run = run_of(running)
    kernels = [launch_data(kernel) for kernel in run.kernels]
    return Report("loader/1", (*coverage(run), *cost(run)), common_data(run) | {"kernels": kernels})

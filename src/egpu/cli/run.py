"""``egpu run``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

import click

from egpu.cli.counts import Count
from egpu.cli.extras import Extras, Shown, picture_file
from egpu.cli.loader_run import LoaderRun, run_loader
from egpu.cli.output import (
    btf_option,
    control_option,
    cost_limit_option,
    destination,
    json_option,
    load_object,
    lost_updates_option,
    output_option,
    write_report,
)
from egpu.cli.seconds import Seconds
from egpu.cli.session_options import (
    chosen_options,
    interval_option,
    kernels_option,
    machine_code_option,
    map_deletions_option,
    occupancy_option,
    pin_option,
    print_limit_option,
    rings_option,
    twin_wait_option,
)
from egpu.errors import InputError

if TYPE_CHECKING:
    from egpu.bpf.program import Object
    from egpu.report import Report
    from egpu.session import Options, Session
    from egpu.tools.registry import ToolEntry


# Of one word nobody knows which of the two it is.
_MISSING = "the tool or object, or its command, is missing: egpu run kernelcount -- ./app"


@click.command("run")
@click.argument("program", metavar="TOOL|OBJECT", required=False)
@click.argument("workload", metavar="[--] COMMAND...", nargs=-1, type=click.UNPROCESSED)
@json_option
@output_option
@click.option(
    "--sim", "simulated", is_flag=True, help="Use the simulated device, even if there is a GPU."
)
@kernels_option
@twin_wait_option
@occupancy_option
@machine_code_option
@pin_option
@map_deletions_option
@rings_option
@click.option(
    "--every",
    metavar="N",
    type=Count(1, (1 << 32) - 1),
    help="kernellat: measure 1 of N blocks, which costs less; launches are then not measured.",
)
@click.option(
    "--sample",
    metavar="N",
    type=Count(1, (1 << 32) - 1),
    default=1,
    help="Probe only one launch in N of each kernel, the first included; the others run untouched.",
)
@click.option(
    "--loader",
    metavar="COMMAND",
    help="A program that uses libbpf, instead of TOOL|OBJECT: what it attaches is attached.",
)
@click.option(
    "--loader-wait",
    metavar="S",
    type=Seconds(0),
    default=2.5,
    show_default=True,
    help="How long the loader goes on showing numbers after COMMAND, before it is interrupted.",
)
@click.option(
    "--idle",
    is_flag=True,
    help="Attach nothing: `egpu attach PID TOOL|OBJECT` does, while COMMAND runs.",
)
@cost_limit_option
@btf_option
@control_option
@lost_updates_option
@click.option(
    "--explain",
    is_flag=True,
    help="Say how each kernel was probed or why not: registers, resident blocks, spills.",
)
@click.option(
    "--stacks",
    is_flag=True,
    help="Say from which host stacks the probed launches came: takes microseconds of each launch.",
)
@click.option("-v", "--verbose", is_flag=True, help="Give kernel names in full below the report.")
@click.option(
    "--perfetto",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="blocksched: also write every block to a file for ui.perfetto.dev.",
)
@print_limit_option
@click.option("--no-follow", is_flag=True, help="Probe only COMMAND itself, not its children.")
@interval_option
def command(
    *,
    program: str | None,
    workload: tuple[str, ...],
    as_json: bool,
    output: Path | None,
    every: int | None,
    explain: bool,
    stacks: bool,
    no_follow: bool,
    verbose: bool,
    perfetto: Path | None,
    loader: str | None,
    loader_wait: float,
    idle: bool,
    btf: Path | None,
    interval: float,
    **chosen: Any,
) -> int:
    """Run a workload under a tool or an object file.

    COMMAND keeps its input, output and exit code.  The report follows on standard output; a
    command with options of its own stands behind "--".

    The ring records of an OBJECT are printed as they come, before its report.  With --json all
    of it is JSON Lines: one document a line, the report last.  A TOOL's --json is one document.

    With --loader the loader shows its maps and records itself; see docs/bpftime.md.  With --idle
    nothing is attached, and there is no TOOL|OBJECT: `egpu attach` attaches it later.
    """
    options = chosen_options(chosen | {"stacks": stacks, "follow": not no_follow})
    extras = Extras(explain=explain, stacks=stacks, verbose=verbose)
    if idle:
        return _idle(program, workload, options, interval)
    if loader is not None and program is not None:  # the command is all that stands there
        if every is not None or btf is not None:
            raise click.UsageError("--every and --btf do not go with --loader")
        with destination(output) as stream:
            beside = LoaderRun(loader, (program, *workload), loader_wait, interval, extras)
            return run_loader(beside, options, stream, as_json=as_json)
    if program is None or not workload:
        raise click.UsageError(_MISSING)
    tool, loaded = choose(program, btf)
    if every is not None:
        loaded = sampled(tool, loaded, every)
    with destination(output) as stream, picture_file(tool, perfetto) as picture:
        asked = Probing(loaded, workload, options, interval)
        if tool is None:
            return run_object(asked, extras, stream, as_json=as_json)
        return run_tool(asked, _shown(tool, extras, picture), stream, as_json=as_json)


def _shown(tool: ToolEntry, extras: Extras, picture: BinaryIO | None) -> Shown:
    from egpu.tools.registry import new_tool  # noqa: PLC0415

    return Shown(new_tool(tool), extras, picture)


def _idle(program: str | None, workload: tuple[str, ...], options: Options, interval: float) -> int:
    """Run the command with nothing attached; what is about programs is for `egpu attach`."""
    from egpu.cli.idle import run_idle  # noqa: PLC0415
    from egpu.session import Options  # noqa: PLC0415

    kept = Options(simulated=options.simulated, follow=options.follow)
    if options != kept:
        raise click.UsageError(
            "with --idle, options about programs belong to `egpu attach`; --sim, --no-follow and "
            "--interval go with it"
        )
    if program is None:
        raise click.UsageError("no command to run: put it behind --")
    return run_idle((program, *workload), options, interval=interval)


def sampled(tool: ToolEntry | None, loaded: Object, every: int) -> Object:
    """The tool's programs, set to measure 1 of ``every`` blocks; a usage error if it cannot."""
    from egpu.tools.constants import with_constants  # noqa: PLC0415

    if tool is None or not tool.samples:
        raise click.UsageError("--every is for tools that measure blocks: kernellat")
    return with_constants(loaded, {"every": every})


def choose(program: str, btf: Path | None = None) -> tuple[ToolEntry | None, Object]:
    """The tool that is meant, or None, and the programs to attach.

    A name without a slash is a tool first; ``btf`` is for the CO-RE relocations of an object.
    InputError (usage) if it is neither tool nor file.
    """
    from egpu.tools import registry  # noqa: PLC0415

    entry = registry.find_tool(program)
    if entry is not None:
        if btf is not None:
            raise click.UsageError(f"--btf is for object files, and {program} is a tool")
        return entry, registry.load_object(entry)
    path = Path(program)
    if not path.exists():
        names = ", ".join(row.name for row in registry.TOOLS)
        raise InputError(
            f"{program} is neither a tool nor an object file",
            hint=f"the tools are {names}",
            usage=True,
        )
    return None, load_object(path, name=path.name, btf=btf)


@dataclass(frozen=True, slots=True)
class Probing:
    """A workload under the programs of an object; records are collected every ``interval_s``."""

    programs: Object
    workload: tuple[str, ...]
    options: Options
    interval_s: float

    def started(self) -> Session:
        """The session that runs it."""
        from egpu import session  # noqa: PLC0415

        return session.run(self.workload, programs=self.programs, options=self.options)


def run_tool(asked: Probing, tool: Shown, stream: TextIO, *, as_json: bool) -> int:
    """Run under one tool and write its report; the workload's exit code."""
    from egpu.cli.live import finish, follow  # noqa: PLC0415

    with asked.started() as running:
        status = follow(running, lambda: tool.collect(running), interval_s=asked.interval_s)
        return finish(
            status, lambda: write_report(tool.report(running), stream, as_json=as_json), stream
        )


def run_object(asked: Probing, extras: Extras, stream: TextIO, *, as_json: bool) -> int:
    """Run under an object, write records and maps; the workload's exit code."""
    from egpu.cli.live import finish, follow  # noqa: PLC0415
    from egpu.cli.object_run import ObjectOutput  # noqa: PLC0415

    with asked.started() as running:
        output = ObjectOutput(running, stream, as_json=as_json)
        status = follow(running, output.collect, interval_s=asked.interval_s)
        return finish(
            status,
            lambda: write_object(
                extras.added_to(output.report(), running), stream, as_json=as_json
            ),
            stream,
        )


def write_object(report: Report, stream: TextIO, *, as_json: bool) -> None:
    """Write an object's closing report: with ``as_json`` as one line after its records'."""
    from egpu.export.json import write_line  # noqa: PLC0415

    if as_json:
        write_line(report, stream)
    else:
        write_report(report, stream, as_json=False)

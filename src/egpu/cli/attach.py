"""``egpu attach``: programs for a workload that runs already."""

from __future__ import annotations

import contextlib
import enum
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from egpu.cli.counts import Count
from egpu.cli.output import (
    btf_option,
    control_option,
    cost_limit_option,
    destination,
    json_option,
    lost_updates_option,
    output_option,
)
from egpu.cli.seconds import Seconds
from egpu.cli.session_options import (
    chosen_options,
    interval_option,
    kernels_option,
    map_deletions_option,
    occupancy_option,
    pin_option,
    print_limit_option,
    rings_option,
    twin_wait_option,
)
from egpu.errors import InputError

if TYPE_CHECKING:
    from egpu.session import Options

AGENT = "libegpu_agent.so"


@click.command("attach")
@click.argument("pid", metavar="PID", type=Count(1))
@click.argument("program", metavar="TOOL|OBJECT")
@json_option
@output_option
@kernels_option
@twin_wait_option
@occupancy_option
@pin_option
@map_deletions_option
@rings_option
@cost_limit_option
@btf_option
@control_option
@lost_updates_option
@print_limit_option
@interval_option
@click.option(
    "--for",
    "seconds",
    metavar="S",
    type=Seconds(0),
    help="Detach after S seconds.  Default: at Control-C, or when the workload ends.",
)
def command(
    *,
    pid: int,
    program: str,
    as_json: bool,
    output: Path | None,
    btf: Path | None,
    interval: float,
    seconds: float | None,
    **chosen: Any,
) -> int:
    """Attach a tool or an object file to process PID, which runs under `egpu run --idle`.

    Launches that begin from then on are probed and counted.  Control-C takes the programs out and
    prints the report; the workload runs on untouched.
    """
    options = chosen_options(chosen)
    desk = find_desk(pid)
    asked: dict[str, Any] = {
        "program": _named(program),
        "btf": None if btf is None else str(btf.absolute()),
    }
    asked |= {"options": _told(options), "json": as_json}
    with destination(output) as stream:
        _ask(desk, {"do": "attach", **asked})
        click.echo(f"egpu: attached to process {pid}", err=True)
        end = None if seconds is None else time.monotonic() + seconds
        with contextlib.suppress(KeyboardInterrupt):
            _follow(desk, stream, interval, end)
        _write(stream, _ask(desk, {"do": "detach"}))
    return 0


def _follow(desk: Path, stream: TextIO, interval: float, end: float | None) -> None:
    """Show what comes until the workload or the time has ended."""
    while True:
        answer = _ask(desk, {"do": "collect"})
        _write(stream, answer)
        now = time.monotonic()
        if not answer["running"] or (end is not None and now >= end):
            return
        time.sleep(interval if end is None else min(interval, max(0.0, end - now)))


def _write(stream: TextIO, answer: dict[str, Any]) -> None:
    stream.write(answer["text"])
    stream.flush()


def _named(program: str) -> str:
    """A tool's name, or the object file's path from anywhere."""
    from egpu.tools import registry  # noqa: PLC0415

    known = registry.find_tool(program) is not None
    return program if known else str(Path(program).absolute())


def _told(options: Options) -> dict[str, Any]:
    """What differs from the defaults: of the rest, the process there has its own."""
    plain = asdict(type(options)())
    return {
        name: value.value if isinstance(value, enum.Enum) else value
        for name, value in asdict(options).items()
        if value != plain[name]
    }


def options_of(told: dict[str, Any]) -> Options:
    """The options that ``_told`` told; TypeError or ValueError if they are none."""
    from egpu.session import Options, RingMemory  # noqa: PLC0415

    rings = {"rings": RingMemory(told["rings"])} if "rings" in told else {}
    return Options(**told | rings)


def find_desk(pid: int) -> Path:
    """The socket of the ``egpu run --idle`` that serves process ``pid``.

    InputError that says why there is none.
    """
    from egpu.errors import AgentError  # noqa: PLC0415
    from egpu.session import talk  # noqa: PLC0415
    from egpu.session.pins import runtime_directory  # noqa: PLC0415

    for path in sorted((runtime_directory() / "idle").iterdir()):
        try:
            head, _ = talk.ask(path, {"do": "processes"})
        except AgentError:
            continue  # it has ended, or was killed
        if pid in head["pids"]:
            return path
    raise InputError(_why_not(pid), where=f"process {pid}", hint=_START)


_START = "start it by `egpu run --idle -- COMMAND`; attaching needs the agent inside from the start"


def _why_not(pid: int) -> str:
    try:
        mapped = Path(f"/proc/{pid}/maps").read_text("utf-8", "replace")
    except FileNotFoundError:
        return "there is no such process"
    except PermissionError:
        return _not_to_be_seen(pid)
    except ProcessLookupError:
        return "it is about to end"
    if AGENT not in mapped:
        return "it has no agent inside"
    return "it runs under a session of its own, not idle"


def _not_to_be_seen(pid: int) -> str:
    """Linux shows nobody the memory of a process of another user, or of one with more rights."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
    except OSError:
        return "it is about to end"
    _, _, users = status.partition("\nUid:")
    if str(os.geteuid()) in users.partition("\n")[0].split():
        return "Linux does not let this user look into it (it has rights that this process lacks)"
    return "it belongs to another user"


def _ask(desk: Path, request: dict[str, Any]) -> dict[str, Any]:
    from egpu.session import talk  # noqa: PLC0415

    answer, data = talk.ask(desk, request | {"from": os.getpid()})
    if "error" in answer:
        raise talk.received(answer["error"])
    return answer | {"text": data.decode("utf-8", "surrogateescape")}

"""``egpu run-on-gpu``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from egpu.cli.loader_run import run_loader_directly
from egpu.cli.output import (
    btf_option,
    control_option,
    cost_limit_option,
    destination,
    json_option,
    load_object,
    output_option,
    set_option,
)
from egpu.cli.run import write_object
from egpu.cli.session_options import print_limit_option
from egpu.errors import UnsupportedError

if TYPE_CHECKING:
    from egpu.bpf.program import Object
    from egpu.loader.directly import Shape
    from egpu.session import Options


@click.command("run-on-gpu")
@click.argument("words", metavar="OBJECT PROGRAM [COUNT [GX GY GZ BX BY BZ]]", nargs=-1)
@click.option(
    "--loader",
    metavar="COMMAND",
    help="A program that uses libbpf, instead of OBJECT: its maps, filled as it fills them.",
)
@click.option("--sim", is_flag=True, help="Use the simulated device, even if there is a GPU.")
@click.option("--host", is_flag=True, help="Interpret it on this machine, thread after thread.")
@set_option
@control_option
@cost_limit_option
@print_limit_option
@btf_option
@json_option
@output_option
def command(
    *,
    words: tuple[str, ...],
    loader: str | None,
    sim: bool,
    host: bool,
    changes: tuple[tuple[str, int, int], ...],
    allow_control: bool,
    cost_limit: int,
    print_limit: int,
    btf: Path | None,
    as_json: bool,
    output: Path | None,
) -> int:
    """Run a program as a kernel of its own and show its maps.

    Every thread of COUNT launches (default 1) of this grid and block (default 1 1 1 1 1 1) runs
    PROGRAM, one of OBJECT's in section kprobe/__directly_run.  A loader shows its maps itself.
    """
    from egpu.loader.directly import Shape, with_values  # noqa: PLC0415
    from egpu.session import Options  # noqa: PLC0415

    taken = 1 if loader is not None else 2
    if len(words) < taken:
        raise click.UsageError("no program to run")
    name, shape = words[taken - 1], Shape.parse(words[taken:])
    options = Options(
        simulated=sim, allow_control=allow_control, cost_limit=cost_limit, print_limit=print_limit
    )
    asked = Alone(name, shape, interpreted=host, without_gpu="--sim")
    with destination(output) as stream:
        if loader is None:
            made = load_object(Path(words[0]), name=Path(words[0]).name, btf=btf)
            return run_alone(with_values(made, changes), asked, options, stream, as_json=as_json)
        if changes or btf is not None or host:
            raise click.UsageError("--set, --btf and --host do not go with --loader")
        asked.check_device(options)
        return run_loader_directly(loader, name, shape, options, stream, as_json=as_json)


@dataclass(frozen=True, slots=True)
class Alone:
    """The program ``name`` as kernels of this shape, or ``interpreted`` thread after thread;
    ``without_gpu``: the option of the command that runs it on a machine without one."""

    name: str
    shape: Shape
    interpreted: bool
    without_gpu: str

    def check_device(self, options: Options) -> None:
        """UnsupportedError where it is to run on a GPU and there is none."""
        from egpu.cli.machine import why_no_gpu  # noqa: PLC0415

        why = "" if options.simulated or self.interpreted else why_no_gpu()
        if why:
            raise UnsupportedError(f"a run on a GPU ({why})", needs=f"one, or {self.without_gpu}")


def run_alone(
    loaded: Object, asked: Alone, options: Options, stream: TextIO, *, as_json: bool
) -> int:
    """Run a program of ``loaded`` as is asked, and show its maps and what it printed."""
    from egpu.loader.directly import directly_run  # noqa: PLC0415

    made = directly_run(loaded, asked.name)
    if asked.interpreted:
        return _run_on_host(made, asked.shape, options, stream, as_json=as_json)
    asked.check_device(options)
    return _run_object(made, asked.shape, options, stream, as_json=as_json)


def _run_on_host(
    made: Object, shape: Shape, options: Options, stream: TextIO, *, as_json: bool
) -> int:
    from egpu.cli.values import key_typed, plain, shown, value_typed  # noqa: PLC0415
    from egpu.loader.on_host import entries, run_on_host  # noqa: PLC0415
    from egpu.report import Align, Column, Paragraph, Part, Report, Table  # noqa: PLC0415
    from egpu.verifier import Limits, Policy  # noqa: PLC0415

    policy = Policy.CONTROL if options.allow_control else Policy.PROBE
    done = run_on_host(made, shape, policy=policy, limits=Limits(cost=options.cost_limit))
    columns = (Column("KEY"), Column("VALUE", Align.LEFT, may_shorten=True))
    parts: list[Part] = [Paragraph(line) for line in done.prints]
    maps: dict[str, object] = {}
    for name, state in done.maps.items():
        rows = entries(state)
        maps[name] = [{"key": plain(key), "value": plain(value)} for key, value in rows]
        if rows and not state.spec.read_only:
            key, value = key_typed(state.spec), value_typed(state.spec)
            cells = tuple((shown(k, typed=key), shown(v, typed=value)) for k, v in rows)
            parts.append(Table(name, columns, cells))
    data: dict[str, object] = {"prints": list(done.prints), "maps": maps}
    write_object(Report("host/1", tuple(parts), data), stream, as_json=as_json)
    return 0


def _run_object(
    made: Object, shape: Shape, options: Options, stream: TextIO, *, as_json: bool
) -> int:
    from egpu import session  # noqa: PLC0415
    from egpu.cli.live import finish, follow  # noqa: PLC0415
    from egpu.cli.object_run import ObjectOutput  # noqa: PLC0415
    from egpu.loader.directly import carrier  # noqa: PLC0415

    with session.run(carrier(shape), programs=made, options=options) as running:
        shown = ObjectOutput(running, stream, as_json=as_json)
        status = follow(running, shown.collect, interval_s=0.02)
        if status and not running.kernels():  # it has said why, and nothing was counted
            return status
        return finish(status, lambda: write_object(shown.report(), stream, as_json=as_json), stream)

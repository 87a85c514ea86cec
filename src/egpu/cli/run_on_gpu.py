"""``egpu run-on-gpu``."""

from __future__ import annotations

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
    options = Options(simulated=sim, allow_control=allow_control, cost_limit=cost_limit)
    with destination(output) as stream:
        if loader is None:
            made = load_object(Path(words[0]), name=Path(words[0]).name, btf=btf)
            made = with_values(made, changes)
            return run_alone(made, name, shape, options, stream, interpreted=host, as_json=as_json)
        if changes or btf is not None or host:
            raise click.UsageError("--set, --btf and --host do not go with --loader")
        return run_loader_directly(loader, name, shape, options, stream, as_json=as_json)


def run_alone(
    loaded: Object,
    name: str,
    shape: Shape,
    options: Options,
    stream: TextIO,
    *,
    interpreted: bool,
    as_json: bool,
) -> int:
    """Run the program ``name`` as a kernel, or interpret its threads one after the other, and show
    its maps and what it printed."""
    from egpu.loader.directly import directly_run  # noqa: PLC0415

    made = directly_run(loaded, name)
    if interpreted:
        return _run_on_host(made, shape, options, stream, as_json=as_json)
    return _run_object(made, shape, options, stream, as_json=as_json)


def _run_on_host(
    made: Object, shape: Shape, options: Options, stream: TextIO, *, as_json: bool
) -> int:
    from egpu.cli.values import plain, shown  # noqa: PLC0415
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
            parts.append(Table(name, columns, tuple((shown(k), shown(v)) for k, v in rows)))
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

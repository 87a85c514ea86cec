"""``egpu run-on-gpu``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from egpu.cli.loader_run import run_loader_directly
from egpu.cli.output import (
    btf_option,
    cost_limit_option,
    destination,
    json_option,
    load_object,
    output_option,
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
@click.option(
    "--set",
    "changes",
    metavar="MAP INDEX NUMBER",
    type=(str, int, int),
    multiple=True,
    help="Set an element of an array first; may be given many times.",
)
@click.option("--hash-maps", is_flag=True, help="Experimental: allow hash maps on a real GPU.")
@cost_limit_option
@btf_option
@json_option
@output_option
def command(
    *,
    words: tuple[str, ...],
    loader: str | None,
    sim: bool,
    changes: tuple[tuple[str, int, int], ...],
    hash_maps: bool,
    cost_limit: int,
    btf: Path | None,
    as_json: bool,
    output: Path | None,
) -> int:
    """Run a program as a kernel of its own and show its maps.

    Every thread of COUNT launches (default 1) of this grid and block (default 1 1 1 1 1 1) runs
    PROGRAM, one of OBJECT's in section kprobe/__directly_run.  A loader shows its maps itself.
    """
    from egpu.loader.directly import Shape, directly_run, with_values  # noqa: PLC0415
    from egpu.session import Options  # noqa: PLC0415

    taken = 1 if loader is not None else 2
    if len(words) < taken:
        raise click.UsageError("no program to run")
    name, shape = words[taken - 1], Shape.parse(words[taken:])
    options = Options(simulated=sim, hash_maps=hash_maps, cost_limit=cost_limit)
    with destination(output) as stream:
        if loader is None:
            made = load_object(Path(words[0]), name=Path(words[0]).name, btf=btf)
            made = with_values(directly_run(made, name), changes)
            return _run_object(made, shape, options, stream, as_json=as_json)
        if changes or btf is not None:
            raise click.UsageError("--set and --btf do not go with --loader")
        return run_loader_directly(loader, name, shape, options, stream, as_json=as_json)


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
        return finish(status, lambda: write_object(shown.report(), stream, as_json=as_json), stream)

"""``egpu exec``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from egpu.bpf.sections import DIRECTLY_RUN
from egpu.cli.counts import Count
from egpu.cli.output import (
    btf_option,
    control_option,
    cost_limit_option,
    hex_bytes,
    json_option,
    load_object,
    read_file,
    set_option,
)
from egpu.cli.session_options import print_limit_option
from egpu.errors import InputError

if TYPE_CHECKING:
    from egpu.bpf.program import Object, Program

_AXES = 3
EXECUTORS = ("interp", "host", "sim", "cuda")

executor_option = click.option(
    "--executor",
    type=click.Choice(EXECUTORS),
    default="interp",
    show_default=True,
    help="Where the program runs: interpreted, compiled for this CPU, on the simulated device, "
    "on a GPU.",
)


@click.command("exec")
@click.argument("object_file", metavar="[OBJECT]", required=False, type=click.Path(path_type=Path))
@click.option("--raw", metavar="HEX|FILE", help="Bare instructions instead of an object file.")
@click.option("--program", "name", help="Which program of OBJECT.")
@executor_option
@click.option("--memory", metavar="HEX", default="", help="The memory block behind r1.")
@click.option(
    "--count",
    metavar="N",
    type=Count(1),
    help="Of a kprobe/__directly_run program: how many launches.",
)
@click.option("--grid", metavar="X[,Y[,Z]]", help="Its blocks.")
@click.option("--block", metavar="X[,Y[,Z]]", help="Its threads of a block.")
@set_option
@control_option
@print_limit_option
@cost_limit_option
@btf_option
@json_option
def command(
    *,
    object_file: Path | None,
    raw: str | None,
    name: str | None,
    memory: str,
    btf: Path | None,
    **more: Any,
) -> int:
    """Run one eBPF program once, on memory of your own.

    The program comes from OBJECT, or from --raw as hexadecimal text or a file of instructions.  r1
    points at the memory block, r2 is its size.  Prints what the program prints (interp only), r0,
    and the memory block if there is one.

    A program of a section kprobe/__directly_run is a kernel of its own, with maps: it runs as
    `egpu run-on-gpu` runs it, on a GPU, or on the simulated device where there is none.
    """
    if (object_file is None) == (raw is None):
        raise click.UsageError("give either OBJECT or --raw")
    if object_file is None:
        if name is not None or btf is not None:
            raise click.UsageError("--program and --btf are about an object file")
        program = raw_program(_raw_bytes(str(raw)))
    else:
        loaded, program = _of_object(object_file, name, btf)
        if _runs_directly(program):
            if memory:
                raise click.UsageError(f"{program.name} is a kernel of its own: it has no --memory")
            return _run_directly(loaded, program.name, **more)
    return _run_once(program, hex_bytes(memory, "--memory"), **more)


def _given(name: str) -> bool:
    """Whether the option behind this parameter stands on the command line."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _run_once(
    program: Program, memory: bytes, *, executor: str, cost_limit: int, as_json: bool, **more: Any
) -> int:
    """One run on ``memory``; the rest of the options is for kernels."""
    from egpu.cli.executors import Executor, execute, interpret  # noqa: PLC0415
    from egpu.verifier import Limits  # noqa: PLC0415

    if any(_given(each) for each in more):
        raise click.UsageError(
            "--count, --grid, --block, --set, --allow-control and --print-limit are for programs "
            "of kprobe/__directly_run"
        )
    data = bytearray(memory)
    lines: tuple[str, ...] = ()
    if executor == Executor.INTERP.value:
        result, lines = interpret(program, data)
    else:
        result = execute(Executor(executor), program, data, Limits(cost=cost_limit))
    _show(program.name, executor, result, lines, bytes(data), as_json=as_json)
    return 0


def _show(
    name: str, executor: str, result: int, lines: tuple[str, ...], data: bytes, *, as_json: bool
) -> None:
    if as_json:
        from egpu.export.json import render_json  # noqa: PLC0415

        answer = {
            "program": name,
            "executor": executor,
            "r0": f"0x{result:x}",
            "memory": data.hex(),
            "printed": list(lines),
        }
        click.echo(render_json("exec/1", answer), nl=False)
        return
    for line in lines:
        click.echo(line)
    click.echo(f"r0 = 0x{result:x} ({result})")
    if data:
        click.echo(f"memory = {data.hex(' ')}")


def _runs_directly(program: Program) -> bool:
    return any(point.pattern == DIRECTLY_RUN for point in program.attach)


def _run_directly(
    loaded: Object,
    name: str,
    *,
    executor: str,
    count: int | None,
    grid: str | None,
    block: str | None,
    changes: tuple[tuple[str, int, int], ...],
    allow_control: bool,
    print_limit: int,
    cost_limit: int,
    as_json: bool,
) -> int:
    """As ``egpu run-on-gpu`` does; the carrier's exit code."""
    from egpu.cli.machine import gpus  # noqa: PLC0415
    from egpu.cli.output import destination  # noqa: PLC0415
    from egpu.cli.run_on_gpu import Alone, run_alone  # noqa: PLC0415
    from egpu.loader.directly import Shape, with_values  # noqa: PLC0415
    from egpu.session import Options  # noqa: PLC0415

    if executor == "host":
        raise click.UsageError(
            f"{name} is a kernel of its own: --executor sim, cuda or interp run it"
        )
    sizes = [*_sizes(grid, "--grid"), *_sizes(block, "--block")]
    shape = Shape.parse([str(count or 1), *map(str, sizes)])
    chosen = executor if _given("executor") else ""
    simulated = chosen == "sim" or (not chosen and not gpus())
    if simulated and not chosen:
        click.echo("egpu: no GPU here: on the simulated device", err=True)
    options = Options(
        simulated=simulated,
        allow_control=allow_control,
        print_limit=print_limit,
        cost_limit=cost_limit,
    )
    asked = Alone(name, shape, interpreted=chosen == "interp", without_gpu="--executor sim")
    with destination(None) as stream:
        return run_alone(with_values(loaded, changes), asked, options, stream, as_json=as_json)


def _sizes(text: str | None, option: str) -> list[int]:
    """``X[,Y[,Z]]`` as three numbers."""
    words = (text or "1").split(",")
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= _AXES:
        raise click.UsageError(f"{option} is X, X,Y or X,Y,Z, not {text}")
    return numbers + [1] * (_AXES - len(numbers))


def raw_program(data: bytes) -> Program:
    """A program of bare instruction bytes; InputError if they are none."""
    from egpu.bpf.insn import decode, program_from_code  # noqa: PLC0415

    return program_from_code(decode(data), "raw")


def _raw_bytes(text: str) -> bytes:
    """``text`` as hexadecimal, else the contents of the file it names (bytes or hexadecimal)."""
    compact = "".join(text.split())
    if compact and all(letter in "0123456789abcdefABCDEF" for letter in compact):
        return hex_bytes(text, "--raw")
    if not compact or not Path(text).exists():
        raise InputError(f"--raw is neither hexadecimal nor a file: {text[:40]!r}", usage=True)
    data = read_file(Path(text))
    letters = b"".join(data.split())
    if letters and all(letter in b"0123456789abcdefABCDEF" for letter in letters):
        return bytes.fromhex(letters.decode()) if len(letters) % 2 == 0 else data
    return data


def _of_object(path: Path, name: str | None, btf: Path | None) -> tuple[Object, Program]:
    loaded = load_object(path, name=path.name, btf=btf)
    programs = loaded.by_name()
    if not programs:
        raise InputError("no program in it", where=str(path))
    if name is None:
        if len(programs) > 1:
            raise InputError(
                f"several programs in it ({', '.join(programs)})",
                where=str(path),
                hint="choose one with --program",
                usage=True,
            )
        return loaded, next(iter(programs.values()))
    if name not in programs:
        raise InputError(
            f"no program {name} in it",
            where=str(path),
            hint=f"it has {', '.join(programs)}",
            usage=True,
        )
    return loaded, programs[name]

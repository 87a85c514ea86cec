"""``egpu exec``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from egpu.cli.output import hex_bytes, json_option, load_object, read_file
from egpu.errors import InputError

if TYPE_CHECKING:
    from egpu.bpf.program import Program

EXECUTORS = ("interp", "host", "sim", "cuda")

executor_option = click.option(
    "--executor",
    type=click.Choice(EXECUTORS),
    default="interp",
    show_default=True,
    help="Where the program runs.",
)


@click.command("exec")
@click.argument("object_file", metavar="[OBJECT]", required=False, type=click.Path(path_type=Path))
@click.option("--raw", metavar="HEX|FILE", help="Bare instructions instead of an object file.")
@click.option("--program", "name", help="Which program of OBJECT.")
@executor_option
@click.option("--memory", metavar="HEX", default="", help="The memory block behind r1.")
@json_option
def command(
    *,
    object_file: Path | None,
    raw: str | None,
    name: str | None,
    executor: str,
    memory: str,
    as_json: bool,
) -> None:
    """Run one eBPF program once, on memory of your own.

    The program comes from OBJECT, or from --raw as hexadecimal text or a file of instructions.  r1
    points at the memory block, r2 is its size.  Prints r0, and the memory block if there is one.
    """
    from egpu.cli.executors import Executor, execute  # noqa: PLC0415

    if (object_file is None) == (raw is None):
        raise click.UsageError("give either OBJECT or --raw")
    if object_file is not None:
        program = _of_object(object_file, name)
    elif name is not None:
        raise click.UsageError("--program names a program of an object file")
    else:
        program = raw_program(_raw_bytes(str(raw)))
    block = bytearray(hex_bytes(memory, "--memory"))
    result = execute(Executor(executor), program, block)
    if as_json:
        from egpu.export.json import render_json  # noqa: PLC0415

        answer = {
            "program": program.name,
            "executor": executor,
            "r0": f"0x{result:x}",
            "memory": block.hex(),
        }
        click.echo(render_json("exec/1", answer), nl=False)
        return
    click.echo(f"r0 = 0x{result:x} ({result})")
    if block:
        click.echo(f"memory = {block.hex(' ')}")


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


def _of_object(path: Path, name: str | None) -> Program:
    programs = load_object(path).by_name()
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
        return next(iter(programs.values()))
    if name not in programs:
        raise InputError(
            f"no program {name} in it",
            where=str(path),
            hint=f"it has {', '.join(programs)}",
            usage=True,
        )
    return programs[name]

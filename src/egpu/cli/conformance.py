"""``egpu conformance-plugin``: the public BPF conformance suite's runner protocol."""

from __future__ import annotations

import sys

import click

from egpu.cli.exec import executor_option, raw_program
from egpu.cli.output import hex_bytes
from egpu.errors import InputError


@click.command("conformance-plugin")
@executor_option
@click.argument("memory", required=False, default="", metavar="[MEMORY-HEX]")
def command(executor: str, memory: str) -> None:
    """Run the program on standard input (hexadecimal) and print r0 in hexadecimal.

    A program that is refused or fails gives a message on standard error and a non-zero exit code.
    """
    from egpu.cli.executors import Executor, execute  # noqa: PLC0415

    program = raw_program(hex_bytes(_standard_input(), "standard input"))
    block = bytearray(hex_bytes(memory, "MEMORY-HEX"))
    click.echo(f"{execute(Executor(executor), program, block):x}")


def _standard_input() -> str:
    if sys.stdin is None:  # closed by whoever started us
        return ""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is no text: {error}", usage=True) from None

"""What commands share about reading files and writing answers."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from egpu.cli.counts import Count
from egpu.errors import InputError

if TYPE_CHECKING:
    from egpu.bpf.core_target import CoreTarget
    from egpu.bpf.program import Object
    from egpu.report import Report

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of text for people."
)
cost_limit_option = click.option(
    "--cost-limit",
    metavar="N",
    type=Count(1),
    default=100_000,
    show_default=True,
    help="Most instructions that a program may add to one thread.",
)
btf_option = click.option(
    "--btf",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The kernel's types for CO-RE relocations: BTF or vmlinux. Default: the running kernel's.",
)
lost_updates_option = click.option(
    "--allow-lost-updates",
    "lost_updates",
    is_flag=True,
    help="Warn of plain updates that other threads may undo, instead of refusing them.",
)
control_option = click.option(
    "--allow-control",
    is_flag=True,
    help="Programs may change what the workload does: end threads (bpf_cuda_exit).",
)
set_option = click.option(
    "--set",
    "changes",
    metavar="MAP INDEX NUMBER",
    type=(str, int, int),
    multiple=True,
    help="Set an element of an array first; may be given many times.",
)
output_option = click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the answer to this file instead of standard output.",
)


def read_file(path: Path) -> bytes:
    """The file's bytes; InputError that names it if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(path)) from error


def load_object(path: Path, *, name: str = "", btf: Path | None = None) -> Object:
    """Read the object file, its CO-RE relocations solved by the types of ``btf``, or without it
    by the running kernel's.

    ``name`` is for messages, else the path is.  Raises InputError, UnsupportedError.
    """
    from egpu.bpf.object import read_object  # noqa: PLC0415

    @functools.cache
    def kernel() -> CoreTarget:
        from egpu.session.kernel_types import kernel_types  # noqa: PLC0415

        return kernel_types(btf)()

    if btf is not None:  # a wrong one is said although nothing may need it
        kernel()
    return read_object(read_file(path), name or str(path), kernel=kernel)


@contextmanager
def destination(path: Path | None) -> Iterator[TextIO]:
    """The stream for an answer: ``path`` if given, else standard output."""
    if path is None and sys.stdout is None:  # closed by whoever started us
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            yield nowhere
        return
    if path is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        stream = path.open("w", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror})", where=str(path)) from error
    with stream:
        yield stream


def write_report(report: Report, stream: TextIO, *, as_json: bool) -> None:
    """Write ``report`` in the format asked for."""
    if as_json:
        from egpu.export.json import write_json  # noqa: PLC0415

        write_json(report, stream)
    else:
        from egpu.export.text import write_text  # noqa: PLC0415

        write_text(report, stream)


def hex_bytes(text: str, what: str) -> bytes:
    """Bytes from hexadecimal text, white space allowed; InputError (usage) otherwise."""
    try:
        return bytes.fromhex("".join(text.split()))
    except ValueError:
        raise InputError(f"{what} is not hexadecimal: {text[:40]!r}", usage=True) from None

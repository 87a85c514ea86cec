"""``egpu gen``."""

from __future__ import annotations

import hashlib
from pathlib import Path

import click

from egpu.cli.output import destination, output_option, read_file


@click.command("gen")
@click.argument("object_file", metavar="OBJECT", type=click.Path(path_type=Path))
@output_option
def command(*, object_file: Path, output: Path | None) -> None:
    """Write a Python module with the types of an object's maps, programs and variables.

    Its class is an egpu.Object that opens OBJECT, which stays beside the module.  Type checkers
    then know keys, values, records and global variables.
    """
    from egpu.bpf.object import read_object  # noqa: PLC0415
    from egpu.session.stub import module_text  # noqa: PLC0415

    data = read_file(object_file)
    text = module_text(read_object(data, object_file.name), hashlib.sha256(data).hexdigest())
    with destination(output) as stream:
        stream.write(text)

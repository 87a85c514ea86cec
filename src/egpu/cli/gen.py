"""``egpu gen``."""

from __future__ import annotations

import hashlib
from pathlib import Path

import click

from egpu.cli.output import btf_option, destination, load_object, output_option, read_file


@click.command("gen")
@click.argument("object_file", metavar="OBJECT", type=click.Path(path_type=Path))
@btf_option
@output_option
def command(*, object_file: Path, btf: Path | None, output: Path | None) -> None:
    """Write a Python module with the types of an object's maps, programs and variables.

    Its class is an egpu.Object that opens OBJECT, which stays beside the module.  Type checkers
    then know keys, values, records and global variables.
    """
    from egpu.session.stub import module_text  # noqa: PLC0415

    digest = hashlib.sha256(read_file(object_file)).hexdigest()
    text = module_text(load_object(object_file, name=object_file.name, btf=btf), digest)
    with destination(output) as stream:
        stream.write(text)

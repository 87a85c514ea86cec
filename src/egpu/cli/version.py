"""``egpu version``."""

from __future__ import annotations

import click

from egpu.version import VERSION


@click.command("version")
def command() -> None:
    """Print the version."""
    click.echo(f"egpu {VERSION}")

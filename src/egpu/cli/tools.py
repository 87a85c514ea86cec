"""``egpu tools``."""

from __future__ import annotations

import click

from egpu.cli.output import json_option


@click.command("tools")
@json_option
def command(*, as_json: bool) -> None:
    """List the tools that come with egpu."""
    from egpu.tools.registry import TOOLS  # noqa: PLC0415

    if as_json:
        from egpu.export.json import render_json  # noqa: PLC0415

        rows = [{"name": entry.name, "summary": entry.summary} for entry in TOOLS]
        click.echo(render_json("tools/1", {"tools": rows}), nl=False)
        return
    width = max(len(entry.name) for entry in TOOLS)
    for entry in TOOLS:
        click.echo(f"{entry.name:<{width}}  {entry.summary}")
